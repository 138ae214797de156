"""Longformer: a window, and a few tokens that see all and are seen by all."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function

from triptych.nn.attention import MultiHeadAttention, attend, attend_blocks, pack_documents
from triptych.nn.kv_cache import LayerCache
from triptych.nn.masks import Local, Visibility, causal_mask, window_mask
from triptych.nn.positions import Angles, MemoryAngles, rotate
from triptych.nn.sizes import Sizes


class Longformer(MultiHeadAttention):
    """Position i sees j if |i - j| < w, or if j is global; a global one sees all, by queries, keys and values that have
    matrices of their own. In a decoder all of this to the left. The cost is O(length (w + n)). Beltagy et al. 2020,
    section 3.1.

    Global are the first tokens of a text: of a question those, of a text that is translated by a decoder by itself
    those, else the first one (see ``Stack.forward``, ``leading``); n at most. Cross-attention is that of
    ``MultiHeadAttention``.

    Args:
        sizes: of the stack.
        layer: the number of the block, from 0.
        cross: whether it looks at a memory.
        windows: w of the first, second, ... block, and so on in turns.
        num_global: n.
        qkv_bias: whether the projections to queries, keys and values have a bias; None: as all.
        dropout: probability of dropping an attention weight.

    Raises:
        ValueError: numbers that are less than 1.
    """

    has_all_pairs: ClassVar[bool] = False

    def __init__(
        self,
        sizes: Sizes,
        layer: int = 0,
        cross: bool = False,
        *,
        windows: Sequence[int] = (64,),
        num_global: int = 1,
        qkv_bias: bool | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(sizes, layer, cross=cross, windows=windows, qkv_bias=qkv_bias, dropout=dropout)
        if num_global < 1:
            raise ValueError(f"block.attention.num_global={num_global}: expected at least 1")
        self.num_global = num_global
        if cross:
            return
        output = self._modules.pop("o")  # the output of a sub-layer is the last of its linear layers
        self.global_q, self.global_k, self.global_v = (
            nn.Linear(sizes.d_model, sizes.num_heads * sizes.head_dim, bias=self.q.bias is not None) for _ in range(3)
        )
        self._modules["o"] = output

    def forward(
        self,
        x: Float[Tensor, "batch queries d_model"],
        memory: Float[Tensor, "memories keys d_model"] | None = None,
        *,
        visibility: Visibility,
        bias: Float[Tensor, "1 heads _queries _keys"] | None = None,
        angles: Angles | None = None,
        memory_angles: MemoryAngles | None = None,
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "batch queries d_model"]:
        y: Tensor
        if memory is not None:
            y = super().forward(
                x, memory, visibility=visibility, angles=angles, memory_angles=memory_angles, cache=cache
            )
            return y
        assert self.window is not None
        matrices = (self.q, self.k, self.global_q, self.global_k, self.v, self.global_v)
        parts = [self._split(matrix(x)) for matrix in matrices]
        if angles is not None:
            parts = [rotate(part, angles) for part in parts[:4]] + parts[4:]
        if (packing := visibility.packing) is not None:
            parts = [packing.queries.padded(part.transpose(1, 2)).transpose(1, 2) for part in parts]
        q, k, global_q, global_k, v, global_v = parts
        if cache is not None:
            cache.append(k, v)
            k, v = cache.contents
        heads = attend_around_global_tokens(
            q,
            k,
            (v, global_v),
            global_q,
            global_k,
            self._find_global(k, visibility),
            visibility.key_mask,
            window=self.window,
            causal=visibility.causal,
            num_global=self.num_global,
            dropout=self.dropout if self.training else 0.0,
        )
        y = self.o((heads if packing is None else pack_documents(packing, heads)).transpose(1, 2).flatten(2))
        return y

    def _find_global(
        self, k: Float[Tensor, "batch heads keys head_dim"], visibility: Visibility
    ) -> Bool[Tensor, "batch keys"]:
        """True at global tokens."""
        real = visibility.key_mask
        if real is None:
            real = torch.ones(k.shape[0], k.shape[2], dtype=torch.bool, device=k.device)
        leading = 1 if visibility.leading is None else visibility.leading.clamp(1, self.num_global)[:, None]
        return real & (real.cumsum(1) <= leading)


def attend_around_global_tokens(
    q: Float[Tensor, "batch heads queries head_dim"],
    k: Float[Tensor, "batch heads keys head_dim"],
    values: tuple[Float[Tensor, "batch heads keys width"], Float[Tensor, "batch heads queries width"]],
    global_q: Float[Tensor, "batch heads queries head_dim"],
    global_k: Float[Tensor, "batch heads queries head_dim"],
    is_global: Bool[Tensor, "batch keys"],
    key_mask: Bool[Tensor, "batch keys"] | None,
    *,
    window: int,
    causal: bool,
    num_global: int,
    dropout: float,
) -> Float[Tensor, "batch heads queries width"]:
    """See ``Longformer``.

    Args:
        q: queries, the last ones of the keys' positions if there are fewer; none of these is global then.
        k: keys.
        values: of those, and of global queries.
        global_q: what they are at global tokens.
        global_k: the keys of global queries.
        is_global: True at global tokens, which stand side by side.
        key_mask: True at real keys; None: all are real.
        window: how far a position sees, itself included.
        causal: whether a query sees only itself and earlier keys.
        num_global: how many there are in a text at most.
        dropout: probability of dropping an attention weight.
    """
    v, global_v = values
    if has_torch_function((q, k, v)):  # see ``attend_explicitly``
        y: Tensor = handle_torch_function(
            attend_around_global_tokens, (q, k, v), q, k, values, global_q, global_k, is_global, key_mask,
            window=window, causal=causal, num_global=num_global, dropout=dropout,
        )  # fmt: skip
        return y
    queries, keys = q.shape[2], k.shape[2]
    index = is_global.long().argmax(1, keepdim=True) + torch.arange(min(num_global, keys), device=q.device)
    index, exists = index.clamp(max=keys - 1), index < keys
    exists = exists & is_global.take_along_dim(index, 1)
    index = index.where(exists, index[:, :1])  # the first one again, so that no other place gets its value
    index_of_heads = index[:, None, :, None]
    local = Local(window, causal, keys, key_mask)
    if queries == keys and local.pays:
        y = attend_in_blocks(q, k, v, local, index, exists, is_global, dropout)
    else:
        sees = window_mask(queries, keys, window, q.device, causal=causal) | is_global[:, None, None]
        if causal:
            sees = sees & causal_mask(queries, keys, q.device)
        if key_mask is not None:
            sees = sees & key_mask[:, None, None]
        y = attend(q, k, v, Visibility(mask=sees), dropout=dropout)
    if queries < keys:
        return y
    seen = torch.arange(keys, device=q.device) <= index[..., None] if causal else exists[..., None].new_ones(1, 1, keys)
    if key_mask is not None:
        seen = seen & key_mask[:, None]
    of_global = global_q.take_along_dim(index_of_heads, 2)
    of_global = attend(of_global, global_k, global_v, Visibility(mask=seen[:, None]), dropout=dropout)
    of_global = of_global.where(exists[:, None, :1, None], y.take_along_dim(index_of_heads, 2))
    return y.scatter(2, index_of_heads.expand_as(of_global), of_global)


def attend_in_blocks(
    q: Float[Tensor, "batch heads length head_dim"],
    k: Float[Tensor, "batch heads length head_dim"],
    v: Float[Tensor, "batch heads length width"],
    local: Local,
    index: Int[Tensor, "batch global"],
    exists: Bool[Tensor, "batch global"],
    is_global: Bool[Tensor, "batch length"],
    dropout: float,
) -> Float[Tensor, "batch heads length width"]:
    """Of all queries of a text: global keys, and besides them those of a window.

    Args:
        q: queries.
        k: keys.
        v: values.
        local: the window.
        index: the places of global keys.
        exists: which of them are there.
        is_global: True at global tokens.
        dropout: probability of dropping an attention weight.
    """
    places = local.queries_of(torch.arange(local.length, device=q.device)[:, None])  # blocks queries 1
    sees = exists[:, None, None].expand(-1, *places.shape[:2], -1)
    if local.causal:
        sees = sees & (index[:, None, None] <= places)
    others = local.mask(q.device) & ~local.keys_of(is_global[..., None])[:, :, None, :, 0]
    mask = torch.cat((sees, others.expand(len(sees), -1, -1, -1)), -1)
    q = local.queries_of(q)
    k, v = (
        torch.cat((x.take_along_dim(index[:, None, :, None], 2)[:, :, None].expand(-1, -1, local.blocks, -1, -1),
                   local.keys_of(x)), -2)
        for x in (k, v)
    )  # fmt: skip
    return attend_blocks(q, k, v, mask, dropout=dropout)[:, :, : local.length]
