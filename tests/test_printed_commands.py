"""Commands that are printed or recorded, composed exactly as they are printed."""

import json
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from omegaconf import DictConfig, OmegaConf

import tiny
import triptych.train
from commands import run
from triptych import cli
from triptych.launch.command import this_command
from triptych.report.read_records import Run
from triptych.report.statistics.verdicts import _train_more
from triptych.storage.downloads import SETS

OWN = "defaults:\n  - override /task: classification\n  - override /model: encoder_only\nseed: 7\n"


@dataclass
class Composed:
    """What a command is composed to, in place of a training.

    Attributes:
        configs: of all that were.
        printed: their command, as the record of a run has it.
    """

    configs: list[Any] = field(default_factory=list)
    printed: list[str] = field(default_factory=list)

    def train(self, config: DictConfig) -> None:
        plain = OmegaConf.to_container(config, resolve=False)
        assert isinstance(plain, dict)
        self.configs.append({key: value for key, value in plain.items() if key not in ("seed", "run_dir")})
        self.printed.append(str(this_command()))


@pytest.fixture
def composed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Composed:
    """In a folder with choices of the user's own, in a folder whose name wants quotes."""
    (tmp_path / "my conf" / "experiment").mkdir(parents=True)
    (tmp_path / "my conf" / "experiment" / "own.yaml").write_text("# @package _global_\n" + OWN)
    found = Composed()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(triptych.train, "train", found.train)
    return found


def call(*arguments: str) -> None:
    sys.argv = ["triptych", *arguments]
    assert cli.main() == 0


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Calls what was printed."""
    monkeypatch.setattr(sys, "argv", sys.argv)

    def call_line(line: str) -> None:
        program, *arguments = shlex.split(line)
        assert program == "triptych"
        call(*arguments)

    return call_line


@pytest.mark.parametrize("where", ["--config-dir=my conf", "hydra.searchpath=['file://{}/my conf']"])
def test_the_command_of_a_record(
    where: str, composed: Composed, typed: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    typed(
        shlex.join(
            [
                "triptych",
                "train",
                where.format(tmp_path),
                "experiment=own",
                "run_dir=runs/1",
                "data.languages=[de,en]",
                "seed=2",
            ]
        )
    )
    monkeypatch.chdir(tmp_path.parent)  # wherever it is repeated
    typed(composed.printed[0])
    assert composed.configs[0] == composed.configs[1]
    assert composed.printed[0] == composed.printed[1]


def test_the_suggestion_of_a_comparison(composed: Composed, typed: Callable[[str], None]) -> None:
    call("train", "--config-dir=my conf", "experiment=own", "run_dir=runs/1", "seed=2")
    run = cast(Run, SimpleNamespace(command=composed.printed[0]))
    program, train, sweep, *arguments = shlex.split(_train_more(run, 3))
    assert (program, train, sweep) == ("triptych", "train", "-m")
    first, jobs = cli.first_job(arguments)
    call("train", *first)
    assert composed.configs[0] == composed.configs[1]
    assert [next(word for word in job if word.startswith("seed=")) for job in jobs] == ["seed=1", "seed=2", "seed=3"]


@pytest.mark.parametrize("name", ["sst2", "imdb"])
def test_what_get_says_when_the_data_is_there(
    name: str, composed: Composed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    typed: Callable[[str], None], tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.setattr("triptych.storage.downloads.get", lambda data_set, folder: folder.mkdir(parents=True))
    call("get", name, "--output", "my data")
    line = capsys.readouterr().out.splitlines()[-1].rpartition("; ")[2]
    typed(line)
    assert composed.configs[0]["data"]["dir"] == f"my data/{name}"
    assert SETS[name].experiment in line


def test_lines_of_a_study_hold_no_blanks(composed: Composed, capsys: pytest.CaptureFixture[str]) -> None:
    call("study", "demo", "seed=1", "--lines")
    for line in capsys.readouterr().out.splitlines():
        call("train", *line.split(" "))
    assert len(composed.configs) > 1
    sys.argv = ["triptych", "study", "demo", "seed=1", "data.dir='a b'", "--lines"]
    assert cli.main() == 1
    assert "has a blank, and slurm/array.sbatch splits lines at blanks" in capsys.readouterr().err


@pytest.mark.nightly  # real trainings
def test_commands_run_as_they_are_printed(composed: Composed, tmp_path: Path) -> None:
    """The command of a record in another folder, and the suggestion of a comparison, with choices of the user's own."""
    small = [*tiny.TINY, "trainer.max_steps=2", "trainer.val_check_interval=2", "logger=csv", "trainer.accelerator=cpu"]
    own = ["--config-dir=my conf", "experiment=own", "run_dir='runs/seed=1'", "seed=1"]
    first = run("train", *own, *small, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    record = json.loads((tmp_path / "runs" / "seed=1" / "summary.json").read_text())
    (tmp_path / "elsewhere").mkdir()
    again = run(*shlex.split(record["command"])[1:], cwd=tmp_path / "elsewhere")
    assert again.returncode == 0, again.stderr
    same = json.loads((tmp_path / "elsewhere" / "runs" / "seed=1" / "summary.json").read_text())
    assert same["weights_sha256"] == record["weights_sha256"]
    suggested = _train_more(cast(Run, SimpleNamespace(command=record["command"])), 2)
    more = run(*shlex.split(suggested)[1:], cwd=tmp_path)
    assert more.returncode == 0, more.stderr
    seeds = [json.loads(path.read_text())["seed"] for path in tmp_path.glob("runs/*/summary.json")]
    assert sorted({*seeds}) == [1, 2]
