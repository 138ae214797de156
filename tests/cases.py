"""Cases of a test, of which some run by day and the others in ``make nightly``."""

from collections.abc import Collection, Iterable, Sequence
from itertools import product
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from covering import cover


def by_day(cases: Iterable[Any], day: Collection[Any]) -> list[ParameterSet]:
    """All cases for ``parametrize``; those that are not of the day are nightly.

    Args:
        cases: a value each, or a tuple of several.
        day: some of the cases.
    """
    cases = [*cases]
    assert all(case in cases for case in day)
    return [pytest.param(*values_of(case), marks=() if case in day else pytest.mark.nightly) for case in cases]


def every_third_by_day(cases: Iterable[Any]) -> list[ParameterSet]:
    """All cases; those between every third are nightly."""
    cases = [*cases]
    return by_day(cases, cases[::3])


def pairs_by_day(*factors: Sequence[Any]) -> list[ParameterSet]:
    """All combinations of the values of factors; by day so few that every two values of different factors meet."""
    numbers = {str(i): [str(k) for k in range(len(values))] for i, values in enumerate(factors)}
    rows, _ = cover(numbers, ())
    return combinations(factors, {tuple(int(row[factor]) for factor in numbers) for row in rows})


def values_by_day(*factors: Sequence[Any]) -> list[ParameterSet]:
    """All combinations of the values of factors; by day so few that every value is in one."""
    day = {tuple(number % len(values) for values in factors) for number in range(max(map(len, factors)))}
    return combinations(factors, day)


def combinations(factors: Sequence[Sequence[Any]], day: Collection[tuple[int, ...]]) -> list[ParameterSet]:
    """All combinations of the values of factors; nightly unless the numbers of their values are given."""
    return [
        pytest.param(
            *(values[k] for values, k in zip(factors, chosen, strict=True)),
            marks=() if chosen in day else pytest.mark.nightly,
        )
        for chosen in product(*(range(len(values)) for values in factors))
    ]


def values_of(case: Any) -> tuple[Any, ...]:
    """The arguments of a case."""
    return case if isinstance(case, tuple) else (case,)
