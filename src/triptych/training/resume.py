"""Resuming a run: choosing its checkpoint, checking its configuration, and preparing its directory."""
# Takes a DictConfig: before the plan, overrides, checkpoints and matches may still set any key.

import logging
import shutil
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason
from lightning.pytorch.loggers import Logger
from omegaconf import DictConfig, OmegaConf

from triptych.config import FREE, PLACES, ConfigError, RunError, build, chosen, counted, flat, target_of
from triptych.config.paths import check_resume
from triptych.data import CorpusInfo, SpecialTokens, Tokenizer
from triptych.storage.atomic import link, remove_leftovers
from triptych.storage.run_directory import BEST, RunDirectory
from triptych.training import CSVLogger, TensorBoardLogger, TrainingModule, WandbLogger
from triptych.training.callbacks.checkpoint_saver import newest_good
from triptych.training.checkpoint_file import damage_of, read_checkpoint

log = logging.getLogger("triptych")


def is_finished(config: DictConfig, plain: dict[str, Any]) -> bool:
    """Returns whether run_dir contains this run, finished.

    (A trial of a search is not tested, so the same run without the search is unfinished, and resumes for its test.)

    Args:
        plain: the configuration as stored in a run directory, without secrets.

    Raises:
        ConfigError: if run_dir contains another finished run, or ``resume`` is never.
    """
    run = RunDirectory(config.run_dir)
    if not run.is_done(is_trial="pruning" in config.callbacks):
        return False
    earlier = OmegaConf.load(run.config) if run.config.exists() else OmegaConf.create()
    found = changed_settings(cast(dict[str, Any], OmegaConf.to_container(earlier)), plain) if earlier else []
    if found or config.resume == "never":
        what = f" with {'; '.join(found)}" if found else ""
        raise ConfigError(f"run_dir={run.path} holds a finished run{what}; choose another run_dir")
    return True


def state_to_resume(config: DictConfig, plain: dict[str, Any]) -> "ResumePoint | None":
    """Returns the checkpoint from which this run resumes; None: it starts from scratch.

    Checkpoints in run_dir take precedence, so that the same command resumes its own run.

    Args:
        plain: the configuration as stored in checkpoints, without secrets.

    Raises:
        ConfigError: if the checkpoint belongs to another configuration, or ``resume`` names none.
        RunError: if all checkpoints are damaged.
    """
    if config.resume == "never":
        return None
    run = RunDirectory(config.run_dir)
    folder = run.checkpoints
    path, is_own = newest_good(folder), True
    is_of_folder = config.resume != "auto" and Path(config.resume).resolve().parent == folder.resolve()
    if config.resume != "auto" and (is_of_folder or not run.has_begun):
        path = named_checkpoint(config.resume)
        is_own = path.resolve().parent == folder.resolve()
    if path is None:
        return None
    try:
        earlier = ResumePoint(path, read_checkpoint(path))
    except RunError as error:
        raise ConfigError(f"resume={error}") from None
    found = changed_settings(earlier.config, plain)
    if not is_own and (changed := changed_settings(earlier.config, plain, of=differs_in_network)):
        raise ConfigError(
            f"resume={config.resume}: its network has {'; '.join(changed)}. Use the same settings, or only its "
            f"weights with init_from={config.resume}"
        )
    if not is_own and (changed := changed_settings(earlier.config, plain, of=lambda key: key == "optimizer")):
        raise ConfigError(
            f"resume={config.resume}: its optimizer state is for {changed[0]}. Use the same optimizer, or only its "
            f"weights with init_from={config.resume}"
        )
    if found and is_own:
        raise ConfigError(
            f"run_dir={config.run_dir} contains an unfinished run with {'; '.join(found)}. Use the same settings, "
            f"resume in another run_dir with resume={config.run_dir}, or start over with resume=never"
        )
    for difference in found:
        if difference.startswith("tokenizer"):
            raise ConfigError(f"resume={config.resume} was trained with {difference}; expected the same")
        log.warning("the run of resume=%s had %s", config.resume, difference)
    if not is_own and config.test_weights == "best" and earlier.best is None:
        raise ConfigError(
            f"test_weights=best: the best checkpoint of resume={config.resume}, after step {earlier.best_step}, is not "
            f"in the folder of {path}; expected test_weights=last, or that file as best.ckpt"
        )
    if not is_own and earlier.step == config.trainer.max_steps:
        log.warning("resume=%s has already completed all %s steps: nothing is trained", config.resume, earlier.step)
    earlier.early_stop = early_stop(earlier, config, plain)
    if earlier.early_stop is not None:
        name = f"run_dir={config.run_dir}" if is_own else f"resume={config.resume}"
        log.warning("%s %s", name, earlier.early_stop)
    if earlier.step > config.trainer.max_steps:
        raise ConfigError(
            f"trainer.max_steps={config.trainer.max_steps}: {path} has already completed "
            f"{counted(earlier.step, 'step')}"
        )
    return earlier


