"""What is seen in an image."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from jaxtyping import Float
from sacrebleu.metrics.chrf import CHRF
from torchmetrics import Metric

from triptych.data import Example
from triptych.tasks.corpus_score import CorpusScore, chrf_of_each
from triptych.tasks.scores import EXACT_MATCH, Score
from triptych.tasks.signal_to_text import SignalToText
from triptych.tasks.task import MetricModes


class Captioning(SignalToText):
    """Writes what is seen in an image, whose patches are read as ``SignalToText`` says: the full model as one that
    translates (Vinyals et al. 2015 with an encoder of patches, Dosovitskiy et al. 2021), a decoder by itself with
    patches and words in one sequence.

    Metrics: loss, token_accuracy, exact_match; at the test also sacrebleu's chrf, in points of 100.
    """

    name = "captioning"
    metric_modes: ClassVar[MetricModes] = {"chrf": "max"}
    title = "Captioning"
    columns = ("image", "target")
    signal = "image"
    reads = ("image",)
    input_title = "Image"
    ranked_by = ("chrf", "chrF of the caption")

    @classmethod
    def scores(cls, architecture: str, metrics: Mapping[str, float], optimum: Mapping[str, float]) -> Sequence[Score]:
        """Exact match where its best value is known; chrF, for many captions may be right."""
        chrf = Score("chrf", "test/chrf", "chrF", higher_is_better=True, digits=1)
        return [EXACT_MATCH, chrf] if EXACT_MATCH.key in optimum else [chrf]

    def perceive(self, example: Example) -> Float[np.ndarray, "channels height width"]:
        """The pixels, 0 to 1."""
        return self.see(example)

    def test_metrics(self) -> dict[str, Metric]:
        """sacrebleu's chrF."""
        return {"chrf": CorpusScore(CHRF())}

    def score(
        self, metrics: Mapping[str, Metric], outputs: Sequence[str], references: Sequence[str]
    ) -> Mapping[str, Sequence[float]]:
        """See ``SequenceToSequence``; each caption has its chrF."""
        metrics["chrf"].update(outputs, references)
        return {"chrf": chrf_of_each(outputs, references)}
