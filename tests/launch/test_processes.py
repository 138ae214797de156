"""The parent of several ranks: statuses, signals, output. The ranks are small scripts."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from clock import check_within, wait_until
from command_line import composed
from triptych.config import ConfigError
from triptych.launch.processes import RankInfo, detect_rank, run_processes, tasks_per_node
from triptych.launch.signals import STOPS
from triptych.training.strategies import check_place

PRELUDE = """
import os, signal, sys, time
rank = int(os.environ["RANK"])
def handle(number, status=None):
    def handler(*_):
        print("got", number, flush=True)
        if status is not None:
            sys.exit(status)
    signal.signal(number, handler)
"""


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in STOPS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def run(script: str, folder: Path, count: int = 2) -> int:
    return run_processes([sys.executable, "-c", PRELUDE + script], count, folder)


def wait_for_end(pids: list[int], seconds: float) -> None:
    wait_until(lambda: not any(map(is_alive, pids)), seconds, f"end of {pids}")


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("given", [None, "3"])
def test_ranks_share_the_cpus(
    given: str | None, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the user says how many threads each has."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    usable = len(os.sched_getaffinity(0))
    assert run("print(os.environ['OMP_NUM_THREADS'])", tmp_path, count=2) == 0
    assert capfd.readouterr().out.strip() == (given or str(max(1, usable // 2)))


def test_each_rank_knows_its_place(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = "print(*(os.environ[name] for name in ('RANK', 'LOCAL_RANK', 'NODE_RANK', 'WORLD_SIZE', 'MASTER_ADDR')))"
    assert run(script, tmp_path, count=3) == 0
    assert capfd.readouterr().out == "0 0 0 3 127.0.0.1\n"  # rank 0 alone speaks
    assert [(tmp_path / f"rank-{rank}.log").read_text() for rank in (1, 2)] == [
        "1 1 0 3 127.0.0.1\n",
        "2 2 0 3 127.0.0.1\n",
    ]


@pytest.mark.parametrize(
    ("script", "status"),
    [
        ("sys.exit(0)", 0),
        ("sys.exit(3 if rank else 0)", 3),
        ("sys.exit(0 if rank else 3)", 3),
        ("sys.exit(143)", 143),
        ("sys.exit(130)", 130),
        ("time.sleep(0.3 * rank); sys.exit(143)", 143),  # they stop in order, one after the other
        ("time.sleep(0.3 * rank); sys.exit(1 if rank else 143)", 1),  # one could not stop in order
        ("os.kill(os.getpid(), 9) if rank else time.sleep(60)", 137),
        ("time.sleep(60) if rank else os.kill(os.getpid(), 9)", 137),
        ("os.kill(os.getpid(), 15) if rank else time.sleep(60)", 143),
    ],
)
def test_the_status_is_that_of_the_first_failure(script: str, status: int, tmp_path: Path) -> None:
    started = time.monotonic()
    assert run(script, tmp_path) == status
    check_within(5, time.monotonic() - started)


def test_the_output_of_the_rank_that_failed_is_shown(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("sys.exit('no such thing') if rank else time.sleep(60)", tmp_path) == 1
    assert capfd.readouterr().err.splitlines() == [
        "no such thing",
        f"error: rank 1 of 2 failed first, with exit status 1; see {tmp_path}/rank-1.log",
    ]


def test_what_every_rank_says_is_shown_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("time.sleep(0.3 * (1 - rank)); sys.exit('a mistake')", tmp_path) == 1
    assert capfd.readouterr().err.count("a mistake") == 1


def test_one_that_hangs_or_does_not_want_to_end_is_killed(tmp_path: Path) -> None:
    script = """
if rank:
    sys.exit(5)
handle(signal.SIGTERM)
child = os.fork()  # as a loader's worker
print(os.getpid(), file=open(f"{sys.argv[1]}/{'child' if child == 0 else 'rank'}", "w"), flush=True)
time.sleep(60)
time.sleep(60)
"""
    started = time.monotonic()
    command = [sys.executable, "-c", PRELUDE + script, str(tmp_path)]
    assert run_processes(command, 2, tmp_path) == 5
    check_within(8, time.monotonic() - started)
    wait_for_end([int((tmp_path / name).read_text()) for name in ("child", "rank")], seconds=2)


@pytest.mark.parametrize("number", STOPS)
def test_signals_reach_every_rank_once(number: signal.Signals, tmp_path: Path) -> None:
    script = f"""
handle({number.value})
open(f"{tmp_path}/ready-{{rank}}", "w")
while not all(os.path.exists(f"{tmp_path}/ready-{{r}}") for r in (0, 1, 2)):
    time.sleep(0.05)
if rank == 0:
    os.kill(os.getppid(), {number.value})
for _ in range(10):
    time.sleep(0.1)
