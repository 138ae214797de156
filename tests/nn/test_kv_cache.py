"""Keys and values between decoding steps."""

import itertools

import pytest
import torch

from triptych.nn.kv_cache import LayerCache, RowMoves


def test_keeps_what_was_appended() -> None:
    cache, keys, values = LayerCache(capacity=5), torch.randn(3, 2, 5, 4), torch.randn(3, 2, 5, 4)
    for start, end in itertools.pairwise((0, 2, 3, 5)):
        cache.append(keys[:, :, start:end], values[:, :, start:end])
        assert cache.length == end
        assert torch.equal(cache.contents[0], keys[:, :, :end])
        assert torch.equal(cache.contents[1], values[:, :, :end])


@pytest.mark.parametrize("rows", [[2, 0, 0], [1], [0, 2], [2, 1, 0, 0, 1]])
def test_selects_rows(rows: list[int]) -> None:
    cache, keys, values = LayerCache(capacity=3), torch.randn(3, 2, 3, 4), torch.randn(3, 2, 3, 4)
    cache.append(keys[:, :, :2], values[:, :, :2])
    kept = torch.tensor(rows)
    cache.select(RowMoves.of(kept, 3, torch.device("cpu")))
    cache.append(keys[kept][:, :, 2:], values[kept][:, :, 2:])
    assert torch.equal(cache.contents[0], keys[kept])
    assert torch.equal(cache.contents[1], values[kept])


def test_rows_that_stay_are_not_copied() -> None:
    moves = RowMoves.of(torch.tensor([0, 3, 2]), 4, torch.device("cpu"))
    assert (moves.places.tolist(), moves.sources.tolist()) == ([1], [3])


@pytest.mark.parametrize(("skipped", "places"), [(True, slice(1, 3)), (False, slice(0, 2))])
def test_joins_rows(skipped: bool, places: slice) -> None:
    """The shorter rows get zeros before them, or behind them; the longer lose as much there."""
    short, long = LayerCache(capacity=2), LayerCache(capacity=5)
    x, y = torch.randn(2, 2, 2, 4), torch.randn(3, 2, 5, 4)
    short.append(x, -x)
    long.append(y, -y)
    short.join(long, length=3, capacity=6, skipped=skipped)
    expected = torch.zeros(5, 2, 3, 4)
    expected[:2, :, places] = x
    expected[2:] = y[:, :, 2:] if skipped else y[:, :, :3]
    assert torch.equal(short.contents[0], expected)
    assert torch.equal(short.contents[1], -expected)
    more = torch.randn(5, 2, 3, 4)
    short.append(more, more)
    assert torch.equal(short.contents[0][:, :, 3:], more)


def test_more_than_its_capacity_raises() -> None:
    cache, x = LayerCache(capacity=3), torch.zeros(1, 1, 2, 4)
    cache.append(x, x)
    with pytest.raises(ValueError, match="holds 3 positions, 4 were asked for"):
        cache.append(x, x)
