"""W&B out of reach, and W&B that is resumed. Its cloud cannot be had here: a small server of our own answers."""

import csv
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest

import tiny
from cases import by_day
from clock import check_within
from commands import Command, finish
from wandb_server import API_KEY, Server, online

pytestmark = [pytest.mark.faults, pytest.mark.fault(14)]

TINY = [
    *tiny.TINY, "experiment=dates/translation", "data.num_validation=20", "data.num_test=20", "data.languages=[en]",
    "trainer.max_steps=120", "trainer.val_check_interval=40", "trainer.log_every_n_steps=2", "task.max_new_tokens=10",
]  # fmt: skip
STOCK = [
    "logger.wandb._target_=lightning.pytorch.loggers.WandbLogger",
    "~logger.wandb.init_timeout",
    "~logger.wandb.finish_timeout",
]


class Run:
    """``triptych train`` in a process, live unless told otherwise."""

    def __init__(self, folder: Path, url: str, *overrides: str, **environment: str) -> None:
        folder.mkdir()
        self.folder, self.directory = folder, folder / "run"
        self.status, self.ended = -1, 0.0
        output = folder / "output.txt"
        output.touch()
        words = ["train", *TINY, "logger.wandb.offline=false", *overrides, "run_dir=run"]
        files = (Path(os.devnull), output, output)
        self._command = Command(*words, cwd=folder, environment={**online(url), **environment}, files=files)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self.status = self._command.wait(400)
        self.ended = time.monotonic()

    def wait(self) -> None:
        self._thread.join()

    @property
    def output(self) -> str:
        return (self.folder / "output.txt").read_text()

    def rows(self) -> list[dict[str, str]]:
        """metrics.csv, without what depends on the clock."""
        with open(self.directory / "metrics.csv") as file:
            rows = csv.DictReader(file)
            return [{k: v for k, v in row.items() if k not in ("train/tokens_per_second", "elapsed_s")} for row in rows]

    def wandb_losses(self, kind: str) -> list[float]:
        """The training losses in the .wandb file."""
        (file,) = self.directory.glob(f"wandb/{kind}-2*/*.wandb")
        command = [str(Path(sys.executable).parent / "wandb"), "leet", "inspect", "--json", str(file)]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        records = [json.loads(line) for line in lines]
        items = [record["history"]["item"] for record in records if record["type"] == "history"]
        return [item["train/loss"] for item in items if "train/loss" in item]

    def seconds_until(self, message: str) -> float:
        """From the last line of the log before W&B starts to the one with a message."""
        times = {}
        for line in (self.directory / "train.log").read_text().splitlines():
            if match := re.match(r"(\S+ \S+) \w+ \w+: (.*)", line):
                times[match[2]] = datetime.strptime(match[1], "%Y-%m-%d %H:%M:%S,%f")
        begin = next(moment for text, moment in times.items() if "run directory" in text)
        return (next(moment for text, moment in times.items() if message in text) - begin).total_seconds()


@dataclass
class Trial:
    runs: dict[str, Run]
    servers: dict[str, Server]
    lost: dict[str, float]  # when


BY_DAY = ("well", "cut", "closed")


@contextmanager
def started(folder: Path, names: Collection[str]) -> Iterator[Trial]:
    """All these runs at once, since most of them wait most of the time."""
    servers = {name: Server(hangs=name == "hanging") for name in names if name in ("well", "cut", "hanging")}
    with socket.socket() as closed, socket.socket() as hole:
        closed.bind(("127.0.0.1", 0))  # but does not listen
        hole.bind(("127.0.0.1", 0))
        hole.listen(100)  # but does not accept
        nobody, silence = (f"http://127.0.0.1:{end.getsockname()[1]}" for end in (closed, hole))
        urls = {"closed": nobody, "hole": silence, "stock": nobody} | {name: s.url for name, s in servers.items()}
        options = {
            "well": ["logger.wandb.finish_timeout=240"],  # on a busy machine too, W&B that answers gets everything
            "stock": STOCK,
        }
        variables = {"stock": {"WANDB_INIT_TIMEOUT": "3"}}
        runs = {
            name: Run(folder / name, urls[name], *options.get(name, []), **variables.get(name, {})) for name in names
        }
        waiting, lost, begin = {"cut", "hanging"} & runs.keys(), dict[str, float](), time.monotonic()
        while waiting and time.monotonic() < begin + 200:
            for name in [*waiting]:
                if (runs[name].directory / "checkpoints").exists():  # at step 40
                    servers[name].lost.set()
                    lost[name] = time.monotonic()
                    waiting.remove(name)
            time.sleep(0.02)
        for run in runs.values():
            run.wait()
    yield Trial(runs, servers, lost)
    for server in servers.values():
        server.close()


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trial]:
    """The runs of the day."""
    with started(tmp_path_factory.mktemp("runs"), BY_DAY) as trial:
        yield trial


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trial]:
    """The others."""
    with started(tmp_path_factory.mktemp("others"), ("hanging", "hole", "stock")) as trial:
        yield trial


