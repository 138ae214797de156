"""Rows that together have every two values of different factors, and what of them is refused; for the page that
``compatibility_page.py`` writes."""

import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import combinations, product

Factors = Mapping[str, Sequence[str]]
"""By factor: its values."""
Row = dict[str, str]
"""A value of each factor, or of some."""
Values = frozenset[tuple[str, str]]
"""Values of different factors."""
Refusal = Callable[[Row], str | None]
"""Why a row is refused; None: it is not."""

CANDIDATES = 4
"""So many rows are tried for each that is taken."""


def pairs_of(row: Row) -> set[Values]:
    """Every two values of a row."""
    return {frozenset(pair) for pair in combinations(row.items(), 2)}


def complete(
    factors: Factors, refused: Collection[Values], row: Row, wanted: Collection[Values], chance: random.Random
) -> Row | None:
    """A row with these values that no refused set is in; None: there is none. The factor with the fewest values left is
    chosen first, of its values the one that stands in the most wanted pairs with those before it."""
    if any(values <= row.items() for values in refused):
        return None
    if len(row) == len(factors):
        return row
    left = {
        factor: [value for value in values if not any(s <= (row | {factor: value}).items() for s in refused)]
        for factor, values in factors.items()
        if factor not in row
    }
    factor = min(left, key=lambda factor: (len(left[factor]), chance.random()))

    def gain(value: str) -> tuple[int, float]:
        return sum(frozenset({(factor, value), other}) in wanted for other in row.items()), chance.random()

    for value in sorted(left[factor], key=gain, reverse=True):
        if (found := complete(factors, refused, row | {factor: value}, wanted, chance)) is not None:
            return found
    return None


def cover(factors: Factors, refused: Collection[Values], seed: int = 1) -> tuple[list[Row], list[Values]]:
    """Rows in which all pairs stand that a row can have, found greedily (Cohen et al. 1997, AETG), and the other pairs.

    Args:
        refused: no row has all values of one of these.
        seed: of the choices between equals.
    """
    chance, rows, impossible = random.Random(seed), list[Row](), list[Values]()
    values = [[(factor, value) for value in values] for factor, values in factors.items()]
    wanted = dict.fromkeys(frozenset(pair) for one, other in combinations(values, 2) for pair in product(one, other))
    while wanted:
        pair = next(iter(wanted))
        found = [complete(factors, refused, dict(pair), wanted, chance) for _ in range(CANDIDATES)]
        candidates = [row for row in found if row is not None]
        if not candidates:
            impossible.append(pair)
            del wanted[pair]
            continue
        best = max(candidates, key=lambda row: len(pairs_of(row) & wanted.keys()))
        rows.append({factor: best[factor] for factor in factors})
        for covered in pairs_of(rows[-1]):
            wanted.pop(covered, None)
    return rows, impossible


def reasons_of(row: Row, bases: Iterable[Row], refusal: Refusal) -> dict[Values, str]:
    """The smallest sets of a row's values that are refused over all bases, with the reasons; those that follow from
    others are left out. A row that no three of its values explain is itself such a set.

    Args:
        row: that is refused.
        bases: accepted rows, whose values take the place of those that are not in a set.
        refusal: see above.
    """
    bases, reasons = [*bases], dict[Values, str]()
    for size in (1, 2, 3):
        for values in combinations(row.items(), size):
            if all(refusal(base | dict(values)) for base in bases) and (reason := own(values, bases, refusal)):
                reasons[frozenset(values)] = reason
        if reasons:
            return reasons
    return {frozenset(row.items()): refusal(row) or ""}


def own(values: Sequence[tuple[str, str]], bases: Sequence[Row], refusal: Refusal) -> str | None:
    """Why values are refused together, over a base where another value in the place of any one is accepted; None: there
    is no such base."""
    for base in bases:
        row = base | dict(values)
        others = [[row | {factor: other[factor]} for other in bases] for factor, _ in values]
        if all(any(refusal(changed) is None for changed in rows) for rows in others):
            return refusal(row)
    return None


def learn(
    factors: Factors, bases: Sequence[Row], refusal: Refusal
) -> tuple[list[Row], list[Values], dict[Values, str]]:
    """Covering rows that are all accepted, the pairs that none can have, and the refused sets of values.

    Args:
        bases: see ``reasons_of``.
        refusal: asked of each row.
    """
    reasons = dict[Values, str]()
    while True:
        rows, impossible = cover(factors, reasons)
        refused = [row for row in rows if refusal(row) is not None]
        if not refused:
            return rows, impossible, reasons
        for row in refused:
            if not any(values <= row.items() for values in reasons):  # known from a row before
                reasons |= reasons_of(row, bases, refusal)


def explain(pair: Values, factors: Factors, refused: Collection[Values]) -> list[Values]:
    """Of the refused sets the fewest, as far as leaving out one at a time finds them, that no row with this pair can
    avoid."""
    needed = [*refused]
    for values in refused:
        fewer = [other for other in needed if other != values]
        if complete(factors, fewer, dict(pair), (), random.Random(0)) is None:
            needed = fewer
    return needed
