"""Jobs that are forked from a process which has imported everything."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import tiny
from clock import wait_until
from triptych.launch.fork_server import Forked, ForkServer, start_server
from triptych.launch.signals import STOPS
from triptych.launch.sweep import own_python

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems start each job by itself")

RUN = [*tiny.TINY, "experiment=dates/classification", "trainer.max_steps=4", "logger=csv"]


@pytest.fixture(scope="module", params=["2", pytest.param("1", marks=pytest.mark.nightly)])
def threads(request: pytest.FixtureRequest) -> str:
    """Of a job."""
    return str(request.param)


@pytest.fixture(scope="module")
def server(threads: str) -> Iterator[ForkServer]:
    server = start_server(own_python(), {**os.environ, "OMP_NUM_THREADS": threads})
    yield server
    server.close()


def start(server: ForkServer, output: Path, *arguments: str) -> Forked:
    with open(os.devnull, "rb") as nothing, open(output, "wb") as file:
        job = server.start(arguments, (nothing.fileno(), file.fileno(), file.fileno()))
    assert job is not None
    return job


def end(job: Forked) -> int:
    wait_until(lambda: job.poll() is not None, 120, "the end of a job")
    status = job.poll()
    assert status is not None
    return status


def test_a_forked_job_is_one_like_any_other(server: ForkServer, threads: str, tmp_path: Path) -> None:
    jobs = {
        "version": start(server, tmp_path / "version", "--version"),
        "mistake": start(server, tmp_path / "mistake", "train", "sed=1", f"run_dir={tmp_path / 'none'}"),
        "run": start(server, tmp_path / "output", "train", *RUN, "model=full", f"run_dir={tmp_path / 'run'}"),
    }
    assert {name: end(job) for name, job in jobs.items()} == {"version": 0, "mistake": 1, "run": 0}
    assert (tmp_path / "version").read_text().startswith("triptych ")
    assert "error: sed: there is no such key; did you mean seed" in (tmp_path / "mistake").read_text()

    # not by ``commands``, whose jobs are forked too
    command = [*own_python(), "-m", "triptych", "train", *RUN, "model=full", f"run_dir={tmp_path / 'alone'}"]
    subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": threads}, check=True, capture_output=True)
    weights, expected = (load_file(tmp_path / name / "weights.safetensors") for name in ("run", "alone"))
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


@pytest.mark.parametrize("signum", STOPS)
def test_what_asks_a_sweep_to_end_the_server_does_not_hear(signum: int, server: ForkServer, tmp_path: Path) -> None:
    """Of a signal to all processes it would be the first to go, and nobody would know how the jobs have ended."""
    assert end(start(server, tmp_path / "first", "--version")) == 0  # it has imported
    server._process.send_signal(signum)
    assert end(start(server, tmp_path / "version", "--version")) == 0


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_a_signal_reaches_the_job_alone(server: ForkServer, signum: int, status: int, tmp_path: Path) -> None:
    forever = ["trainer.max_steps=100000", f"run_dir={tmp_path / 'run'}"]
    job = start(server, tmp_path / "output", "train", *RUN, "model=encoder_only", *forever)
    wait_until(lambda: (tmp_path / "run" / "metrics.csv").exists(), 120, lambda: (tmp_path / "output").read_text())
    job.send_signal(signum)
    assert end(job) == status
    job.send_signal(signum)  # nobody is there any more
    assert end(start(server, tmp_path / "version", "--version")) == 0


def test_without_its_server_a_job_goes_on(tmp_path: Path) -> None:
    """What it gives to W&B is whole: it has a folder of its own for that."""
    server = start_server(own_python(), {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)})
    arguments = [*RUN, "logger=wandb", "model=encoder_only", f"run_dir={tmp_path / 'run'}"]
    job = start(server, tmp_path / "output", "train", *arguments)
    server._channel.shutdown(socket.SHUT_RDWR)  # as where the sweep was killed
    assert server._process.wait(30) == 0
    assert end(job) == 0
    assert (tmp_path / "run" / "summary.json").exists()
    assert "W&B has not got" not in (tmp_path / "output").read_text()
    assert [*tmp_path.glob("run/wandb/offline-run-*/files/media/table/test/*.json")]
    assert not [*tmp_path.glob("*wandb-media")]
    assert server.start(["--version"], (0, 1, 2)) is None
    server.close()


def test_a_process_with_threads_is_not_forked(tmp_path: Path) -> None:
    begun = "import threading, time; threading.Thread(target=time.sleep, args=(99,), daemon=True).start()"
    (tmp_path / "begins_something.py").write_text(begun)
    program = (
        "from triptych.launch import fork_server as f\n"
        "f.MODULES = ('begins_something',)\n"
        "import os; safe = f.import_heavy_modules(); print(safe, flush=True); os._exit(0)"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert finished.stdout == "False\n"
