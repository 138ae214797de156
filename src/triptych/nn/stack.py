"""A stack of blocks: an encoder or a decoder."""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from triptych.nn.block import Block, NormName, NormPosition, make_norm
from triptych.nn.cache import KeyValueCache
from triptych.nn.feed_forward import ActivationName
from triptych.nn.initialization import initialize_stack
from triptych.nn.masks import Visibility
from triptych.nn.position import RelativeBias, Rotary

PositionName = Literal["none", "learned", "sinusoidal", "rotary", "relative"]


class Stack(nn.Module):
    """N blocks, and with pre-norm one last norm. An encoder is a stack; a decoder is a causal stack.

    Args:
        num_layers: N.
        d_model: width.
        num_heads: query heads.
        d_ff: width of the feed-forward sub-layers.
        causal: whether a position sees only itself and earlier ones.
        cross_attention: whether the blocks look at a memory.
        num_kv_heads: key and value heads; None: as many as query heads.
        head_dim: width of each head; None: d_model / num_heads.
        norm: layer or rms.
        norm_eps: added to the variance.
        norm_position: pre or post; pre adds a last norm.
        activation: relu, gelu, gelu_tanh or silu.
        gated: whether the feed-forward sub-layers are gated.
        bias: whether the projections have one.
        position: rotary and relative act in here; the others act in the embedding.
        dropout: of each sub-layer's output.
        attention_dropout: of the attention weights.
        feed_forward_dropout: of the feed-forward sub-layers' hidden units.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        d_model: int,
        num_heads: int,
        d_ff: int,
        causal: bool,
        cross_attention: bool = False,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        norm: NormName = "layer",
        norm_eps: float = 1e-5,
        norm_position: NormPosition = "pre",
        activation: ActivationName = "relu",
        gated: bool = False,
        bias: bool = True,
        position: PositionName = "sinusoidal",
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        feed_forward_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if num_layers < 1:
            raise ValueError(f"num_layers={num_layers}: expected at least 1")
        self.d_model = d_model
        self.causal, self.has_cross_attention = causal, cross_attention
        self.layers = nn.ModuleList(
            Block(
                d_model=d_model,
                num_heads=num_heads,
                d_ff=d_ff,
                cross_attention=cross_attention,
                num_kv_heads=num_kv_heads,
                head_dim=head_dim,
                norm=norm,
                norm_eps=norm_eps,
                norm_position=norm_position,
                activation=activation,
                gated=gated,
                bias=bias,
                dropout=dropout,
                attention_dropout=attention_dropout,
                feed_forward_dropout=feed_forward_dropout,
            )
            for _ in range(num_layers)
        )
        self.final_norm = make_norm(norm, d_model, norm_eps) if norm_position == "pre" else nn.Identity()
        self.rotary = Rotary(head_dim=head_dim or d_model // num_heads) if position == "rotary" else None
        self.relative_bias = RelativeBias(num_heads=num_heads, causal=causal) if position == "relative" else None
        initialize_stack(self)

    def forward(
        self,
        x: Float[Tensor, "batch length d_model"],
        *,
        mask: Bool[Tensor, "batch keys"] | None = None,
        memory: Float[Tensor, "batch source d_model"] | None = None,
        memory_mask: Bool[Tensor, "batch source"] | None = None,
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        """The states of the last layer.

        Args:
            x: embedded tokens; with a cache, the new ones only.
            mask: True at real tokens, cached ones included; None: all are real.
            memory: what cross-attention looks at.
            memory_mask: True at real positions of the memory; None: all are real.
            cache: earlier keys and values; the new ones are added.
        """
        length = x.shape[1]
        past = 0 if cache is None else cache.length
        visibility = Visibility.of(
            num_queries=length, num_keys=past + length, causal=self.causal, key_mask=mask, device=x.device
        )
        memory_visibility = Visibility(mask=None if memory_mask is None else memory_mask[:, None, None, :])
        bias = None if self.relative_bias is None else self.relative_bias(length, past + length)
        # Rotary scores depend on distances alone, and padding on the left keeps them: no need to know what is real.
        angles = None if self.rotary is None else self.rotary(torch.arange(past, past + length, device=x.device))
        for i, layer in enumerate(self.layers):
            x = layer(
                x,
                visibility=visibility,
                bias=bias,
                angles=angles,
                memory=memory,
                memory_visibility=memory_visibility,
                cache=None if cache is None else cache.self_attention[i],
                memory_cache=None if cache is None else cache.cross_attention[i],
            )
        y: Tensor = self.final_norm(x)
        return y
