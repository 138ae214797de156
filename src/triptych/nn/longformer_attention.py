"""Longformer: windowed attention with a few global tokens.

Tested by tests/nn/test_efficient_attention.py.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from triptych.nn.attention import MultiHeadAttention, attend, attend_blocks, interceptable, pack_documents
from triptych.nn.kv_cache import LayerCache
from triptych.nn.masks import AttentionMask, causal_mask
from triptych.nn.positions import Angles, MemoryAngles, rotate
from triptych.nn.sizes import Sizes
from triptych.nn.sliding_window import SlidingWindowBlocks, window_mask


class LongformerAttention(MultiHeadAttention):
    """Position i attends to j if |i - j| < w, or if j is global. A global position attends to all, with separate
    matrices for queries, keys and values. In a decoder, only earlier positions are visible. The cost is O(length (w +
    n)). Beltagy et al. 2020, section 3.1.

    Global tokens are the first of a text, at most n: a question, the source text in a translation by a decoder-only
    model, otherwise the first token (see ``Stack.forward``, ``num_global_tokens``). Cross-attention is that of
    ``MultiHeadAttention``.

    Args:
        sizes: sizes of the stack.
        layer: index of the block, from 0.
        cross: whether it is cross-attention to a memory.
        sliding_windows: w of the first, second, ... block, repeated cyclically.
        num_global_tokens: n.
        qkv_bias: whether the projections to queries, keys and values have a bias; None: ``sizes.bias``.
        dropout: probability of dropping an attention weight.

    Raises:
        ValueError: a window or n is below 1.
    """

    has_all_pairs: ClassVar[bool] = False

    def __init__(
        self,
        sizes: Sizes,
        layer: int = 0,
        cross: bool = False,
        *,
        sliding_windows: Sequence[int] = (64,),
        num_global_tokens: int = 1,
        qkv_bias: bool | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(sizes, layer, cross=cross, sliding_windows=sliding_windows, qkv_bias=qkv_bias, dropout=dropout)
        if num_global_tokens < 1:
            raise ValueError(f"block.attention.num_global_tokens={num_global_tokens}: expected at least 1")
        self.num_global_tokens = num_global_tokens
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
        attention_mask: AttentionMask,
        bias: Float[Tensor, "1 heads _queries _keys"] | None = None,
        angles: Angles | None = None,
        memory_angles: MemoryAngles | None = None,
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "batch queries d_model"]:
        if memory is not None:
            return super().forward(
                x, memory, attention_mask=attention_mask, angles=angles, memory_angles=memory_angles, cache=cache
            )
        assert self.window is not None
        matrices = (self.q, self.k, self.global_q, self.global_k, self.v, self.global_v)
        parts = [self._split(matrix(x)) for matrix in matrices]
        if angles is not None:
            parts = [rotate(part, angles) for part in parts[:4]] + parts[4:]
        if (packing := attention_mask.packing) is not None:
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
            self._find_global(k, attention_mask),
            attention_mask.key_mask,
            window=self.window,
            causal=attention_mask.causal,
            num_global_tokens=self.num_global_tokens,
            dropout=self.dropout if self.training else 0.0,
        )
        y: Tensor = self.o((heads if packing is None else pack_documents(packing, heads)).transpose(1, 2).flatten(2))
        return y

    def _find_global(
        self, k: Float[Tensor, "batch heads keys head_dim"], attention_mask: AttentionMask
    ) -> Bool[Tensor, "batch keys"]:
        """True at global tokens."""
        real, count = attention_mask.key_mask, attention_mask.num_global_tokens
        if real is None:
            real = torch.ones(k.shape[0], k.shape[2], dtype=torch.bool, device=k.device)
        most = 1 if count is None else count.clamp(1, self.num_global_tokens)[:, None]
        return real & (real.cumsum(1) <= most)


@interceptable
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
    num_global_tokens: int,
    dropout: float,
) -> Float[Tensor, "batch heads queries width"]:
    """See ``LongformerAttention``.

    Args:
        q: queries, at the last positions of the keys if there are fewer; then none is global.
        k: keys.
        values: values of these keys, and values for global queries.
        global_q: queries of global tokens.
        global_k: keys for global queries.
        is_global: True at global tokens, which are contiguous.
        key_mask: True at non-padding keys; None: no padding.
        window: distance a position attends to, itself included.
        causal: whether a query attends only to itself and earlier keys.
        num_global_tokens: maximum number per text.
        dropout: probability of dropping an attention weight.
    """
    v, global_v = values
    queries, keys = q.shape[2], k.shape[2]
    index = is_global.long().argmax(1, keepdim=True) + torch.arange(min(num_global_tokens, keys), device=q.device)
    index, exists = index.clamp(max=keys - 1), index < keys
    exists = exists & is_global.take_along_dim(index, 1)
    index = index.where(exists, index[:, :1])  # the first one again, so that no other position gets its value
    index_of_heads = index[:, None, :, None]
    local = SlidingWindowBlocks(window, causal, keys, key_mask)
    if queries == keys and local.is_worthwhile:
        y = attend_in_blocks(q, k, v, local, index, exists, is_global, dropout)
    else:
        visible = window_mask(queries, keys, window, q.device, causal=causal) | is_global[:, None, None]
        if causal:
            visible = visible & causal_mask(queries, keys, q.device)
        if key_mask is not None:
            visible = visible & key_mask[:, None, None]
        y = attend(q, k, v, AttentionMask(mask=visible), dropout=dropout)
    if queries < keys:
        return y
    seen = torch.arange(keys, device=q.device) <= index[..., None] if causal else exists[..., None].new_ones(1, 1, keys)
    if key_mask is not None:
        seen = seen & key_mask[:, None]
    of_global = global_q.take_along_dim(index_of_heads, 2)
    of_global = attend(of_global, global_k, global_v, AttentionMask(mask=seen[:, None]), dropout=dropout)
    of_global = of_global.where(exists[:, None, :1, None], y.take_along_dim(index_of_heads, 2))
    return y.scatter(2, index_of_heads.expand_as(of_global), of_global)


def attend_in_blocks(
    q: Float[Tensor, "batch heads length head_dim"],
    k: Float[Tensor, "batch heads length head_dim"],
    v: Float[Tensor, "batch heads length width"],
    local: SlidingWindowBlocks,
    index: Int[Tensor, "batch global"],
    exists: Bool[Tensor, "batch global"],
    is_global: Bool[Tensor, "batch length"],
    dropout: float,
) -> Float[Tensor, "batch heads length width"]:
    """Computes all queries of a text over global keys and the keys of a window.

    Args:
        q: queries.
        k: keys.
        v: values.
        local: the window.
        index: positions of global keys.
        exists: which of them exist.
        is_global: True at global tokens.
        dropout: probability of dropping an attention weight.
    """
    places = local.queries_of(torch.arange(local.length, device=q.device)[:, None])  # blocks queries 1
    visible = exists[:, None, None].expand(-1, *places.shape[:2], -1)
    if local.causal:
        visible = visible & (index[:, None, None] <= places)
    others = local.mask(q.device) & ~local.keys_of(is_global[..., None])[:, :, None, :, 0]
    mask = torch.cat((visible, others.expand(len(visible), -1, -1, -1)), -1)
    q = local.queries_of(q)
    k, v = (
        torch.cat((x.take_along_dim(index[:, None, :, None], 2)[:, :, None].expand(-1, -1, local.blocks, -1, -1),
                   local.keys_of(x)), -2)
        for x in (k, v)
    )  # fmt: skip
    return attend_blocks(q, k, v, mask, dropout=dropout)[:, :, : local.length]
