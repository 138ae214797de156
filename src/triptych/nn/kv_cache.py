"""Keys and values kept between decoding steps."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from triptych.nn.device_copy import copy_to_device


@dataclass(frozen=True, slots=True)
class RowMoves:
    """A reordering of rows that copies only the rows that move.

    Attributes:
        count: number of rows afterwards.
        places: destinations of the copied rows.
        sources: their sources.
    """

    count: int
    places: Int[Tensor, " moves"]
    sources: Int[Tensor, " moves"]

    @classmethod
    def of(cls, rows: Int[Tensor, " rows"], before: int, device: torch.device) -> "RowMoves":
        """Keeps the given rows, in the given order.

        Args:
            rows: on the CPU.
            before: number of rows before.
            device: of the buffers.
        """
        places = torch.arange(len(rows))
        if len(rows) <= before:
            places = places[rows != places]
        return cls(len(rows), copy_to_device(places, device), copy_to_device(rows[places], device))


class LayerCache:
    """Keys and values of one attention sub-layer; the buffer is allocated at first use and then filled in place.

    Args:
        capacity: maximum number of positions.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.length = 0
        self._buffers: tuple[Tensor, Tensor] | None = None
        self._is_state = False
        self._of_outputs: LayerCache | None = None

    def append(
        self, keys: Float[Tensor, "batch kv_heads new width"], values: Float[Tensor, "batch kv_heads new head_dim"]
    ) -> None:
        """Appends the keys and values of new positions.

        Raises:
            ValueError: more positions than the capacity.
        """
        start, end = self.length, self.length + keys.shape[2]
        if end > self.capacity:
            raise ValueError(f"the cache holds {self.capacity} positions, {end} were asked for")
        if self._buffers is None:
            shape = (*keys.shape[:2], self.capacity)
            self._buffers = keys.new_empty(*shape, keys.shape[3]), values.new_empty(*shape, values.shape[3])
        for buffer, new in zip(self._buffers, (keys, values), strict=True):
            buffer.narrow(2, start, new.shape[2]).copy_(new)
        self.length = end

    def keep_state(self, state: Float[Tensor, "batch states 1 width"], num_new: int) -> None:
        """Replaces the state of a recurrence, which stands for all positions so far.

        Args:
            num_new: number of new positions.
        """
        self._buffers, self._is_state = (state, state[..., :0]), True
        self.length += num_new

    @property
    def of_outputs(self) -> "LayerCache":
        """The keys and values of a recurrence's outputs, which it may attend to."""
        self._of_outputs = self._of_outputs or LayerCache(self.capacity)
        return self._of_outputs

    @property
    def state(self) -> Float[Tensor, "batch states 1 width"] | None:
        """The state of a recurrence; None: no position so far."""
        return None if self._buffers is None else self._buffers[0]

    @property
    def is_filled(self) -> bool:
        """Whether anything is stored."""
        return self._buffers is not None

    @property
    def contents(
        self,
    ) -> tuple[Float[Tensor, "batch kv_heads length width"], Float[Tensor, "batch kv_heads length head_dim"]]:
        """All keys and values stored so far."""
        assert self._buffers is not None
        keys, values = self._buffers
        if self._is_state:
            return keys, values
        return keys.narrow(2, 0, self.length), values.narrow(2, 0, self.length)

    def hold(
        self,
        keys: Float[Tensor, "batch kv_heads places head_dim"],
        values: Float[Tensor, "batch kv_heads places head_dim"],
        length: int,
    ) -> None:
        """Uses these buffers, with ``length`` filled positions."""
        self._buffers, self.length = (keys, values), length

    def select(self, moves: "RowMoves") -> None:
        """Keeps some rows of the batch, in the given order."""
        assert self._buffers is not None
        filled = []
        for old in self._buffers:
            new = old if moves.count <= len(old) else old.new_empty(moves.count, *old.shape[1:])
            moved = old[:, :, : self.length].index_select(0, moves.sources)
            new[:, :, : self.length].index_copy_(0, moves.places, moved)
            filled.append(new[: moves.count])
        self._buffers = filled[0], filled[1]
        if self._of_outputs is not None:
            self._of_outputs.select(moves)

    def join(self, other: "LayerCache", *, length: int, capacity: int, skipped: bool) -> None:
        """Appends the rows of another cache. Missing positions are zeros.

        Args:
            length: of both afterwards.
            capacity: afterwards.
            skipped: whether positions are added and removed at the beginning; otherwise at the end.
        """
        both = zip(self.contents, other.contents, strict=True)
        if self._is_state:
            if self._of_outputs is not None:
                self._of_outputs.join(other.of_outputs, length=length, capacity=capacity, skipped=skipped)
            states, rests = map(torch.cat, both)
            self._buffers, self.length, self.capacity = (states, rests), length, capacity
            return
        keys, values = (torch.cat([fit_places(part, 2, length, capacity, skipped) for part in parts]) for parts in both)
        self._buffers, self.length, self.capacity = (keys, values), length, capacity


