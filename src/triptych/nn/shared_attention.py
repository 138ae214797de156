"""Self-attention with fewer projections.

Tested by tests/nn/test_published_parts.py.
"""

from typing import Literal

from jaxtyping import Float
from torch import Tensor

from triptych.nn.attention import MultiHeadAttention, project
from triptych.nn.sizes import Sizes

Shared = Literal["qk", "kv", "qkv"]


class SharedAttention(MultiHeadAttention):
    """``MultiHeadAttention`` whose keys are the queries (qk, as in Reformer, Kitaev et al. 2020, section 2), whose
    values are the keys (kv, as in Bahdanau et al. 2015), or both (qkv). Cross-attention has all projections.

    Args:
        sizes: sizes of the stack.
        layer: index of the block, from 0.
        cross: whether it is cross-attention to a memory.
        shared: qk, kv or qkv.
        scale: factor of the scores; None: 1 / sqrt(head_dim).
        qkv_bias: whether the projections have a bias; None: ``sizes.bias``.
        dropout: probability of dropping an attention weight.
    """

    def __init__(
        self,
        sizes: Sizes,
        layer: int = 0,
        cross: bool = False,
        *,
        shared: Shared = "kv",
        scale: float | None = None,
        qkv_bias: bool | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(sizes, layer, cross, scale=scale, qkv_bias=qkv_bias, dropout=dropout)
        self.shared = shared
        if cross:
            return
        if "q" in shared:
            del self.k
        if "v" in shared:
            del self.v

    def _project(self, x: Float[Tensor, "batch length d_model"]) -> tuple[Tensor, ...]:
        if self.shared == "kv":
            q, k = project(x, self.q, self.k)
            return q, k, k
        if self.shared == "qk":
            q, v = project(x, self.q, self.v)
            return q, q, v
        q = self.q(x)
        return q, q, q
