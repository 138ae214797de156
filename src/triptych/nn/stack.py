"""A stack of blocks: an encoder or a decoder."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from triptych.nn.attention import MultiHeadAttention, nearest_divisor
from triptych.nn.block import Block
from triptych.nn.feed_forward import FeedForward
from triptych.nn.initialization import initialize_linear
from triptych.nn.kv_cache import KeyValueCache
from triptych.nn.masks import AttentionMask, PackedMask
from triptych.nn.norm import LayerNorm
from triptych.nn.packing import PackedLayout
from triptych.nn.positions import Angles, MemoryAngles, Position, SinusoidalPositions
from triptych.nn.residual import PreNorm, Residual
from triptych.nn.sizes import Sizes
from triptych.nn.sliding_window import SlidingWindowBlocks


class Stack(nn.Module):
    """x_0 = dropout(norm_0(position.add(x))); then N blocks, and a final norm if the residuals need one.

    norm_0 is optional. An encoder is a stack; a decoder is a causal stack.

    A part is a class whose first argument is the ``Sizes`` of the stack (for a norm, the width); with options, use
    ``partial(Rotary, theta=5e5)``. The last linear layer of a sub-layer is its output (``initialize_stack``).

    Args:
        num_layers: N.
        d_model: width.
        num_heads: number of query heads.
        d_ff: width of the feed-forward sub-layers.
        causal: whether a position attends only to itself and earlier ones.
        cross_attention: whether the blocks attend to a memory.
        head_dim: width of each head; None: d_model / num_heads.
        max_length: maximum number of positions, for position schemes with a vector per position.
        bias: whether the projections have a bias.
        dropout: dropout probability of x_0 and of each sub-layer's output.
        position: builds the position scheme.
        attention: builds the attention sub-layers.
        feed_forward: builds the feed-forward sub-layers.
        residual: builds the residual connections.
        norm: builds the norms, from the width.
        embed_norm: whether there is a norm_0.
        first_norm: whether the first block has a norm before self-attention, which is redundant after norm_0
            (ModernBERT, Warner et al. 2024).
        activation_checkpointing: whether training keeps only the input of each block and recomputes the block in the
            backward pass, with identical results (Chen et al. 2016, section 4.1).

    Attributes:
        max_positions: maximum number of positions; None: no limit.
        is_recurrent: whether recurrences replace self-attention.

    Raises:
        ValueError: the sizes are invalid.
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
        head_dim: int | None = None,
        max_length: int = 512,
        bias: bool = True,
        dropout: float = 0.0,
        position: Callable[[Sizes], Position] = SinusoidalPositions,
        attention: Callable[..., MultiHeadAttention] = MultiHeadAttention,
        feed_forward: Callable[[Sizes], nn.Module] = FeedForward,
        residual: Callable[[Sizes, Callable[[int], nn.Module]], Residual] = PreNorm,
        norm: Callable[[int], nn.Module] = LayerNorm,
        embed_norm: bool = False,
        first_norm: bool = True,
        activation_checkpointing: bool = False,
    ) -> None:
        super().__init__()
        if num_layers < 1:
            raise ValueError(f"num_layers={num_layers}: expected at least 1")
        if head_dim is None and d_model % num_heads:
            nearest = nearest_divisor(d_model, num_heads)
            raise ValueError(
                f"shape.num_heads={num_heads} does not divide shape.d_model={d_model}; nearest that does: {nearest}"
            )
        sizes = Sizes(
            d_model=d_model,
            num_heads=num_heads,
            head_dim=head_dim or d_model // num_heads,
            d_ff=d_ff,
            max_length=max_length,
            causal=causal,
            bias=bias,
            dropout=dropout,
        )
        blocks = [
            Block(
                sizes,
                layer,
                cross_attention=cross_attention,
                attention=attention,
                feed_forward=feed_forward,
                residual=residual,
                norm=norm,
                first_norm=first_norm or layer > 0,
            )
            for layer in range(num_layers)
        ]
        self.d_model, self.causal, self.has_cross_attention = d_model, causal, cross_attention
        self.activation_checkpointing = activation_checkpointing
        self._compiled: list[Callable[..., Tensor]] = []  # a plain list, so that they are not registered as submodules
        self.windows = [block.self_attention.window for block in blocks]
        self.layers = nn.ModuleList(blocks)
        self.position = position(sizes)
        rooms = (self.position.max_positions, self._attention.max_positions)
        self.max_positions = min((room for room in rooms if room is not None), default=None)
        self.has_all_pairs, self.is_recurrent = self._attention.has_all_pairs, self._attention.is_recurrent
        if self.position.has_bias and not self.has_all_pairs:
            raise ValueError(
                f"block/position={self._scheme} adds a bias to the score of each pair of positions, but "
                f"block/attention={self._attention.choice} computes no such scores; use block/position="
                f"{'none' if self.is_recurrent else 'rotary'}, learned or sinusoidal"
            )
        if self.is_recurrent and type(self.position).angles is not Position.angles:
            raise ValueError(
                f"block/position={self._scheme} rotates queries and keys, but block/attention={self._attention.choice} "
                "has none; use block/position=none, learned or sinusoidal"
            )
        self.embed_norm = norm(d_model) if embed_norm else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.final_norm = norm(d_model) if blocks[-1].self_residual.needs_final_norm else nn.Identity()
        initialize_stack(self)

    @property
    def is_compiled(self) -> bool:
        """Whether training runs compiled blocks, which call no hooks."""
        return bool(self._compiled)

    @property
    def _scheme(self) -> str:
        """The choice of block/position."""
        return re.sub("(?<!^)(?=[A-Z])", "_", type(self.position).__name__).lower()

    @property
    def _attention(self) -> MultiHeadAttention:
        """Self-attention of the first layer."""
        attention = self.layers[0].self_attention
        assert isinstance(attention, MultiHeadAttention)
        return attention

    def local(self, window: int | None, length: int) -> SlidingWindowBlocks | None:
        """Returns the blocks in which a layer attends to a text; None: it scores all pairs.

        Args:
            window: window of the layer.
            length: length of the text.
        """
        if window is None or self.position.has_bias:
            return None
        local = SlidingWindowBlocks(window, self.causal, length)
        return local if local.is_worthwhile else None

    def forward(
        self,
        x: Float[Tensor, "batch length d_model"],
        *,
        mask: Bool[Tensor, "batch keys"] | None = None,
        positions: Int[Tensor, "#batch length"] | None = None,
        memory: Float[Tensor, "memories source d_model"] | None = None,
        memory_mask: Bool[Tensor, "memories source"] | None = None,
        cache: KeyValueCache | None = None,
        documents: PackedLayout | None = None,
        memory_documents: PackedLayout | None = None,
        prefix: Int[Tensor, " rows"] | None = None,
        num_global_tokens: Int[Tensor, " rows"] | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        """Computes the states of the last layer.

        Args:
            x: embedded tokens; with a cache, only the new ones.
            mask: True at non-padding tokens, including cached ones; None: no padding.
            positions: position of each token, from 0; None: 0, 1, ... (Padding changes no distance, so without a cache
                only position schemes that add a vector use it.)
            memory: states that cross-attention attends to.
            memory_mask: True at non-padding positions of the memory; None: no padding.
            cache: earlier keys and values; the new ones are added.
            documents: the documents if ``x`` is one packed row; each is processed separately, and ``mask`` and
                ``positions`` are ignored. None: ``x`` is not packed.
            memory_documents: the same for ``memory``; document i of ``x`` attends to document i of it.
            prefix: number of leading positions of each text that all positions attend to; later positions attend
                causally. None: see ``causal``.
            num_global_tokens: number of leading positions of each text that are global (``LongformerAttention``):
                a question, a text to translate. None: the first.

        Raises:
            ValueError: more positions than there is room for.
        """
        past = 0 if cache is None else cache.length
        length = x.shape[1] if documents is None else documents.longest
        if documents is not None:
            positions = documents.positions[None]
        self._check_room((past if positions is None else 0) + length)
        x = self.dropout(self.embed_norm(self.position.add(x, past, positions)))
        attention_mask = {
            window: self.attention_mask(length, x.device, window, past, mask, documents, prefix, num_global_tokens)
            for window in set(self.windows)
        }
        if documents is None or memory_documents is None:
            memory_attention_mask = AttentionMask(mask=None if memory_mask is None else memory_mask[:, None, None, :])
        else:
            memory_attention_mask = AttentionMask.across(documents, memory_documents)
        bias = self.position.bias(length, past + length)
        if documents is not None:
            places = documents.positions
        elif cache is not None and positions is not None:  # joined rows have their own positions
            places = positions[:, None]
        else:
            places = torch.arange(past, past + length, device=x.device)
        return self._run(x, attention_mask, bias, places, memory, memory_attention_mask, memory_documents, cache)

    def _check_room(self, end: int) -> None:
        """Raises an error if there are fewer than ``end`` positions."""
        if self.max_positions is not None and end > self.max_positions:
            part = self.position if self.position.max_positions == self.max_positions else self._attention
            raise ValueError(
                f"{end} positions, but shape.max_length={self.max_positions} ({type(part).__name__}); raise "
                "shape.max_length or use block/position=rotary, which has no limit"
            )

    def attention_mask(
        self,
        length: int,
        device: torch.device,
        window: int | None = None,
        past: int = 0,
        mask: Bool[Tensor, "batch keys"] | None = None,
        documents: PackedLayout | None = None,
        prefix: Int[Tensor, " rows"] | None = None,
        num_global_tokens: Int[Tensor, " rows"] | None = None,
    ) -> AttentionMask:
        """Returns the visibility of self-attention.

        Args:
            length: number of positions of ``x``, or of the longest document.
            device: device of the masks.
            window: window of the layer; None: no window.
            past: number of positions in the cache.
            mask: see ``forward``, also for the other arguments.
        """
        if not self.has_all_pairs:
            packing = None if documents is None else PackedMask(documents, documents, self.causal)
            if documents is not None:
                mask = None if self.causal else documents.mask  # causality hides padding after it
            return AttentionMask(
                causal=self.causal, key_mask=mask, packing=packing, num_global_tokens=num_global_tokens
            )
        if documents is not None:
            return AttentionMask.within(documents, causal=self.causal, window=window, prefix=prefix)
        return AttentionMask.of(
            num_queries=length,
            num_keys=past + length,
            causal=self.causal,
            key_mask=mask,
            device=device,
            window=window,
            prefix=prefix,
        )

    def step(
        self,
        x: Float[Tensor, "batch 1 d_model"],
        *,
        place: Int[Tensor, "1"],
        positions: Int[Tensor, "batch 1"],
        mask: Bool[Tensor, "batch keys"],
        bias: Float[Tensor, "1 heads keys keys"] | None,
        memory: Float[Tensor, "memories source d_model"] | None,
        memory_mask: Bool[Tensor, "memories source"] | None,
        cache: KeyValueCache,
    ) -> Float[Tensor, "batch 1 d_model"]:
        """Computes ``forward`` of one new position, a tensor, so that the kernels are the same at each position.

        Later keys of the cache are masked.

        Args:
            x: embedded tokens.
            place: position of the tokens in the cache.
            positions: the same, counted from the first non-padding token of each row.
            mask: True at non-padding tokens; later positions are ignored.
            bias: bias of all positions of the cache, as queries and keys.
            memory: states that cross-attention attends to; their keys and values are in the cache.
            memory_mask: True at non-padding positions of the memory.
            cache: a cache of ``StaticLayerCache``s.
        """
        x = self.dropout(self.embed_norm(self.position.add(x, 0, positions)))
        attention_mask = {window: AttentionMask.at(place, mask, window=window) for window in set(self.windows)}
        memory_attention_mask = AttentionMask(mask=None if memory_mask is None else memory_mask[:, None, None, :])
        bias, places = None if bias is None else bias.index_select(2, place), positions[:, None]
        return self._run(x, attention_mask, bias, places, memory, memory_attention_mask, None, cache)

    def _cross_angles(
        self,
        places: Int[Tensor, "*rows length"],
        memory: Float[Tensor, "memories source d_model"] | None,
        memory_documents: PackedLayout | None,
    ) -> tuple[Angles, MemoryAngles] | None:
        """Returns the rotary angles of cross-attention at these positions and at those of the memory, or None."""
        if memory is None or (own := self.position.cross_angles(places)) is None:
            return None
        of_row = torch.arange(memory.shape[1], device=places.device)
        angles = self.position.cross_angles(of_row if memory_documents is None else memory_documents.positions)
        assert angles is not None
        return own, angles

    def _run(
        self,
        x: Float[Tensor, "batch length d_model"],
        attention_mask: Mapping[int | None, AttentionMask],
        bias: Float[Tensor, "1 heads _queries _keys"] | None,
        places: Int[Tensor, "*rows length"],
        memory: Float[Tensor, "memories source d_model"] | None,
        memory_attention_mask: AttentionMask,
        memory_documents: PackedLayout | None,
        cache: KeyValueCache | None,
    ) -> Float[Tensor, "batch length d_model"]:
        """Runs the blocks in order; ``attention_mask`` is given per window; ``places`` are the positions of ``x``."""
        biases: Mapping[int | None, Tensor | None] = dict.fromkeys(attention_mask, bias)
        if self._attention.joins_bias:
            attention_mask, biases = self._join(attention_mask, bias, x)
            memory_attention_mask = memory_attention_mask.for_kernel(x.device)
        angles = {window: self.position.angles(places, window) for window in set(self.windows)}
        cross_angles = self._cross_angles(places, memory, memory_documents)
        trains = torch.is_grad_enabled()
        blocks: Sequence[Callable[..., Tensor]] = self._compiled if self._compiled and trains else [*self.layers]
        if self.activation_checkpointing and trains:
            blocks = [partial(checkpoint, block, use_reentrant=False) for block in blocks]
        for i, block in enumerate(blocks):
            x = block(
                x,
                attention_mask=attention_mask[self.windows[i]],
                bias=biases[self.windows[i]],
                angles=angles[self.windows[i]],
                memory=memory,
                memory_attention_mask=memory_attention_mask,
                cross_angles=cross_angles,
                cache=None if cache is None else cache.self_attention[i],
                memory_cache=None if cache is None else cache.cross_attention[i],
            )
        y: Tensor = self.final_norm(x)
        return y

    def _join(
        self, attention_mask: Mapping[int | None, AttentionMask], bias: Tensor | None, x: Tensor
    ) -> tuple[Mapping[int | None, AttentionMask], Mapping[int | None, Tensor | None]]:
        """Computes once per window what else each layer would: masks for the kernel, and their sum with the bias. The
        sum has the type of the queries. A bias with a gradient is added in each layer, so that its gradients are summed
        in its own type."""
        device, dtype = x.device, x.dtype
        if torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type):
            dtype = torch.get_autocast_dtype(device.type)
        if bias is None or bias.requires_grad or (dtype == torch.bfloat16 and device.type == "cpu"):
            masks = {window: mask.for_kernel(device) for window, mask in attention_mask.items()}
            return masks, dict.fromkeys(masks, bias)
        masks = {window: mask.dense(device).for_kernel(device) for window, mask in attention_mask.items()}
        joined = {window: replace(mask, is_in_bias=True) for window, mask in masks.items()}
        return joined, {window: mask.join_bias(bias, dtype) for window, mask in masks.items()}

    def compile_blocks(self, *, dynamic: bool) -> None:
        """Compiles the blocks with torch.compile for training.

        Args:
            dynamic: whether one compiled program serves batches of all shapes; otherwise each shape has its own.
        """
        self._compiled = [torch.compile(layer, dynamic=dynamic) for layer in self.layers]


def initialize_stack(stack: "Stack") -> None:
    """Initializes the linear layers and the positions of a stack; norms are already ones.

    The output of a sub-layer is its last linear layer."""
    for module in stack.modules():
        if isinstance(module, nn.Linear):
            initialize_linear(module)
    stack.position.reset_parameters()
    outputs = [
        linear[-1]
        for block in stack.layers
        for sublayer in (block.self_attention, block.cross_attention, block.feed_forward)
        if isinstance(sublayer, nn.Module) and not (isinstance(sublayer, MultiHeadAttention) and sublayer.is_recurrent)
        if (linear := [module for module in sublayer.modules() if isinstance(module, nn.Linear)])
    ]
    for output in outputs:
        initialize_linear(output, scale=len(outputs) ** -0.5)
