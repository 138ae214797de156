"""What is looked at before a release (`make release`): an installed triptych, with the libraries that pip gives users
today. On Linux this torch brings triton, which CI's build for CPUs does not."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tiny

pytestmark = pytest.mark.release

TRIPTYCH = Path(sys.executable).with_name("triptych")


def test_triptych_is_installed() -> None:
    spec = importlib.util.find_spec("triptych")
    assert spec is not None
    assert spec.origin is not None
    assert Path(sys.prefix) in Path(spec.origin).parents


def test_commands_print_nothing_that_is_not_theirs(tmp_path: Path) -> None:
    small = [*tiny.TINY, "trainer.max_steps=6", "trainer.val_check_interval=3", "scheduler.warmup_steps=2"]
    commands = (
        ["train", "experiment=dates/translation", *small, "logger=csv", "run_dir=run"],
        ["evaluate", "checkpoint=run"],
        ["predict", "checkpoint=run"],
        ["compare", "run"],
    )
    for arguments in commands:
        finished = subprocess.run(
            [TRIPTYCH, *arguments], cwd=tmp_path, input="5 March 1998\n", capture_output=True, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
        )  # fmt: skip
        assert finished.returncode == 0, finished.stderr
        said = finished.stdout + finished.stderr
        for foreign in ("leaked", "Traceback", "Warning", "deprecated"):
            assert foreign not in said, (arguments, said)
