"""Linformer: attention to a fixed number of projected keys and values.

Tested by tests/nn/test_efficient_attention.py.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from triptych.nn.attention import SubquadraticAttention, interceptable
from triptych.nn.masks import AttentionMask
from triptych.nn.sizes import Sizes


class LinformerAttention(SubquadraticAttention):
    """head_i = softmax(q (E k)^T / sqrt(head_dim)) F v, where E and F project all keys and values of a text to p: the
    cost is O(length p). Wang et al. 2020, equation 7; all heads of a layer share E and F ("headwise sharing", section
    4).

    A shorter text uses the first columns of E and F. Cross-attention is that of ``MultiHeadAttention``.

    Args:
        sizes: sizes of the stack; E and F have max_length columns.
        layer: index of the block, from 0.
        cross: whether it is cross-attention to a memory.
        projected_length: p.
        qkv_bias: whether the projections to queries, keys and values have a bias; None: ``sizes.bias``.
        dropout: probability of dropping an attention weight.

    Raises:
        ValueError: the stack is causal, or p is below 1.
    """

    def __init__(
        self,
        sizes: Sizes,
        layer: int = 0,
        cross: bool = False,
        *,
        projected_length: int = 64,
        qkv_bias: bool | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(sizes, layer, cross=cross, qkv_bias=qkv_bias, dropout=dropout)
        if projected_length < 1:
            raise ValueError(f"block.attention.projected_length={projected_length}: expected at least 1")
        if cross:
            return
        if sizes.causal:
            raise ValueError(
                "block/attention=linformer: each of its attention keys mixes all positions, so a decoder would attend "
                "to future tokens; use performer, reformer or longformer. To use linformer only in the encoder of "
                "model=full, set block/attention@model.encoder.attention=linformer"
            )
        self.max_positions = sizes.max_length
        self.shorten_keys = nn.Parameter(torch.empty(projected_length, sizes.max_length))
        self.shorten_values = nn.Parameter(torch.empty(projected_length, sizes.max_length))
        for matrix in (self.shorten_keys, self.shorten_values):
            nn.init.normal_(matrix, std=projected_length**-0.5)

    def attend_texts(
        self,
        q: Float[Tensor, "batch heads queries head_dim"],
        k: Float[Tensor, "batch heads keys head_dim"],
        v: Float[Tensor, "batch heads keys head_dim"],
        attention_mask: AttentionMask,
    ) -> Float[Tensor, "batch heads queries head_dim"]:
        key_mask, dropout = attention_mask.key_mask, self.dropout if self.training else 0.0
        return attend_shortened(q, k, v, self.shorten_keys, self.shorten_values, key_mask, dropout=dropout)


@interceptable
def attend_shortened(
    q: Float[Tensor, "batch heads queries head_dim"],
    k: Float[Tensor, "batch heads keys head_dim"],
    v: Float[Tensor, "batch heads keys width"],
    shorten_keys: Float[Tensor, "projected longest"],
    shorten_values: Float[Tensor, "projected longest"],
    key_mask: Bool[Tensor, "batch keys"] | None,
    *,
    dropout: float,
) -> Float[Tensor, "batch heads queries width"]:
    """softmax(q (E k)^T / sqrt(head_dim)) F v.

    Args:
        q: queries.
        k: keys.
        v: values.
        shorten_keys: E.
        shorten_values: F.
        key_mask: True at non-padding keys; others are zeros. None: no padding.
        dropout: probability of dropping an attention weight.
    """
    if key_mask is not None:
        k, v = (x.masked_fill(~key_mask[:, None, :, None], 0.0) for x in (k, v))
    length = k.shape[2]
    k, v = shorten_keys[:, :length] @ k, shorten_values[:, :length] @ v
    return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
