"""The checks of the doctor: each becomes one line of its table.

Tested by tests/planning/test_doctor.py and tests/test_testing.py.
"""
# Takes a DictConfig: it checks keys and classes that any file may name.

import logging
import math
import netrc
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from omegaconf import DictConfig

from triptych.assembly.checks import check_trainer
from triptych.config import PARTS, ConfigError, RunError, build, counted, precision_of, target_of
from triptych.config.errors import messages_of
from triptych.config.paths import check_writable, existing
from triptych.launch.lock import locked
from triptych.launch.processes import RankInfo
from triptych.planning.forecast import Forecast
from triptych.planning.gpus import Device
from triptych.planning.memory import USABLE, stored_bytes
from triptych.storage.run_directory import RunDirectory
from triptych.testing import check_part, is_foreign
from triptych.training.strategies import check_place, check_split

log = logging.getLogger("triptych")

CHECKED_WIDTH = 256
"""Approximate width of all heads in the check of a part, which then takes less than a second."""

T = TypeVar("T")

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check.

    Attributes:
        name: name of the check.
        level: ok, warning or error.
        text: description; empty: nothing to report.
    """

    name: str
    level: Level
    text: str


class CheckResults(list[CheckResult]):
    """The results of all checks, in order."""

    @property
    def errors(self) -> list[CheckResult]:
        """The results that are errors."""
        return [finding for finding in self if finding.level == "error"]

    def look(
        self, name: str, check: Callable[[], T], say: Callable[[T], str | None] = str, *, worst: Level = "error"
    ) -> T | None:
        """Runs a check. An exception becomes an error, a logged warning a warning, and the result an ok.

        Args:
            say: describes the result; None: no line.

        Returns:
            The result of the check; None after an error.
        """
        result = None
        level: Level = "ok"
        with listening() as said:
            try:
                result = check()
                texts: list[str | None] = ["" if result is None else say(result)]
            except (ValueError, RunError) as error:
                texts, level = [*messages_of(error)], worst
            except OSError as error:
                texts, level = [f"{error.filename}: {error.strerror}"], worst
        self += [CheckResult(name, "warning", warning) for warning in said]
        for text in texts:
            is_known = level != "ok" and text in [finding.text for finding in self]  # one error may fail several checks
            is_warned_of = level == "ok" and any(warning.startswith(text or "") for warning in said)
            if text is not None and not is_known and not is_warned_of:
                self.append(CheckResult(name, level, text))
        return result


@contextmanager
def listening() -> Iterator[list[str]]:
    """Collects the warnings of the logger instead of printing them."""
    logger, handler, said = logging.getLogger("triptych"), logging.Handler(logging.WARNING), list[str]()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield said
    finally:
        logger.removeHandler(handler)
        logger.propagate = True


def check_devices(config: DictConfig, place: RankInfo, count: int, *, elsewhere: bool) -> str:
    """Checks that the processes can be started, that each has a device, and that a step can be split among them.

    Args:
        count: number of processes.
        elsewhere: whether the run is meant for another computer; then devices are not checked.
    """
    check_trainer(config)
    if elsewhere:
        check_split(config, count)
        if config.trainer.devices in ("auto", -1, "-1"):
            log.warning("trainer.devices=%s: this plan uses %s devices", config.trainer.devices, count)
    else:
        check_place(config, place)
    size, parts = config.batch.global_size, config.trainer.accumulate_grad_batches * count
    tokens = config.batch.max_tokens
    batches = counted(size // parts, "example") if size is not None else f"about {counted(tokens // parts, 'token')}"
    nodes = config.trainer.num_nodes
    on = f" on {nodes} nodes" if nodes > 1 else ""
    return f"{counted(count, 'process')}{on}, batches of {batches} each"


def check_allocation(config: DictConfig, count: int) -> str:
    """Checks that the current SLURM job has the nodes, tasks and GPUs for ``count`` processes."""
    env, nodes = os.environ, config.trainer.num_nodes
    job = f"job {env['SLURM_JOB_ID']}"
    given = int(env.get("SLURM_NNODES", "1"))
    if given != nodes:
        raise ConfigError(f"trainer.num_nodes={nodes}, but {job} has {given} (sbatch --nodes={nodes})")
    each = count // nodes
    tasks = env.get("SLURM_NTASKS_PER_NODE")
    if nodes > 1 and tasks is None:
        raise ConfigError(f"{job} has no number of tasks per node; expected sbatch --ntasks-per-node={each}")
    if tasks is not None and int(tasks) not in ((each,) if nodes > 1 else (1, each)):  # a single task starts the others
        raise ConfigError(
            f"trainer.devices={config.trainer.devices}, but {job} has {tasks} tasks per node; expected sbatch "
            f"--ntasks-per-node={each}"
        )
    gpus = env.get("SLURM_GPUS_ON_NODE")
    if config.trainer.accelerator != "cpu" and gpus is not None and int(gpus) < each:
        raise ConfigError(f"trainer.devices={config.trainer.devices}, but {job} has {gpus} GPUs per node")
    on_each = f"{counted(int(tasks or 1), 'task')} per node"
    return f"{job}: {counted(given, 'node')}, {on_each}, {counted(int(gpus), 'GPU') if gpus else 'no GPUs'} on this one"


def check_run_dir(run_dir: Path) -> str:
    """Checks that the run directory exists or can be created, and that no other process uses it."""
    if run_dir.is_file() or RunDirectory(run_dir).lock.exists():
        with locked(run_dir):
            pass
    check_writable("run_dir", run_dir)
    return f"{run_dir}{'' if run_dir.exists() else ', new'}"


def check_own_parts(config: DictConfig) -> list[str]:
    """Runs ``check_part`` for each stack with parts that were written outside of Triptych, at a small size.

    Returns:
        the classes that were checked.
    """
    checked = list[str]()
    for name in target_of(config, "model").stack_names:
        stack = config.model[name]
        parts = {part: build(config, f"model.{name}.{part}") for part in PARTS}
        own = [stack[part]._target_ for part in PARTS if is_foreign(parts[part])]
        if not own:
            continue
        largest = max(CHECKED_WIDTH // stack.num_heads // 8 * 8, 8)
        check_part(
            **parts,
            causal=stack.causal,
            cross_attention="cross_attention" in stack and stack.cross_attention,
            num_heads=stack.num_heads,
            head_dim=min(stack.head_dim or stack.d_model // stack.num_heads, largest),
        )
        checked += own
    return [*dict.fromkeys(checked)]


def check_disk(config: DictConfig, forecast: Forecast) -> str:
    """Checks that the disk has space for the checkpoints: the kept ones, the best one, and one being written."""
    weights = stored_bytes(forecast.network)
    checkpoint = weights + forecast.memory.optimizer + forecast.memory.average
    count = config.callbacks.checkpoints.keep_latest + 2
    needed, free = count * checkpoint + weights, shutil.disk_usage(existing(Path(config.run_dir))).free
    checkpoints = f"{counted(count, 'checkpoint')} of {size(checkpoint)}"
    text = f"{size(needed)} for {checkpoints} and the weights; {size(free)} are free"
    if needed > free:
        raise ConfigError(
            f"{text}. Lower callbacks.checkpoints.keep_latest={config.callbacks.checkpoints.keep_latest} to keep fewer "
            "checkpoints"
        )
    return text


def check_wandb(config: DictConfig) -> str | None:
    """Describes the mode of Weights & Biases; None: a warning reports a missing key. The key itself is not checked."""
    if "wandb" not in config.logger:
        return "not used"
    mode = os.environ.get("WANDB_MODE", "online")
    if config.logger.wandb.offline or mode != "online":
        return "offline: files in run_dir, for `wandb sync`" if mode != "disabled" else "disabled by WANDB_MODE"
    host = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai").partition("://")[2].partition("/")[0]
    if not os.environ.get("WANDB_API_KEY") and not has_login(host):
        log.warning("no API key: the run would be logged offline. Run `wandb login`, or set WANDB_API_KEY")
        return None
    return f"online at {host}"


def has_login(host: str) -> bool:
    """Whether .netrc has a login for this host."""
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def check_memory(forecast: Forecast, device: Device, *, sharded: bool) -> str:
    """Checks that the run fits into memory.

    Args:
        sharded: whether FSDP is configured.
    """
    config, rows = forecast.estimate.config, forecast.estimate.rows
    footprint = (forecast.memory.fsdp if sharded else forecast.memory.ddp)(forecast.world_size, rows)
    sharing = 1 if device.is_gpu else forecast.world_size // config.trainer.num_nodes  # processes that share the memory
    text = f"{size(sharing * footprint.total)} of {size(device.memory)} ({device.name})"
    if sharing * footprint.state > device.memory:
        raise ConfigError(f"{text}; weights, gradients and optimizer alone need {size(sharing * footprint.state)}")
    if sharing * footprint.total > USABLE * device.memory:
        key = "global_size" if config.batch.max_tokens is None else "max_tokens"
        advice = f"raise trainer.accumulate_grad_batches, or lower batch.{key}"
        log.warning("%s, of which %.0f %% are usable: %s", text, 100 * USABLE, advice)
    return text


def check_precision(config: DictConfig, device: Device) -> str | None:
    """The precision; None: a warning reports that the device does not support it."""
    if "bf16" in precision_of(config) and not device.has_bf16:
        text = "trainer.precision=%s: %s has no bf16; expected 16-mixed with optimizer.fused=false"
        log.warning(text, config.trainer.precision, device.name)
        return None
    return precision_of(config)


def size(count: float) -> str:
    """A number of bytes with a unit."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    power = min(int(math.log(max(count, 1), 1024)), len(units) - 1)
    value = count / 1024**power
    return f"{value:,.0f} {units[power]}" if value >= 100 or power == 0 else f"{value:.3g} {units[power]}"
