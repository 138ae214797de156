"""Which windows make up which update: properties of the order, for any texts and any division of the work."""

from collections import Counter
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triptych.data import DataModule, EncodedListDataset, TrainingWindows
from triptych.data.batches import window_sampler
from triptych.data.batches.batch import EncodedExample
from triptych.data.batches.sampler import RankSlice, StepSize
from triptych.data.batches.window_sampler import WindowSampler, shuffled


def encode(window: Any) -> EncodedExample:
    return EncodedExample(window[:-1], window[1:])


def windows_of(sizes: list[int], length: int, weights: list[float] | None = None) -> TrainingWindows:
    """Of texts whose tokens name their text and place."""
    texts = [1000 * i + np.arange(size) for i, size in enumerate(sizes)]
    return TrainingWindows(texts, weights or [1.0] * len(sizes), length=length, encode=encode)


@st.composite
def samplers(draw: Any) -> dict[str, Any]:
    sizes = draw(st.lists(st.integers(2, 80), min_size=1, max_size=3))
    accumulate, world_size = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    return {
        "windows": windows_of(sizes, draw(st.integers(1, 30)), [draw(st.integers(1, 5)) for _ in sizes]),
        "step_size": StepSize(accumulate * world_size * draw(st.integers(1, 3)), None, accumulate),
        "ranks": RankSlice(world_size=world_size),
        "seed": draw(st.integers(0, 5)),
    }


@given(size=st.integers(2, 80), length=st.integers(1, 30), seed=st.integers(0, 3), epochs=st.integers(1, 4))
def test_each_token_is_a_label_once_an_epoch(size: int, length: int, seed: int, epochs: int) -> None:
    """But for the first, which nothing precedes. No window is longer than ``length``."""
    windows = windows_of([size], length)
    sampler = WindowSampler(windows, step_size=StepSize(1), seed=seed)
    k, cuts = 0, []
    for _ in range(epochs):
        labels: list[int] = []
        while len(labels) < size - 1:
            (row,) = sampler.indices_of_step(k)
            item = windows[row]
            assert 1 <= len(item.labels) <= length
            assert item.inputs.tolist() == (item.labels - 1).tolist()
            assert windows.num_scored(row[2] - row[1]) == item.num_scored
            labels += item.labels.tolist()
            cuts.append(int(row[1]) % length)
            k += 1
        assert sorted(labels) == list(range(1, size))
    if epochs > 2 and size > 2 * length > 20:
        assert len(set(cuts)) > 2  # the cuts are elsewhere in each epoch


@given(options=samplers(), numbers=st.lists(st.integers(0, 40), min_size=1), block=st.integers(1, 40))
def test_a_step_is_a_function_of_seed_and_number(options: dict[str, Any], numbers: list[int], block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window_sampler, "BLOCK", block)
        sampler = WindowSampler(**options)
        in_order = [sampler.indices_of_step(k).tolist() for k in range(41)]
        sampler = WindowSampler(**options)
        assert [sampler.indices_of_step(k).tolist() for k in numbers] == [in_order[k] for k in numbers]


@given(options=samplers(), start=st.integers(0, 5))
def test_the_parts_of_a_step_are_the_step(options: dict[str, Any], start: int) -> None:
    """Each rank has as many windows in as many batches as the others, and goes on wherever it is asked to."""
    accumulate, world_size = options["step_size"].accumulate, options["ranks"].world_size
    parts = [
        list(
            islice(
                WindowSampler(**options | {"ranks": RankSlice(rank, world_size)}, start=start * accumulate),
                accumulate * 3,
            )
        )
        for rank in range(world_size)
    ]
    sizes = {len(batch.indices) for batches in parts for batch in batches}
    assert sizes == {options["step_size"].global_size // accumulate // world_size}
    for k in range(3):
        here = slice(k * accumulate, (k + 1) * accumulate)
        batches = [batch for rank in parts for batch in rank[here]]
        update = WindowSampler(**options).indices_of_step(start + k)
        assert Counter(map(tuple, update)) == Counter(tuple(row) for batch in batches for row in batch.indices)
        assert {batch.num_labels_in_step for batch in batches} == {int((update[:, 2] - update[:, 1]).sum())}


def test_windows_are_drawn_by_weight_and_each_text_has_its_own_epochs() -> None:
    sizes, weights = [400, 4000, 40], [1.0, 2.0, 5.0]
    windows = windows_of(sizes, 10, weights)
    sampler = WindowSampler(windows, step_size=StepSize(1000), seed=3)
    rows = np.concatenate([sampler.indices_of_step(k) for k in range(25)])
    counts = np.bincount(rows[:, 0])
    expected = len(rows) * np.array(weights) / sum(weights)
    assert (np.abs(counts - expected) < 4 * np.sqrt(expected)).all()
    for text, size in enumerate(sizes):
        seen = Counter(label for _, a, b in rows[rows[:, 0] == text] for label in range(a, b))
        assert set(seen) == set(range(size - 1))
        assert max(seen.values()) - min(seen.values()) <= 1  # the last epoch is not complete
    again = WindowSampler(windows, step_size=StepSize(1000), seed=4)
    assert (again.indices_of_step(0) != sampler.indices_of_step(0)).any()


@given(count=st.integers(1, 300), seed=st.integers(0, 5))
def test_shuffled_is_a_permutation(count: int, seed: int) -> None:
    places = np.arange(count)
    order = shuffled(places, count, (seed, 1))
    assert sorted(order.tolist()) == places.tolist()
    assert (shuffled(places[::3], count, (seed, 1)) == order[::3]).all()


def test_any_number_may_stand_at_any_place_of_a_permutation() -> None:
    """With the same probability, and whatever stands at the place before: chi squared, at 99.9 %."""
    drawn = np.array([shuffled(np.arange(2), 5, (seed, 7)) for seed in range(2000)])
    for values, cells in ((drawn[:, 0], 5), (drawn[:, 1], 5), (drawn @ [5, 1], 25)):
        counts = np.bincount(values, minlength=cells)
        counts = counts[counts > 0]
        expected = len(drawn) / len(counts)
        assert len(counts) in (5, 20)
        assert ((counts - expected) ** 2 / expected).sum() < {5: 18.5, 20: 43.8}[len(counts)]


def test_a_budget_of_tokens_is_a_number_of_windows() -> None:
    options: dict[str, Any] = {"windows": windows_of([500], 10), "ranks": RankSlice(world_size=2), "seed": 0}
    assert len(WindowSampler(**options, step_size=StepSize(None, 99, 2)).indices_of_step(0)) == 8
    with pytest.raises(ValueError, match=r"batch\.max_tokens=39: a window has 10 tokens; expected at least 40"):
        WindowSampler(**options, step_size=StepSize(None, 39, 2))
    with pytest.raises(ValueError, match=r"batch\.global_size=6 cannot be split evenly"):
        WindowSampler(**options, step_size=StepSize(6, accumulate=2))


def test_workers_change_nothing() -> None:
    windows, lines = windows_of([300, 50], 8, [2.0, 1.0]), EncodedListDataset([encode(np.arange(3))])
    seen = []
    for num_workers in (0, 2):
        data = DataModule(
            train=windows, validation=lines, test=lines, step_size=StepSize(4, accumulate=2), eval_batch_size=1,
            num_workers=num_workers, seed=1,
        )  # fmt: skip
        data.start = 5
        seen.append([(b.inputs.tolist(), b.num_labels_in_step) for b in islice(data.train_dataloader(), 12)])
    assert seen[0] == seen[1]
    assert "window [" in data.describe_step(6)
