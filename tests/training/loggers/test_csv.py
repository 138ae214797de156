"""metrics.csv, also of runs that go on."""

import csv
import os
import tracemalloc
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triptych.training import CSVLogger

COLUMNS = ("train/loss", "val/loss", "lr", "b,c", 'quo"te')
VALUES = st.dictionaries(st.sampled_from(COLUMNS), st.floats(allow_nan=False), min_size=1)


def logged(path: Path) -> list[dict[str, float]]:
    with open(path, newline="") as file:
        return [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]


@given(rows=st.lists(VALUES, min_size=1, max_size=12), data=st.data())
def test_what_is_logged_again_after_a_checkpoint_stands_there_once(
    rows: list[dict[str, float]], data: st.DataObject
) -> None:
    """Row i is logged at update i; killed after any of them, resumed from any checkpoint before that."""
    killed = data.draw(st.integers(0, len(rows)))
    resumed = data.draw(st.integers(0, killed))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "metrics.csv"
        first = CSVLogger(path=str(path))
        for step, row in enumerate(rows[:killed]):
            first.log_metrics({**row, "epoch": 0.0}, step)
        again = CSVLogger(path=str(path))
        again.rewind(resumed, pending_validation=False)
        for step, row in enumerate(rows[resumed:], resumed):
            again.log_metrics(row, step)
        again.sync()
        assert logged(path) == [{"step": float(step), **row} for step, row in enumerate(rows)]
        assert [file.name for file in Path(folder).iterdir()] == ["metrics.csv"]


def test_a_validation_that_is_to_be_done_again_leaves_no_row(tmp_path: Path) -> None:
    logger = CSVLogger(path=str(tmp_path / "metrics.csv"))
    logger.log_metrics({"train/loss": 2.0}, 4)
    logger.log_metrics({"val/loss": 2.5}, 4)
    logger.log_metrics({"train/loss": 1.0}, 9)
    logger.log_metrics({"val/loss": 1.5}, 9)
    logger.rewind(10, pending_validation=True)
    assert logged(logger.path) == [
        {"step": 4, "train/loss": 2}, {"step": 4, "val/loss": 2.5}, {"step": 9, "train/loss": 1},
    ]  # fmt: skip


def test_a_row_does_not_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning saves each logger after each row; checkpoints, and the end of a run, wait."""
    waits, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: waits.append(fsync(file)))
    logger = CSVLogger(path=str(tmp_path / "metrics.csv"))
    logger.log_metrics({"train/loss": 2.0}, 0)
    waits.clear()  # that of the file with its columns
    for step in (1, 2):
        logger.log_metrics({"train/loss": 1.0}, step)
        logger.save()
    assert not waits
    logger.finalize("success")
    assert len(waits) == 1


def test_no_row_is_held_in_memory(tmp_path: Path) -> None:
    logger = CSVLogger(path=str(tmp_path / "metrics.csv"))
    logger.path.write_text("step,train/loss\n" + "".join(f"{step},2.5\n" for step in range(30_000)))
    tracemalloc.start()
    logger.rewind(29_000, pending_validation=True)
    logger.log_metrics({"val/loss": 1.0}, 29_000)  # a new column
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1e6  # 30,000 rows are 10 MB
    assert logged(logger.path)[-2:] == [{"step": 28_999, "train/loss": 2.5}, {"step": 29_000, "val/loss": 1}]
    assert len(logged(logger.path)) == 29_001


def test_a_line_that_was_cut_is_left_out(tmp_path: Path) -> None:
    logger = CSVLogger(path=str(tmp_path / "metrics.csv"))
    logger.log_metrics({"lr": 0.5, "train/loss": 2.0}, 0)
    logger.log_metrics({"lr": 0.25, "train/loss": 1.0}, 1)
    logger.path.write_text(logger.path.read_text()[:-6])
    again = CSVLogger(path=str(logger.path))
    again.rewind(2, pending_validation=False)
    assert logged(logger.path) == [{"step": 0, "lr": 0.5, "train/loss": 2}]
