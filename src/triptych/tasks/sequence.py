"""The base class of tasks with one prediction for a whole text, text pair, image, or audio clip.

Tested by tests/tasks/test_question_answering.py.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from triptych.config import ConfigError
from triptych.data import EncodedExample, Example, SpecialTokens, collate
from triptych.data.batches.batch import Given
from triptych.nn.head import Pooling
from triptych.tasks.task import NO_GENERATION, Task


class SequenceTask(Task):
    """A task that predicts from one state: head(state).

    The state is that of the first position in an encoder, and of the last non-padding position in a decoder. The
    decoder of an encoder-decoder reads the same text as its encoder (like BART, Lewis et al. 2020, section 3.1), after
    its start token and without the last token, as in generation (like the classifiers of Hugging Face).

    A pair of texts is one text with a separator (see ``SpecialTokens.pair``); an encoder with token types reads the
    second as type 1. If a pair is too long, the longer text is cut."""

    predicts_tokens = False
    truncates_input = True
    pooling: ClassVar[Mapping[str, Pooling]] = {"encoder_only": "first", "decoder_only": "last", "full": "last"}
    unsupported: ClassVar[Mapping[str, str]] = NO_GENERATION

    @property
    def reads_pairs(self) -> bool:
        """Whether the corpus has pairs of texts."""
        return self.corpus.has_pairs

    @abstractmethod
    def label(self, example: Example) -> int:
        """Returns the index of the class; any number if there are no classes.

        Raises:
            ValueError: if the example has no reference; the caller adds the location of the example to the message.
        """

    def reference(self, example: Example) -> str:
        """Returns the class."""
        return example.label or ""

    def encode(self, examples: Sequence[Example]) -> list[EncodedExample]:
        """Encodes each text, pair, image or audio clip, and its label.

        Raises:
            ValueError: if an example has no reference, is one text instead of a pair, or has an image of another size.
        """
        encoded = []
        for example, (given, prefix) in zip(examples, self._inputs(examples), strict=True):
            try:  # error_prefix would format each place
                label = self.label(example)
            except ValueError as error:
                raise ConfigError(f"{example.where}: {error}") from None
            encoded.append(self._laid_out(given, prefix, label, example))
        return encoded

    def _laid_out(self, given: Given, prefix: int, label: int, example: Example | None) -> EncodedExample:
        labels = np.array([label])
        if self.architecture != "full":
            return EncodedExample(given, labels, prefix=prefix, example=example)
        read_again = given[:-1] if given.ndim == 1 else ()  # only the encoder reads audio and images
        tokens = np.append(self.tokenizer.special.start, read_again).astype(np.int64)
        return EncodedExample(tokens, labels, given, prefix, example)

    def _inputs(self, examples: Sequence[Example]) -> Iterator[tuple[np.ndarray, int]]:
        """Yields each text, pair, image or audio clip, and the position of the second text."""
        if self.audio is not None or self.image_shape is not None:
            read = self.pixel_values if self.audio is None else self.audio.features
            yield from ((read(example), 0) for example in examples)
            return
        special = self.tokenizer.special
        seconds = iter(self.tokenizer.encode([e.text_pair for e in examples if e.text_pair is not None]))
        for example, ids in zip(examples, self.tokenizer.encode([e.text for e in examples]), strict=True):
            if example.text_pair is None and self.reads_pairs:
                raise ValueError(f"{example.where}: one text; expected a pair, as in training")
            tokens, prefix = (special.single(ids), 0) if example.text_pair is None else special.pair(ids, next(seconds))
            yield np.array(tokens), prefix

    def truncate(self, item: EncodedExample) -> EncodedExample:
        """Truncates an example (see ``Task``); both sides of an encoder-decoder read the same truncated text."""
        given = item.inputs if item.source is None else item.source
        cut, prefix = self._cut(given), 0
        if item.prefix:
            cut, prefix = cut_pair(given, item.prefix, self.max_length, self.tokenizer.special)
        return self._laid_out(cut, prefix, int(item.labels[0]), item.example)

    def outputs(self, inputs: Sequence[Any]) -> Float[Tensor, "batch outputs"]:
        """Returns the logits of a few texts, text pairs, images, or audio clips.

        Args:
            inputs: inputs of ``predict``.
        """
        if self.audio is not None:
            examples = [Example("audio", audio=sound) for sound in inputs]
        elif self.image_shape is None:
            examples = [self.example_of(given, Example("")) for given in inputs]
        else:
            examples = [Example("image", image=image) for image in inputs]
        laid_out = zip(self._inputs(examples), examples, strict=True)
        encoded = [self._laid_out(given, prefix, 0, example) for (given, prefix), example in laid_out]
        if self.audio is None:
            encoded = self.enforce_max_length(encoded)
        return self.forward(collate(encoded).to(self.device)).float()


def cut_pair(
    tokens: Int[np.ndarray, " length"], prefix: int, max_length: int, special: SpecialTokens
) -> tuple[Int[np.ndarray, " cut"], int]:
    """Truncates a pair, keeping the beginning of each text.

    The longer text is cut until both have equal length, then both are (like BERT).

    Args:
        tokens: tokens as formatted by ``SpecialTokens.pair``.
        prefix: position of the second text.
        max_length: maximum number of tokens.
        special: special tokens around and between the texts.

    Returns:
        The tokens, and the position of the second text.

    Raises:
        ValueError: if ``max_length`` is too small for a token of each text.
    """
    first = tokens[len(special.begin) : prefix - len(special.separator)]
    second = tokens[prefix : len(tokens) - len(special.end)]
    around = len(tokens) - len(first) - len(second)
    room = min(len(first) + len(second), max_length - around)
    if room < 2 and len(first) and len(second):
        raise ValueError(
            f"shape.max_length={max_length}: a pair of texts has {around} tokens around the texts; "
            f"expected at least {around + 2}"
        )
    kept = min(len(first), max(room - len(second), room - room // 2))
    cut, start = special.pair(first[:kept].tolist(), second[: room - kept].tolist())
    return np.array(cut), start
