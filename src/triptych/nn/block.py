"""One layer of a stack, encoder and decoder alike."""

from collections.abc import Callable
from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

from triptych.nn.attention import MultiHeadAttention
from triptych.nn.feed_forward import ActivationName, FeedForward
from triptych.nn.kv_cache import LayerCache
from triptych.nn.masks import Visibility
from triptych.nn.positions import Angles

NormName = Literal["layer", "rms"]
NormPosition = Literal["pre", "post"]


def make_norm(norm: NormName, d_model: int, eps: float) -> nn.Module:
    """Layer norm (Ba et al. 2016) or RMS norm (Zhang and Sennrich 2019: w x / sqrt(mean(x^2) + eps))."""
    return nn.LayerNorm(d_model, eps=eps) if norm == "layer" else nn.RMSNorm(d_model, eps=eps)


class Residual(nn.Module):
    """pre: x + dropout(f(norm(x))). post: norm(x + dropout(f(x))).

    Post is Vaswani et al. 2017, section 3.1; pre trains without a long warm-up (Xiong et al. 2020).

    Args:
        norm: the normalisation module.
        norm_position: pre or post.
        dropout: probability of dropping a unit of the sub-layer's output.
    """

    def __init__(self, *, norm: nn.Module, norm_position: NormPosition, dropout: float) -> None:
        super().__init__()
        self.norm, self.pre, self.dropout = norm, norm_position == "pre", nn.Dropout(dropout)

    def forward(
        self, x: Float[Tensor, "batch length d_model"], sublayer: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "batch length d_model"]:
        """Adds what the sub-layer says of x to x."""
        y: Tensor
        if self.pre:
            y = x + self.dropout(sublayer(self.norm(x)))
        else:
            y = self.norm(x + self.dropout(sublayer(x)))
        return y


class Block(nn.Module):
    """Self-attention, then cross-attention if there is a memory to look at, then feed-forward; each a residual.

    Vaswani et al. 2017, section 3.1. Encoder and decoder layers differ by visibility and cross-attention alone.

    Args:
        d_model: width.
        num_heads: query heads.
        d_ff: width of the feed-forward sub-layer.
        cross_attention: whether the layer looks at a memory.
        num_kv_heads: key and value heads; None: as many as query heads.
        head_dim: width of each head; None: d_model / num_heads.
        qk_scale: of the attention's scores; None: 1 / sqrt(head_dim).
        norm: layer or rms.
        norm_eps: added to the variance.
        norm_position: pre or post.
        activation: of the feed-forward sub-layer.
        gated: whether the feed-forward sub-layer is gated.
        bias: whether the projections have one.
        qkv_bias: whether those of queries, keys and values have one; None: as ``bias``.
        dropout: of each sub-layer's output.
        attention_dropout: of the attention weights.
        feed_forward_dropout: of the feed-forward sub-layer's hidden units.
    """

    def __init__(
        self,
        *,
        d_model: int,
        num_heads: int,
        d_ff: int,
        cross_attention: bool,
        num_kv_heads: int | None,
        head_dim: int | None,
        qk_scale: float | None,
        norm: NormName,
        norm_eps: float,
        norm_position: NormPosition,
        activation: ActivationName,
        gated: bool,
        bias: bool,
        qkv_bias: bool | None,
        dropout: float,
        attention_dropout: float,
        feed_forward_dropout: float,
    ) -> None:
        super().__init__()

        def attention() -> MultiHeadAttention:
            return MultiHeadAttention(
                d_model=d_model,
                num_heads=num_heads,
                num_kv_heads=num_kv_heads,
                head_dim=head_dim,
                qk_scale=qk_scale,
                bias=bias,
                qkv_bias=qkv_bias,
                dropout=attention_dropout,
            )

        def residual() -> Residual:
            return Residual(norm=make_norm(norm, d_model, norm_eps), norm_position=norm_position, dropout=dropout)

        self.self_attention = attention()
        self.self_residual = residual()
        self.cross_attention = attention() if cross_attention else None
        self.cross_residual = residual() if cross_attention else None
        self.feed_forward = FeedForward(
            d_model=d_model, d_ff=d_ff, activation=activation, gated=gated, bias=bias, dropout=feed_forward_dropout
        )
        self.feed_forward_residual = residual()

    def forward(
        self,
        x: Float[Tensor, "batch length d_model"],
        *,
        visibility: Visibility,
        bias: Float[Tensor, "1 heads _queries _keys"] | None = None,
        angles: Angles | None = None,
        memory: Float[Tensor, "memories source d_model"] | None = None,
        memory_visibility: Visibility | None = None,
        cache: LayerCache | None = None,
        memory_cache: LayerCache | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        """One layer.

        Args:
            x: the positions of this stack.
            visibility: of self-attention.
            bias: added to the scores of self-attention.
            angles: of rotary positions in self-attention.
            memory: what cross-attention looks at.
            memory_visibility: of cross-attention.
            cache: earlier keys and values of self-attention.
            memory_cache: keys and values of the memory.
        """
        x = self.self_residual(
            x, lambda x: self.self_attention(x, visibility=visibility, bias=bias, angles=angles, cache=cache)
        )
        if self.cross_attention is not None and self.cross_residual is not None:
            cross = self.cross_attention
            x = self.cross_residual(x, lambda x: cross(x, memory, visibility=memory_visibility, cache=memory_cache))
        y: Tensor = self.feed_forward_residual(x, self.feed_forward)
        return y
