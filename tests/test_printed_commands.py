"""Commands that are printed or recorded, composed exactly as they are printed. Those of the documentation and of the
headers of experiments are in tests/config/test_conf.py, which has composed most of their files."""

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from omegaconf import DictConfig, OmegaConf

import tiny
import triptych.planning.doctor
import triptych.search.page
import triptych.studies.run
import triptych.train
from commands import run
from triptych import cli
from triptych.cli import runs
from triptych.config import ConfigError
from triptych.launch.command import this_command
from triptych.launch.sweep import Job
from triptych.planning.script import batch_script, job_of
from triptych.report.dashboard import sync_command
from triptych.report.read_records import RecordedRun
from triptych.report.statistics.verdicts import _train_more
from triptych.search.sweeper import OptunaSearch
from triptych.storage.downloads import SETS
from triptych.storage.run_directory import find_checkpoint
from triptych.studies.study import Study, find_studies

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
                "triptych", "train", where.format(tmp_path), "experiment=own", "run_dir=runs/1",
                "data.languages=[de,en]", "seed=2",
            ]
        )
    )  # fmt: skip
    monkeypatch.chdir(tmp_path.parent)  # wherever it is repeated
    typed(composed.printed[0])
    assert composed.configs[0] == composed.configs[1]
    assert composed.printed[0] == composed.printed[1]


def test_the_suggestion_of_a_comparison(composed: Composed, typed: Callable[[str], None]) -> None:
    call("train", "--config-dir=my conf", "experiment=own", "run_dir=runs/1", "seed=2")
    run = cast(RecordedRun, SimpleNamespace(command=composed.printed[0]))
    program, train, sweep, *arguments = shlex.split(_train_more(run, 3))
    assert (program, train, sweep) == ("triptych", "train", "-m")
    first, jobs = runs.first_job(arguments)
    call("train", *first)
    assert composed.configs[0] == composed.configs[1]
    assert [next(word for word in job if word.startswith("seed=")) for job in jobs] == ["seed=1", "seed=2", "seed=3"]


