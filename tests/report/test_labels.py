"""Values and metrics in words."""

import pytest

from triptych.report.labels import metric_name
from triptych.tasks.language_modeling import BITS_PER_BYTE
from triptych.tasks.metric_specs import EXACT_MATCH, LOSS, MetricSpec


@pytest.mark.parametrize(
    ("metric", "value", "optimum", "text"),
    [
        (EXACT_MATCH, 0.989, 0.993, "0.4 points below the ceiling"),
        (EXACT_MATCH, 0.5, 0.993, "49.3 points below the ceiling"),
        (EXACT_MATCH, 0.993, 0.993, "at the ceiling"),
        (EXACT_MATCH, 0.995, 0.993, "0.2 points above the ceiling"),
        (BITS_PER_BYTE, 0.8198, 0.81, "1.2 % above the entropy"),
        (BITS_PER_BYTE, 0.80595, 0.81, "0.5 % below the entropy"),
        (BITS_PER_BYTE, 0.81001, 0.81, "at the entropy"),
        (LOSS, 0.75, 0.5, "0.25 above the minimum"),
    ],
)
def test_distance_to_the_optimum(metric: MetricSpec, value: float, optimum: float, text: str) -> None:
    assert metric.show_gap(value, optimum) == text


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [(5.6e-17, 0.083, "0 to 8.3 points"), (-1e-16, 0.004, "0 to 0.4 points"), (-0.0002, 0.083, "-0.02 to 8.3 points")],
)
def test_a_rounding_error_is_no_difference(low: float, high: float, text: str) -> None:
    assert EXACT_MATCH.show_difference(low, high) == text


@pytest.mark.parametrize(("value", "text"), [(0.972, "97.2 %"), (1.0, "100.0 %"), (0.9996, "99.96 %")])
def test_a_share_is_not_rounded_up_to_all(value: float, text: str) -> None:
    assert EXACT_MATCH.show(value) == text


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("train/loss", "loss in training"),
        ("val/exact_match", "exact match on the validation set"),
        ("test/macro_f1", "macro F1 on the test set"),
        ("lr", "lr"),
    ],
)
def test_a_metric_has_a_name(key: str, text: str) -> None:
    assert metric_name(key) == text
