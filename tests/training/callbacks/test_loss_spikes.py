"""Spikes of the loss: few false alarms in healthy series, and real ones found. The series are synthetic, with known
noise, or the losses of a real training by gradient descent; what is planted is known."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import Float
from torch import nn

from triptych.training import LossSpikeMonitor

Series = Float[np.ndarray, " steps"]


def healthy(steps: int, noise: float, autocorrelation: float, seed: int) -> tuple[Series, Series]:
    """Sizes, and losses that fall at first: log-normal around a level that depends on the size, as where the shortest
    texts are ambiguous (a few steps in each hundred) and the longest nearly certain."""
    draw = np.random.default_rng(seed)
    sizes = draw.integers(8, 31, steps) + draw.choice([0.0, 0.0, 0.3], steps)
    level = np.where(sizes < 10, 1.4, np.where(sizes < 13, 0.4, 0.02))
    drift = np.zeros(steps)
    for i, new in enumerate(draw.standard_normal(steps)):
        drift[i] = autocorrelation * drift[i - 1] + math.sqrt(1 - autocorrelation**2) * new
    # what varies is the share of hard examples: little where all are hard
    scatter = np.where(sizes < 10, 0.2, noise)
    return sizes, level * np.exp(scatter * drift) * (1 + 4 * np.exp(-np.arange(steps) / 80))


def spikes_of(sizes: Series, losses: Series) -> list[int]:
    report = LossSpikeMonitor(factor=2.0, window=300)
    for update, (size, loss) in enumerate(zip(sizes.tolist(), losses.tolist(), strict=True), 1):
        report.look(update, loss, size)
    return report.spikes


@pytest.mark.parametrize("noise", [0.05, 0.2, 0.3])
@pytest.mark.parametrize("autocorrelation", [0.0, 0.9])
def test_healthy_series_are_silent(noise: float, autocorrelation: float) -> None:
    """At most three false alarms in 10,000 steps."""
    false = [spikes_of(*healthy(2000, noise, autocorrelation, seed)) for seed in range(5)]
    assert sum(map(len, false)) <= 3, false


@given(
    update=st.integers(400, 900),
    noise=st.sampled_from([0.05, 0.3]),
    autocorrelation=st.sampled_from([0.0, 0.9]),
    seed=st.integers(0, 10**6),
)
def test_a_batch_that_is_worse_than_chance_is_found(
    update: int, noise: float, autocorrelation: float, seed: int
) -> None:
    sizes, losses = healthy(1000, noise, autocorrelation, seed)
    losses[update - 1] = 12.0
    assert update in spikes_of(sizes, losses)


@given(noise=st.sampled_from([0.05, 0.3]), seed=st.integers(0, 10**6))
def test_a_rise_that_lasts_is_told_once_and_later_ones_too(noise: float, seed: int) -> None:
    sizes, losses = healthy(1400, noise, 0.0, seed)
    losses[600:640] += 6  # as after an update that is much too large
    found = spikes_of(sizes, losses)
    assert 601 in found
    assert len([spike for spike in found if spike <= 650]) <= 2
    losses[1200] = 20.0  # once the first is forgotten
    assert 1201 in spikes_of(sizes, losses)


def test_steps_that_are_left_out_leave_no_trace() -> None:
    sizes, losses = healthy(800, 0.3, 0.0, 1)
    losses[[300, 500]] = math.nan, math.inf
    losses[700] = 12.0
    assert spikes_of(sizes, losses) == [701]


@pytest.mark.parametrize("fault", ["none", "learning rate", "labels"])
def test_a_training_by_gradient_descent(fault: str) -> None:
    """Short inputs, whose labels are half chance, and long ones. In update 500 the learning rate is 300 times as high,
    which the next loss shows; or the labels are wrong."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 4))
    truth, report = torch.randn(20, 4), LossSpikeMonitor(factor=2.0, window=300)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for update in range(1, 701):
        size = 10 if update % 7 == 0 else 20 + update % 5
        inputs = torch.randn(64, 20)
        labels = (inputs @ truth).argmax(1)
        if size == 10:
            labels = torch.where(torch.rand(64) < 0.5, labels, torch.randint(4, (64,)))
        if fault == "labels" and update == 500:
            labels = (labels + 1) % 4
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.param_groups[0]["lr"] = 30 if fault == "learning rate" and update == 500 else 0.1
        optimizer.step()
        report.look(update, loss.item(), size)
    assert report.spikes[:1] == {"none": [], "learning rate": [501], "labels": [500]}[fault]
    assert len(report.spikes) <= 2


def test_what_a_checkpoint_keeps() -> None:
    sizes, losses = healthy(700, 0.3, 0.5, 3)
    losses[600] = 12.0
    first, second = (LossSpikeMonitor(factor=2.0, window=300) for _ in range(2))
    for update in range(1, 401):
        first.look(update, losses[update - 1], sizes[update - 1])
    second.load_state_dict(first.state_dict())
    for update in range(401, 701):
        second.look(update, losses[update - 1], sizes[update - 1])
    assert second.spikes == spikes_of(sizes, losses) == [601]