def early_stop(earlier: "ResumePoint", config: DictConfig, plain: dict[str, Any]) -> str | None:
    """Returns the message for a run that was stopped early and stays stopped; None: it trains.

    It stays stopped if the callbacks of this run would have stopped it, too. For early stopping, the patience of this
    run is compared with the number of validations that the earlier run waited.

    Args:
        plain: the configuration as stored in a checkpoint.
    """
    if not earlier.should_stop:
        return None

    def has_changed(node: str) -> bool:
        return bool(changed_settings(earlier.config, plain, of=lambda key: key.startswith(node)))

    said = f"stopped early at step {earlier.step}"
    is_early_stopping = any(reason_of(s) != EarlyStoppingReason.NOT_STOPPED for s in earlier.callbacks.values())
    for name in config.callbacks:
        if not issubclass(target_of(config, f"callbacks.{name}"), EarlyStopping):
            continue
        callback: EarlyStopping = build(config, f"callbacks.{name}")
        state = earlier.callbacks.get(callback.state_key, {})
        reason = reason_of(state)
        if reason == EarlyStoppingReason.PATIENCE_EXHAUSTED:
            if state["wait_count"] >= callback.patience:
                return f"{said} (patience {callback.patience}); nothing to train"
        elif reason != EarlyStoppingReason.NOT_STOPPED and not has_changed(f"callbacks.{name}."):
            return f"{said} ({reason.name.lower().replace('_', ' ')}); nothing to train"
    return f"{said}; nothing to train" if not is_early_stopping and not has_changed("callbacks.") else None


def reason_of(state: dict[str, Any]) -> EarlyStoppingReason:
    """Returns why early stopping stopped the run, from the state of a callback."""
    return EarlyStoppingReason(state.get("stopping_reason", EarlyStoppingReason.NOT_STOPPED))


def named_checkpoint(name: str) -> Path:
    """Returns the checkpoint file that ``resume`` names, or the newest one of the run directory that it names.

    Raises:
        ConfigError: if there is none.
    """
    check_resume(name)
    path = Path(name)
    if not path.is_dir():
        return path
    if (newest := newest_good(RunDirectory(path).checkpoints)) is None:
        raise ConfigError(f"resume={name}: there are no checkpoints in it")
    return newest


FROM_DATA = (
    "shape.vocab_size",
    "model.embedding.vocab_size",
    "model.source_embedding.vocab_size",
    "model.head.num_outputs",
)
"""Settings that the data determine if they are null."""


def differs_in_network(key: str) -> bool:
    """Returns whether a setting changes the network for given weights; settings for training only do not."""
    return key.startswith("model.") and not any(word in key for word in ("dropout", "max_length", "checkpointing"))


def changed_settings(
    earlier: dict[str, Any], now: dict[str, Any], *, of: Callable[[str], bool] = lambda _: True
) -> list[str]:
    """Returns the first few settings of an earlier run that differ in this run, as ``key=value``.

    Args:
        earlier: complete configuration of the earlier run.
        now: configuration of this run, before the data determine ``FROM_DATA``.
        of: selects the settings to compare.
    """
    old, new = chosen(earlier), chosen(now)
    free = tuple(f"{key}." for key in FREE)
    keys = [
        key
        for key in {**old, **new}
        if of(key)
        and not f"{key}.".startswith(free)
        and old.get(key) != new.get(key)
        and not (key in FROM_DATA and new.get(key) is None)
    ]
    # For a node that only one run has, or that builds another class, its name is enough.
    names: dict[str, None] = {}
    for key in keys:
        owner = key.partition(".")[0]
        was, is_now = (settings.get(f"{owner}._target_") for settings in (old, new))
        if was != is_now and was is not None and is_now is not None:
            kind = target_of(DictConfig(earlier), owner) if owner in ("model", "task") else None
            own_name = kind and (kind.architecture if owner == "model" else kind.name)
            names[f"{owner}={own_name}" if own_name else f"{owner}._target_={was}"] = None
            continue
        node = ".".join(key.split(".")[:2])
        is_whole = node.startswith("callbacks.") and not (f"{node}._target_" in old and f"{node}._target_" in new)
        name = f"{key}={old.get(key)}" if not is_whole else node if f"{node}._target_" in old else f"no {node}"
        names[name] = None
    return [*names][:4] + ([f"{len(names) - 4} more"] if len(names) > 4 else [])


