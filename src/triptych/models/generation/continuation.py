"""A decoder in the middle of its work."""

import logging
from typing import TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from triptych.models.generation.step import Size, Step, Steps, weights_read
from triptych.nn import KeyValueCache, Network, Stack
from triptych.nn.kv_cache import fit_places
from triptych.nn.transfer import upload

log = logging.getLogger("triptych")

MULTIPLE = 64
"""Steps have so many places, or twice, ... as many, to serve texts of many lengths."""


W = TypeVar("W", bound="Writer")


class Writer(Network):
    """A network that writes token by token: head(decoder(embedding(tokens))).

    Attributes:
        decoder: the stack that writes.
        steps: what was captured of it on a CUDA GPU.
    """

    decoder: Stack
    steps: Steps

    def train(self: W, mode: bool = True) -> W:
        """As of any module; training gets the memory of the steps."""
        if mode:
            self.steps.clear()
        return super().train(mode)


class Continuation:
    """What is known of the sequences so far; called with new tokens, it gives the logits of the next one.

    In inference on a CUDA GPU single tokens are computed by steps (``Step``), unless ``network.steps`` says otherwise:
    to launch each kernel by itself takes longer than the kernels do.

    Args:
        network: that writes.
        capacity: the most positions, prompt included.
        mask: True at the real tokens of the prompts (padded on the left), or of what is given before them; None: no
            padding.
        leading: see ``Stack.forward``.
        before: vectors of what is given before the prompts; None: nothing is.
        memory: the encoder's states, for a decoder that looks at them.
        memory_mask: True at real positions of the memory; None: all are real.
    """

    def __init__(
        self,
        network: Writer,
        *,
        capacity: int,
        mask: Bool[Tensor, "batch length"] | None = None,
        leading: Int[Tensor, " batch"] | None = None,
        before: Float[Tensor, "batch given d_model"] | None = None,
        memory: Float[Tensor, "batch source d_model"] | None = None,
        memory_mask: Bool[Tensor, "batch source"] | None = None,
    ) -> None:
        self._step: Step | None = None
        self._before = before
        self._network, self._memory, self._memory_mask, self._leading = network, memory, memory_mask, leading
        source = 0 if memory is None else memory.shape[1]
        self._cache = KeyValueCache(num_layers=len(network.decoder.layers), capacity=capacity, memory_length=source)
        # what follows the prompts is real
        self._mask = None if mask is None else F.pad(mask, (0, max(0, capacity - mask.shape[1])), value=True)
        # which row of the memory each sequence looks at, on the CPU
        self._memory_of = None if memory is None else torch.arange(len(memory))
        self._has_steps = network.steps.serve(network)

    def __call__(self, tokens: Int[Tensor, "batch new"]) -> Float[Tensor, "batch vocab"]:
        """Logits of the token after the last of ``tokens``, which follow those given before."""
        network, past = self._network, self._cache.length
        if self._is_a_step(tokens):
            self._step = self._fitting_step(len(tokens))
            try:
                logits = self._step(self._compute, tokens, past, captures=network.steps.captures)
            except RuntimeError as error:
                if not network.steps.captures or self._step.is_captured:
                    raise
                log.warning("a token is computed kernel by kernel: no CUDA graph can be made of it (%s)", error)
                network.steps.can_capture = self._has_steps = False
            else:
                self._cache.advance()
                return logits
        self._leave_step()
        x = network.embedding(tokens)
        if self._before is not None:
            x, self._before = torch.cat((self._before, x), dim=1), None
        mask = None if self._mask is None else self._mask[:, : past + x.shape[1]]
        states = network.decoder(
            x,
            mask=mask,
            positions=None if mask is None else count_real(mask)[:, past:],
            memory=self._memory,
            memory_mask=self._memory_mask,
            cache=self._cache,
            leading=self._leading,
        )
        answer: Tensor = network.head(states[:, -1:])
        return answer[:, 0]

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        """Keeps the given rows of the batch, in the given order: finished sequences leave, beams are copied.

        Args:
            rows: on the CPU, wherever the decoder is.
        """
        memories, device = self._select_memories(rows), self._network.head.output.weight.device
        on_device = upload(rows, device)
        self._mask = None if self._mask is None else self._mask[on_device]
        self._leading = None if self._leading is None else self._leading[on_device]
        if self._step is not None and self._step.size.holds(self._size(len(rows))):
            kept = None if memories is None else upload(memories, device)
            self._step.select(on_device, kept, self._cache.length)
        else:
            self._leave_step()
            self._cache.select(rows, memories)

    def join(self, other: "Continuation") -> None:
        """Takes the sequences of another one behind its own. All end at the same place from then on: what is shorter
        has padding on its left.

        Args:
            other: of the same network; of no use afterwards.
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
            assert self._memory_of is not None
            assert other._memory_of is not None
            self._memory_of = torch.cat((self._memory_of, other._memory_of + len(self._memory)))
            states = (self._memory, other._memory)
            self._memory = torch.cat([fit_places(part, 1, sources, sources, skipped=False) for part in states])
        if self._leading is not None and other._leading is not None:
            self._leading = torch.cat((self._leading, other._leading))
        self._cache.join(other._cache, length=length, capacity=capacity, memory_length=sources)

    def _real(self) -> Bool[Tensor, "batch length"]:
        """Where the sequences so far have tokens."""
        if self._mask is not None:
            return self._mask[:, : self._cache.length]
        rows = self._cache.self_attention[0].contents[0]
        return rows.new_ones(len(rows), self._cache.length, dtype=torch.bool)

    def _real_memory(self) -> Bool[Tensor, "memories source"]:
        """Where the memories have positions."""
        assert self._memory is not None
        if self._memory_mask is not None:
            return self._memory_mask
        return self._memory.new_ones(self._memory.shape[:2], dtype=torch.bool)

    def __del__(self) -> None:
        if self._step is not None and not self._network.training:
            self._network.steps.give(self._step)

    def _is_a_step(self, tokens: Tensor) -> bool:
        """Whether these are single tokens behind a prompt, for which there is room, in inference."""
        capacity, room = self._cache.capacity, self._network.decoder.room
        is_next = tokens.shape[1] == 1 and 0 < self._cache.length < min(capacity, room or capacity)
        return self._has_steps and is_next and not (torch.is_grad_enabled() or self._network.training)

    def _size(self, rows: int) -> Size:
        """That the step of so many rows needs."""
        groups = rows if self._memory is None else len(self._memory)
        places = (self._cache.capacity, 0 if self._memory is None else self._memory.shape[1])
        return Size(groups, rows // groups, *(MULTIPLE * -(-number // MULTIPLE) for number in places))

    def _fitting_step(self, rows: int) -> Step:
        """The step that there is, or one of half the size, a quarter, ... if that holds the rows."""
        size = self._size(rows)
        if self._step is not None:
            if (size := self._step.size.smaller(size)) == self._step.size:
                return self._step
            self._leave_step()
        position = self._network.decoder.position
        bias = position.bias(size.places, size.places) if position.has_bias else None
        reads, steps = weights_read(self._network), self._network.steps
        step = steps.take(size, reads) or Step(size, reads, self._cache, self._memory, bias)
        step.load(self._cache, self._mask, self._memory_mask, bias)
        return step

    def _leave_step(self) -> None:
        """The cache has again what the step has, and others may have the step."""
        if self._step is not None:
            self._step.store(self._cache)
            self._network.steps.give(self._step)
            self._step = None

    def _compute(self, step: Step) -> Float[Tensor, "rows vocab"]:
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
        """The memories that the rows need, one for neighbours that look at the same, on the CPU; None: those that are
        there."""
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
        on_device = upload(memories, self._memory.device)
        self._memory = self._memory[on_device]
        self._memory_mask = None if self._memory_mask is None else self._memory_mask[on_device]
        return memories


def count_real(mask: Bool[Tensor, "batch length"]) -> Int[Tensor, "batch length"]:
    """The positions, of which the first real one is 0, wherever the padding stands."""
    return (mask.long().cumsum(1) - 1).clamp(min=0)
