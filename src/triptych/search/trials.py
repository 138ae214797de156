"""Shared by a search and its runs: storage of the trials, pruners, and locks.

Tested by tests/search/test_optuna_study.py.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from triptych.config import ConfigError, RunError
from triptych.storage.atomic import reason_of
from triptych.storage.locks import Lock

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.storages import BaseStorage

PrunerName = Literal["none", "median", "successive_halving", "hyperband"]


def check_optuna() -> None:
    """Raises an error without Optuna, an optional dependency."""
    try:
        import optuna
    except ImportError:
        raise ConfigError("hydra/sweeper=optuna needs Optuna: pip install 'triptych[optuna]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def open_storage(path: Path) -> "BaseStorage":
    """Opens the file that holds the trials, or creates it.

    Args:
        path: ``.journal`` is Optuna's journal, which also works on shared file systems; ``.db`` is SQLite.
    """
    from optuna.storages import JournalStorage, RDBStorage

    from triptych.search.journal import Journal

    path = path.absolute()  # the journal's lock contains the path
    if path.suffix not in (".journal", ".db"):
        raise ConfigError(f"hydra.sweeper.storage={path}: expected a file whose name ends in .journal or .db")
    try:
        with lock_in(locks_of(path), "open"):  # two processes at once cannot create the tables of SQLite
            journal = path.suffix == ".journal"
            storage = JournalStorage(Journal(path)) if journal else RDBStorage(f"sqlite:///{path}")
            storage.get_all_studies()  # reads the file
    except Exception as error:  # from SQLAlchemy, JSON, or the system
        raise ConfigError(f"hydra.sweeper.storage={path}: {str(error).splitlines()[0]}") from error
    return storage


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Reports errors of a storage in use, such as a full disk or a lost file system."""
    from optuna.exceptions import StorageInternalError

    try:
        yield
    except (StorageInternalError, OSError) as error:
        cause = error.__cause__ if isinstance(error, StorageInternalError) else None
        raise unwritable(path, cause or error) from error


def unwritable(path: Path, error: BaseException) -> RunError:
    """The error for a storage that cannot be written."""
    return RunError(
        f"hydra.sweeper.storage={path} cannot be written ({reason_of(error)}); the same command resumes the search"
    )


def locks_of(path: Path) -> Path:
    """The folder of the locks of all processes that share a file; created if needed."""
    folder = path.with_name(f"{path.name}.locks")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def lock_in(locks: Path, name: str) -> Lock:
    return Lock(locks / f"{name}.lock", str(locks), "run only one command at a time on this search")


def make_pruner(name: PrunerName, interval: int) -> "BasePruner":
    """The pruner, which compares a trial with the others.

    Args:
        name: none; median (Golovin et al. 2017, "Google Vizier", section 3.2.2); successive_halving (Li et al. 2020, "A
            System for Massively Parallel Hyperparameter Tuning"); hyperband (Li et al. 2018).
        interval: steps between two validations, the smallest budget with a value to compare.
    """
    from optuna.pruners import HyperbandPruner, MedianPruner, NopPruner, SuccessiveHalvingPruner

    if name == "median":
        return MedianPruner(n_startup_trials=0)
    if name == "successive_halving":
        return SuccessiveHalvingPruner(min_resource=interval)
    return HyperbandPruner(min_resource=interval) if name == "hyperband" else NopPruner()
