"""BLEU and other scores of sacrebleu as torchmetrics metrics.

Tested by tests/tasks/test_word_splitting.py.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import torch
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.tokenizers.tokenizer_spm import SPM_MODELS
from sacrebleu.utils import SACREBLEU_DIR
from torch import Tensor
from torchmetrics import Metric

from triptych.config import one_of

MODELS = {name: Path(SACREBLEU_DIR, "models", Path(model["url"]).name) for name, model in SPM_MODELS.items()}
"""Files that some tokenizers of sacrebleu would download, by tokenizer."""
CorpusMetric: TypeAlias = BLEU | CHRF | TER


def make_bleu(tokenizer: str) -> BLEU:
    """Makes sacrebleu's BLEU with one of its tokenizers.

    Raises:
        ValueError: if the tokenizer is unknown, or needs a missing package or file.
    """
    if tokenizer not in BLEU.TOKENIZERS:
        raise ValueError(f"bleu_tokenizer={tokenizer}: {one_of(tokenizer, [*BLEU.TOKENIZERS])}")
    if tokenizer in MODELS and not MODELS[tokenizer].exists():
        command = f"python -c 'from sacrebleu import BLEU; BLEU(tokenize=\"{tokenizer}\")'"
        raise ValueError(f"bleu_tokenizer={tokenizer}: {MODELS[tokenizer]} is not there; download it: {command}")
    try:
        return BLEU(tokenize=tokenizer)
    except (RuntimeError, ImportError) as error:
        (install,) = re.findall("pip install (.+)", str(error)) or [str(error)]
        raise ValueError(f"bleu_tokenizer={tokenizer}: needs a package; pip install '{install.strip()}'") from None


def word_splitter(bleu: BLEU) -> Callable[[str], list[str]]:
    """Returns the function that splits a text into the words of BLEU."""
    return lambda text: bleu.tokenizer(text).split()


class CorpusScore(Metric):
    """A sacrebleu score over a whole corpus, in points of 100; it does not depend on the batches.

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
        """Adds the n-gram or edit counts of these texts."""
        rows = self._score._extract_corpus_statistics(outputs, [references])
        self.statistics += torch.tensor(rows, dtype=torch.int64, device=self.device).sum(0)

    def compute(self) -> float:
        """Returns the score."""
        return float(self._score._compute_score_from_stats(self.statistics.tolist()).score)


def chrf_of_each(outputs: Sequence[str], references: Sequence[str]) -> list[float]:
    """Computes the chrF of each sentence, in points of 100."""
    chrf = CHRF()
    return [chrf.sentence_score(output, [right]).score for output, right in zip(outputs, references, strict=True)]
