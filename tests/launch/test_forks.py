"""Processes forked from one that has imported what they need: jobs of a sweep, and ranks."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from safetensors.torch import load_file

import tiny
from clock import wait_until
from commands import finish
from triptych.launch.sweep import own_python

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems start each job and rank by itself")

RUN = [*tiny.TINY, "experiment=dates/classification", "model=encoder_only", "trainer.max_steps=4"]
PROGRAM = """
import os, signal, sys, threading, time
from triptych.launch import forked_jobs, forks, signals, sweep

def wait_for(child):
    while child.poll() is None:
        time.sleep(0.01)
    return child.poll()

def end():
    time.sleep(60)
"""


JOBS = """
import json, pathlib
run = json.loads(sys.argv[1])

def start(name, *arguments):
    with open(os.devnull, "rb") as nothing, open(name + ".log", "wb") as log:
        streams = (nothing.fileno(), log.fileno(), log.fileno())
        return forked_jobs.fork_job([*sweep.own_program(), *arguments], {"OMP_NUM_THREADS": "2"}, streams)

jobs = {
    "version": start("version", "--version"),
    "mistake": start("mistake", "train", "sed=1", "run_dir=none"),
    "run": start("run", "train", *run, "logger=csv", "run_dir=run"),
}
stopped = ("SIGTERM", "SIGINT", "SIGKILL")
for name in stopped:
    jobs[name] = start(name, "train", *run, "logger=csv", "trainer.max_steps=100000", "run_dir=" + name)
    while not pathlib.Path(name, "metrics.csv").exists():
        time.sleep(0.01)
    jobs[name].send_signal(getattr(signal, name))
print(json.dumps({name: wait_for(job) for name, job in jobs.items()}))
jobs["SIGTERM"].send_signal(signal.SIGTERM)  # it has ended
start("orphan", "train", *run, "logger=wandb", "run_dir=orphan")
threading.Thread(target=end, daemon=True).start()
print(start("thread", "--version"), flush=True)
os._exit(0)  # as if it was killed
"""


def run_program(script: str, *arguments: str, cwd: Path | None = None, **variables: str) -> list[str]:
    """What a program prints. It has imported what a run needs, and nothing else has happened in it."""
    own = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"} | variables
    finished = finish(*arguments, cwd=cwd or Path.cwd(), environment=own, program=PROGRAM + script)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.splitlines()


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The folder and the output of a process that forks jobs, and ends before the last of them."""
    folder = tmp_path_factory.mktemp("sweep")
    return folder, run_program(JOBS, json.dumps(RUN), cwd=folder, TMPDIR=str(folder))


def test_a_forked_job_is_like_a_started_one(sweep: tuple[Path, list[str]], tmp_path: Path) -> None:
    """Also in its threads, of which its parent has another number."""
    folder, _ = sweep
    assert (folder / "version.log").read_text().startswith("triptych ")
    assert "error: sed: there is no such key; did you mean seed" in (folder / "mistake.log").read_text()
    # not by ``commands``, whose commands are forked too
    command = [*own_python(), "-m", "triptych", "train", *RUN, "logger=csv", "run_dir=alone"]
    subprocess.run(command, cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "2"}, check=True, capture_output=True)
    weights, expected = (load_file(run / "weights.safetensors") for run in (folder / "run", tmp_path / "alone"))
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


def test_a_signal_reaches_the_job_alone(sweep: tuple[Path, list[str]]) -> None:
    ended = {"version": 0, "mistake": 1, "run": 0, "SIGTERM": 143, "SIGINT": 130, "SIGKILL": -9}
    assert json.loads(sweep[1][0]) == ended


def test_a_job_outlives_its_parent(sweep: tuple[Path, list[str]]) -> None:
    """Its tables for W&B are complete: it has its own folder for them."""
    folder, _ = sweep
    wait_until((folder / "orphan" / "summary.json").exists, 120, lambda: (folder / "orphan.log").read_text())
    wait_until(lambda: len([*folder.glob("*wandb-media")]) == 1, 60, "the end of the job")  # that of SIGKILL is left
    assert "W&B has not got" not in (folder / "orphan.log").read_text()
    assert [*folder.glob("orphan/wandb/offline-run-*/files/media/table/test/*.json")]


