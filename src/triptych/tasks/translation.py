"""Source text to target text."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from torchmetrics import Metric

from triptych.config import refusing
from triptych.models.generation import Constraints
from triptych.tasks.base import MetricModes, Setup
from triptych.tasks.corpus_score import CorpusMetric, CorpusScore, chrf_of_each, make_bleu, words_of
from triptych.tasks.scores import EXACT_MATCH, Score
from triptych.tasks.sequence_to_sequence import SequenceToSequence
from triptych.tasks.word_splitting import WordSplitter


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
        bleu_tokenizer: sacrebleu's tokenizer for BLEU: 13a for languages with blanks between words, zh for Chinese,
            char for others without, none for text that is already tokenised, and sacrebleu's others.
        constraints: what a text may be; None: anything.
        z_loss: see ``GenerativeTask``.
    """

    name = "translation"
    metric_modes: ClassVar[MetricModes] = {"bleu": "max", "chrf": "max", "ter": "min"}
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
        with refusing("task."):
            self._scores: dict[str, CorpusMetric] = {"bleu": make_bleu(bleu_tokenizer), "chrf": CHRF(), "ter": TER()}
        self.bleu_tokenizer = bleu_tokenizer
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

    @classmethod
    def check_architecture(cls, architecture: str, settings: Mapping[str, Any]) -> None:
        """See ``Task``.

        Raises:
            ValueError: see there; or BLEU's tokenizer needs what is not there.
        """
        super().check_architecture(architecture, settings)
        with refusing("task."):
            make_bleu(settings["bleu_tokenizer"])

    def use_bleu_tokenizer(self, name: str) -> None:
        """Scores with another tokenizer than the training's.

        Raises:
            ValueError: there is no such one, or it needs what is not there.
        """
        self._scores["bleu"], self.bleu_tokenizer = make_bleu(name), name
        self.metrics["test"]["bleu"] = CorpusScore(self._scores["bleu"])  # type: ignore[operator]

    @property
    def word_splitters(self) -> Sequence[WordSplitter]:
        """BLEU's tokenizer."""
        names = dict.fromkeys([self.bleu_tokenizer, "zh", "char"])
        used, *others = [(f"task.bleu_tokenizer={name}", words_of(make_bleu(name))) for name in names]
        return [WordSplitter("BLEU", *used, "evaluate has bleu_tokenizer=... too", dict(others))]

    def test_metrics(self) -> dict[str, Metric]:
        """sacrebleu's scores."""
        return {name: CorpusScore(score) for name, score in self._scores.items()}

    def score(
        self, metrics: Mapping[str, Metric], outputs: Sequence[str], references: Sequence[str]
    ) -> Mapping[str, Sequence[float]]:
        """See ``SequenceToSequence``; each answer has the chrF of its sentence."""
        for name in self._scores:
            metrics[name].update(outputs, references)
        return {"chrf": chrf_of_each(outputs, references)}