class ResumePoint:
    """The checkpoint from which a run resumes.

    Args:
        path: path of the file.
        content: content of the file.

    Attributes:
        step: number of completed steps.
        best_step: step with the best validation so far; 0: none.
        should_stop: whether a callback stopped the run at this step.
        callbacks: states of the callbacks, by Lightning's keys.
        early_stop: why a run that resumes it has nothing to train; None: it trains.
        tokenizer: tokenizer of the run.

    Raises:
        ConfigError: if the file does not contain the state of a Triptych run.
    """

    def __init__(self, path: Path, content: dict[str, Any]) -> None:
        self.path = path
        self.early_stop: str | None = None
        try:
            info, state = content["triptych"], content["callbacks"]["CheckpointSaver"]
            self.config = info["config"]
            special = SpecialTokens.from_dict(info["special_tokens"])
            self.tokenizer = Tokenizer.from_json(info["tokenizer"], special)
            self.data_sha256: str = info["corpus"]["sha256"]
            self.step: int = content["global_step"]
            self.pending_validation: bool = state["pending_validation"]
            self.best_step: int = state["best_step"]
            self.should_stop: bool = state["should_stop"]
            self.callbacks: dict[str, dict[str, Any]] = content["callbacks"]
            self._shapes = {name: tensor.shape for name, tensor in content["state_dict"].items()}
        except (KeyError, TypeError) as error:
            raise ConfigError(f"resume={path}: it is no checkpoint of a run of Triptych (no {error})") from None

    @cached_property
    def best(self) -> Path | None:
        """The checkpoint of ``best_step``: this one, or best.ckpt in the same folder; None: neither."""
        if self.best_step in (0, self.step):
            return self.path
        beside = self.path.with_name(BEST)
        is_whole = beside.exists() and damage_of(beside) is None
        return beside if is_whole and read_checkpoint(beside)["global_step"] == self.best_step else None

    def warn_of_place(self, plain: dict[str, Any]) -> None:
        """Logs a warning if the run resumes on other hardware, where its last digits differ."""
        old, new = flat(self.config), flat(plain)
        for place in PLACES:
            if (was := old.get(place)) != (now := new.get(place)) and was is not None and now is not None:
                text = "the examples of each step stay the same, but dropout and the last digits differ"
                log.warning("%s=%s, but the run started with %s: %s", place, now, was, text)

    def check_data(self, corpus: CorpusInfo) -> None:
        """Raises a ConfigError if the examples are not those of the checkpoint."""
        if corpus.sha256 != self.data_sha256:
            raise ConfigError(
                f"resume: the examples are not those that {self.path} was trained on; bring those back, "
                "or start over with resume=never"
            )

    def check_network(self, module: TrainingModule) -> None:
        """Raises a ConfigError that names the first weight of the checkpoint that does not fit the network."""
        shapes = {name: tensor.shape for name, tensor in module.state_dict().items()}
        for name in {**self._shapes, **shapes}:
            if self._shapes.get(name) != shapes.get(name):
                was, now = (tuple(s[name]) if name in s else "none" for s in (self._shapes, shapes))
                raise ConfigError(
                    f"resume: the weights of {self.path} are those of another network: {name} is {was}, and {now} here"
                )


def prepare_directory(run_dir: Path, loggers: Sequence[Logger], earlier: ResumePoint | None) -> None:
    """Removes everything from the run directory that the resumed run will write again."""
    remove_leftovers(run_dir)
    run = RunDirectory(run_dir)
    run.pruned.unlink(missing_ok=True)
    folder = run.checkpoints
    if earlier is None and (folder.exists() or run.metrics.exists()):
        log.warning("%s holds a run that was not finished; it starts over", run_dir)
        shutil.rmtree(folder, ignore_errors=True)
        for logger in loggers:
            if isinstance(logger, WandbLogger):
                logger.start_afresh()
            if isinstance(logger, TensorBoardLogger):
                shutil.rmtree(logger.log_dir, ignore_errors=True)
    if earlier is not None and earlier.path.parent.resolve() == folder.resolve():
        link(earlier.path, run.last)  # the process may have ended before it linked the file
        if earlier.best_step == earlier.step:
            link(earlier.path, run.best)
    elif earlier is not None and earlier.best_step and earlier.best is not None:
        folder.mkdir(parents=True, exist_ok=True)
        link(earlier.best, run.best)  # later steps may all be worse
    for logger in loggers:
        if isinstance(logger, TensorBoardLogger) and earlier is not None:
            logger.rewind(earlier.step)
        if isinstance(logger, CSVLogger):
            pending = earlier is not None and earlier.pending_validation
            logger.rewind(0 if earlier is None else earlier.step, pending_validation=pending)
            if earlier is not None and not logger.path.exists():
                log.warning("%s has no rows yet: the series starts after step %s", logger.path, earlier.step)
