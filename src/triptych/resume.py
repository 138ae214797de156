"""A run that goes on: from which checkpoint, whether it is still the same run, and with what left in its directory."""

import logging
import shutil
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger
from omegaconf import DictConfig

from triptych.config import ConfigError, nearest
from triptych.data import CorpusFacts, Tokenizer
from triptych.durable import link, remove_leftovers
from triptych.training import CSVLogger, WandbLogger, newest_good, read_checkpoint

log = logging.getLogger("triptych")

PLACES = ("trainer.accelerator", "trainer.devices", "trainer.num_nodes", "trainer.strategy")
"""Settings that say where a run is computed; another place may change the last digits."""


def state_to_resume(config: DictConfig, plain: dict[str, Any]) -> "Earlier | None":
    """The checkpoint from which this run goes on; None: it starts.

    Args:
        config: of this run.
        plain: the same as checkpoints hold it, without secrets.

    Raises:
        ConfigError: it belongs to a run of another configuration, or there is none where ``resume`` says.
        RunError: there are checkpoints, and all are damaged.
    """
    folder = Path(config.run_dir) / "checkpoints"
    if config.resume == "never":
        return None
    if config.resume == "auto":
        path = newest_good(folder)
    elif (path := Path(config.resume)).is_dir():
        path = newest_good(path / "checkpoints")
        if path is None:
            raise ConfigError(f"resume={config.resume}: no checkpoints in there")
    elif not path.is_file():
        choices = nearest(config.resume, ["auto", "never"])
        raise ConfigError(f"resume={config.resume}: no such file; expected auto, never or a checkpoint{choices}")
    if path is None:
        return None
    earlier = Earlier(path, read_checkpoint(path))
    differences = earlier.differences(plain)
    if differences and config.resume == "auto":
        raise ConfigError(
            f"run_dir={config.run_dir} holds an unfinished run with {'; '.join(differences)}; give the same, or "
            "another run_dir, or resume=never to start over"
        )
    for difference in differences:
        log.warning("the run of resume=%s had %s", config.resume, difference)
    return earlier


class Earlier:
    """The checkpoint that a run goes on from.

    Args:
        path: of the file.
        content: what it holds.

    Attributes:
        step: updates that were done.
        tokenizer: of the run.

    Raises:
        ConfigError: it holds weights, but not the state of a run of Triptych.
    """

    FREE = ("run_dir", "resume", "logger", "callbacks.progress", "callbacks.checkpoints", "callbacks.spikes",
            "batch.num_workers", "trainer.default_root_dir", *PLACES)  # fmt: skip
    """Settings that change nothing of the weights."""

    def __init__(self, path: Path, content: dict[str, Any]) -> None:
        self.path = path
        try:
            facts, state = content["triptych"], content["callbacks"]["Checkpoints"]
            self.config: dict[str, Any] = facts["config"]
            self.tokenizer = Tokenizer.from_json(facts["tokenizer"])
            self.data_sha256: str = facts["corpus"]["sha256"]
            self.step: int = content["global_step"]
            self.pending_validation: bool = state["pending_validation"]
            self.is_best: bool = state["best_step"] == self.step
        except (KeyError, TypeError) as error:
            raise ConfigError(f"resume={path}: it is no checkpoint of a run of Triptych (no {error})") from None

    def differences(self, plain: dict[str, Any]) -> list[str]:
        """The settings of the earlier run that this one has not."""
        old, new = flat(self.config), flat(plain)
        for place in PLACES:
            if (was := old.get(place)) != (now := new.get(place)):
                log.warning(
                    "%s=%s, but the run began with %s: the examples of each update stay the same, but dropout and the "
                    "last digits do not",
                    place,
                    now,
                    was,
                )
        free = tuple(f"{key}." for key in self.FREE)
        # what is still null is filled in from the data, which are held against each other as such
        return [
            f"{key}={old.get(key)}"
            for key in {**old, **new}
            if not f"{key}.".startswith(free) and old.get(key) != new.get(key) and new.get(key, "") is not None
        ]

    def check_data(self, corpus: CorpusFacts) -> None:
        """Refuses to go on with other examples.

        Raises:
            ConfigError: these are not those that the run began with.
        """
        if corpus.sha256 != self.data_sha256:
            raise ConfigError(
                f"resume: the examples are not those that {self.path} was trained on; bring those back, "
                "or start over with resume=never"
            )


def flat(node: Any, prefix: str = "") -> dict[str, object]:
    """The leaves of nested dictionaries by their dotted keys."""
    if not isinstance(node, dict):
        return {prefix: node}
    return {key: leaf for k, v in node.items() for key, leaf in flat(v, f"{prefix}.{k}".lstrip(".")).items()}


def prepare_directory(run_dir: Path, loggers: list[Logger], earlier: Earlier | None) -> None:
    """Leaves in the directory what the run goes on from, and nothing of what it will do again."""
    remove_leftovers(run_dir)
    folder = run_dir / "checkpoints"
    if earlier is None and folder.exists():
        log.warning("%s holds a run that was not finished; it starts over", run_dir)
        shutil.rmtree(folder)
        for logger in loggers:
            if isinstance(logger, WandbLogger):
                logger.start_afresh()
    if earlier is not None and earlier.path.parent.resolve() == folder.resolve():
        link(earlier.path, folder / "last.ckpt")  # the process may have died between the file and its second names
        if earlier.is_best:
            link(earlier.path, folder / "best.ckpt")
    for logger in loggers:
        if isinstance(logger, CSVLogger):
            pending = earlier is not None and earlier.pending_validation
            logger.rewind(0 if earlier is None else earlier.step, pending_validation=pending)
