"""What a search and the runs of its trials share: where the trials are stored, how the hopeless ones are found, and
when a run is done."""

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
    """Refuses to go on without Optuna, an optional dependency."""
    try:
        import optuna
    except ImportError:
        raise ConfigError("hydra/sweeper=optuna needs Optuna: pip install 'triptych[optuna]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def open_storage(path: Path) -> "BaseStorage":
    """The file that holds the trials; made if it is not there.

    Args:
        path: ``.journal`` is Optuna's journal, which shared file systems carry too; ``.db`` is SQLite.
    """
    from optuna.storages import JournalStorage, RDBStorage

    from triptych.search.journal import Journal

    path = path.absolute()  # the journal's lock names the file
    if path.suffix not in (".journal", ".db"):
        raise ConfigError(f"hydra.sweeper.storage={path}: expected a file whose name ends in .journal or .db")
    try:
        with lock_in(locks_of(path), "open"):  # two at once cannot make the tables of SQLite
            journal = path.suffix == ".journal"
            storage = JournalStorage(Journal(path)) if journal else RDBStorage(f"sqlite:///{path}")
            storage.get_all_studies()  # reads it
    except Exception as error:  # of SQLAlchemy, of JSON, of the system
        raise ConfigError(f"hydra.sweeper.storage={path}: {str(error).splitlines()[0]}") from error
    return storage


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Reports a storage that fails while it is used: a full disk, or a file system that is gone.

    Args:
        path: of the storage.
    """
    from optuna.exceptions import StorageInternalError

    try:
        yield
    except (StorageInternalError, OSError) as error:
        cause = error.__cause__ if isinstance(error, StorageInternalError) else None
        raise unwritable(path, cause or error) from error


def unwritable(path: Path, error: BaseException) -> RunError:
    """What to say of a storage that cannot be written."""
    return RunError(
        f"hydra.sweeper.storage={path} cannot be written ({reason_of(error)}); the same command resumes the search"
    )


def locks_of(path: Path) -> Path:
    """The folder of the locks by which those who share a file keep out of each other's way; made if it is not there."""
    folder = path.with_name(f"{path.name}.locks")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def lock_in(locks: Path, name: str) -> Lock:
    """A lock of a search.

    Args:
        locks: their folder.
        name: of the lock.
    """
    return Lock(locks / f"{name}.lock", str(locks), "run only one command at a time on this search")


def make_pruner(name: PrunerName, updates: int) -> "BasePruner":
    """What compares a trial with the others.

    Args:
        name: none; median (Golovin et al. 2017, "Google Vizier", section 3.2.2); successive_halving (Li et al. 2020, "A
            System for Massively Parallel Hyperparameter Tuning"); hyperband (Li et al. 2018).
        updates: between two validations: the smallest budget after which there is something to compare.
    """
    from optuna.pruners import HyperbandPruner, MedianPruner, NopPruner, SuccessiveHalvingPruner

    if name == "median":
        return MedianPruner(n_startup_trials=0)
    if name == "successive_halving":
        return SuccessiveHalvingPruner(min_resource=updates)
    return HyperbandPruner(min_resource=updates) if name == "hyperband" else NopPruner()
