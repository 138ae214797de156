from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from triptych.nn import Targets
from triptych.nn.kernels.linear import HAS_BOTH, ROWS, SMALLEST, Linear, is_quicker, linear

SIDE = 1024
"""A weight of SIDE x SIDE makes products of ROWS rows large enough."""


class Seen(TorchDispatchMode):
    """The operations that torch does inside."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))

    @property
    def num_one_dnn(self) -> int:
        return self.names.count("mkldnn::_linear_pointwise")


def expected(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    y = x.double() @ weight.double().T
    return y if bias is None else y + bias.double()


def assert_near(found: Tensor, wanted: Tensor) -> None:
    """To 1e-5 of the number, or of what a sum of SIDE random terms is, which may cancel."""
    assert_close(found.detach().double(), wanted.detach(), rtol=1e-5, atol=1e-5 * SIDE**0.5)


@given(
    rows=st.sampled_from([0, 1, ROWS - 1, ROWS, 2 * ROWS, 2 * ROWS + 1]),
    parts=st.sampled_from([1, 2]),
    inputs=st.sampled_from([1, 256, SIDE]),
    outputs=st.sampled_from([3, 256, SIDE]),
    biases=st.sampled_from(["none", "one after the other", "far from one another", "the same"]),
    layout=st.sampled_from(["rows", "columns", "one row again and again"]),
)
def test_is_the_product_and_its_gradients(
    rows: int, parts: int, inputs: int, outputs: int, biases: str, layout: str
) -> None:
    """On both sides of the sizes from which another library multiplies, however rows, gradients and biases lie in
    memory."""
    x = torch.randn(parts, rows, inputs)
    of_y = torch.randn(parts, rows, outputs)
    if layout == "columns":
        x, of_y = x.mT.contiguous().mT, of_y.mT.contiguous().mT
    elif layout == "one row again and again":
        x, of_y = (torch.randn(1, 1, t.shape[-1]).expand(t.shape) for t in (x, of_y))
    has_bias, weight, bias = biases != "none", torch.randn(outputs, inputs), torch.randn(3, outputs)[0]
    if biases == "far from one another":
        bias = torch.randn(outputs, 3)[:, 1]
    elif biases == "the same":
        bias = torch.randn(1).expand(outputs)
    leaves = [t.detach().requires_grad_() for t in ((x, weight, bias) if has_bias else (x, weight))]
    doubles = [leaf.detach().double().requires_grad_() for leaf in leaves]
    y = linear(*leaves)
    wanted = expected(doubles[0], doubles[1], doubles[2] if has_bias else None)
    assert_near(y, wanted)
    with torch.no_grad():
        assert_near(linear(*leaves), wanted)
    gradients = torch.autograd.grad(y, leaves, of_y)
    for found, of_leaf in zip(gradients, torch.autograd.grad(wanted, doubles, of_y.double()), strict=True):
        assert_near(found, of_leaf)


def test_gradients_of_gradients() -> None:
    """Of a loss that is a sum of squares of the gradient, as a penalty on it is."""
    x, weight = torch.randn(ROWS, SIDE), torch.randn(SIDE, SIDE) / SIDE**0.5
    found = []
    for dtype in (torch.float32, torch.float64):
        leaves = [t.to(dtype).requires_grad_() for t in (x, weight)]
        y = linear(*leaves).tanh()
        (of_x,) = torch.autograd.grad(y.sum(), leaves[0], create_graph=True)
        found.append(torch.autograd.grad(of_x.square().sum(), leaves))
    for single, double in zip(*found, strict=True):
        assert_near(single, double)


def test_what_comes_out_may_be_changed() -> None:
    """As a hook does that steers a layer."""
    layer, x = Linear(SIDE, SIDE), torch.randn(2, ROWS, SIDE)
    y = layer(x)
    y += 1
    assert y.relu_().sum().requires_grad


def test_a_frozen_layer_keeps_nothing_of_its_input() -> None:
    layer, x = Linear(SIDE, SIDE).requires_grad_(False), torch.randn(ROWS, SIDE, requires_grad=True)
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        layer(x)
    assert [tensor.data_ptr() for tensor in kept] == [layer.weight.data_ptr()]


@pytest.mark.parametrize("is_frozen", [False, True])
def test_a_gradient_that_nobody_wants_is_not_computed(is_frozen: bool) -> None:
    layer, x = Linear(SIDE, SIDE), torch.randn(ROWS, SIDE)
    layer.requires_grad_(not is_frozen)
    x.requires_grad_(is_frozen)
    y = layer(x).sum()
    with Seen() as seen:
        y.backward()
    assert sum(name in {"aten::mm", "mkldnn::_linear_pointwise"} for name in seen.names) == 1
    assert (layer.weight.grad is None) == is_frozen == (x.grad is not None)


@pytest.mark.skipif(not HAS_BOTH, reason="this torch has one library of products")
class TestWhoMultiplies:
    """oneDNN where it is the quicker one and its programs are few; what torch calls everywhere else."""

    def num_one_dnn(self, rows: int, dtype: torch.dtype = torch.float32) -> int:
        layer, x = Linear(SIDE, SIDE, dtype=dtype), torch.randn(rows, SIDE, dtype=dtype, requires_grad=True)
        with Seen() as seen:
            layer(x).sum().backward()
        return seen.num_one_dnn

    def test_large_products(self) -> None:
        """Forward, and backward to the rows."""
        assert self.num_one_dnn(ROWS) == 2
        assert self.num_one_dnn(3 * ROWS) == 2

    @pytest.mark.parametrize("rows", [1, ROWS // 2, SMALLEST // SIDE**2 - 1])
    def test_small_ones(self, rows: int) -> None:
        assert self.num_one_dnn(rows) == 0

    def test_rows_of_any_number(self) -> None:
        """A program is kept for each number."""
        assert self.num_one_dnn(ROWS + 1) == self.num_one_dnn(2 * ROWS - 1) == 0

    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
    def test_another_precision(self, dtype: torch.dtype) -> None:
        assert self.num_one_dnn(ROWS, dtype) == 0
        with torch.autocast("cpu", torch.bfloat16):
            assert self.num_one_dnn(ROWS) == 0

    def test_what_is_being_compiled(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Is left to the compiler."""
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
        assert self.num_one_dnn(ROWS) == 0

    def test_where_it_is_switched_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
        assert self.num_one_dnn(ROWS) == 0

    def test_sizes_that_do_not_fit(self) -> None:
        """Are named by torch."""
        assert is_quicker(torch.randn(ROWS, SIDE), torch.randn(SIDE, SIDE))
        assert not is_quicker(torch.randn(ROWS, 2 * SIDE), torch.randn(SIDE, SIDE))

    def test_what_is_exported(self) -> None:
        """For texts of any number."""
        layer = Linear(SIDE, SIDE)
        shapes = ({0: torch.export.Dim("batch", min=2, max=512)},)
        program = torch.export.export(layer, (torch.randn(4, ROWS, SIDE),), dynamic_shapes=shapes)
        x = torch.randn(3, ROWS, SIDE)
        assert_close(program.module()(x), layer(x))

    def test_what_torch_func_transforms(self) -> None:
        """Gradients of each text by itself."""
        layer, texts = Linear(SIDE, SIDE), torch.randn(2, ROWS, SIDE)
        parameters = dict(layer.named_parameters())

        def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
            return torch.func.functional_call(layer, parameters, (x,)).square().sum()

        found = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, texts)
        for i, x in enumerate(texts):
            wanted = torch.autograd.grad(loss(parameters, x), [layer.weight])[0]
            assert_close(found["weight"][i], wanted, rtol=1e-4, atol=1e-5 * float(wanted.abs().max()))

    def test_the_meta_device(self) -> None:
        with torch.device("meta"), Seen() as seen:
            assert Linear(SIDE, SIDE)(torch.randn(ROWS, SIDE)).shape == (ROWS, SIDE)
        assert seen.num_one_dnn == 0


