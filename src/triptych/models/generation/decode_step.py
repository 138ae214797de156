"""Decoding steps with fixed kernels and tensors, so that a GPU can replay them (CUDA graphs)."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from triptych.nn import KeyValueCache, Stack
from triptych.nn.kv_cache import StaticLayerCache


@dataclass(frozen=True, slots=True)
class DecodeStepSize:
    """The maximum size of a step.

    Attributes:
        groups: number of groups of rows that share a memory, such as the beams of a text; without memories, of rows.
        rows_of_each: number of rows per group.
        places: number of positions per row, including the prompt.
        memory_places: number of positions per memory; 0: no memories.
    """

    groups: int
    rows_of_each: int
    places: int
    memory_places: int

    @property
    def rows(self) -> int:
        """Number of rows in all groups."""
        return self.groups * self.rows_of_each

    @property
    def memories(self) -> int:
        """Number of memories: one per group, if there are any."""
        return self.groups if self.memory_places else 0

    def holds(self, other: "DecodeStepSize") -> bool:
        """Returns whether the other size is the same, with at most this number of groups."""
        return self == replace(other, groups=self.groups) and other.groups <= self.groups

    def smaller(self, other: "DecodeStepSize") -> "DecodeStepSize":
        """Halves the groups while the size still holds another one, so that few sizes serve all numbers of groups."""
        half = replace(self, groups=self.groups // 2)
        return half.smaller(other) if half.holds(other) else self


class DecodeStep:
    """The tensors of a step, with fixed shapes and addresses.

    They hold everything that differs between tokens, including the position.

    Args:
        cache: keys and values of the prompts, which set the types and widths.
        memory: states that cross-attention attends to; None: no memory.
        bias: bias of the scores; None: no bias.

    Attributes:
        size: size of the tensors.
        reads: see ``weights_read``.
        tokens: last token of each row.
        place: position of these tokens.
        mask: True at non-padding tokens of the prompts, and after the prompts.
        bias: bias at all positions.
        memory: a placeholder with the shape of the memories; their keys and values are in the cache.
        memory_mask: True at non-padding positions of the memories.
        cache: keys and values of all positions.
    """

    def __init__(
        self,
        size: DecodeStepSize,
        reads: Hashable,
        cache: KeyValueCache,
        memory: Float[Tensor, "memories source d_model"] | None,
        bias: Float[Tensor, "1 heads places places"] | None,
    ) -> None:
        self.size, self.reads = size, reads
        like, layers = cache.self_attention[0].contents[0], len(cache.self_attention)
        with torch.inference_mode(False):  # the tensors must also be usable outside of inference mode
            self.tokens = torch.zeros(size.rows, 1, dtype=torch.long, device=like.device)
            self.place = self.tokens.new_zeros(1)
            self.mask = torch.ones(size.rows, size.places, dtype=torch.bool, device=like.device)
            self.bias = None if bias is None else bias.new_zeros(bias.shape)
            of_memory = size.memories, size.memory_places
            self.memory = None if memory is None else memory.new_zeros(1).expand(*of_memory, memory.shape[2])
            self.memory_mask = None if memory is None else self.mask.new_ones(of_memory)
            heads, width = like.shape[1], like.shape[3]
            self._kept = like.new_zeros(layers, 2, size.rows, heads, size.places, width)
            self._kept_of_memory = like.new_zeros(layers, 2, size.memories, heads, size.memory_places, width)
        self.cache = KeyValueCache(num_layers=layers, capacity=size.places, memory_length=size.memory_places)
        self.cache.self_attention = [StaticLayerCache(keys, values, self.place) for keys, values in self._kept]
        for layer, (keys, values) in zip(self.cache.cross_attention, self._kept_of_memory, strict=True):
            layer.hold(keys, values, size.memory_places)
        self._rows = self._memories = 0
        self._graph: tuple[torch.cuda.CUDAGraph, Tensor] | None = None

    @property
    def is_captured(self) -> bool:
        """Whether a graph was captured."""
        return self._graph is not None

    def load(
        self,
        cache: KeyValueCache,
        mask: Bool[Tensor, "rows capacity"] | None,
        memory_mask: Bool[Tensor, "memories source"] | None,
        bias: Float[Tensor, "1 heads places places"] | None,
    ) -> None:
        """Loads these keys and values, followed by zeros, since old values might be infinite."""
        kept = torch.stack([torch.stack(layer.contents) for layer in cache.self_attention])
        self._rows = kept.shape[2]
        self._kept.zero_()[:, :, : kept.shape[2], :, : kept.shape[4]] = kept
        self.mask.fill_(True)
        if mask is not None:
            self.mask[: len(mask), : mask.shape[1]] = mask
        if self.bias is not None and bias is not None:
            self.bias.copy_(bias)
        if self.memory_mask is not None:
            kept = torch.stack([torch.stack(layer.contents) for layer in cache.cross_attention])
            self._memories = kept.shape[2]
            self._kept_of_memory.zero_()[:, :, : kept.shape[2], :, : kept.shape[4]] = kept
            self.memory_mask.fill_(True)[: kept.shape[2]] = False
            self.memory_mask[: kept.shape[2], : kept.shape[4]] = True if memory_mask is None else memory_mask

    def store(self, cache: KeyValueCache) -> None:
        """Copies the keys and values to a cache."""
        for layers, kept in (
            (cache.self_attention, self._kept[:, :, : self._rows]),
            (cache.cross_attention, self._kept_of_memory[:, :, : self._memories]),
        ):
            for layer, (keys, values) in zip(layers, kept.clone(), strict=True):
                layer.hold(keys, values, layer.length)

    def select(self, rows: Int[Tensor, " rows"], memories: Int[Tensor, " memories"] | None, length: int) -> None:
        """Keeps the given rows in the given order, up to ``length``, and the given memories (None: all)."""
        self._rows = len(rows)
        filled = self._kept[:, :, :, :, :length]
        filled[:, :, : len(rows)] = filled.index_select(2, rows)
        self.mask[: len(rows)] = self.mask[rows]
        if memories is not None and self.memory_mask is not None:
            self._memories = len(memories)
            self._kept_of_memory[:, :, : len(memories)] = self._kept_of_memory.index_select(2, memories)
            self.memory_mask[: len(memories)] = self.memory_mask[memories]

    def __call__(
        self, compute: Callable[["DecodeStep"], Tensor], tokens: Int[Tensor, "rows 1"], place: int, *, captures: bool
    ) -> Float[Tensor, "rows vocab"]:
        """Computes the logits for these tokens.

        Args:
            compute: computes logits of all rows from the tensors of this step.
            place: position of the tokens.
            captures: whether the first call captures the kernels of ``compute`` and later calls replay them.
        """
        self.tokens[: len(tokens)] = tokens
        self.place.fill_(place)
        if not captures:
            return compute(self)[: len(tokens)]
        graph, logits = self._graph = self._graph or captured(lambda: compute(self))
        graph.replay()
        return logits[: len(tokens)].clone()


def captured(compute: Callable[[], Tensor]) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    """Captures a computation in a graph; returns the graph and its output tensor.

    The computation runs once before the capture, to warm up libraries, and must tolerate that."""
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with _without_cached_casts():
        with torch.cuda.stream(stream):
            compute()
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # others may load data meanwhile
            result = compute()
    return graph, result


@contextmanager
def _without_cached_casts() -> Iterator[None]:
    """Disables autocast's cache of weights, which is freed when autocast ends while a graph still reads it."""
    caches = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(caches)


