"""How far the run in a directory is."""

import json
from collections.abc import Mapping
from pathlib import Path


def is_done(run_dir: Path, *, is_trial: bool) -> bool:
    """Whether a run has nothing left to do: it was tested; a trial, which never tests, was validated or pruned.

    Args:
        is_trial: whether it is run as a trial of a search.
    """
    record = run_dir / "summary.json"
    if is_trial:
        return record.exists() or (run_dir / "pruned.json").exists()
    try:
        return is_tested(json.loads(record.read_text(encoding="utf-8"))["metrics"])
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (ValueError, LookupError, TypeError):  # damaged, as who reads it will say
        return True


def is_tested(metrics: Mapping[str, object]) -> bool:
    """Whether the metrics of a finished run are those of a test too; a trial of a search has those of validation alone.

    Args:
        metrics: by name, as summary.json has them.
    """
    return any(name.startswith("test/") for name in metrics)
