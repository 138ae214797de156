"""Sizes at the start of training, as initialization.py documents them."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from parts import make_stack
from small_models import build
from triptych.nn import Embedding, Sizes, Stack
from triptych.nn.network import weights_sha256


def assert_normal(weight: Tensor, std: float) -> None:
    """Zero mean and the given standard deviation, within five standard errors."""
    weight, count = weight.detach(), weight.numel()
    assert abs(float(weight.mean())) < 5 * std / math.sqrt(count)
    assert float(weight.std()) == pytest.approx(std, rel=5 / math.sqrt(2 * count))


@pytest.mark.parametrize("cross_attention", [False, True])
def test_linear_weights(cross_attention: bool) -> None:
    num_layers = 3
    stack = make_stack(
        num_layers=num_layers, d_model=64, num_heads=4, num_kv_heads=2, head_dim=24, d_ff=160, causal=True,
        cross_attention=cross_attention, gated=True,
    )  # fmt: skip
    branches = num_layers * (3 if cross_attention else 2)
    seen = 0
    for name, module in stack.named_modules():
        if isinstance(module, nn.Linear):
            ends_branch = name.endswith((".o", ".down"))
            fan_in = {"o": 4 * 24, "down": 160}.get(name.rsplit(".", 1)[1], 64)
            assert_normal(module.weight, fan_in**-0.5 * (branches**-0.5 if ends_branch else 1))
            assert not module.bias.any()
            seen += ends_branch
        if isinstance(module, nn.LayerNorm):
            assert torch.equal(module.weight, torch.ones(64))
            assert not module.bias.any()
    assert seen == branches


class OwnFeedForward(nn.Module):
    """With names of its own."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.w_in, self.w_out = nn.Linear(sizes.d_model, 4 * sizes.d_ff), nn.Linear(4 * sizes.d_ff, sizes.d_model)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.w_out(self.w_in(x))
        return y


def test_the_outputs_of_parts_with_other_names() -> None:
    stack = Stack(num_layers=2, d_model=64, num_heads=4, d_ff=64, causal=False, feed_forward=OwnFeedForward)
    for block in stack.layers:
        assert_normal(block.self_attention.o.weight, 64**-0.5 * 4**-0.5)
        assert_normal(block.feed_forward.w_out.weight, 256**-0.5 * 4**-0.5)
        assert_normal(block.feed_forward.w_in.weight, 64**-0.5)


def test_relative_tables_are_zero() -> None:
    stack = make_stack(num_layers=1, d_model=16, num_heads=4, d_ff=24, causal=True, position="relative_bias")
    assert not stack.position.table.weight.any()


def test_embeddings() -> None:
    embedding = Embedding(vocab_size=500, d_model=64, num_token_types=300)
    assert_normal(embedding.tokens.weight, 1 / 8)
    assert_normal(embedding.token_types.weight, 1 / 8)
    assert_normal(Embedding(vocab_size=500, d_model=64)(torch.arange(500)[None]), 1.0)


def test_learned_positions() -> None:
    options = {"num_layers": 1, "d_model": 64, "num_heads": 4, "d_ff": 8, "causal": False}
    stack = make_stack(**options, position="learned", max_length=300, first=2)
    assert stack.position.table.shape == (302, 64)
    assert_normal(stack.position.table, 1 / 8)


@pytest.mark.parametrize("num_layers", [2, 12])
@pytest.mark.parametrize("options", [{"activation": "relu"}, {"activation": "gelu", "norm": "rms_norm"}])
def test_the_sum_of_all_branches_has_the_size_of_one(num_layers: int, options: dict[str, str]) -> None:
    stack = make_stack(num_layers=num_layers, d_model=64, num_heads=4, d_ff=256, causal=False, **options)
    last: list[Tensor] = []
    stack.final_norm.register_forward_pre_hook(lambda _, inputs: last.append(inputs[0]))
    x = torch.randn(8, 4, 64)
    with torch.no_grad():
        stack(x)
    assert 0.5 < float((last[0] - x).std()) < 1.2


@pytest.mark.parametrize("architecture", ["encoder_only", "decoder_only", "full"])
@pytest.mark.parametrize("residual", ["pre_norm", "post_norm"])
@pytest.mark.parametrize("tie_word_embeddings", [False, True])
def test_first_logits_are_of_order_one(architecture: str, residual: str, tie_word_embeddings: bool) -> None:
    model = build(
        architecture, vocab_size=300, d_model=64, d_ff=128, residual=residual,
        tie_word_embeddings=tie_word_embeddings, position="none",
    )  # fmt: skip
    tokens = torch.randint(300, (8, 10))
    inputs = (tokens, tokens.flip(1)) if architecture == "full" else (tokens,)
    with torch.no_grad():
        assert 0.7 < float(model(*inputs).std()) < 1.4


def test_every_parameter_gets_a_gradient_at_the_start() -> None:
    stack = make_stack(
        num_layers=2, d_model=16, num_heads=4, d_ff=24, causal=True, cross_attention=True, position="relative_bias"
    )
    x, memory = torch.randn(2, 2, 5, 16).unbind()
    (stack(x, memory=memory) * torch.randn(16)).sum().backward()
    for name, parameter in stack.named_parameters():
        if not name.endswith("k.bias"):  # adds the same score to every key
            assert parameter.grad.any(), name
        else:
            assert_close(parameter.grad, torch.zeros_like(parameter), atol=1e-5, rtol=0)


def test_weights_that_are_single_numbers_have_a_fingerprint_too() -> None:
    module = nn.Module()
    module.alpha = nn.Parameter(torch.tensor(0.5))
    first = weights_sha256(module)
    module.alpha.data += 1
    assert weights_sha256(module) != first
