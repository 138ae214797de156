"""The task of tagging the words of a text."""

import logging
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import ClassVar

import numpy as np
from jaxtyping import Float
from torch import Tensor
from torchmetrics import Metric

from triptych.data import IGNORE_INDEX, Batch, CorpusInfo, EncodedExample, Example, collate
from triptych.tasks.exact_sums import ExactMean
from triptych.tasks.metric_specs import ACCURACY, MetricSpec
from triptych.tasks.predictions import Predictions
from triptych.tasks.task import NO_GENERATION, MetricModes, Metrics, Task, Values

log = logging.getLogger("triptych")

SCHEMES = {"IO": "I", "BIO": "BI", "BIOES": "BIES", "BILOU": "BILU", "BMES": "BMES"}
"""Letters of each scheme for the words of an entity: beginning, inside, end, or single word."""
UNTYPED = ", untyped"
AS_BIOES = str.maketrans("LUM", "ESI")

ENTITY_F1 = MetricSpec(
    name="entity_f1",
    key="test/entity_f1",
    title="F1 of the entities",
    higher_is_better=True,
    unit="%",
    is_of_right_answers=True,
    numerator={"found_and_true": 2.0},
    denominator={"found": 1.0, "true": 1.0},
)


class Tagging(Task):
    """Predicts the tag of each tagged word from the state of its first token.

    Every architecture reads the words as a complete text; the decoder of an encoder-decoder reads the same text as its
    encoder. In a decoder, a word attends only to the words before it.

    Metrics: accuracy, the fraction of words with the correct tag; if the tags mark entities (see ``entities``), also
    entity_precision, entity_recall and entity_f1 over all entities of the split; an entity is found if its words and
    type match exactly (Tjong Kim Sang and De Meulder 2003). The log and the record state the scheme of the tags (see
    ``scheme_of``), or that there is none. A word that is cut off because its sentence is too long counts as a wrong tag
    outside of entities."""

    name = "tagging"
    metric_modes: ClassVar[MetricModes] = {
        "accuracy": "max", "entity_precision": "max", "entity_recall": "max", "entity_f1": "max"
    }  # fmt: skip
    title = "Tagging"
    columns = ("words", "tags")
    predicts_tokens = False
    unsupported = NO_GENERATION

    @classmethod
    def comparison_metrics(cls, architecture: str, metrics: Values, optimum: Values) -> Sequence[MetricSpec]:
        """Returns accuracy; first the F1 of the entities, if the tags mark entities."""
        accuracy = replace(ACCURACY, numerator={"correct": 1.0}, denominator={"words": 1.0})
        return [ENTITY_F1, accuracy] if ENTITY_F1.key in metrics else [accuracy]

    @property
    def labels(self) -> tuple[str, ...]:
        """The tags that the task predicts."""
        return self.corpus.tag_labels

    @classmethod
    def num_outputs(cls, vocab_size: int, corpus: CorpusInfo) -> int:
        """Returns the number of tags."""
        return len(corpus.tag_labels)

    def encode(self, examples: Sequence[Example]) -> list[EncodedExample]:
        """Encodes the words, with the tag of each word as the label of its first token.

        Raises:
            ValueError: if a tag is unknown, or the numbers of words and tags differ.
        """
        numbers: dict[str | None, int] = {None: IGNORE_INDEX, **{tag: i for i, tag in enumerate(self.labels)}}
        encoded = []
        for example in examples:
            words, tags = example.words or (), example.tags or ()
            if len(words) != len(tags):
                raise ValueError(f"{example.where}: {len(words)} words, but {len(tags)} tags")
            for word, tag in zip(words, tags, strict=True):
                if tag not in numbers:
                    raise ValueError(
                        f"{example.where}: the tag of {word!r} is {tag!r}; expected one of {', '.join(self.labels)} "
                        "(the tags that the model was trained with; data.split_seed draws other shares)"
                    )
            pieces = self.tokenizer.encode(words)
            special = self.tokenizer.special
            if special.unk is not None:  # some words, such as control characters, have no tokens
                pieces = [piece or [special.unk] for piece in pieces]
            tokens = np.array(special.single([i for piece in pieces for i in piece]))
            labels = np.full(len(tokens), IGNORE_INDEX)
            labels[first_tokens(pieces, len(special.begin))] = [numbers[tag] for tag in tags]
            source = tokens if self.architecture == "full" else None
            encoded.append(EncodedExample(tokens, labels, source, example=example))
        return encoded

    def reference(self, example: Example) -> str:
        """Returns the tags of the tagged words, separated by spaces."""
        return " ".join(_asked(example))

    def make_metrics(self, stage: str) -> dict[str, Metric]:
        """Returns the metrics listed in the class docstring."""
        names = ("precision", "recall", "f1") if scheme_of(self.corpus.tag_labels) else ()
        return {"accuracy": ExactMean(), **{f"entity_{name}": ExactMean() for name in names}}

    def evaluate(self, batch: Batch, metrics: Metrics, stage: str) -> Predictions:
        """Adds a batch to the metrics, and returns its predictions."""
        logits = self.scored_logits(metrics, batch)
        hits = (logits.argmax(-1) == batch.labels) & (batch.labels != IGNORE_INDEX)
        truths = [_asked(example) for example in batch.examples if example is not None]
        metrics["accuracy"].update(hits.sum(), sum(map(len, truths)))
        guesses = self._tags(batch, logits)
        numbers = {"correct": hits.sum(1).tolist(), "words": [len(truth) for truth in truths]}
        if "entity_f1" in metrics:
            pairs = [(entities(guess), entities(truth)) for guess, truth in zip(guesses, truths, strict=True)]
            numbers["found"], numbers["true"] = ([len(pair[side]) for pair in pairs] for side in (0, 1))
            numbers["found_and_true"] = [len(ours & theirs) for ours, theirs in pairs]
            found, true, both = (sum(numbers[name]) for name in ("found", "true", "found_and_true"))
            metrics["entity_precision"].update(both, found)
            metrics["entity_recall"].update(both, true)
            metrics["entity_f1"].update(2 * both, found + true)
        return Predictions([" ".join(guess) for guess in guesses], numbers)

    @property
    def signatures(self) -> dict[str, str]:
        """The scheme of the tags for the F1 of the entities, or the reason why there is none."""
        if scheme := scheme_of(self.corpus.tag_labels):
            match = "words" if scheme.endswith(UNTYPED) else "words and type|CoNLL-2003"
            return {ENTITY_F1.name: f"tags:{scheme}|match:{match}"}
        return {ACCURACY.name: f"each tag by itself: the tags are not {', '.join(SCHEMES)}"}

    def on_train_start(self) -> None:
        """Logs how the tags are scored."""
        for metric, how in self.signatures.items():
            log.info("%s: %s", metric, how)

    def derived_metrics(self, values: dict[str, float]) -> dict[str, float]:
        """Replaces NaN by 0 in the entity metrics, if there are no entities."""
        return {n: 0.0 if n.startswith("entity_") and math.isnan(value) else value for n, value in values.items()}

    def _tags(self, batch: Batch, logits: Float[Tensor, "batch length tags"]) -> list[list[str]]:
        """Returns the most likely tag of each word that was read."""
        rows = zip(logits.argmax(-1), batch.labels != IGNORE_INDEX, strict=True)
        return [[self.corpus.tag_labels[i] for i in row[scored].tolist()] for row, scored in rows]

    def predict_batch(self, texts: Sequence[str]) -> list[str]:
        """Returns the tags of the words of each text that are read, separated by spaces.

        Words are separated by whitespace, or are single characters in a corpus of such words."""
        examples = []
        for text in texts:
            words = tuple(text) if self.corpus.words_are_characters else tuple(text.split())
            examples.append(Example(text, words=words, tags=self.labels[:1] * len(words)))
        batch = collate(self.enforce_max_length(self.encode(examples))).to(self.device)
        return [" ".join(tags) for tags in self._tags(batch, self.forward(batch))]


