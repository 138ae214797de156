"""Restores a task from a checkpoint.

Tested by tests/test_exactness.py and tests/config/test_terms.py.
"""
# Takes a DictConfig: a configuration is made here, or read back to be changed.

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from triptych.assembly.make_task import make_task
from triptych.config import ConfigError, RunError, error_prefix, suggestion, target_of
from triptych.config.run_settings import RunSettings
from triptych.data import CorpusInfo, SpecialTokens, Tokenizer
from triptych.storage.run_directory import find_checkpoint
from triptych.tasks import GenerativeTask, ImageGeneration, Predictor, Task
from triptych.tasks.precision import PRECISIONS, arithmetic
from triptych.training import damage_of, newest_good, read_checkpoint

log = logging.getLogger("triptych")

PREFIX = "network."
"""Prefix of the names of weights in a checkpoint."""


def set_search(task: Task, config: DictConfig, keys: Sequence[str]) -> None:
    """Changes the beam search settings of a task.

    Args:
        config: configuration of ``evaluate`` or ``predict``.
        keys: settings of ``BeamSearch``; None: unchanged.
    """
    given = {key: config[key] for key in keys if config[key] is not None}
    if not given:
        return
    key, value = next(iter(given.items()))
    if not isinstance(task, GenerativeTask):
        raise ConfigError(f"{key}={value}: {task.name} does not generate text")
    if isinstance(task, ImageGeneration):
        raise ConfigError(f"{key}={value}: image generation does not use beam search")
    with error_prefix():
        task.search = replace(task.search, **given)


def checkpoint_file(path: str | Path, key: str = "checkpoint") -> Path:
    """The path of a checkpoint, or of the latest good one in a run directory.

    Args:
        key: key of the path in the configuration.
    """
    file = find_checkpoint(path, key)
    if Path(path).is_dir() and (damage := damage_of(file)):
        log.warning("%s is damaged and skipped: %s", file, damage)
        return newest_good(file.parent) or file
    return file


@dataclass(frozen=True, slots=True)
class LoadedCheckpoint:
    """The contents of a checkpoint.

    Attributes:
        path: path of the file.
        config: complete configuration.
        tokenizer: tokenizer.
        corpus: metadata of the corpus.
        weights: weights of the network, or their moving average.
    """

    path: Path
    config: DictConfig
    tokenizer: Tokenizer
    corpus: CorpusInfo
    weights: dict[str, Tensor]


def read_trained(path: str | Path, key: str = "checkpoint") -> LoadedCheckpoint:
    """Reads a checkpoint.

    Args:
        path: checkpoint file, or run directory (its latest checkpoint).
        key: key of the path in the configuration.
    """
    path = checkpoint_file(path, key)
    try:
        checkpoint = read_checkpoint(path)
    except RunError as error:
        raise ConfigError(f"{key}={error}") from None
    if "triptych" not in checkpoint:
        raise ConfigError(f"{key}={path}: not a Triptych checkpoint")
    info = checkpoint["triptych"]
    return LoadedCheckpoint(
        path=path,
        config=OmegaConf.create(info["config"]),
        tokenizer=Tokenizer.from_json(info["tokenizer"], SpecialTokens.from_dict(info["special_tokens"])),
        corpus=CorpusInfo.from_dict(info["corpus"]),
        weights={k.removeprefix(PREFIX): v for k, v in checkpoint["state_dict"].items() if k.startswith(PREFIX)},
    )


def restore(path: str | Path, precision: str | None = None) -> tuple[DictConfig, Task]:
    """The configuration and the task of a checkpoint.

    Args:
        path: checkpoint file, or run directory (its latest checkpoint).
        precision: precision to use instead of that of the training run.
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
    """Loads the trained task of a checkpoint for prediction: ``load(path).predict(texts)``.

    Args:
        checkpoint: checkpoint file, or run directory (its latest checkpoint).
        precision: precision to use, such as "32-true"; None: that of the training run.

    Raises:
        ConfigError: the file is missing or not a Triptych checkpoint, or the precision is unknown.
    """
    return Predictor(restore(checkpoint, precision)[1])
