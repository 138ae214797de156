"""Jobs as they run, by their directories: real locks of real processes."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from clock import wait_until
from triptych.config import ConfigError, RunError
from triptych.launch.lock import locked
from triptych.launch.scheduler import ArrayTask
from triptych.launch.watch import RunStatus, Scheduler, draw, last_line, look, time_left, watch
from triptych.storage.redaction import Redactor
from triptych.storage.run_directory import read_rows

HOLD = """
import sys, time
from pathlib import Path
from triptych.launch.lock import locked

with locked(Path(sys.argv[1])):
    time.sleep(600)
"""


def make_run(directory: Path, steps: int = 0, seconds: float = 0.5) -> Path:
    """A run of 100 steps, as many of which are done, a row every ten, each row so long after the last."""
    directory.mkdir(parents=True)
    (directory / "config.yaml").write_text("trainer:\n  max_steps: 100\n")
    rows = [f"{10 * i + 9},{2.5 - 0.1 * i},{seconds * (i + 1)}" for i in range(steps // 10)]
    if rows:
        (directory / "metrics.csv").write_text("\n".join(["step,train/loss,elapsed_s", *rows]) + "\n")
    return directory


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """One of each kind but a running one."""
    (make_run(tmp_path / "done", 100) / "summary.json").write_text(json.dumps({"metrics": {"test/accuracy": 1.0}}))
    (make_run(tmp_path / "pruned", 20) / "pruned.json").write_text("{}")
    failed = make_run(tmp_path / "failed", 30)
    (failed / ".lock").touch()
    (failed / "terminal.log").write_text("two lines\nerror: the loss is not finite\n")
    (make_run(tmp_path / "queued") / "slurm.json").write_text('{"array": "a", "index": 0, "log": "/nowhere/a_0.log"}')
    killed = make_run(tmp_path / "killed", 40)
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(killed)])
    wait_until((killed / ".lock.holder").exists, 60, "the lock")
    process.kill()
    process.wait()
    return tmp_path


def test_states_rates_and_ends(runs: Path) -> None:
    at_work = make_run(runs / "arm" / "at_work", 50)
    (at_work / "terminal.log").write_bytes(b"\x1b[32mstep 40\x1b[0m\rstep 50\n\n")
    with open(at_work / "metrics.csv", "a") as file:
        file.write("59,1.")  # is being written
    with locked(at_work):
        found = {run.name: run for run in look(runs, Redactor(), Scheduler(), {})}
    states = {name: run.state for name, run in found.items()}
    assert states == {
        "arm/at_work": "running", "failed": "failed", "killed": "stopped", "queued": "queued", "done": "done",
        "pruned": "pruned",
    }  # fmt: skip
    run = found["arm/at_work"]
    assert (run.steps, run.goal, run.loss, run.line) == (50, 100, 2.1, "step 50")
    assert run.rate == pytest.approx(20)  # ten steps in half a second
    assert run.ends_in == pytest.approx(50 / 20)
    assert found["failed"].line == "error: the loss is not finite"
    assert found["killed"].ends_in is None
    assert look(runs, Redactor(), Scheduler(), {})[-1].name == "pruned"
    assert {run.name: run.state for run in look(runs, Redactor(), Scheduler(), {})}["arm/at_work"] == "stopped"
    (at_work / ".lock").unlink()  # as of a job that imports, and will take it
    assert {run.name: run.state for run in look(runs, Redactor(), Scheduler(), {})}["arm/at_work"] == "running"


@pytest.mark.parametrize(
    ("squeue", "age", "log", "begun", "state"),
    [
        ("echo 'a|7|12|PENDING|Resources'", 0, "", False, ("queued", "")),
        ("echo 'a|7|12|RUNNING|None'", 0, "loading cuda", False, ("running", "loading cuda")),
        ("echo 'a|7|12|PENDING|BeginTime'", 0, "update 5", True, ("queued", "update 5")),  # requeued
        ("echo 'a|7|12|CANCELLED|None'", 0, "", False, ("stopped", "CANCELLED")),
        ("echo 'a|N/A|12|CANCELLED|None'", 0, "", False, ("stopped", "CANCELLED")),  # the last of an array that waits
        ("echo 'a|7|12|FAILED|NonZeroExitCode'", 0, "error: no", False, ("failed", "error: no")),
        ("echo 'a|7|12|OUT_OF_MEMORY|None'", 0, "update 5", True, ("failed", "OUT_OF_MEMORY: update 5")),
        ("true", 0, "", False, ("queued", "")),  # is being submitted
        ("true", 3600, "", False, ("stopped", "not in the queue")),
        ("true", 3600, "update 5", True, ("stopped", "update 5")),
        ("exit 1", 3600, "", False, ("queued", "")),
        ("exit 1", 0, "error: sbatch: no", False, ("failed", "error: sbatch: no")),
    ],
)
def test_a_job_of_a_cluster_is_in_the_state_of_its_task(
    squeue: str,
    age: int,
    log: str,
    begun: bool,
    state: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "squeue").write_text(f"#!/bin/sh\n{squeue}\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "runs" / "run"
    ArrayTask("a", 7, Path("a_7.log")).note_in(run)  # a relative path, of the folder of the sweep
    os.utime(run / "slurm.json", (time.time() - age,) * 2)
    if log:
        Path("a_7.log").write_text(f"{log}\n")
    if begun:
        (run / ".lock").touch()
    monkeypatch.chdir("/")
    (found,) = look(tmp_path / "runs", Redactor(), Scheduler(), {})
    assert (found.state, found.line) == state


@pytest.mark.parametrize("text", ["", "{", "[]", '{"array": "a"}', '{"array": "a", "index": "x", "log": "y"}'])
def test_a_damaged_note_of_a_task(text: str, tmp_path: Path) -> None:
    (tmp_path / "slurm.json").write_text(text)
    says = "is damaged: expected array, index and log. If squeue shows no job of this run, delete it"
    with pytest.raises(RunError, match=f"^{tmp_path}/slurm.json {says}$"):
        ArrayTask.noted_in(tmp_path)
    (found,) = look(tmp_path, Redactor(), Scheduler(), {})
    assert found.state == "queued"


def test_steps_that_are_saved_and_not_logged_count(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", 10)
    (run / "checkpoints").mkdir()
    for name in ("step-00000017.ckpt", "step-00000016.ckpt", "last.ckpt", "step-00000099.ckpt.tmp"):
        (run / "checkpoints" / name).touch()
    (found,) = look(tmp_path, Redactor(), Scheduler(), {})
    assert (found.steps, found.goal) == (17, 100)


def test_a_finished_run_is_read_once_and_of_others_the_end(tmp_path: Path) -> None:
    rows = [f"{step},2.5,{step / 2}" for step in range(100_000)]
    run = make_run(tmp_path / "run", 100)
    (run / "metrics.csv").write_text("\n".join(["step,train/loss,elapsed_s", "4,x,damaged,row", *rows]) + "\n")
    (run / "summary.json").write_text('{"metrics": {"test/accuracy": 1.0}}')
    finished: dict[Path, RunStatus] = {}
    (found,) = look(tmp_path, Redactor(), Scheduler(), finished)
    assert (found.steps, found.rate, found.loss) == (100, 2.0, 2.5)
    assert len([*read_rows(run / "metrics.csv", 1000)]) < 100 < len([*read_rows(run / "metrics.csv")])
    (run / "metrics.csv").unlink()
    assert look(tmp_path, Redactor(), Scheduler(), finished) == [found]
    (run / "summary.json").rename(run / "train.log")
    (found,) = look(tmp_path, Redactor(), Scheduler(), finished)
    assert (found.state, found.rate) == ("stopped", None)


def test_a_job_on_another_machine_counts_while_it_writes(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", 10)
    (run / ".lock.holder").write_text("process 1 on another.machine")
    assert look(tmp_path, Redactor(), Scheduler(), {})[0].state == "running"
    old = time.time() - 3600
    for file in run.iterdir():
        os.utime(file, (old, old))
    (run / ".lock").touch()
    assert look(tmp_path, Redactor(), Scheduler(), {})[0].state == "stopped"


def test_once(runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    watch(runs, once=True, every=1.0)
    said = capsys.readouterr().out
    assert said.startswith("5 runs: 1 failed, 1 stopped, 1 queued, 1 done, 1 pruned\n")
    assert re.search(r"failed +│ failed +│ 30 of 100 +│ 20 .*error: the loss is not finite", said)


def test_a_folder_without_runs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="contains no runs yet"):
        watch(tmp_path, once=True, every=1.0)
    (tmp_path / "seeds").mkdir()
    with pytest.raises(ConfigError, match=r"no such directory; did you mean seeds\?"):
        watch(tmp_path / "seds", once=True, every=1.0)


def test_it_waits_for_runs_and_ctrl_c_leaves_cleanly(runs: Path) -> None:
    terminal, inside = os.openpty()
    later = runs.with_name("later")
    command = [sys.executable, "-m", "triptych", "watch", str(later), "--every", "0.1"]
    heed = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731  a shell's job in the background ignores it
    process = subprocess.Popen(
        command, stdin=inside, stdout=inside, stderr=inside, start_new_session=True, preexec_fn=heed,
        env={**os.environ, "TERM": "xterm"},
    )  # fmt: skip
    os.close(inside)
    said = b""
    while b"waiting; press Ctrl-C" not in said:
        said += os.read(terminal, 4096)
    runs.rename(later)
    while said.count(b"5 runs") < 3:  # it is drawn again and again
        said += os.read(terminal, 4096)
    process.send_signal(signal.SIGINT)
    while True:
        try:
            if not (more := os.read(terminal, 4096)):
                break
        except OSError:  # nobody has it open any more
            break
        said += more
    assert process.wait(60) == 0
    assert b"Traceback" not in said
    assert b"interrupted" not in said


def test_the_last_line_of_an_empty_log(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("\n \n")
    assert last_line(tmp_path / "log") == ""


def test_the_jobs_of_a_sweep_by_what_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is done after 20 s, one has run for 5 s, and two wait: 15 s, and twice 20 s more."""
    monkeypatch.setenv("COLUMNS", "80")
    paths = [tmp_path / f"dates.translation_full-0000000{seed}" for seed in range(1, 5)]
    for seed, path in enumerate(paths, 1):
        path.mkdir()
        (path / "job.json").write_text(json.dumps({"overrides": ["task=translation", f"seed={seed}"]}))
    now = time.time()
    (paths[0] / "summary.json").write_text(json.dumps({"metrics": {"test/loss": 1.0}}))
    (paths[0] / ".lock").touch()
    os.utime(paths[0] / ".lock", (now - 100, now - 100))
    os.utime(paths[0] / "summary.json", (now - 80, now - 80))
    with locked(paths[1]):
        os.utime(paths[1] / ".lock", (now - 5, now - 5))
        watch(tmp_path, once=True, every=1.0)
    said = capsys.readouterr().out
    assert re.match(r"4 runs: 1 running, 2 waiting, 1 done; about 5[45] s left\n", said)
    assert re.findall(r"│ (\S+ \S+|\S+) +│ (\w+) +│", said) == [
        ("seed=2", "running"), ("seed=3", "waiting"), ("seed=4", "waiting"), ("seed=1", "done"),
    ]  # fmt: skip
    assert all(len(line) <= 80 for line in said.splitlines())
    assert "…" not in said


