"""What makes a run another one."""

import math
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from omegaconf import DictConfig, OmegaConf

from triptych.training import CheckpointSaver
from triptych.training.resume import changed_settings, differs_in_network


def network(**attention: Any) -> dict[str, Any]:
    stack = {"position": {"_target_": "triptych.nn.Rotary", "theta": 10000.0}, "attention": attention, "dropout": 0.1}
    return {"model": {"decoder": stack}, "shape": {"vocab_size": 63}}


def plain(config: DictConfig) -> dict[str, Any]:
    return cast(dict[str, Any], OmegaConf.to_container(config, resolve=True))


def test_a_setting_that_is_put_back_to_null_is_another_one() -> None:
    earlier, now = network(sliding_windows=[2]), network(sliding_windows=None)
    assert changed_settings(earlier, now) == ["model.decoder.attention.sliding_windows=[2]"]
    assert changed_settings(now, earlier) == ["model.decoder.attention.sliding_windows=None"]
    assert changed_settings(now, now) == []


@pytest.mark.parametrize("model", ["full", "t5gemma/style"], ids=["one table", "two tables"])
def test_what_the_data_decide_is_no_difference(model: str, chosen: Callable[..., DictConfig]) -> None:
    now, earlier = chosen(f"model={model}"), chosen(f"model={model}", "shape.vocab_size=63")
    assert changed_settings(plain(earlier), plain(now)) == []
    assert "shape.vocab_size=None" in changed_settings(plain(now), plain(earlier))


def test_the_network_is_another_one_by_its_parts_not_by_its_dropout() -> None:
    earlier, now = network(sliding_windows=[2], dropout=0.1), network(sliding_windows=[3], dropout=0.2)
    now["model"]["decoder"]["dropout"] = 0.3
    assert changed_settings(earlier, now, of=differs_in_network) == ["model.decoder.attention.sliding_windows=[2]"]
    assert len(changed_settings(earlier, now)) == 3


@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        (["model=full"], ["model=decoder_only"], ["model=full"]),
        (["model=prefix_lm"], ["model=decoder_only"], ["model=prefix_lm"]),
        (["task=translation"], ["task=classification"], ["task=translation"]),
        (["model=full", "seed=3"], ["model=encoder_only", "seed=4"], ["model=full", "seed=3"]),
        (["data=dates"], ["data=digits"], ["data._target_=triptych.data.Dates"]),
    ],
)
def test_another_model_or_task_is_named_by_its_choice_alone(
    was: list[str], now: list[str], said: list[str], chosen: Callable[..., DictConfig]
) -> None:
    assert sorted(changed_settings(plain(chosen(*was)), plain(chosen(*now)))) == said


@pytest.mark.parametrize(
    ("named", "best"),
    [({}, 0.25), ({"monitor": ["val/loss", "min"]}, 0.25), ({"monitor": ["val/accuracy", "max"]}, math.inf)],
    ids=["older", "the same", "another"],
)
def test_the_best_counts_for_the_configured_metric(named: dict[str, Any], best: float, tmp_path: Path) -> None:
    """Older checkpoints do not name the metric of theirs."""
    callback = CheckpointSaver(
        dirpath=str(tmp_path), every_n_steps=1, every_n_minutes=None, keep_latest=1, monitor="val/loss", mode="min",
        async_save=False,
    )  # fmt: skip
    state = {"best": 0.25, "best_step": 3, "pending_validation": True, "should_stop": False}
    callback.load_state_dict(state | named)
    now = callback.state_dict()
    assert (now["best"], now["best_step"]) == (best, 3 if best == 0.25 else 0)
    assert now["pending_validation"]


@pytest.mark.parametrize(("seconds", "is_time"), [(119.0, 0), (120.0, 1)])
def test_a_checkpoint_is_due_after_so_many_minutes(
    seconds: float, is_time: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    callback = CheckpointSaver(
        dirpath=str(tmp_path), every_n_steps=None, every_n_minutes=2, keep_latest=1, monitor="val/loss", mode="min",
        async_save=False,
    )  # fmt: skip
    callback._saved_at = now - seconds
    trainer: Any = SimpleNamespace(world_size=1)
    (seen,) = callback._agree(trainer).wait()
    assert seen.tolist() == [0, is_time]
