"""Attention against formulas in float64 and against torch.nn.MultiheadAttention."""

import inspect
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention.varlen import varlen_attn
from torch.testing import assert_close

from parts import make_sizes, make_stack
from small_models import randomize
from triptych.nn import AttentionMask, MultiHeadAttention, PackedLayout, Rotary, attend, attention
from triptych.nn.attention import attend_eager, reads_packed_rows
from triptych.nn.kv_cache import LayerCache
from triptych.nn.masks import causal_mask
from triptych.nn.positions import rotate


def formula(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, bias: Tensor | None) -> Tensor:
    """softmax(q k^T / sqrt(head_dim) + bias) v over the visible keys, in float64, one query at a time."""
    q, k, v = q.double(), k.double(), v.double()
    group = q.shape[1] // k.shape[1]
    result = torch.zeros_like(q)
    for b, h, i in itertools.product(*map(range, q.shape[:3])):
        keys = [j for j in range(k.shape[2]) if visible[b, i, j]]
        if not keys:
            continue
        scores = [float(q[b, h, i] @ k[b, h // group, j]) / math.sqrt(q.shape[3]) for j in keys]
        if bias is not None:
            scores = [score + float(bias[0, h, i, j]) for score, j in zip(scores, keys, strict=True)]
        weights = [math.exp(score) for score in scores]
        for j, weight in zip(keys, weights, strict=True):
            result[b, h, i] += weight / sum(weights) * v[b, h // group, j]
    return result


def visible_pairs(key_mask: Tensor | None, batch: int, queries: int, keys: int, *, causal: bool) -> Tensor:
    """Written out: which query of which sequence may attend to which key."""
    return torch.tensor(
        [
            [
                [
                    (key_mask is None or bool(key_mask[b, j])) and (not causal or j <= i + keys - queries)
                    for j in range(keys)
                ]
                for i in range(queries)
            ]
            for b in range(batch)
        ]
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (2, 5), (1, 5), (1, 1)])
def test_attend_is_the_formula(
    causal: bool, padded: bool, biased: bool, kv_heads: int, queries: int, keys: int
) -> None:
    batch, heads, head_dim = 3, 4, 6
    q = torch.randn(batch, heads, queries, head_dim)
    k, v = torch.randn(2, batch, kv_heads, keys, head_dim)
    bias = torch.randn(1, heads, queries, keys) if biased else None
    key_mask = None
    if padded:  # on the right, on the left (with causal: queries that see nothing), and everywhere
        key_mask = torch.ones(batch, keys, dtype=torch.bool)
        key_mask[0, keys - 2 :] = False
        key_mask[1, :2] = False
        key_mask[2] = False
    attention_mask = AttentionMask.of(
        num_queries=queries, num_keys=keys, causal=causal, key_mask=key_mask, device=torch.device("cpu")
    )
    expected = formula(q, k, v, visible_pairs(key_mask, batch, queries, keys, causal=causal), bias)
    assert_close(attend(q, k, v, attention_mask, bias).double(), expected, atol=1e-5, rtol=1e-5)
    mask = causal_mask(queries, keys, q.device) if attention_mask.causal else attention_mask.mask
    explicit = attend_eager(q, k, v, mask, bias, scale=None, softcap=None, dropout=0.0)
    assert_close(explicit.double(), expected, atol=1e-5, rtol=1e-5)
    in_bf16 = attend(q.bfloat16().requires_grad_(), k.bfloat16(), v.bfloat16(), attention_mask, bias)
    assert_close(in_bf16.double(), expected, atol=0.04, rtol=0.04)


@given(
    queries=st.integers(1, 6),
    past=st.integers(0, 6),
    causal=st.booleans(),
    seed=st.none() | st.integers(0, 100),
    window=st.none() | st.integers(1, 13),
)
def test_visibility_says_who_sees_whom(
    queries: int, past: int, causal: bool, seed: int | None, window: int | None
) -> None:
    keys, batch = past + queries, 2
    key_mask = None
    if seed is not None:
        key_mask = torch.rand(batch, keys, generator=torch.Generator().manual_seed(seed)) < 0.5
    attention_mask = AttentionMask.of(
        num_queries=queries, num_keys=keys, causal=causal, key_mask=key_mask, device=torch.device("cpu"), window=window
    )
    if attention_mask.causal:
        assert attention_mask.mask is None
        assert queries == keys  # the kernel aligns its triangle at the first key
        found = torch.ones(queries, keys, dtype=torch.bool).tril()
    else:
        found = torch.ones(1, dtype=torch.bool) if attention_mask.mask is None else attention_mask.mask[:, 0]
    expected = visible_pairs(key_mask, batch, queries, keys, causal=causal)
    if window is not None:
        near = [[abs(past + i - j) < window for j in range(keys)] for i in range(queries)]
        expected &= torch.tensor(near)
    assert torch.equal(found.expand_as(expected), expected)


@pytest.mark.parametrize("biased", [False, True])
def test_a_query_that_sees_nothing_gets_zeros_and_finite_gradients(biased: bool) -> None:
    q, k, v = torch.randn(3, 2, 4, 5, 6).requires_grad_().unbind()
    bias = torch.randn(1, 4, 5, 5, requires_grad=True) if biased else None
    inputs = [tensor for tensor in (q, k, v, bias) if tensor is not None]
    mask = torch.tensor([True, False])[:, None, None, None].expand(2, 1, 1, 5)
    y = attend(q, k, v, AttentionMask(mask=mask), bias)
    assert torch.equal(y[1], torch.zeros_like(y[1]))
    assert y[0].abs().min() > 0
    for gradient in torch.autograd.grad(y.square().sum(), inputs):
        assert gradient.isfinite().all()
        assert gradient.abs().sum() > 0


def test_dropped_weights_are_zero_or_scaled_up() -> None:
    keys = 2000
    q, k = torch.zeros(2, 1, 1, keys, keys).unbind()
    v = torch.eye(keys)[None, None]  # with uniform scores the result is the matrix of weights itself
    weights = attend(q[:, :, :4], k, v, AttentionMask(), dropout=0.25) * keys
    assert_close(weights.unique(), torch.tensor([0.0, 1 / 0.75]))
    assert abs((weights == 0).double().mean() - 0.25) < 0.03  # six standard deviations


class TestMultiHeadAttention:
    """With weights copied into torch.nn.MultiheadAttention."""

    @pytest.mark.parametrize(("cross", "causal"), [(False, False), (False, True), (True, False)])
    @pytest.mark.parametrize("padded", [False, True])
    def test_equals_pytorch(self, copy_attention: Callable[..., Any], cross: bool, causal: bool, padded: bool) -> None:
        attention = randomize(MultiHeadAttention(make_sizes(d_model=12, num_heads=3)))
        x = torch.randn(2, 5, 12)
        memory = torch.randn(2, 7, 12) if cross else None
        source = x if memory is None else memory
        key_mask = None
        if padded:
            key_mask = torch.ones(source.shape[:2], dtype=torch.bool)
            key_mask[0, 2:] = False
        attention_mask = AttentionMask.of(
            num_queries=5, num_keys=source.shape[1], causal=causal, key_mask=key_mask, device=x.device
        )
        other = nn.MultiheadAttention(12, 3, batch_first=True)
        copy_attention(attention, other)
        expected, _ = other(
            x,
            source,
            source,
            key_padding_mask=None if key_mask is None else ~key_mask,
            attn_mask=torch.ones(5, 5, dtype=torch.bool).triu(1) if causal else None,
        )
        assert_close(attention(x, memory, attention_mask=attention_mask), expected, atol=1e-5, rtol=1e-5)

    def test_grouped_queries_are_repeated_key_heads(self) -> None:
        grouped = randomize(MultiHeadAttention(make_sizes(d_model=16, num_heads=4, head_dim=3), num_kv_heads=2))
        full = MultiHeadAttention(make_sizes(d_model=16, num_heads=4, head_dim=3))
        state = grouped.state_dict()
        for name in ("k.weight", "k.bias", "v.weight", "v.bias"):
            first, second = state[name].split(3)
            state[name] = torch.cat([first, first, second, second])
        full.load_state_dict(state)
        x = torch.randn(2, 5, 16)
        assert_close(grouped(x, attention_mask=AttentionMask()), full(x, attention_mask=AttentionMask()))

    def test_dropout_acts_in_training_only(self) -> None:
        attention = MultiHeadAttention(make_sizes(d_model=12, num_heads=3), dropout=0.5)
        same = MultiHeadAttention(make_sizes(d_model=12, num_heads=3))
        same.load_state_dict(attention.state_dict())
        x = torch.randn(2, 5, 12)
        expected = same(x, attention_mask=AttentionMask())
        assert not torch.allclose(attention(x, attention_mask=AttentionMask()), expected)
        assert_close(attention.eval()(x, attention_mask=AttentionMask()), expected)

    def test_projections_without_bias(self) -> None:
        attention = MultiHeadAttention(make_sizes(d_model=12, num_heads=3, bias=False))
        assert {name for name, _ in attention.named_parameters()} == {f"{x}.weight" for x in "qkvo"}

    def test_heads_must_divide_the_width(self) -> None:
        with pytest.raises(ValueError, match=r"shape\.num_heads=5 .* nearest that does: 4"):
            make_stack(num_layers=1, d_model=16, num_heads=5, d_ff=24, causal=False)

    def test_key_heads_must_divide_the_heads(self) -> None:
        with pytest.raises(ValueError, match=r"block\.attention\.num_kv_heads=3 does not divide shape\.num_heads=4"):
            MultiHeadAttention(make_sizes(d_model=16, num_heads=4), num_kv_heads=3)

    def test_a_width_of_norms_that_are_not_there_is_rejected(self) -> None:
        with pytest.raises(ValueError, match=r"block\.attention\.qk_norm_over=all: there is no norm"):
            MultiHeadAttention(make_sizes(), qk_norm_over="all")

    @pytest.mark.parametrize("option", ["scale", "softcap"])
    def test_a_cap_and_a_scale_are_positive(self, option: str) -> None:
        with pytest.raises(ValueError, match=rf"block\.attention\.{option}=0\.0: expected more than 0"):
            MultiHeadAttention(make_sizes(), **{option: 0.0})

    def test_rotary_positions_turn_queries_and_keys_alike(self) -> None:
        sizes = make_sizes(d_model=12, num_heads=3)
        attention, rotary = randomize(MultiHeadAttention(sizes)), Rotary(sizes)
        x, positions = torch.randn(2, 6, 12), torch.tensor([0, 1, 2, 5, 6, 9])
        angles = rotary.angles(positions)
        q, k, v = (
            projection(x).unflatten(-1, (3, 4)).transpose(1, 2)
            for projection in (attention.q, attention.k, attention.v)
        )
        heads = attend(rotate(q, angles), rotate(k, angles), v, AttentionMask())
        expected = attention.o(heads.transpose(1, 2).reshape(2, 6, 12))
        found = attention(x, attention_mask=AttentionMask(), angles=angles)
        assert_close(found, expected)
        assert_close(
            attention(x, attention_mask=AttentionMask(), angles=rotary.angles(positions + 7)),
            found,
            atol=1e-5,
            rtol=1e-5,
        )
        assert not torch.allclose(attention(x, attention_mask=AttentionMask()), found)

    @pytest.mark.parametrize("rotary", [False, True])
    def test_a_cache_changes_nothing(self, rotary: bool) -> None:
        attention = randomize(MultiHeadAttention(make_sizes(d_model=12, num_heads=3), num_kv_heads=1))
        x = torch.randn(2, 6, 12)
        angles = Rotary(make_sizes(head_dim=4)).angles(torch.arange(6)) if rotary else None
        expected = attention(x, attention_mask=AttentionMask(causal=True), angles=angles)
        cache = LayerCache(capacity=6)
        found = []
        for start, end in itertools.pairwise((0, 3, 4, 6)):
            attention_mask = AttentionMask.of(
                num_queries=end - start, num_keys=end, causal=True, key_mask=None, device=x.device
            )
            now = None if angles is None else (angles[0][start:end], angles[1][start:end])
            found.append(attention(x[:, start:end], attention_mask=attention_mask, angles=now, cache=cache))
        assert_close(torch.cat(found, dim=1), expected)

    def test_a_memory_is_projected_once(self) -> None:
        attention = randomize(MultiHeadAttention(make_sizes(d_model=12, num_heads=3)))
        x, memory, cache = torch.randn(2, 1, 12), torch.randn(2, 4, 12), LayerCache(capacity=4)
        expected = attention(x, memory, attention_mask=AttentionMask())
        calls = []
        attention.k.register_forward_hook(lambda *_: calls.append("k"))
        attention.v.register_forward_hook(lambda *_: calls.append("v"))
        for _ in range(3):
            assert_close(attention(x, memory, attention_mask=AttentionMask(), cache=cache), expected)
        assert calls == ["k", "v"]


def of_torch_2_11(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    return_aux: Any = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
) -> Tensor:
    """The formula, of one document after the other, with what this version of torch takes."""
    left, right = window_size
    assert (max_q, max_k) == tuple(int(starts.diff().max()) for starts in (cu_seq_q, cu_seq_k))
    parts = []
    for (q0, q1), (k0, k1) in zip(
        *(itertools.pairwise(starts.tolist()) for starts in (cu_seq_q, cu_seq_k)), strict=True
    ):
        far = torch.arange(k1 - k0) - torch.arange(q1 - q0)[:, None]
        seen = (left < 0) | (far >= -left)
        seen &= (right < 0) | (far <= right)
        q, k, v = (x[a:b].transpose(0, 1)[None] for x, a, b in ((query, q0, q1), (key, k0, k1), (value, k0, k1)))
        q = q if scale is None else q * scale * math.sqrt(q.shape[3])
        parts.append(formula(q, k, v, seen[None], None)[0].transpose(0, 1))
    return torch.cat(parts)


def of_torch_2_12(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    *,
    return_aux: Any = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> Tensor:
    """From then on it wants to be told of groups."""
    assert cu_seq_k is not None
    assert enable_gqa or query.shape[1] == key.shape[1]
    return of_torch_2_11(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, scale=scale, window_size=window_size)


class TestPackedRows:
    @pytest.mark.parametrize("kernel", [of_torch_2_11, of_torch_2_12])
    @pytest.mark.parametrize("kv_heads", [4, 2])
    @pytest.mark.parametrize(("causal", "window"), [(False, None), (True, None), (False, 3), (True, 3), (None, None)])
    def test_the_kernel_of_each_torch_is_asked_for_the_same(
        self,
        kernel: Callable[..., Tensor],
        kv_heads: int,
        causal: bool | None,
        window: int | None,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Against padded rows; None is cross-attention."""
        documents = PackedLayout([4, 7, 1], torch.device("cpu"))
        sources = documents if causal is not None else PackedLayout([2, 3, 5], torch.device("cpu"))
        q = torch.randn(1, 4, 12, 8, dtype=torch.float64)
        k, v = torch.randn(2, 1, kv_heads, len(sources.positions), 8, dtype=torch.float64).unbind()
        if causal is None:
            attention_mask = AttentionMask.across(documents, sources)
        else:
            attention_mask = AttentionMask.within(documents, causal=causal, window=window)
        expected = attend(q, k, v, attention_mask, scale=0.3)
        monkeypatch.setattr(attention, "reads_packed_rows", lambda q: True)
        monkeypatch.setattr(attention, "varlen_attn", kernel)
        monkeypatch.setattr(attention, "TELLS_GROUPS", "enable_gqa" in inspect.signature(kernel).parameters)
        assert_close(attend(q, k, v, attention_mask, scale=0.3), expected)

    def test_the_torch_that_is_installed_takes_what_is_said(self) -> None:
        known = of_torch_2_12 if attention.TELLS_GROUPS else of_torch_2_11
        installed, ours = (inspect.signature(kernel).parameters for kernel in (varlen_attn, known))
        assert {name: installed[name].kind for name in ours} == {name: p.kind for name, p in ours.items()}

    @pytest.mark.parametrize(
        ("capability", "dtype", "width", "is_read"),
        [
            ((8, 0), torch.bfloat16, 64, True),
            ((9, 0), torch.float16, 256, True),
            ((12, 0), torch.bfloat16, 192, True),
            ((7, 5), torch.float16, 64, False),
            ((8, 0), torch.float32, 64, False),
            ((8, 0), torch.bfloat16, 20, False),
            ((8, 6), torch.bfloat16, 224, False),
            ((9, 0), torch.bfloat16, 264, False),
        ],
    )
    def test_the_kernel_is_asked_for_what_it_can(
        self,
        capability: tuple[int, int],
        dtype: torch.dtype,
        width: int,
        is_read: bool,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        with FakeTensorMode():  # tensors of CUDA without values
            assert reads_packed_rows(torch.empty(1, 4, 9, width, dtype=dtype, device="cuda")) == is_read
        assert not reads_packed_rows(torch.empty(1, 4, 9, width, dtype=dtype))