def trial_with(name: str, request: pytest.FixtureRequest) -> Trial:
    trial: Trial = request.getfixturevalue("trial" if name in BY_DAY else "night")
    return trial


def test_a_live_run(trial: Trial) -> None:
    run = trial.runs["well"]
    assert run.status == 0, run.output
    (identity,) = trial.servers["well"].runs
    assert identity == (run.directory / "wandb" / "id").read_text()
    rows = trial.servers["well"].runs[identity]
    losses = [row["train/loss"] for row in rows if "train/loss" in row]
    assert losses == [float(row["train/loss"]) for row in run.rows() if row["train/loss"]]
    assert len(losses) == 60
    assert "W&B" not in run.output


@pytest.mark.parametrize("name", by_day(["closed", "hole"], BY_DAY[2:]))
def test_out_of_reach_at_the_start(trial: Trial, name: str, request: pytest.FixtureRequest) -> None:
    run = trial_with(name, request).runs[name]
    assert run.status == 0, run.output
    assert run.output.count("continues offline") == 1
    check_within(15, run.seconds_until("continues offline"))
    assert run.rows() == trial.runs["well"].rows()
    assert run.wandb_losses("offline-run") == trial.runs["well"].wandb_losses("run")


@pytest.mark.parametrize("name", by_day(["cut", "hanging"], BY_DAY[1:2]))
def test_lost_in_the_middle(trial: Trial, name: str, request: pytest.FixtureRequest) -> None:
    own = trial_with(name, request)
    run = own.runs[name]
    assert run.status == 0, run.output
    assert list(own.servers[name].runs) == [(run.directory / "wandb" / "id").read_text()]
    check_within(60, run.ended - own.lost[name])
    assert run.rows() == trial.runs["well"].rows()
    assert run.wandb_losses("run") == trial.runs["well"].wandb_losses("run")
    assert run.output.count("wandb sync") == 1


@pytest.mark.nightly
def test_without_the_fallback_the_training_dies(night: Trial) -> None:
    assert night.runs["stock"].status != 0
    assert "CommError" in night.runs["stock"].output


@pytest.mark.parametrize("runs", by_day(["trial", "night"], ["trial"]))
def test_the_key_is_in_no_file(runs: str, request: pytest.FixtureRequest) -> None:
    for run in request.getfixturevalue(runs).runs.values():
        found = [file for file in run.folder.rglob("*") if file.is_file() and API_KEY.encode() in file.read_bytes()]
        assert not found


RESUMING = """
import sys
from triptych.training import WandbLogger

for step in range(4):
    logger = WandbLogger(project="triptych", name="a", save_dir=".", offline=sys.argv[1] == "offline")
    if step == 3:
        logger.start_afresh()
    logger.log_metrics({"x": step}, step=step)
    print(logger.experiment.id, logger.experiment.resumed)
    logger.finish(failed=False)
"""


@pytest.mark.parametrize("mode", ["online", "offline"])
def test_a_directory_continues_its_run(tmp_path: Path, mode: str) -> None:
    server = Server()
    finished = finish(mode, cwd=tmp_path, environment=online(server.url), program=RESUMING)
    server.close()
    assert finished.returncode == 0, finished.stderr
    lines = [line.split() for line in finished.stdout.splitlines()]
    identities = [identity for identity, _ in lines]
    assert len(set(identities[:3])) == 1
    assert identities[3] != identities[0]
    if mode == "online":
        assert [resumed for _, resumed in lines] == ["False", "True", "True", "False"]
        rows = {name: [(row["_step"], row["x"]) for row in rows] for name, rows in server.runs.items()}
        assert rows == {identities[0]: [(0, 0), (1, 1), (2, 2)], identities[3]: [(0, 3)]}
    else:
        assert {file.stem for file in tmp_path.glob("wandb/offline-run-*/*.wandb")} == {f"run-{identities[3]}"}
