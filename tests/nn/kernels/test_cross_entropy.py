"""The loss of some places, in chunks: against torch's cross-entropy of all logits."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from small_models import build, random_model
from triptych.nn import LayerNorm, Targets
from triptych.nn.kernels import cross_entropy as loss

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tied": {"tie_word_embeddings": True},
    "transform": {"head_options": {"transform": "gelu", "norm": LayerNorm, "bias": "trained", "scale_states": True}},
    "fixed bias": {"head_options": {"bias": "fixed"}},
    "softcap": {"head_options": {"bias": "trained", "softcap": 1.5}},
}


def gradients_of(model: Any, total: Tensor) -> dict[str, Tensor | None]:
    model.zero_grad()
    (total * 0.3).backward()
    return {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("architecture", ["encoder_only", "decoder_only", "full"])
@pytest.mark.parametrize("option", OPTIONS)
class TestTargets:
    @settings(max_examples=6)
    @given(
        rows=st.integers(1, 20),
        share=st.sampled_from([0.0, 0.3, 1.0]),
        label_smoothing=st.sampled_from([0.0, 0.1]),
        z_loss=st.sampled_from([0.0, 0.2]),
        seed=st.integers(0, 99),
    )
    def test_are_the_cross_entropy_of_these_places(
        self, architecture: str, option: str, rows: int, share: float, label_smoothing: float, z_loss: float, seed: int
    ) -> None:
        """In chunks of any size, with the same gradients."""
        random = torch.Generator().manual_seed(seed)
        model = random_model(architecture, **OPTIONS[option])
        inputs = [torch.randint(11, (3, 6), generator=random) for _ in range(2 if architecture == "full" else 1)]
        labels = torch.randint(11, (18,), generator=random)
        places = (torch.rand(18, generator=random) < share).nonzero()[:, 0]
        logits = model(*inputs).flatten(0, -2)[places]
        expected = cross_entropy(logits, labels[places], reduction="sum", label_smoothing=label_smoothing)
        expected = expected + z_loss * logits.logsumexp(-1).square().sum()
        gradients = gradients_of(model, expected)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loss, "FEWEST_ROWS", rows)
            patch.setattr(loss, "CHUNK_BYTES", 0)
            found = model(*inputs, targets=Targets(places, labels[places], label_smoothing, z_loss=z_loss))
            others = gradients_of(model, found)
            losses, likeliest = model(*inputs, targets=Targets(places, labels[places], 0.0, each=True))
        assert_close(losses, cross_entropy(logits, labels[places], reduction="none"), rtol=1e-12, atol=1e-12)
        assert likeliest.tolist() == logits.argmax(-1).tolist()
        assert_close(found, expected, rtol=1e-12, atol=1e-12)
        for name, gradient in gradients.items():
            if gradient is None:  # of a bias that training leaves alone
                assert others[name] is None
            else:
                assert_close(others[name], gradient, rtol=1e-12, atol=1e-12, msg=name)


def test_under_autocast_chunks_change_no_more_than_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model("decoder_only", d_model=64, max_length=32, tie_word_embeddings=True).float()
    tokens, labels = torch.randint(11, (8, 32)), torch.randint(11, (256,))
    with torch.autocast("cpu", torch.bfloat16):
        plain = cross_entropy(model(tokens).flatten(0, 1).float(), labels, reduction="sum")
    results = [(plain.detach(), gradients_of(model, plain))]
    for rows in (256, 50):
        monkeypatch.setattr(loss, "FEWEST_ROWS", rows)
        monkeypatch.setattr(loss, "CHUNK_BYTES", 0)
        with torch.autocast("cpu", torch.bfloat16):
            total = model(tokens, targets=Targets(torch.arange(256), labels, 0.0))
        assert total.dtype == torch.float32
        results.append((total.detach(), gradients_of(model, total)))
    (expected, gradients), *chunks = results
    for found, others in chunks:
        assert_close(found, expected, rtol=1e-5, atol=0)
        both = [torch.cat([g.flatten() for g in of.values() if g is not None]) for of in (gradients, others)]
        assert (both[1] - both[0]).norm() < 0.01 * both[0].norm()


class TestFloat16:
    """Gradients are made before the scale of the loss is known, and must lose nothing that it would save."""

    @staticmethod
    def gradients(scale: float, states: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> list[Tensor]:
        """Of the scaled sum under autocast, divided by the scale, as an optimizer gets them."""
        leaves = [x.clone().requires_grad_() for x in (states, weight, bias)]
        with torch.autocast("cpu", torch.float16):
            total = loss.linear_cross_entropy(*leaves, Targets(torch.arange(len(states)), labels, 0.0))
        (total * scale).backward()
        return [leaf.grad.double() / scale for leaf in leaves if leaf.grad is not None]

    @staticmethod
    def expected(states: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> list[Tensor]:
        leaves = [x.double().requires_grad_() for x in (states, weight, bias)]
        logits = leaves[0] @ leaves[1].T + leaves[2]
        return list(torch.autograd.grad(cross_entropy(logits, labels, reduction="sum"), leaves))

    @pytest.mark.parametrize("kind", [torch.float32, torch.float16])
    def test_what_underflows_depends_on_the_scale(self, kind: torch.dtype) -> None:
        """All labels are nearly certain: each other probability is below the least float16, 6e-8."""
        given = (18 * torch.eye(8).to(kind), torch.eye(8), torch.zeros(8), torch.arange(8))
        others = ~torch.eye(8, dtype=torch.bool)
        expected = self.expected(*given)
        assert expected[0][others].max() < 3e-8
        for found, wanted in zip(self.gradients(2.0**16, *given)[:2], expected, strict=False):
            assert_close(found[others], wanted[others], rtol=0.01, atol=0)
        if kind == torch.float16:  # lost in the gradient of such states where nothing scales
            assert not self.gradients(1.0, *given)[0][others].any()

    def test_sums_over_many_states_do_not_overflow(self) -> None:
        """Each is far below the largest float16, 65504; a scale below 1 saves the backward pass."""
        torch.manual_seed(0)
        states, labels = 60 + torch.randn(3000, 8), torch.zeros(3000, dtype=torch.long)
        given = (states, torch.zeros(5, 8), torch.zeros(5), labels)
        for found, wanted in zip(self.gradients(1 / 3000, *given), self.expected(*given), strict=True):
            assert_close(found, wanted, rtol=2e-3, atol=2e-3 * float(wanted.abs().max()))

    def test_weights_in_float16_get_the_mean_of_a_sum_beyond_it(self) -> None:
        """As in 16-true, where nothing scales, and a step has the mean over its labels."""
        states = torch.full((3000, 8), 60.0, dtype=torch.float16, requires_grad=True)
        weight, bias = (torch.zeros(*size, dtype=torch.float16, requires_grad=True) for size in ((5, 8), (5,)))
        labels = torch.zeros(3000, dtype=torch.long)
        (loss.linear_cross_entropy(states, weight, bias, Targets(torch.arange(3000), labels, 0.0)) / 3000).backward()
        assert weight.grad is not None
        assert_close(weight.grad[:2, 0].double(), torch.tensor([-48.0, 12.0], dtype=torch.float64), rtol=2e-3, atol=0)


@pytest.mark.parametrize("frozen", ["states", "weight", "bias"])
def test_gradients_that_are_not_needed_are_not_kept(frozen: str) -> None:
    tensors = {"states": torch.randn(5, 4), "weight": torch.randn(7, 4), "bias": torch.randn(7)}
    tensors = {name: tensor.requires_grad_(name != frozen) for name, tensor in tensors.items()}
    kept: list[torch.Size] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.shape)
        return tensor

    labels = torch.randint(7, (5,))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        total = loss.linear_cross_entropy(*tensors.values(), Targets(torch.arange(5), labels, 0.1))
    assert kept == [tensor.shape for name, tensor in tensors.items() if name != frozen]
    found = torch.autograd.grad(total, [tensor for tensor in tensors.values() if tensor.requires_grad])
    states, weight, bias = tensors.values()
    plain = cross_entropy(states @ weight.T + bias, labels, reduction="sum", label_smoothing=0.1)
    expected = torch.autograd.grad(plain, [tensor for tensor in tensors.values() if tensor.requires_grad])
    for gradient, wanted in zip(found, expected, strict=True):
        assert_close(gradient, wanted)


def test_labels_are_as_many_as_states() -> None:
    with pytest.raises(ValueError, match="3 labels for 5 states"):
        loss.linear_cross_entropy(
            torch.randn(5, 4), torch.randn(7, 4), None, Targets(torch.arange(5), torch.randint(7, (3,)), 0.0)
        )


def test_a_second_derivative_is_rejected() -> None:
    """It would be another one, since the gradients were computed with the loss."""
    model, tokens = build("encoder_only"), torch.randint(11, (2, 6))
    total = model(tokens, targets=Targets(torch.arange(12), torch.randint(11, (12,)), 0.0))
    with pytest.raises(RuntimeError, match="create_graph=True: the loss of targets has no second derivative"):
        torch.autograd.grad(total, [*model.parameters()], create_graph=True, allow_unused=True)


class Rows(TorchDispatchMode):
    """Of everything computed that has a number for each of so many outputs, how many rows it has."""

    def __init__(self, num_outputs: int) -> None:
        super().__init__()
        self.num_outputs = num_outputs
        self.found: list[int] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = function(*args, **(kwargs or {}))
        shapes = [result.shape for result in tree_leaves(results) if isinstance(result, Tensor)]
        self.found += [shape[0] for shape in shapes if len(shape) == 2 and shape[1] == self.num_outputs]
        return results


def test_no_more_than_a_chunk_of_logits_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss, "FEWEST_ROWS", 24)
    monkeypatch.setattr(loss, "CHUNK_BYTES", 0)
    model = build("decoder_only", num_outputs=500, max_length=64)
    assert model.head.output.weight.shape == (500, 16)
    with Rows(500) as rows:
        model(torch.zeros(4, 64, dtype=torch.long), targets=Targets(*torch.zeros(2, 256, dtype=torch.long), 0.0))
    assert set(rows.found) == {24, 16}  # 16 of the last chunk, and of transposed weights


@torch.no_grad()
def test_an_evaluation_has_no_more_than_a_chunk_of_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss, "FEWEST_ROWS", 16)
    monkeypatch.setattr(loss, "CHUNK_BYTES", 0)
    model, rows = build("decoder_only", num_outputs=500, max_length=64).eval(), list[int]()
    model.head.output.register_forward_hook(lambda module, inputs, output: rows.append(output.shape[0]))
    model(torch.zeros(4, 64, dtype=torch.long), targets=Targets(*torch.zeros(2, 250, dtype=torch.long), 0.0, each=True))
    assert rows == [16] * 15 + [10]
