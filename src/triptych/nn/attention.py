"""Scaled dot-product and multi-head attention."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from torch.overrides import handle_torch_function, has_torch_function

from triptych.nn.kv_cache import LayerCache
from triptych.nn.masks import Local, Packing, Visibility, causal_mask
from triptych.nn.positions import Angles, MemoryAngles, rotate
from triptych.nn.sizes import Sizes

TELLS_GROUPS = "enable_gqa" in inspect.signature(varlen_attn).parameters
"""Whether the kernel for packed rows wants to be told of fewer key heads than query heads. From torch 2.12 on it does;
that of 2.11 takes them as they are."""

LONGEST_EXPLICIT = 2048
"""Keys up to which the matrix of scores may stand in memory."""

NormWidthName = Literal["head", "all"]


def attend(
    q: Float[Tensor, "batch heads queries head_dim"],
    k: Float[Tensor, "batch kv_heads keys head_dim"],
    v: Float[Tensor, "batch kv_heads keys width"],
    visibility: Visibility,
    bias: Float[Tensor, "1 heads _queries _keys"] | None = None,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "batch heads queries width"]:
    """softmax(cap(scale q k^T) + bias + mask) v; the one place that chooses a kernel.

    Of a packed row, each document by itself: a kernel that reads packed rows, or else a padded row for each document.
    Of a window, block by block, but with a bias by a mask of all pairs. With a cap, whose scores no kernel of torch
    has, step by step, with a matrix of all scores.

    A query that sees nothing gets zeros. With fewer key heads than query heads, query head i reads key head
    floor(i kv_heads / heads) (grouped-query attention, Ainslie et al. 2023). Vaswani et al. 2017, section 3.2.1.

    Args:
        q: queries.
        k: keys.
        v: values.
        visibility: who may attend to whom.
        bias: added to the scaled scores, for instance a relative position bias; of a packed row, "queries" and "keys"
            are those of the longest document.
        scale: of the scores; None: 1 / sqrt(head_dim).
        softcap: c in cap(s) = c tanh(s / c), beyond which no score goes; None: cap(s) = s.
        dropout: probability of dropping an attention weight; 0 outside of training.
    """
    if (packing := visibility.packing) is not None:
        is_plain = bias is None and softcap is None and not dropout
        if is_plain and not packing.has_prefix and reads_packed_rows(q):
            return attend_packed(q, k, v, packing, scale)
        of_rows = replace(visibility, packing=None)
        q, k, v = pad_documents(packing, q, k, v)
        y = attend(q, k, v, of_rows, bias, scale=scale, softcap=softcap, dropout=dropout)
        return pack_documents(packing, y)
    if visibility.local is not None:
        if bias is None:
            return attend_locally(q, k, v, visibility.local, scale=scale, softcap=softcap, dropout=dropout)
        visibility = visibility.dense(q.device)
    mask, causal = visibility.mask, visibility.causal
    is_slow = q.dtype == torch.bfloat16 and q.device.type == "cpu" and q.requires_grad
    if softcap is not None or (is_slow and k.shape[2] <= LONGEST_EXPLICIT):
        if causal:
            mask = causal_mask(q.shape[2], k.shape[2], q.device)
        return attend_explicitly(q, k, v, mask, bias, scale=scale, softcap=softcap, dropout=dropout)
    blind = None
    if mask is not None and not visibility.sees and q.device.type != "cpu":
        # Kernels of GPUs were reported to give NaN gradients for rows that see nothing: such a row sees all, and its
        # result is dropped.
        blind = ~mask.any(-1, keepdim=True)
        mask = mask | blind
    if bias is not None:
        if causal:
            mask, causal = causal_mask(q.shape[2], k.shape[2], q.device), False
        mask = bias.to(q.dtype) if mask is None else bias.to(q.dtype).masked_fill(~mask, float("-inf"))
    grouped = q.shape[1] != k.shape[1]
    y = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal, scale=scale, enable_gqa=grouped
    )
    return y if blind is None else y.masked_fill(blind, 0.0)


def pad_documents(
    packing: Packing,
    q: Float[Tensor, "1 heads queries query_width"],
    k: Float[Tensor, "1 kv_heads keys width"],
    v: Float[Tensor, "1 kv_heads keys head_dim"],
) -> tuple[
    Float[Tensor, "documents heads longest_queries query_width"],
    Float[Tensor, "documents kv_heads longest_keys width"],
    Float[Tensor, "documents kv_heads longest_keys head_dim"],
]:
    """A row for each document of a packed one."""
    q = packing.queries.padded(q.transpose(1, 2)).transpose(1, 2)
    k, v = (packing.keys.padded(x.transpose(1, 2)).transpose(1, 2) for x in (k, v))
    return q, k, v


def pack_documents(
    packing: Packing, y: Float[Tensor, "documents heads longest_queries head_dim"]
) -> Float[Tensor, "1 heads queries head_dim"]:
    """What the queries of such rows have found, in one row again."""
    return packing.queries.packed(y.transpose(1, 2)).transpose(1, 2)


def attend_locally(
    q: Float[Tensor, "batch heads length head_dim"],
    k: Float[Tensor, "batch kv_heads length head_dim"],
    v: Float[Tensor, "batch kv_heads length width"],
    local: Local,
    *,
    scale: float | None,
    softcap: float | None,
    dropout: float,
) -> Float[Tensor, "batch heads length width"]:
    """``attend`` within a window: the queries and the keys of a block are a row of one call.

    Args:
        q: queries.
        k: keys.
        v: values.
        local: the blocks.
        scale: of the scores; None: 1 / sqrt(head_dim).
        softcap: see ``attend``.
        dropout: probability of dropping an attention weight.
    """
    q, k, v, mask = local.queries_of(q), local.keys_of(k), local.keys_of(v), local.mask(q.device)
    return attend_blocks(q, k, v, mask, scale=scale, softcap=softcap, dropout=dropout)[:, :, : local.length]


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
    """``attend`` where the queries of each block have keys to themselves; the blocks are one after the other then.

    Args:
        q: queries.
        k: keys.
        v: values.
        mask: True where a query may attend to a key.
        scale: of the scores; None: 1 / sqrt(head_dim).
        softcap: see ``attend``.
        dropout: probability of dropping an attention weight.
    """
    batch, blocks = q.shape[0], q.shape[2]
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))
    mask = mask.expand(batch, -1, -1, -1).flatten(0, 1)[:, None]
    y = attend(q, k.contiguous(), v.contiguous(), Visibility(mask=mask), scale=scale, softcap=softcap, dropout=dropout)
    y = y.reshape(-1, blocks, *y.shape[1:])
    return y.transpose(1, 2).flatten(2, 3)


def reads_packed_rows(q: Float[Tensor, "1 heads queries head_dim"]) -> bool:
    """Whether the kernel of ``attend_packed`` takes such queries: on NVIDIA's GPUs from compute capability 8.0 on, in
    16 bits, with heads whose width is a multiple of 8 and at most 256; from 193 to 224 some of these GPUs have no
    backward pass.

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


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator] # torch.compile would leave its program to ask
def has_kernel_for_packed_rows(device: torch.device) -> bool:
    """Whether a GPU of NVIDIA's has compute capability 8.0."""
    return torch.cuda.get_device_capability(device) >= (8, 0)


