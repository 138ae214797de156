"""Positions against their published formulas."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close
from transformers import GPTNeoXConfig, ModernBertConfig
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXRotaryEmbedding, apply_rotary_pos_emb
from transformers.models.modernbert.modeling_modernbert import ModernBertRotaryEmbedding

from parts import make_sizes
from small_models import randomize
from triptych.nn import Alibi, RelativeBias, RopeScaling, Rotary, sinusoids
from triptych.nn.positions import rotate


class TestSinusoids:
    def test_are_the_formula(self) -> None:
        table = sinusoids(300, 6)
        for p in range(300):
            for i in range(3):
                angle = p / 10000 ** (2 * i / 6)
                assert float(table[p, 2 * i]) == pytest.approx(math.sin(angle), abs=1e-7)
                assert float(table[p, 2 * i + 1]) == pytest.approx(math.cos(angle), abs=1e-7)

    def test_an_odd_width_raises(self) -> None:
        with pytest.raises(ValueError, match=r"shape\.d_model=5"):
            sinusoids(3, 5)


class TestRotary:
    @given(head_dim=st.sampled_from([2, 4, 10]), start=st.integers(0, 500), theta=st.sampled_from([100.0, 10000.0]))
    def test_is_a_complex_rotation(self, head_dim: int, start: int, theta: float) -> None:
        x = torch.randn(2, 3, 5, head_dim)
        positions = start + torch.arange(5)
        y = rotate(x, Rotary(make_sizes(head_dim=head_dim), theta=theta).angles(positions))
        a, b = x.double().split(head_dim // 2, dim=-1)
        frequencies = torch.tensor([theta ** (-2 * i / head_dim) for i in range(head_dim // 2)], dtype=torch.float64)
        rotated = torch.complex(a, b) * torch.exp(1j * positions[:, None].double() * frequencies)
        # float32 angles: a relative error of 2^-23 in an angle of up to 505
        assert_close(y.double(), torch.cat([rotated.real, rotated.imag], dim=-1), atol=2e-4, rtol=0)
        assert_close(y.norm(dim=-1), x.norm(dim=-1))

    @given(distance=st.integers(-8, 8), shift=st.integers(1, 30))
    def test_scores_depend_on_the_distance_alone(self, distance: int, shift: int) -> None:
        rotary, (q, k) = Rotary(make_sizes(head_dim=8)), torch.randn(2, 1, 1, 1, 8)

        def score(query: int, key: int) -> float:
            rotated = [rotate(x, rotary.angles(torch.tensor([position]))) for x, position in ((q, query), (k, key))]
            return float((rotated[0] * rotated[1]).sum())

        assert score(10 + shift, 10 + shift + distance) == pytest.approx(score(10, 10 + distance), abs=1e-4)
        assert score(10, 10 + distance) != pytest.approx(score(10, 10 + distance + shift), abs=1e-4)

    def test_low_precision_is_rotated_in_float32(self) -> None:
        x, angles = torch.randn(1, 1, 4, 8).bfloat16(), Rotary(make_sizes(head_dim=8)).angles(torch.arange(4))
        y = rotate(x, angles)
        assert y.dtype == torch.bfloat16
        assert torch.equal(y, rotate(x.float(), angles).bfloat16())

    @pytest.mark.parametrize("default", [torch.bfloat16, torch.float16, torch.float64])
    @pytest.mark.parametrize("scaling", [None, RopeScaling(factor=8.0, original_length=512)])
    def test_the_angles_do_not_follow_the_default_type(self, default: torch.dtype, scaling: RopeScaling | None) -> None:
        """Lightning trains with another one in bf16-true, 16-true and 64-true; others read with float32's."""
        rotary, positions = Rotary(make_sizes(head_dim=64), scaling=scaling), torch.arange(2048)
        expected = rotary.angles(positions)
        frequencies = 10000.0 ** (-torch.arange(0, 64, 2, dtype=torch.float64) / 64)
        frequencies = frequencies if scaling is None else scaling(frequencies)
        assert_close(expected[0].double(), (positions[:, None] * frequencies).cos(), atol=5e-4, rtol=0)
        before = torch.get_default_dtype()
        torch.set_default_dtype(default)
        try:
            found = rotary.angles(positions)
        finally:
            torch.set_default_dtype(before)
        assert {part.dtype for part in found} == {torch.float32}
        assert all(map(torch.equal, found, expected))

    def test_an_odd_width_raises(self) -> None:
        with pytest.raises(ValueError, match="head_dim=5"):
            Rotary(make_sizes(head_dim=5))
        with pytest.raises(ValueError, match=r"head_dim=6, of which block\.position\.partial_rotary_factor=0\.5 are 3"):
            Rotary(make_sizes(head_dim=6), partial_rotary_factor=0.5)

    @pytest.mark.parametrize("share", [0.0, -0.5, 1.1])
    def test_a_share_is_of_the_whole(self, share: float) -> None:
        with pytest.raises(ValueError, match=r"block\.position\.partial_rotary_factor="):
            Rotary(make_sizes(head_dim=8), partial_rotary_factor=share)

    @pytest.mark.parametrize("share", [0.25, 0.5, 1.0])
    def test_a_share_is_rotated_as_in_gpt_neox(self, share: float) -> None:
        config = GPTNeoXConfig(hidden_size=32, num_attention_heads=2, rope_parameters={
            "rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": share})  # fmt: skip
        q, k = torch.randn(2, 1, 2, 9, 16)
        cos, sin = GPTNeoXRotaryEmbedding(config)(q, torch.arange(9)[None])
        expected = apply_rotary_pos_emb(q, k, cos, sin)
        angles = Rotary(make_sizes(head_dim=16), theta=50.0, partial_rotary_factor=share).angles(torch.arange(9))
        assert_close((rotate(q, angles), rotate(k, angles)), expected, atol=1e-6, rtol=1e-6)

    @pytest.mark.parametrize(("window", "kind"), [(None, "full_attention"), (4, "sliding_attention")])
    def test_layers_with_a_window_have_a_theta_of_their_own(self, window: int | None, kind: str) -> None:
        """As in ModernBERT."""
        thetas = {"full_attention": 500.0, "sliding_attention": 20.0}
        parameters = {name: {"rope_type": "default", "rope_theta": theta} for name, theta in thetas.items()}
        config = ModernBertConfig(
            hidden_size=32, num_attention_heads=2, num_hidden_layers=2, layer_types=[*thetas],
            rope_parameters=parameters,
        )  # fmt: skip
        expected = ModernBertRotaryEmbedding(config)(torch.zeros(1), torch.arange(9)[None], kind)
        angles = Rotary(make_sizes(head_dim=16), theta=500.0, local_theta=20.0).angles(torch.arange(9), window)
        for found, theirs in zip(angles, expected, strict=True):
            assert_close(torch.cat((found, found), -1)[None], theirs)

    def test_the_theta_of_windows_is_not_scaled(self) -> None:
        """As in Gemma 3: what is slower is for far positions."""
        sizes, places, scaling = make_sizes(head_dim=8), torch.arange(9), RopeScaling(factor=4.0)
        rotary = Rotary(sizes, theta=50.0, local_theta=20.0, scaling=scaling)
        assert_close(rotary.angles(places, 3), Rotary(sizes, theta=20.0).angles(places))
        assert_close(rotary.angles(places), Rotary(sizes, theta=50.0, scaling=scaling).angles(places))
        of_one = Rotary(sizes, theta=50.0, scaling=scaling)
        assert_close(of_one.angles(places, 3), of_one.angles(places))

    def test_a_theta_is_positive(self) -> None:
        for option in ("theta", "local_theta"):
            with pytest.raises(ValueError, match=rf"block\.position\.{option}=-1\.0: expected more than 0"):
                Rotary(make_sizes(), **{option: -1.0})


