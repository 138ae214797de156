"""Recurrent networks instead of self-attention.

Tested by tests/nn/test_recurrence.py.
"""

from collections.abc import Callable
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from triptych.nn.attention import MultiHeadAttention
from triptych.nn.initialization import initialize_linear
from triptych.nn.kv_cache import LayerCache
from triptych.nn.masks import AttentionMask
from triptych.nn.positions import Angles, MemoryAngles
from triptych.nn.sizes import Sizes

Cell = Literal["tanh", "lstm", "gru"]
CELLS: dict[Cell, Callable[..., nn.RNNBase]] = {"tanh": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
NOTHING = -1e30
"""The logarithm of 0; infinite numbers have no gradient."""
State = Float[Tensor, "batch states 1 state_width"]
"""h of each row, and c of an LSTM."""


class Recurrence(MultiHeadAttention):
    """h_t = cell(h_{t-1}, x_t): each position reads a state of fixed size, in place of the earlier positions.

    tanh: h_t = tanh(W x_t + U h_{t-1} + b), Elman 1990. lstm: Hochreiter and Schmidhuber 1997, with a forget gate (Gers
    et al. 2000) whose bias is 1 at the start (Jozefowicz et al. 2015). gru: Cho et al. 2014, as in ``torch.nn.GRU``.
    Encoders read in both directions, each with half of the width. Cross-attention is that of ``MultiHeadAttention``.

    Args:
        sizes: sizes of the stack.
        layer: index of the block, from 0.
        cross: whether it is cross-attention to a memory.
        cell: tanh, lstm or gru.
        over_past: whether each output h_t is followed by h_t + attention(h_t; h_1 ... h_t), or over all h in an encoder
            (Cheng et al. 2016 let an LSTM attend to its past in a similar way).

    Raises:
        ValueError: the width of an encoder is odd.
    """

    has_all_pairs: ClassVar[bool] = False

    def __init__(
        self, sizes: Sizes, layer: int = 0, cross: bool = False, *, cell: Cell = "lstm", over_past: bool = False
    ) -> None:
        super().__init__(sizes, layer, cross)
        self.is_recurrent, self._cell = not cross, cell
        if cross:
            return
        if sizes.d_model % 2 and not sizes.causal:
            raise ValueError(f"shape.d_model={sizes.d_model}: a recurrence in two directions needs an even width")
        del self.q, self.k, self.v, self.o
        self.past = MultiHeadAttention(sizes, layer) if over_past else None
        self._make(sizes, cell)

    @property
    def choice(self) -> str:
        return self._cell

    def _make(self, sizes: Sizes, cell: Cell) -> None:
        width = sizes.d_model if sizes.causal else sizes.d_model // 2
        self.cell = CELLS[cell](sizes.d_model, width, batch_first=True, bias=sizes.bias, bidirectional=not sizes.causal)
        for name, parameter in self.cell.named_parameters():
            if "bias" in name:
                nn.init.zeros_(parameter)
                if cell == "lstm" and "bias_ih" in name:
                    nn.init.ones_(parameter[width : 2 * width])  # of the forget gate
            else:
                for gate in torch.split(parameter, width):
                    if "weight_hh" in name:
                        nn.init.orthogonal_(gate)
                    else:
                        nn.init.normal_(gate, std=sizes.d_model**-0.5)

    def forward(
        self,
        x: Float[Tensor, "batch queries d_model"],
        memory: Float[Tensor, "memories keys d_model"] | None = None,
        *,
        attention_mask: AttentionMask,
        bias: Float[Tensor, "1 heads _queries _keys"] | None = None,
        angles: Angles | None = None,
        memory_angles: MemoryAngles | None = None,
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "batch queries d_model"]:
        """See ``MultiHeadAttention``; the cache has the state after the last position."""
        if memory is not None:
            return super().forward(
                x, memory, attention_mask=attention_mask, angles=angles, memory_angles=memory_angles, cache=cache
            )
        packing, mask = attention_mask.packing, attention_mask.key_mask
        x = x if packing is None else packing.queries.padded(x)
        length, before = x.shape[1], 0 if cache is None else cache.length
        y, state = self._run(x, None if mask is None else mask[:, -length:], None if cache is None else cache.state)
        if cache is not None:
            cache.keep_state(state, length)
        if self.past is not None:
            pairs = AttentionMask.of(
                num_queries=length,
                num_keys=before + length,
                causal=attention_mask.causal,
                key_mask=mask,
                device=x.device,
            )
            y = y + self.past(y, attention_mask=pairs, cache=None if cache is None else cache.of_outputs)
        return y if packing is None else packing.queries.packed(y)

    def _run(
        self, x: Float[Tensor, "batch length d_model"], mask: Bool[Tensor, "batch length"] | None, state: State | None
    ) -> tuple[Float[Tensor, "batch length d_model"], State]:
        """The outputs, and the state after the last position; positions where the mask is False do not change it."""
        given: Tensor | tuple[Tensor, ...] | None = None
        if state is not None:
            parts = tuple(part[None].contiguous() for part in state[:, :, 0].unbind(1))
            given = parts if len(parts) > 1 else parts[0]
        if mask is None or mask.is_meta or isinstance(mask, FakeTensor):  # lengths are unknown
            y, after = self.cell(x, given)
        else:
            order = _real_first(mask)
            lengths = mask.sum(1).clamp(min=1).cpu()
            packed = pack_padded_sequence(_gather(x, order), lengths, batch_first=True, enforce_sorted=False)
            y, after = self.cell(packed, given)
            y, _ = pad_packed_sequence(y, batch_first=True, total_length=x.shape[1])
            y = _gather(y, order.argsort(dim=1))
        states = after if isinstance(after, tuple) else (after,)
        return y, torch.stack([part[0] for part in states], 1)[:, :, None]


class MinGRU(Recurrence):
    """h_t = (1 - z_t) h_{t-1} + z_t g(W x_t), z_t = sigmoid(V x_t); g(a) = a + 1/2 if a >= 0, else sigmoid(a), so that
    h_t is positive. All positions are computed at once, by a cumulative sum of logarithms in float32. Feng et al. 2024,
    appendix B.

    Args:
        sizes: sizes of the stack.
        layer: index of the block, from 0.
        cross: whether it is cross-attention to a memory.
        over_past: see ``Recurrence``.

    Raises:
        ValueError: the width of an encoder is odd.
    """

    def __init__(self, sizes: Sizes, layer: int = 0, cross: bool = False, *, over_past: bool = False) -> None:
        super().__init__(sizes, layer, cross, over_past=over_past)

    @property
    def choice(self) -> str:
        return "mingru"

    def _make(self, sizes: Sizes, cell: Cell) -> None:
        self.causal = sizes.causal
        self.gate, self.value = (nn.Linear(sizes.d_model, sizes.d_model, bias=sizes.bias) for _ in range(2))
        for linear in (self.gate, self.value):
            initialize_linear(linear)

    def _run(
        self, x: Float[Tensor, "batch length d_model"], mask: Bool[Tensor, "batch length"] | None, state: State | None
    ) -> tuple[Float[Tensor, "batch length d_model"], State]:
        single = torch.promote_types(x.dtype, torch.float32)
        gate, value = self.gate(x).to(single), self.value(x).to(single)
        keep, add = (
            F.logsigmoid(-gate),
            F.logsigmoid(gate) + torch.where(value >= 0, (value.relu() + 0.5).log(), F.logsigmoid(value)),
        )
        if mask is not None:
            keep, add = keep.masked_fill(~mask[..., None], 0.0), add.masked_fill(~mask[..., None], NOTHING)
        if self.causal:
            y = scan(keep, add, None if state is None else state[:, 0].to(single))
        else:
            half = x.shape[-1] // 2
            forth = scan(keep[..., :half], add[..., :half], None)
            back = scan(keep[..., half:].flip(1), add[..., half:].flip(1), None).flip(1)
            y = torch.cat((forth, back), -1)
        return y.to(x.dtype), y[:, None, -1:]


def scan(
    keep: Float[Tensor, "batch length width"],
    add: Float[Tensor, "batch length width"],
    state: Float[Tensor, "batch 1 width"] | None,
) -> Float[Tensor, "batch length width"]:
    """h_t = exp(keep_t) h_{t-1} + exp(add_t), for positive h.

    With s_t = sum_{i <= t} keep_i, h_t = exp(s_t + log(h_0 + sum_{i <= t} exp(add_i - s_i))).

    Args:
        keep: logarithms of the factors.
        add: logarithms of the summands.
        state: h_0; None: 0.
    """
    if state is not None:
        keep, add = (
            torch.cat((torch.zeros_like(state), keep), 1),
            torch.cat((state.clamp(min=torch.finfo(state.dtype).tiny).log(), add), 1),
        )
    total = keep.cumsum(1)
    h = (total + (add - total).logcumsumexp(1)).exp()
    return h if state is None else h[:, 1:]


def _real_first(mask: Bool[Tensor, "batch length"]) -> Int[Tensor, "batch length"]:
    """The positions of each row, those that are not padding first."""
    return (~mask).long().argsort(dim=1, stable=True)


def _gather(x: Float[Tensor, "batch length width"], order: Int[Tensor, "batch length"]) -> Tensor:
    return x.gather(1, order[..., None].expand_as(x))