class StaticLayerCache(LayerCache):
    """Fixed buffers, read as a whole, with one new position at an index in a tensor.

    Args:
        keys: the buffer of the keys.
        values: the buffer of the values.
        place: index of the new position.
    """

    def __init__(
        self,
        keys: Float[Tensor, "batch kv_heads places head_dim"],
        values: Float[Tensor, "batch kv_heads places head_dim"],
        place: Int[Tensor, "1"],
    ) -> None:
        super().__init__(keys.shape[2])
        self.hold(keys, values, keys.shape[2])
        self._place = place

    def append(
        self, keys: Float[Tensor, "batch kv_heads 1 head_dim"], values: Float[Tensor, "batch kv_heads 1 head_dim"]
    ) -> None:
        for buffer, new in zip(self.contents, (keys, values), strict=True):
            buffer.index_copy_(2, self._place, new)


class KeyValueCache:
    """The cache of a whole decoder: self-attention grows with each position, cross-attention is computed once.

    Args:
        num_layers: decoder layers.
        capacity: maximum number of positions, including the prompt.
        memory_length: number of memory positions; 0 without cross-attention.
    """

    def __init__(self, *, num_layers: int, capacity: int, memory_length: int = 0) -> None:
        self.self_attention = [LayerCache(capacity) for _ in range(num_layers)]
        self.cross_attention = [LayerCache(memory_length) for _ in range(num_layers)]

    @property
    def length(self) -> int:
        """Positions decoded so far."""
        return self.self_attention[0].length

    @property
    def capacity(self) -> int:
        """Maximum number of positions."""
        return self.self_attention[0].capacity

    def advance(self) -> None:
        """Counts a position whose keys and values are stored elsewhere."""
        for layer in self.self_attention:
            layer.length += 1

    def select(self, rows: Int[Tensor, " rows"], memories: Int[Tensor, " memories"] | None = None) -> None:
        """Keeps the given rows of the batch, in the given order: finished sequences leave, beams are copied.

        Args:
            rows: of self-attention, always on the CPU.
            memories: rows of cross-attention, each shared by the same number of consecutive rows; None: all.
        """
        for layers, kept in ((self.self_attention, rows), (self.cross_attention, memories)):
            if kept is not None and layers[0].is_filled:
                keys, _ = layers[0].contents
                moves = RowMoves.of(kept, len(keys), keys.device)
                for layer in layers:
                    layer.select(moves)

    def join(self, other: "KeyValueCache", *, length: int, capacity: int, memory_length: int) -> None:
        """Appends the rows of another cache. Both end at the same position.

        Args:
            length: positions of both afterwards; excess positions are dropped from the start.
            capacity: afterwards.
            memory_length: positions of the larger memory; 0: no memory.
        """
        for own, more in zip(self.self_attention, other.self_attention, strict=True):
            own.join(more, length=length, capacity=capacity, skipped=True)
        for own, more in zip(self.cross_attention, other.cross_attention, strict=True) if memory_length else ():
            own.join(more, length=memory_length, capacity=memory_length, skipped=False)


def fit_places(x: Tensor, dim: int, length: int, capacity: int, skipped: bool) -> Tensor:
    """Pads with zeros, or cuts, to ``capacity`` places, of which the first ``length`` are used.

    Args:
        dim: of the places.
        skipped: whether places are added and removed at the beginning; otherwise at the end.
    """
    more = length - x.shape[dim]
    before, after = (more, capacity - length) if skipped else (0, more + capacity - length)
    return F.pad(x, [0, 0] * (x.dim() - 1 - dim) + [before, after])
