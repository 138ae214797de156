"""A complete configuration with typed fields, which nothing changes."""

from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
from omegaconf import ReadonlyConfigError

import tiny
import triptych
from command_line import composed, with_parts
from triptych.assembly.choose_parts import complete_config
from triptych.config import build
from triptych.config.run_settings import RunSettings
from triptych.data import CorpusInfo

OVERRIDES = (
    "batch.global_size=6", "trainer.accumulate_grad_batches=2", "batch.too_long=truncate", "trainer.precision=64",
)  # fmt: skip


def test_fields_are_those_of_the_configuration() -> None:
    config = with_parts(composed(*tiny.dates("classification_encoder_only"), *OVERRIDES))
    complete_config(config, 9, CorpusInfo(labels=("a", "b")))
    settings = RunSettings.of(config)
    assert (settings.seed, settings.run_dir, settings.vocab_size) == (config.seed, Path("unused"), 9)
    assert (settings.loader.global_size, settings.trainer.accumulate_grad_batches) == (6, 2)
    assert (settings.encoding.too_long, settings.encoding.task["_target_"]) == ("truncate", config.task._target_)
    assert settings.trainer.precision == "64"  # as Lightning takes it
    assert settings.learning_rate == config.optimizer.lr
    assert set(settings.callbacks) == set(config.callbacks)
    assert settings.build("optimizer") == build(config, "optimizer")
    assert settings.plain("data")["_target_"] == config.data._target_


def test_nothing_changes_them() -> None:
    config = with_parts(composed(*tiny.dates("classification_encoder_only")))
    settings = RunSettings.of(config)
    config.seed, config.optimizer.lr = 77, 77.0
    assert settings.seed != 77
    assert settings.build("optimizer").lr != 77.0
    with pytest.raises(FrozenInstanceError):
        settings.trainer.max_steps = 1  # type: ignore[misc]
    with pytest.raises(ReadonlyConfigError):
        settings._nodes.seed = 2
    settings.plain("data")["_target_"] = "changed"
    assert settings.plain("data")["_target_"] == config.data._target_


def test_who_takes_a_dict_config_says_why() -> None:
    """In its first lines; all others read typed fields."""
    root = Path(triptych.__file__).parent
    texts = {file.relative_to(root): file.read_text() for file in root.rglob("*.py")}
    takers = {file for file, text in texts.items() if "DictConfig" in text}
    assert takers == {file for file, text in texts.items() if "# Takes a DictConfig: " in text[:2000]}
