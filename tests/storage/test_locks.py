"""Locks, on file systems with and without them."""

import errno
import fcntl
import logging
import multiprocessing
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import BinaryIO
from unittest.mock import patch
from zipfile import ZipInfo

import numpy as np
import pytest

from triptych.config import ConfigError, RunError
from triptych.launch import lock as of_runs
from triptych.launch.lock import check_held, locked
from triptych.storage import array_files
from triptych.storage.array_files import read_arrays, write_arrays
from triptych.storage.cache import get_or_make, get_or_make_best_effort, read_json_if_valid
from triptych.storage.locks import Lock, warn_once
from triptych.training.loggers.csv import CSVLogger


@pytest.fixture(params=[errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK], ids=errno.errorcode.get)
def without_locks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that has none."""

    def flock(*_: object) -> None:
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr(fcntl, "flock", flock)
    warn_once.cache_clear()


@pytest.fixture(autouse=True)
def _environment() -> Iterator[None]:
    """Later tests do not inherit a lock."""
    with patch.dict(os.environ):
        yield


def forget_lock() -> None:
    """As in another job."""
    for name in (of_runs.HELD, of_runs.FILE):
        os.environ.pop(name, None)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.usefixtures("without_locks")
def test_a_cache_is_used_without_locks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(2):
        path = tmp_path / f"{number}.npz"
        other = tmp_path / f".{path.name}.0123.tmp"
        other.touch()  # another process is writing it

        array = {"x": np.arange(number)}
        read, write = partial(read_arrays, path), partial(write_arrays, path)
        assert get_or_make_best_effort(path, "the array is", read, lambda array=array: array, write) is array  # type: ignore[misc]
        found = read_arrays(path)
        assert found is not None
        assert found["x"].tolist() == list(range(number))
        assert other.exists()
    (warning,) = warnings_of(caplog)
    assert "this file system has no locks" in warning


@pytest.mark.usefixtures("without_locks")
def test_a_run_directory_without_locks_takes_a_second_job(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with locked(tmp_path):
        forget_lock()
        with locked(tmp_path):
            pass
        of_runs.wait_until_free(tmp_path)
    (warning,) = warnings_of(caplog)
    assert warning == f"run_dir={tmp_path}: this file system has no locks, so a second job could use the same directory"


def test_a_run_directory_takes_one_job(tmp_path: Path) -> None:
    for _ in range(2):  # the first has given it free
        with locked(tmp_path):
            forget_lock()
            with (
                pytest.raises(ConfigError, match=rf"another job uses this directory \(process {os.getpid()} on "),
                locked(tmp_path),
            ):
                pass


@pytest.mark.parametrize("has_second", [False, True])
def test_a_job_whose_run_directory_is_deleted_ends(has_second: bool, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    holder = run_dir / ".lock.holder"
    with ExitStack() as second:
        with locked(run_dir):
            check_held()
            first = os.environ[of_runs.FILE]
            shutil.rmtree(run_dir)
            if has_second:
                forget_lock()
                second.enter_context(locked(run_dir))
                check_held()
                os.environ[of_runs.FILE] = first
            with pytest.raises(RunError, match=f"^run_dir={run_dir} was deleted, moved or replaced during the run"):
                CSVLogger(path=str(run_dir / "metrics.csv")).log_metrics({"train/loss": 1.0}, 0)
        assert holder.exists() == has_second  # it is the second's
    assert not (run_dir / "metrics.csv").exists()


def test_a_lock_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        Lock(tmp_path / "file" / ".lock", "", "").acquire()


def write_many(folder: Path, process: int) -> None:
    for number in range(60):
        write_arrays(folder / f"{process}-{number}.npz", {"x": np.arange(100)})


def test_processes_make_room_in_a_full_cache_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_files, "MOST_BYTES", 5000)  # of about 1100 each
    processes = multiprocessing.get_context("fork")
    writers = [processes.Process(target=write_many, args=(tmp_path, process)) for process in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0] * 4
    assert sum(file.stat().st_size for file in tmp_path.glob("*.npz")) <= 5000 + 4 * 1200


def test_what_is_deleted_while_it_is_read_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.npz"
    write_arrays(path, {"x": np.arange(3)})
    mapped = array_files._map

    def lose(file: BinaryIO, entry: ZipInfo) -> np.ndarray:
        path.unlink()
        return mapped(file, entry)

    monkeypatch.setattr(array_files, "_map", lose)
    found = read_arrays(path)
    assert found is not None
    assert found["x"].tolist() == [0, 1, 2]
    assert read_arrays(path) is None

    def read() -> dict[str, int] | None:
        assert not path.stat().st_size, "raises FileNotFoundError"
        return read_json_if_valid(path)

    assert get_or_make(path, read, lambda: {"made": 1}) == {"made": 1}
