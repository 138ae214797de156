"""Which examples make up which step: properties of the order, for any split and any division of the work."""

from collections import Counter
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triptych.data.batches.sampler import MicroBatch, RankSlice, StepSize, TrainingSampler, cuts_of, evaluation_batches


@st.composite
def settings(draw: Any) -> dict[str, Any]:
    """Any sampler: the split may be smaller than a step, and epochs end in the middle of steps of so many
    examples; those of so many tokens may have fewer examples than parts."""
    num_examples = draw(st.integers(1, 60))
    accumulate, world_size = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    generator = np.random.default_rng(draw(st.integers(0, 100)))
    counts_tokens = draw(st.booleans())
    return {
        "sizes": generator.integers(1, 30, num_examples),
        "num_scored": generator.integers(0, 9, num_examples),
        "step_size": StepSize(
            None if counts_tokens else accumulate * world_size * draw(st.integers(1, 4)),
            draw(st.integers(29, 90)) if counts_tokens else None,
            accumulate,
        ),
        "ranks": RankSlice(world_size=world_size),
        "seed": draw(st.integers(0, 5)),
        "pool_size": draw(st.integers(1, 6)),
    }


def steps_of(sampler: TrainingSampler, numbers: Any) -> list[list[int]]:
    return [sampler.indices_of_step(k).tolist() for k in numbers]


def micro_batches(count: int, **options: Any) -> list[MicroBatch]:
    return list(islice(TrainingSampler(**options), count))


@given(options=settings(), numbers=st.lists(st.integers(0, 40), min_size=1))
def test_a_step_is_a_function_of_seed_and_number(options: dict[str, Any], numbers: list[int]) -> None:
    """In whatever order they are asked for."""
    in_order = steps_of(TrainingSampler(**options), range(41))
    assert steps_of(TrainingSampler(**options), numbers) == [in_order[k] for k in numbers]


def test_another_seed_gives_another_order() -> None:
    sizes = np.ones(100, dtype=int)
    first, second = (
        steps_of(TrainingSampler(sizes=sizes, num_scored=sizes, step_size=StepSize(10), seed=seed), range(10))
        for seed in (0, 1)
    )
    assert first != second


@given(options=settings(), num_pools=st.integers(1, 5))
def test_each_example_comes_once_an_epoch(options: dict[str, Any], num_pools: int) -> None:
    """After any whole number of pools, no example was seen more than once more often than another; a pool of steps
    of so many tokens is an epoch."""
    sampler = TrainingSampler(**options)
    num_steps = num_pools * sampler.pool_size
    seen = Counter(i for step in steps_of(sampler, range(num_steps)) for i in step)
    whole, rest = divmod(sum(seen.values()), len(options["sizes"]))
    assert Counter(seen[i] - whole for i in range(len(options["sizes"]))) == Counter(
        {0: len(options["sizes"]) - rest, 1: rest}
    )
    assert (num_pools, 0) == (whole, rest) or options["step_size"].global_size


@given(options=settings())
def test_a_step_has_as_many_examples_as_it_may(options: dict[str, Any]) -> None:
    """In a sorted pool: at most so many tokens, and one example more would be too many."""
    sampler = TrainingSampler(**options)
    steps = [sampler.indices_of_step(k) for k in range(sampler.pool_size)]
    assert min(len(step) for step in steps) > 0
    most = options["step_size"].max_tokens
    if most is None:
        assert {len(step) for step in steps} == {options["step_size"].global_size}
        return
    assert max(options["sizes"][step].sum() for step in steps) <= most
    queue: list[list[int]] = [[]]  # written out
    for size in np.sort(options["sizes"]).tolist():
        if sum(queue[-1]) + size > most:
            queue.append([])
        queue[-1].append(size)
    assert sorted(options["sizes"][step].tolist() for step in steps) == sorted(queue)


def test_a_step_may_be_full_to_the_last_token() -> None:
    assert cuts_of(np.array([2, 3, 5, 5]), 5).tolist() == [0, 2, 3, 4]


def test_epochs_differ() -> None:
    sizes = np.ones(20, dtype=int)
    sampler = TrainingSampler(sizes=sizes, num_scored=sizes, step_size=StepSize(20), seed=0, pool_size=1)
    first, second = steps_of(sampler, range(2))
    assert sorted(first) == sorted(second) == list(range(20))
    assert first != second


