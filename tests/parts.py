"""Parts of a stack by short names, as tests vary them."""

from collections.abc import Callable
from functools import partial
from typing import Any

from triptych.nn import (
    Alibi,
    FeedForward,
    GatedFeedForward,
    LayerNorm,
    Learned,
    MultiHeadAttention,
    Parallel,
    ParallelNorms,
    Position,
    PostNorm,
    PreNorm,
    Relative,
    ResPost,
    RMSNorm,
    Rotary,
    Sandwich,
    Sinusoidal,
    Sizes,
    Stack,
)

POSITIONS: dict[str, Callable[..., Position]] = {
    "none": Position,
    "learned": Learned,
    "sinusoidal": Sinusoidal,
    "rotary": Rotary,
    "partial rotary": partial(Rotary, share=0.5, local_theta=100.0, cross=True),
    "relative": Relative,
    "alibi": Alibi,
}
NORMS = {"layer": LayerNorm, "rms": RMSNorm}
RESIDUALS = {"pre": PreNorm, "post": PostNorm, "parallel": Parallel, "sandwich": Sandwich,
             "parallel_norms": ParallelNorms, "res_post": ResPost}  # fmt: skip
QK_NORMS = [None, "head", "all"]


def make_sizes(*, d_model: int = 16, num_heads: int = 4, head_dim: int | None = None, **options: Any) -> Sizes:
    """Sizes of a small stack."""
    head_dim = d_model // num_heads if head_dim is None else head_dim
    return Sizes(d_model=d_model, num_heads=num_heads, head_dim=head_dim, **{"d_ff": 24, **options})


def choose_parts(
    *,
    position: str | Callable[..., Position] = "sinusoidal",
    first: int = 0,
    norm: str = "layer",
    norm_eps: float = 1e-5,
    residual: str = "pre",
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
        "position": partial(scheme, first=first) if scheme in (Learned, Sinusoidal) else scheme,
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
