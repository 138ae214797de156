"""Scaled dot-product and multi-head attention."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, TypeVar, cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from torch.overrides import wrap_torch_function

from triptych.nn.kv_cache import LayerCache
from triptych.nn.masks import AttentionMask, PackedMask, causal_mask
from triptych.nn.positions import Angles, MemoryAngles, rotate
from triptych.nn.sizes import Sizes

TELLS_GROUPS = "enable_gqa" in inspect.signature(varlen_attn).parameters
"""Whether the kernel for packed rows has an argument for fewer key heads than query heads: from torch 2.12 on."""

LONGEST_EAGER = 2048
"""Largest number of keys for which the matrix of scores may be held in memory."""

NormWidthName = Literal["head", "all"]
Kernel = TypeVar("Kernel", bound=Callable[..., Tensor])


def interceptable(kernel: Kernel) -> Kernel:
    """Lets a recorder of attention weights (``triptych.report.attention_maps``) intercept a function of queries, keys
    and values, as it does torch's kernel."""
    return cast(Kernel, wrap_torch_function(lambda q, k, v, *_, **__: (q, k, v))(kernel))


def attend(
    q: Float[Tensor, "batch heads queries head_dim"],
    k: Float[Tensor, "batch kv_heads keys head_dim"],
    v: Float[Tensor, "batch kv_heads keys width"],
    attention_mask: AttentionMask,
    bias: Float[Tensor, "_rows heads _queries _keys"] | None = None,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "batch heads queries width"]:
    """softmax(cap(scale q k^T) + bias + mask) v; the only function that selects a kernel.

    Documents in a packed row are independent: computed by a kernel for packed rows, or as padded rows. Windows are
    computed in blocks, or with a bias by a mask of all pairs. A cap, which no torch kernel supports, needs the matrix
    of all scores.

    A query without visible keys gets zeros. With fewer key heads than query heads, query head i uses key head
    floor(i kv_heads / heads) (grouped-query attention, Ainslie et al. 2023). Vaswani et al. 2017, section 3.2.1.

    Args:
        q: queries.
        k: keys.
        v: values.
        attention_mask: which keys each query may attend to.
        bias: added to the scaled scores, such as a relative position bias; in a packed row, "queries" and "keys"
            are those of the longest document.
        scale: factor of the scores; None: 1 / sqrt(head_dim).
        softcap: c in cap(s) = c tanh(s / c), which bounds the scores; None: cap(s) = s.
        dropout: probability of dropping an attention weight; 0 outside of training.
    """
    if (packing := attention_mask.packing) is not None:
        is_plain = bias is None and softcap is None and not dropout
        if is_plain and not packing.has_prefix and reads_packed_rows(q):
            return attend_packed(q, k, v, packing, scale)
        of_rows = replace(attention_mask, packing=None)
        q, k, v = pad_documents(packing, q, k, v)
        y = attend(q, k, v, of_rows, bias, scale=scale, softcap=softcap, dropout=dropout)
        return pack_documents(packing, y)
    if (local := attention_mask.local) is not None and bias is None:
        q, k, v, pairs = local.queries_of(q), local.keys_of(k), local.keys_of(v), local.mask(q.device)
        y = attend_blocks(q, k, v, pairs, scale=scale, softcap=softcap, dropout=dropout)
        return y[:, :, : local.length]
    attention_mask = attention_mask.dense(q.device).for_kernel(q.device)
    mask, causal = attention_mask.mask, attention_mask.causal
    is_slow = q.dtype == torch.bfloat16 and q.device.type == "cpu" and q.requires_grad
    if softcap is not None or (is_slow and k.shape[2] <= LONGEST_EAGER and not attention_mask.is_in_bias):
        if causal:
            mask = causal_mask(q.shape[2], k.shape[2], q.device)
        y = attend_eager(q, k, v, mask, bias, scale=scale, softcap=softcap, dropout=dropout)
    else:
        if bias is not None:
            mask, causal = bias if attention_mask.is_in_bias else attention_mask.join_bias(bias, q.dtype), False
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal, scale=scale,
            enable_gqa=q.shape[1] != k.shape[1],
        )  # fmt: skip
    return y if attention_mask.blind is None else y.masked_fill(attention_mask.blind, 0.0)


