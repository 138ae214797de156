"""Keys and values between decoding steps."""

import itertools

import pytest
import torch

from triptych.nn.kv_cache import LayerCache


def test_keeps_what_was_appended() -> None:
    cache, keys, values = LayerCache(capacity=5), torch.randn(3, 2, 5, 4), torch.randn(3, 2, 5, 4)
    for start, end in itertools.pairwise((0, 2, 3, 5)):
        cache.append(keys[:, :, start:end], values[:, :, start:end])
        assert cache.length == end
        assert torch.equal(cache.contents[0], keys[:, :, :end])
        assert torch.equal(cache.contents[1], values[:, :, :end])


def test_selects_rows() -> None:
    cache, keys, values = LayerCache(capacity=3), torch.randn(3, 2, 3, 4), torch.randn(3, 2, 3, 4)
    rows = torch.tensor([2, 0, 0])
    cache.select(rows)  # still empty
    cache.append(keys[:, :, :2], values[:, :, :2])
    cache.select(rows)
    cache.append(keys[rows][:, :, 2:], values[rows][:, :, 2:])
    assert torch.equal(cache.contents[0], keys[rows])
    assert torch.equal(cache.contents[1], values[rows])


def test_more_than_its_capacity_raises() -> None:
    cache, x = LayerCache(capacity=3), torch.zeros(1, 1, 2, 4)
    cache.append(x, x)
    with pytest.raises(ValueError, match="holds 3 positions, 4 were asked for"):
        cache.append(x, x)