def attend_packed(
    q: Float[Tensor, "1 heads queries head_dim"],
    k: Float[Tensor, "1 kv_heads keys head_dim"],
    v: Float[Tensor, "1 kv_heads keys head_dim"],
    packing: Packing,
    scale: float | None,
) -> Float[Tensor, "1 heads queries head_dim"]:
    """``attend`` without bias and dropout, by the kernel of FlashAttention-2 (Dao 2024) for packed rows, where
    ``reads_packed_rows``.

    Args:
        q: queries of all documents.
        k: keys.
        v: values.
        packing: where the documents stand.
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


def attend_explicitly(
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
    """The same, step by step: with a cap, and for training in bfloat16 on CPUs, where torch's kernel takes 2 to 8 times
    as long forward and backward. The scores are rounded to bfloat16 there: docs/train.md has the error, and what scores
    in float32 would cost.

    Args:
        q: queries.
        k: keys.
        v: values.
        mask: True where a query may attend to a key; None: everywhere.
        bias: added to the scaled scores.
        scale: of the scores; None: 1 / sqrt(head_dim).
        softcap: see ``attend``.
        dropout: probability of dropping an attention weight.
    """
    if has_torch_function((q, k, v)):  # somebody looks on, as at torch's kernel
        y: Tensor = handle_torch_function(
            attend_explicitly, (q, k, v), q, k, v, mask, bias, scale=scale, softcap=softcap, dropout=dropout
        )
        return y
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
        sizes: of the stack.
        layer: the number of the block, from 0.
        cross: whether it looks at a memory.
        num_kv_heads: key and value heads; None: as many as query heads.
        scale: of the scores; None: 1 / sqrt(head_dim).
        softcap: c: scores become c tanh(score / c), so none goes beyond c (Gemma 2, Riviere et al. 2024, section 2);
            attention then takes memory for all pairs. None: they stay as they are.
        qkv_bias: whether the projections to queries, keys and values have a bias; None: as all.
        k_bias: whether the projection to keys has one where the others have. It adds the same to all scores of a query,
            which softmax does not see (Whisper has none, Radford et al. 2022).
        qk_norm: makes a norm of the queries and one of the keys, x W_q and m W_k, before positions turn them, so that
            scores stay bounded (Dehghani et al. 2023, section 2); None: there are none.
        qk_norm_over: what is normalised at a time: each head (Qwen 3), or all heads of a layer together (OLMo 2).
        windows: how far a position sees, itself included, in self-attention of the first, second, ... block, and so on
            in turns; None: without limit.
        dropout: probability of dropping an attention weight.

    Attributes:
        window: of this block; None: without limit.
        room: the most positions of a text; None: there is no limit.

    Raises:
        ValueError: key heads that do not divide the query heads, a scale or a cap that is not positive, windows of less
            than one position, or a width of a norm that is not there.
    """

    has_all_pairs: ClassVar[bool] = True
    """Whether a text has a score for each pair of positions, which a mask or a bias may change."""
    room: int | None = None

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
        windows: Sequence[int | None] | None = None,
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
        windows = (None,) if windows is None else windows
        if not windows or any(window is not None and window < 1 for window in windows):
            shown = str(list(windows)).replace("None", "null")
            raise ValueError(f"block.attention.windows={shown}: expected numbers of at least 1")
        if qk_norm is None and qk_norm_over != "head":
            raise ValueError(
                f"block.attention.qk_norm_over={qk_norm_over}: there is no norm; expected block/attention=qk_norm"
            )
        self.is_cross = cross
        self.window = None if cross else windows[layer % len(windows)]
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
        visibility: Visibility,
        bias: Float[Tensor, "1 heads _queries _keys"] | None = None,
        angles: Angles | None = None,
        memory_angles: MemoryAngles | None = None,
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "batch queries d_model"]:
        """Self-attention, or cross-attention when there is a memory.

        Args:
            x: the queries' side.
            memory: the keys' side of cross-attention (the encoder's output); a row for each of the batch, or for as
                many one after the other (beams of one text).
            visibility: who may attend to whom.
            bias: see ``attend``.
            angles: of rotary positions, for queries, and for keys if there is no memory.
            memory_angles: the same, for the keys of a memory.
            cache: keys and values of earlier positions; the new ones are added (a memory's are added once).
        """
        batch, queries, _ = x.shape
        if memory is not None:  # those that share a row of it are as many queries
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
        y: Tensor = self.o(self._attend(q, k, v, visibility, bias).transpose(1, 2).flatten(2))
        return y.view(batch, queries, -1)

    def _project(self, x: Float[Tensor, "batch length d_model"]) -> tuple[Tensor, ...]:
        """Queries, keys and values of self-attention, all heads side by side."""
        return project(x, self.q, self.k, self.v)

    def _keys(
        self,
        k: Float[Tensor, "batch keys kv_width"],
        q: Float[Tensor, "batch heads _queries head_dim"],
        angles: MemoryAngles | None,
    ) -> Float[Tensor, "batch kv_heads keys width"]:
        """What is kept of the keys.

        Args:
            k: all heads side by side.
            q: the queries, rotated.
            angles: of the keys.
        """
        k = self._normed(k, self.k_norm)
        return k if angles is None else rotate(k, angles)

    def _attend(
        self,
        q: Float[Tensor, "batch heads queries head_dim"],
        k: Float[Tensor, "batch kv_heads keys width"],
        v: Float[Tensor, "batch kv_heads keys head_dim"],
        visibility: Visibility,
        bias: Float[Tensor, "1 heads _queries _keys"] | None,
    ) -> Float[Tensor, "batch heads queries head_dim"]:
        """The heads, from queries, kept keys and values."""
        dropout = self.dropout if self.training else 0.0
        return attend(q, k, v, visibility, bias, scale=self.scale, softcap=self.softcap, dropout=dropout)

    def _normed(
        self, x: Float[Tensor, "batch length width"], norm: nn.Module
    ) -> Float[Tensor, "batch heads length head_dim"]:
        y: Tensor = norm(self._split(x)) if self.normalises_heads else self._split(norm(x))
        return y.type_as(x)  # a norm under autocast may be in float32

    def _split(self, x: Float[Tensor, "batch length width"]) -> Float[Tensor, "batch heads length head_dim"]:
        return x.view(*x.shape[:2], -1, self.head_dim).transpose(1, 2)