@given(options=settings(), start=st.integers(0, 20))
def test_continues_from_any_start(options: dict[str, Any], start: int) -> None:
    whole = micro_batches(start + 10, **options)
    for later, expected in zip(micro_batches(10, **options, start=start), whole[start:], strict=True):
        assert later.indices.tolist() == expected.indices.tolist()
        assert later.num_labels_in_step == expected.num_labels_in_step


@given(options=settings())
def test_ranks_and_accumulated_parts_partition_the_step(options: dict[str, Any]) -> None:
    accumulate, world_size = options["step_size"].accumulate, options["ranks"].world_size
    ranks = [micro_batches(4 * accumulate, **options | {"ranks": RankSlice(i, world_size)}) for i in range(world_size)]
    for k in range(4):
        step = TrainingSampler(**options).indices_of_step(k)
        parts = [part for rank in ranks for part in rank[k * accumulate : (k + 1) * accumulate]]
        lengths = [len(part.indices) for part in parts]
        assert max(lengths) - min(lengths) <= (options["step_size"].global_size is None)
        assert sorted(i for part in parts for i in part.indices) == sorted(step)
        assert {part.num_labels_in_step for part in parts} == {sum(options["num_scored"][i] for i in step)}


def test_like_sizes_meet() -> None:
    """Padding is a fraction of what it would be in arrival order."""
    sizes = np.random.default_rng(0).integers(1, 100, 3000)
    sampler = TrainingSampler(sizes=sizes, num_scored=sizes, step_size=StepSize(20), seed=0)

    def padding(steps: list[list[int]]) -> int:
        return sum(int((sizes[step].max() - sizes[step]).sum()) for step in steps)

    arrival = np.random.default_rng(1).permutation(3000).reshape(-1, 20).tolist()
    assert padding(steps_of(sampler, range(150))) < padding(arrival) / 10
    longest = [sizes[step].max() for step in steps_of(sampler, range(50))]
    assert longest != sorted(longest)  # but short steps do not all come first


@pytest.mark.parametrize(("accumulate", "world_size", "multiple"), [(3, 1, 3), (1, 4, 4), (2, 3, 6)])
def test_rejects_a_step_that_cannot_be_split(accumulate: int, world_size: int, multiple: int) -> None:
    ones, ranks = np.ones(5, dtype=int), RankSlice(world_size=world_size)
    with pytest.raises(ValueError, match=rf"batch\.global_size=10 cannot .* expected a multiple of {multiple}"):
        TrainingSampler(sizes=ones, num_scored=ones, step_size=StepSize(10, accumulate=accumulate), ranks=ranks, seed=0)


def test_rejects_an_example_that_is_larger_than_a_step() -> None:
    sizes = np.array([3, 9, 4])
    with pytest.raises(ValueError, match=r"batch\.max_tokens=8: an example has 9 tokens"):
        TrainingSampler(sizes=sizes, num_scored=sizes, step_size=StepSize(max_tokens=8), seed=0)


def test_a_late_step_is_found_at_once() -> None:
    """A billion steps on: only two epochs are drawn, whatever lies before."""
    sizes = np.random.default_rng(0).integers(1, 30, 50)
    sampler = TrainingSampler(sizes=sizes, num_scored=sizes, step_size=StepSize(max_tokens=60), seed=0)
    epoch = 10**9 * sampler.pool_size
    assert sorted(i for k in range(sampler.pool_size) for i in sampler.indices_of_step(epoch + k)) == list(range(50))


def test_rejects_an_empty_split() -> None:
    nothing = np.array([], dtype=int)
    with pytest.raises(ValueError, match="the training split is empty"):
        TrainingSampler(sizes=nothing, num_scored=nothing, step_size=StepSize(1), seed=0)


@given(sizes=st.lists(st.integers(1, 50), max_size=60), batch_size=st.integers(1, 9), world_size=st.integers(1, 4))
def test_an_evaluation_sees_each_example_once(sizes: list[int], batch_size: int, world_size: int) -> None:
    ranks = [evaluation_batches(np.array(sizes), batch_size, RankSlice(rank, world_size)) for rank in range(world_size)]
    assert all(ranks)  # even if there is nothing in it
    num_batches = max(1, -(-len(sizes) // batch_size))
    batches = [ranks[k % world_size][k // world_size].tolist() for k in range(num_batches)]  # dealt in turn
    order = [i for batch in batches for i in batch]
    assert sorted(order) == list(range(len(sizes))) == sorted(i for rank in ranks for batch in rank for i in batch)
    assert [sizes[i] for i in order] == sorted(sizes)  # like sizes together
    assert [len(batch) for batch in batches[:-1]] == [batch_size] * len(batches[:-1])
