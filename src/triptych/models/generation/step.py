"""One more token of each row by a program that never changes, so that a GPU can repeat it by itself (CUDA graphs)."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from triptych.nn import KeyValueCache, Stack
from triptych.nn.kv_cache import Slot


@dataclass(frozen=True, slots=True)
class Size:
    """What a step is made for, at most.

    Attributes:
        groups: of rows that share a memory, such as the beams of a text; without memories, single rows.
        rows_of_each: rows of a group.
        places: of each row, the prompt included.
        memory_places: of each memory; 0: there are none.
    """

    groups: int
    rows_of_each: int
    places: int
    memory_places: int

    @property
    def rows(self) -> int:
        """Of all groups."""
        return self.groups * self.rows_of_each

    @property
    def memories(self) -> int:
        """One for each group, if there are any."""
        return self.groups if self.memory_places else 0

    def holds(self, other: "Size") -> bool:
        """Whether it is like another one, of as many groups or more."""
        return self == replace(other, groups=self.groups) and other.groups <= self.groups

    def smaller(self, other: "Size") -> "Size":
        """Itself, halved as often as it still holds another one: few sizes serve all numbers of groups."""
        half = replace(self, groups=self.groups // 2)
        return half.smaller(other) if half.holds(other) else self


class Step:
    """The tensors of a step, which keep their shapes and their memory: what differs from one token to the next is in
    them, the place of the token too.

    Args:
        cache: keys and values of the prompts, whose like will be kept.
        memory: what cross-attention looks at; None: nothing.
        bias: of the scores; None: there is none.

    Attributes:
        size: of the tensors.
        reads: see ``weights_read``.
        tokens: the last one of each row.
        place: where they stand.
        mask: True at real tokens of the prompts, and behind the prompts.
        bias: of all places.
        memory: as large as the memories, whose keys and values are in the cache.
        memory_mask: True at real positions of the memories.
        cache: keys and values of all places.
    """

    def __init__(
        self,
        size: Size,
        reads: Hashable,
        cache: KeyValueCache,
        memory: Float[Tensor, "memories source d_model"] | None,
        bias: Float[Tensor, "1 heads places places"] | None,
    ) -> None:
        self.size, self.reads = size, reads
        like, layers = cache.self_attention[0].contents[0], len(cache.self_attention)
        with torch.inference_mode(False):  # what is filled in inference mode must serve outside of it, too
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
        self.cache.self_attention = [Slot(keys, values, self.place) for keys, values in self._kept]
        for layer, (keys, values) in zip(self.cache.cross_attention, self._kept_of_memory, strict=True):
            layer.hold(keys, values, size.memory_places)
        self._rows = self._memories = 0
        self._graph: tuple[torch.cuda.CUDAGraph, Tensor] | None = None

    @property
    def is_captured(self) -> bool:
        """Whether a graph was made of it."""
        return self._graph is not None

    def load(
        self,
        cache: KeyValueCache,
        mask: Bool[Tensor, "rows capacity"] | None,
        memory_mask: Bool[Tensor, "memories source"] | None,
        bias: Float[Tensor, "1 heads places places"] | None,
    ) -> None:
        """Begins with these keys and values, and with zeros behind them: nothing that was there may be infinite."""
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
        """Gives a cache what it has."""
        for layers, kept in (
            (cache.self_attention, self._kept[:, :, : self._rows]),
            (cache.cross_attention, self._kept_of_memory[:, :, : self._memories]),
        ):
            for layer, (keys, values) in zip(layers, kept.clone(), strict=True):
                layer.hold(keys, values, layer.length)

    def select(self, rows: Int[Tensor, " rows"], memories: Int[Tensor, " memories"] | None, length: int) -> None:
        """Keeps the given rows, in the given order, of which so many places are filled; and the given memories, unless
        all stay."""
        self._rows = len(rows)
        filled = self._kept[:, :, :, :, :length]
        filled[:, :, : len(rows)] = filled.index_select(2, rows)
        self.mask[: len(rows)] = self.mask[rows]
        if memories is not None and self.memory_mask is not None:
            self._memories = len(memories)
            self._kept_of_memory[:, :, : len(memories)] = self._kept_of_memory.index_select(2, memories)
            self.memory_mask[: len(memories)] = self.memory_mask[memories]

    def __call__(
        self, compute: Callable[["Step"], Tensor], tokens: Int[Tensor, "rows 1"], place: int, *, captures: bool
    ) -> Float[Tensor, "rows vocab"]:
        """What is computed of these tokens.

        Args:
            compute: logits of all rows, from the tensors of this step alone.
            place: where the tokens stand.
            captures: whether the first call captures the kernels of ``compute``, which later ones repeat.
        """
        self.tokens[: len(tokens)] = tokens
        self.place.fill_(place)
        if not captures:
            return compute(self)[: len(tokens)]
        graph, logits = self._graph = self._graph or captured(lambda: compute(self))
        graph.replay()
        return logits[: len(tokens)].clone()


def captured(compute: Callable[[], Tensor]) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    """A graph of the kernels of some computation, and where its result will be. What is computed once before, as
    libraries that prepare themselves need it, must do no harm."""
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
    """Autocast forgets the copies of the weights that it keeps when it ends, and a graph would go on reading them."""
    caches = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(caches)


def weights_read(network: nn.Module) -> Hashable:
    """Where the weights of a network lie, and how autocast reads them: what a graph reads for good."""
    tensors = [*network.parameters(), *network.buffers()]
    kind = tensors[0].device.type
    cast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    return cast, *(tensor.data_ptr() for tensor in tensors)


class Steps:
    """The steps of a network that no text needs at present; the oldest go first.

    Args:
        captures: whether they are CUDA graphs, on CUDA GPUs. False: each is computed from Python, on every device, to
            look into it.
        most: how many are kept.

    Attributes:
        can_capture: False once a capture has failed, as it does where a part waits for the device.
    """

    def __init__(self, *, captures: bool = True, most: int = 4) -> None:
        self.captures, self.can_capture, self._most = captures, True, most
        self._idle: list[Step] = []

    def __getstate__(self) -> dict[str, object]:
        """A copy of the network has no steps yet."""
        return {**vars(self), "_idle": []}

    def serve(self, network: nn.Module) -> bool:
        """Whether the network can be computed by steps: graphs call no hooks (FSDP is made of them), and keys that are
        there already must be masked."""
        return (
            self.can_capture
            and all(stack.has_all_pairs for stack in network.modules() if isinstance(stack, Stack))
            and (not self.captures or all(parameter.is_cuda for parameter in network.parameters()))
            and not any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())
        )

    def take(self, size: Size, reads: Hashable) -> Step | None:
        """One of this size that reads these weights; the caller alone has it then. None: there is none."""
        for i, step in enumerate(self._idle):
            if (step.size, step.reads) == (size, reads):
                return self._idle.pop(i)
        return None

    def give(self, step: Step) -> None:
        """It is needed no more at present."""
        self._idle = [*self._idle, step][-self._most :]

    def clear(self) -> None:
        """Frees their memory."""
        self._idle.clear()
