"""What the tasks that write text share."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from triptych.data.batch import pad
from triptych.data.tokenizers import BOS, EOS
from triptych.decoding import Sampling, generate
from triptych.tasks.base import Prediction, Setup, Task


class GenerativeTask(Task):
    """A task whose answers are texts, decoded token by token.

    Args:
        setup: see ``Task``.
        label_smoothing: share of each label that is spread over the vocabulary.
        max_new_tokens: the most tokens that are decoded.
    """

    def __init__(self, setup: Setup, *, label_smoothing: float, max_new_tokens: int) -> None:
        super().__init__(setup, label_smoothing=label_smoothing)
        if max_new_tokens < 1:
            raise ValueError(f"task.max_new_tokens={max_new_tokens}: expected at least 1")
        self.max_new_tokens = max_new_tokens
        self.sampling = Sampling()
        self._generator: torch.Generator | None = None

    def predictions(self, texts: Sequence[str], *, batch_size: int = 64) -> Iterator[Prediction]:
        """See ``Task``; the draws of all texts come from one generator."""
        self._generator = self.sampling.generator(self.device)
        yield from super().predictions(texts, batch_size=batch_size)

    def decode(self, given: Sequence[Sequence[int]]) -> list[str]:
        """What the network writes after what it is given: the source of the full model, the prompt of a decoder.

        Args:
            given: token ids.
        """
        network: Any = self.network  # of one of the two architectures that write
        lengths = [1 if self.architecture == "full" else len(ids) for ids in given]
        limits = [
            self.max_new_tokens if self.room is None else min(self.max_new_tokens, self.room - n) for n in lengths
        ]
        if min(limits) < 1:
            raise ValueError(f"a prompt of {max(lengths)} tokens leaves no room: shape.max_length={self.room}")
        capacity = max(lengths) + max(limits)
        if self.architecture == "full":
            source, source_mask = (tensor.to(self.device) for tensor in pad(given))
            prompt = torch.full((len(given), 1), BOS, device=self.device)
            next_token = network.continuation(source, source_mask, capacity=capacity)
        else:
            prompt, mask = (tensor.to(self.device) for tensor in pad(given, left=True))
            next_token = network.continuation(None if mask.all() else mask, capacity=capacity)
        outputs = generate(
            next_token, prompt, end=EOS, max_new_tokens=limits, sampling=self.sampling, generator=self._generator
        )
        return [self.tokenizer.decode(ids) for ids in outputs]
