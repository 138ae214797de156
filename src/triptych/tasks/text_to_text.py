"""The task of generating a text from a text, such as answering questions or summarizing.

Tested by tests/tasks/test_word_splitting.py.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, cast

from torchmetrics import Metric
from torchmetrics.functional.text.rouge import rouge_score

from triptych.config import error_prefix, one_of
from triptych.tasks.exact_sums import ExactMean
from triptych.tasks.metric_specs import EXACT_MATCH, MetricSpec
from triptych.tasks.sequence_to_sequence import SequenceToSequence
from triptych.tasks.task import MetricModes, Metrics, Scores, TaskContext
from triptych.tasks.word_splitting import WordSplitter

RougeTokenizer = Literal["google", "characters", "whitespace"]
ROUGE = {"rouge1": "rouge1_fmeasure", "rouge2": "rouge2_fmeasure", "rougeL": "rougeL_fmeasure"}
"""Names of ROUGE-1, ROUGE-2 and ROUGE-L, and of their F-measures in torchmetrics."""
SPLIT: Mapping[str, Callable[[str], list[str]]] = {
    "google": lambda text: re.findall("[a-z0-9]+", text.lower()),
    "whitespace": str.split,
    "characters": lambda text: [character for character in text if not character.isspace()],
}
"""Functions that split a text into words, by ROUGE tokenizer."""


@dataclass(kw_only=True, eq=False, repr=False)
class TextToText(SequenceToSequence):
    """Generates a target text from any source text (see ``SequenceToSequence``).

    The test adds ROUGE-1, ROUGE-2 and ROUGE-L (Lin 2004): the F-measure of words, of word pairs, and of the longest
    common subsequence of words, mean over the outputs; in lower case, without a stemmer.

    Args:
        rouge_tokenizer: google: all characters except a to z and 0 to 9 separate words, as in Google's rouge_score, so
            umlauts do, and other scripts have no words; whitespace: words are separated by whitespace; characters: each
            non-whitespace character is a word.
    """

    name = "text_to_text"
    metric_modes: ClassVar[MetricModes] = dict.fromkeys(ROUGE, "max")
    title = "Text to text"
    compared_by = (EXACT_MATCH, MetricSpec("rougeL", "test/rougeL", "ROUGE-L", True, "%", numerator={"rougeL": 1.0}))
    ranked_by = ("rougeL", "ROUGE-L of the answer")

    rouge_tokenizer: RougeTokenizer = "google"

    def __post_init__(self, context: TaskContext) -> None:
        super().__post_init__(context)
        with error_prefix("task."):
            self.use_rouge_tokenizer(self.rouge_tokenizer)

    def use_rouge_tokenizer(self, name: str) -> None:
        """Sets the tokenizer of ROUGE.

        Raises:
            ValueError: if the tokenizer is unknown.
        """
        if name not in SPLIT:
            raise ValueError(f"rouge_tokenizer={name}: {one_of(name, [*SPLIT])}")
        self.rouge_tokenizer = cast(RougeTokenizer, name)

    @property
    def signatures(self) -> dict[str, str]:
        """The tokenizer of ROUGE."""
        return dict.fromkeys(ROUGE, f"tok:{self.rouge_tokenizer}|case:lc|stem:no")

    @property
    def word_splitters(self) -> Sequence[WordSplitter]:
        """The word splitter of ROUGE."""
        choices = {f"task.rouge_tokenizer={name}": split for name, split in SPLIT.items()}
        name = f"task.rouge_tokenizer={self.rouge_tokenizer}"
        return [WordSplitter("ROUGE", name, choices[name], "evaluate has rouge_tokenizer=... too", choices)]

    def test_metrics(self) -> dict[str, Metric]:
        """Returns the ROUGE metrics."""
        return {name: ExactMean() for name in ROUGE}

    def score(self, metrics: Metrics, outputs: Sequence[str], references: Sequence[str]) -> Scores:
        """Returns the ROUGE scores of each output; see ``SequenceToSequence``."""
        split, keys = SPLIT[self.rouge_tokenizer], tuple(ROUGE)
        found = [
            rouge_score(output, reference, normalizer=str.lower, tokenizer=split, rouge_keys=keys)
            for output, reference in zip(outputs, references, strict=True)
        ]
        values = {name: [float(of_one[theirs]) for of_one in found] for name, theirs in ROUGE.items()}
        for name, of_each in values.items():
            metrics[name].update(math.fsum(of_each), len(of_each))
        return values
