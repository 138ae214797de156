"""The moving average of the weights, against its definition in float64."""

import lightning as L
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader

from triptych.training import MovingAverage
from triptych.training.callbacks.moving_average import average_with


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=60), st.sampled_from([0.0, 0.5, 0.9, 0.999]))
def test_average_is_its_definition(values: list[float], decay: float) -> None:
    weights = torch.nn.Linear(1, 1, bias=False).double()
    averaged = AveragedModel(weights, multi_avg_fn=average_with(decay))
    expected = values[0]
    for t, value in enumerate(values):
        torch.nn.init.constant_(weights.weight, value)
        averaged.update_parameters(weights)
        if t:
            d = min(decay, (1 + t) / (10 + t))
            expected = d * expected + (1 - d) * value
    assert averaged.module.weight.item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("updates", [100, 400, 2000, 8000])
def test_average_is_of_the_last_updates_however_few_there_are(updates: int) -> None:
    """The share of each update's weights in the average: its mean age is a tenth of the training, until it is that of
    the decay, and nothing is left of the start."""
    shares = np.zeros(updates)
    shares[0] = 1
    for t in range(1, updates):
        d = min(0.999, (1 + t) / (10 + t))
        shares[:t] *= d
        shares[t] = 1 - d
    averaged = AveragedModel(
        weight := torch.nn.Linear(updates, 1, bias=False).double(), multi_avg_fn=average_with(0.999)
    )
    for t in range(updates):
        weight.weight.data = torch.nn.functional.one_hot(torch.tensor([t]), updates).double()
        averaged.update_parameters(weight)
    measured = averaged.module.weight.detach().numpy()[0]
    assert measured == pytest.approx(shares, abs=1e-12)
    age = float((measured * np.arange(updates)[::-1]).sum())
    assert age == pytest.approx(min(updates / 10, 1000), rel=0.2)
    assert measured[: updates // 10].sum() < 1e-3


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
        accelerator="cpu", max_epochs=1, callbacks=[MovingAverage()], logger=False, enable_checkpointing=False,
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


@pytest.mark.parametrize("decay", [-0.1, 1.0, float("nan")])
def test_decay_that_is_none_is_refused(decay: float) -> None:
    with pytest.raises(ValueError, match="decay="):
        MovingAverage(decay)
