"""A researcher's week on a cluster, from the plan to a question to the best model, with everything that happens there:
a sweep as an array, jobs that are preempted at random, a node that is lost, jobs that cannot work, the same command
again, W&B, the page, the export. Small in ``make faults``; a hundred jobs with ``FULL=1``; see
docs/cluster_tutorial.md."""

import json
import os
import random
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import tiny
from clock import bound
from wandb_server import Server, online

pytestmark = pytest.mark.faults

FULL = os.environ.get("TRIPTYCH_FAULTS") == "full"
MODELS = ("bart/style", "bert/style", "gpt2/style")
SEEDS = range(1, 31 if FULL else 2)
LEARNING_RATES = [f"{i}e-3" for i in range(1, 8 if FULL else 2)]
UNDISTURBED = [(model, seed) for model in MODELS for seed in SEEDS][:: 18 if FULL else 2]
"""Of these the weights are compared with those of the same run alone."""
DISTURBED = 30 if FULL else 3
"""So often a node is taken away from its jobs."""
COMMANDS = 10
"""The most that it may take."""
COMMON = [
    *tiny.TINY, "experiment=dates/classification", "trainer.accelerator=cpu", "trainer.max_steps=30",
    "trainer.val_check_interval=10", "trainer.log_every_n_steps=2",
]  # fmt: skip
SWEEP = [*COMMON, f"model={','.join(MODELS)}", f"seed={','.join(map(str, SEEDS))},-1"]
TWO_NODES = [*COMMON, "model=gpt2/style", f"optimizer.lr={','.join(LEARNING_RATES)}", "trainer.num_nodes=2"]
SLOWLY = [
    "+callbacks.recording._target_=recording_callback.RecordingCallback",
    "+callbacks.recording.folder=.",
    "+callbacks.recording.seconds=[0.3,0.3]",
]
"""The updates take long enough to be disturbed; no other run is one because of a callback."""


