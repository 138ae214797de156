"""Decoding with a cache, token by token."""

import logging
from typing import TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from triptych.models.generation.decode_step import DecodeStep, DecodeStepPool, DecodeStepSize, weights_read
from triptych.models.generation.decoding_copy import DecodingCopies, DecodingParts
from triptych.nn import KeyValueCache, Network, Stack
from triptych.nn.device_copy import copy_to_device
from triptych.nn.kv_cache import fit_places
from triptych.nn.network import Inputs

log = logging.getLogger("triptych")

MULTIPLE = 64
"""Steps have a multiple of this many places, to serve texts of many lengths."""


W = TypeVar("W", bound="GenerativeNetwork")


class GenerativeNetwork(Network):
    """A network that generates text token by token: head(decoder(embedding(tokens))).

    Attributes:
        decoder: the stack that generates.
        decode_steps: its captured steps on a CUDA GPU.
        decoding_copies: copies of its parts on a CPU.
        source_embedding: embeds an input other than the text of the decoder; None: ``embedding``, or no such input.
    """

    decoder: Stack
    decode_steps: DecodeStepPool
    decoding_copies: DecodingCopies
    source_embedding: Inputs | None

    @property
    def embeddings(self) -> tuple[Inputs, ...]:
        return (self.embedding,) if self.source_embedding is None else (self.embedding, self.source_embedding)

    def check_source_width(self, source_embedding: Inputs | None) -> None:
        """Raises a ValueError if the vectors of the source are not as wide as those of the text."""
        width = self.embedding.d_model
        if source_embedding is not None and source_embedding.d_model != width:
            raise ValueError(
                f"model.source_embedding.d_model={source_embedding.d_model} and d_model={width}: both must be equal"
            )

    def train(self: W, mode: bool = True) -> W:
        """See ``nn.Module.train``; training frees the memory of the steps and copies."""
        if mode:
            self.decode_steps.clear()
            self.decoding_copies.clear()
        return super().train(mode)


