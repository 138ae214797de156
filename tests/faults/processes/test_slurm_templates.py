"""The files of slurm/ as they are, and the page that explains them."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tiny
from cases import by_day
from clock import wait_until

pytestmark = pytest.mark.faults

ROOT = Path(__file__).parents[3]
NODES_AND_RANKS = {"one_gpu": (1, 1), "one_node": (1, 2), "several_nodes": (2, 2), "cpu": (1, 1), "preemptible": (1, 1)}
"""Of each file but the array's."""
BY_DAY = ("one_node", "several_nodes")


@pytest.fixture(scope="module")
def jobs(
    cluster: Any, new_training: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, tuple[Any, str]]]:
    """A job of a file, by its name: where it was submitted, and its number. They run side by side."""
    trainings = {name: new_training(tmp_path_factory.mktemp(name)) for name in (*BY_DAY, "array")}
    jobs = {name: trainings[name].submit_template(cluster, name) for name in BY_DAY}
    folder = trainings["array"].folder
    (folder / "sweep.txt").write_text("seed=1  block.dropout=0.0\n\nseed=3")  # the last line has no end
    jobs["array"] = trainings["array"].submit_template(
        cluster, "array", first=("sweep.txt",), options=("--array=1-4%2", f"--output={folder}/%a")
    )
    yield {name: (training, jobs[name]) for name, training in trainings.items()}
    for training in trainings.values():
        training.kill()


@pytest.fixture(scope="module")
def other_jobs(
    cluster: Any, new_training: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, tuple[Any, str]]]:
    """The like, of the other files."""
    trainings = {name: new_training(tmp_path_factory.mktemp(name)) for name in NODES_AND_RANKS if name not in BY_DAY}
    yield {name: (training, training.submit_template(cluster, name)) for name, training in trainings.items()}
    for training in trainings.values():
        training.kill()


def ended(cluster: Any, job: str) -> dict[str, str]:
    """What Slurm says of a job at its end."""
    wait_until(lambda: cluster.show(job)["JobState"] not in ("PENDING", "RUNNING", "COMPLETING"), 150, f"end of {job}")
    shown: dict[str, str] = cluster.show(job)
    return shown


@pytest.mark.parametrize("name", by_day(NODES_AND_RANKS, BY_DAY))
def test_each_runs(name: str, cluster: Any, request: pytest.FixtureRequest) -> None:
    training, job = request.getfixturevalue("jobs" if name in BY_DAY else "other_jobs")[name]
    shown = ended(cluster, job)
    log = (training.folder / f"slurm-{job}.out").read_text()
    assert shown["JobState"] == "COMPLETED", log
    nodes, ranks = NODES_AND_RANKS[name]
    assert int(shown["NumNodes"]) == nodes
    assert shown["Requeue"] == "1"
    assert len(list(training.folder.glob("weights-*.pt"))) == ranks
    assert json.loads((training.folder / "outputs" / "slurm" / job / "summary.json").read_text())["steps"] == 6
    assert shown["TresPerNode"] == f"gres:gpu:{ranks // nodes}" if name != "cpu" else "TresPerNode" not in shown


def test_one_machine_or_two_are_the_same(cluster: Any, jobs: dict[str, tuple[Any, str]]) -> None:
    weights = []
    for name in ("one_node", "several_nodes"):
        training, job = jobs[name]
        ended(cluster, job)
        record = json.loads((training.folder / "outputs" / "slurm" / job / "summary.json").read_text())
        weights.append(record["weights_sha256"])
    assert weights[0] == weights[1]


def test_an_array_reads_a_line_for_each_run(cluster: Any, jobs: dict[str, tuple[Any, str]]) -> None:
    training, job = jobs["array"]
    states = {number: ended(cluster, f"{job}_{number}")["JobState"] for number in "1234"}
    logs = {number: (training.folder / number).read_text() for number in states}
    assert states == {"1": "COMPLETED", "2": "FAILED", "3": "COMPLETED", "4": "FAILED"}, "\n".join(logs.values())
    runs = {path.parent.name: json.loads(path.read_text()) for path in training.folder.rglob("summary.json")}
    assert {number: run["seed"] for number, run in runs.items()} == {"1": 1, "3": 3}
    assert "dropout: 0.0" in (training.folder / "outputs" / "slurm" / job / "1" / "config.yaml").read_text()
    for number in "24":
        assert logs[number] == f"error: sweep.txt has no overrides in line {number}\n"


