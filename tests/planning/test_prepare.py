"""A plan is decided: who reads it cannot change it."""

from collections.abc import Callable
from dataclasses import FrozenInstanceError

import pytest
from lightning.fabric.plugins.environments import LightningEnvironment
from omegaconf import DictConfig

import tiny
from triptych.planning.prepare import choose, make_plan


def test_nothing_changes_a_plan(chosen: Callable[..., DictConfig]) -> None:
    config = chosen(*tiny.dates("classification_encoder_only"), *tiny.TINY)
    plan = make_plan(choose(config, None), None, "dates", LightningEnvironment(), 1)
    config.seed, lr = 77, plan.settings.learning_rate
    plan.plain["optimizer"]["lr"] = 77
    assert plan.settings.seed == plan.plain["seed"] != 77
    assert plan.settings.build("optimizer").lr == plan.plain["optimizer"]["lr"] == lr
    assert plan.model == "encoder_only"
    with pytest.raises(FrozenInstanceError):
        plan.settings = plan.settings  # type: ignore[misc]
