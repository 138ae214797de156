"""What the tasks share that write one text for another input: a translation, an answer, what is missing."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from itertools import chain, islice
from typing import ClassVar, Literal

import torch
from torchmetrics import Metric

from triptych.data import IGNORE, Batch, Encoded, Example
from triptych.models.generation import BeamSearch, Constraints
from triptych.tasks.base import BATCHES_SORTED, MetricModes, Prediction, Setup
from triptych.tasks.exact_sums import Mean
from triptych.tasks.generative import GenerativeTask
from triptych.tasks.precision import arithmetic


class SequenceToSequence(GenerativeTask):
    """Writes the target of a source; trained by teacher forcing.

    The full model reads the source as a whole text with its encoder, and the target behind a start token with its
    decoder. A decoder by itself reads source, separator and target as one text, and is scored on the target alone; the
    prefix decoder sees source and separator from both sides.

    Metrics: token_accuracy, of the next token after the right ones; exact_match, the share of answers that are the
    target to the character; at the test, those of ``test_metrics``.

    Args:
        setup: see ``Task``.
        label_smoothing: share of each label that is spread over the vocabulary.
        max_new_tokens: the most tokens that are decoded.
        num_beams: of the beam search at the test; 1 decodes greedily.
        length_penalty: see ``triptych.models.generation.BeamSearch``.
        early_stopping: see ``triptych.models.generation.BeamSearch``.
        constraints: what a text may be; None: anything.
        z_loss: see ``GenerativeTask``.
    """

    columns: ClassVar[tuple[str, ...]] = ("text", "target")
    metric_modes: ClassVar[MetricModes] = {"token_accuracy": "max", "exact_match": "max"}
    answers_a_part = True
    refusals: ClassVar[Mapping[str, str]] = {
        "encoder_only": "an encoder sees its whole text at once and cannot write one token after the other; "
        "use model=full, decoder_only or prefix_decoder, or task=classification"
    }

    def __init__(
        self,
        setup: Setup,
        *,
        label_smoothing: float,
        max_new_tokens: int,
        num_beams: int,
        length_penalty: float,
        early_stopping: bool | Literal["never"],
        constraints: Constraints | None = None,
        z_loss: float = 0.0,
    ) -> None:
        search = BeamSearch(num_beams, length_penalty, early_stopping)
        super().__init__(
            setup,
            label_smoothing=label_smoothing,
            max_new_tokens=max_new_tokens,
            constraints=constraints,
            z_loss=z_loss,
        )
        self.search = search
        self._waiting: list[Batch] = []  # of a test, for their answers

    @abstractmethod
    def test_metrics(self) -> dict[str, Metric]:
        """New metrics of answers, by name, besides exact match."""

    @abstractmethod
    def score(
        self, metrics: Mapping[str, Metric], outputs: Sequence[str], references: Sequence[str]
    ) -> Mapping[str, Sequence[float]]:
        """Takes answers into ``test_metrics``.

        Returns:
            numbers of each answer, by name, for the record (see ``Tested``).
        """

    @property
    def has_global_prompt(self) -> bool:
        """See ``GenerativeTask``: source and separator, of a decoder by itself."""
        return self.architecture == "decoder_only"

    def encode(self, examples: Sequence[Example]) -> list[Encoded]:
        """Source and target, laid out for the architecture.

        Raises:
            ValueError: an example without a target.
        """
        if missing := [example for example in examples if example.target is None]:
            raise ValueError(f"{missing[0].where}: there is no target")
        sources = self.tokenizer.encode([example.text for example in examples])
        targets = self.tokenizer.encode([example.target or "" for example in examples], as_target=True)
        return [
            self.lay_out(self.asking(source), target, example)
            for example, source, target in zip(examples, sources, targets, strict=True)
        ]

    def truncate(self, item: Encoded) -> Encoded:
        """See ``truncate_pair``."""
        return self.truncate_pair(item)

    def reference(self, example: Example) -> str:
        """The target."""
        return example.target or ""

    def make_metrics(self, stage: str) -> dict[str, Metric]:
        """Exact match; the scores of what is decoded, at the test only."""
        return {"token_accuracy": Mean(), "exact_match": Mean(), **(self.test_metrics() if stage == "test" else {})}

    def update_metrics(self, metrics: Mapping[str, Metric], batch: Batch) -> None:
        """Validation: teacher-forced; greedy decoding hits the target exactly when each of its tokens is the likeliest
        after those before it, so exact match needs no decoding. Test: decodes."""
        _, guesses = self.scored_tokens(metrics, batch)
        if not self.trainer.testing:
            hits = ((guesses == batch.labels) | (batch.labels == IGNORE)).all(1)
            metrics["exact_match"].update(hits.sum(), len(hits))
            return
        self._waiting.append(batch)
        if len(self._waiting) == BATCHES_SORTED:
            self._answer_waiting(metrics)

    def on_test_epoch_start(self) -> None:
        """See ``Task``."""
        super().on_test_epoch_start()
        self._waiting = []

    def on_test_epoch_end(self) -> None:
        """See ``Task``; the last batches are answered first."""
        with torch.inference_mode(), arithmetic(self.precision, self.device).forward_context():
            self._answer_waiting(self.metrics_of("test"))
        super().on_test_epoch_end()

    def _answer_waiting(self, metrics: Mapping[str, Metric]) -> None:
        """Scores answers to the batches that wait: where texts of one have ended, those of the next take their
        places."""
        batches, self._waiting = self._waiting, []
        sources = [[self._fitting(ids) for ids in self._sources_of(batch)] for batch in batches]
        if not sources:
            return
        answers = iter(self.decode(list(chain(*sources)), rows=max(map(len, sources))))
        for batch, of_batch in zip(batches, sources, strict=True):
            self._score(metrics, batch, list(islice(answers, len(of_batch))))

    def _score(self, metrics: Mapping[str, Metric], batch: Batch, outputs: list[str]) -> None:
        references = [self.reference(example) for example in batch.examples if example is not None]
        num_exact = sum(output == reference for output, reference in zip(outputs, references, strict=True))
        metrics["exact_match"].update(num_exact, len(outputs))
        self.keep(batch, outputs, self.score(metrics, outputs, references))

    def predict_batch(self, texts: Sequence[str]) -> Sequence[Prediction]:
        """What is written for each text."""
        return self.answer([self._fitting(self.asking(ids)) for ids in self.tokenizer.encode(texts)])

    def _fitting(self, source: list[int]) -> list[int]:
        return self.truncate_source(source) if self.truncates else source

    def _sources_of(self, batch: Batch) -> list[list[int]]:
        if batch.source is not None and batch.source_mask is not None:
            return [row[mask].tolist() for row, mask in zip(batch.source, batch.source_mask, strict=True)]
        return [row[: n + 1] for row, n in zip(batch.tokens.tolist(), batch.prefix.tolist(), strict=True)]
