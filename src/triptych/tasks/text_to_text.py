"""An answer to a text: a question, an instruction, something to be shortened."""

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

from torchmetrics import Metric
from torchmetrics.functional.text.rouge import rouge_score

from triptych.tasks.base import MetricModes
from triptych.tasks.exact_sums import Mean
from triptych.tasks.scores import EXACT_MATCH, Score
from triptych.tasks.sequence_to_sequence import SequenceToSequence

ROUGE = {"rouge1": "rouge1_fmeasure", "rouge2": "rouge2_fmeasure", "rougeL": "rougeL_fmeasure"}
"""Our names of ROUGE-1, ROUGE-2 and ROUGE-L, and torchmetrics' names of their F."""


class TextToText(SequenceToSequence):
    """Writes the answer to a text (see ``SequenceToSequence``): what translation is, whatever the two texts are.

    At the test also ROUGE-1, ROUGE-2 and ROUGE-L (Lin 2004): the F of the words, of the pairs of words, and of the
    longest common subsequence of words, mean over the answers; in lower case, without stemmer. As in Google's
    rouge_score all but a to z and 0 to 9 parts words, so umlauts do.
    """

    name = "text_to_text"
    metric_modes: ClassVar[MetricModes] = dict.fromkeys(ROUGE, "max")
    title = "Text to text"
    ranked_by = ("rougeL", "ROUGE-L of the answer")

    @classmethod
    def scores(cls, architecture: str, metrics: Mapping[str, float], optimum: Mapping[str, float]) -> Sequence[Score]:
        """Exact match where its best value is known; ROUGE-L, for many answers may be right."""
        rouge = Score("rougeL", "test/rougeL", "ROUGE-L", True, "%", numerator={"rougeL": 1.0})
        return [EXACT_MATCH, rouge] if EXACT_MATCH.key in optimum else [rouge]

    def test_metrics(self) -> dict[str, Metric]:
        """ROUGE."""
        return {name: Mean() for name in ROUGE}

    def score(
        self, metrics: Mapping[str, Metric], outputs: Sequence[str], references: Sequence[str]
    ) -> Mapping[str, Sequence[float]]:
        """See ``SequenceToSequence``; each answer has its ROUGE."""
        values: dict[str, list[float]] = {name: [] for name in ROUGE}
        for output, reference in zip(outputs, references, strict=True):
            found = rouge_score(output, reference, rouge_keys=tuple(ROUGE))
            for name, theirs in ROUGE.items():
                values[name].append(float(found[theirs]))
        for name, of_each in values.items():
            metrics[name].update(math.fsum(of_each), len(of_each))
        return values
