"""An answer to a text: a question, an instruction, something to be shortened."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, cast

from torchmetrics import Metric
from torchmetrics.functional.text.rouge import rouge_score

from triptych.config import one_of, refusing
from triptych.tasks.exact_sums import Mean
from triptych.tasks.scores import EXACT_MATCH, Score
from triptych.tasks.sequence_to_sequence import SequenceToSequence
from triptych.tasks.task import MetricModes, TaskContext
from triptych.tasks.word_splitting import WordSplitter

RougeTokenizer = Literal["google", "characters", "whitespace"]
ROUGE = {"rouge1": "rouge1_fmeasure", "rouge2": "rouge2_fmeasure", "rougeL": "rougeL_fmeasure"}
"""Our names of ROUGE-1, ROUGE-2 and ROUGE-L, and torchmetrics' names of their F."""
SPLIT: Mapping[str, Callable[[str], list[str]]] = {
    "google": lambda text: re.findall("[a-z0-9]+", text.lower()),
    "whitespace": str.split,
    "characters": lambda text: [character for character in text if not character.isspace()],
}
"""The words of a text, by ROUGE's tokenizer."""


@dataclass(kw_only=True, eq=False, repr=False)
class TextToText(SequenceToSequence):
    """Writes the answer to a text (see ``SequenceToSequence``): what translation is, whatever the two texts are.

    At the test also ROUGE-1, ROUGE-2 and ROUGE-L (Lin 2004): the F of the words, of the pairs of words, and of the
    longest common subsequence of words, mean over the answers; in lower case, without stemmer.

    Args:
        rouge_tokenizer: google: all but a to z and 0 to 9 parts words, as in Google's rouge_score, so umlauts do, and
            of other scripts nothing is left; whitespace: words are what stands between blanks; characters: each
            character that is not blank is a word.
    """

    name = "text_to_text"
    metric_modes: ClassVar[MetricModes] = dict.fromkeys(ROUGE, "max")
    title = "Text to text"
    ranked_by = ("rougeL", "ROUGE-L of the answer")

    rouge_tokenizer: RougeTokenizer = "google"

    def __post_init__(self, context: TaskContext) -> None:
        super().__post_init__(context)
        with refusing("task."):
            self.use_rouge_tokenizer(self.rouge_tokenizer)

    @classmethod
    def scores(cls, architecture: str, metrics: Mapping[str, float], optimum: Mapping[str, float]) -> Sequence[Score]:
        """Exact match where its best value is known; ROUGE-L, for many answers may be right."""
        rouge = Score("rougeL", "test/rougeL", "ROUGE-L", True, "%", numerator={"rougeL": 1.0})
        return [EXACT_MATCH, rouge] if EXACT_MATCH.key in optimum else [rouge]

    def use_rouge_tokenizer(self, name: str) -> None:
        """Scores with this tokenizer.

        Raises:
            ValueError: there is no such one.
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
        """ROUGE's tokenizer."""
        choices = {f"task.rouge_tokenizer={name}": split for name, split in SPLIT.items()}
        name = f"task.rouge_tokenizer={self.rouge_tokenizer}"
        return [WordSplitter("ROUGE", name, choices[name], "evaluate has rouge_tokenizer=... too", choices)]

    def test_metrics(self) -> dict[str, Metric]:
        """ROUGE."""
        return {name: Mean() for name in ROUGE}

    def score(
        self, metrics: Mapping[str, Metric], outputs: Sequence[str], references: Sequence[str]
    ) -> Mapping[str, Sequence[float]]:
        """See ``SequenceToSequence``; each answer has its ROUGE."""
        values: dict[str, list[float]] = {name: [] for name in ROUGE}
        for output, reference in zip(outputs, references, strict=True):
            found = rouge_score(
                output,
                reference,
                normalizer=str.lower,
                tokenizer=SPLIT[self.rouge_tokenizer],
                rouge_keys=tuple(ROUGE),
            )
            for name, theirs in ROUGE.items():
                values[name].append(float(found[theirs]))
        for name, of_each in values.items():
            metrics[name].update(math.fsum(of_each), len(of_each))
        return values