@pytest.mark.parametrize("name", ["sst2", "imdb"])
def test_what_get_says_when_the_data_is_there(
    name: str, composed: Composed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    typed: Callable[[str], None], tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.setattr("triptych.storage.downloads.download", lambda data_set, folder: folder.mkdir(parents=True))
    call("download", name, "--output", "my data, all")
    line = capsys.readouterr().out.splitlines()[-1].rpartition("; ")[2]
    typed(line)
    assert composed.configs[0]["data"]["dir"] == f"my data, all/{name}"
    assert SETS[name].experiment in line


def test_lines_of_a_study_hold_no_blanks(composed: Composed, capsys: pytest.CaptureFixture[str]) -> None:
    call("study", "demo", "seed=1", "--print-overrides")
    first, *_, last = capsys.readouterr().out.splitlines()
    for line in (first, last):
        call("train", *line.split(" "))
    assert composed.configs[0] != composed.configs[1]
    sys.argv = ["triptych", "study", "demo", "seed=1", "init_from='a b'", "--print-overrides"]
    assert cli.main() == 1
    assert "contains a space, and slurm/array.sbatch splits lines at spaces" in capsys.readouterr().err


def test_what_get_says_without_a_name(typed: Callable[[str], None], capsys: pytest.CaptureFixture[str]) -> None:
    """The folder that it speaks of is that of its command."""
    call("download", "--output", "my data")
    line = capsys.readouterr().out.splitlines()[-1].partition(" downloads a dataset to ")
    typed(line[0].replace(" NAME", ""))
    assert capsys.readouterr().out.splitlines()[-1].partition(" downloads a dataset to ") == line


def test_the_batch_script_of_the_doctor(
    composed: Composed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A shell runs it as it is printed, but for srun."""

    def doctor(config: DictConfig, sweep: Sequence[list[str]]) -> None:
        print(batch_script(config, [job_of(overrides) for overrides in sweep]))

    monkeypatch.setattr(triptych.planning.doctor, "doctor", doctor)
    monkeypatch.setattr(sys, "argv", sys.argv)
    sweep = ["hydra/launcher=slurm", "data.languages=[de,en]", "seed=1,2", "run_dir='my runs'", "hydra.sweep.dir=sweep"]
    call("doctor", "-m", "--config-dir=my conf", "experiment=own", *sweep)
    (tmp_path / "srun").write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    (tmp_path / "srun").chmod(0o755)
    script, environment = capsys.readouterr().out, {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_ARRAY_TASK_ID": "1"}
    shown = subprocess.run(["bash"], input=script, capture_output=True, text=True, env=environment, check=True)
    assert shown.stderr == ""
    words = shown.stdout.splitlines()
    call("train", *words[words.index("triptych") + 2 :])
    call("train", "--config-dir=my conf", "experiment=own", "data.languages=[de,en]", "seed=2", "run_dir='my runs'")
    assert composed.configs[0] == composed.configs[1]
    assert "seed=2" in words
    assert any(word.startswith("run_dir=my runs/") for word in words)


def test_the_command_that_tests_the_best_trial(
    composed: Composed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commands: dict[str, str] = {}
    jobs: list[Job] = []

    def finish(self: OptunaSearch, study: Any, trials: Sequence[Any]) -> None:
        for trial in trials:
            jobs[:] = self._jobs_of(study, trial.number)
            jobs[0].directory.mkdir(parents=True)
            (jobs[0].directory / "summary.json").write_text('{"metrics": {"val/loss": 1.0}}')
            study.tell(trial, jobs)

    monkeypatch.setattr(OptunaSearch, "_run", finish)
    monkeypatch.setattr(triptych.search.page, "report", lambda studies, path, tests, more: commands.update(tests))
    monkeypatch.setattr(sys, "argv", sys.argv)
    (tmp_path / "sweepers").mkdir()
    where = ["--config-dir=my conf", f"hydra.searchpath=[file://{tmp_path}/sweepers]"]
    search = ["hydra/sweeper=optuna", "hydra.sweeper.n_trials=1", "optimizer.lr=interval(1e-3,1e-2)"]
    call("train", "-m", *where, *search, "experiment=own", "data.languages=[de,en]", "run_dir='my runs'")
    ((_, command),) = commands.items()
    program, train, sweep, *arguments = shlex.split(command)
    assert (program, train, sweep) == ("triptych", "train", "-m")
    assert where[1] in arguments
    first, others = runs.first_job(arguments)
    assert len(others) == 1
    call("train", *first)
    call("train", *where, *jobs[0].own, "run_dir='my runs'")
    assert composed.configs[0] == composed.configs[1]
    assert composed.configs[0]["optimizer"]["lr"] == jobs[0].config.optimizer.lr


def test_what_a_study_says_resumes_it(
    composed: Composed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    typed: Callable[[str], None],
) -> None:  # fmt: skip
    """While it trains, with more seeds, and on the page of its findings."""
    studies: list[tuple[Study, dict[str, list[Job]]]] = []
    monkeypatch.setattr(triptych.studies.run, "run_jobs", lambda jobs, command, n_jobs, redact, again: {})
    monkeypatch.setattr(triptych.studies.run, "collect", lambda jobs, failures, waiting, redact: [])
    monkeypatch.setattr(
        triptych.studies.run, "report_findings", lambda study, plan, output: studies.append((study, plan.jobs))
    )
    (tmp_path / "my study.yaml").write_text(find_studies()["demo"].read_text())
    given = ["my study.yaml", "seed=1,2", "init_from='a b'", "--output", "my page.html", "--jobs", "2"]
    call("study", *given)
    line = capsys.readouterr().out.rpartition("Ctrl-C stops, and `")[2].partition("`")[0]
    typed(line)
    typed(studies[0][0].command(["seed=range(1,4)"]))
    typed(triptych.studies.run.write_markdown(studies[0][0], [], {}).partition("\n    ")[2].partition("\n")[0])
    first, again, more, page = [
        {arm: [job.own for job in of_arm] for arm, of_arm in jobs.items()} for _, jobs in studies
    ]
    assert first == again
    for arm, overrides in first.items():
        assert overrides == more[arm][:2]
        assert len(more[arm]) == 3
        assert any(word == "init_from='a b'" for word in page[arm][0])


@pytest.mark.parametrize(("kind", "name"), [("experiment", "mine/first"), ("task", "script_a"), ("corpus", "sums_a")])
def test_what_new_says_trains_it(
    kind: str, name: str, composed: Composed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    typed: Callable[[str], None],
) -> None:  # fmt: skip
    monkeypatch.setattr(sys, "argv", sys.argv)
    call("new", kind, name)
    line = capsys.readouterr().out.splitlines()[-2]
    variables, _, command = line.rpartition("triptych train ")
    for variable in shlex.split(variables):
        key, _, value = variable.partition("=")
        monkeypatch.setenv(key, value)
    monkeypatch.syspath_prepend(".")
    typed(f"triptych train {command}")
    assert len(composed.configs) == 1


def test_what_uploads_offline_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell reads it: each run of folders whose names want quotes, once."""
    folders = [Path("my runs/a"), Path("my runs/b"), Path("it's/c")]
    for folder in folders:
        (tmp_path / folder / "wandb" / "offline-run-1").mkdir(parents=True)
    script = f"wandb() {{ printf '%s\\n' \"$@\"; }}; {sync_command(folders)}"
    shown = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert shown.stdout.splitlines() == ["sync", *(f"{folder}/wandb/offline-run-1" for folder in folders)]


def test_what_imports_a_folder(tmp_path: Path) -> None:
    (tmp_path / "my folder").mkdir()
    (tmp_path / "my folder" / "config.json").touch()
    with pytest.raises(ConfigError) as error:
        find_checkpoint(tmp_path / "my folder")
    _, _, command = str(error.value).partition(" is a Hugging Face folder. Run ")
    assert shlex.split(command.removesuffix(" first")) == [
        "triptych", "import", str(tmp_path / "my folder"), "--output", "CHECKPOINT",
    ]  # fmt: skip


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
    suggested = _train_more(cast(RecordedRun, SimpleNamespace(command=record["command"])), 2)
    more = run(*shlex.split(suggested)[1:], cwd=tmp_path)
    assert more.returncode == 0, more.stderr
    seeds = [json.loads(path.read_text())["seed"] for path in tmp_path.glob("runs/*/summary.json")]
    assert sorted({*seeds}) == [1, 2]
