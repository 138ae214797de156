"""Attention without all pairs: against its formula, pair by pair, in float64."""

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from parts import make_sizes
from triptych.models import PrefixLM
from triptych.nn import (
    AttentionMask,
    Embedding,
    Head,
    KeyValueCache,
    LinformerAttention,
    LongformerAttention,
    MultiHeadAttention,
    PackedLayout,
    PerformerAttention,
    Position,
    ReformerAttention,
    RelativeBias,
    Rotary,
    Stack,
)
from triptych.nn.longformer_attention import attend_around_global_tokens
from triptych.nn.performer_attention import attend_by_features, draw_orthogonal
from triptych.nn.reformer_attention import attend_in_buckets
from triptych.report.attention_maps import record_attention

PARTS: dict[str, Callable[..., MultiHeadAttention]] = {
    "linformer": partial(LinformerAttention, projected_length=5),
    "performer": partial(PerformerAttention, num_features=12),
    "reformer": partial(ReformerAttention, num_buckets=4, num_hashes=2, bucket_window=3),
    "longformer": partial(LongformerAttention, sliding_windows=[3, 2], num_global_tokens=2),
}
CAUSAL = [name for name in PARTS if name != "linformer"]
both_sides = [(name, causal) for name in PARTS for causal in (False, True) if not causal or name in CAUSAL]


def make_stack(name: str, *, causal: bool, **options: Any) -> Stack:
    """Of two layers, in float64."""
    torch.manual_seed(0)
    options = {"max_length": 300, "position": Rotary, "attention": PARTS[name], **options}
    return Stack(num_layers=2, d_model=16, num_heads=4, d_ff=24, causal=causal, **options).double().eval()


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


@pytest.mark.parametrize(("name", "causal"), both_sides)
class TestStack:
    """As with all attention."""

    def test_padding_changes_nothing(self, name: str, causal: bool) -> None:
        stack, x = make_stack(name, causal=causal), random(2, 9, 16)
        mask = torch.arange(9) < torch.tensor([[9], [6]])
        alone = stack(x[1:, :6])
        torch.testing.assert_close(stack(x, mask=mask)[1:, :6], alone)
        x[1, 6:] = random(3, 16)
        torch.testing.assert_close(stack(x, mask=mask)[1:, :6], alone)

    @pytest.mark.parametrize("lengths", [(5, 9, 2), (140, 3), (7, 7)])
    def test_packed_documents_are_read_as_alone(self, name: str, causal: bool, lengths: tuple[int, ...]) -> None:
        stack, x = make_stack(name, causal=causal), random(1, sum(lengths), 16)
        num_global_tokens = torch.tensor([2, 1, 2][: len(lengths)])
        packed = stack(x, documents=PackedLayout(lengths, x.device), num_global_tokens=num_global_tokens)
        for i, (part, found) in enumerate(zip(x.split(lengths, 1), packed.split(lengths, 1), strict=True)):
            torch.testing.assert_close(found, stack(part, num_global_tokens=num_global_tokens[i : i + 1]))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_of_all_types(self, name: str, causal: bool, dtype: torch.dtype) -> None:
        stack, x = make_stack(name, causal=causal), random(2, 150, 16)
        expected = stack(x)
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            found = stack.float()(x.float())
        assert (found - expected).norm() / expected.norm() < (1e-5 if dtype == torch.float32 else 0.3)
        assert found.isfinite().all()

    def test_all_weights_get_gradients(self, name: str, causal: bool) -> None:
        stack = make_stack(name, causal=causal)
        stack(random(2, 40, 16)).square().sum().backward()
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in stack.parameters() if p.ndim > 1)

    @pytest.mark.parametrize("length", [9, 140])
    def test_where_it_looks(self, name: str, causal: bool, length: int) -> None:
        """The heads are what the weights make of the values; of global tokens there are others."""
        stack, x, layer = make_stack(name, causal=causal), random(2, length, 16), 0
        attention = stack.layers[layer].self_attention
        seen: dict[str, Any] = {}
        attention.o.register_forward_pre_hook(lambda module, inputs: seen.update(heads=inputs[0]))
        attention.v.register_forward_hook(lambda module, inputs, output: seen.update(v=output))
        mask = torch.arange(length) < torch.tensor([[length], [6]])
        with torch.no_grad(), record_attention(stack) as weights:
            stack(x, mask=mask)
        heads, v = (seen[key].view(2, length, 4, 4).transpose(1, 2) for key in ("heads", "v"))
        first = 1 if name == "longformer" else 0
        torch.testing.assert_close((weights[attention] @ v)[:, :, first:6], heads[:, :, first:6])
        assert (weights[attention][1, :, :6, 6:] == 0).all()
        if name != "linformer":
            torch.testing.assert_close(weights[attention][0].sum(-1), torch.ones(4, length, dtype=torch.float64))


