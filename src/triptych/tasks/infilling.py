"""The infilling task: generating the missing middle of a text."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal
from zlib import crc32

import numpy as np
from torchmetrics import Metric
from torchmetrics.functional.text import edit_distance

from triptych.data import IGNORE_INDEX, EncodedExample, Example
from triptych.tasks.exact_sums import ExactMean
from triptych.tasks.metric_specs import MetricSpec
from triptych.tasks.predictions import Prediction
from triptych.tasks.sequence_to_sequence import SequenceToSequence
from triptych.tasks.task import MetricModes, Metrics, Scores, TaskContext

Middle = Literal["span", "line", "rest_of_line"]
LEAST_SENTINELS = 3
"""Minimum number of sentinels: one each before the prefix, the suffix, and the middle."""
LITERAL = re.compile(r"""("(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|\b\d[\w.]*""")
"""A quoted string, or a number."""


@dataclass(kw_only=True, eq=False, repr=False)
class Infilling(SequenceToSequence):
    """Generates the middle of a text, given its prefix and suffix: fill in the middle (Bavarian et al. 2022).

    Three sentinels of the tokenizer (``tokenizer.num_sentinels``) mark the parts, here <P>, <S> and <M>. The
    encoder-decoder reads prefix <P> suffix with its encoder and generates the middle with its decoder. A decoder-only
    model reads one text (section 3):

    - prefix first (PSM): <P> prefix <S> suffix <M> middle
    - suffix first (SPM, appendix D): <P> <S> suffix <M> prefix middle

    Training draws the order and the middle several times for each text. For a causal decoder, some texts are not cut,
    and in the others prefix and suffix are targets, too, so it remains a language model. Evaluation reads each text
    once, with the prefix first. Its middle is a function of the text alone, so it is equal for every architecture and
    seed.

    Metrics: token_accuracy and exact_match (see ``SequenceToSequence``); in the test, comparing lines like CodeXGLUE
    (Lu et al. 2021; see ``without_literals``): normalized_match, the fraction whose words equal those of the reference,
    and edit_similarity, the mean of 1 - (insertions and deletions from one to the other) / (length of both).

    Args:
        fim_rate: fraction of the training texts that are cut; a causal decoder reads the others as a language model.
        fim_spm_rate: fraction of the cut texts with the suffix first (the encoder-decoder has one order only).
        copies_per_text: how often each training text is cut.
        middle: what training removes: a span between two random positions, a whole line, or the rest_of_line from a
            random position (then there is no suffix).
        test_middle: what evaluation removes.

    Raises:
        ValueError: if the tokenizer has fewer than three sentinels, or a number is out of range.
    """

    name = "infilling"
    metric_modes: ClassVar[MetricModes] = {"normalized_match": "max", "edit_similarity": "max"}
    title = "Infilling"
    compared_by = (
        MetricSpec("edit_similarity", "test/edit_similarity", "edit similarity", True, "%",
              numerator={"edit_similarity": 1.0}),  # credits nearly correct lines
        MetricSpec("normalized_match", "test/normalized_match", "normalised match", True, "%",
              is_of_right_answers=True, numerator={"normalized_match": 1.0}),
    )  # fmt: skip
    columns = ("text",)
    ranked_by = ("edit_similarity", "edit similarity")
    encodes_randomly = True

    fim_rate: float
    fim_spm_rate: float
    copies_per_text: int
    middle: Middle
    test_middle: Middle

    def __post_init__(self, context: TaskContext) -> None:
        for name, value in (("fim_rate", self.fim_rate), ("fim_spm_rate", self.fim_spm_rate)):
            if not 0 <= value <= 1:
                raise ValueError(f"task.{name}={value}: expected 0 to 1")
        if self.copies_per_text < 1:
            raise ValueError(f"task.copies_per_text={self.copies_per_text}: expected at least 1")
        super().__post_init__(context)
        if len(self.tokenizer.special.sentinels) < LEAST_SENTINELS:
            raise ValueError(
                f"task=infilling: the tokenizer has {len(self.tokenizer.special.sentinels)} sentinels; expected at "
                f"least {LEAST_SENTINELS} (tokenizer.num_sentinels={LEAST_SENTINELS})"
            )

    def encode(self, examples: Sequence[Example]) -> list[EncodedExample]:
        """Encodes prefix, suffix and middle for evaluation."""
        parts = [parts_in_test(example.text, self.test_middle) for example in examples]
        return self._laid_out(examples, parts, [False] * len(examples))

    def encode_training(self, examples: Sequence[Example]) -> list[EncodedExample]:
        """Encodes each text ``draws`` times, cut at random."""
        encoded, special = list[EncodedExample](), self.tokenizer.special
        for draw in range(self.copies_per_text):
            random = np.random.default_rng((self.seed, draw))
            stay = (random.random(len(examples)) >= self.fim_rate) & (self.architecture == "decoder_only")
            suffix_first = random.random(len(examples)) < self.fim_spm_rate
            pairs = list(zip(examples, stay, strict=True))
            cut = [("", "", "") if stays else cut_out(example.text, self.middle, random) for example, stays in pairs]
            laid_out = self._laid_out(examples, cut, suffix_first.tolist())
            wholes = iter(self.tokenizer.encode([example.text for example, stays in pairs if stays]))
            encoded += [
                self.lay_out([special.bos], next(wholes), item.example) if stays else self._learned(item)
                for item, stays in zip(laid_out, stay, strict=True)
            ]
        return encoded

    def _laid_out(
        self, examples: Sequence[Example], parts: Sequence[tuple[str, str, str]], suffix_first: Sequence[bool]
    ) -> list[EncodedExample]:
        sides = [self.tokenizer.encode(side) for side in zip(*parts, strict=True)]
        return [
            self.lay_out(self.given(prefix, suffix, suffix_first=first), middle, example)
            for example, prefix, suffix, middle, first in zip(examples, *sides, suffix_first, strict=True)
        ]

    def given(self, prefix: Sequence[int], suffix: Sequence[int], *, suffix_first: bool = False) -> list[int]:
        """Returns prefix and suffix as the input for generating the middle."""
        special = self.tokenizer.special
        before, behind, between, *_ = special.sentinels
        if self.architecture == "full":
            return special.single([*prefix, before, *suffix])
        if suffix_first:
            return [special.bos, before, behind, *suffix, between, *prefix]
        return [special.bos, before, *prefix, behind, *suffix, between]

    def _learned(self, item: EncodedExample) -> EncodedExample:
        """Makes prefix and suffix targets, for a causal decoder."""
        if self.architecture != "decoder_only":
            return item
        return replace(item, labels=np.append(item.inputs[1 : item.prefix + 1], item.labels[item.prefix :]))

    def truncate(self, item: EncodedExample) -> EncodedExample:
        """Truncates prefix and suffix at the ends farthest from the middle; see ``Task``."""
        if item.source is None and not item.prefix:  # an uncut text
            return replace(item, inputs=item.inputs[: self.max_length], labels=item.labels[: self.max_length])
        cut = self.truncate_pair(item)
        is_learned = item.source is None and item.labels[0] != IGNORE_INDEX
        return self._learned(cut) if is_learned else cut

    def truncate_source(self, source: Sequence[int]) -> list[int]:
        """Keeps the end of the prefix and the beginning of the suffix, in equal parts."""
        if len(source) <= self.prompt_length:
            return [*source]
        prefix, suffix, suffix_first = self.parts_of(source)
        room = max(0, self.prompt_length - (len(source) - len(prefix) - len(suffix)))
        kept = min(len(prefix), max(room - len(suffix), room - room // 2))
        return self.given(prefix[len(prefix) - kept :], suffix[: room - kept], suffix_first=suffix_first)

    def parts_of(self, source: Sequence[int]) -> tuple[list[int], list[int], bool]:
        """Returns the prefix and suffix from the output of ``given``, and whether the suffix is first."""
        special, ids = self.tokenizer.special, [*source]
        before, behind, between, *_ = special.sentinels
        if self.architecture == "full":
            place = ids.index(before)
            return ids[len(special.begin) : place], ids[place + 1 : len(ids) - len(special.end)], False
        first, last = ids.index(behind), ids.index(between)
        if first == 2:  # bos, before
            return ids[last + 1 :], ids[3:last], True
        return ids[2:first], ids[first + 1 : last], False

    def model_input(self, example: Example) -> str:
        """Returns the text with a mark instead of its middle."""
        prefix, suffix, _ = parts_in_test(example.text, self.test_middle)
        return prefix + self.mark + suffix

    def reference(self, example: Example) -> str:
        """Returns the middle."""
        return parts_in_test(example.text, self.test_middle)[2]

    @property
    def mark(self) -> str:
        """The mark of the middle in an input text."""
        return self.tokenizer.ids_to_tokens(self.tokenizer.special.sentinels[:1])[0]

    def test_metrics(self) -> dict[str, Metric]:
        """Returns the metrics of CodeXGLUE."""
        return {"normalized_match": ExactMean(), "edit_similarity": ExactMean()}

    def score(self, metrics: Metrics, outputs: Sequence[str], references: Sequence[str]) -> Scores:
        pairs = list(zip(map(without_literals, outputs), map(without_literals, references), strict=True))
        values = {
            "normalized_match": [float(output.split() == reference.split()) for output, reference in pairs],
            "edit_similarity": [edit_similarity(output, reference) for output, reference in pairs],
        }
        for name, of_each in values.items():
            metrics[name].update(math.fsum(of_each), len(of_each))
        return values

    def check_input(self, given: str) -> None:
        """Raises a ValueError if the text has several marks; see ``Task``."""
        if (count := given.count(self.mark)) > 1:
            raise ValueError(f"{count} times {self.mark} in a text; expected it once")

    def predict_batch(self, texts: Sequence[str]) -> Sequence[Prediction]:
        """Returns the missing part of each text, at its mark <extra_id_0> (named by the tokenizer) or else its end.

        Raises:
            ValueError: if a text has several marks.
        """
        mark, given = self.tokenizer.special.sentinels[0], list[list[int]]()
        for text in texts:
            self.check_input(text)
        for ids in self.tokenizer.encode_marked(texts, [mark]):
            place = ids.index(mark) if mark in ids else len(ids)
            given.append(self.given(ids[:place], ids[place + 1 :]))
        return self.answer([self._fitting(source) for source in given])


def cut_out(text: str, middle: Middle, random: np.random.Generator) -> tuple[str, str, str]:
    """Cuts a text into prefix, suffix and middle, and returns them in this order.

    Args:
        middle: ``span``: between two positions, each uniform over the characters (Bavarian et al. 2022, section 3);
            ``line``: a line that is not blank, without the surrounding whitespace; ``rest_of_line``: such a line from
            one of its characters on, and no suffix.
        random: generator of the draws.
    """
    if middle == "span":
        start, stop = np.sort(random.integers(len(text) + 1, size=2)).tolist()
        return text[:start], text[stop:], text[start:stop]
    lines = [match.span() for match in re.finditer(r"\S(?:[^\n]*\S)?", text)] or [(len(text), len(text))]
    start, stop = lines[random.integers(len(lines))]
    if middle == "line":
        return text[:start], text[stop:], text[start:stop]
    start = int(random.integers(start, max(stop, start + 1)))
    return text[:start], "", text[start:stop]


def parts_in_test(text: str, middle: Middle) -> tuple[str, str, str]:
    """Cuts a text for evaluation: ``cut_out`` with draws that are a function of the text."""
    return cut_out(text, middle, np.random.default_rng(crc32(text.encode())))


def without_literals(line: str) -> str:
    """Strips a line of code, empties its quotes, and replaces numbers by 0. (CodeXGLUE keeps frequent ones.)"""
    return LITERAL.sub(lambda match: match[1][0] * 2 if match[1] else "0", line.strip())


def edit_similarity(output: str, reference: str) -> float:
    """Computes fuzzywuzzy's ratio 1 - (insertions and deletions) / (length of both); 1 for two empty texts."""
    length = len(output) + len(reference)
    distance = edit_distance([output], [reference], substitution_cost=2, reduction="sum")
    return 1 - float(distance) / length if length else 1.0
