"""Arguments of Lightning's trainer: a run with one is killed and resumed, or the argument is an error."""

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from omegaconf import DictConfig

import tiny
from command_line import with_parts
from triptych.assembly.checks import check_before_data
from triptych.assembly.early_checks import NOT_SUPPORTED, OURS, SUPPORTED
from triptych.config import ConfigError
from triptych.train import train
from triptych.training import TrainingModule

OTHERS = {
    "accumulate_grad_batches": "2", "benchmark": "true", "detect_anomaly": "true", "deterministic": "true",
    "enable_autolog_hparams": "false", "enable_model_summary": "true", "gradient_clip_val": "0.01",
    "inference_mode": "false", "limit_test_batches": "1", "limit_val_batches": "0.5", "log_every_n_steps": "1",
    "num_sanity_val_steps": "2", "precision": "bf16-mixed", "profiler": "simple",
}  # fmt: skip
"""Values other than those of conf/trainer/default.yaml."""
ELSEWHERE = {
    "accelerator": "tests/gpu",
    "default_root_dir": "is run_dir",
    "devices": "tests/training/test_strategies.py",
    "gradient_clip_algorithm": "has one value",
    "max_steps": "every test here",
    "num_nodes": "tests/faults",
    "strategy": "tests/training/test_strategies.py",
    "val_check_interval": "every test here",
}
"""What has no other value here, and where it is tested."""


def test_every_argument_of_lightning_is_in_the_table() -> None:
    arguments = set(inspect.signature(L.Trainer).parameters)
    tables = [set(SUPPORTED), set(NOT_SUPPORTED), set(OURS)]
    assert set.union(*tables) == arguments
    assert sum(map(len, tables)) == len(arguments)
    assert {*OTHERS, *ELSEWHERE} == set(SUPPORTED)


@pytest.fixture
def finish(chosen: Callable[..., DictConfig], tmp_path: Path) -> Iterator[Callable[..., dict[str, Any]]]:
    """Trains 6 steps, with a checkpoint after each second one; gives the record."""

    def run(name: str, *overrides: str) -> dict[str, Any]:
        steps = ["trainer.max_steps=6", "trainer.val_check_interval=4", "callbacks.checkpoints.every_n_steps=2",
                 "logger=csv"]  # fmt: skip
        result = train(chosen(*tiny.dates("classification_encoder_only"), *tiny.TINY, *steps,
                              f"run_dir={tmp_path / name}", *overrides))  # fmt: skip
        assert result is not None
        assert result.metrics == result.record["metrics"]
        return dict(result.record)

    yield run
    torch.use_deterministic_algorithms(mode=False)


def check_resuming(
    values: dict[str, str], finish: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that dies in its fifth step ends with the same weights and metrics as one that is left alone."""
    overrides = [f"++trainer.{name}={value}" for name, value in values.items()]
    alone = finish("alone", *overrides)
    fifth, step = 4 * int(values.get("accumulate_grad_batches", 1)), TrainingModule.training_step

    def die(module: TrainingModule, batch: Any, batch_idx: int) -> Any:
        if batch_idx == fifth:
            raise EOFError("killed")
        return step(module, batch, batch_idx)

    with monkeypatch.context() as patched:
        patched.setattr(TrainingModule, "training_step", die)
        with pytest.raises(EOFError, match="killed"):
            finish("killed", *overrides)
    assert (tmp_path / "killed" / "checkpoints" / "step-00000004.ckpt").exists()
    resumed = finish("killed", *overrides)
    assert resumed["steps"] == alone["steps"] == 6
    assert resumed["weights_sha256"] == alone["weights_sha256"]
    assert resumed["metrics"] == alone["metrics"]


def test_a_run_with_other_values_is_killed_and_resumed(
    finish: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all of them at once; one by one: ``test_each_argument``."""
    check_resuming(OTHERS, finish, tmp_path, monkeypatch)


@pytest.mark.nightly
@pytest.mark.parametrize("name", OTHERS)
def test_each_argument(
    name: str, finish: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_resuming({name: OTHERS[name]}, finish, tmp_path, monkeypatch)


@pytest.mark.parametrize("name", sorted({**NOT_SUPPORTED, **OURS}))
def test_what_would_break_a_run_is_an_error_before_data_is_read(name: str, chosen: Callable[..., DictConfig]) -> None:
    value = {"check_val_every_n_epoch": "2", "limit_train_batches": "3", "max_time": "'00:01:00:00'", "plugins": "[]"}
    given = value.get(name, "true")
    config = chosen("experiment=dates/classification", "model=encoder_only", f"++trainer.{name}={given}")
    with pytest.raises(ConfigError, match=rf"trainer\.{name}="):
        check_before_data(with_parts(config))


def test_one_batch_of_training_is_not_all_of_it(chosen: Callable[..., DictConfig]) -> None:
    """Lightning reads 1.0 as a share, and 1 as a number of batches; to Python they are equal."""
    check_before_data(with_parts(chosen("+trainer.limit_train_batches=1.0")))
    with pytest.raises(ConfigError, match=r"^trainer\.limit_train_batches=1: not supported"):
        check_before_data(with_parts(chosen("+trainer.limit_train_batches=1")))
