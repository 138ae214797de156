"""The parts of a block besides attention: feed-forward, norms, residual connections."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from parts import NORMS, RESIDUALS, make_sizes
from small_models import randomize
from triptych.nn import (
    AttentionMask,
    Block,
    DetachedLayerNorm,
    DynamicTanh,
    FeedForward,
    GatedFeedForward,
    LayerNorm,
    MultiHeadAttention,
    NoFeedForward,
    NoNorm,
    NoResidual,
    Residual,
)

ACTIVATIONS: dict[str, Callable[[float], float]] = {
    "relu": lambda x: max(x, 0.0),
    "gelu": lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "quick_gelu": lambda x: x / (1 + math.exp(-1.702 * x)),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "relu_squared": lambda x: max(x, 0.0) ** 2,
    "identity": lambda x: x,
}


def affine(linear: nn.Linear, x: Tensor) -> Tensor:
    bias = 0 if linear.bias is None else linear.bias.double()
    return x.double() @ linear.weight.double().T + bias


class TestFeedForward:
    @pytest.mark.parametrize("activation", ACTIVATIONS)
    @pytest.mark.parametrize("gated", [False, True])
    @pytest.mark.parametrize("bias", [False, True])
    def test_is_the_formula(self, activation: str, gated: bool, bias: bool) -> None:
        layer = randomize(
            (GatedFeedForward if gated else FeedForward)(
                make_sizes(d_model=6, d_ff=10, bias=bias), activation=activation
            )
        )
        x = 2 * torch.randn(2, 3, 6)
        activated = affine(layer.gate if gated else layer.up, x).detach().apply_(ACTIVATIONS[activation])
        hidden = activated * affine(layer.up, x) if gated else activated
        assert_close(layer(x).double(), affine(layer.down, hidden), atol=1e-5, rtol=1e-5)
        assert all((module.bias is not None) == bias for module in layer.modules() if isinstance(module, nn.Linear))

    def test_dropout_acts_on_hidden_units_in_training_only(self) -> None:
        layer = FeedForward(make_sizes(d_model=6, d_ff=1000), dropout=0.5)
        seen: list[Tensor] = []
        layer.down.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        x = torch.randn(1, 1, 6)
        layer(x)
        layer.eval()(x)
        dropped, whole = seen
        kept = dropped != 0
        assert abs(kept.double().sum() / (whole != 0).double().sum() - 0.5) < 0.15
        assert_close(dropped[kept], 2 * whole[kept])


class TestNorm:
    def test_layer_norm_is_the_formula(self) -> None:
        norm, x, eps = randomize(NORMS["layer_norm"](8, eps=0.1)), torch.randn(2, 3, 8) + 1, 0.1
        centred = x.double() - x.double().mean(-1, keepdim=True)
        expected = centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt() * norm.weight + norm.bias
        assert_close(norm(x).double(), expected, atol=1e-5, rtol=1e-5)

    def test_rms_norm_is_the_formula(self) -> None:
        norm, x, eps = randomize(NORMS["rms_norm"](8, eps=0.1)), torch.randn(2, 3, 8) + 1, 0.1
        expected = norm.weight * x.double() / (x.double().square().mean(-1, keepdim=True) + eps).sqrt()
        assert_close(norm(x).double(), expected, atol=1e-5, rtol=1e-5)
        assert [name for name, _ in norm.named_parameters()] == ["weight"]

    @pytest.mark.parametrize("bias", [True, False])
    def test_detached_statistics(self, bias: bool) -> None:
        """The values of a layer norm; gradients as if mean and variance were numbers."""
        norm, usual = (randomize(kind(8, eps=0.1, bias=bias)) for kind in (DetachedLayerNorm, LayerNorm))
        usual.load_state_dict(norm.state_dict())
        x = (torch.randn(2, 3, 8) + 1).requires_grad_()
        y = norm(x)
        assert_close(y, usual(x), atol=1e-6, rtol=1e-5)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        scale = (x.double().var(-1, correction=0, keepdim=True) + 0.1).rsqrt()
        assert_close(gradient.double(), norm.weight * scale, atol=1e-6, rtol=1e-5)

    def test_dynamic_tanh_is_the_formula(self) -> None:
        norm, x = randomize(DynamicTanh(8, initial_scale=0.7)), torch.randn(2, 3, 8)
        expected = norm.weight * torch.tanh(norm.scale.double() * x.double()) + norm.bias
        assert_close(norm(x).double(), expected, atol=1e-6, rtol=1e-5)
        assert DynamicTanh(8).scale.item() == 0.5

    def test_none(self) -> None:
        x = torch.randn(2, 8)
        assert NoNorm(8)(x) is x


class TestResidual:
    @pytest.mark.parametrize("norm", [LayerNorm, NoNorm])
    def test_none(self, norm: type) -> None:
        x, without = torch.randn(2, 3, 8), randomize(NoResidual(make_sizes(d_model=8), norm))
        assert_close(without(x, torch.sin), torch.sin(without.norm(x)))

    @pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
    def test_pre_and_post(self, norm: str) -> None:
        x = torch.randn(2, 3, 8)
        pre, post = (
            randomize(RESIDUALS[name](make_sizes(d_model=8), NORMS[norm])) for name in ("pre_norm", "post_norm")
        )
        assert_close(pre(x, torch.sin), x + torch.sin(pre.norm(x)))
        assert_close(post(x, torch.sin), post.norm(x + torch.sin(x)))

    @pytest.mark.parametrize("name", RESIDUALS)
    def test_dropout_acts_on_the_branch_in_training_only(self, name: str) -> None:
        residual = RESIDUALS[name](make_sizes(d_model=8, dropout=0.5), nn.Identity)
        x = torch.randn(2, 3, 8)
        branch = residual(x, torch.ones_like) - x
        assert ((branch.abs() < 1e-5) | ((branch - 2).abs() < 1e-5)).all()
        assert 0 < (branch > 1).double().mean() < 1
        assert_close(residual.eval()(x, torch.ones_like), x + 1)


@pytest.mark.parametrize("residual", [*RESIDUALS.values(), NoResidual])
@pytest.mark.parametrize("cross", [False, True])
def test_a_block_without_a_feed_forward_sub_layer(residual: type[Residual], cross: bool) -> None:
    """The same as with one that gives zeros, but for a norm after the sum."""
    sizes, x, memory = make_sizes(d_model=8, num_heads=2), torch.randn(2, 3, 8), torch.randn(2, 4, 8)
    parts = {"attention": MultiHeadAttention, "residual": residual, "norm": LayerNorm, "cross_attention": cross}
    block = randomize(Block(sizes, 0, feed_forward=NoFeedForward, **parts))
    assert not [name for name, _ in block.named_parameters() if "feed_forward" in name]
    given = {"attention_mask": AttentionMask(), "memory_attention_mask": AttentionMask()}
    y = block(x, memory=memory if cross else None, **given)
    if residual in (NoResidual, RESIDUALS["post_norm"]):
        assert not torch.equal(y, x)
        return
    whole = Block(sizes, 0, feed_forward=FeedForward, **parts)
    whole.load_state_dict(block.state_dict(), strict=False)
    with torch.no_grad():
        for parameter in (*whole.feed_forward.down.parameters(), *norms_after(whole)):
            parameter.zero_()
    assert_close(y, whole(x, memory=memory if cross else None, **given))


def norms_after(block: Block) -> list[nn.Parameter]:
    """The parameters of a norm of the feed-forward sub-layer's output, which may have a bias."""
    norm = getattr(block.feed_forward_residual, "output_norm", getattr(block.feed_forward_residual, "norm", None))
    return [] if norm is None else [*norm.parameters()]
