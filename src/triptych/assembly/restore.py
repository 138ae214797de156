"""From a checkpoint to its task."""
# Takes a DictConfig: a configuration is made here, or read back to be changed.

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from triptych.assembly.network import make_task
from triptych.config import ConfigError, RunError, refusing, suggestion, target_of
from triptych.config.run_settings import RunSettings
from triptych.data import CorpusFacts, SpecialTokens, Tokenizer
from triptych.storage.run_directory import find_checkpoint
from triptych.tasks import GenerativeTask, ImageGeneration, Predictor, Task
from triptych.tasks.precision import PRECISIONS, arithmetic
from triptych.training import damage_of, newest_good, read_checkpoint

log = logging.getLogger("triptych")

PREFIX = "network."
"""Of the names of weights in a checkpoint."""


def set_search(task: Task, config: DictConfig, keys: Sequence[str]) -> None:
    """Changes the beam search of a task to what the configuration gives.

    Args:
        config: of ``evaluate`` or ``predict``.
        keys: settings of ``BeamSearch``; those that are None stay as they are.
    """
    given = {key: config[key] for key in keys if config[key] is not None}
    if not given:
        return
    if not isinstance(task, GenerativeTask):
        key, value = next(iter(given.items()))
        raise ConfigError(f"{key}={value}: {task.name} writes no text")
    if isinstance(task, ImageGeneration):
        key, value = next(iter(given.items()))
        raise ConfigError(f"{key}={value}: images are drawn pixel by pixel, without beam search")
    with refusing():
        task.search = replace(task.search, **given)


def checkpoint_file(path: str | Path, key: str = "checkpoint") -> Path:
    """The checkpoint itself, or the newest one of a run directory.

    Args:
        key: where it stands.
    """
    file = find_checkpoint(path, key)
    if Path(path).is_dir() and (damage := damage_of(file)):
        log.warning("%s is damaged and skipped: %s", file, damage)
        return newest_good(file.parent) or file
    return file


@dataclass(frozen=True, slots=True)
class Trained:
    """What a checkpoint holds of a trained task.

    Attributes:
        path: of the file.
        config: the complete configuration.
        tokenizer: of the texts.
        corpus: what is known of the corpus.
        weights: of the network; with a moving average, that.
    """

    path: Path
    config: DictConfig
    tokenizer: Tokenizer
    corpus: CorpusFacts
    weights: dict[str, Tensor]


def read_trained(path: str | Path, key: str = "checkpoint") -> Trained:
    """Reads a checkpoint.

    Args:
        path: of the file, or of a run directory (its newest checkpoint).
        key: where it stands.
    """
    path = checkpoint_file(path, key)
    try:
        checkpoint = read_checkpoint(path)
    except RunError as error:
        raise ConfigError(f"{key}={error}") from None
    if "triptych" not in checkpoint:
        raise ConfigError(f"{key}={path}: not a checkpoint of Triptych")
    facts = checkpoint["triptych"]
    config = OmegaConf.create(facts["config"])
    if isinstance(OmegaConf.select(config, "block.position"), str):
        raise ConfigError(f"{key}={path}: of Triptych 0.1, which described networks in another way; train it again")
    return Trained(
        path=path,
        config=config,
        tokenizer=Tokenizer.from_json(facts["tokenizer"], SpecialTokens.from_plain(facts["special_tokens"])),
        corpus=CorpusFacts.from_plain(facts["corpus"]),
        weights={k.removeprefix(PREFIX): v for k, v in checkpoint["state_dict"].items() if k.startswith(PREFIX)},
    )


def restore(path: str | Path, precision: str | None = None) -> tuple[DictConfig, Task]:
    """The configuration, and the task with its weights.

    Args:
        path: of the file, or of a run directory (its newest checkpoint).
        precision: to compute in, in place of the training's (``trainer.precision``).
    """
    trained = read_trained(path)
    for part in ("optimizer", "scheduler"):  # not built here, but their classes must be on the allow list
        target_of(trained.config, part)
    if precision is not None:
        if precision not in PRECISIONS:
            raise ConfigError(f"trainer.precision={precision}{suggestion(precision, list(PRECISIONS))}")
        trained.config.trainer.precision = precision
    task = make_task(RunSettings.of(trained.config), trained.tokenizer, trained.corpus)
    # first, since float64 weights would be rounded
    arithmetic(task.precision, task.device).convert_module(task.network)
    task.network.load_state_dict(trained.weights)
    task.network.eval()
    return trained.config, task


def load(checkpoint: str | Path, precision: str | None = None) -> Predictor:
    """The trained task of a checkpoint, which is enough by itself; ``load(path).predict(texts)`` uses it.

    Args:
        checkpoint: a file, or a run directory (its newest checkpoint).
        precision: to compute in, such as "32-true"; None: that of the training, in which it was tested.

    Raises:
        ConfigError: no such file, a file that is not a checkpoint of Triptych, or no such precision.
    """
    return Predictor(restore(checkpoint, precision)[1])
