"""Restoring a text of which a part is hidden: pre-training without labels."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float
from torch import Tensor
from torchmetrics import Metric

from triptych.data.batch import IGNORE, Batch, Encoded, collate
from triptych.data.example import Example
from triptych.tasks.base import Prediction, Setup, mean_metric, token_accuracy
from triptych.tasks.generative import GenerativeTask


class Denoising(GenerativeTask):
    """Each architecture by its own objective, so the scores of different architectures are not comparable.

    - encoder-only: masked language modelling. Of ``mask_share`` of the tokens, 80 % are replaced by the mask, 10 % by a
      random token, 10 % stay; they alone are scored. Devlin et al. 2019, section 3.1.
    - full: text infilling. Spans of Poisson(3) tokens, ``mask_share`` of the text in all, are each replaced by one
      mask; the decoder writes the whole text. Lewis et al. 2020, section 2.2.
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
        if self.architecture != "decoder_only" and self.tokenizer.special.mask is None:
            raise ValueError(f"task=denoising on model={self.architecture}: the tokenizer has no mask token")

    def encode(self, examples: Sequence[Example]) -> list[Encoded]:
        """Hides a part of each text."""
        encoded, special = [], self.tokenizer.special
        for number, (example, ids) in enumerate(
            zip(examples, self.tokenizer.encode([e.text for e in examples]), strict=True)
        ):
            random = np.random.default_rng((self.seed, number))
            if self.architecture == "encoder_only":
                tokens, labels = self._masked(np.array(ids, dtype=np.int64), random)
                unscored = [IGNORE] * len(special.begin), [IGNORE] * len(special.end)
                item = Encoded(
                    np.array([*special.begin, *tokens, *special.end]),
                    np.array([*unscored[0], *labels, *unscored[1]]),
                    example=example,
                )
            elif self.architecture == "full":
                source = np.array(special.whole(self._infilled(ids, random)))
                read, written = special.written(ids)
                item = Encoded(np.array(read), np.array(written), source, example=example)
            else:
                item = Encoded(np.array([special.bos, *ids]), np.array([*ids, special.eos]), example=example)
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
        """Each text with its masks filled in; a decoder-only model goes on instead."""
        special = self.tokenizer.special
        if self.architecture == "decoder_only":
            return self.answer([special.opening(ids) for ids in self.tokenizer.encode(texts)])
        whole = [special.whole(ids) for ids in self.tokenizer.encode_marked(texts, [self._mask])]
        if self.architecture == "full":
            return self.answer(whole)
        batch = collate([Encoded(np.array(row), np.array(row)) for row in whole]).to(self.device)
        filled = batch.tokens.where(batch.tokens != self._mask, self(batch).argmax(-1))
        return [self.tokenizer.decode(row.tolist()) for row in filled]

    @property
    def _mask(self) -> int:
        mask = self.tokenizer.special.mask
        assert mask is not None
        return mask

    def _masked(self, ids: np.ndarray, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        count = max(1, round(self.mask_share * len(ids))) if len(ids) else 0
        chosen = random.permutation(len(ids))[:count]
        labels = np.full(len(ids), IGNORE)
        labels[chosen] = ids[chosen]
        kinds = random.random(count)
        others = random.choice(self.tokenizer.text_ids, count)
        tokens = ids.copy()
        tokens[chosen] = np.where(kinds < 0.8, self._mask, np.where(kinds < 0.9, others, ids[chosen]))
        return tokens, labels

    def _infilled(self, ids: Sequence[int], random: np.random.Generator) -> list[int]:
        row: list[int | None] = list(ids)  # None: hidden
        to_hide = round(self.mask_share * len(ids))
        while (left := to_hide - row.count(None)) > 0:
            length = min(max(int(random.poisson(3)), 1), left)
            start = int(random.integers(len(row) - length + 1))
            row[start : start + length] = [None] * length
        return [
            self._mask if token is None else token
            for place, token in enumerate(row)
            if token is not None or place == 0 or row[place - 1] is not None
        ]