def test_a_long_name_is_folded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing of it is left out."""
    monkeypatch.setenv("COLUMNS", "80")
    name = "".join(f"{number:03d}" for number in range(30))
    (make_run(tmp_path / name) / "summary.json").write_text(json.dumps({"metrics": {}}))
    watch(tmp_path, once=True, every=1.0)
    parts = re.findall(r"^│ (\d+) ", capsys.readouterr().out, re.MULTILINE)
    assert len(parts) > 1
    assert "".join(parts) == name


@pytest.mark.parametrize(
    ("taken", "ages", "waiting", "at_once", "left"),
    [
        ([], [5.0], 3, 1, None),
        ([10.0, 20.0], [5.0], 0, 2, 10.0),
        ([10.0], [], 3, 1, 30.0),
        ([10.0], [2.0, 4.0], 3, 2, 22.0),
        ([10.0], [50.0], 0, 1, 0.0),
    ],
)
def test_the_time_that_is_left(
    taken: list[float], ages: list[float], waiting: int, at_once: int, left: float | None
) -> None:
    assert time_left(taken, ages, waiting, at_once) == left


@pytest.mark.parametrize("width", [40, 50, 80, 120])
def test_a_narrow_table_keeps_the_names(width: int) -> None:
    runs = [RunStatus(f"seed={seed}", "done", 2, 2, 10.2, 1.5, None, "", 9.0, 9.0) for seed in (1, 2)]
    console = Console(width=width)
    with console.capture() as printed:
        console.print(draw(runs, 10, width))
    assert all(f"seed={seed}" in printed.get() for seed in (1, 2))
    assert max(map(len, printed.get().splitlines())) <= width
