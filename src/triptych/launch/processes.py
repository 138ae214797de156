"""Training in several processes: how this process was started, and the parent that starts one process per device."""
# Takes a DictConfig: the command's own configuration, composed by Hydra.

import ctypes
import logging
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import lightning_utilities.core.rank_zero
import torchmetrics.utilities.prints
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from omegaconf import DictConfig

from triptych.config import ConfigError, as_dict
from triptych.launch.environment import cpus
from triptych.launch.forks import Child, fork, run_triptych
from triptych.launch.signals import STOPS, record_signals
from triptych.storage.run_directory import RunDirectory

AGREED = tuple(128 + number for number in STOPS)
"""Exit statuses of an orderly stop after a signal."""
AGREED_S = 60.0
"""Seconds for the other ranks to stop after one has stopped in order; they may have to write a checkpoint."""
SPEAK_S = 1.5
"""Seconds for the other ranks to report the same error as the first; none after a kill."""
TERMINATE_S = 2.0
"""Seconds from SIGTERM to SIGKILL."""
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None

RankProcess = subprocess.Popen[bytes] | Child


@dataclass(frozen=True, slots=True)
class RankInfo:
    """The rank of this process among those that train together.

    Attributes:
        starter: the starter of the processes: srun, torchrun or parent; None: this is the only process so far.
        rank: rank of this process.
        world_size: number of processes.
    """

    starter: str | None
    rank: int
    world_size: int

    def environment(self) -> ClusterEnvironment:
        """The same for Lightning. Its own detection fails for a SLURM job named bash or without srun, and it would
        handle the scheduler's signals itself."""
        try:
            if self.starter == "srun":
                return SLURMEnvironment(auto_requeue=False)
        except RuntimeError as error:
            raise ConfigError(str(error)) from None
        return TorchElasticEnvironment() if self.starter == "torchrun" else LightningEnvironment()