def test_no_job_is_forked_after_a_new_thread(sweep: tuple[Path, list[str]]) -> None:
    assert sweep[1][1:] == ["None"]


def test_a_child_ends_as_its_function_does() -> None:
    script = """
def fail():
    raise ValueError("hidden from standard output")
print("once")
print(*(wait_for(forks.fork(function)) for function in (lambda: 3, lambda: None, lambda: sys.exit(4), fail)))
"""
    assert run_program(script) == ["once", "3 0 4 1"]


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_child_has_the_handlers_that_python_starts_with(signum: signal.Signals) -> None:
    """Its parent forwards signals, so it records them. The first comes as early as it can."""
    script = f"""
with signals.record_signals(*signals.STOPS) as recorded:
    children = [forks.fork(end) for _ in range(10)]
    for child in children:
        child.send_signal({signum.value})
    print(*{{wait_for(child) for child in children}}, recorded)
    children[0].send_signal({signum.value})  # it has ended
"""
    status = 1 if signum == signal.SIGINT else -signum  # KeyboardInterrupt
    assert run_program(script) == [f"{status} []"]


def test_a_process_with_a_new_thread_is_not_forked() -> None:
    script = """
forks._threads_of_imports = 0  # as in a process that has noted nothing
print(forks.has_only_imported())
forks.note_imports()
print(forks.has_only_imported())
threading.Thread(target=end, daemon=True).start()
print(forks.has_only_imported())
"""
    assert run_program(script) == ["False", "True", "False"]


def test_imports_that_start_a_thread_prevent_forks(tmp_path: Path) -> None:
    (tmp_path / "with_thread.py").write_text(
        "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
    )
    script = """
forked_jobs.MODULES = ("with_thread",)
forked_jobs.import_job_modules.__wrapped__()  # again: the tests' process has done it
print(forks.has_only_imported(), flush=True)
os._exit(0)
"""
    assert run_program(script, cwd=tmp_path) == ["False"]


def train(folder: Path, *overrides: str, **variables: str) -> "subprocess.Popen[bytes]":
    """A run from a Python of its own. Each Python that is started writes a line to the file ``starts``."""
    quick_start = Path(__file__).parents[1] / "quick_start" / "sitecustomize.py"
    count = f"import runpy; print('started', file=open({str(folder / 'starts')!r}, 'a'))"
    (folder / "sitecustomize.py").write_text(f"{count}; runpy.run_path({str(quick_start)!r})\n")
    inherited = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    return subprocess.Popen(
        [*own_python(), "-m", "triptych", "train", *RUN, "trainer=ddp_cpu", *overrides],
        cwd=folder,
        env={**inherited, "PYTHONPATH": str(folder), **variables},
        stdout=subprocess.DEVNULL,
    )


def test_ranks_are_forked_from_one_python(tmp_path: Path) -> None:
    """They compute with several threads; a child would hang in its first if its parent had computed."""
    assert train(tmp_path, "run_dir=run", OMP_NUM_THREADS="2").wait(300) == 0
    assert (tmp_path / "starts").read_text() == "started\n"
    assert (tmp_path / "run" / "rank-1.log").read_text() == ""


@pytest.mark.nightly
@pytest.mark.parametrize("variables", [{}, {"OMP_NUM_THREADS": "2"}], ids=["one thread", "two threads"])
def test_forked_ranks_are_like_started_ones(variables: dict[str, str], tmp_path: Path) -> None:
    assert train(tmp_path, "run_dir=forked", **variables).wait(300) == 0
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(LightningEnvironment().main_port)}
    place |= {"OMP_NUM_THREADS": "1", **variables}
    started = [train(tmp_path, "run_dir=started", **place, RANK=rank, LOCAL_RANK=rank) for rank in ("0", "1")]
    assert [rank.wait(300) for rank in started] == [0, 0]
    weights = [(tmp_path / name / "weights.safetensors").read_bytes() for name in ("forked", "started")]
    assert weights[0] == weights[1]