def weights_read(network: nn.Module) -> Hashable:
    """Returns the addresses of a network's weights and the autocast type, which are fixed in a graph."""
    tensors = [*network.parameters(), *network.buffers()]
    kind = tensors[0].device.type
    cast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    return cast, *(tensor.data_ptr() for tensor in tensors)


class DecodeStepPool:
    """A pool of a network's idle steps; the oldest are dropped first.

    Args:
        captures: whether steps are CUDA graphs, on CUDA GPUs. False: they run from Python on any device, for debugging.
        most: maximum number of steps to keep.

    Attributes:
        can_capture: False after a failed capture, such as of a part that waits for the device.
    """

    def __init__(self, *, captures: bool = True, most: int = 4) -> None:
        self.captures, self.can_capture, self._most = captures, True, most
        self._idle: list[DecodeStep] = []

    def __getstate__(self) -> dict[str, object]:
        """Returns the state without steps, since a copy of the network has none."""
        return {**vars(self), "_idle": []}

    def serve(self, network: nn.Module) -> bool:
        """Returns whether the network supports steps: graphs call no hooks (as of FSDP), and later keys need a mask."""
        return (
            self.can_capture
            and all(stack.has_all_pairs for stack in network.modules() if isinstance(stack, Stack))
            and (not self.captures or all(parameter.is_cuda for parameter in network.parameters()))
            and not any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())
        )

    def take(self, size: DecodeStepSize, reads: Hashable) -> DecodeStep | None:
        """Removes and returns a step of this size for these weights, or None."""
        for i, step in enumerate(self._idle):
            if (step.size, step.reads) == (size, reads):
                return self._idle.pop(i)
        return None

    def give(self, step: DecodeStep) -> None:
        """Returns a step to the pool."""
        self._idle = [*self._idle, step][-self._most :]

    def clear(self) -> None:
        """Frees the memory of the steps."""
        self._idle.clear()
