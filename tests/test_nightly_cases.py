"""Which cases stay by day."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightly_cases import LONG, SHORT, choose_nightly, function_of

TESTS = [f"{function}{case}" for function in ("a", "b", "c") for case in ("", "[1]", "[2]", "[3]")]
TRACES = st.fixed_dictionaries(
    {}, optional={test: st.tuples(st.floats(0, 5), st.sets(st.integers(0, 9), max_size=4)) for test in TESTS}
)


@given(TRACES, st.sets(st.sampled_from(TESTS)))
def test_every_line_and_every_function_is_still_tried(
    traces: dict[str, tuple[float, set[int]]], always: set[str]
) -> None:
    seconds = {test: seconds for test, (seconds, _) in traces.items()}
    lines = {test: {("file.py", line) for line in lines} for test, (_, lines) in traces.items()}
    nightly = set(choose_nightly(seconds, lines, always))
    by_day = seconds.keys() - nightly
    assert set[object]().union(*(lines[test] for test in by_day)) == set[object]().union(*lines.values())
    short = {function_of(test) for test in seconds if seconds[test] < LONG}
    assert {function_of(test) for test in by_day} >= short
    assert all(seconds[test] >= SHORT and test not in always for test in nightly)


@pytest.mark.parametrize("shared", [True, False])
def test_of_two_that_reach_the_same_the_quicker_stays(shared: bool) -> None:
    lines = {"a[1]": {("file.py", 1)}, "a[2]": {("file.py", 1 if shared else 2)}}
    assert choose_nightly({"a[1]": 3.0, "a[2]": 2.0}, lines, ()) == (["a[1]"] if shared else [])