def _asked(example: Example) -> list[str]:
    """Returns the tags of the tagged words."""
    return [tag for tag in example.tags or () if tag is not None]


def first_tokens(pieces: Sequence[Sequence[int]], start: int) -> list[int]:
    """Returns the position of the first token of each word; that of the first word is ``start``."""
    return list(accumulate((len(piece) for piece in pieces[:-1]), initial=start)) if pieces else []


def scheme_of(tag_labels: Sequence[str]) -> str:
    """Returns the scheme by which these tags mark entities; empty: none.

    Schemes are IO, BIO (including IOB1), BIOES (including IOE), BILOU and BMES; untyped, if the tags are B and I
    instead of B-X and I-X. Words outside of entities are O in each scheme."""
    tags = {tag for tag in tag_labels if tag != "O"}
    letters = {tag[:1] for tag in tags}
    if all(re.fullmatch(".", tag) for tag in tags):
        untyped = UNTYPED
        if not letters & set("BI"):  # S alone may be anything
            return ""
    elif all(re.fullmatch(".-.+", tag) for tag in tags):
        untyped = ""
    else:
        return ""
    return next((name + untyped for name, known in SCHEMES.items() if letters <= set(known)), "")


def entities(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """Returns the entities marked by the tags of a sentence, by the rules of the CoNLL-2003 evaluation.

    Consecutive words of one type are one entity, except that B and S begin a new one, and E and S end one. So BIO, IOB1
    and BIOES need no distinction. L, U and M are E, S and I.

    Returns:
        Type (empty if the tags have none), first word, and the word after the last.
    """
    found, start = set(), 0
    parts = [(tag[:1].translate(AS_BIOES), tag[2:]) for tag in ("O", *tags, "O")]
    for i, ((before, its_type), (after, next_type)) in enumerate(pairwise(parts)):
        is_one = "O" not in (before, after) and its_type == next_type
        if is_one and before not in "ES" and after not in "BS":
            continue
        if before != "O":
            found.add((its_type, start, i))
        start = i
    return found
