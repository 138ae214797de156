"""Fault 16: jobs of a sweep that fail, in each of the ways that a process can, and a sweep that is asked to end."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest

from cases import by_day
from clock import bound, wait_until
from commands import Finished, run

pytestmark = pytest.mark.faults

TINY = [
    "experiment=dates/classification", "model=decoder_only", "data.num_train=100", "data.num_validation=20",
    "data.num_test=20", "data.languages=[de,en]", "shape.d_model=16", "shape.num_heads=2", "shape.num_layers=1",
    "shape.d_ff=32", "batch.global_size=20", "trainer.max_steps=2", "trainer.val_check_interval=2",
    "trainer.accelerator=cpu", "logger=csv", "callbacks.progress.refresh_rate=0", "run_dir=sweep",
]  # fmt: skip

POOL = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]

FAILING = """
import os, signal, sys
from lightning.pytorch import Callback

class Fail(Callback):
    def __init__(self, *, how: str) -> None:
        self.how = how

    def on_train_batch_end(self, trainer, task, outputs, batch, batch_idx):
        if self.how == "exception":
            raise RuntimeError("on purpose")
        if self.how == "exit":
            sys.exit(0)
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
"""


def environment() -> dict[str, str]:
    own = {k: v for k, v in os.environ.items() if k != "HYDRA_FULL_ERROR"}
    return {**own, "OMP_NUM_THREADS": "1", "TRIPTYCH_ALLOW": "failing"}


def start(cwd: Path, *overrides: str) -> subprocess.Popen[str]:
    """A process that does not import what lies in its working directory."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "triptych", "train", "-m", *TINY, *overrides],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=environment(),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # as from a terminal
    )


def sweep(cwd: Path, *overrides: str, options: Sequence[str] = ()) -> Finished:
    """The end of one whose imports are there already."""
    return run("train", "-m", *options, *TINY, *overrides, cwd=cwd, variables=environment())


@pytest.mark.parametrize(
    ("hows", "ends", "launcher"),
    [
        pytest.param(["fine", "kill", "well", "good"], {"kill": "killed by SIGKILL"}, [], marks=pytest.mark.nightly),
        (["exit", "exception"], {"exit": r"exit status \d+", "exception": "exit status 1"}, []),
        (["fine", "exception", "kill", "good"], {"exception": "exit status 1", "kill": "killed by SIGKILL"}, POOL),
    ],
    ids=["one of four", "all", "two at once"],
)
def test_fault_16_the_others_continue(
    hows: list[str], ends: dict[str, str], launcher: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own" / "shape").mkdir(parents=True)
    (tmp_path / "own" / "shape" / "mine.yaml").write_text("d_ff: 16\n")
    fail = ["+callbacks.fail._target_=failing.Fail", f"+callbacks.fail.how={','.join(hows)}"]
    (tmp_path / "failing.py").write_text(FAILING)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]]))
    finished = sweep(tmp_path, "shape=mine", *fail, *launcher, options=["--config-dir=own"])
    stdout, stderr = finished.stdout, finished.stderr
    assert finished.returncode == 1
    answer = stderr.splitlines()[-1]
    assert answer.startswith(f"error: {len(ends)} of {len(hows)} jobs failed: ")
    for how in hows:
        named = re.search(rf"callbacks\.fail\.how={how} \(([^,]+), ", answer)
        assert (named is not None) == (how in ends)
        assert named is None or re.fullmatch(ends[how], named[1])
        shown = re.search(rf"job {hows.index(how) + 1} of {len(hows)} failed, (\S+/terminal\.log):", stderr)
        assert (shown is not None) == (how in ends)
        assert how != "exception" or "\n  RuntimeError: on purpose\n" in stderr
        assert shown is None or how != "exception" or "RuntimeError: on purpose" in (tmp_path / shown[1]).read_text()
    if launcher:  # what the jobs say does not come between
        assert len(stdout.splitlines()) == 1 + 3 * len(hows)
        running = [len(re.findall("\n  -> ", stdout[: m.start()])) for m in re.finditer(r"running, \d waiting", stdout)]
        assert max(begun - ended for ended, begun in enumerate(running)) == 2
    results = [file.read_text() for file in tmp_path.glob("sweep/*/summary.json")]
    assert len(results) == len(hows) - len(ends)
    assert all(f"callbacks.fail.how={how}" in "".join(results) for how in hows if how not in ends)


