"""One tag for each word of a text."""

from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np
from jaxtyping import Float
from torch import Tensor
from torchmetrics import Metric

from triptych.data.batch import IGNORE, Batch, Encoded, collate
from triptych.data.corpus import CorpusFacts
from triptych.data.example import Example
from triptych.tasks.base import Task, token_accuracy
from triptych.tasks.exact import Mean


class Tagging(Task):
    """The tag of each word, from the state of its first token.

    Every architecture reads the words as a whole text; the decoder of the full model reads the same as its encoder. A
    decoder sees only what stands before a word.
    """

    name = "tagging"
    predicts_tokens = False

    @classmethod
    def num_outputs(cls, vocab_size: int, corpus: CorpusFacts) -> int:
        """One for each tag."""
        return len(corpus.tag_labels)

    def encode(self, examples: Sequence[Example]) -> list[Encoded]:
        """The words' tokens, with the tag of each word at its first.

        Raises:
            ValueError: a tag that is not one of the tags, or words and tags of unequal number.
        """
        numbers = {tag: i for i, tag in enumerate(self.corpus.tag_labels)}
        encoded = []
        for example in examples:
            words, tags = example.words or (), example.tags or ()
            if unknown := sorted(set(tags) - set(numbers)):
                raise ValueError(f"{example.where}: tag {unknown[0]!r}; expected one of {', '.join(numbers)}")
            if len(words) != len(tags):
                raise ValueError(f"{example.where}: {len(words)} words, but {len(tags)} tags")
            pieces = self.tokenizer.encode(words)
            special = self.tokenizer.special
            if special.unk is not None:  # of some words, of control characters alone, nothing would be left
                pieces = [piece or [special.unk] for piece in pieces]
            tokens = np.array(special.whole([i for piece in pieces for i in piece]))
            labels = np.full(len(tokens), IGNORE)
            labels[first_tokens(pieces, len(special.begin))] = [numbers[tag] for tag in tags]
            source = tokens if self.architecture == "full" else None
            encoded.append(Encoded(tokens, labels, source, example=example))
        return encoded

    def make_metrics(self, stage: str) -> dict[str, Metric]:
        """The share of words with the right tag."""
        return {"accuracy": Mean()}

    def update_metrics(
        self, metrics: Mapping[str, Metric], batch: Batch, logits: Float[Tensor, "batch length tags"]
    ) -> None:
        """Counts hits."""
        token_accuracy(metrics["accuracy"], batch, logits)

    def predict_batch(self, texts: Sequence[str]) -> list[str]:
        """The tags of each text, separated by blanks. Words are separated by blanks too; in a corpus whose words are
        characters, each character is one."""
        tag_labels = self.corpus.tag_labels
        cut = [tuple(text) if self.corpus.words_are_characters else tuple(text.split()) for text in texts]
        examples = [
            Example(text, words=words, tags=(tag_labels[0],) * len(words))
            for text, words in zip(texts, cut, strict=True)
        ]
        batch = collate(self.encode(examples)).to(self.device)
        best = self(batch).argmax(-1)
        return [
            " ".join(tag_labels[i] for i in row[labels != IGNORE].tolist())
            for row, labels in zip(best, batch.labels, strict=True)
        ]


def first_tokens(pieces: Sequence[Sequence[int]], start: int) -> list[int]:
    """The place of each word's first token, where the first word's is ``start``."""
    return list(accumulate((len(piece) for piece in pieces[:-1]), initial=start)) if pieces else []
