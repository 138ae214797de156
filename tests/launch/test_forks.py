"""Processes forked from one that has imported what they need, and ranks that are started this way."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from lightning.fabric.plugins.environments.lightning import LightningEnvironment

import tiny
from triptych.launch.sweep import own_python

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems start each rank by itself")

RUN = [*tiny.TINY, "experiment=dates/classification", "model=encoder_only", "trainer=ddp_cpu", "trainer.max_steps=4"]
PROGRAM = """
import os, signal, sys, threading, time
from triptych.launch import forks, signals

def wait_for(child):
    while child.poll() is None:
        time.sleep(0.01)
    return child.poll()

def end():
    time.sleep(60)
"""


def run_program(script: str) -> list[str]:
    """What a program prints."""
    command = [sys.executable, "-c", PROGRAM + script]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout.splitlines()


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
print(forks.has_only_imported())
forks.note_imports()
print(forks.has_only_imported())
threading.Thread(target=end, daemon=True).start()
print(forks.has_only_imported())
"""
    assert run_program(script) == ["False", "True", "False"]


def train(folder: Path, *overrides: str, **variables: str) -> "subprocess.Popen[bytes]":
    """A run from a Python of its own. Each Python that is started writes a line to the file ``starts``."""
    quick_start = Path(__file__).parents[1] / "quick_start" / "sitecustomize.py"
    count = f"import runpy; print('started', file=open({str(folder / 'starts')!r}, 'a'))"
    (folder / "sitecustomize.py").write_text(f"{count}; runpy.run_path({str(quick_start)!r})\n")
    inherited = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    return subprocess.Popen(
        [*own_python(), "-m", "triptych", "train", *RUN, *overrides],
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
