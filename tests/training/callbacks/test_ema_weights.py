"""The moving average of the weights, against its definition in float64."""

import math
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader

from triptych.training import EMAWeights
from triptych.training.callbacks.ema_weights import update_average


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=60), st.sampled_from([0.0, 0.5, 0.9, 0.999]))
def test_average_is_its_definition(values: list[float], decay: float) -> None:
    weights = torch.nn.Linear(1, 1, bias=False).double()
    averaged = AveragedModel(weights)
    expected = values[0]
    for t, value in enumerate(values):
        torch.nn.init.constant_(weights.weight, value)
        update_average(averaged, weights, decay)
        if t:
            d = min(decay, (1 + t) / (10 + t))
            expected = d * expected + (1 - d) * value
    assert averaged.module.weight.item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("steps", [100, 400, 2000, 8000])
def test_average_is_of_the_last_steps_however_few_there_are(steps: int) -> None:
    """The share of each update's weights in the average: its mean age is a tenth of the training, until it is that of
    the decay, and nothing is left of the start."""
    shares = np.zeros(steps)
    shares[0] = 1
    for t in range(1, steps):
        d = min(0.999, (1 + t) / (10 + t))
        shares[:t] *= d
        shares[t] = 1 - d
    averaged = AveragedModel(weight := torch.nn.Linear(steps, 1, bias=False).double())
    for t in range(steps):
        weight.weight.data = torch.nn.functional.one_hot(torch.tensor([t]), steps).double()
        update_average(averaged, weight, 0.999)
    measured = averaged.module.weight.detach().numpy()[0]
    assert measured == pytest.approx(shares, abs=1e-12)
    age = float((measured * np.arange(steps)[::-1]).sum())
    assert age == pytest.approx(min(steps / 10, 1000), rel=0.2)
    assert measured[: steps // 10].sum() < 1e-3


class Line(L.LightningModule):
    """One weight, whose gradient is one: after update t it is -t."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.register_buffer("table", torch.tensor([1 / 3]))
        self.validated: list[float] = []

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return self.weight.sum()

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.validated.append(self.weight.item())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1.0)


def test_average_is_validated_and_left_at_the_end() -> None:
    module, data = Line(), DataLoader(torch.zeros(5), batch_size=1)
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=1, callbacks=[EMAWeights()], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
    )  # fmt: skip
    trainer.fit(module, data, DataLoader(torch.zeros(1)))
    expected = -1.0
    for t in range(1, 5):
        d = (1 + t) / (10 + t)
        expected = d * expected - (1 - d) * (t + 1)
    assert module.validated == [pytest.approx(expected)]
    assert module.weight.item() == pytest.approx(expected)
    assert module.table.item() == torch.tensor(1 / 3).item()  # not averaged


class Wave(Line):
    """Its gradient changes its sign."""

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return (self.weight * math.sin(batch_idx)).sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.1, eps=1e-4)


class SaveAfter(L.Callback):
    """A checkpoint in the middle of the training, before a validation."""

    def __init__(self, step: int, path: Path) -> None:
        self.step, self.path = step, path

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any, **kwargs: Any) -> None:
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)


@pytest.mark.parametrize(("precision", "dtype"), [("bf16-true", torch.bfloat16), ("16-true", torch.float16)])
class TestWeightsIn16Bits:
    """Whose average is in float32: a step of a thousandth would be rounded away."""

    def fit(self, module: Line, folder: Path, precision: Any, *, save_after: int, start: Path | None = None) -> Any:
        """Twenty steps with a validation after each fourth."""
        path = folder / f"{save_after}.ckpt"
        trainer = L.Trainer(
            accelerator="cpu", max_epochs=1, callbacks=[EMAWeights(), SaveAfter(save_after, path)], logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
            precision=precision, val_check_interval=4,
        )  # fmt: skip
        data = DataLoader(torch.zeros(20), batch_size=1)
        trainer.fit(module, data, DataLoader(torch.zeros(1)), ckpt_path=start, weights_only=True)
        return torch.load(path, weights_only=True)

    def test_it_is_saved_beside_them(self, precision: str, dtype: torch.dtype, tmp_path: Path) -> None:
        module = Line()
        checkpoint = self.fit(module, tmp_path, precision, save_after=19)
        averages = [-1.0]
        for t in range(1, 20):
            d = (1 + t) / (10 + t)
            averages.append(d * averages[-1] - (1 - d) * (t + 1))
        average = checkpoint["state_dict"]["weight"]
        assert average.dtype == torch.float32
        assert average.item() == pytest.approx(averages[18], rel=1e-6)
        assert torch.equal(checkpoint["current_model_state"]["weight"], torch.tensor([-19.0], dtype=dtype))
        rounded = torch.tensor(averages, dtype=torch.float32).to(dtype)
        assert module.validated == rounded[3::4].tolist()
        assert module.weight.detach().equal(rounded[-1:])
        assert module.table.item() == torch.tensor(1 / 3).to(dtype).item()

    def test_a_resumed_run_ends_at_the_same_bits(self, precision: str, dtype: torch.dtype, tmp_path: Path) -> None:
        straight, first, resumed = Wave(), Wave(), Wave()
        expected = self.fit(straight, tmp_path, precision, save_after=20)
        self.fit(first, tmp_path, precision, save_after=10)
        found = self.fit(resumed, tmp_path, precision, save_after=20, start=tmp_path / "10.ckpt")
        for name in ("state_dict", "current_model_state", "averaging_state"):
            assert found[name].keys() == expected[name].keys()
            assert all(torch.equal(found[name][key], value) for key, value in expected[name].items())
        assert resumed.validated == straight.validated[2:]
        assert torch.equal(resumed.weight, straight.weight)


@pytest.mark.parametrize("decay", [-0.1, 1.0, float("nan")])
def test_decay_that_is_none_is_rejected(decay: float) -> None:
    with pytest.raises(ValueError, match="decay="):
        EMAWeights(decay)
