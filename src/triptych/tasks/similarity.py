"""The task of predicting a score for a pair of texts, or for a text.

Tested by tests/tasks/test_question_answering.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.functional import pearson_corrcoef, spearman_corrcoef

from triptych.data import IGNORE_INDEX, Batch, CorpusInfo, Example
from triptych.nn.device_copy import copy_to_device
from triptych.tasks.exact_sums import PairStatistic, widest
from triptych.tasks.metric_specs import MetricSpec
from triptych.tasks.predictions import Predictions
from triptych.tasks.sequence import SequenceTask
from triptych.tasks.task import MetricModes, Metrics


@dataclass(kw_only=True, eq=False, repr=False)
class Similarity(SequenceTask):
    """Predicts the score of a pair of texts (or of one text) with one output, trained on its squared error.

    Metrics: loss, also as mean_squared_error, the mean of (output - score)^2; pearson and spearman, the correlations of
    outputs and scores over the whole split."""

    name = "similarity"
    metric_modes: ClassVar[MetricModes] = {"pearson": "max", "spearman": "max", "mean_squared_error": "min"}
    title = "Similarity"
    compared_by = (MetricSpec("spearman", "test/spearman", "Spearman correlation", higher_is_better=True),)
    columns = ("text", "text_pair", "score")

    label_smoothing: float = field(default=0.0, init=False)

    @classmethod
    def num_outputs(cls, vocab_size: int, corpus: CorpusInfo) -> int:
        """Returns 1."""
        return 1

    def label(self, example: Example) -> int:
        """Returns 0; the score stays in the example, because labels are integers."""
        if example.score is None:
            raise ValueError("there is no score")
        return 0

    def summed_loss(
        self, logits: Float[Tensor, "batch 1"], batch: Batch, label_smoothing: float = 0.0
    ) -> Float[Tensor, ""]:
        """Computes the sum of the squared errors."""
        outputs = logits[:, 0].to(torch.promote_types(logits.dtype, torch.float32))
        errors = outputs - self._scores(batch).to(outputs.dtype)
        return (errors * (batch.labels[:, 0] != IGNORE_INDEX)).square().sum()

    def _scores(self, batch: Batch) -> Float[Tensor, " batch"]:
        scores = [0.0 if e is None or e.score is None else e.score for e in batch.examples]
        scores = scores or [0.0] * len(batch.labels)  # a process without examples reads a batch without targets
        device = batch.labels.device
        return copy_to_device(torch.tensor(scores, dtype=widest(device)), device)

    def reference(self, example: Example) -> str:
        """Returns the score with six significant digits."""
        return "" if example.score is None else f"{example.score:.6g}"

    def make_metrics(self, stage: str) -> dict[str, Metric]:
        """Returns the metrics listed in the class docstring."""
        return {"pearson": PairStatistic(pearson_corrcoef), "spearman": PairStatistic(spearman_corrcoef)}

    def evaluate(self, batch: Batch, metrics: Metrics, stage: str) -> Predictions:
        """Adds outputs and scores to the metrics."""
        logits = self.scored_logits(metrics, batch)
        scored = batch.labels[:, 0] != IGNORE_INDEX
        for metric in (metrics["pearson"], metrics["spearman"]):
            metric.update(logits[scored, 0], self._scores(batch)[scored])
        outputs = logits[:, 0].tolist()
        return Predictions([f"{output:.6g}" for output in outputs], {"score": outputs})

    def derived_metrics(self, values: dict[str, float]) -> dict[str, float]:
        """Adds the loss as ``mean_squared_error``."""
        return {**values, "mean_squared_error": values["loss"]}

    def predict_batch(self, texts: Sequence[Any]) -> list[float]:
        """Returns the score of each input."""
        return list(self.outputs(texts)[:, 0].tolist())