@pytest.mark.parametrize(
    ("signum", "launcher"),
    by_day(
        product([signal.SIGINT, signal.SIGTERM, signal.SIGHUP], [[], POOL]),
        [(signal.SIGINT, POOL), (signal.SIGTERM, [])],
    ),
)
def test_fault_16_a_sweep_that_is_asked_to_stop(signum: signal.Signals, launcher: list[str], tmp_path: Path) -> None:
    """What runs is waited for, no other is started, and no process is left, whether the sweep alone is asked (SIGTERM)
    or all of its processes. What lies in the working directory is not imported by the job where the sweep itself does
    not."""
    (tmp_path / "yaml.py").write_text("raise SystemExit(9)")
    process = start(tmp_path, "seed=1,2,3", "trainer.max_steps=1000000", *launcher)

    def is_there() -> bool:
        assert process.poll() is None
        return len(list(tmp_path.glob("sweep/*/checkpoints/last.ckpt"))) >= (2 if launcher else 1)

    wait_until(is_there, 120, "checkpoints")
    if signum == signal.SIGTERM:
        process.send_signal(signum)
    else:
        os.killpg(process.pid, signum)  # as a terminal does, and where it goes
    stdout, stderr = process.communicate(timeout=bound(60))
    assert process.returncode == 128 + signum
    begun, by = 2 if launcher else 1, "" if signum == signal.SIGINT else f" by {signum.name}"
    says = f"stopped{by}: 0 of 3 done, {begun} started. Run the same command again to resume."
    assert stderr.splitlines()[-1] == says
    assert "failed" not in stdout + stderr
    assert stdout.count(": stopped (") == (2 if launcher else 0)
    assert "job 3 of 3" not in stdout
    assert ("job 2 of 3" in stdout) == bool(launcher)
    for log in tmp_path.glob("sweep/*/terminal.log"):
        assert f"stopped by {signum.name} at step" in log.read_text()
    assert "Traceback" not in stderr
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def test_fault_16_a_launcher_that_is_not_ours(tmp_path: Path) -> None:
    """Hydra's own calls the training itself, one job after the other: each has its directory nevertheless (the same as
    our launchers give it), the error is named, and the same sweep elsewhere does again only what failed."""
    finished = sweep(tmp_path, "seed=1,-1,2", "hydra/launcher=basic")
    assert finished.returncode == 1
    assert finished.stderr.splitlines()[-1] == "error: seed=-1: expected 0 or more"
    records = {file: file.stat().st_mtime_ns for file in tmp_path.glob("sweep/*/summary.json")}
    assert len(records) == 2
    assert sweep(tmp_path, "seed=1,-1,2").stdout.count("done already") == 2
    assert {file: file.stat().st_mtime_ns for file in tmp_path.glob("sweep/*/summary.json")} == records


@pytest.mark.parametrize(
    ("overrides", "answer"),
    [
        (
            ["hydra/launcher=joblib", "hydra.launcher.n_jobs=0"],
            "hydra.launcher.n_jobs=0: expected at least 1, or -1 for the number of CPUs",
        ),
        (["seed=glob(*)", "experiment=glob(nothing*)"], ".*: the sweep has no jobs"),
        (["run_dir=sweep/${now:%S}"], "run_dir=sweep/.*: for a sweep, expected a fixed folder name"),
        (["hydra/launcher=basic", "trainer.devices=2"], "trainer.devices=2: this launcher starts one process"),
    ],
    ids=["number of jobs", "no jobs", "clock", "devices"],
)
def test_sweeps_that_cannot_be(overrides: list[str], answer: str, tmp_path: Path) -> None:
    finished = sweep(tmp_path, *overrides)
    assert finished.returncode == 1
    assert re.match(f"error: {answer}", finished.stderr.splitlines()[-1]), finished.stderr