def pad_documents(
    packing: PackedMask,
    q: Float[Tensor, "1 heads queries query_width"],
    k: Float[Tensor, "1 kv_heads keys width"],
    v: Float[Tensor, "1 kv_heads keys head_dim"],
) -> tuple[
    Float[Tensor, "documents heads longest_queries query_width"],
    Float[Tensor, "documents kv_heads longest_keys width"],
    Float[Tensor, "documents kv_heads longest_keys head_dim"],
]:
    """Returns a padded row for each document of a packed row."""
    q = packing.queries.padded(q.transpose(1, 2)).transpose(1, 2)
    k, v = (packing.keys.padded(x.transpose(1, 2)).transpose(1, 2) for x in (k, v))
    return q, k, v


def pack_documents(
    packing: PackedMask, y: Float[Tensor, "documents heads longest_queries head_dim"]
) -> Float[Tensor, "1 heads queries head_dim"]:
    """Packs the outputs of such rows into one row again."""
    return packing.queries.packed(y.transpose(1, 2)).transpose(1, 2)


def attend_blocks(
    q: Float[Tensor, "batch heads blocks queries head_dim"],
    k: Float[Tensor, "batch kv_heads blocks keys head_dim"],
    v: Float[Tensor, "batch kv_heads blocks keys width"],
    mask: Bool[Tensor, "#batch blocks queries keys"],
    *,
    scale: float | None = None,
    softcap: float | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "batch heads blocks*queries width"]:
    """Computes ``attend`` within each block separately and concatenates the outputs.

    Args:
        q: queries.
        k: keys.
        v: values.
        mask: True where a query may attend to a key.
        scale: factor of the scores; None: 1 / sqrt(head_dim).
        softcap: see ``attend``.
        dropout: probability of dropping an attention weight.
    """
    batch, blocks = q.shape[0], q.shape[2]
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))
    mask = mask.expand(batch, -1, -1, -1).flatten(0, 1)[:, None]
    k, v, visible = k.contiguous(), v.contiguous(), AttentionMask(mask=mask)
    y = attend(q, k, v, visible, scale=scale, softcap=softcap, dropout=dropout)
    return y.reshape(-1, blocks, *y.shape[1:]).transpose(1, 2).flatten(2, 3)


def reads_packed_rows(q: Float[Tensor, "1 heads queries head_dim"]) -> bool:
    """Returns whether the kernel of ``attend_packed`` supports these queries.

    It requires an NVIDIA GPU from compute capability 8.0 on, 16 bits, and a head width that is a multiple of 8 and at
    most 256; from 193 to 224 some of these GPUs have no backward pass.

    Args:
        q: queries.
    """
    width = q.shape[-1]
    return (
        q.is_cuda
        and torch.version.hip is None
        and q.dtype.itemsize == 2
        and width % 8 == 0
        and (width <= 192 or 224 < width <= 256)
        and has_kernel_for_packed_rows(q.device)
    )


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator] # it would be a graph break for torch.compile
def has_kernel_for_packed_rows(device: torch.device) -> bool:
    """Returns whether the device is an NVIDIA GPU of at least compute capability 8.0."""
    return torch.cuda.get_device_capability(device) >= (8, 0)


def attend_packed(
    q: Float[Tensor, "1 heads queries head_dim"],
    k: Float[Tensor, "1 kv_heads keys head_dim"],
    v: Float[Tensor, "1 kv_heads keys head_dim"],
    packing: PackedMask,
    scale: float | None,
) -> Float[Tensor, "1 heads queries head_dim"]:
    """Computes ``attend`` without bias and dropout by FlashAttention-2 (Dao 2024) for packed rows.

    Requires ``reads_packed_rows``.

    Args:
        q: queries of all documents.
        k: keys.
        v: values.
        packing: positions of the documents.
        scale: see ``attend``.
    """
    reach = -1 if packing.window is None else packing.window - 1
    groups: dict[str, Any] = {"enable_gqa": q.shape[1] != k.shape[1]} if TELLS_GROUPS else {}
    y = varlen_attn(
        q[0].transpose(0, 1),
        k[0].transpose(0, 1),
        v[0].transpose(0, 1),
        packing.queries.starts,
        packing.keys.starts,
        packing.queries.longest,
        packing.keys.longest,
        scale=scale,
        window_size=(reach, 0 if packing.causal else reach),
        **groups,
    )
    assert isinstance(y, Tensor)
    return y.transpose(0, 1)[None]


