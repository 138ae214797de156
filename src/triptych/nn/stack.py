"""A stack of blocks: an encoder or a decoder."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from triptych.nn.block import Block, NormName, NormPosition, make_norm
from triptych.nn.feed_forward import ActivationName
from triptych.nn.initialization import initialize_linear
from triptych.nn.kv_cache import KeyValueCache
from triptych.nn.masks import Local, Visibility
from triptych.nn.packing import Documents
from triptych.nn.positions import RelativeBias, RopeScaling, Rotary, sinusoids

PositionName = Literal["none", "learned", "sinusoidal", "rotary", "relative"]


class Stack(nn.Module):
    """x_0 = dropout(norm_0(x + P)); then N blocks, and with pre-norm one last norm.

    P and norm_0 are there by choice. An encoder is a stack; a decoder is a causal stack.

    Args:
        num_layers: N.
        d_model: width.
        num_heads: query heads.
        d_ff: width of the feed-forward sub-layers.
        causal: whether a position sees only itself and earlier ones.
        cross_attention: whether the blocks look at a memory.
        num_kv_heads: key and value heads; None: as many as query heads.
        head_dim: width of each head; None: d_model / num_heads.
        qk_scale: of the attention's scores; None: 1 / sqrt(head_dim).
        windows: how far positions see, themselves included, in the first, second, ... block, and so on in turns;
            None: without limit.
        norm: layer or rms.
        norm_eps: added to the variance.
        norm_position: pre or post; pre adds a last norm.
        embed_norm: whether there is a norm_0.
        activation: relu, gelu, gelu_tanh or silu.
        gated: whether the feed-forward sub-layers are gated.
        bias: whether the projections have one.
        qkv_bias: whether those of queries, keys and values have one; None: as ``bias``.
        position: learned and sinusoidal add P; rotary and relative act in the attention.
        max_length: positions of P; the other schemes have no limit.
        first_position: row of P of the first token; a learned P has as many rows more.
        rope_theta: base of the frequencies of rotary positions.
        rope_scaling: of these frequencies.
        relative_buckets: rows of the table of relative positions.
        relative_max_distance: from this distance on, all share a row.
        dropout: of x_0 and of each sub-layer's output.
        attention_dropout: of the attention weights.
        feed_forward_dropout: of the feed-forward sub-layers' hidden units.
        activation_checkpointing: whether training keeps only what goes into each block, and computes the block anew in
            the backward pass, to the same numbers (Chen et al. 2016, section 4.1).

    Raises:
        ValueError: sizes that cannot be.
    """

    positions: Tensor | None

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
        qk_scale: float | None = None,
        windows: Sequence[int | None] | None = None,
        norm: NormName = "layer",
        norm_eps: float = 1e-5,
        norm_position: NormPosition = "pre",
        embed_norm: bool = False,
        activation: ActivationName = "relu",
        gated: bool = False,
        bias: bool = True,
        qkv_bias: bool | None = None,
        position: PositionName = "sinusoidal",
        max_length: int = 512,
        first_position: int = 0,
        rope_theta: float = 10000.0,
        rope_scaling: RopeScaling | None = None,
        relative_buckets: int = 32,
        relative_max_distance: int = 128,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        feed_forward_dropout: float = 0.0,
        activation_checkpointing: bool = False,
    ) -> None:
        super().__init__()
        if num_layers < 1:
            raise ValueError(f"num_layers={num_layers}: expected at least 1")
        if norm_eps < 0:
            raise ValueError(f"block.norm_eps={norm_eps}: expected at least 0")
        windows = windows or (None,)
        if any(window is not None and window < 1 for window in windows):
            raise ValueError(f"block.windows={list(windows)}: expected numbers of at least 1, or null")
        self.d_model, self.position, self.max_length = d_model, position, max_length
        self.causal, self.has_cross_attention, self.first_position = causal, cross_attention, first_position
        self.activation_checkpointing = activation_checkpointing
        self._compiled: list[Callable[..., Tensor]] = []  # a list, for these are no further modules
        self.windows = [windows[i % len(windows)] for i in range(num_layers)]
        self.layers = nn.ModuleList(
            Block(
                d_model=d_model,
                num_heads=num_heads,
                d_ff=d_ff,
                cross_attention=cross_attention,
                num_kv_heads=num_kv_heads,
                head_dim=head_dim,
                qk_scale=qk_scale,
                norm=norm,
                norm_eps=norm_eps,
                norm_position=norm_position,
                activation=activation,
                gated=gated,
                bias=bias,
                qkv_bias=qkv_bias,
                dropout=dropout,
                attention_dropout=attention_dropout,
                feed_forward_dropout=feed_forward_dropout,
            )
            for _ in range(num_layers)
        )
        if position == "learned":
            self.positions = nn.Parameter(torch.empty(first_position + max_length, d_model))
        elif position == "sinusoidal":
            self.register_buffer("positions", sinusoids(first_position + max_length, d_model), persistent=False)
        else:
            self.positions = None
        self.embed_norm = make_norm(norm, d_model, norm_eps) if embed_norm else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.final_norm = make_norm(norm, d_model, norm_eps) if norm_position == "pre" else nn.Identity()
        self.rotary = (
            Rotary(head_dim=head_dim or d_model // num_heads, theta=rope_theta, scaling=rope_scaling)
            if position == "rotary"
            else None
        )
        self.relative_bias = (
            RelativeBias(
                num_heads=num_heads, causal=causal, num_buckets=relative_buckets, max_distance=relative_max_distance
            )
            if position == "relative"
            else None
        )
        initialize_stack(self)

    @property
    def room(self) -> int | None:
        """The positions that there is a vector for; None: no limit."""
        return None if self.positions is None else self.max_length

    def local(self, window: int | None, length: int) -> Local | None:
        """The blocks in which a layer attends to a whole text; None: it looks at all pairs.

        Args:
            window: of the layer.
            length: of the text.
        """
        if window is None or self.relative_bias is not None:
            return None
        local = Local(window, self.causal, length)
        return local if local.pays else None

    def forward(
        self,
        x: Float[Tensor, "batch length d_model"],
        *,
        mask: Bool[Tensor, "batch keys"] | None = None,
        positions: Int[Tensor, "#batch length"] | None = None,
        memory: Float[Tensor, "memories source d_model"] | None = None,
        memory_mask: Bool[Tensor, "memories source"] | None = None,
        cache: KeyValueCache | None = None,
        documents: Documents | None = None,
        memory_documents: Documents | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        """The states of the last layer.

        Args:
            x: embedded tokens; with a cache, the new ones only.
            mask: True at real tokens, cached ones included; None: all are real.
            positions: the place of each token in P, from 0; None: in their order. (Where the padding stands changes no
                distance, so the other schemes need none.)
            memory: what cross-attention looks at.
            memory_mask: True at real positions of the memory; None: all are real.
            cache: earlier keys and values; the new ones are added.
            documents: what ``x`` is one packed row of; each is read as if it stood alone; ``mask`` and ``positions``
                say nothing then. None: nothing is packed.
            memory_documents: the same of ``memory``: document i of ``x`` looks at document i of it.

        Raises:
            ValueError: more positions than P has.
        """
        past = 0 if cache is None else cache.length
        length = x.shape[1] if documents is None else documents.longest
        if documents is not None:
            positions = documents.positions[None]
        x = self.dropout(self.embed_norm(self._placed(x, positions, past, length)))
        visibility = {
            window: Visibility.of(
                num_queries=length,
                num_keys=past + length,
                causal=self.causal,
                key_mask=mask,
                device=x.device,
                window=window,
            )
            if documents is None
            else Visibility.within(documents, causal=self.causal, window=window)
            for window in set(self.windows)
        }
        if documents is None or memory_documents is None:
            memory_visibility = Visibility(mask=None if memory_mask is None else memory_mask[:, None, None, :])
        else:
            memory_visibility = Visibility.across(documents, memory_documents)
        bias = None if self.relative_bias is None else self.relative_bias(length, past + length)
        places = torch.arange(past, past + length, device=x.device) if documents is None else documents.positions
        angles = None if self.rotary is None else self.rotary(places)
        trains = torch.is_grad_enabled()
        blocks: Sequence[Callable[..., Tensor]] = self._compiled if self._compiled and trains else [*self.layers]
        if self.activation_checkpointing and trains:
            blocks = [partial(checkpoint, block, use_reentrant=False) for block in blocks]
        for i, block in enumerate(blocks):
            x = block(
                x,
                visibility=visibility[self.windows[i]],
                bias=bias,
                angles=angles,
                memory=memory,
                memory_visibility=memory_visibility,
                cache=None if cache is None else cache.self_attention[i],
                memory_cache=None if cache is None else cache.cross_attention[i],
            )
        y: Tensor = self.final_norm(x)
        return y

    def compile_blocks(self) -> None:
        """From now on training runs the blocks as torch.compile translates them, anew for each shape of the batches."""
        self._compiled = [torch.compile(layer, dynamic=False) for layer in self.layers]

    def _placed(
        self,
        x: Float[Tensor, "batch length d_model"],
        positions: Int[Tensor, "#batch length"] | None,
        past: int,
        length: int,
    ) -> Float[Tensor, "batch length d_model"]:
        if self.positions is None:
            return x
        end = (past if positions is None else 0) + length
        if end > self.max_length:
            raise ValueError(
                f"{end} positions, but shape.max_length={self.max_length} (block.position={self.position}); "
                "raise shape.max_length or use block.position=rotary, which has no limit"
            )
        first = self.first_position
        if positions is None:
            return x + self.positions[first + past : first + end]
        return x + F.embedding(first + positions, self.positions)


def initialize_stack(stack: "Stack") -> None:
    """Initialises the linear layers and position tables of a stack; norms are ones by construction."""
    for module in stack.modules():
        if isinstance(module, nn.Linear):
            initialize_linear(module)
    if isinstance(stack.positions, nn.Parameter):
        nn.init.normal_(stack.positions, std=stack.d_model**-0.5)
    if stack.relative_bias is not None:
        nn.init.zeros_(stack.relative_bias.table.weight)
    outputs = [
        module
        for name, module in stack.named_modules()
        if isinstance(module, nn.Linear) and name.endswith(("attention.o", "feed_forward.down"))
    ]
    for output in outputs:
        initialize_linear(output, scale=len(outputs) ** -0.5)
