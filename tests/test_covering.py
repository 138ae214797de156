"""The rows of docs/compatibility.md cover what they promise, and the page is of the parts that there are."""

import re
from itertools import product
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from compatibility_page import factors, styles
from covering import Row, Values, cover, explain, learn, pairs_of
from pages import template_of

PAGE = Path(__file__).parents[1] / "docs" / "compatibility.md"

sizes = st.lists(st.integers(1, 3), min_size=2, max_size=5)


def factors_of(sizes: list[int]) -> dict[str, list[str]]:
    return {f"f{i}": [str(value) for value in range(size)] for i, size in enumerate(sizes)}


def all_rows(factors: dict[str, list[str]]) -> list[Row]:
    return [dict(zip(factors, values, strict=True)) for values in product(*factors.values())]


@st.composite
def refusals(draw: st.DrawFn) -> tuple[dict[str, list[str]], set[Values]]:
    """Factors, and sets of two or three of their values that no row may have."""
    factors = factors_of(draw(sizes))
    values = [(factor, value) for factor, values in factors.items() for value in values]
    some = st.frozensets(st.sampled_from(values), min_size=2, max_size=3)
    found = draw(st.sets(some, max_size=6))
    return factors, {refused for refused in found if len(dict(refused)) == len(refused)}


@given(given=refusals())
def test_every_pair_that_a_row_can_have_stands_in_one(given: tuple[dict[str, list[str]], set[Values]]) -> None:
    """Against all rows there are."""
    factors, refused = given
    allowed = [row for row in all_rows(factors) if not any(values <= row.items() for values in refused)]
    rows, impossible = cover(factors, refused)
    assert all(row in allowed for row in rows)
    covered = set[Values]().union(*map(pairs_of, rows))
    assert covered == set[Values]().union(*map(pairs_of, allowed))
    assert covered.isdisjoint(impossible)
    assert covered | {*impossible} == set[Values]().union(*map(pairs_of, all_rows(factors)))
    assert cover(factors, refused)[0] == rows
    for pair in impossible:
        because = explain(pair, factors, refused)
        assert not [
            row for row in all_rows(factors) if pair <= row.items() and not any(s <= row.items() for s in because)
        ]


def test_few_rows_do() -> None:
    """As many as the two largest factors have pairs, at least; and of ten factors of four values about twice that."""
    rows, _ = cover(factors_of([4] * 10), ())
    assert 16 <= len(rows) <= 32


def test_what_is_rejected_is_found_in_its_smallest_form() -> None:
    """One value needs another than the default, as Linformer needs an encoder; two do not go together; nor do three."""
    factors = {"model": ["full", "encoder"], "task": ["writing", "classes"], "a": ["x", "y", "z"], "b": ["u", "v"]}

    def refusal(row: Row) -> str | None:
        if row["model"] == "encoder" and row["task"] == "writing":
            return "an encoder writes nothing"
        if row["model"] == "full" and row["a"] == "y":
            return "y is for encoders"
        if row["a"] == "z" and row["b"] == "v":
            return "no z with v"
        if row["model"] == "full" and row["a"] == "z" and row["task"] == "classes":
            return "no z here"
        return None

    first = {factor: values[0] for factor, values in factors.items()}
    bases = [first | {"model": m, "task": t} for m, t in product(factors["model"], factors["task"])]
    rows, impossible, reasons = learn(factors, [row for row in bases if refusal(row) is None], refusal)
    assert {tuple(sorted(dict(values).values())): reason for values, reason in reasons.items()} == {
        ("encoder", "writing"): "an encoder writes nothing",
        ("full", "y"): "y is for encoders",
        ("v", "z"): "no z with v",
        ("classes", "full", "z"): "no z here",
    }
    possible = set[Values]().union(*(pairs_of(row) for row in all_rows(factors) if refusal(row) is None))
    assert set[Values]().union(*map(pairs_of, rows)) == possible
    writing_y = frozenset({("task", "writing"), ("a", "y")})
    assert writing_y in impossible
    assert len(explain(writing_y, factors, reasons)) == 2


def test_the_page_is_of_the_configuration() -> None:
    """A part that is new is not on it: `make compatibility`."""
    page = PAGE.read_text(encoding="utf-8")
    for part in re.split(r"\{\w+\}", template_of("compatibility_page")):
        assert part in page
    named = {(factor, value) for factor, value in re.findall(r"^\| `([\w/.]+)=([\w.-]+)`", page, re.MULTILINE)}
    assert named == {(factor, value) for factor, values in factors().items() for value in values}
    assert {name for name in styles() if f"\n| {name} |" in page} == {*styles()}


def test_every_cell_says_something() -> None:
    """A pair that was not tried and not refused would be 0; what fails is mended, or refused with the reason."""
    cells = [line.split("|")[2:-1] for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert cells
    assert all(cell.strip() not in ("", "0") and "failed" not in cell for row in cells for cell in row)
