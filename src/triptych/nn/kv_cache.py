"""Keys and values kept between decoding steps."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


class LayerCache:
    """Keys and values of one attention sub-layer; the buffer is allocated at first use and then filled in place.

    Args:
        capacity: the most positions it will hold.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.length = 0
        self._buffers: tuple[Tensor, Tensor] | None = None

    def append(
        self, keys: Float[Tensor, "batch kv_heads new width"], values: Float[Tensor, "batch kv_heads new head_dim"]
    ) -> None:
        """Stores the keys and values of new positions behind those there.

        Raises:
            ValueError: more positions than the capacity.
        """
        start, end = self.length, self.length + keys.shape[2]
        if end > self.capacity:
            raise ValueError(f"the cache holds {self.capacity} positions, {end} were asked for")
        if self._buffers is None:
            shape = (*keys.shape[:2], self.capacity)
            self._buffers = keys.new_empty(*shape, keys.shape[3]), values.new_empty(*shape, values.shape[3])
        self._buffers[0][:, :, start:end] = keys
        self._buffers[1][:, :, start:end] = values
        self.length = end

    @property
    def contents(
        self,
    ) -> tuple[Float[Tensor, "batch kv_heads length width"], Float[Tensor, "batch kv_heads length head_dim"]]:
        """All keys and values stored so far."""
        assert self._buffers is not None
        return self._buffers[0][:, :, : self.length], self._buffers[1][:, :, : self.length]

    def hold(
        self,
        keys: Float[Tensor, "batch kv_heads places head_dim"],
        values: Float[Tensor, "batch kv_heads places head_dim"],
        length: int,
    ) -> None:
        """Takes over buffers of which so many positions are filled."""
        self._buffers, self.length = (keys, values), length

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        """Keeps the given rows of the batch, in the given order."""
        if self._buffers is not None:
            keys, values = (buffer.new_empty(len(rows), *buffer.shape[1:]) for buffer in self._buffers)
            for old, new in zip(self._buffers, (keys, values), strict=True):  # no more than what is filled
                torch.index_select(old[:, :, : self.length], 0, rows, out=new[:, :, : self.length])
            self._buffers = keys, values


class Slot(LayerCache):
    """Buffers that are read whole, and take one new position at a place that stands in a tensor.

    Args:
        keys: the buffer of the keys.
        values: that of the values.
        place: of the new position.
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
        """See ``LayerCache``."""
        for buffer, new in zip(self.contents, (keys, values), strict=True):
            buffer.index_copy_(2, self._place, new)


class KeyValueCache:
    """The cache of a whole decoder: self-attention grows with each position, cross-attention is computed once.

    Args:
        num_layers: decoder layers.
        capacity: the most positions that will be decoded, the prompt included.
        memory_length: positions of the encoder that the decoder looks at; 0 without cross-attention.
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
        """The most of them."""
        return self.self_attention[0].capacity

    def advance(self) -> None:
        """One position more was decoded, whose keys and values are elsewhere."""
        for layer in self.self_attention:
            layer.length += 1

    def select(self, rows: Int[Tensor, " rows"], memories: Int[Tensor, " memories"] | None = None) -> None:
        """Keeps the given rows of the batch, in the given order: finished sequences leave, beams are copied.

        Args:
            rows: of self-attention.
            memories: rows of cross-attention, each the memory of as many rows one after the other; None: it stays.
        """
        for layer in self.self_attention:
            layer.select(rows)
        if memories is not None:
            for layer in self.cross_attention:
                layer.select(memories)