@interceptable
def attend_eager(
    q: Float[Tensor, "batch heads queries head_dim"],
    k: Float[Tensor, "batch kv_heads keys head_dim"],
    v: Float[Tensor, "batch kv_heads keys width"],
    mask: Bool[Tensor, "*rows #queries keys"] | None,
    bias: Float[Tensor, "1 heads queries keys"] | None,
    *,
    scale: float | None,
    softcap: float | None,
    dropout: float,
) -> Float[Tensor, "batch heads queries width"]:
    """Computes ``attend`` from the matrix of scores.

    Used with a cap, and for training in bfloat16 on CPUs, where torch's kernel takes 2 to 8 times as long forward and
    backward. There scores are rounded to bfloat16; docs/train.md gives the error and the cost of float32 scores.

    Args:
        q: queries.
        k: keys.
        v: values.
        mask: True where a query may attend to a key; None: everywhere.
        bias: added to the scaled scores.
        scale: factor of the scores; None: 1 / sqrt(head_dim).
        softcap: see ``attend``.
        dropout: probability of dropping an attention weight.
    """
    if q.shape[1] != k.shape[1]:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    scores = (q * (q.shape[-1] ** -0.5 if scale is None else scale)) @ k.mT
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    heads = F.dropout(scores.softmax(-1), dropout) @ v
    return heads if mask is None else heads * mask.any(-1, keepdim=True)