def t5_bucket(relative: int, *, causal: bool, num_buckets: int, max_distance: int) -> int:
    """The bucket of key - query in T5. The logarithm is exact: floor(log_a(x)) is the largest k with a^k <= x."""
    offset = 0
    if causal:
        size, distance = num_buckets, max(-relative, 0)
    else:
        size, distance = num_buckets // 2, abs(relative)
        offset = size if relative > 0 else 0
    near = size // 2
    if distance < near:
        return offset + distance
    far = size - near
    # the largest k with ln(distance / near) / ln(max_distance / near) far >= k, in integers
    k = max(k for k in range(far + 1) if distance**far * near**k >= max_distance**k * near**far)
    return offset + min(size - 1, near + k)


class TestRopeScaling:
    @given(factor=st.floats(1, 16), low=st.floats(0.5, 2), span=st.floats(0.5, 8), length=st.integers(16, 4096))
    def test_is_the_formula(self, factor: float, low: float, span: float, length: int) -> None:
        scaling = RopeScaling(factor=factor, low_rotations=low, high_rotations=low + span, original_length=length)
        for w in (1.0, 0.1, 0.01, 1e-3, 1e-4):
            rotations = length * w / (2 * math.pi)
            s = min(max((rotations - low) / span, 0), 1)
            found = scaling(torch.tensor([w], dtype=torch.float64)).item()
            assert found == pytest.approx((1 - s) * w / factor + s * w)

    def test_without_a_length_every_frequency_is_slowed(self) -> None:
        angles = Rotary(make_sizes(head_dim=8), scaling=RopeScaling(factor=4.0)).angles(torch.arange(0, 40, 4))
        assert_close(angles, Rotary(make_sizes(head_dim=8)).angles(torch.arange(10)))


