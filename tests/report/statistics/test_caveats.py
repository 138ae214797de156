"""What a comparison says against itself."""

import csv
from pathlib import Path
from typing import Any

import pytest

from triptych.report.read_records import find_runs
from triptych.report.statistics.caveats import find_caveats
from triptych.report.statistics.groups import group_runs

MATRIX = {"labels": ["a", "b"], "counts": [[70, 5], [20, 5]]}


def caveats_of(folder: Path) -> list[str]:
    (group,) = group_runs(find_runs([folder], folder).runs)
    return find_caveats(group)


def rewrite(run: Path, name: str, values: list[float]) -> None:
    """These validations, and no others."""
    with (run / "metrics.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["step", name])
        writer.writerows((100 * i, value) for i, value in enumerate(values))


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ({}, "Always predicting “a” scores 75.0 %; decoder-only is no better."),
        ({"confusion_matrix": {"labels": ["a", "b"], "counts": [[75, 1], [20, 5]]}}, None),
    ],
)
def test_answers_without_learning(write_run: Any, others: dict[str, Any], expected: str | None, tmp_path: Path) -> None:
    """Of one test set."""
    flat = [0.2, 0.8, 0.8, 0.8, 0.8]
    for architecture, accuracy in (("encoder_only", 0.751), ("decoder_only", 0.75)):
        changes = {"confusion_matrix": MATRIX} | (others if architecture == "decoder_only" else {})
        run = write_run(architecture, "classification", {"test/accuracy": accuracy}, changes=changes)
        rewrite(run, "val/accuracy", flat)
    assert caveats_of(tmp_path) == ([] if expected is None else [expected])


@pytest.mark.parametrize(
    ("full", "decoder_only", "expected"),
    [
        ([0.0, 0.5, 0.7, 0.79, 0.8], [0.0, 0.5, 0.6, 0.7, 0.9], "decoder-only was"),
        ([0.0, 0.5, 0.7, 0.7, 0.9], [0.0, 0.5, 0.6, 0.7, 0.9], "full and decoder-only were"),
        ([0.0, 0.5, 0.9, 0.9, 0.2], [0.0, 0.9, 0.9, 0.9, 0.9], None),
        ([0.0, 0.5, 0.9], [0.0, 0.1, 0.9], None),
    ],
    ids=["one", "both", "none", "too few to say"],
)
def test_learning_that_was_not_over(
    write_run: Any, full: list[float], decoder_only: list[float], expected: str | None, tmp_path: Path
) -> None:
    for architecture, values in (("full", full), ("decoder_only", decoder_only)):
        rewrite(write_run(architecture, "translation", {"test/exact_match": 0.9}), "val/exact_match", values)
    found = caveats_of(tmp_path)
    assert len(found) == (expected is not None)
    assert expected is None or found[0].startswith(f"At the end, {expected} still improving")


def test_a_metric_of_the_test_alone(write_run: Any, tmp_path: Path) -> None:
    """The loss in validation stands for it."""
    for architecture, values in (("full", [5.0, 4.0, 3.0, 2.9]), ("decoder_only", [5.0, 4.5, 4.0, 3.0])):
        rewrite(write_run(architecture, "translation", {"test/bleu": 20.0}), "val/loss", values)
    assert [caveat[:29] for caveat in caveats_of(tmp_path)] == ["At the end, decoder-only was "]


@pytest.mark.parametrize(("last", "is_overfit"), [(2.2, True), (2.1, False), (float("nan"), False)])
def test_overfitting(write_run: Any, last: float, is_overfit: bool, tmp_path: Path) -> None:
    """The validation loss rises by a tenth after its minimum, on average over two runs of three validations each."""
    for seed, values in ((1, [4.0, 2.0, last]), (2, [2.0, 3.0, last])):
        run = write_run("full", "translation", {"test/bleu": 20.0}, seed=seed)
        rewrite(run, "val/loss", values)
    expected = "full overfits: its validation loss was lowest at step 51 of 201, and is 10 % higher at the end."
    assert caveats_of(tmp_path) == [expected] * is_overfit
