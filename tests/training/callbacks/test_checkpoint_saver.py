"""A run that stopped early, and what resumes it, in this process."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from omegaconf import DictConfig
from safetensors.torch import load_file

import tiny
from triptych.train import train

STOPS = ["callbacks=[default,early_stopping]", "+callbacks.early_stopping.min_delta=10.0"]
"""After the first validation no other counts as better."""


def patience(number: int) -> list[str]:
    return [*STOPS, f"callbacks.early_stopping.patience={number}"]


@pytest.fixture
def finish(chosen: Callable[..., DictConfig], tmp_path: Path) -> Callable[..., tuple[int, dict[str, torch.Tensor]]]:
    """Trains, with a validation after each second step; gives the number of steps and the weights."""

    def run(name: str, *overrides: str) -> tuple[int, dict[str, torch.Tensor]]:
        steps = ["trainer.max_steps=10", "trainer.val_check_interval=2", "logger=csv"]
        result = train(chosen(*tiny.dates("classification_encoder_only"), *tiny.TINY, *steps,
                              f"run_dir={tmp_path / name}", *overrides))  # fmt: skip
        assert result is not None
        return result.record["steps"], load_file(tmp_path / name / "weights.safetensors")

    return run


@pytest.mark.parametrize(("again", "steps"), [([], 10), (patience(3), 8)], ids=["no early stopping", "patience 3"])
def test_a_resumed_run_stops_where_its_own_patience_says(
    again: list[str], steps: int, finish: Callable[..., tuple[int, dict[str, torch.Tensor]]], tmp_path: Path
) -> None:
    assert finish("stopped", *patience(1))[0] == 4
    resumed = finish("resumed", *again, f"resume={tmp_path / 'stopped'}")
    undisturbed = finish("undisturbed", *again)
    assert resumed[0] == undisturbed[0] == steps
    assert all(torch.equal(resumed[1][name], weights) for name, weights in undisturbed[1].items())


def test_a_run_that_stays_stopped_says_so_before_it_reads_data(
    finish: Callable[..., tuple[int, dict[str, torch.Tensor]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    _, weights = finish("stopped", *patience(2))
    stopped = tmp_path / "stopped"

    def read_corpus(config: DictConfig, name: str) -> None:
        assert f"resume={stopped} stopped early at step 6 (patience 2); nothing to train" in caplog.messages
        raise EOFError

    with monkeypatch.context() as patched, caplog.at_level(logging.INFO, "triptych"):
        patched.setattr("triptych.planning.prepare.read_corpus", read_corpus)
        with pytest.raises(EOFError):
            finish("resumed", *patience(2), f"resume={stopped}")
    caplog.clear()
    steps, same = finish("resumed", *patience(2), f"resume={stopped}")
    assert steps == 6
    assert "nothing to train" in caplog.text
    assert "resuming from" not in caplog.text
    assert all(torch.equal(same[name], tensor) for name, tensor in weights.items())