class IncrementalDecoder:
    """The state of the sequences so far; called with new tokens, it returns the logits of the next one.

    In inference on a CUDA GPU, single tokens are computed by captured steps (``DecodeStep``), unless
    ``network.decode_steps`` does not capture: launching each kernel separately takes longer than the kernels.

    Args:
        network: generates the text.
        capacity: maximum number of positions, including the prompt.
        mask: True at non-padding tokens of the prompts (padded on the left), or of the vectors before them; None: no
            padding.
        num_global_tokens: see ``Stack.forward``.
        before: vectors before the prompts; None: no such vectors.
        memory: the encoder's states, for a decoder with cross-attention.
        memory_mask: True at non-padding positions of the memory; None: no padding.
    """

    def __init__(
        self,
        network: GenerativeNetwork,
        *,
        capacity: int,
        mask: Bool[Tensor, "batch length"] | None = None,
        num_global_tokens: Int[Tensor, " batch"] | None = None,
        before: Float[Tensor, "batch given d_model"] | None = None,
        memory: Float[Tensor, "batch source d_model"] | None = None,
        memory_mask: Bool[Tensor, "batch source"] | None = None,
    ) -> None:
        self._step: DecodeStep | None = None
        self._before = before
        self._network, self._memory, self._memory_mask, self._leading = network, memory, memory_mask, num_global_tokens
        source = 0 if memory is None else memory.shape[1]
        self._cache = KeyValueCache(num_layers=len(network.decoder.layers), capacity=capacity, memory_length=source)
        # positions after the prompts are not padding
        self._mask = None if mask is None else F.pad(mask, (0, max(0, capacity - mask.shape[1])), value=True)
        # the memory row of each sequence, on the CPU
        self._memory_of = torch.arange(0 if memory is None else len(memory))
        self._has_steps = network.decode_steps.serve(network)
        self._has_copies = network.decoding_copies.serve(network)
        self._copies: DecodingParts | None = None
        self._most_rows = 0

    def __call__(self, tokens: Int[Tensor, "batch new"]) -> Float[Tensor, "batch vocab"]:
        """Logits of the token after the last of ``tokens``, which follow the earlier ones."""
        network, past = self._network, self._cache.length
        if len(tokens) > self._most_rows:  # not those left, so that a text does not depend on the ends of others
            self._most_rows, self._copies = len(tokens), None
        is_next = self._is_next(tokens)
        if is_next and self._has_steps:
            self._step = self._fitting_step(len(tokens))
            try:
                logits = self._step(self._compute, tokens, past, captures=network.decode_steps.captures)
            except RuntimeError as error:
                if not network.decode_steps.captures or self._step.is_captured:
                    raise
                log.warning("a token is computed kernel by kernel: no CUDA graph can be made of it (%s)", error)
                network.decode_steps.can_capture = self._has_steps = False
            else:
                self._cache.advance()
                return logits
        self._leave_step()
        parts: DecodingParts | GenerativeNetwork = network
        if is_next and self._has_copies:
            self._copies = self._copies or network.decoding_copies.take(network, network.decoder, self._most_rows)
            parts = self._copies
        x = parts.embedding(tokens)
        if self._before is not None:
            x, self._before = torch.cat((self._before, x), dim=1), None
        mask = None if self._mask is None else self._mask[:, : past + x.shape[1]]
        states = parts.decoder(
            x,
            mask=mask,
            positions=None if mask is None else count_real(mask)[:, past:],
            memory=self._memory,
            memory_mask=self._memory_mask,
            cache=self._cache,
            num_global_tokens=self._leading,
        )
        answer: Tensor = parts.head(states[:, -1:])
        return answer[:, 0]

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        """Keeps the given rows of the batch, in the given order: finished sequences leave, beams are copied.

        Args:
            rows: always on the CPU.
        """
        memories, device = self._select_memories(rows), self._network.head.output.weight.device
        on_device = copy_to_device(rows, device)
        self._mask = None if self._mask is None else self._mask[on_device]
        self._leading = None if self._leading is None else self._leading[on_device]
        if self._step is not None and self._step.size.holds(self._size(len(rows))):
            kept = None if memories is None else copy_to_device(memories, device)
            self._step.select(on_device, kept, self._cache.length)
        else:
            self._leave_step()
            self._cache.select(rows, memories)

    def join(self, other: "IncrementalDecoder") -> None:
        """Appends the sequences of another decoder. All then end at the same position: shorter ones are padded on the
        left.

        Args:
            other: of the same network; not usable afterwards.
        """
        both = (self, other)
        for one in both:
            one._leave_step()
        real = [one._real() for one in both]
        length = max(int(mask.sum(1).max()) for mask in real)
        capacity = length + max(one._cache.capacity - one._cache.length for one in both)
        mask = torch.cat([fit_places(part, 1, length, length, skipped=True) for part in real])
        self._mask = None if mask.all() else F.pad(mask, (0, capacity - length), value=True)
        sources = 0
        if self._memory is not None and other._memory is not None:
            sources = max(self._memory.shape[1], other._memory.shape[1])
            real = [one._real_memory() for one in both]
            memory_mask = torch.cat([fit_places(part, 1, sources, sources, skipped=False) for part in real])
            self._memory_mask = None if memory_mask.all() else memory_mask
            self._memory_of = torch.cat((self._memory_of, other._memory_of + len(self._memory)))
            states = (self._memory, other._memory)
            self._memory = torch.cat([fit_places(part, 1, sources, sources, skipped=False) for part in states])
        if self._leading is not None and other._leading is not None:
            self._leading = torch.cat((self._leading, other._leading))
        self._cache.join(other._cache, length=length, capacity=capacity, memory_length=sources)

    def _real(self) -> Bool[Tensor, "batch length"]:
        """True at non-padding tokens of the sequences so far."""
        if self._mask is not None:
            return self._mask[:, : self._cache.length]
        rows = self._cache.self_attention[0].contents[0]
        return rows.new_ones(len(rows), self._cache.length, dtype=torch.bool)

    def _real_memory(self) -> Bool[Tensor, "memories source"]:
        """True at non-padding positions of the memories."""
        assert self._memory is not None
        if self._memory_mask is not None:
            return self._memory_mask
        return self._memory.new_ones(self._memory.shape[:2], dtype=torch.bool)

    def __del__(self) -> None:
        if self._step is not None and not self._network.training:
            self._network.decode_steps.give(self._step)

    def _is_next(self, tokens: Tensor) -> bool:
        """Whether these are single tokens after a prompt, with room for them, in inference."""
        capacity, room = self._cache.capacity, self._network.decoder.max_positions
        is_next = tokens.shape[1] == 1 and 0 < self._cache.length < min(capacity, room or capacity)
        return is_next and not (torch.is_grad_enabled() or self._network.training)

    def _size(self, rows: int) -> DecodeStepSize:
        """The step size needed for this number of rows."""
        groups = rows if self._memory is None else len(self._memory)
        places = (self._cache.capacity, 0 if self._memory is None else self._memory.shape[1])
        return DecodeStepSize(groups, rows // groups, *(MULTIPLE * -(-number // MULTIPLE) for number in places))

    def _fitting_step(self, rows: int) -> DecodeStep:
        """The current step, or one of half the size, a quarter, ... if that holds the rows."""
        size = self._size(rows)
        if self._step is not None:
            if (size := self._step.size.smaller(size)) == self._step.size:
                return self._step
            self._leave_step()
        position = self._network.decoder.position
        bias = position.bias(size.places, size.places) if position.has_bias else None
        reads, steps = weights_read(self._network), self._network.decode_steps
        step = steps.take(size, reads) or DecodeStep(size, reads, self._cache, self._memory, bias)
        step.load(self._cache, self._mask, self._memory_mask, bias)
        return step

    def _leave_step(self) -> None:
        """Copies the step's content back to the cache and returns the step to the pool."""
        if self._step is not None:
            self._step.store(self._cache)
            self._network.decode_steps.give(self._step)
            self._step = None

    def _compute(self, step: DecodeStep) -> Float[Tensor, "rows vocab"]:
        network = self._network
        states = network.decoder.step(
            network.embedding(step.tokens),
            place=step.place,
            positions=count_real(step.mask).index_select(1, step.place),
            mask=step.mask,
            bias=step.bias,
            memory=step.memory,
            memory_mask=step.memory_mask,
            cache=step.cache,
        )
        answer: Tensor = network.head(states)
        return answer[:, 0]

    def _select_memories(self, rows: Int[Tensor, " rows"]) -> Int[Tensor, " memories"] | None:
        """The memories that the rows need, on the CPU: one per group of neighbours that share it. None: the current
        ones."""
        if self._memory is None:
            return None
        memory_of = self._memory_of[rows]
        memories: Tensor
        memories, sharers = torch.unique_consecutive(memory_of, return_counts=True)
        if (sharers != sharers[0]).any():  # as in the rows of a batch, all are shared by equally many
            memories = memory_of
        numbers = torch.arange(len(memories))
        self._memory_of = numbers.repeat_interleave(len(rows) // len(memories))
        if len(memories) == len(self._memory) and torch.equal(memories, numbers):
            return None
        on_device = copy_to_device(memories, self._memory.device)
        self._memory = self._memory[on_device]
        self._memory_mask = None if self._memory_mask is None else self._memory_mask[on_device]
        return memories


def count_real(mask: Bool[Tensor, "batch length"]) -> Int[Tensor, "batch length"]:
    """Positions that count non-padding tokens from 0, wherever the padding is."""
    return (mask.long().cumsum(1) - 1).clamp(min=0)
