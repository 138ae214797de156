"""The base class of tasks that generate a target text from a source, such as translation.

Tested by tests/tasks/test_task.py.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import ClassVar, Literal

import torch
from torchmetrics import Metric

from triptych.data import IGNORE_INDEX, Batch, EncodedExample, Example
from triptych.models.generation import BeamSearch
from triptych.tasks.exact_sums import ExactMean
from triptych.tasks.generative import GenerativeTask
from triptych.tasks.precision import arithmetic
from triptych.tasks.predictions import Prediction, Predictions
from triptych.tasks.task import BATCHES_SORTED, MetricModes, Metrics, Scores, TaskContext


@dataclass(kw_only=True, eq=False, repr=False)
class SequenceToSequence(GenerativeTask):
    """Generates a target text from a source; trained by teacher forcing.

    The encoder-decoder reads the source as a complete text with its encoder, and the target after a start token with
    its decoder. A decoder-only model reads source, separator and target as one text, and only the target counts towards
    the loss; the prefix decoder attends to source and separator in both directions.

    Metrics: token_accuracy, of the next token given the correct ones before it; exact_match, the fraction of outputs
    that equal the target in every character; in the test, those of ``test_metrics``.

    Args:
        num_beams: number of beams of the beam search in the test; 1 decodes greedily.
        length_penalty: see ``triptych.models.generation.BeamSearch``.
        early_stopping: see ``triptych.models.generation.BeamSearch``.
    """

    columns: ClassVar[tuple[str, ...]] = ("text", "target")
    metric_modes: ClassVar[MetricModes] = {"exact_match": "max"}
    truncates_input = True
    num_beams: int
    length_penalty: float
    early_stopping: bool | Literal["never"]

    def __post_init__(self, context: TaskContext) -> None:
        search = BeamSearch(self.num_beams, self.length_penalty, self.early_stopping)
        super().__post_init__(context)
        if self.is_filled_in and self.num_beams > 1:
            raise ValueError(f"task.num_beams={self.num_beams}: an encoder fills in its text; expected 1")
        self.search = search
        self._waiting: list[Batch] = []  # batches of a test that are not decoded yet

    @abstractmethod
    def test_metrics(self) -> dict[str, Metric]:
        """Returns new metrics of the outputs by name, in addition to exact match."""

    @abstractmethod
    def score(self, metrics: Metrics, outputs: Sequence[str], references: Sequence[str]) -> Scores:
        """Adds outputs to the ``test_metrics``.

        Returns:
            The numbers of each output by name, for the record (see ``Predictions``).
        """

    @property
    def has_global_prompt(self) -> bool:
        """True for a decoder-only model, for source and separator; see ``GenerativeTask``."""
        return self.architecture == "decoder_only"

    def encode(self, examples: Sequence[Example]) -> list[EncodedExample]:
        """Encodes source and target for the architecture.

        Raises:
            ValueError: if an example has no target.
        """
        if missing := [example for example in examples if example.target is None]:
            raise ValueError(f"{missing[0].where}: there is no target")
        sources = self.tokenizer.encode([example.text for example in examples])
        targets = self.tokenizer.encode([example.target or "" for example in examples], as_target=True)
        rows = zip(examples, sources, targets, strict=True)
        return [self.lay_out(self.build_prompt(source), target, example) for example, source, target in rows]

    def truncate(self, item: EncodedExample) -> EncodedExample:
        return self.truncate_pair(item)

    def reference(self, example: Example) -> str:
        """Returns the target."""
        return example.target or ""

    def make_metrics(self, stage: str) -> dict[str, Metric]:
        """Returns token accuracy and exact match, and in the test the metrics of decoded outputs."""
        of_outputs = self.test_metrics() if stage == "test" else {}
        return {"token_accuracy": ExactMean(), "exact_match": ExactMean(), **of_outputs}

    def evaluate(self, batch: Batch, metrics: Metrics, stage: str) -> Predictions | None:
        """Adds a batch to the metrics: with teacher forcing in validation, by decoding in the test."""
        _, guesses = self.scored_tokens(metrics, batch)
        # Greedy decoding generates the target exactly if each of its tokens is the most likely after those before it.
        if stage == "val" and self.is_filled_in:
            self._count_exact(metrics, batch, self.decode([self._fitting(ids) for ids in self._sources_of(batch)]))
            return None
        if stage == "val":
            hits = ((guesses == batch.labels) | (batch.labels == IGNORE_INDEX)).all(1)
            metrics["exact_match"].update(hits.sum(), len(hits))
            return None
        self._waiting.append(batch)
        return self._answer_waiting(metrics) if len(self._waiting) == BATCHES_SORTED else None

    def begin_test(self) -> None:
        self._waiting = []

    def finish_test(self, metrics: Metrics) -> Predictions | None:
        """Decodes the last batches; see ``Task``."""
        with torch.inference_mode(), arithmetic(self.precision, self.device).forward_context():
            return self._answer_waiting(metrics)

    def _answer_waiting(self, metrics: Metrics) -> Predictions | None:
        """Decodes and scores the waiting batches together, so that new texts take the places of finished ones."""
        batches, self._waiting = self._waiting, []
        sources = [[self._fitting(ids) for ids in self._sources_of(batch)] for batch in batches]
        if not sources:
            return None
        answers = iter(self.decode(list(chain(*sources)), rows=max(map(len, sources))))
        return Predictions.join(
            self._score(metrics, batch, list(islice(answers, len(of_batch))))
            for batch, of_batch in zip(batches, sources, strict=True)
        )

    def _score(self, metrics: Metrics, batch: Batch, outputs: list[str]) -> Predictions:
        references = self._count_exact(metrics, batch, outputs)
        indices = None if batch.indices is None else batch.indices.tolist()
        return Predictions(outputs, self.score(metrics, outputs, references), indices)

    def _count_exact(self, metrics: Metrics, batch: Batch, outputs: Sequence[str]) -> list[str]:
        """Adds outputs to exact match, and returns their references."""
        references = [self.reference(example) for example in batch.examples if example is not None]
        num_exact = sum(output == reference for output, reference in zip(outputs, references, strict=True))
        metrics["exact_match"].update(num_exact, len(outputs))
        return references

    def predict_batch(self, texts: Sequence[str]) -> Sequence[Prediction]:
        """Returns the generated text for each input."""
        return self.answer([self._fitting(self.build_prompt(ids)) for ids in self.tokenizer.encode(texts)])

    def _fitting(self, source: list[int]) -> list[int]:
        return self.truncate_source(source) if self.truncates else source

    def _sources_of(self, batch: Batch) -> list[list[int]]:
        if batch.source is not None and batch.source_mask is not None:
            return [row[mask].tolist() for row, mask in zip(batch.source, batch.source_mask, strict=True)]
        lengths = batch.prefix + (not self.is_filled_in)
        return [row[:n] for row, n in zip(batch.inputs.tolist(), lengths.tolist(), strict=True)]
