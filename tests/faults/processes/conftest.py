"""What the tests of faults share: trainings as real processes of which none can get lost, and a real scheduler."""

import getpass
import os
import random
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Generator, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import tiny
from clock import bound, wait_until
from commands import Command

if TYPE_CHECKING:
    from torch import Tensor

TINY = [
    *tiny.TINY, "experiment=dates/classification", "model=decoder_only", "trainer.accelerator=cpu",
    "trainer.max_steps=6", "trainer.val_check_interval=3", "trainer.log_every_n_steps=2", "logger=csv",
]  # fmt: skip
RECORDING = ["+callbacks.recording._target_=recording_callback.RecordingCallback", "+callbacks.recording.folder=."]


class Training:
    """``triptych train`` with tiny sizes as a real process, alone or under srun. A mark in the environment and the
    file of the standard error find every process that it starts, whatever its parent, group or session.

    Attributes:
        folder: the working directory; recording_callback.py writes ``steps-RANK`` and ``weights-RANK.pt`` there.
        run_dir: the run directory, the same for all that are started in this folder.
        process: what was started last.
        stderr: its standard error.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.run_dir, self.stderr = folder, folder / "run", folder / "stderr"
        self.mark = f"TRIPTYCH_TEST={uuid.uuid4().hex}"

    def start(self, *overrides: str, before: tuple[str, ...] = (), environment: dict[str, str] | None = None) -> None:
        """Starts it.

        Args:
            overrides: after the tiny sizes, run_dir and the recording.
            before: the command that starts it, srun for instance.
            environment: more variables.
        """
        environment = {**self.environment(), **(environment or {})}
        command = self.command(*overrides, before=before)
        self.process: Command | subprocess.Popen[bytes]
        if not before:
            self.stderr.touch()
            files = (Path(os.devnull), Path(os.devnull), self.stderr)
            self.process = Command(*command[3:], cwd=self.folder, environment=environment, files=files)
            return
        with open(self.stderr, "wb") as stderr:
            self.process = subprocess.Popen(
                command, cwd=self.folder, env=environment, stdout=subprocess.DEVNULL, stderr=stderr
            )

    def command(self, *overrides: str, before: tuple[str, ...] = ()) -> list[str]:
        """The words of the command that ``start`` starts."""
        from triptych.config.overrides import write_override  # no process that only hands out tests needs it

        own = [*TINY, *RECORDING, write_override("run_dir", str(self.run_dir))]
        return [*before, sys.executable, "-m", "triptych", "train", *own, *overrides]

    def environment(self) -> dict[str, str]:
        """With the mark, and with what it takes to find the recording."""
        name, _, value = self.mark.partition("=")
        path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(Path(__file__).parents[2])]))
        variables = {"PYTHONPATH": path, "TRIPTYCH_ALLOW": "recording_callback.", "OMP_NUM_THREADS": "1", name: value}
        return {**os.environ, **variables}

    def submit(self, cluster: "Cluster", *overrides: str, before: tuple[str, ...], options: tuple[str, ...]) -> str:
        """Puts it into the queue of a scheduler, and returns the number of the job. What it says goes to ``stderr``."""
        script = self.folder / "job.sh"
        script.write_text("#!/bin/sh\n" + shlex.join(self.command(*overrides, before=before)) + "\n")
        where = (f"--chdir={self.folder}", f"--output={self.stderr}", "--open-mode=append", "--parsable")
        return cluster.command("sbatch", *options, *where, str(script), environment=self.environment())

    def submit_template(
        self, cluster: "Cluster", name: str, *overrides: str, first: tuple[str, ...] = (), options: tuple[str, ...] = ()
    ) -> str:
        """Submits a file of slurm/ as it is, from a folder with a .venv. The run goes where the file says.

        Args:
            cluster: the scheduler.
            name: of the file.
            overrides: after the tiny sizes and the recording.
            first: before them.
            options: of sbatch.

        Returns:
            The number of the job.
        """
        if not (self.folder / ".venv").exists():
            (self.folder / ".venv").symlink_to(sys.prefix)
        template = str(Path(__file__).parents[3] / "slurm" / f"{name}.sbatch")
        sbatch = ("sbatch", f"--chdir={self.folder}", "--parsable", *options, template)
        return cluster.command(*sbatch, *first, *TINY, *RECORDING, *overrides, environment=self.environment())

    def wait(self, seconds: float = 120) -> int:
        """The exit status."""
        wait_until(lambda: self.process.poll() is not None, seconds, self.stderr.read_text)
        return self.process.wait(0)

    def steps(self, rank: int = 0) -> int:
        """How many steps a rank has made; 0: it has not begun."""
        file = self.folder / f"steps-{rank}"
        return int(file.read_text()) if file.exists() else 0

    def wait_for_steps(self, count: int, ranks: int = 1, seconds: float = 120) -> None:
        """Waits until each of so many ranks has made so many steps."""

        def is_there() -> bool:
            assert self.process.poll() is None, self.stderr.read_text()
            return all(self.steps(rank) >= count for rank in range(ranks))

        wait_until(is_there, seconds, f"step {count}")

    def weights(self, rank: int = 0) -> "dict[str, Tensor]":
        """What a rank had at the end of its training."""
        import torch  # as above

        weights: dict[str, Tensor] = torch.load(self.folder / f"weights-{rank}.pt", weights_only=True)
        return weights

    def members(self) -> list[int]:
        """Every process that this started and that has not ended, itself included."""
        return [pid for pid in processes() if self.mark in environment_of(pid) or self._has_log(pid)]

    def _has_log(self, pid: int) -> bool:
        """Whether the standard error of a process goes to the folder: a forked one shows its parent's environment."""
        try:
            return Path(os.readlink(f"/proc/{pid}/fd/2")).is_relative_to(self.folder)
        except OSError:  # it has ended
            return False

    def rank(self, number: int) -> int:
        """The process of a rank that has made a step."""
        pid = int((self.folder / f"pid-{number}").read_text())
        assert pid in self.members()
        return pid

    def wait_until_gone(self, seconds: float) -> float:
        """Waits until nothing is left of it, not even an orphan, and says how many seconds that took."""
        return wait_until(
            lambda: self.process.poll() is not None and not self.members(),
            seconds,
            lambda: f"all gone (status {self.process.poll()}): {self.stderr.read_text()}",
        )

    def kill(self) -> None:
        """Ends whatever is left."""
        for pid in self.members():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def processes() -> list[int]:
    """All that run, or are stopped; the dead that nobody has asked for are not among them."""
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [pid for pid in pids if read(pid, "stat").rpartition(b")")[2].split()[:1] not in ([], [b"Z"], [b"X"])]