class Journey:
    """A folder with a scheduler, and the commands that are typed into it.

    Attributes:
        commands: all of them.
    """

    def __init__(self, folder: Path, cluster: Any, server: Server) -> None:
        self.folder, self.cluster, self.server = folder, cluster, server
        self.commands: list[str] = []
        tests = str(Path(__file__).parents[2])
        self._environment = {**online(server.url), **cluster.environment, "TRIPTYCH_ALLOW": "recording_callback."}
        self._environment["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), tests]))

    def type(self, line: str, status: int = 0, stdin: str = "") -> str:
        """What a command prints, at both of its ends.

        Args:
            line: for a shell.
            status: with which it has to end.
            stdin: what it reads.
        """
        self.commands.append(line)
        path = f"{Path(sys.executable).parent}{os.pathsep}{self._environment['PATH']}"
        finished = subprocess.run(
            ["bash", "-c", line],
            cwd=self.folder,
            env={**self._environment, "PATH": path},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=bound(3000 if FULL else 400),
            check=False,
        )
        assert finished.returncode == status, f"{line}\n{finished.stdout}\n{finished.stderr}"
        return finished.stdout + finished.stderr

    def disturb(self, ended: threading.Event) -> None:
        """Takes the node away from a job that trains, at random moments; the second time the node is lost until the
        next."""
        draw, done, lost = random.Random(7), 0, ""
        while done < DISTURBED and not ended.wait(draw.uniform(1, 10)):
            if lost:
                self.cluster.bring_back(lost)
            if (node := self._busy_node(draw)) is None:
                continue
            done += 1
            if done == 2:
                self.cluster.lose(lost := node)
                continue
            options = ("--partition=high", "--exclusive", f"--nodelist={node}", "--output=/dev/null")
            self.cluster.command("sbatch", *options, "--wrap=sleep 1")
        if lost:
            self.cluster.bring_back(lost)

    def _busy_node(self, draw: random.Random) -> str | None:
        """Where a job trains that has not ended; None: nowhere."""
        begun = [file.parent for file in self.folder.glob("outputs/week/*/metrics.csv")]
        for directory in draw.sample(begun, len(begun)):
            task = json.loads((directory / "slurm.json").read_text())
            fields = ("--noheader", "--array", f"--name={task['array']}", "--states=RUNNING", "--format=%K %N")
            nodes = dict(line.split() for line in self.cluster.command("squeue", *fields).splitlines())
            if str(task["index"]) in nodes:
                return str(draw.choice(["n1", "n2"]) if "[" in (node := nodes[str(task["index"])]) else node)
        return None


@pytest.fixture
def journey(tmp_path: Path, cluster: Any) -> Iterator[Journey]:
    server = Server()
    yield Journey(tmp_path, cluster, server)
    cluster.command("scancel", "--user", str(os.getuid()))
    server.close()


@pytest.mark.nightly
def test_the_journey(journey: Journey) -> None:
    launcher = "hydra/launcher=slurm hydra.launcher.poll_s=0.5 hydra.launcher.array_parallelism=4 run_dir=outputs/week"
    sweep = " ".join(["triptych train -m", launcher, *SWEEP, *(f"'{override}'" for override in SLOWLY)])
    pairs = " ".join(["triptych train -m", launcher, "hydra.launcher.nodes=2", *TWO_NODES])
    pairs = " ".join([pairs, *(f"'{override}'" for override in SLOWLY)])
    jobs = len(MODELS) * (len(SEEDS) + 1) + len(LEARNING_RATES)

    plan = journey.type(sweep.replace("triptych train", "triptych doctor"), status=0)
    assert "#SBATCH --array" in plan

    ended = threading.Event()
    disturbing = threading.Thread(target=journey.disturb, args=(ended,))
    disturbing.start()
    try:
        said = journey.type(sweep, status=1)
        failed = [line for line in said.splitlines() if "FAILED" in line or "failed" in line]
        assert f"3 of {jobs - len(LEARNING_RATES)} jobs failed" in said, failed
        journey.type(pairs)
    finally:
        ended.set()
        disturbing.join()
    again = journey.type(sweep, status=1)  # what has failed is tried again, nothing else
    assert again.count("done already") == jobs - len(LEARNING_RATES) - 3
    assert again.count("seed=-1: expected 0 or more") == 3

    week = journey.folder / "outputs" / "week"
    summaries = {file.parent: json.loads(file.read_text()) for file in week.glob("*/summary.json")}
    assert len(summaries) == jobs - 3
    restarts = [log.read_text().count("resuming from") for log in week.glob("*/train.log")]
    assert sum(restarts) >= 1, restarts
    for directory in summaries:  # each update once, whatever happened to its run
        rows = (directory / "metrics.csv").read_text().splitlines()
        column = rows[0].split(",").index("step")
        losses = rows[0].split(",").index("train/loss")
        steps = [int(row.split(",")[column]) for row in rows[1:] if row.split(",")[losses]]
        assert steps == sorted(set(steps))
    check_undisturbed(journey, week)

    assert "3 failed" in journey.type("triptych watch --once outputs/week")
    journey.type("wandb sync outputs/week/*/wandb/offline-run-*")
    check_wandb(journey.server, week, jobs)

    page = journey.type("triptych compare outputs/week --output week.html")
    assert (journey.folder / "week.html").stat().st_size > 100_000
    comparison = json.loads((journey.folder / "week.comparison.json").read_text())
    assert len(comparison["runs"]) == jobs - 3
    assert len(comparison["unfinished"]) == 3
    for name in comparison["unfinished"]:
        assert name.endswith("(seed=-1: expected 0 or more)")
        assert name.partition(" ")[0] in page
    journey.type("triptych dashboard outputs/week --output week.py")
    assert (journey.folder / "week.py").exists()
    best = min(summaries, key=lambda directory: summaries[directory]["metrics"]["val/loss"])
    journey.type(f"triptych export {best.relative_to(journey.folder)} --output best")
    assert list((journey.folder / "best").glob("*.safetensors"))
    answer = journey.type(f"triptych predict checkpoint={best.relative_to(journey.folder)}", stdin="5 March 1998\n")
    assert re.search("de|en|ja", answer)
    assert len(journey.commands) <= COMMANDS, journey.commands


def check_undisturbed(journey: Journey, week: Path) -> None:
    """Some of the runs end with the weights of the same run alone."""
    by_run = {}
    for note in week.glob("*/job.json"):
        words = dict(word.split("=", 1) for word in json.loads(note.read_text())["overrides"])
        by_run[words["model"], words.get("seed"), words.get("optimizer.lr")] = note.parent
    for model, seed in UNDISTURBED:
        overrides = [*COMMON, f"model={model}", f"seed={seed}", f"run_dir=alone/{model}-{seed}", "logger=csv"]
        subprocess.run(
            [sys.executable, "-m", "triptych", "train", *overrides],
            cwd=journey.folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            check=True,
        )
        alone = load_file(journey.folder / "alone" / f"{model}-{seed}" / "weights.safetensors")
        disturbed = load_file(by_run[model, str(seed), None] / "weights.safetensors")
        assert alone.keys() == disturbed.keys()
        assert all(torch.equal(alone[name], disturbed[name]) for name in alone), (model, seed)


def check_wandb(server: Server, week: Path, jobs: int) -> None:
    """Each run is there once, with each step once."""
    identities = {file.read_text() for file in week.glob("*/wandb/id")}
    assert set(server.runs) == identities
    assert len(identities) == jobs - 3
    for rows in server.runs.values():  # a run that goes on logs its last rows once more, the same
        losses = {(row["trainer/global_step"], row["train/loss"]) for row in rows if "train/loss" in row}
        assert sorted(step for step, _ in losses) == list(range(1, 30, 2))
