"""What would stop a training, or surprise its user: each thing that is looked at becomes a line."""
# Takes a DictConfig: it looks for what is wrong in keys and classes that any file may name.

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
from triptych.launch.processes import Place
from triptych.planning.forecast import Forecast
from triptych.planning.gpus import Device
from triptych.planning.memory import USABLE
from triptych.storage.run_directory import RunDirectory
from triptych.testing import check_part, is_foreign
from triptych.training.strategies import check_place, check_split

log = logging.getLogger("triptych")

CHECKED_WIDTH = 256
"""Of all heads together where a part is checked, about: so the check takes less than a second."""

T = TypeVar("T")

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        name: of it.
        level: whether it is in order.
        text: what was found; empty: nothing worth a word.
    """

    name: str
    level: Level
    text: str


class Findings(list[Finding]):
    """All that was looked at, in order."""

    @property
    def errors(self) -> list[Finding]:
        """What must not be so."""
        return [finding for finding in self if finding.level == "error"]

    def look(
        self, name: str, check: Callable[[], T], say: Callable[[T], str | None] = str, *, worst: Level = "error"
    ) -> T | None:
        """Looks at one more thing: what it raises is an error, what it logs a warning, and what it returns is fine.

        Args:
            say: what to say of what it returned; None: no line at all.

        Returns:
            What it returned; None after an error.
        """
        said: list[str] = []
        result = None
        texts: list[str | None] = [""]
        level: Level = "ok"
        with listening(said):
            try:
                result = check()
                texts = ["" if result is None else say(result)]
            except (ValueError, RunError) as error:
                texts, level = [*messages_of(error)], worst
            except OSError as error:
                texts, level = [f"{error.filename}: {error.strerror}"], worst
        self += [Finding(name, "warning", warning) for warning in said]
        for text in texts:
            is_known = level != "ok" and text in [finding.text for finding in self]  # one mistake may break several
            is_warned_of = level == "ok" and any(warning.startswith(text or "") for warning in said)
            if text is not None and not is_known and not is_warned_of:
                self.append(Finding(name, level, text))
        return result


@contextmanager
def listening(said: list[str]) -> Iterator[None]:
    """Collects the warnings of our logger, which are then said nowhere else."""
    logger, handler = logging.getLogger("triptych"), logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = True


def check_devices(config: DictConfig, place: Place, count: int, *, elsewhere: bool) -> str:
    """Whether the processes can be started, each has a device, and an update can be dealt out to them.

    Args:
        count: processes that train together.
        elsewhere: whether another machine is meant; then its devices are not looked for here.
    """
    check_trainer(config)
    if elsewhere:
        check_split(config, count)
        if config.trainer.devices in ("auto", -1, "-1"):
            log.warning(
                "trainer.devices=%s is as many as that machine has; counted as %s here", config.trainer.devices, count
            )
    else:
        check_place(config, place)
    size, parts = config.batch.size, config.trainer.accumulate_grad_batches * count
    tokens = config.batch.tokens
    batches = counted(size // parts, "example") if size is not None else f"about {counted(tokens // parts, 'token')}"
    nodes = config.trainer.num_nodes
    on = f" on {nodes} machines" if nodes > 1 else ""
    return f"{counted(count, 'process')}{on}, batches of {batches} each"


def check_allocation(config: DictConfig, count: int) -> str:
    """Whether the job of SLURM that this runs in has the nodes, tasks and GPUs that the configuration wants.

    Args:
        count: processes that train together.
    """
    env, nodes = os.environ, config.trainer.num_nodes
    job = f"job {env['SLURM_JOB_ID']}"
    given = int(env.get("SLURM_NNODES", "1"))
    if given != nodes:
        raise ConfigError(f"trainer.num_nodes={nodes}, but {job} has {given} (sbatch --nodes={nodes})")
    each = count // nodes
    tasks = env.get("SLURM_NTASKS_PER_NODE")
    if nodes > 1 and tasks is None:
        raise ConfigError(f"{job} does not say how many tasks a node has; expected sbatch --ntasks-per-node={each}")
    if tasks is not None and int(tasks) not in ((each,) if nodes > 1 else (1, each)):  # one task starts the others
        raise ConfigError(
            f"trainer.devices={config.trainer.devices}, but {job} has {tasks} tasks on each node; expected sbatch "
            f"--ntasks-per-node={each}"
        )
    gpus = env.get("SLURM_GPUS_ON_NODE")
    if config.trainer.accelerator != "cpu" and gpus is not None and int(gpus) < each:
        raise ConfigError(f"trainer.devices={config.trainer.devices}, but {job} has {gpus} GPUs on a node")
    on_each = f"{counted(int(tasks or 1), 'task')} on each"
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
        check_part(
            **parts,
            causal=stack.causal,
            cross_attention="cross_attention" in stack and stack.cross_attention,
            num_heads=stack.num_heads,
            head_dim=min(
                stack.head_dim or stack.d_model // stack.num_heads, max(CHECKED_WIDTH // stack.num_heads // 8 * 8, 8)
            ),
        )
        checked += own
    return [*dict.fromkeys(checked)]


def check_disk(config: DictConfig, forecast: Forecast) -> str:
    """Whether the checkpoints fit: those that are kept, the best, and one that is being written."""
    whole = forecast.memory.ddp(1, 1)
    checkpoint = whole.weights + whole.optimizer + whole.average
    count = config.callbacks.checkpoints.keep + 2
    needed, free = count * checkpoint + whole.weights, shutil.disk_usage(existing(Path(config.run_dir))).free
    checkpoints = f"{counted(count, 'checkpoint')} of {size(checkpoint)}"
    text = f"{size(needed)} for {checkpoints} and the weights; {size(free)} are free"
    if needed > free:
        raise ConfigError(
            f"{text}; callbacks.checkpoints.keep={config.callbacks.checkpoints.keep} says how many are kept"
        )
    return text


def check_wandb(config: DictConfig) -> str | None:
    """Where Weights & Biases writes; None: a warning says that it needs a key. The key itself is not looked at."""
    if "wandb" not in config.logger:
        return "not used"
    mode = os.environ.get("WANDB_MODE", "online")
    if config.logger.wandb.offline or mode != "online":
        return "offline: files in run_dir, for `wandb sync`" if mode != "disabled" else "WANDB_MODE=disabled: nothing"
    host = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai").partition("://")[2].partition("/")[0]
    if not os.environ.get("WANDB_API_KEY") and not has_login(host):
        log.warning("online, but there is no key (`wandb login`, or WANDB_API_KEY): the run would be logged offline")
        return None
    return f"online at {host}"


def has_login(host: str) -> bool:
    """Whether the file of logins knows this host."""
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def check_memory(forecast: Forecast, device: Device, *, sharded: bool) -> str:
    """Whether the training fits.

    Args:
        sharded: whether FSDP is configured.
    """
    config = forecast.estimate.config
    rows = forecast.estimate.rows
    footprint = (forecast.memory.fsdp if sharded else forecast.memory.ddp)(forecast.world_size, rows)
    sharing = 1 if device.is_gpu else forecast.world_size // config.trainer.num_nodes  # processes that share the memory
    text = f"{size(sharing * footprint.total)} of {size(device.memory)} ({device.name})"
    if sharing * footprint.state > device.memory:
        raise ConfigError(f"{text}; weights, gradients and optimizer alone are {size(sharing * footprint.state)}")
    if sharing * footprint.total > USABLE * device.memory:
        log.warning(
            "%s, of which %.0f %% are counted on: raise trainer.accumulate_grad_batches, or lower batch.%s",
            text,
            100 * USABLE,
            "size" if config.batch.tokens is None else "tokens",
        )
    return text


def check_precision(config: DictConfig, device: Device) -> str | None:
    """The precision; None: a warning says that the device does not compute in it."""
    if "bf16" in precision_of(config) and not device.has_bf16:
        log.warning(
            "trainer.precision=%s: %s has no bf16; expected 16-mixed with optimizer.fused=false",
            config.trainer.precision,
            device.name,
        )
        return None
    return precision_of(config)


def size(count: float) -> str:
    """Bytes for people."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    power = min(int(math.log(max(count, 1), 1024)), len(units) - 1)
    value = count / 1024**power
    return f"{value:,.0f} {units[power]}" if value >= 100 or power == 0 else f"{value:.3g} {units[power]}"