def detect_rank() -> RankInfo:
    """Reads the environment. Call it before training: Lightning removes WORLD_SIZE when it ends."""
    env = os.environ
    if "SLURM_STEP_ID" in env and int(env.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        return RankInfo("srun", int(env["SLURM_PROCID"]), int(env["SLURM_STEP_NUM_TASKS"]))
    if "LOCAL_RANK" in env and "RANK" in env and "WORLD_SIZE" in env:
        starter = "torchrun" if TorchElasticEnvironment.detect() else "parent"
        return RankInfo(starter, int(env["RANK"]), int(env["WORLD_SIZE"]))
    return RankInfo(None, 0, 1)


def tasks_per_node(place: RankInfo) -> set[int]:
    """The number of processes that srun or torchrun started per node; several numbers if nodes differ."""
    if place.starter == "torchrun":
        return {int(os.environ["LOCAL_WORLD_SIZE"])}
    counts = os.environ.get("SLURM_STEP_TASKS_PER_NODE", "") if place.starter == "srun" else ""
    return {int(count.partition("(")[0]) for count in counts.split(",") if count}  # such as 2(x3),1


def depends_on_clock(config: DictConfig) -> bool:
    """Whether run_dir contains a timestamp."""
    return "${now:" in as_dict(config, resolve=False)["run_dir"]


def silence() -> None:
    """Makes this process log only errors, and not to train.log; rank 0 logs the rest."""
    root = logging.getLogger()
    for handler in root.handlers[:]:
        if isinstance(handler, logging.FileHandler):
            root.removeHandler(handler)
    root.setLevel(logging.ERROR)


def run_processes(command: Sequence[str], count: int, run_dir: Path, *, forks: bool = False) -> int:
    """Runs a command once per device of this node, as ranks 0 to ``count`` - 1, and waits for all of them.

    Rank 0 prints to the terminal; the others print to ``rank-N.log`` in the run directory. The signals ``STOPS`` are
    forwarded to all ranks. If one rank fails, or this process is killed, the others are terminated.

    Args:
        command: a program and its arguments; only the arguments of ``triptych`` if ``forks`` is set.
        count: number of ranks.
        run_dir: run directory.
        forks: whether to fork the ranks from this process, which has imported all they need, instead of starting a
            program.

    Returns:
        The exit status: 0, that of the first failure (128 + n after signal n), or 128 + n after an orderly stop by
        signal n.
    """
    port = LightningEnvironment().main_port  # MASTER_PORT, or a free port
    shared = {"WORLD_SIZE": str(count), "NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    shared["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", str(max(1, cpus() // count)))  # CPUs per rank
    files = RunDirectory(run_dir)
    processes: list[RankProcess] = []
    with record_signals(*STOPS) as received:
        for rank in range(count):
            place = {"RANK": str(rank), "LOCAL_RANK": str(rank), **shared}
            start = _fork if forks else _start
            processes.append(start(command, place, files.rank_log(rank) if rank else None))
        ended = _wait(processes, received)
    failures = [(rank, status) for rank, status in ended if status not in (0, *AGREED)]
    if not failures:
        return max(status for _, status in ended)
    rank, status = failures[0]
    _report(rank, status, count, run_dir, is_explained=any(r == 0 and s > 0 for r, s in failures))
    return 128 - status if status < 0 else status


def _start(command: Sequence[str], place: Mapping[str, str], output: Path | None) -> subprocess.Popen[bytes]:
    """Starts a process in a new session, so that Ctrl-C reaches it only once, forwarded."""
    with open(output, "wb") if output else nullcontext() as file:
        return subprocess.Popen(
            command,
            env={**os.environ, **place},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )


def _fork(arguments: Sequence[str], place: Mapping[str, str], output: Path | None) -> Child:
    """Forks a process that runs ``triptych`` with these arguments, also in a new session."""
    parent = os.getpid()

    def run_rank() -> None:
        os.setsid()
        _die_with_parent()
        if os.getppid() != parent:  # it died before the line above
            raise SystemExit(1)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        if file is not None:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        for library in (lightning_utilities.core.rank_zero, torchmetrics.utilities.prints):
            library.rank_zero_only.rank = int(place["RANK"])  # read from the environment at import
        run_triptych(arguments, place)

    with open(output, "wb") if output else nullcontext() as file:
        return fork(run_rank)


def _die_with_parent() -> None:
    """Asks the system to kill this process when its parent dies."""
    if LIBC is not None:
        LIBC.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _wait(processes: Sequence[RankProcess], received: list[signal.Signals]) -> list[tuple[int, int]]:
    """Waits for all processes, and terminates them after a failure.

    Args:
        processes: processes by rank.
        received: signals to forward; grows while waiting.

    Returns:
        Rank and status (-n: killed by signal n) of each process, in the order in which they ended.
    """
    ended: dict[int, int] = {}
    terminate_at = kill_at = math.inf
    while len(ended) < len(processes):
        while received:
            _send(processes, received.pop(0))
        polled = [(rank, process.poll()) for rank, process in enumerate(processes) if rank not in ended]
        news = [(rank, status) for rank, status in polled if status is not None]
        for rank, status in sorted(news, key=lambda item: item[1]):  # the signal comes before its consequences
            ended[rank] = status
            if status:
                patience = AGREED_S if status in AGREED else SPEAK_S if status > 0 else 0.0
                terminate_at = min(terminate_at, time.monotonic() + patience)
        if time.monotonic() > terminate_at:
            _send(processes, signal.SIGTERM)
            terminate_at, kill_at = math.inf, min(kill_at, time.monotonic() + TERMINATE_S)
        if time.monotonic() > kill_at:
            _send(processes, signal.SIGKILL)
        time.sleep(0.1)
    if any(ended.values()):
        for process in processes:  # and the processes that they started
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return list(ended.items())


def _send(processes: Sequence[RankProcess], number: int) -> None:
    for process in processes:
        process.send_signal(number)


def _report(rank: int, status: int, count: int, run_dir: Path, *, is_explained: bool) -> None:
    """Prints which rank failed first, unless rank 0 has printed its own error."""
    if rank == 0 and status > 0:
        return
    log = RunDirectory(run_dir).rank_log(rank)
    if rank and not is_explained:
        sys.stderr.write("".join(log.read_text(errors="replace").splitlines(keepends=True)[-20:]))
    how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"failed first, with exit status {status}"
    print(f"error: rank {rank} of {count} {how}" + (f"; see {log}" if rank else ""), file=sys.stderr)
