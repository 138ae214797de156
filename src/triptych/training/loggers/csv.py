"""The logger of ``metrics.csv``, to which a resumed run appends."""

import csv
import os
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only

from triptych.launch.lock import check_held
from triptych.storage.atomic import replacing
from triptych.storage.run_directory import read_rows


class CSVLogger(Logger):
    """Writes one row per logged step, one column per metric. (Lightning's logger deletes the file of a resumed run.)"""

    name = version = ""  # required by Lightning

    def __init__(self, *, path: str) -> None:
        super().__init__()
        self.path = Path(path)
        self._columns: list[str] = []

    def log_hyperparams(self, params: Any) -> None:
        """Does nothing, since config.yaml contains the hyperparameters."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Appends a row.

        Args:
            step: number of steps before this one.
        """
        check_held()
        row = {"step": step, **{name: value for name, value in metrics.items() if name != "epoch"}}  # counts steps
        if not row.keys() <= {*self._columns}:
            self._columns = ["step", *sorted({*self._columns, *row} - {"step"})]
            self._rewrite(self.rows())
        with open(self.path, "a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, self._columns).writerow(row)

    @rank_zero_only
    def sync(self) -> None:
        """Waits until all rows are on disk, which takes milliseconds. (Lightning calls ``save`` for each row.)"""
        if self.path.exists():
            with open(self.path, "rb+") as file:
                os.fsync(file.fileno())

    def finalize(self, status: str) -> None:
        """Waits until all rows are on disk."""
        self.sync()

    def rows(self) -> Iterator[dict[str, str]]:
        """Returns the rows of the file one by one, without truncated or damaged lines."""
        return read_rows(self.path)

    @rank_zero_only
    def rewind(self, num_steps: int, *, pending_validation: bool) -> None:
        """Removes the rows after a checkpoint, which will be logged again.

        Args:
            num_steps: number of steps at the checkpoint.
            pending_validation: whether the validation after the last of them is pending.
        """
        rows = (row for row in self.rows() if int(row["step"]) < num_steps)
        if pending_validation:
            rows = (row for row in rows if int(row["step"]) < num_steps - 1 or not is_validation(row))
        first = next(rows, {})
        self._columns = list(first)
        if first:
            self._rewrite(chain([first], rows))
        else:
            self.path.unlink(missing_ok=True)

    def _rewrite(self, rows: Iterable[dict[str, str]]) -> None:
        with replacing(self.path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self._columns)
            writer.writeheader()
            writer.writerows(rows)


def is_validation(row: dict[str, str]) -> bool:
    """Returns whether a row contains validation metrics."""
    return any(name.startswith("val/") and value for name, value in row.items())
