"""A decoder in the middle of its work."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from triptych.nn import Head, KeyValueCache
from triptych.nn.transfer import upload


class Continuation:
    """What is known of the sequences so far; called with new tokens, it gives the logits of the next one.

    Args:
        decode: the decoder: (tokens, mask, memory, memory_mask) to states; it fills ``cache``.
        head: states to logits.
        cache: keys and values so far.
        mask: True at the real tokens of the prompts (padded on the left); None: no padding.
        memory: the encoder's states, for a decoder that looks at them.
        memory_mask: True at real positions of the memory; None: all are real.
    """

    def __init__(
        self,
        decode: Callable[[Tensor, Tensor | None, Tensor | None, Tensor | None], Tensor],
        head: Head,
        *,
        cache: KeyValueCache,
        mask: Bool[Tensor, "batch length"] | None = None,
        memory: Float[Tensor, "batch source d_model"] | None = None,
        memory_mask: Bool[Tensor, "batch source"] | None = None,
    ) -> None:
        self._decode, self._head, self._cache = decode, head, cache
        self._mask, self._memory, self._memory_mask = mask, memory, memory_mask
        # which row of the memory each sequence looks at, on the CPU
        self._memory_of = None if memory is None else torch.arange(len(memory))

    def __call__(self, tokens: Int[Tensor, "batch new"]) -> Float[Tensor, "batch vocab"]:
        """Logits of the token after the last of ``tokens``, which follow those given before."""
        if self._mask is not None and self._cache.length:
            self._mask = torch.cat((self._mask, torch.ones_like(tokens, dtype=torch.bool)), dim=1)
        states = self._decode(tokens, self._mask, self._memory, self._memory_mask)
        logits: Tensor = self._head(states[:, -1:])
        return logits[:, 0]

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        """Keeps the given rows of the batch, in the given order: finished sequences leave, beams are copied.

        Args:
            rows: on the CPU, wherever the decoder is.
        """
        memories, rows = self._select_memories(rows), upload(rows, self._head.output.weight.device)
        self._mask = None if self._mask is None else self._mask[rows]
        self._cache.select(rows, memories)

    def _select_memories(self, rows: Int[Tensor, " rows"]) -> Int[Tensor, " memories"] | None:
        """The memories that the rows need, one for neighbours that look at the same; None: those that are there."""
        if self._memory is None or self._memory_of is None:
            return None
        memory_of = self._memory_of[rows]
        memories: Tensor
        memories, sharers = torch.unique_consecutive(memory_of, return_counts=True)
        if (sharers != sharers[0]).any():  # as the rows of a batch, all are shared by as many
            memories = memory_of
        numbers = torch.arange(len(memories))
        self._memory_of = numbers.repeat_interleave(len(rows) // len(memories))
        if len(memories) == len(self._memory) and torch.equal(memories, numbers):
            return None
        memories = upload(memories, self._memory.device)
        self._memory = self._memory[memories]
        self._memory_mask = None if self._memory_mask is None else self._memory_mask[memories]
        return memories
