"""Source text to target text."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.text import CHRFScore, SacreBLEUScore

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
    primary_metric = "exact_match"
    refusals = {  # noqa: RUF012 - a constant of the class
        "encoder_only": "an encoder sees its whole text at once and cannot write one token after the other; "
        "use model=full or model=decoder_only, or task=classification"
    }

    def encode(self, examples: Sequence[Example]) -> list[Encoded]:
        """Source and target, laid out for the architecture."""
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
            "bleu": SacreBLEUScore(tokenize="13a"),
            "chrf": CHRFScore(n_word_order=0),
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
            metrics[name].update(outputs, [[reference] for reference in references])

    def derived_metrics(self, values: dict[str, float]) -> dict[str, float]:
        """BLEU and chrF in points of 100, where something was decoded."""
        return {name: 100 * value if name in ("bleu", "chrf") else value for name, value in values.items()}

    def predict_batch(self, texts: Sequence[str]) -> list[str]:
        """The translation of each text."""
        return self.decode(self._given(texts))

    def _given(self, texts: Sequence[str]) -> list[list[int]]:
        end = EOS if self.architecture == "full" else SEP
        return [[BOS, *ids, end] for ids in self.tokenizer.encode(texts)]
