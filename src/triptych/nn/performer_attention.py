"""Performer: softmax attention by positive random features, at a cost linear in the length of a text.

Tested by tests/nn/test_efficient_attention.py.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from triptych.nn.attention import SubquadraticAttention, interceptable
from triptych.nn.autocast import without_autocast
from triptych.nn.masks import AttentionMask, causal_mask
from triptych.nn.positions import MemoryAngles
from triptych.nn.sizes import Sizes

CHUNK = 128
"""Number of positions per chunk of a causal text."""


class PerformerAttention(SubquadraticAttention):
    """y_i = sum_j phi(q_i) phi(k_j) v_j / sum_j phi(q_i) phi(k_j), with phi(x)_r = exp(w_r x' - |x'|^2 / 2) and
    x' = x / head_dim^(1/4): on average over Gaussian w, phi(q) phi(k) is exp(q k / sqrt(head_dim)), so y estimates
    attention, at a cost of O(length m). FAVOR+, Choromanski et al. 2021, lemma 1.

    The vectors w_r are drawn once, orthogonal within groups of head_dim vectors (section 2.4), and all heads of a
    layer share them. They are saved with the weights but not trained. The cache of a decoder holds features of keys.
    Cross-attention is that of ``MultiHeadAttention``.

    Features are computed in float32 at least, where those of keys with |x'| above about 13 underflow to 0.

    Args:
        sizes: sizes of the stack.
        layer: index of the block, from 0.
        cross: whether it is cross-attention to a memory.
        num_features: m.
        qkv_bias: whether the projections to queries, keys and values have a bias; None: ``sizes.bias``.

    Raises:
        ValueError: there is less than one feature.
    """

    directions: Float[Tensor, "features head_dim"]

    def __init__(
        self,
        sizes: Sizes,
        layer: int = 0,
        cross: bool = False,
        *,
        num_features: int = 128,
        qkv_bias: bool | None = None,
    ) -> None:
        super().__init__(sizes, layer, cross=cross, qkv_bias=qkv_bias)
        if num_features < 1:
            raise ValueError(f"block.attention.num_features={num_features}: expected at least 1")
        if not cross:
            self.register_buffer("directions", draw_orthogonal(num_features, sizes.head_dim))

    def _keys(
        self,
        k: Float[Tensor, "batch keys kv_width"],
        q: Float[Tensor, "batch heads _queries head_dim"],
        angles: MemoryAngles | None,
    ) -> Float[Tensor, "batch heads keys width"]:
        heads = super()._keys(k, q, angles)
        return heads if self.is_cross else self._features(heads).exp()

    def attend_texts(
        self,
        q: Float[Tensor, "batch heads queries head_dim"],
        k: Float[Tensor, "batch heads keys width"],
        v: Float[Tensor, "batch heads keys head_dim"],
        attention_mask: AttentionMask,
    ) -> Float[Tensor, "batch heads queries head_dim"]:
        q = self._features(q)
        q = (q - q.amax(-1, keepdim=True).detach()).exp()  # a factor shared by all features of a query cancels
        y: Tensor = attend_by_features(q, k, v, attention_mask.key_mask, causal=attention_mask.causal)
        return y

    def _features(
        self, x: Float[Tensor, "batch heads length head_dim"]
    ) -> Float[Tensor, "batch heads length features"]:
        """log phi."""
        with without_autocast(x.device):
            x = x.to(torch.promote_types(x.dtype, torch.float32)) * self.head_dim**-0.25
            logs: Tensor = x @ self.directions.to(x.dtype).T - x.square().sum(-1, keepdim=True) / 2
            return logs


@interceptable
@torch.compiler.disable  # type: ignore[untyped-decorator] # of these sums torch 2.13 compiles a gradient of the queries that is nearly 0
def attend_by_features(
    q: Float[Tensor, "batch heads queries features"],
    k: Float[Tensor, "batch heads keys features"],
    v: Float[Tensor, "batch heads keys width"],
    key_mask: Bool[Tensor, "batch keys"] | None,
    *,
    causal: bool,
) -> Float[Tensor, "batch heads queries width"]:
    """y_i = sum_j (q_i k_j) v_j / sum_j (q_i k_j).

    Args:
        q: features of the queries, at the last positions of the keys if there are fewer.
        k: features of the keys.
        v: values.
        key_mask: True at non-padding keys; None: no padding.
        causal: whether the sums end at the query's own position.
    """
    dtype = v.dtype
    with without_autocast(q.device):
        if key_mask is not None:
            k = k.masked_fill(~key_mask[:, None, :, None], 0.0)
        v = F.pad(v.to(k.dtype), (0, 1), value=1.0)  # the last column sums the weights
        if not causal:
            sums = q @ (k.mT @ v)
        elif q.shape[2] < k.shape[2]:
            sums = ((q @ k.mT) * causal_mask(q.shape[2], k.shape[2], q.device)) @ v
        else:
            sums = sum_causally(q, k, v)
        return (sums[..., :-1] / sums[..., -1:].clamp(min=torch.finfo(sums.dtype).tiny)).to(dtype)


def sum_causally(
    q: Float[Tensor, "batch heads length features"],
    k: Float[Tensor, "batch heads length features"],
    v: Float[Tensor, "batch heads length width"],
) -> Float[Tensor, "batch heads length width"]:
    """y_i = sum over j <= i of (q_i k_j) v_j: earlier chunks by the sum of all k_j v_j, the current one by pairs.

    Args:
        q: features of the queries.
        k: features of the keys.
        v: values.
    """
    length = q.shape[2]
    chunk = min(CHUNK, length)
    q, k, v = (F.pad(x, (0, 0, 0, -length % chunk)).unfold(2, chunk, chunk).mT for x in (q, k, v))
    earlier = F.pad((k.mT @ v).cumsum(2)[:, :, :-1], (0, 0, 0, 0, 1, 0))
    sums: Tensor = q @ earlier + (q @ k.mT).tril() @ v
    return sums.flatten(2, 3)[:, :, :length]


def draw_orthogonal(rows: int, width: int) -> Float[Tensor, "rows width"]:
    """Draws Gaussian vectors that are orthogonal within groups of ``width``: directions of a random rotation, with the
    lengths of independent Gaussian vectors.

    Args:
        rows: number of vectors.
        width: width of each vector.
    """
    rotations, r = torch.linalg.qr(torch.randn(math.ceil(rows / width), width, width))
    rotations = rotations * r.diagonal(dim1=1, dim2=2).sign()[:, None]  # otherwise rotations are not uniform
    lengths: Tensor = torch.randn(rows, width).norm(dim=1, keepdim=True)
    directions: Tensor = rotations.flatten(0, 1)[:rows] * lengths
    return directions
