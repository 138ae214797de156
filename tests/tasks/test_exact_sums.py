"""Sums that do not depend on the order of their terms."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from triptych.tasks.exact_sums import ExactMean, ExactSum

TERMS = st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=9)


@given(terms=TERMS)
def test_a_sum_is_the_nearest_number_to_the_exact_one(terms: list[float]) -> None:
    metric = ExactSum()
    for term in terms:
        metric.update(torch.tensor(term, dtype=torch.float64))
    assert metric.compute() == float(sum(map(Fraction, terms)))


@given(terms=TERMS, data=st.data())
def test_a_mean_does_not_depend_on_the_order(terms: list[float], data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(1, 99), min_size=len(terms), max_size=len(terms)))
    batches = list(zip(terms, counts, strict=True))
    means = []
    for order in (batches, data.draw(st.permutations(batches))):
        metric = ExactMean()
        for term, count in order:
            metric.update(torch.tensor(term, dtype=torch.float64), count)
        means.append(float(metric.compute()))
    assert means[0] == means[1] == float(sum(map(Fraction, terms))) / sum(counts)


def test_a_sum_of_nothing() -> None:
    with pytest.warns(UserWarning, match="before the ``update``"):
        assert ExactSum().compute() == 0
    with pytest.warns(UserWarning, match="before the ``update``"):
        assert ExactMean().compute().isnan()