class PairwiseAttention(MultiHeadAttention):
    """The base class for an attention that scores each pair of positions. A subclass implements ``attend_pairs`` alone:
    projections, rotary positions, caches, packed rows, windows and cross-attention stay as they are.

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
        """The output of each head, before the output projection. ``self.scale``, ``self.softcap`` and
        ``self.dropout`` hold the options of those names, which the base class does not apply here.

        Args:
            q: queries, already rotated.
            k: keys, already rotated; key heads that several query heads share are repeated.
            v: values, likewise.
            mask: True where a query may attend to a key. Every query may attend to at least one.
            bias: of the position scheme, to be added to the scores; None: it has none.
        """
        raise NotImplementedError

    def _attend(
        self,
        q: Float[Tensor, "batch heads queries head_dim"],
        k: Float[Tensor, "batch kv_heads keys head_dim"],
        v: Float[Tensor, "batch kv_heads keys head_dim"],
        visibility: Visibility,
        bias: Float[Tensor, "1 heads _queries _keys"] | None,
    ) -> Float[Tensor, "batch heads queries head_dim"]:
        if (packing := visibility.packing) is not None:
            q, k, v = pad_documents(packing, q, k, v)
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
        visibility, queries, keys = visibility.dense(q.device), q.shape[2], k.shape[2]
        mask = visibility.mask
        if visibility.causal:
            mask = causal_mask(queries, keys, q.device)
        elif mask is None:
            mask = torch.ones(queries, keys, dtype=torch.bool, device=q.device)
        mask = mask.expand(len(q), 1, queries, keys)
        blind = ~mask.any(-1, keepdim=True)  # padding: softmax over no key at all would be NaN
        y: Tensor = attend_in_pairs(q, k, v, mask | blind, bias, attention=self.attend_pairs)
        y = y.masked_fill(blind, 0.0)
        return y if packing is None else pack_documents(packing, y)


def attend_in_pairs(
    q: Float[Tensor, "batch heads queries head_dim"],
    k: Float[Tensor, "batch heads keys head_dim"],
    v: Float[Tensor, "batch heads keys head_dim"],
    mask: Bool[Tensor, "batch 1 queries keys"],
    bias: Float[Tensor, "1 heads queries keys"] | None,
    *,
    attention: Callable[..., Tensor],
) -> Float[Tensor, "batch heads queries head_dim"]:
    """``PairwiseAttention.attend_pairs``, called where ``triptych.attention.recorded`` can see it."""
    if has_torch_function((q, k, v)):
        y: Tensor = handle_torch_function(attend_in_pairs, (q, k, v), q, k, v, mask, bias, attention=attention)
        return y
    return attention(q, k, v, mask, bias)


class EfficientAttention(MultiHeadAttention):
    """Self-attention without a score for each pair of positions; a subclass says how, in ``attend_texts``. Of a memory
    it is ``MultiHeadAttention``."""

    has_all_pairs: ClassVar[bool] = False

    def _attend(
        self,
        q: Float[Tensor, "batch heads queries head_dim"],
        k: Float[Tensor, "batch heads keys width"],
        v: Float[Tensor, "batch heads keys head_dim"],
        visibility: Visibility,
        bias: Float[Tensor, "1 heads _queries _keys"] | None,
    ) -> Float[Tensor, "batch heads queries head_dim"]:
        if self.is_cross:
            return super()._attend(q, k, v, visibility, bias)
        if (packing := visibility.packing) is not None:
            q, k, v = pad_documents(packing, q, k, v)
        y = self.attend_texts(q, k, v, visibility)
        return y if packing is None else pack_documents(packing, y)

    def attend_texts(
        self,
        q: Float[Tensor, "batch heads queries head_dim"],
        k: Float[Tensor, "batch heads keys width"],
        v: Float[Tensor, "batch heads keys head_dim"],
        visibility: Visibility,
    ) -> Float[Tensor, "batch heads queries head_dim"]:
        """The output of each head for a batch of texts.

        Args:
            q: queries, already rotated.
            k: keys, already rotated.
            v: values.
            visibility: its ``causal`` and ``key_mask`` state which keys a query may attend to.
        """
        raise NotImplementedError


def project(x: Float[Tensor, "batch length d_model"], *layers: nn.Linear) -> tuple[Tensor, ...]:
    """x W_1 + b_1, x W_2 + b_2, ...

    In training on GPUs one product, with the matrices side by side: large products are faster there, and autocast
    copies x once. (GPT-2 124M trained 1.2 times as fast on an H100, docs/decisions/loss_in_chunks.md.)

    Args:
        layers: with the W and the b.
    """
    if x.device.type == "cpu" or not torch.is_grad_enabled():
        return tuple(layer(x) for layer in layers)
    bias = None
    if any(layer.bias is not None for layer in layers):
        bias = torch.cat([layer.weight.new_zeros(len(layer.weight)) if layer.bias is None else layer.bias
                          for layer in layers])  # fmt: skip
    y = F.linear(x, torch.cat([layer.weight for layer in layers]), bias)
    return torch.split(y, [layer.out_features for layer in layers], dim=-1)


def nearest_divisor(number: int, wanted: int) -> int:
    """The divisor of a number that is nearest to the one that was wanted."""
    return min((n for n in range(1, number + 1) if number % n == 0), key=lambda n: abs(n - wanted))


def _of_sharers(angles: Angles, memories: int, queries: int) -> MemoryAngles:
    """The angles of the queries that share a row of the memory, one text after the other."""
    cos, sin = (part.expand(memories * queries // part.shape[-2], 1, *part.shape[-2:]) for part in angles)
    return cos.reshape(memories, 1, queries, -1), sin.reshape(memories, 1, queries, -1)
