"""The translation task.

Tested by tests/tasks/test_task.py and tests/tasks/test_word_splitting.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from torchmetrics import Metric

from triptych.config import error_prefix
from triptych.tasks.bleu import CorpusMetric, CorpusScore, chrf_of_each, make_bleu, word_splitter
from triptych.tasks.metric_specs import EXACT_MATCH, MetricSpec
from triptych.tasks.sequence_to_sequence import SequenceToSequence
from triptych.tasks.task import MetricModes, Metrics, Scores, TaskContext
from triptych.tasks.word_splitting import WordSplitter


@dataclass(kw_only=True, eq=False, repr=False)
class Translation(SequenceToSequence):
    """Translates a source text (see ``SequenceToSequence``).

    The test adds sacrebleu's bleu, chrf (higher is better) and ter (lower is better), in points of 100.

    Args:
        bleu_tokenizer: sacrebleu tokenizer for BLEU: 13a for languages with spaces between words, zh for Chinese, char
            for other languages without spaces, none for tokenized text, or another one of sacrebleu.
        ter: whether the test includes ter, which takes a minute for some thousand long and wrong outputs.
        reverse_source: whether the network reads the tokens of the source from the last to the first (Sutskever et al.
            2014, section 3.3).
    """

    name = "translation"
    metric_modes: ClassVar[MetricModes] = {"bleu": "max", "chrf": "max", "ter": "min"}
    title = "Translation"
    compared_by = (EXACT_MATCH, MetricSpec("bleu", "test/bleu", "BLEU", higher_is_better=True, digits=1))
    ranked_by = ("chrf", "chrF of the sentence")  # also distinguishes incorrect outputs

    bleu_tokenizer: str
    ter: bool = True
    reverse_source: bool = False

    def __post_init__(self, context: TaskContext) -> None:
        with error_prefix("task."):
            bleu = make_bleu(self.bleu_tokenizer)
        self._scores: dict[str, CorpusMetric] = {"bleu": bleu, "chrf": CHRF()}
        if self.ter:
            self._scores["ter"] = TER()
        super().__post_init__(context)

    def build_prompt(self, ids: Sequence[int]) -> list[int]:
        return super().build_prompt(ids[::-1] if self.reverse_source else ids)

    @property
    def signatures(self) -> dict[str, str]:
        """sacrebleu's signature of each metric, which describes how it is computed (Post 2018)."""
        for score in self._scores.values():
            score.num_refs = 1
        return {name: str(score.get_signature()) for name, score in self._scores.items()}

    @classmethod
    def check_architecture(cls, architecture: str, settings: Mapping[str, Any]) -> None:
        """Checks the architecture and the tokenizer of BLEU; see ``Task`` and ``make_bleu``."""
        super().check_architecture(architecture, settings)
        with error_prefix("task."):
            make_bleu(settings["bleu_tokenizer"])

    def use_bleu_tokenizer(self, name: str) -> None:
        """Sets the tokenizer of BLEU for metrics made after this call.

        Raises:
            ValueError: if the tokenizer is unknown, or needs a missing package or file.
        """
        self._scores["bleu"], self.bleu_tokenizer = make_bleu(name), name

    @property
    def word_splitters(self) -> Sequence[WordSplitter]:
        """The word splitter of BLEU."""
        names = dict.fromkeys([self.bleu_tokenizer, "zh", "char"])
        used, *others = [(f"task.bleu_tokenizer={name}", word_splitter(make_bleu(name))) for name in names]
        return [WordSplitter("BLEU", *used, "evaluate has bleu_tokenizer=... too", dict(others))]

    def test_metrics(self) -> dict[str, Metric]:
        """Returns the sacrebleu metrics."""
        return {name: CorpusScore(score) for name, score in self._scores.items()}

    def score(self, metrics: Metrics, outputs: Sequence[str], references: Sequence[str]) -> Scores:
        """Returns the chrF of each output; see ``SequenceToSequence``."""
        for name in self._scores:
            metrics[name].update(outputs, references)
        return {"chrf": chrf_of_each(outputs, references)}
