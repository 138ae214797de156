"""A search that is killed, that several workers share, some of whose jobs fail, and that a cluster runs."""

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest

import tiny
from clock import wait_until
from commands import Command
from triptych.search.trials import open_storage

pytestmark = pytest.mark.faults

TINY = [
    *tiny.TINY, "experiment=dates/classification", "model=decoder_only", "trainer.max_steps=12",
    "trainer.val_check_interval=3", "trainer.log_every_n_steps=3", "scheduler.warmup_steps=1",
    "trainer.accelerator=cpu", "logger=csv", "run_dir=search",
]  # fmt: skip


class Search:
    """``triptych train -m hydra/sweeper=optuna`` in a session of its own.

    Args:
        folder: where it runs.
        overrides: after the tiny sizes.
        environment: more variables.
    """

    def __init__(self, folder: Path, *overrides: str, environment: dict[str, str] | None = None) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.output = folder, folder / f"output-{len(list(folder.glob('output-*')))}"
        own = {k: v for k, v in os.environ.items() if k != "HYDRA_FULL_ERROR"}
        own |= {"OMP_NUM_THREADS": "1", "COLUMNS": "200", **(environment or {})}
        self.output.touch()
        words, files = ["train", "-m", "hydra/sweeper=optuna"], (Path(os.devnull), self.output, self.output)
        self.process = Command(*words, *TINY, *overrides, cwd=folder, environment=own, files=files)

    def wait(self, seconds: float = 400) -> str:
        """What it has said, after its end, which was a good one."""
        try:
            assert self.process.wait(seconds) == 0, self.output.read_text()
        finally:
            self.kill()
        return self.output.read_text()

    def wait_until(self, condition: Callable[[Path], object]) -> None:
        """Waits for something in its folder while it runs."""

        def is_there() -> bool:
            assert self.process.poll() is None, self.output.read_text()
            return bool(condition(self.folder))

        wait_until(is_there, 200, pause=0.01)

    def kill(self) -> None:
        """Ends it and its jobs at once."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self.process.wait(60)

    @property
    def trials(self) -> list[optuna.trial.FrozenTrial]:
        """What the storage has."""
        storage = open_storage(self.folder / "search" / "optuna.journal")
        return optuna.load_study(study_name="dates/classification_decoder_only", storage=storage).trials

    @property
    def record(self) -> list[tuple[Any, ...]]:
        """The trials, as far as they do not depend on the clock, and what their runs have trained."""
        trials = [(t.number, t.params, t.value, t.state.name, t.intermediate_values) for t in self.trials]
        runs = {file.parent.name: json.loads(file.read_text()) for file in self.folder.glob("search/*/summary.json")}
        marks = {file.parent.name: json.loads(file.read_text()) for file in self.folder.glob("search/*/pruned.json")}
        return [*trials, {name: run["weights_sha256"] for name, run in runs.items()}, marks]


def test_a_search_that_is_killed_ends_as_if_it_had_not_been(tmp_path: Path, full: bool) -> None:
    overrides = ["optimizer.lr=tag(log,interval(1e-3,10))", "hydra.sweeper.n_trials=3", "hydra.sweeper.seed=11"]
    overrides += ["hydra.sweeper.startup_trials=1", "callbacks.checkpoints.every_n_steps=1"]
    undisturbed = Search(tmp_path / "undisturbed", *overrides)
    undisturbed.wait()
    states = [trial.state.name for trial in undisturbed.trials]
    assert states == ["COMPLETE", "PRUNED", "PRUNED"]  # learning rates of 0.03, 7 and 3

    conditions = (
        lambda folder: list(folder.glob("search/*/checkpoints/step-00000005.ckpt")),  # in the middle of the first
        lambda folder: len(list(folder.glob("search/*/"))) >= 3,  # at the beginning of the second (and the locks)
    )
    for condition in conditions if full else conditions[1:]:
        search = Search(tmp_path / "killed", *overrides)
        search.wait_until(condition)
        search.kill()
    search = Search(tmp_path / "killed", *overrides)
    search.wait()
    assert search.record == undisturbed.record


@pytest.mark.nightly
def test_two_workers_share_the_total(tmp_path: Path) -> None:
    overrides = ["optimizer.lr=tag(log,interval(1e-3,1e-1))", "hydra.sweeper.n_trials=4", "hydra.sweeper.pruner=none"]
    workers = [Search(tmp_path, *overrides) for _ in range(2)]
    said = [worker.wait() for worker in workers]
    run = [re.findall(r"^trial (\d+) \(", text, re.MULTILINE) for text in said]
    assert sorted([*run[0], *run[1]]) == ["0", "1", "2", "3"]
    assert run[0]
    assert run[1]
    assert [trial.state.name for trial in workers[0].trials] == ["COMPLETE"] * 4
    assert len(list(tmp_path.glob("search/*/summary.json"))) == 4


def test_failed_jobs_count_and_equal_ones_run_once(tmp_path: Path) -> None:
    overrides = ["shape.num_heads=choice(2,3)", "hydra.sweeper.sampler=random", "hydra.sweeper.n_trials=5"]
    search = Search(tmp_path, *overrides, "hydra.sweeper.seed=11")
    text = search.wait()
    assert [trial.params["shape.num_heads"] for trial in search.trials] == ["2", "2", "3", "2", "2"]
    assert [trial.state.name for trial in search.trials] == ["COMPLETE", "COMPLETE", "FAIL", "COMPLETE", "COMPLETE"]
    assert len({trial.value for trial in search.trials}) == 2  # of the failed one there is none
    assert text.count("done already") == 3
    assert "4 complete, 1 failed" in text


@pytest.mark.nightly
def test_a_search_that_cannot_begin_ends_and_can_be_mended(tmp_path: Path) -> None:
    overrides = ["shape.num_heads=choice(2,3)", "hydra.sweeper.sampler=random", "hydra.sweeper.n_trials=2"]
    search = Search(tmp_path, *overrides)  # begins with three heads, which do not divide the width
    assert search.process.wait(200) == 1
    assert "dates/classification_decoder_only: no job started to train" in search.output.read_text()
    assert [trial.state.name for trial in search.trials] == ["RUNNING"]
    mended = Search(tmp_path, "shape.num_heads=choice(2,4)", *overrides[1:])
    mended.wait()
    assert [trial.state.name for trial in mended.trials] == ["COMPLETE"] * 2


def test_a_job_that_outlives_its_worker_is_waited_for(tmp_path: Path) -> None:
    overrides = ["optimizer.lr=interval(1e-3,1e-2)", "hydra.sweeper.n_trials=1", "trainer.max_steps=600"]
    first = Search(tmp_path, *overrides)
    first.wait_until(lambda folder: list(folder.glob("search/*/checkpoints/*.ckpt")))
    os.kill(first.process.pid, signal.SIGKILL)  # it alone
    try:
        second = Search(tmp_path, *overrides)
        assert "done already" in second.wait()
        assert [trial.state.name for trial in second.trials] == ["COMPLETE"]
    finally:
        first.kill()


@pytest.mark.nightly
def test_a_cluster_runs_the_jobs(tmp_path: Path, cluster: Any) -> None:
    overrides = ["optimizer.lr=tag(log,interval(1e-3,10))", "hydra.sweeper.n_trials=4", "hydra.sweeper.n_jobs=2"]
    overrides += ["hydra.sweeper.seed=11", "hydra.sweeper.startup_trials=1", "hydra/launcher=slurm"]
    search = Search(tmp_path, *overrides, "hydra.launcher.poll_s=1", environment=cluster.environment)
    search.wait()
    states = [trial.state.name for trial in search.trials]
    assert states[0] == "COMPLETE"
    assert set(states[2:]) <= {"COMPLETE", "PRUNED"}
    assert len(states) == 4
    arrays = list((tmp_path / "outputs" / "sweeps" / "slurm").glob("*.sbatch"))
    assert len(arrays) == 2  # two rounds of two
    waits_not = Search(tmp_path, *overrides, "hydra.launcher.wait=false", environment=cluster.environment)
    assert waits_not.process.wait(60) == 1
    assert "hydra.launcher.wait=false: a search must wait for its jobs" in waits_not.output.read_text()
