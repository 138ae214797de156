"""The classification of texts, text pairs, images or audio clips.

Tested by tests/tasks/test_task.py.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.classification import MulticlassConfusionMatrix, MulticlassF1Score

from triptych.data import Batch, CorpusInfo, Example
from triptych.tasks.exact_sums import ExactMean, PairStatistic, widest
from triptych.tasks.metric_specs import ACCURACY
from triptych.tasks.predictions import ClassPrediction, Predictions
from triptych.tasks.sequence import SequenceTask
from triptych.tasks.task import MetricModes, Metrics

CALIBRATION_BINS = 15


class Classification(SequenceTask):
    """Predicts the class of a text, a text pair, an image or an audio clip: softmax(head(state)).

    Metrics: accuracy; macro_f1, the mean of the F1 of the classes; calibration_error, the expected calibration error of
    the most likely class, sum_b n_b/n |accuracy_b - confidence_b| over 15 bins b of equal width (Guo et al. 2017,
    equation 3; the last bin includes confidence 1); confusion_matrix, the counts by true and predicted class."""

    name = "classification"
    metric_modes: ClassVar[MetricModes] = {
        "accuracy": "max",
        "macro_f1": "max",
        "calibration_error": "min",
        "confusion_matrix": None,
    }
    title = "Classification"
    compared_by = (ACCURACY,)
    columns = ("label",)  # of a text, an image, or an audio clip
    reads = ("audio", "image")
    ranked_by = ("probability", "the probability of the right class")  # finer than correct or incorrect

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes."""
        return self.corpus.labels

    @classmethod
    def num_outputs(cls, vocab_size: int, corpus: CorpusInfo) -> int:
        """Returns the number of classes.

        Raises:
            ValueError: if there are fewer than two classes.
        """
        if len(corpus.labels) < 2:
            raise ValueError(f"data: the only label is {', '.join(corpus.labels)!r}; expected at least two classes")
        return len(corpus.labels)

    def label(self, example: Example) -> int:
        """Returns the index of the class of an example."""
        if example.label not in self.labels:
            raise ValueError(
                f"label {example.label!r}; expected one of {', '.join(self.labels)} "
                "(the labels that the model was trained with)"
            )
        return self.labels.index(example.label)

    def make_metrics(self, stage: str) -> dict[str, Metric]:
        """Returns the metrics listed in the class docstring."""
        return {
            "accuracy": ExactMean(),
            "macro_f1": MulticlassF1Score(num_classes=len(self.labels), average="macro"),
            "calibration_error": PairStatistic(calibration_error),
            "confusion_matrix": MulticlassConfusionMatrix(num_classes=len(self.labels)),
        }

    def evaluate(self, batch: Batch, metrics: Metrics, stage: str) -> Predictions:
        """Adds a batch to the metrics, and returns its predictions."""
        logits = self.scored_logits(metrics, batch)
        classes = batch.labels[:, 0]
        probabilities = logits.to(widest(logits.device)).softmax(-1)
        confidences, guesses = probabilities.max(-1)
        hits = guesses == classes
        metrics["accuracy"].update(hits.sum(), len(classes))
        metrics["calibration_error"].update(confidences, hits)
        for name, metric in metrics.items():
            if name not in ("loss", "accuracy", "calibration_error"):  # those of torchmetrics take logits and classes
                metric.update(logits, classes)
        of_truth = probabilities.gather(1, classes[:, None])[:, 0]
        return Predictions([self.labels[guess] for guess in guesses.tolist()], {"probability": of_truth.tolist()})

    def predict_batch(self, texts: Sequence[Any]) -> list[ClassPrediction]:
        """Returns the most likely class of each input, with the probability of every class."""
        rows, labels = self.outputs(texts).softmax(-1).tolist(), self.labels
        return [ClassPrediction(labels[int(np.argmax(row))], dict(zip(labels, row, strict=True))) for row in rows]


def calibration_error(confidences: Float[Tensor, " guesses"], hits: Float[Tensor, " guesses"]) -> Float[Tensor, ""]:
    """Computes the expected calibration error of predictions.

    Bin b of B has the confidences in [b/B, (b+1)/B), and the last one also 1.

    Args:
        confidences: probability of each predicted class.
        hits: 1 if the prediction is correct, else 0.

    Returns:
        The error; NaN if a confidence is NaN, as for diverged weights.
    """
    bins = (CALIBRATION_BINS * confidences.nan_to_num()).long().clamp(max=CALIBRATION_BINS - 1)
    gaps = confidences.new_zeros(CALIBRATION_BINS).index_add(0, bins, hits - confidences)
    return gaps.abs().sum() / len(confidences)
