"""Source text to target text."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Float
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from torch import Tensor
from torchmetrics import Metric

from triptych.data.batch import IGNORE, Batch, Encoded
from triptych.data.example import Example
from triptych.data.tokenizers import BOS, EOS, SEP
from triptych.tasks.base import mean_metric, token_accuracy
from triptych.tasks.generative import GenerativeTask


class Translation(GenerativeTask):
    """Writes the target of a source text; trained by teacher forcing.

    The full model reads <bos> source <eos> with its encoder and <bos> target with its decoder. The decoder-only model
    reads <bos> source <sep> target as one text, and is scored on the target alone.
    """

    name = "translation"
    refusals = {  # noqa: RUF012 - a constant of the class
        "encoder_only": "an encoder sees its whole text at once and cannot write one token after the other; "
        "use model=full or model=decoder_only, or task=classification"
    }

    def encode(self, examples: Sequence[Example]) -> list[Encoded]:
        """Source and target, laid out for the architecture.

        Raises:
            ValueError: an example without a target.
        """
        if missing := [example.text for example in examples if example.target is None]:
            raise ValueError(f"no target: {missing[0]!r}")
        sources = self._given([example.text for example in examples])
        targets = self.tokenizer.encode([example.target or "" for example in examples])
        encoded = []
        for example, source, target in zip(examples, sources, targets, strict=True):
            labels = [*target, EOS]
            if self.architecture == "full":
                encoded.append(Encoded(np.array([BOS, *target]), np.array(labels), np.array(source), example=example))
            else:
                unscored = [IGNORE] * (len(source) - 1)
                encoded.append(Encoded(np.array(source + target), np.array(unscored + labels), example=example))
        return encoded

    def make_metrics(self) -> dict[str, Metric]:
        """Exact match; BLEU (sacrebleu's 13a tokens) and chrF of what is decoded, at the test only."""
        return {
            "token_accuracy": mean_metric(),
            "exact_match": mean_metric(),
            "bleu": CorpusScore(BLEU()),
            "chrf": CorpusScore(CHRF()),
        }

    def update_metrics(
        self, metrics: Mapping[str, Metric], batch: Batch, logits: Float[Tensor, "batch length vocab"]
    ) -> None:
        """Validation: teacher-forced; greedy decoding hits the target exactly when each of its tokens is the likeliest
        after those before it, so exact match needs no decoding. Test: decodes."""
        token_accuracy(metrics["token_accuracy"], batch, logits)
        examples = [example for example in batch.examples if example is not None]
        if not self.trainer.testing:
            hits = ((logits.argmax(-1) == batch.labels) | (batch.labels == IGNORE)).all(1)
            metrics["exact_match"].update(hits.double().mean(), len(hits))
            return
        outputs = self.predict_batch([example.text for example in examples])
        references = [example.target or "" for example in examples]
        hit = [output == reference for output, reference in zip(outputs, references, strict=True)]
        metrics["exact_match"].update(sum(hit) / len(hit), len(hit))
        for name in ("bleu", "chrf"):
            metrics[name].update(outputs, references)

    def predict_batch(self, texts: Sequence[str]) -> list[str]:
        """The translation of each text."""
        return self.decode(self._given(texts))

    def _given(self, texts: Sequence[str]) -> list[list[int]]:
        end = EOS if self.architecture == "full" else SEP
        return [[BOS, *ids, end] for ids in self.tokenizer.encode(texts)]


class CorpusScore(Metric):
    """A score of sacrebleu over a whole corpus, in points of 100. Its statistics are sums: batches change nothing.

    Args:
        score: a metric of sacrebleu.
    """

    statistics: Tensor

    def __init__(self, score: BLEU | CHRF) -> None:
        super().__init__()
        self._score = score
        zeros = torch.tensor(score._extract_corpus_statistics([""], [[""]])[0], dtype=torch.int64) * 0
        self.add_state("statistics", default=zeros, dist_reduce_fx="sum")

    def update(self, outputs: Sequence[str], references: Sequence[str]) -> None:
        """Counts the n-grams of these texts."""
        rows = self._score._extract_corpus_statistics(outputs, [references])
        self.statistics += torch.tensor(rows, device=self.device).sum(0)

    def compute(self) -> float:
        """The score."""
        score: float = self._score._compute_score_from_stats(self.statistics.tolist()).score
        return score
