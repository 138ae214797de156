"""The next token of a text."""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torchmetrics import Metric, SumMetric

from triptych.data.batch import IGNORE, Batch, Encoded
from triptych.data.example import Example
from triptych.data.prefix import prefix_length
from triptych.data.tokenizers import BOS, EOS
from triptych.tasks.base import mean_metric, token_accuracy
from triptych.tasks.generative import GenerativeTask


class LanguageModeling(GenerativeTask):
    """Gives each next token a probability.

    The decoder-only model is scored on every token of a line, its end included. The full model is a prefix model: its
    encoder reads a prefix of the line, whose length is a fixed function of the line, and its decoder is scored on the
    continuation. The decoder-only model's score on that same continuation is reported too, so that the two can be
    compared on the same tokens.

    A long text is read in windows; there, the prefix is the first half of the window.
    """

    name = "language_modeling"
    refusals = {  # noqa: RUF012 - a constant of the class
        "encoder_only": "an encoder sees the token that it should predict; "
        "use model=decoder_only or model=full (a prefix model)"
    }

    @cached_property
    def token_bytes(self) -> Int[Tensor, " vocab"]:
        """How many bytes of text each token stands for."""
        return torch.from_numpy(self.tokenizer.num_bytes())

    def encode(self, examples: Sequence[Example]) -> list[Encoded]:
        """Lines, each by itself. The two parts are tokenised apart for both architectures: the tokens are the same."""
        cuts = [prefix_length(example.text) for example in examples]
        texts = [example.text for example in examples]
        prefixes = self.tokenizer.encode([text[:cut] for text, cut in zip(texts, cuts, strict=True)])
        rests = self.tokenizer.encode([text[cut:] for text, cut in zip(texts, cuts, strict=True)])
        encoded = []
        for example, prefix, rest in zip(examples, prefixes, rests, strict=True):
            if self.architecture == "full":
                item = Encoded(
                    np.array([BOS, *rest]), np.array([*rest, EOS]), np.array([BOS, *prefix]), example=example
                )
            else:
                line = prefix + rest
                item = Encoded(np.array([BOS, *line]), np.array([*line, EOS]), prefix=len(prefix), example=example)
            encoded.append(item)
        return encoded

    def encode_window(self, ids: Int[np.ndarray, " window"]) -> Encoded:
        """A window of a long text, which has one token more than is read."""
        half = len(ids) // 2
        if self.architecture == "full":
            return Encoded(np.array([BOS, *ids[half:-1]]), ids[half:], ids[:half])
        return Encoded(ids[:-1], ids[1:], prefix=half - 1)

    def make_metrics(self) -> dict[str, Metric]:
        """Sums of nats and bytes, of all scored tokens and of the continuations."""
        names = ("nats", "bytes", "continuation_nats", "continuation_bytes")
        return {"token_accuracy": mean_metric(), **{name: SumMetric().set_dtype(torch.float64) for name in names}}

    def update_metrics(
        self, metrics: Mapping[str, Metric], batch: Batch, logits: Float[Tensor, "batch length vocab"]
    ) -> None:
        """Adds the negative log-likelihoods and the bytes of the scored tokens."""
        token_accuracy(metrics["token_accuracy"], batch, logits)
        nats = F.cross_entropy(
            logits.transpose(1, 2).float(), batch.labels, ignore_index=IGNORE, reduction="none"
        ).double()
        sizes = torch.where(batch.labels == IGNORE, 0, self.token_bytes.to(self.device)[batch.labels.clamp(min=0)])
        places = torch.arange(batch.labels.shape[1], device=self.device)
        continuation = places >= batch.prefix[:, None]
        metrics["nats"].update(nats.sum())
        metrics["bytes"].update(sizes.sum())
        metrics["continuation_nats"].update(nats[continuation].sum())
        metrics["continuation_bytes"].update(sizes[continuation].sum())

    def derived_metrics(self, values: dict[str, float]) -> dict[str, float]:
        """Perplexity a token, and bits a byte."""
        bits = values["nats"] / math.log(2)
        continuation_bits = values["continuation_nats"] / math.log(2)
        derived = {
            "loss": values["loss"],
            "perplexity": math.exp(values["loss"]),
            "token_accuracy": values["token_accuracy"],
            "bits_per_byte": bits / values["bytes"],
        }
        if self.architecture == "decoder_only":
            derived["continuation_bits_per_byte"] = continuation_bits / values["continuation_bytes"]
        return derived

    def predict_batch(self, texts: Sequence[str]) -> list[str]:
        """A continuation of each text. What of a text does not fit into the table of positions, together with the new
        tokens, is forgotten from its beginning; half of the table is always the text's."""
        begins_anywhere = self.corpus.is_stream  # windows have no <bos>
        prompts = [ids if ids and begins_anywhere else [BOS, *ids] for ids in self.tokenizer.encode(texts)]
        if self.room is None or self.architecture == "full":
            return self.decode(prompts)
        kept = max(self.room - self.max_new_tokens, self.room // 2)
        return self.decode([prompt[-kept:] for prompt in prompts])