class MultiHeadAttention(nn.Module):
    """concat(head_1, ..., head_h) W_o with head_i = attend(x W_q, m W_k, m W_v); m is x itself or a memory.

    Vaswani et al. 2017, section 3.2.2.

    Args:
        sizes: sizes of the stack.
        layer: index of the block, from 0.
        cross: whether it is cross-attention to a memory.
        num_kv_heads: number of key and value heads; None: the number of query heads.
        scale: factor of the scores; None: 1 / sqrt(head_dim).
        softcap: c: bounds scores to c tanh(score / c) (Gemma 2, Riviere et al. 2024, section 2); attention then
            needs memory for all pairs. None: no bound.
        qkv_bias: whether the projections to queries, keys and values have a bias; None: ``sizes.bias``.
        k_bias: whether the key projection has a bias if the others have one. It adds a constant to all scores of a
            query, which softmax cancels (Whisper has none, Radford et al. 2022).
        qk_norm: builds a norm of the queries x W_q and one of the keys m W_k, applied before rotary positions to keep
            scores bounded (Dehghani et al. 2023, section 2). None: no norms.
        qk_norm_over: whether to normalize each head (Qwen 3), or all heads of a layer together (OLMo 2).
        sliding_windows: window of self-attention in the first, second, ... block, repeated cyclically. It includes
            the position itself. None: no window.
        dropout: probability of dropping an attention weight.

    Attributes:
        window: window of this block; None: no window.
        max_positions: maximum number of positions of a text; None: no limit.

    Raises:
        ValueError: the key heads do not divide the query heads, a scale or cap is not positive, a window is below 1, or
            ``qk_norm_over`` is set without ``qk_norm``.
    """

    has_all_pairs: ClassVar[bool] = True
    """Whether each pair of positions has a score, which a mask or a bias may change."""
    is_recurrent: bool = False
    """Whether each position reads a state of fixed size in place of the earlier positions."""
    max_positions: int | None = None

    def __init__(
        self,
        sizes: Sizes,
        layer: int = 0,
        cross: bool = False,
        *,
        num_kv_heads: int | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        qkv_bias: bool | None = None,
        k_bias: bool = True,
        qk_norm: Callable[[int], nn.Module] | None = None,
        qk_norm_over: NormWidthName = "head",
        sliding_windows: Sequence[int | None] | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        num_heads, qkv_bias = sizes.num_heads, sizes.bias if qkv_bias is None else qkv_bias
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        if num_kv_heads < 1 or num_heads % num_kv_heads:
            nearest = nearest_divisor(num_heads, num_kv_heads)
            raise ValueError(
                f"block.attention.num_kv_heads={num_kv_heads} does not divide shape.num_heads={num_heads}; "
                f"nearest that does: {nearest}"
            )
        for name, value in (("scale", scale), ("softcap", softcap)):
            if value is not None and value <= 0:
                raise ValueError(f"block.attention.{name}={value}: expected more than 0, or null")
        sliding_windows = (None,) if sliding_windows is None else sliding_windows
        if not sliding_windows or any(window is not None and window < 1 for window in sliding_windows):
            shown = str(list(sliding_windows)).replace("None", "null")
            raise ValueError(f"block.attention.sliding_windows={shown}: expected numbers of at least 1")
        if qk_norm is None and qk_norm_over != "head":
            raise ValueError(
                f"block.attention.qk_norm_over={qk_norm_over}: there is no norm; expected block/attention=qk_norm"
            )
        self.is_cross = cross
        self.window = None if cross else sliding_windows[layer % len(sliding_windows)]
        self.head_dim, self.scale, self.softcap, self.dropout = sizes.head_dim, scale, softcap, dropout
        self.q = nn.Linear(sizes.d_model, num_heads * sizes.head_dim, bias=qkv_bias)
        self.k = nn.Linear(sizes.d_model, num_kv_heads * sizes.head_dim, bias=qkv_bias and k_bias)
        self.v = nn.Linear(sizes.d_model, num_kv_heads * sizes.head_dim, bias=qkv_bias)
        self.o = nn.Linear(num_heads * sizes.head_dim, sizes.d_model, bias=sizes.bias)
        self.normalises_heads = qk_norm_over == "head"
        self.q_norm, self.k_norm = (
            nn.Identity() if qk_norm is None else qk_norm((1 if self.normalises_heads else heads) * sizes.head_dim)
            for heads in (num_heads, num_kv_heads)
        )

    def forward(
        self,
        x: Float[Tensor, "batch queries d_model"],
        memory: Float[Tensor, "memories keys d_model"] | None = None,
        *,
        attention_mask: AttentionMask,
        bias: Float[Tensor, "_rows heads _queries _keys"] | None = None,
        angles: Angles | None = None,
        memory_angles: MemoryAngles | None = None,
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "batch queries d_model"]:
        """Computes self-attention, or cross-attention if there is a memory.

        Args:
            x: states that queries are computed from.
            memory: states that keys and values of cross-attention are computed from (the encoder's output); one row
                per row of ``x``, or per group of consecutive rows (beams of one text).
            attention_mask: which keys each query may attend to.
            bias: see ``attend``.
            angles: rotary angles of the queries, and of the keys if there is no memory.
            memory_angles: rotary angles of the memory's keys.
            cache: keys and values of earlier positions; the new ones are added (a memory's are added once).
        """
        batch, queries, _ = x.shape
        if memory is not None:  # rows that share a memory row become more queries of it
            x = x.reshape(len(memory), -1, x.shape[-1])
        q, *own = self._project(x) if memory is None else (self.q(x),)
        q = self._normed(q, self.q_norm)
        if angles is not None:
            q = rotate(q, angles if q.shape[2] == queries else _of_sharers(angles, len(q), q.shape[2]))
        if memory is not None and cache is not None and cache.length:
            k, v = cache.contents
        else:
            k, v = own if memory is None else project(memory, self.k, self.v)
            k, v = self._keys(k, q, angles if memory is None else memory_angles), self._split(v)
            if cache is not None:
                cache.append(k, v)
                k, v = cache.contents
        y: Tensor = self.o(self._attend(q, k, v, attention_mask, bias).transpose(1, 2).flatten(2))
        return y if memory is None else y.view(batch, queries, -1)

    @property
    def choice(self) -> str:
        """The choice of block/attention."""
        return type(self).__name__.removesuffix("Attention").lower()

    @property
    def joins_bias(self) -> bool:
        """Whether it computes ``attend`` without a cap, which needs mask and bias apart."""
        return self.softcap is None and type(self)._attend is MultiHeadAttention._attend

    @property
    def projects_at_once(self) -> bool:
        """Whether queries, keys and values are computed by ``project`` of the same states, from plain linear layers."""
        kind = type(self)
        if self.is_cross or (kind.forward, kind._project) != (MultiHeadAttention.forward, MultiHeadAttention._project):
            return False
        return all(type(layer) is nn.Linear for layer in (self.q, self.k, self.v))

    def _project(self, x: Float[Tensor, "batch length d_model"]) -> tuple[Tensor, ...]:
        """Returns queries, keys and values of self-attention with all heads concatenated."""
        return project(x, self.q, self.k, self.v)

    def _keys(
        self,
        k: Float[Tensor, "batch keys kv_width"],
        q: Float[Tensor, "batch heads _queries head_dim"],
        angles: MemoryAngles | None,
    ) -> Float[Tensor, "batch kv_heads keys width"]:
        """Returns the keys as they are stored in the cache.

        Args:
            k: keys, all heads concatenated.
            q: rotated queries.
            angles: rotary angles of the keys.
        """
        k = self._normed(k, self.k_norm)
        return k if angles is None else rotate(k, angles)

    def _attend(
        self,
        q: Float[Tensor, "batch heads queries head_dim"],
        k: Float[Tensor, "batch kv_heads keys width"],
        v: Float[Tensor, "batch kv_heads keys head_dim"],
        attention_mask: AttentionMask,
        bias: Float[Tensor, "_rows heads _queries _keys"] | None,
    ) -> Float[Tensor, "batch heads queries head_dim"]:
        """Computes the heads from queries, stored keys and values."""
        dropout = self.dropout if self.training else 0.0
        return attend(q, k, v, attention_mask, bias, scale=self.scale, softcap=self.softcap, dropout=dropout)

    def _normed(
        self, x: Float[Tensor, "batch length width"], norm: nn.Module
    ) -> Float[Tensor, "batch heads length head_dim"]:
        y: Tensor = norm(self._split(x)) if self.normalises_heads else self._split(norm(x))
        return y if y.dtype == x.dtype else y.type_as(x)  # a norm under autocast may be in float32

    def _split(self, x: Float[Tensor, "batch length width"]) -> Float[Tensor, "batch heads length head_dim"]:
        return x.view(*x.shape[:2], -1, self.head_dim).transpose(1, 2)


class PairwiseAttention(MultiHeadAttention):
    """A base class for attention that scores each pair of positions.

    A subclass implements only ``attend_pairs``; projections, rotary positions, caches, packed rows, windows and
    cross-attention are inherited.

    ``triptych.testing.check_part`` tests a subclass.
    """

    def attend_pairs(
        self,
        q: Float[Tensor, "batch heads queries head_dim"],
        k: Float[Tensor, "batch heads keys head_dim"],
        v: Float[Tensor, "batch heads keys head_dim"],
        mask: Bool[Tensor, "batch 1 queries keys"],
        bias: Float[Tensor, "1 heads queries keys"] | None,
    ) -> Float[Tensor, "batch heads queries head_dim"]:
        """Computes the output of each head, before the output projection.

        Apply ``self.scale``, ``self.softcap`` and ``self.dropout`` here: the base class does not.

        Args:
            q: queries, already rotated.
            k: keys, already rotated; shared key heads are repeated.
            v: values; shared heads are repeated.
            mask: True where a query may attend to a key. Every query may attend to at least one.
            bias: bias of the position scheme, to be added to the scores; None: no bias.
        """
        raise NotImplementedError

    def _attend(
        self,
        q: Float[Tensor, "batch heads queries head_dim"],
        k: Float[Tensor, "batch kv_heads keys head_dim"],
        v: Float[Tensor, "batch kv_heads keys head_dim"],
        attention_mask: AttentionMask,
        bias: Float[Tensor, "_rows heads _queries _keys"] | None,
    ) -> Float[Tensor, "batch heads queries head_dim"]:
        if (packing := attention_mask.packing) is not None:
            q, k, v = pad_documents(packing, q, k, v)
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
        attention_mask, queries, keys = attention_mask.dense(q.device), q.shape[2], k.shape[2]
        mask = attention_mask.mask
        if attention_mask.causal:
            mask = causal_mask(queries, keys, q.device)
        elif mask is None:
            mask = torch.ones(queries, keys, dtype=torch.bool, device=q.device)
        mask = mask.expand(len(q), 1, queries, keys)
        blind = ~mask.any(-1, keepdim=True)  # padding: softmax over no key at all would be NaN
        y = attend_in_pairs(q, k, v, mask | blind, bias, attention=self.attend_pairs).masked_fill(blind, 0.0)
        return y if packing is None else pack_documents(packing, y)


@interceptable
def attend_in_pairs(
    q: Float[Tensor, "batch heads queries head_dim"],
    k: Float[Tensor, "batch heads keys head_dim"],
    v: Float[Tensor, "batch heads keys head_dim"],
    mask: Bool[Tensor, "batch 1 queries keys"],
    bias: Float[Tensor, "1 heads queries keys"] | None,
    *,
    attention: Callable[..., Tensor],
) -> Float[Tensor, "batch heads queries head_dim"]:
    """Calls ``PairwiseAttention.attend_pairs`` so that ``triptych.report.attention_maps.record_attention`` can
    intercept it."""
    return attention(q, k, v, mask, bias)


class SubquadraticAttention(MultiHeadAttention):
    """A base class for self-attention without a score for each pair of positions.

    A subclass implements ``attend_texts``. Cross-attention is that of ``MultiHeadAttention``."""

    has_all_pairs: ClassVar[bool] = False

    def _attend(
        self,
        q: Float[Tensor, "batch heads queries head_dim"],
        k: Float[Tensor, "batch heads keys width"],
        v: Float[Tensor, "batch heads keys head_dim"],
        attention_mask: AttentionMask,
        bias: Float[Tensor, "_rows heads _queries _keys"] | None,
    ) -> Float[Tensor, "batch heads queries head_dim"]:
        if self.is_cross:
            return super()._attend(q, k, v, attention_mask, bias)
        if (packing := attention_mask.packing) is not None:
            q, k, v = pad_documents(packing, q, k, v)
        y = self.attend_texts(q, k, v, attention_mask)
        return y if packing is None else pack_documents(packing, y)

    def attend_texts(
        self,
        q: Float[Tensor, "batch heads queries head_dim"],
        k: Float[Tensor, "batch heads keys width"],
        v: Float[Tensor, "batch heads keys head_dim"],
        attention_mask: AttentionMask,
    ) -> Float[Tensor, "batch heads queries head_dim"]:
        """Computes the output of each head for a batch of texts.

        Args:
            q: queries, already rotated.
            k: keys, already rotated.
            v: values.
            attention_mask: its ``causal`` and ``key_mask`` state which keys a query may attend to.
        """
        raise NotImplementedError


def project(x: Float[Tensor, "batch length d_model"], *layers: nn.Linear) -> tuple[Tensor, ...]:
    """x W_1 + b_1, x W_2 + b_2, ...

    Training on GPUs uses one product with the concatenated matrices: large products are faster there, and autocast
    copies x once. (GPT-2 124M trained 1.2 times as fast on an H100, docs/decisions/loss_in_chunks.md.)

    Args:
        layers: linear layers with the W and the b.
    """
    if x.device.type == "cpu" or not torch.is_grad_enabled():
        return tuple(layer(x) for layer in layers)
    return F.linear(x, *join(*layers)).split_with_sizes([layer.out_features for layer in layers], dim=-1)


def join(*layers: nn.Linear) -> tuple[Float[Tensor, "outputs inputs"], Float[Tensor, " outputs"] | None]:
    """Returns the concatenated W and b; no b if none has one."""
    weight, bias = torch.cat([layer.weight for layer in layers]), None
    if any(layer.bias is not None for layer in layers):
        bias = torch.cat([layer.weight.new_zeros(len(layer.weight)) if layer.bias is None else layer.bias
                          for layer in layers])  # fmt: skip
    return weight, bias


def nearest_divisor(number: int, wanted: int) -> int:
    """Returns the divisor of ``number`` nearest to ``wanted``."""
    return min((n for n in range(1, number + 1) if number % n == 0), key=lambda n: abs(n - wanted))


def _of_sharers(angles: Angles, memories: int, queries: int) -> MemoryAngles:
    """Returns the angles of the queries that share a row of the memory, text by text."""
    cos, sin = (part.expand(memories * queries // part.shape[-2], 1, *part.shape[-2:]) for part in angles)
    return cos.reshape(memories, 1, queries, -1), sin.reshape(memories, 1, queries, -1)