def environment_of(pid: int) -> list[str]:
    """NAME=VALUE, as the process was started with."""
    return read(pid, "environ").decode(errors="replace").split("\0")


def read(pid: int, name: str) -> bytes:
    """A file of /proc; empty if the process has ended."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


@pytest.fixture(scope="session")
def new_training() -> type[Training]:
    """Makes a training in a folder."""
    return Training


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    """A training that is still to be started; after the test nothing of it is left."""
    training = Training(tmp_path)
    yield training
    training.kill()


SLURM_CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.sock,cred_expire={expire}
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmctldPort={port}
FirstJobId={port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
PlugStackConfig={folder}/plugstack.conf
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,sched_min_interval=0,batch_sched_delay=0,bf_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
ReturnToService=2
MailProg=/bin/true
KillWait=15
JobRequeue=0
MinJobAge=3600
GresTypes=gpu
NodeName=DEFAULT CPUs=16 RealMemory=8000 Gres=gpu:4 State=UNKNOWN
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={port_1}
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={port_2}
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP PriorityTier=10 GraceTime=20
PartitionName=high Nodes=n1,n2 MaxTime=INFINITE State=UP PriorityTier=20 PreemptMode=OFF
"""


class Cluster:
    """Slurm with two nodes, n1 and n2, on this machine: a scheduler of its own in a folder of its own.

    Each node counts four GPUs, which are not there. The partition ``high`` preempts jobs of ``main``, the default: they
    get the signal by which they want to be warned, or SIGTERM, and 20 s later they are requeued, if they asked for that
    (``--requeue``). A requeued job starts again after some six seconds, in CI sixteen. ``--signal=X@N`` comes up to a
    minute early; ``scancel --signal=USR1 JOB`` comes at once. A task of an array is addressed as ARRAY_TASK.

    Attributes:
        environment: what a client needs, and what ranks need to find each other here.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))  # the path of a socket has to be short
        (self.folder / "state").mkdir()
        (self.folder / "plugstack.conf").touch()
        (self.folder / "munge.key").write_bytes(random.randbytes(128))
        (self.folder / "munge.key").chmod(0o400)
        port = free_ports(3)
        conf = SLURM_CONF.format(
            host=socket.gethostname().partition(".")[0],
            user=getpass.getuser(),
            folder=self.folder,
            expire=int(bound(5)),  # a task whose launch takes longer has failed
            port=port,
            port_1=port + 1,
            port_2=port + 2,
        )
        (self.folder / "slurm.conf").write_text(conf)
        for number in range(4):  # GPUs to count, which are not there
            (self.folder / f"gpu{number}").touch()
        (self.folder / "gres.conf").write_text(f"Name=gpu File={self.folder}/gpu[0-3]\n")
        self.environment = {"SLURM_CONF": str(self.folder / "slurm.conf"), "MASTER_ADDR": "127.0.0.1"}

    def start(self) -> None:
        """Starts the daemons and waits for the nodes."""
        files = {"key-file": "key", "socket": "sock", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        munge = [f"--{option}={self.folder}/munge.{suffix}" for option, suffix in files.items()]
        self.command("munged", "--force", *munge)
        self.command("slurmctld", "-c")
        for node in ("n1", "n2"):
            self.command("slurmd", "-N", node)
        wait_until(lambda: self.command("sinfo", "-h", "-t", "idle", "-o", "%D") == "2", 30, "two idle nodes")

    def command(self, *command: str, environment: Mapping[str, str] = os.environ) -> str:
        """What a command of Slurm prints: srun, sbatch, scancel, scontrol, squeue, ..."""
        own = {**environment, **self.environment}
        finished = subprocess.run(command, env=own, capture_output=True, text=True, timeout=bound(60), check=False)
        assert finished.returncode == 0, f"{command}: {finished.stdout}{finished.stderr}"
        return finished.stdout.strip()

    def show(self, job: str) -> dict[str, str]:
        """What Slurm knows of a job: JobState, Restarts, ..."""
        return dict(re.findall(r"(\w+)=(\S*)", self.command("scontrol", "show", "job", "--oneliner", job)))

    def lose(self, node: str) -> None:
        """A node goes down, and its jobs with it."""
        self.command("scontrol", "update", f"nodename={node}", "state=down", "reason=test")

    def bring_back(self, node: str) -> None:
        """A node that was lost takes jobs again. Mostly it comes back by itself at once, since its daemon answers; then
        the administrator's command is refused."""
        resume = ("scontrol", "update", f"nodename={node}", "state=resume")
        subprocess.run(resume, env={**os.environ, **self.environment}, capture_output=True, check=False)
        assert "down" not in self.command("sinfo", "--noheader", "--Node", f"--nodes={node}", "--format=%T")

    def tell(self) -> str:
        """Its nodes, its queue, and the end of its log."""
        log = (self.folder / "slurmctld.log").read_text().splitlines()
        return "\n".join([self.command("sinfo", "--long", "--Node"), self.command("squeue", "--long"), *log[-20:]])

    def stop(self) -> None:
        """Cancels all jobs and ends the daemons."""
        try:
            self.command("scancel", "--user", getpass.getuser())
            wait_until(lambda: not self.command("squeue", "-h"), 20, "no jobs")
        finally:
            pids = [int(file.read_text()) for file in self.folder.glob("*.pid")]
            for number in (signal.SIGTERM, signal.SIGKILL):
                for pid in set(pids) & set(processes()):
                    os.kill(pid, number)
                deadline = time.monotonic() + 5
                while set(pids) & set(processes()) and time.monotonic() < deadline:
                    time.sleep(0.05)
            shutil.rmtree(self.folder)


def free_ports(count: int) -> int:
    """The first of some free ports in a row. Jobs are numbered from it, and Lightning takes its port from the last four
    digits of the job's number; hence the distance between those of two clusters."""
    while True:
        first = random.randrange(25_000, 32_000, 100)
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Function) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What the scheduler saw of a test that failed."""
    report = yield
    if report.failed and isinstance(cluster := item.funcargs.get("cluster"), Cluster):
        report.sections.append(("Slurm", cluster.tell()))
    return report


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A scheduler that runs."""
    for program in ("munged", "slurmctld", "slurmd", "srun"):
        if shutil.which(program) is None:
            pytest.skip(f"needs Slurm and munge; there is no {program} (.ci/run installs them)")
    cluster = Cluster()
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
