"""Restoring a text of which a part is hidden: pre-training without labels."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float
from torch import Tensor
from torchmetrics import Metric

from triptych.data.batch import IGNORE, Batch, Encoded, collate
from triptych.data.example import Example
from triptych.data.tokenizers import BOS, EOS, MASK, SPECIAL_TOKENS
from triptych.tasks.base import Prediction, Setup, mean_metric, token_accuracy
from triptych.tasks.generative import GenerativeTask


class Denoising(GenerativeTask):
    """Each architecture by its own objective, so the scores of different architectures are not comparable.

    - encoder-only: masked language modelling. Of ``mask_share`` of the tokens, 80 % are replaced by <mask>, 10 % by a
      random token, 10 % stay; they alone are scored. Devlin et al. 2019, section 3.1.
    - full: text infilling. Spans of Poisson(3) tokens, ``mask_share`` of the text in all, are each replaced by one
      <mask>; the decoder writes the whole text. Lewis et al. 2020, section 2.2.
    - decoder-only: the next token, nothing hidden.

    What is hidden in an example is a function of the seed and of the example's number.

    Args:
        setup: see ``Task``; what is hidden follows from its seed too.
        label_smoothing: share of each label that is spread over the vocabulary.
        max_new_tokens: the most tokens that are decoded.
        mask_share: share of the tokens that is hidden.
    """

    name = "denoising"

    def __init__(self, setup: Setup, *, label_smoothing: float, max_new_tokens: int, mask_share: float) -> None:
        super().__init__(setup, label_smoothing=label_smoothing, max_new_tokens=max_new_tokens)
        if not 0 < mask_share < 1:
            raise ValueError(f"task.mask_share={mask_share}: expected more than 0 and less than 1")
        self.mask_share = mask_share

    def encode(self, examples: Sequence[Example]) -> list[Encoded]:
        """Hides a part of each text."""
        encoded = []
        for number, (example, ids) in enumerate(
            zip(examples, self.tokenizer.encode([e.text for e in examples]), strict=True)
        ):
            random = np.random.default_rng((self.seed, number))
            if self.architecture == "encoder_only":
                tokens, labels = self._masked(np.array(ids, dtype=np.int64), random)
                item = Encoded(np.array([BOS, *tokens, EOS]), np.array([IGNORE, *labels, IGNORE]), example=example)
            else:
                source = np.array([BOS, *self._infilled(ids, random), EOS]) if self.architecture == "full" else None
                item = Encoded(np.array([BOS, *ids]), np.array([*ids, EOS]), source, example=example)
            encoded.append(item)
        return encoded

    def make_metrics(self) -> dict[str, Metric]:
        """The share of scored tokens that are restored."""
        return {"token_accuracy": mean_metric()}

    def update_metrics(
        self, metrics: Mapping[str, Metric], batch: Batch, logits: Float[Tensor, "batch length vocab"]
    ) -> None:
        """Counts hits."""
        token_accuracy(metrics["token_accuracy"], batch, logits)

    def predict_batch(self, texts: Sequence[str]) -> Sequence[Prediction]:
        """Each text with its <mask> filled in; a decoder-only model goes on instead."""
        hidden = SPECIAL_TOKENS[MASK]
        parts = [self.tokenizer.encode(text.split(hidden)) for text in texts]
        ids = [[*pieces[0], *(i for piece in pieces[1:] for i in (MASK, *piece))] for pieces in parts]
        if self.architecture == "decoder_only":
            return self.answer([[BOS, *row] for row in ids])
        whole = [[BOS, *row, EOS] for row in ids]
        if self.architecture == "full":
            return self.answer(whole)
        batch = collate([Encoded(np.array(row), np.array(row)) for row in whole]).to(self.device)
        filled = batch.tokens.where(batch.tokens != MASK, self(batch).argmax(-1))
        return [self.tokenizer.decode(row.tolist()) for row in filled]

    def _masked(self, ids: np.ndarray, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        count = max(1, round(self.mask_share * len(ids))) if len(ids) else 0
        chosen = random.permutation(len(ids))[:count]
        labels = np.full(len(ids), IGNORE)
        labels[chosen] = ids[chosen]
        kinds = random.random(count)
        others = random.integers(len(SPECIAL_TOKENS), self.tokenizer.vocab_size, count)
        tokens = ids.copy()
        tokens[chosen] = np.where(kinds < 0.8, MASK, np.where(kinds < 0.9, others, ids[chosen]))
        return tokens, labels

    def _infilled(self, ids: Sequence[int], random: np.random.Generator) -> list[int]:
        row: list[int | None] = list(ids)  # None: hidden
        to_hide = round(self.mask_share * len(ids))
        while (left := to_hide - row.count(None)) > 0:
            length = min(max(int(random.poisson(3)), 1), left)
            start = int(random.integers(len(row) - length + 1))
            row[start : start + length] = [None] * length
        return [
            MASK if token is None else token
            for place, token in enumerate(row)
            if token is not None or place == 0 or row[place - 1] is not None
        ]
