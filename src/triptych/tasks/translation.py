"""Source text to target text."""

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import torch
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from torch import Tensor
from torchmetrics import Metric

from triptych.models.generation import Constraints
from triptych.tasks.base import Setup
from triptych.tasks.scores import EXACT_MATCH, Score
from triptych.tasks.sequence_to_sequence import SequenceToSequence

CorpusMetric: TypeAlias = BLEU | CHRF | TER


class Translation(SequenceToSequence):
    """Writes the target of a source text (see ``SequenceToSequence``).

    At the test also sacrebleu's bleu, chrf (higher is better) and ter (lower is better), in points of 100.

    Args:
        setup: see ``Task``.
        label_smoothing: share of each label that is spread over the vocabulary.
        max_new_tokens: the most tokens that are decoded.
        num_beams: of the beam search at the test; 1 decodes greedily.
        length_penalty: see ``triptych.models.generation.BeamSearch``.
        early_stopping: see ``triptych.models.generation.BeamSearch``.
        bleu_tokenizer: sacrebleu's tokenizer for BLEU: 13a for natural text, none for text that is already tokenised,
            and sacrebleu's others.
        constraints: what a text may be; None: anything.
        z_loss: see ``GenerativeTask``.
    """

    name = "translation"
    title = "Translation"
    ranked_by = ("chrf", "chrF of the sentence")  # that one of two wrong answers is nearer counts, too

    def __init__(
        self,
        setup: Setup,
        *,
        label_smoothing: float,
        max_new_tokens: int,
        num_beams: int,
        length_penalty: float,
        early_stopping: bool | Literal["never"],
        bleu_tokenizer: str,
        constraints: Constraints | None = None,
        z_loss: float = 0.0,
    ) -> None:
        if bleu_tokenizer not in BLEU.TOKENIZERS:
            raise ValueError(f"task.bleu_tokenizer={bleu_tokenizer}: expected one of {', '.join(BLEU.TOKENIZERS)}")
        self._scores: dict[str, CorpusMetric] = {"bleu": BLEU(tokenize=bleu_tokenizer), "chrf": CHRF(), "ter": TER()}
        super().__init__(
            setup,
            label_smoothing=label_smoothing,
            max_new_tokens=max_new_tokens,
            num_beams=num_beams,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
            constraints=constraints,
            z_loss=z_loss,
        )

    @classmethod
    def scores(cls, architecture: str, metrics: Mapping[str, float], optimum: Mapping[str, float]) -> Sequence[Score]:
        """Exact match where its best value is known; BLEU, for many translations of a sentence are right."""
        bleu = Score("bleu", "test/bleu", "BLEU", higher_is_better=True, digits=1)
        return [EXACT_MATCH, bleu] if EXACT_MATCH.key in optimum else [bleu]

    @property
    def signatures(self) -> dict[str, str]:
        """By metric: what sacrebleu says of how it is computed (Post 2018)."""
        for score in self._scores.values():
            score.num_refs = 1
        return {name: str(score.get_signature()) for name, score in self._scores.items()}

    def test_metrics(self) -> dict[str, Metric]:
        """sacrebleu's scores."""
        return {name: CorpusScore(score) for name, score in self._scores.items()}

    def score(
        self, metrics: Mapping[str, Metric], outputs: Sequence[str], references: Sequence[str]
    ) -> Mapping[str, Sequence[float]]:
        """See ``SequenceToSequence``; each answer has the chrF of its sentence."""
        for name in self._scores:
            metrics[name].update(outputs, references)
        chrf = CHRF()
        pairs = zip(outputs, references, strict=True)
        return {"chrf": [chrf.sentence_score(output, [right]).score for output, right in pairs]}


class CorpusScore(Metric):
    """A score of sacrebleu over a whole corpus, in points of 100. Its statistics are sums: batches change nothing.

    Args:
        score: a metric of sacrebleu.
    """

    statistics: Tensor

    def __init__(self, score: CorpusMetric) -> None:
        super().__init__()
        self._score = score
        zeros = torch.tensor(score._extract_corpus_statistics([""], [[""]])[0], dtype=torch.int64) * 0
        self.add_state("statistics", default=zeros, dist_reduce_fx="sum")

    def update(self, outputs: Sequence[str], references: Sequence[str]) -> None:
        """Counts the n-grams, or edits, of these texts."""
        rows = self._score._extract_corpus_statistics(outputs, [references])
        self.statistics += torch.tensor(rows, dtype=torch.int64, device=self.device).sum(0)

    def compute(self) -> float:
        """The score."""
        score: float = self._score._compute_score_from_stats(self.statistics.tolist()).score
        return score
