"""Parts of a stack by short names, as tests vary them."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from triptych.models import DualDecoder, DualEncoder, DualEncoderBase
from triptych.nn import (
    Alibi,
    Embedding,
    FeedForward,
    GatedFeedForward,
    Head,
    LayerNorm,
    LearnedPositions,
    MultiHeadAttention,
    Parallel,
    ParallelNorms,
    PatchEmbedding,
    Position,
    PostNorm,
    PreNorm,
    RelativeBias,
    ResPostNorm,
    RMSNorm,
    Rotary,
    SandwichNorm,
    SinusoidalPositions,
    Sizes,
    Stack,
)

POSITIONS: dict[str, Callable[..., Position]] = {
    "none": Position,
    "learned": LearnedPositions,
    "sinusoidal": SinusoidalPositions,
    "rotary": Rotary,
    "partial rotary": partial(Rotary, partial_rotary_factor=0.5, local_theta=100.0, rotate_cross_attention=True),
    "relative_bias": RelativeBias,
    "alibi": Alibi,
}
NORMS = {"layer_norm": LayerNorm, "rms_norm": RMSNorm}
RESIDUALS = {"pre_norm": PreNorm, "post_norm": PostNorm, "parallel": Parallel, "sandwich_norm": SandwichNorm,
             "parallel_norms": ParallelNorms, "res_post_norm": ResPostNorm}  # fmt: skip
QK_NORMS = [None, "head", "all"]


def make_sizes(*, d_model: int = 16, num_heads: int = 4, head_dim: int | None = None, **options: Any) -> Sizes:
    """Sizes of a small stack."""
    head_dim = d_model // num_heads if head_dim is None else head_dim
    return Sizes(d_model=d_model, num_heads=num_heads, head_dim=head_dim, **{"d_ff": 24, **options})


def choose_parts(
    *,
    position: str | Callable[..., Position] = "sinusoidal",
    first: int = 0,
    norm: str = "layer_norm",
    norm_eps: float = 1e-5,
    residual: str = "pre_norm",
    gated: bool = False,
    activation: str = "relu",
    feed_forward_dropout: float = 0.0,
    qk_norm: str | None = None,
    attends: Callable[..., MultiHeadAttention] = MultiHeadAttention,
    **attention: Any,
) -> dict[str, Any]:
    """The arguments of a stack that are parts; what is not named here is an option of the attention.

    Args:
        position: a name of ``POSITIONS``, or a part.
        first: row of the first token, where the scheme has a table.
        norm: layer or rms.
        norm_eps: its eps.
        residual: a name of ``RESIDUALS``.
        gated: whether the feed-forward sub-layers are.
        activation: theirs.
        feed_forward_dropout: theirs.
        qk_norm: head or all, what such a norm has of queries and keys at a time; None: there is none.
        attends: the class of the attention.
        attention: options of it; its dropout is ``attention_dropout``.
    """
    options = {name.removeprefix("attention_"): value for name, value in attention.items()}
    if qk_norm is not None:
        options |= {"qk_norm": partial(NORMS[norm], eps=norm_eps), "qk_norm_over": qk_norm}
    scheme = POSITIONS[position] if isinstance(position, str) else position
    return {
        "position": partial(scheme, first=first) if scheme in (LearnedPositions, SinusoidalPositions) else scheme,
        "norm": partial(NORMS[norm], eps=norm_eps),
        "residual": RESIDUALS[residual],
        "feed_forward": partial(
            GatedFeedForward if gated else FeedForward, activation=activation, dropout=feed_forward_dropout
        ),
        "attention": partial(attends, **options),
    }


OF_STACK = ("num_layers", "d_model", "num_heads", "d_ff", "causal", "cross_attention", "head_dim", "max_length", "bias",
            "dropout", "embed_norm", "first_norm", "activation_checkpointing")  # fmt: skip


def make_stack(**options: Any) -> Stack:
    """A stack; its parts are chosen by the names of ``choose_parts``."""
    own = {name: value for name, value in options.items() if name in OF_STACK}
    return Stack(**own, **choose_parts(**{name: value for name, value in options.items() if name not in own}))


def dual_encoder(
    architecture: str,
    *,
    vocab_size: int = 11,
    causal: bool | None = None,
    source_causal: bool | None = None,
    pool: str | None = None,
    outputs: int = 7,
    source_outputs: int | None = None,
    source_width: int = 8,
    image_size: Sequence[int] = (4, 6),
    num_channels: int = 2,
    patch_size: Sequence[int] = (2, 3),
    max_length: int | None = None,
    cross_attention: bool = False,
    has_source: bool = True,
    initial_scale: float = 5.0,
    attends_in_windows: bool = False,
) -> DualEncoderBase:
    """Small towers, for texts 16 wide and for images 8 wide; every argument has a default but the architecture."""
    patches = PatchEmbedding(image_size=image_size, patch_size=patch_size, num_channels=num_channels, d_model=8)
    is_causal, kind = architecture == "decoder_only", DualDecoder if architecture == "decoder_only" else DualEncoder
    name = "decoder" if is_causal else "encoder"
    stack = make_stack(
        num_layers=2, d_model=16, num_heads=4, d_ff=24, max_length=24, cross_attention=cross_attention,
        causal=is_causal if causal is None else causal, sliding_windows=[4, None] if attends_in_windows else None,
    )  # fmt: skip
    source_stack = make_stack(
        num_layers=1, d_model=source_width, num_heads=2, d_ff=20, max_length=max_length or patches.length,
        causal=is_causal if source_causal is None else source_causal, position="learned",
    )  # fmt: skip
    pooled: Any = pool or ("last" if is_causal else "first")
    return kind(
        embedding=Embedding(vocab_size=vocab_size, d_model=16),
        source_embedding=patches if has_source else None,
        head=Head(d_model=16, num_outputs=outputs, pooling=pooled),
        source_head=Head(d_model=8, num_outputs=source_outputs or outputs, pooling=pooled),
        initial_scale=initial_scale,
        **{name: stack, f"source_{name}": source_stack},
    )
