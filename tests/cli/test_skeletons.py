"""What ``triptych new`` writes."""

import ast
import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from command_line import composed
from triptych.cli.skeletons import DERIVED, GROUPS
from triptych.config.diagnose import choices_of

PARTS_OF_MINE = [(kind, f"my_{kind}") for kind in DERIVED]


def test_skeletons_name_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    """Their keys are settings of what they choose or name, and what they import is there."""
    monkeypatch.chdir(tmp_path)
    for kind, name in (("experiment", "mine/first"), ("task", "script"), ("corpus", "sums"), *PARTS_OF_MINE):
        assert answer("new", kind, name)[0] == 0
    for kind, name in PARTS_OF_MINE:
        (entry, _) = yaml.safe_load((tmp_path / f"conf/{GROUPS[kind]}/{name}.yaml").read_text())["defaults"]
        assert entry in choices_of(GROUPS[kind], [])
    experiment = yaml.safe_load((tmp_path / "conf/experiment/mine/first.yaml").read_text())
    choices = [entry.popitem() for entry in experiment.pop("defaults")]
    config = composed(*(f"{group.removeprefix('override /')}={choice}" for group, choice in choices))
    assert OmegaConf.merge(config, experiment).trainer.max_steps == experiment["trainer"]["max_steps"]
    modules = sorted(tmp_path.rglob("*.py"))
    assert len(modules) >= 11
    for file in modules:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("triptych"):
                assert all(hasattr(importlib.import_module(node.module), name.name) for name in node.names)


def test_an_unknown_kind_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    monkeypatch.chdir(tmp_path)
    status, _, said = answer("new", "tsk", "script")
    assert (status, said) == (1, "error: triptych new tsk: no such kind; did you mean task?\n")
    assert not [*tmp_path.iterdir()]


@pytest.mark.nightly
def test_skeletons_pass_as_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for kind, name in (("experiment", "mine/first"), ("task", "script"), ("corpus", "sums")):
        assert answer("new", kind, name)[0] == 0
    for kind in DERIVED:
        assert answer("new", kind, f"my_{kind}")[0] == 0
    tests = sorted(tmp_path.glob("test_*.py"))
    assert len(tests) == 9
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *tests], cwd=tmp_path, capture_output=True,
        text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=300,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "14 passed" in finished.stdout  # five are parts of blocks, which are checked before they train
    assert (
        answer("new", "task", "script")[2] == "error: triptych new task script: script.py exists; expected a new file\n"
    )