@pytest.mark.nightly
def test_gpus_without_a_task_are_rejected(cluster: Any, training: Any) -> None:
    options = ("--gpus-per-node=3", f"--output={training.folder}/log")
    job = training.submit_template(cluster, "one_node", "run_dir=mine", options=options)
    assert ended(cluster, job)["JobState"] == "FAILED"
    log = (training.folder / "log").read_text()
    assert "trainer.devices=3 on trainer.num_nodes=1, but srun started 2 processes" in log
    assert "Traceback" not in log


@pytest.mark.nightly
def test_the_first_ten_lines_of_the_page(cluster: Any, tmp_path: Path) -> None:
    """From a checkout to an array of which one task was put back, line by line. What is replaced: where the checkout
    comes from, the installation (the environment of this test is taken), and the sizes."""
    page = (ROOT / "docs" / "cluster.md").read_text()
    block = re.search(r"(?:^    .*\n)+", page, re.MULTILINE)
    assert block is not None
    lines = [line.partition("  #")[0].strip() for line in block[0].splitlines()]
    assert len(lines) <= 10
    clone, install, *rest = lines
    assert clone.startswith("git clone ")
    assert install == "make install && source .venv/bin/activate"
    checkout = tmp_path / "triptych"
    for folder in ("src", "conf", "slurm"):
        shutil.copytree(ROOT / folder, checkout / folder, symlinks=True, ignore=shutil.ignore_patterns("*.egg-info"))
    if not (checkout / "src" / "triptych" / "conf").exists():
        (checkout / "src" / "triptych" / "conf").symlink_to("../../conf")
    (checkout / ".venv").symlink_to(sys.prefix)
    sizes = [*tiny.TINY, "trainer.accelerator=cpu", "trainer.max_steps=600", "trainer.val_check_interval=1000",
             "callbacks.checkpoints.every_n_steps=20"]  # fmt: skip
    environment = {**os.environ, **cluster.environment, "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"}
    terminal = subprocess.Popen(
        ["bash", "-e"], cwd=checkout, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert terminal.stdin is not None
    assert terminal.stdout is not None

    def say(line: str) -> str:
        """Types a line, and returns what the terminal shows until it has ended."""
        terminal.stdin.write(f"{line}\necho '>>>'\n")
        terminal.stdin.flush()
        shown = ""
        while (answer := terminal.stdout.readline()) != ">>>\n":
            assert answer, f"{line}: {shown}"
            shown += answer
        return shown

    job, lists = "", []
    try:
        say("source .venv/bin/activate")
        for line in rest:
            if line.startswith("scancel"):
                checkpoints = checkout / "outputs" / "slurm" / job / "1" / "checkpoints"
                wait_until(lambda folder=checkpoints: any(folder.glob("step-*.ckpt")), 60, "a checkpoint")
            if line.startswith("triptych compare"):
                for number in "12":
                    shown = ended(cluster, f"{job}_{number}")
                    assert shown["JobState"] == "COMPLETED", (checkout / f"slurm-{job}_{number}.out").read_text()
                    assert shown["Restarts"] == str(int(number == "1"))
            answer = say(line.replace("array.sbatch sweep.txt", " ".join(["array.sbatch sweep.txt", *sizes])))
            if line.startswith("job="):
                job = say('echo "$job"').strip()
            if line == "squeue --me":
                lists.append(answer)
        assert all(f"{job}_" in answer for answer in lists)
        content = json.loads((checkout / "report.comparison.json").read_text())
        assert content
    finally:
        terminal.stdin.close()
        terminal.wait()
        if job:
            cluster.command("scancel", job)