class TestRelative:
    @pytest.mark.parametrize("causal", [False, True])
    @pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (8, 20), (16, 100)])
    def test_buckets_are_those_of_t5(self, causal: bool, num_buckets: int, max_distance: int) -> None:
        length = 2 * max_distance + 3
        found = RelativeBias(
            make_sizes(num_heads=1, causal=causal), num_buckets=num_buckets, max_distance=max_distance
        ).buckets(length, length)
        bucket = {
            relative: t5_bucket(relative, causal=causal, num_buckets=num_buckets, max_distance=max_distance)
            for relative in range(-length + 1, length)
        }
        expected = torch.tensor([[bucket[key - query] for key in range(length)] for query in range(length)])
        assert torch.equal(found, expected)
        assert int(found.max()) < num_buckets

    @given(queries=st.integers(1, 9), past=st.integers(0, 150), causal=st.booleans())
    def test_with_a_cache_the_queries_are_the_last_positions(self, queries: int, past: int, causal: bool) -> None:
        keys = past + queries
        bias = RelativeBias(make_sizes(num_heads=1, causal=causal))
        assert torch.equal(bias.buckets(queries, keys), bias.buckets(keys, keys)[past:])

    def test_each_head_looks_up_its_column(self) -> None:
        bias = randomize(RelativeBias(make_sizes(num_heads=3, head_dim=4)))
        found, buckets = bias.bias(4, 6), bias.buckets(4, 6)
        assert found.shape == (1, 3, 4, 6)
        for head in range(3):
            for i in range(4):
                for j in range(6):
                    assert found[0, head, i, j] == bias.table.weight[buckets[i, j], head]


class TestAlibi:
    @pytest.mark.parametrize("num_heads", [1, 2, 4, 5, 8, 12, 16])
    def test_slopes_are_a_geometric_sequence(self, num_heads: int) -> None:
        """Section 3 of the paper: 8 heads have 1/2, 1/4, ..., 1/256, and 16 heads the roots between them."""
        slopes = Alibi(make_sizes(num_heads=num_heads, head_dim=4)).slopes.tolist()
        published = {8: [2.0**-h for h in range(1, 9)], 16: [2.0 ** (-h / 2) for h in range(1, 17)]}
        assert slopes == pytest.approx(published.get(num_heads, slopes))
        assert len(set(slopes)) == num_heads

    @pytest.mark.parametrize("num_heads", [4, 6, 12])
    @pytest.mark.parametrize("queries", [7, 2])
    def test_weights_are_those_of_bloom(self, num_heads: int, queries: int) -> None:
        """Whose bias grows with the place of the key, which is the same in a softmax over what is before the query."""
        theirs = build_alibi_tensor(torch.ones(1, 7), num_heads, torch.float32).view(1, num_heads, 1, 7)
        future = torch.full((7, 7), float("-inf")).triu(1)[-queries:]
        expected = (theirs + future).softmax(-1)
        found = (Alibi(make_sizes(num_heads=num_heads, head_dim=4)).bias(queries, 7) + future).softmax(-1)
        assert_close(found, expected, atol=1e-6, rtol=1e-5)

    def test_is_the_same_in_both_directions(self) -> None:
        bias = Alibi(make_sizes()).bias(6, 6)
        assert torch.equal(bias, bias.mT)
        assert bias[0, 0, 0].tolist() == [-0.25 * distance for distance in range(6)]
