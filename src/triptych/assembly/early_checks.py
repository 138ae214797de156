"""The checks of a command's configuration that do not need torch, whose import is slow."""
# Takes a DictConfig: it checks keys and classes that any file may name.

from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from triptych.config import ALLOWED, PARTS, check_type, flat
from triptych.config.build import check_allowed, check_dropout, check_keys
from triptych.config.errors import CollectedErrors, ConfigError, one_of
from triptych.config.paths import check_resume, check_writable
from triptych.config.schema import ACCELERATORS
from triptych.storage.downloads import check_folder
from triptych.storage.run_directory import RunDirectory, find_checkpoint

SUPPORTED = (
    "accelerator", "accumulate_grad_batches", "benchmark", "default_root_dir", "detect_anomaly", "deterministic",
    "devices", "enable_autolog_hparams", "enable_model_summary", "gradient_clip_algorithm", "gradient_clip_val",
    "inference_mode", "limit_test_batches", "limit_val_batches", "log_every_n_steps", "max_steps", "num_nodes",
    "num_sanity_val_steps", "precision", "profiler", "strategy", "val_check_interval",
)  # fmt: skip
"""Arguments of Lightning's Trainer that work with resumed runs."""
NOT_SUPPORTED = {
    "limit_train_batches": "it would restart the stream of batches; expected trainer.max_steps=N",
    "max_time": "the number of steps would depend on the speed; expected trainer.max_steps=N, or match=wall_time",
    "model_registry": "it uploads to Lightning's cloud; expected triptych export --push USER/NAME",
    "reload_dataloaders_every_n_epochs": "training has no epochs; expected 0",
    "sync_batchnorm": "no network has batch norm; expected false",
}
"""Arguments that would change the steps of a run or have no effect, with the reason."""
OURS = {
    "barebones": "null: a record needs the full trainer",
    "callbacks": "callbacks=[default,...], the config group",
    "check_val_every_n_epoch": "trainer.val_check_interval=N: training has no epochs",
    "enable_checkpointing": "callbacks.checkpoints.*",
    "enable_progress_bar": "callbacks.progress.refresh_rate=0",
    "fast_dev_run": "debug=fast, five steps of anything",
    "limit_predict_batches": "triptych predict with a shorter input file",
    "logger": "logger=csv, the config group",
    "max_epochs": "trainer.max_steps=N: the length is set in steps, not epochs",
    "min_epochs": "trainer.max_steps=N: the length is set in steps, not epochs",
    "min_steps": "trainer.max_steps=N: every run has exactly N steps",
    "overfit_batches": "data.num_train=N, or a smaller file",
    "plugins": "null: Triptych sets the plugins for checkpoints and processes",
    "use_distributed_sampler": "false: each process already reads its own part",
}
"""Arguments that Triptych sets itself or that conflict with its settings, with what to use instead."""
WITHOUT_EFFECT = {
    "limit_train_batches": 1.0,
    "reload_dataloaders_every_n_epochs": 0,
    "sync_batchnorm": False,
    "use_distributed_sampler": False,
}
"""Values of these arguments that have no effect and are accepted."""


def check_training(config: DictConfig) -> None:
    """Runs the checks for a training run."""
    mistakes = CollectedErrors()
    for check in (check_root, check_parts, check_targets, check_updates, check_batch, check_folders):
        with mistakes.noted():
            check(config)
            if check is check_updates:  # the next check needs valid values of these settings
                check_validation(config)
    mistakes.raise_all()


def check_evaluation(config: DictConfig) -> None:
    """Runs the checks for an evaluation."""
    if OmegaConf.is_missing(config, "checkpoint") or not config.checkpoint:
        raise ConfigError("checkpoint is missing: set checkpoint=RUN, a run directory or a file")
    find_checkpoint(config.checkpoint)


def check_prediction(config: DictConfig) -> None:
    """Runs the checks for predictions."""
    mistakes = CollectedErrors()
    for key in ("batch_size", "max_new_tokens"):
        with mistakes.noted():
            if config[key] is not None and config[key] < 1:
                raise ConfigError(f"{key}={config[key]}: expected at least 1")
    source, target = Path(config.input), Path(config.output)
    with mistakes.noted():
        if config.input != "-" and (not source.exists() or source.is_dir()):  # a pipe is fine: input=<(command)
            raise ConfigError(f"input={config.input}: no such file")
    with mistakes.noted():
        if config.output != "-":
            if config.input != "-" and source.resolve() == target.resolve():
                raise ConfigError(f"output={config.output}: the input would be overwritten. Choose another file")
            check_writable("output", target)
    with mistakes.noted():
        check_evaluation(config)
    mistakes.raise_all()


def check_root(config: DictConfig) -> None:
    """Checks keys and values of the typed nodes."""
    schema = OmegaConf.get_type(config)
    assert schema is not None  # Hydra has typed it
    mistakes = CollectedErrors()
    with mistakes.noted():
        check_keys(config, schema)
    if config.seed < 0:
        mistakes.append(f"seed={config.seed}: expected 0 or more")
    mistakes.raise_all()


def check_parts(config: DictConfig) -> None:
    """Checks the parts of the blocks without importing their classes."""
    mistakes = CollectedErrors()
    for node in ("block", "heads"):
        for key, value in flat(OmegaConf.to_container(config[node])).items():
            with mistakes.noted():
                check_dropout(f"{node}.{key}", value)
    model = cast(dict[str, Any], OmegaConf.to_container(config.model))
    stacks = [name for name, node in model.items() if isinstance(node, dict) and "num_layers" in node]
    for key in (f"model.{stack}.{part}" for stack in stacks for part in PARTS):
        if isinstance(value := OmegaConf.select(config, key), str):
            group = f"block/{key.rpartition('.')[2]}@{key}"
            mistakes.append(f"{key}={value}: a part is chosen by its config group; expected {group}={value}")
    mistakes.raise_all()


