"""The files of a run: named in one place, and what they say of how far it is."""

import ast
import json
from pathlib import Path

import pytest

import triptych
from triptych.config import ConfigError
from triptych.storage.run_directory import SIGNS, RunDirectory, find_checkpoint, find_directories

NAMES = {path.name for path in vars(RunDirectory("run")).values()} - {"run"}
OF_OTHERS = {"checkpoints", "tokenizer.json", ".lock"}
"""Also the name of a callback, of a file in a folder of Hugging Face, and how the names of other locks end."""


def names_of_files(file: Path) -> list[str]:
    """The texts in a module that name a file of a run directory."""
    found = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            last = node.value.rpartition("/")[2]
            if last in NAMES - OF_OTHERS or (last in NAMES and "/" in node.value):
                found.append(node.value)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and isinstance(node.right, ast.Constant):
            found += [node.right.value] if node.right.value in ("checkpoints", ".lock") else []
    return found


@pytest.mark.daily
def test_no_other_module_names_the_files() -> None:
    src = Path(triptych.__file__).parent
    found = {str(file.relative_to(src)): names for file in src.rglob("*.py") if (names := names_of_files(file))}
    assert found.keys() == {"storage/run_directory.py"}, found
    assert len(NAMES) > 15
    assert {*SIGNS} <= NAMES


def test_how_far_a_run_is(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    assert not run.has_begun
    run.checkpoints.mkdir()
    run.best.touch()  # of the run that it goes on from
    assert not run.has_begun
    run.last.touch()
    assert run.has_begun
    assert not run.is_done(is_trial=False)
    run.record.write_text(json.dumps({"metrics": {"val/loss": 1.0}}))
    assert (run.is_done(is_trial=True), run.is_done(is_trial=False)) == (True, False)
    run.record.write_text(json.dumps({"metrics": {"test/loss": 1.0}}))
    assert run.is_done(is_trial=False)
    run.record.write_text("{")  # damaged, as who reads it says
    assert run.is_done(is_trial=False)
    run.record.unlink()
    run.pruned.touch()
    assert (run.is_done(is_trial=True), run.is_done(is_trial=False)) == (True, False)


def test_the_checkpoint_of_a_directory(tmp_path: Path) -> None:
    for name in ("b", "a"):
        run = RunDirectory(tmp_path / name)
        run.checkpoints.mkdir(parents=True)
        run.last.touch()
    assert find_checkpoint(run.path) == run.last
    assert find_directories(tmp_path, "last.ckpt") == {tmp_path / name / "checkpoints" for name in "ab"}
    with pytest.raises(ConfigError, match=f"contains 2 runs; expected one of {tmp_path}/a, {tmp_path}/b$"):
        find_checkpoint(tmp_path)
