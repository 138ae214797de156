"""One layer of an encoder or decoder stack.

Tested by tests/nn/test_block.py and tests/nn/test_published_parts.py.
"""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn

from triptych.nn.attention import MultiHeadAttention
from triptych.nn.feed_forward import NoFeedForward
from triptych.nn.kv_cache import LayerCache
from triptych.nn.masks import AttentionMask
from triptych.nn.positions import Angles, MemoryAngles
from triptych.nn.residual import ParallelNorms, PreNorm, Residual
from triptych.nn.sizes import Sizes


class Block(nn.Module):
    """Self-attention, cross-attention if there is a memory, and feed-forward, each with a residual connection.

    With ``Parallel`` there is one residual connection around their sum. With ``ParallelNorms`` each has its own norm
    and reads the input of the block.

    Vaswani et al. 2017, section 3.1. Encoder and decoder layers differ only in visibility and cross-attention.

    Args:
        sizes: sizes of the stack.
        layer: index of this block, from 0.
        cross_attention: whether the layer attends to a memory.
        attention: builds the attention sub-layers from sizes, layer index and ``cross``.
        feed_forward: builds the feed-forward sub-layer.
        residual: builds the residual connections.
        norm: builds the norms.
        first_norm: whether there is a norm before self-attention.

    Raises:
        ValueError: ``first_norm`` is false with residuals other than ``PreNorm``.
    """

    def __init__(
        self,
        sizes: Sizes,
        layer: int,
        *,
        cross_attention: bool,
        attention: Callable[..., MultiHeadAttention],
        feed_forward: Callable[[Sizes], nn.Module],
        residual: Callable[[Sizes, Callable[[int], nn.Module]], Residual],
        norm: Callable[[int], nn.Module],
        first_norm: bool = True,
    ) -> None:
        super().__init__()
        self.self_attention = attention(sizes, layer)
        self.self_residual = residual(sizes, norm)
        if not first_norm:
            if type(self.self_residual) is not PreNorm:
                name = type(self.self_residual).__name__
                raise ValueError(f"block.first_norm=false with {name}: expected block/residual=pre_norm")
            self.self_residual.norm = nn.Identity()
        self.cross_attention = attention(sizes, layer, cross=True) if cross_attention else None
        self.cross_residual = residual(sizes, norm) if cross_attention and not self.self_residual.is_parallel else None
        made = feed_forward(sizes)
        self.feed_forward = None if isinstance(made, NoFeedForward) else made
        has_own = self.feed_forward is not None and not self.self_residual.is_parallel
        self.feed_forward_residual = residual(sizes, norm) if has_own else None

    def forward(
        self,
        x: Float[Tensor, "batch length d_model"],
        *,
        attention_mask: AttentionMask,
        bias: Float[Tensor, "_rows heads _queries _keys"] | None = None,
        angles: Angles | None = None,
        memory: Float[Tensor, "memories source d_model"] | None = None,
        memory_attention_mask: AttentionMask | None = None,
        cross_angles: tuple[Angles, MemoryAngles] | None = None,
        cache: LayerCache | None = None,
        memory_cache: LayerCache | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        """Computes the layer.

        Args:
            x: states of this stack.
            attention_mask: visibility of self-attention.
            bias: added to the scores of self-attention.
            angles: rotary angles of self-attention.
            memory: states that cross-attention attends to.
            memory_attention_mask: visibility of cross-attention.
            cross_angles: rotary angles of cross-attention, for this stack and for the memory.
            cache: earlier keys and values of self-attention.
            memory_cache: keys and values of the memory.
        """

        def attend(x: Tensor) -> Tensor:
            y: Tensor = self.self_attention(x, attention_mask=attention_mask, bias=bias, angles=angles, cache=cache)
            return y

        def look(x: Tensor) -> Tensor:
            assert self.cross_attention is not None
            own, of_memory = cross_angles or (None, None)
            y: Tensor = self.cross_attention(
                x, memory, attention_mask=memory_attention_mask, angles=own, memory_angles=of_memory, cache=memory_cache
            )
            return y

        def feed(x: Tensor) -> Tensor:
            assert self.feed_forward is not None
            y: Tensor = self.feed_forward(x)
            return y

        def all_at_once(x: Tensor) -> Tensor:
            y = attend(x) if self.feed_forward is None else attend(x) + feed(x)
            return y if self.cross_attention is None else y + look(x)

        if self.self_residual.is_parallel:
            x = self.self_residual(x, all_at_once)
        elif isinstance(self.self_residual, ParallelNorms):
            sublayers = ((self.feed_forward_residual, feed), (self.cross_residual, look))
            y = x + self.self_residual.added(x, attend)
            for residual, sublayer in sublayers:
                y = y + residual.added(x, sublayer) if isinstance(residual, ParallelNorms) else y
            x = y
        else:
            x = self.self_residual(x, attend)
            if self.cross_residual is not None:
                x = self.cross_residual(x, look)
            if self.feed_forward_residual is not None:
                x = self.feed_forward_residual(x, feed)
        return x
