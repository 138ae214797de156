import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from triptych.nn import prepacked
from triptych.nn.kernels.prepacked import PrepackedLinear


def prepacked_layers(network: nn.Module) -> int:
    return sum(isinstance(module, PrepackedLinear) for module in network.modules())


@given(
    shapes=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 3)), min_size=1, max_size=4),
    inputs=st.integers(1, 70),
    outputs=st.integers(1, 300),
    bias=st.booleans(),
)
@torch.no_grad()
def test_is_the_linear_layer(shapes: list[tuple[int, int]], inputs: int, outputs: int, bias: bool) -> None:
    """However many rows follow on how many."""
    linear = nn.Linear(inputs, outputs, bias=bias)
    if bias:
        linear.bias = nn.Parameter(torch.randn(outputs, 2)[:, 1])  # not in one piece
    layer = PrepackedLinear(linear)
    for rows, length in shapes:
        x = torch.randn(rows, length, inputs)
        expected = x.double() @ linear.weight.double().T + (linear.bias.double() if bias else 0)
        assert_close(layer(x).double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("architecture", ["decoder_only", "full"])
@pytest.mark.parametrize("rows", [1, 3])
@torch.no_grad()
def test_decoding_says_what_the_whole_says(random_model: Callable[..., Any], architecture: str, rows: int) -> None:
    """Of weights that are large enough, those of the head and of the feed-forward layers; the head's is the token
    table. All else of the network stays as it is."""
    network = random_model(architecture, vocab_size=4096, d_model=128, tie_output=True).float()
    before = copy.deepcopy(network.state_dict())
    source, tokens = torch.randint(4096, (rows, 5)), torch.randint(4096, (rows, 6))
    given = (source, None) if architecture == "full" else (None,)
    expected = network(source, tokens) if architecture == "full" else network(tokens)
    continuation = network.continuation(*given, capacity=6)
    for i in range(6):
        found = continuation(tokens[:, i : i + 1])
        assert_close(found, expected[:, i], rtol=0, atol=3e-5 * float(expected.abs().max()))
    copied = prepacked(network)
    assert prepacked_layers(copied) > 0
    assert copied.head.output.linear.weight is network.embedding.tokens.weight
    assert {id(p) for p in copied.parameters()} == {id(p) for p in network.parameters()}
    assert prepacked_layers(network) == 0
    assert network.state_dict().keys() == before.keys()
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


@torch.no_grad()
def test_weights_of_now_are_read(random_model: Callable[..., Any]) -> None:
    """Validation between two updates."""
    network, tokens = random_model("decoder_only", vocab_size=8192).float(), torch.randint(8192, (2, 3))
    first = network.continuation(None, capacity=3)(tokens)
    network.head.output.weight.mul_(2)
    second = network.continuation(None, capacity=3)(tokens)
    assert_close(second, 2 * first, rtol=1e-5, atol=1e-5 * float(first.abs().max()))


class TestIsLeftAlone:
    """The network itself decodes."""

    @pytest.fixture
    def network(self, random_model: Callable[..., Any]) -> Any:
        return random_model("decoder_only", vocab_size=8192).float()

    def test_where_gradients_are_wanted(self, network: Any) -> None:
        assert prepacked(network) is network
        with torch.no_grad():
            assert prepacked(network) is not network

    @torch.no_grad()
    def test_where_a_hook_looks(self, network: Any) -> None:
        with network.head.output.register_forward_hook(lambda *_: None):
            assert prepacked(network) is network
        assert prepacked(network) is not network

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
    @torch.no_grad()
    def test_in_another_precision(self, network: Any, dtype: torch.dtype) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            assert prepacked(network) is network
        assert prepacked(network.to(dtype)) is network

    @torch.no_grad()
    def test_where_weights_are_small(self, random_model: Callable[..., Any]) -> None:
        network = random_model("decoder_only").float()
        assert prepacked(network) is network
