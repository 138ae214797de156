"""Parts of the blocks against their implementations in ``transformers``, with the same weights."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from transformers import CohereConfig, Gemma2Config, Olmo2Config, Qwen3Config
from transformers.models.cohere.modeling_cohere import CohereDecoderLayer
from transformers.models.gemma2.modeling_gemma2 import Gemma2Attention, Gemma2DecoderLayer
from transformers.models.olmo2.modeling_olmo2 import Olmo2Attention
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention

import oracle  # noqa: F401 - no progress bars
from parts import choose_parts, make_sizes, make_stack
from small_models import randomize
from triptych.nn import AttentionMask, Block, MultiHeadAttention, RMSNorm, Rotary, SharedAttention
from triptych.report.attention_maps import record_attention

SIZES: dict[str, Any] = {"d_model": 24, "num_heads": 4, "bias": False}
LENGTH = 7
FUTURE = torch.full((LENGTH, LENGTH), float("-inf")).triu(1)[None, None]


def rope(rotary: Rotary) -> tuple[Tensor, Tensor]:
    """The angles as ``transformers`` has them, of both halves of a head."""
    cos, sin = rotary.angles(torch.arange(LENGTH))
    return torch.cat((cos, cos), -1)[None], torch.cat((sin, sin), -1)[None]


@torch.no_grad()
def copy(ours: MultiHeadAttention, theirs: nn.Module) -> None:
    """Gives the projections and norms of our attention to theirs."""
    for name in "qkvo":
        getattr(theirs, f"{name}_proj").load_state_dict(getattr(ours, name).state_dict())
    for name in ("q_norm", "k_norm"):
        if hasattr(theirs, name):
            getattr(theirs, name).load_state_dict(getattr(ours, name).state_dict())


def copy_feed_forward(ours: nn.Module, theirs: nn.Module) -> None:
    """Gives the projections of our gated feed-forward sub-layer to theirs."""
    for name in ("gate", "up", "down"):
        getattr(theirs, f"{name}_proj").load_state_dict(getattr(ours, name).state_dict())


def block_of(**options: Any) -> Block:
    parts = choose_parts(gated=True, num_kv_heads=2, norm_eps=0.1, **options)
    del parts["position"]
    return Block(make_sizes(**SIZES, d_ff=40), 0, cross_attention=False, **parts)


def their_config(kind: type, **options: Any) -> Any:
    sizes = {
        "hidden_size": 24, "intermediate_size": 40, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6,
    }  # fmt: skip
    return kind(**sizes, rms_norm_eps=0.1, num_hidden_layers=1, attn_implementation="eager", **options)


@pytest.mark.parametrize(
    ("over", "config", "attention"),
    [("head", Qwen3Config, Qwen3Attention), ("all", Olmo2Config, Olmo2Attention)],
    ids=["qwen3", "olmo2"],
)
def test_norms_of_queries_and_keys(over: Any, config: type, attention: Callable[..., nn.Module]) -> None:
    sizes, theirs = make_sizes(**SIZES), attention(their_config(config), layer_idx=0).eval()
    ours = MultiHeadAttention(sizes, num_kv_heads=2, qk_norm=lambda width: RMSNorm(width, eps=0.1), qk_norm_over=over)
    copy(randomize(ours), theirs)
    x, rotary = torch.randn(2, LENGTH, 24), Rotary(sizes)
    expected, _ = theirs(x, position_embeddings=rope(rotary), attention_mask=FUTURE)
    found = ours(x, attention_mask=AttentionMask(causal=True), angles=rotary.angles(torch.arange(LENGTH)))
    assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_capped_scores(causal: bool) -> None:
    """Also the weights that a map of them shows."""
    sizes, rotary = make_sizes(**SIZES), Rotary(make_sizes(**SIZES))
    config = their_config(
        Gemma2Config, attn_logit_softcapping=0.7, query_pre_attn_scalar=9, layer_types=["full_attention"]
    )
    theirs = Gemma2Attention(config, layer_idx=0).eval()
    ours = randomize(MultiHeadAttention(sizes, num_kv_heads=2, scale=9**-0.5, softcap=0.7))
    copy(ours, theirs)
    x = 3 * torch.randn(2, LENGTH, 24)
    mask = FUTURE if causal else torch.zeros_like(FUTURE)
    expected, weights = theirs(x, position_embeddings=rope(rotary), attention_mask=mask)
    with record_attention(ours) as found_weights:
        found = ours(x, attention_mask=AttentionMask(causal=causal), angles=rotary.angles(torch.arange(LENGTH)))
    assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert_close(found_weights[ours], weights, atol=1e-5, rtol=1e-5)


def test_a_parallel_block() -> None:
    """Cohere's, whose norms have no bias; rotations by 0 change nothing."""
    theirs = CohereDecoderLayer(their_config(CohereConfig, layer_norm_eps=0.1), layer_idx=0).eval()
    ours = randomize(block_of(residual="parallel", activation="silu"))
    with torch.no_grad():
        ours.self_residual.norm.bias.zero_()
    copy(ours.self_attention, theirs.self_attn)
    copy_feed_forward(ours.feed_forward, theirs.mlp)
    theirs.input_layernorm.load_state_dict({"weight": ours.self_residual.norm.weight})
    x, still = torch.randn(2, LENGTH, 24), (torch.ones(1, LENGTH, 6), torch.zeros(1, LENGTH, 6))
    expected = theirs(x, position_embeddings=still, attention_mask=FUTURE)
    assert_close(ours(x, attention_mask=AttentionMask(causal=True)), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("residual", ["parallel_norms", "res_post_norm"])
def test_residuals_are_their_formulas(residual: str, cross: bool) -> None:
    """GPT-NeoX's and OLMo 2's, in float64."""
    parts = choose_parts(residual=residual, norm="rms_norm", norm_eps=0.1)
    del parts["position"]
    block = randomize(Block(make_sizes(**SIZES), 0, cross_attention=cross, **parts)).double()
    x, memory, all_of = torch.randn(2, 5, 24).double(), torch.randn(2, 4, 24).double(), AttentionMask()

    def normed(x: Tensor, norm: nn.Module) -> Tensor:
        return norm.weight * x / (x.square().mean(-1, keepdim=True) + 0.1).sqrt()

    sublayers = [
        (block.self_residual, lambda x: block.self_attention(x, attention_mask=all_of)),
        (block.cross_residual, lambda x: block.cross_attention(x, memory, attention_mask=all_of)),
        (block.feed_forward_residual, block.feed_forward),
    ]
    expected = x
    for way, f in sublayers if cross else sublayers[::2]:
        parallel = residual == "parallel_norms"
        expected = expected + (f(normed(x, way.norm)) if parallel else normed(f(expected), way.norm))
    found = block(x, attention_mask=all_of, memory=memory if cross else None, memory_attention_mask=all_of)
    assert_close(found, expected, atol=1e-12, rtol=1e-12)


def test_the_first_norm_can_be_left_out() -> None:
    """The first block then reads x itself; the others, and its feed-forward layer, do not."""
    options = {"num_layers": 2, "causal": False, "d_model": 24, "num_heads": 4, "d_ff": 40, "position": "none"}
    stack = randomize(make_stack(first_norm=False, **options)).double()
    x, all_of = torch.randn(2, 5, 24).double(), AttentionMask()
    first, second = stack.layers
    expected = x + first.self_attention(x, attention_mask=all_of)
    expected = expected + first.feed_forward(first.feed_forward_residual.norm(expected))
    expected = stack.final_norm(second(expected, attention_mask=all_of))
    assert_close(stack(x), expected, atol=1e-12, rtol=1e-12)
    with pytest.raises(ValueError, match=r"block\.first_norm=false with PostNorm: expected block/residual=pre_norm"):
        make_stack(first_norm=False, residual="post_norm", **options)


def test_a_sandwich() -> None:
    """Gemma 2's layer, whose norms multiply by 1 + w."""
    config = their_config(
        Gemma2Config, attn_logit_softcapping=0.7, query_pre_attn_scalar=9, layer_types=["full_attention"]
    )
    theirs = Gemma2DecoderLayer(config, layer_idx=0).eval()
    options = {"norm": "rms_norm", "activation": "gelu_tanh", "scale": 9**-0.5, "softcap": 0.7}
    ours, rotary = randomize(block_of(residual="sandwich_norm", **options)), Rotary(make_sizes(**SIZES))
    copy(ours.self_attention, theirs.self_attn)
    copy_feed_forward(ours.feed_forward, theirs.mlp)
    norms = {
        "input_layernorm": ours.self_residual.norm,
        "post_attention_layernorm": ours.self_residual.output_norm,
        "pre_feedforward_layernorm": ours.feed_forward_residual.norm,
        "post_feedforward_layernorm": ours.feed_forward_residual.output_norm,
    }
    for name, norm in norms.items():
        getattr(theirs, name).load_state_dict({"weight": norm.weight - 1})
    x = torch.randn(2, LENGTH, 24)
    expected = theirs(x, position_embeddings=rope(rotary), attention_mask=FUTURE)
    found = ours(x, attention_mask=AttentionMask(causal=True), angles=rotary.angles(torch.arange(LENGTH)))
    assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("shared", ["qk", "kv", "qkv"])
def test_shared_projections(shared: Any) -> None:
    """The same as equal ones; cross-attention has all of them."""
    sizes, x, causal = make_sizes(**SIZES), torch.randn(2, LENGTH, 24), AttentionMask(causal=True)
    part, usual = randomize(SharedAttention(sizes, shared=shared)), MultiHeadAttention(sizes)
    own = part.state_dict()
    names = {"k": "q" if "q" in shared else "k", "v": {"qk": "v", "kv": "k", "qkv": "q"}[shared]}
    usual.load_state_dict(own | {f"{name}.weight": own[f"{other}.weight"] for name, other in names.items()})
    assert {name[0] for name in own} == {"q", "o", *names.values()}
    assert_close(part(x, attention_mask=causal), usual(x, attention_mask=causal))
    assert hasattr(SharedAttention(sizes, cross=True, shared=shared), "v")