@pytest.mark.parametrize("architecture", ["decoder_only", "encoder_only", "full"])
def test_a_network_learns_the_same(
    build: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, architecture: str
) -> None:
    """Loss and gradients beside torch's own products."""
    torch.manual_seed(0)
    network = build(architecture, vocab_size=4096, d_model=256, d_ff=1024, max_length=64, activation="gelu")
    tokens, labels = torch.randint(4096, (16, 64)), torch.randint(4096, (16 * 64,))
    texts = (tokens, torch.randint(4096, (16, 64))) if architecture == "full" else (tokens,)
    targets = Targets(torch.arange(16 * 64), labels, 0.1)

    def learn() -> tuple[Tensor, dict[str, Tensor]]:
        network.zero_grad()
        loss = network(*texts, targets=targets) / len(labels)
        loss.backward()
        return loss.detach(), {name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None}

    with Seen() as seen:
        loss, gradients = learn()
    assert seen.num_one_dnn > 10 or not HAS_BOTH
    monkeypatch.setattr("triptych.nn.kernels.linear.is_quicker", lambda x, weight: False)
    with Seen() as seen:
        their_loss, their_gradients = learn()
    assert seen.num_one_dnn == 0
    assert_close(loss, their_loss, rtol=1e-6, atol=0)
    assert gradients.keys() == their_gradients.keys()
    for name, gradient in gradients.items():
        wanted = their_gradients[name]
        assert_close(
            gradient,
            wanted,
            rtol=0,
            atol=1e-5 * max(float(wanted.abs().max()), 1e-3),
            msg=lambda text, name=name: f"{name}: {text}",
        )
