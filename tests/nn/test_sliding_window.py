"""Attention within a window, block by block, against all pairs of the formula in float64."""

import math
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from parts import make_stack
from small_models import pad, random_model, randomize
from triptych.nn import AttentionMask, PackedLayout, attend, sliding_window
from triptych.nn.sliding_window import SlidingWindowBlocks

CPU = torch.device("cpu")


def pairs(length: int, window: int, key_mask: Tensor | None, *, causal: bool) -> Tensor:
    """Written out: which position sees which, for each text."""
    places = torch.arange(length)
    seen = (places[:, None] - places).abs() < window
    if causal:
        seen &= places <= places[:, None]
    return seen[None] if key_mask is None else seen & key_mask[:, None, :]


def formula(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scale: float | None, softcap: float | None = None) -> Tensor:
    """sum over the visible j of exp(s_ij) v_j / sum over the visible j of exp(s_ij), or 0; s_ij = scale q_i k_j, or
    with a cap c tanh(scale q_i k_j / c)."""
    group = q.shape[1] // k.shape[1]
    heads = []
    for h in range(q.shape[1]):
        scores = torch.einsum("bie,bje->bij", q[:, h], k[:, h // group])
        scores = scores * (1 / math.sqrt(q.shape[3]) if scale is None else scale)
        weights = (scores if softcap is None else softcap * torch.tanh(scores / softcap)).exp() * seen
        heads.append(weights @ v[:, h // group] / weights.sum(-1, keepdim=True).clamp_min(1e-300))
    return torch.stack(heads, dim=1)


def blocks_of_at_least(queries: int, *, texts_of: int = 0) -> Any:
    """While it is there, blocks are this small, and texts of so many of them are long enough."""
    return patch.multiple(sliding_window, LEAST_BLOCK=queries, LEAST_BLOCKS=texts_of)


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that is made."""

    numel = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = function(*args, **(kwargs or {}))
        sizes = [tensor.numel() for tensor in tree_leaves(results) if isinstance(tensor, Tensor)]
        self.numel = max(self.numel, *sizes, 0)
        return results


class TestAttendLocally:
    @settings(max_examples=100)
    @given(
        batch=st.integers(1, 3),
        length=st.integers(1, 40),
        window=st.integers(1, 14),
        least=st.integers(1, 16),
        causal=st.booleans(),
        padding=st.none() | st.integers(0, 100),
        heads=st.sampled_from([(1, 1), (4, 4), (4, 2), (4, 1)]),
        scale=st.sampled_from([None, 0.3]),
        softcap=st.sampled_from([None, 0.5]),
    )
    @example(
        batch=2, length=30, window=5, least=4, causal=False, padding=None, heads=(2, 1), scale=None, softcap=None
    )  # whole blocks
    def test_is_the_formula(
        self,
        batch: int,
        length: int,
        window: int,
        least: int,
        causal: bool,
        padding: int | None,
        heads: tuple[int, int],
        scale: float | None,
        softcap: float | None,
    ) -> None:
        """Results and gradients; where a query sees nothing, zeros."""
        key_mask = None
        if padding is not None:
            key_mask = torch.rand(batch, length, generator=torch.Generator().manual_seed(padding)) < 0.6
        q, k, v = (
            torch.randn(batch, n, length, 6, dtype=torch.float64, requires_grad=True)
            for n in (heads[0], *heads[1:] * 2)
        )
        expected = formula(q, k, v, pairs(length, window, key_mask, causal=causal), scale, softcap)
        direction = torch.randn_like(expected)
        with blocks_of_at_least(least):
            attention_mask = AttentionMask(local=SlidingWindowBlocks(window, causal, length, key_mask))
            found = attend(q, k, v, attention_mask, scale=scale, softcap=softcap)
        assert_close(found, expected, rtol=1e-12, atol=1e-12)
        gradients = [torch.autograd.grad(y, (q, k, v), direction) for y in (found, expected)]
        for gradient, other in zip(*gradients, strict=True):
            assert_close(gradient, other, rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize("causal", [False, True])
    def test_trains_in_bfloat16(self, causal: bool) -> None:
        q, k, v = torch.randn(3, 2, 4, 150, 8).unbind()
        key_mask = torch.arange(150) < torch.tensor([[150], [90]])
        attention_mask = AttentionMask.of(
            num_queries=150, num_keys=150, causal=causal, key_mask=key_mask, device=CPU, window=9
        )
        assert attention_mask.local is not None
        found = attend(q.bfloat16().requires_grad_(), k.bfloat16(), v.bfloat16(), attention_mask)
        expected = formula(*(x.double() for x in (q, k, v)), pairs(150, 9, key_mask, causal=causal), None)
        assert_close(found.double(), expected, rtol=0.04, atol=0.04)
        assert (found[1, :, 99:] == 0).all()

    def test_drops_weights(self) -> None:
        """They are zero or scaled up: with uniform scores and the identity as values the result is the weights."""
        length, window = 300, 20
        q, k = torch.zeros(2, 1, 1, length, length).unbind()
        attention_mask = AttentionMask(local=SlidingWindowBlocks(window, True, length))
        weights = attend(q, k, torch.eye(length)[None, None], attention_mask, dropout=0.25)[0, 0]
        seen = pairs(length, window, None, causal=True)[0]
        assert (weights[~seen] == 0).all()
        weights = (weights * seen.sum(-1, keepdim=True))[seen]
        kept = weights[weights > 0]
        assert_close(kept, torch.full_like(kept, 1 / 0.75))
        assert abs(len(kept) / len(weights) - 0.75) < 0.04  # six standard deviations

    @pytest.mark.parametrize("causal", [False, True])
    @pytest.mark.parametrize("kernel", ["fused", "explicit"])
    def test_makes_nothing_of_the_size_of_all_pairs(self, causal: bool, kernel: str) -> None:
        length, window, heads = 2048, 64, 2
        stack = make_stack(
            num_layers=2, d_model=8, num_heads=heads, d_ff=16, causal=causal, sliding_windows=[window], position="none"
        )
        if kernel == "explicit":
            stack = stack.bfloat16()
        x = torch.randn(1, length, 8, dtype=stack.final_norm.weight.dtype)
        with Largest() as largest:
            stack(x, mask=torch.ones(1, length, dtype=torch.bool)).sum().backward()
        assert largest.numel <= heads * length * (2 if causal else 3) * window < length**2 / 4


class TestVisibility:
    @given(
        length=st.integers(1, 80), window=st.none() | st.integers(1, 30), past=st.integers(0, 3), causal=st.booleans()
    )
    def test_long_texts_are_read_in_blocks(self, length: int, window: int | None, past: int, causal: bool) -> None:
        with blocks_of_at_least(8, texts_of=4):
            attention_mask = AttentionMask.of(
                num_queries=length, num_keys=past + length, causal=causal, key_mask=None, device=CPU, window=window
            )
        is_long = past == 0 and window is not None and length >= 4 * window and length >= 32
        assert (attention_mask.local is not None) == is_long
        assert not (is_long and (attention_mask.causal or attention_mask.mask is not None))

    @given(
        length=st.integers(1, 40), window=st.integers(1, 14), causal=st.booleans(), seed=st.none() | st.integers(0, 9)
    )
    def test_dense_is_all_pairs(self, length: int, window: int, causal: bool, seed: int | None) -> None:
        key_mask = None
        if seed is not None:
            key_mask = torch.rand(2, length, generator=torch.Generator().manual_seed(seed)) < 0.5
        dense = AttentionMask(local=SlidingWindowBlocks(window, causal, length, key_mask)).dense(CPU)
        assert dense.local is None
        assert dense.mask is not None
        assert torch.equal(dense.mask[:, 0], pairs(length, window, key_mask, causal=causal))


class TestNetworks:
    @pytest.mark.parametrize("architecture", ["encoder_only", "decoder_only", "full"])
    @pytest.mark.parametrize("position", ["learned", "rotary", "relative_bias"])
    @pytest.mark.parametrize("checkpoints", [False, True])
    def test_blocks_change_nothing(self, architecture: str, position: str, checkpoints: bool) -> None:
        """Logits and gradients, with padding on the left and on the right."""
        model = random_model(
            architecture, position=position, sliding_windows=[3, None], num_kv_heads=2,
            activation_checkpointing=checkpoints,
        )  # fmt: skip
        tokens, mask = pad([torch.randint(11, (1, n)) for n in (23, 16, 9)], left=True)
        source, source_mask = pad([torch.randint(11, (1, n)) for n in (21, 4, 17)])
        inputs = (source, tokens, source_mask, mask) if architecture == "full" else (tokens, mask)
        results = []
        for texts_of in (0, 10**9):
            with blocks_of_at_least(4, texts_of=texts_of):
                logits = model(*inputs)
                model.zero_grad()
                logits[mask].square().sum().backward()
            results.append([logits[mask], *(p.grad for p in model.parameters())])
        for found, expected in zip(*results, strict=True):
            assert_close(found, expected, rtol=1e-11, atol=1e-11)

    @pytest.mark.parametrize("causal", [False, True])
    def test_documents_of_a_packed_row(self, causal: bool) -> None:
        """Each is what it is alone."""
        stack = randomize(
            make_stack(num_layers=2, d_model=8, num_heads=2, d_ff=16, causal=causal, sliding_windows=[5, 40])
        ).double()
        lengths = (200, 1, 131, 160)
        x = torch.randn(1, sum(lengths), 8, dtype=torch.float64)
        y = stack(x, documents=PackedLayout(lengths, CPU))
        for found, alone in zip(y.split(lengths, dim=1), x.split(lengths, dim=1), strict=True):
            with blocks_of_at_least(1, texts_of=10**9):
                assert_close(found, stack(alone), rtol=1e-12, atol=1e-12)
