"""The task of describing an image in words."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from jaxtyping import Float
from sacrebleu.metrics.chrf import CHRF
from torchmetrics import Metric

from triptych.data import Example
from triptych.tasks.bleu import CorpusScore, chrf_of_each
from triptych.tasks.metric_specs import EXACT_MATCH, MetricSpec
from triptych.tasks.signal_to_text import SignalToText
from triptych.tasks.task import MetricModes, Metrics, Scores


class Captioning(SignalToText):
    """Generates a caption for an image; for its input format see ``SignalToText``.

    The encoder-decoder model translates patches into words (Vinyals et al. 2015, with the patch encoder of Dosovitskiy
    et al. 2021). A decoder-only model reads patches and words in one sequence.

    Metrics: loss, token_accuracy, exact_match; in the test also sacrebleu's chrf, in points of 100."""

    name = "captioning"
    metric_modes: ClassVar[MetricModes] = {"chrf": "max"}
    title = "Captioning"
    compared_by = (EXACT_MATCH, MetricSpec("chrf", "test/chrf", "chrF", higher_is_better=True, digits=1))
    columns = ("image", "target")
    signal = "image"
    reads = ("image",)
    input_title = "Image"
    ranked_by = ("chrf", "chrF of the caption")

    def perceive(self, example: Example) -> Float[np.ndarray, "channels height width"]:
        """Returns the pixels, from 0 to 1."""
        return self.pixel_values(example)

    def test_metrics(self) -> dict[str, Metric]:
        """Returns sacrebleu's chrF."""
        return {"chrf": CorpusScore(CHRF())}

    def score(self, metrics: Metrics, outputs: Sequence[str], references: Sequence[str]) -> Scores:
        """Returns the chrF of each caption; see ``SequenceToSequence``."""
        metrics["chrf"].update(outputs, references)
        return {"chrf": chrf_of_each(outputs, references)}