"""
    assert run(script, tmp_path, count=3) == 0
    assert [(tmp_path / f"rank-{rank}.log").read_text() for rank in (1, 2)] == [f"got {number.value}\n"] * 2


@pytest.mark.skipif(sys.platform != "linux", reason="uses a signal that only Linux sends")
def test_no_rank_outlives_a_killed_parent(tmp_path: Path) -> None:
    script = f"open('{tmp_path}/' + os.environ['RANK'], 'w').write(str(os.getpid())); time.sleep(60)"
    parent = os.fork()
    if parent == 0:
        run("import time\n" + script, tmp_path)
        os._exit(0)
    files = [tmp_path / str(rank) for rank in (0, 1)]
    wait_until(lambda: all(file.exists() and file.read_text() for file in files), 20, "both ranks")
    pids = [int(file.read_text()) for file in files]
    assert all(map(is_alive, pids))
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    wait_for_end(pids, seconds=2)


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({}, RankInfo(None, 0, 1)),
        ({"RANK": "1", "WORLD_SIZE": "2"}, RankInfo(None, 0, 1)),  # set by some containers
        ({"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}, RankInfo("parent", 1, 2)),
        ({"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "x"}, RankInfo("torchrun", 3, 4)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, RankInfo(None, 0, 1)),  # a batch script: no step yet
        ({"SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1"}, RankInfo(None, 0, 1)),  # a shell
        ({"SLURM_PROCID": "3", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4"}, RankInfo("srun", 3, 4)),
    ],
)
def test_who_has_started_us(environment: dict[str, str], place: RankInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("SLURM_"):
            monkeypatch.delenv(name)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert detect_rank() == place


ALONE, SRUN, TORCHRUN = RankInfo(None, 0, 1), RankInfo("srun", 0, 4), RankInfo("torchrun", 0, 4)
STARTED = {
    **{"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"},
    **{"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_NTASKS": "4"},
    "SLURM_STEP_TASKS_PER_NODE": "4",
}


@pytest.mark.parametrize(
    ("place", "overrides", "answer"),
    [
        (ALONE, [], 1),
        (ALONE, ["trainer.devices=2"], 2),
        (ALONE, ["trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=2"], 2),
        (ALONE, ["trainer.devices=2", "run_dir=${now:%S}"], 2),
        (TORCHRUN, ["trainer.devices=2", "trainer.num_nodes=2"], 4),
        (TORCHRUN, ["trainer.devices=4"], "trainer.devices=4 .* torchrun started 2 per node"),
        (TORCHRUN, ["trainer.num_nodes=4"], "trainer.devices=1 .* torchrun started 2 per node"),
        (TORCHRUN, ["trainer.devices=4", "trainer.num_nodes=2"], "torchrun started 4 processes"),
        (SRUN, ["trainer.devices=4"], 4),
        (SRUN, ["trainer.devices=2", "trainer.num_nodes=2"], "trainer.devices=2 .* srun started 4 per node"),
        (ALONE, ["trainer.devices=3"], "batch.global_size=128 .* 3 processes; expected a multiple of 3"),
        (ALONE, ["trainer.devices=0"], "trainer.devices=0"),
        (ALONE, ["trainer=ddp_cpu"], 2),
        (ALONE, ["trainer=fsdp", "trainer.devices=2"], 2),
        (ALONE, ["trainer.devices=auto"], 1),
        *(
            (ALONE, [f"trainer.devices={value}"], "trainer.devices=")
            for value in ("'1,2'", "[1,2]", "-1", "two", "1.5")
        ),
        (ALONE, ["trainer.num_nodes=0"], "num_nodes"),
        *(
            (ALONE, ["trainer.devices=2", f"trainer.strategy={name}"], f"trainer.strategy={name}: expected auto, ddp")
            for name in ("ddp_spawn", "ddp_fork", "fsdp", "single_device", "deepspeed")
        ),
        (ALONE, ["trainer=fsdp", "callbacks=[default,ema]"], "callbacks.ema: FSDP"),
        (ALONE, ["trainer=fsdp", "trainer.precision=64-true"], "trainer.precision=64-true: FSDP"),
        (ALONE, ["trainer=fsdp", "trainer.precision=16-mixed"], "trainer.precision=16-mixed: FSDP"),
        (ALONE, ["trainer.num_nodes=2"], "trainer.num_nodes=2: .* srun or torchrun"),
        (ALONE, ["trainer=ddp", "trainer.strategy.timeout=0"], "trainer.strategy.timeout=0"),
        (ALONE, ["trainer=ddp", "trainer.strategy.timeout=ten"], "trainer.strategy.timeout=ten: expected a number"),
        (SRUN, ["trainer.devices=2"], "trainer.devices=2 .* srun started 4 processes"),
        (SRUN, ["trainer.devices=4", "run_dir=${now:%S}"], "run_dir: .* timestamp"),
    ],
)
def test_how_many_train_together(
    place: RankInfo, overrides: list[str], answer: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in STARTED.items() if place.starter else ():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLURM_NTASKS_PER_NODE", "4")
    fixed = ["trainer.accelerator=cpu", "trainer.default_root_dir=.", "run_dir=run"]
    config = composed(*fixed, *overrides)
    if isinstance(answer, int):
        assert check_place(config, place) == answer
    else:
        with pytest.raises(ConfigError, match=answer):
            check_place(config, place)


@pytest.mark.parametrize(
    ("counts", "expected"), [("2", {2}), ("4(x2)", {4}), ("2(x3),1", {1, 2}), ("1,12,3(x2)", {1, 3, 12})]
)
def test_how_many_srun_has_started_on_a_machine(
    counts: str, expected: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", counts)
    assert tasks_per_node(SRUN) == expected
    assert tasks_per_node(ALONE) == set()


@pytest.mark.parametrize(
    "environment", [{"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}, {"SLURM_STEP_NUM_TASKS": "2"}]
)
def test_a_sweep_that_several_processes_would_run_is_rejected(environment: dict[str, str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "triptych", "train", "-m", "trainer=ddp_cpu", "seed=1,2", "run_dir=sweep"]
    finished = subprocess.run(command, cwd=tmp_path, env={**os.environ, **environment}, capture_output=True, text=True)
    assert finished.returncode == 1
    assert finished.stderr.startswith("error: -m: srun or torchrun started several processes")
    assert not (tmp_path / "sweep").exists()