def check_targets(config: DictConfig) -> None:
    """Checks that every class in the configuration is allowed, not that it exists."""

    def look(key: str, node: Any) -> None:
        for name, value in node.items() if isinstance(node, dict) else ():
            if name == "_target_":
                check_allowed(f"{key}.{name}", str(value), ALLOWED)
            look(f"{key}.{name}".lstrip("."), value)

    look("", OmegaConf.to_container(config, resolve=False))


def check_updates(config: DictConfig) -> None:
    """Checks the settings of the trainer: steps, gradient clipping and accelerator."""
    mistakes = CollectedErrors()
    for name, value in config.trainer.items():
        if value is None or repr(value) == repr(WITHOUT_EFFECT.get(name)):  # 1 is one batch, and 1.0 all of them
            continue
        if name in NOT_SUPPORTED:
            mistakes.append(f"trainer.{name}={value}: not supported: {NOT_SUPPORTED[name]}")
        elif name in OURS:
            mistakes.append(f"trainer.{name}={value}: not supported; expected {OURS[name]}")
    for name in ("max_steps", "accumulate_grad_batches", "log_every_n_steps"):
        with mistakes.noted():
            value = OmegaConf.select(config, f"trainer.{name}")
            check_type(f"trainer.{name}", value, int)
            if value < 1:
                raise ConfigError(f"trainer.{name}={value}: expected at least 1")
    with mistakes.noted():
        limit = config.trainer.gradient_clip_val
        check_type("trainer.gradient_clip_val", limit, float | None)
        if limit is not None and limit <= 0:
            raise ConfigError(f"trainer.gradient_clip_val={limit}: expected more than 0, or null for no limit")
    for name in ("limit_val_batches", "limit_test_batches"):
        with mistakes.noted():
            value = OmegaConf.select(config, f"trainer.{name}")
            check_type(f"trainer.{name}", value, float)
            if value <= 0 or (isinstance(value, float) and value > 1):
                expected = "expected a number of batches, or a fraction above 0 and up to 1.0"
                raise ConfigError(f"trainer.{name}={value}: {expected}")
    if (accelerator := config.trainer.accelerator) not in ACCELERATORS:
        mistakes.append(f"trainer.accelerator={accelerator}: {one_of(str(accelerator), ACCELERATORS)}")
    mistakes.raise_all()


def check_batch(config: DictConfig) -> None:
    """Checks the sizes of batches."""
    batch, mistakes = config.batch, CollectedErrors()
    mistakes += [
        f"batch.{key}={batch[key]}: expected at least 1"
        for key in ("global_size", "max_tokens", "eval_batch_size", "bpe_dropout_copies")
        if batch[key] is not None and batch[key] < 1
    ]
    if batch.num_workers < 0:
        mistakes.append(f"batch.num_workers={batch.num_workers}: expected 0 or more")
    stride, most = batch.eval_stride, config.shape.max_length
    if stride is not None and not 1 <= stride <= most and most >= 1:  # otherwise max_length is the error
        mistakes.append(f"batch.eval_stride={stride}: expected 1 to shape.max_length={most}, without gaps")
    if (batch.global_size is None) == (batch.max_tokens is None):
        both, advice = (
            ("null", "batch.max_tokens=N") if batch.global_size is None else ("set", "batch.global_size=null")
        )
        mistakes.append(
            f"batch.global_size and batch.max_tokens are both {both}: expected one of them, the size of a step. "
            f"Set {advice}"
        )
    with mistakes.noted():
        parts = config.trainer.accumulate_grad_batches
        if batch.global_size is not None and batch.global_size % max(parts, 1):
            raise ConfigError(
                f"batch.global_size={batch.global_size} cannot be split into "
                f"trainer.accumulate_grad_batches={parts} equal parts"
            )
    mistakes.raise_all()


def check_validation(config: DictConfig) -> None:
    """Checks the validation interval."""
    parts, every = config.trainer.accumulate_grad_batches, config.trainer.val_check_interval
    check_type("trainer.val_check_interval", every, float)
    if every <= 0 or (isinstance(every, float) and every > 1):
        raise ConfigError(
            f"trainer.val_check_interval={every}: expected a number of batches, or a fraction of an epoch (0.5)"
        )
    batches = config.trainer.max_steps * parts
    if config.test_weights == "best" and every > batches:
        raise ConfigError(
            f"test_weights=best: trainer.val_check_interval={every} exceeds the {batches} batches of the run, "
            f"so it is never validated; expected at most {batches}, or test_weights=last"
        )
    if isinstance(every, int) and every % max(parts, 1):
        raise ConfigError(
            f"trainer.val_check_interval={every} batches end within a step: expected a multiple of "
            f"trainer.accumulate_grad_batches={parts}"
        )


def check_folders(config: DictConfig) -> None:
    """Checks that the data folder, init_from and resume of a new run exist."""
    run = RunDirectory(config.run_dir)
    if run.record.exists() or run.checkpoints.exists():  # a started run does not need them
        return
    if config.init_from is not None:
        find_checkpoint(config.init_from, "init_from")
    if config.resume not in ("auto", "never"):
        check_resume(config.resume)
    if isinstance(folder := OmegaConf.select(config, "data.dir"), str):
        check_folder(folder)