@pytest.mark.parametrize("name", CAUSAL)
class TestDecoder:
    """What a decoder must not and what it must do."""

    @given(length=st.integers(1, 150), place=st.data())
    def test_no_position_sees_the_future(self, name: str, length: int, place: st.DataObject) -> None:
        stack, x = make_stack(name, causal=True), random(1, length, 16)
        i = place.draw(st.integers(0, length - 1))
        changed = torch.cat((x[:, : i + 1], 3 * random(1, length - i - 1, 16)), 1)
        torch.testing.assert_close(stack(changed)[:, : i + 1], stack(x)[:, : i + 1])

    @pytest.mark.parametrize(("length", "prompt"), [(12, 1), (12, 5), (140, 136)])
    def test_a_cache_changes_nothing(self, name: str, length: int, prompt: int) -> None:
        """Prompts are padded on the left."""
        stack, x = make_stack(name, causal=True), random(2, length, 16)
        mask = torch.arange(length) >= torch.tensor([[0], [prompt // 2]])
        num_global_tokens = torch.tensor([min(2, prompt), 1])
        expected = stack(x, mask=mask, num_global_tokens=num_global_tokens)
        cache, found = KeyValueCache(num_layers=2, capacity=length), []
        for start, end in [(0, prompt), *((i, i + 1) for i in range(prompt, length))]:
            found.append(stack(x[:, start:end], mask=mask[:, :end], cache=cache, num_global_tokens=num_global_tokens))
        torch.testing.assert_close(torch.cat(found, 1)[mask], expected[mask])

    def test_a_decoder_looks_at_a_memory_by_all_pairs(self, name: str) -> None:
        stack = make_stack(name, causal=True, cross_attention=True)
        x, memory = random(1, 4, 16), random(1, 9, 16)
        far = memory.clone()
        far[:, 8] += 1
        assert ((stack(x, memory=memory) - stack(x, memory=far)).abs().amax(-1) > 1e-6).all()
        assert [*stack.layers[0].cross_attention._modules] == [*MultiHeadAttention(make_sizes())._modules]


def softmax_of_pairs(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, scale: float) -> Tensor:
    """Pair by pair; visible: batch heads queries keys."""
    y = torch.zeros_like(q[..., :1]).expand(*q.shape[:3], v.shape[-1]).clone()
    for b, h, i in torch.cartesian_prod(*(torch.arange(n) for n in q.shape[:3])).tolist():
        js = [j for j in range(k.shape[2]) if visible[b, h, i, j]]
        weights = [math.exp(scale * float(q[b, h, i] @ k[b, h, j])) for j in js]
        y[b, h, i] = sum(w * v[b, h, j] for w, j in zip(weights, js, strict=True)) / sum(weights)
    return y


class TestPerformer:
    """FAVOR+."""

    @pytest.mark.parametrize("causal", [False, True])
    @pytest.mark.parametrize("length", [1, 9, 300])
    def test_sums_of_features(self, causal: bool, length: int) -> None:
        """In chunks, as by all pairs."""
        q, k, v = (random(2, 3, length, width).abs() for width in (4, 4, 5))
        mask = torch.arange(length) < torch.tensor([[length], [length // 2 + 1]])
        pairs = (q @ k.mT).masked_fill(~mask[:, None, None], 0)
        pairs = pairs.tril() if causal else pairs
        found = attend_by_features(q, k, v, mask, causal=causal)
        torch.testing.assert_close(found, pairs / pairs.sum(-1, keepdim=True) @ v)

    def test_directions_are_orthogonal_and_as_long_as_gaussian_ones(self) -> None:
        torch.manual_seed(0)
        rows = draw_orthogonal(4000, 8)
        for block in rows.split(8):
            products = block @ block.T
            torch.testing.assert_close(products, products.diag().diag(), atol=1e-4, rtol=0)
        squares = rows.square().sum(1)  # chi-squared of 8 degrees: mean 8, variance 16
        assert abs(float(squares.mean()) - 8) < 0.3
        assert abs(float(squares.var()) - 16) < 2
        assert rows[-3:].shape == draw_orthogonal(3, 8).shape

    def test_the_error_falls_with_the_features(self) -> None:
        """The estimate of exp(q k / sqrt(d)) is unbiased; its error falls as 1 / sqrt(m) at least (Choromanski et al.
        2021, lemma 2 and theorem 2)."""
        torch.manual_seed(0)
        sizes = make_sizes(d_model=4, num_heads=1)
        q, k = (random(1, 1, 40, 4) / 2 for _ in range(2))
        exact, errors = (q @ k.mT / 2).exp(), {}
        for num_features in (16, 64, 256, 1024):
            estimates = []
            for _ in range(100):
                part = PerformerAttention(sizes, num_features=num_features)
                estimates.append(part._features(q).exp() @ part._features(k).exp().mT / num_features)
            of_all = torch.stack(estimates)
            errors[num_features] = float((of_all - exact).square().mean().sqrt())
        assert errors[64] < 0.7 * errors[16]
        assert errors[256] < 0.7 * errors[64]
        assert errors[1024] < 0.7 * errors[256]
        assert ((of_all.mean(0) - exact).abs() < 5 * of_all.std(0) / 100**0.5).all()

    def test_it_becomes_attention(self) -> None:
        torch.manual_seed(0)
        sizes = make_sizes(d_model=16, num_heads=4)
        exact = MultiHeadAttention(sizes).double()
        part = PerformerAttention(sizes, num_features=20_000).double()
        part.load_state_dict({**exact.state_dict(), "directions": part.directions})
        x = random(1, 30, 16) / 2
        expected = exact(x, attention_mask=AttentionMask())
        assert (part(x, attention_mask=AttentionMask()) - expected).norm() / expected.norm() < 0.01


class TestReformer:
    """LSH."""

    @given(
        causal=st.booleans(),
        length=st.integers(1, 90),
        bucket_window=st.integers(1, 40),
        rounds=st.integers(1, 3),
        num_buckets=st.sampled_from([2, 6]),
        seed=st.integers(0, 9),
    )
    def test_a_token_sees_the_nearest_of_its_bucket(
        self, causal: bool, length: int, bucket_window: int, rounds: int, num_buckets: int, seed: int
    ) -> None:
        """Whatever the rounds have it count once; itself counts where there is no other."""
        generator = torch.Generator().manual_seed(seed)
        q, v = (torch.randn(1, 2, length, 4, generator=generator, dtype=torch.float64) for _ in range(2))
        k = torch.nn.functional.normalize(q, dim=-1)
        buckets = torch.randint(num_buckets, (rounds, 1, 2, length), generator=generator)
        visible = torch.zeros(1, 2, length, length, dtype=torch.bool)
        for r in range(rounds):
            for h in range(2):
                for bucket in range(num_buckets):
                    members = [i for i in range(length) if buckets[r, 0, h, i] == bucket]
                    for a, i in enumerate(members):
                        first = max(0, a - bucket_window + 1)
                        for j in members[first : a + 1 if causal else a + bucket_window]:
                            visible[0, h, i, j] = j != i
        alone = ~visible.any(-1)
        visible |= alone[..., None] & torch.eye(length, dtype=torch.bool)
        found = attend_in_buckets(q, k, v, buckets, bucket_window=bucket_window, causal=causal)
        torch.testing.assert_close(found, softmax_of_pairs(q, k, v, visible, 1.0))
        if causal:
            newest = attend_in_buckets(q[:, :, -1:], k, v, buckets, bucket_window=bucket_window, causal=True)
            torch.testing.assert_close(newest, found[:, :, -1:])

    def test_more_rounds_find_more_of_the_weight(self) -> None:
        """The error falls with the rounds (Kitaev et al. 2020, figure 4 and table 2)."""
        torch.manual_seed(0)
        q, v = 3 * random(4, 1, 128, 8), random(4, 1, 128, 8)
        k = torch.nn.functional.normalize(q, dim=-1)
        others = ~torch.eye(128, dtype=torch.bool)
        expected = (q @ k.mT).masked_fill(~others, float("-inf")).softmax(-1) @ v
        errors = []
        for num_hashes in (1, 2, 4, 8):
            found = []
            for _ in range(8):
                part = ReformerAttention(
                    make_sizes(d_model=8, num_heads=1), num_buckets=8, num_hashes=num_hashes
                ).double()
                found.append(attend_in_buckets(q, k, v, part._hash(k, None), bucket_window=128, causal=False))
            errors.append(float((torch.stack(found) - expected).square().mean().sqrt()))
        assert all(more < 0.85 * fewer for fewer, more in itertools.pairwise(errors))


class TestLongformer:
    """A window and global tokens."""

    @given(
        causal=st.booleans(),
        length=st.integers(1, 150),
        window=st.integers(1, 40),
        maximum=st.integers(1, 4),
        num_global_tokens=st.lists(st.integers(1, 4), min_size=2, max_size=2),
        padding=st.integers(0, 20),
    )
    def test_pair_by_pair(
        self, causal: bool, length: int, window: int, maximum: int, num_global_tokens: list[int], padding: int
    ) -> None:
        """Padding on the left, whose rows say nothing."""
        padding = min(padding, length - 1)
        q, k, v, global_q, global_k, global_v = (random(2, 1, length, 3) for _ in range(6))
        real = torch.arange(length) >= torch.tensor([[0], [padding]])
        is_global = real & (real.cumsum(1) <= torch.tensor(num_global_tokens).clamp(max=maximum)[:, None])
        p, j = torch.arange(length)[:, None], torch.arange(length)
        past = (j <= p) if causal else torch.ones(length, length, dtype=torch.bool)
        visible = (((p - j).abs() < window) | is_global[:, None]) & past & real[:, None]
        rows = real[:, None, :, None]
        expected = (q @ k.mT / 3**0.5).masked_fill(~visible[:, None], float("-inf")).softmax(-1) @ v
        of_all = (global_q @ global_k.mT / 3**0.5).masked_fill(~(past & real[:, None])[:, None], float("-inf"))
        expected = (of_all.softmax(-1) @ global_v).where(is_global[:, None, :, None], expected)
        found = attend_around_global_tokens(
            q, k, (v, global_v), global_q, global_k, is_global, real if padding else None,
            window=window, causal=causal, num_global_tokens=maximum, dropout=0.0,
        )  # fmt: skip
        torch.testing.assert_close(found.where(rows, 0), expected.where(rows, 0))


class TestLinformer:
    """Keys and values of a fixed number."""

    def test_of_projected_keys(self) -> None:
        sizes = make_sizes(d_model=8, num_heads=2, max_length=20)
        part, x = LinformerAttention(sizes, projected_length=3).double(), random(2, 9, 8)
        found = part(x, attention_mask=AttentionMask(key_mask=torch.arange(9) < torch.tensor([[9], [4]])))
        for row, length in enumerate((9, 4)):
            heads = []
            for head in (slice(0, 4), slice(4, 8)):
                q, k, v = (matrix(x[row])[:, head] for matrix in (part.q, part.k, part.v))
                short_k = sum(part.shorten_keys[:, j : j + 1] * k[j] for j in range(length))
                short_v = sum(part.shorten_values[:, j : j + 1] * v[j] for j in range(length))
                heads.append((q @ short_k.T / 2).softmax(-1) @ short_v)
            torch.testing.assert_close(found[row], part.o(torch.cat(heads, -1)))

    def test_rejected_in_a_decoder(self) -> None:
        with pytest.raises(ValueError, match="a decoder would attend to future tokens"):
            LinformerAttention(make_sizes(causal=True))
        LinformerAttention(make_sizes(causal=True), cross=True)

    def test_no_longer_than_its_matrices(self) -> None:
        stack = make_stack("linformer", causal=False, max_length=6)
        with pytest.raises(ValueError, match=r"7 positions, but shape.max_length=6 \(LinformerAttention\)"):
            stack(random(1, 7, 16))


@pytest.mark.parametrize("name", PARTS)
def test_rejected(name: str) -> None:
    """What needs all pairs."""
    with pytest.raises(ValueError, match="block/position=relative_bias adds a bias to the score of each pair"):
        make_stack(name, causal=False, position=RelativeBias)
    stack = make_stack(name, causal=False, position=Position)
    embedding, head = Embedding(vocab_size=9, d_model=16), Head(d_model=16, num_outputs=9)
    with pytest.raises(ValueError, match=r"has no mask over pairs of positions, .*, or block/attention=multi_head$"):
        PrefixLM(embedding=embedding, decoder=stack, head=head)


@pytest.mark.parametrize(
    ("part", "options", "message"),
    [
        (LinformerAttention, {"projected_length": 0}, "projected_length=0"),
        (PerformerAttention, {"num_features": 0}, "num_features=0"),
        (ReformerAttention, {"num_buckets": 7}, "num_buckets=7: expected an even number; nearest: 8"),
        (ReformerAttention, {"num_hashes": 0}, "num_hashes=0"),
        (ReformerAttention, {"bucket_window": 0}, "bucket_window=0"),
        (LongformerAttention, {"sliding_windows": [0]}, r"sliding_windows=\[0\]"),
        (LongformerAttention, {"num_global_tokens": 0}, "num_global_tokens=0"),
    ],
)
def test_impossible_numbers(part: Callable[..., Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        part(make_sizes(), **options)
