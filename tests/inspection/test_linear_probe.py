"""Probes against scipy's minimum, and on states whose answer is known."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import logsumexp
from torch.testing import assert_close

from triptych.inspection import LinearProbe, control_labels


def test_a_probe_is_the_minimum_that_scipy_finds() -> None:
    states, labels = 3 * torch.randn(60, 4, dtype=torch.float64) + 1, torch.randint(3, (60,))
    x, y = ((states - states.mean(0)) / states.std(0)).numpy(), labels.numpy()

    def loss(flat: np.ndarray) -> float:
        weight, bias = flat[:12].reshape(3, 4), flat[12:]
        z = x @ weight.T + bias
        return float((logsumexp(z, 1) - z[np.arange(60), y]).mean() + 0.05 * (weight**2).sum())

    best = minimize(loss, np.zeros(15), tol=1e-12).x
    probe = LinearProbe(states.float(), labels, weight_decay=0.1)
    assert_close(probe.linear.weight.detach(), torch.tensor(best[:12].reshape(3, 4)), atol=1e-4, rtol=0)
    logits = torch.tensor(x @ best[:12].reshape(3, 4).T + best[12:])
    assert_close(probe(states).detach().softmax(-1), logits.softmax(-1), atol=1e-4, rtol=0)


def test_a_probe_reads_what_is_there_and_only_that() -> None:
    """The first unit is the class; without it, the probe guesses the commonest class."""
    torch.manual_seed(0)
    labels = (torch.rand(3000) < 0.3).long()
    states = torch.cat((labels[:, None] + 0.05 * torch.randn(3000, 1), torch.randn(3000, 7)), 1)
    seen, new = slice(2000), slice(2000, None)
    assert LinearProbe(states[seen], labels[seen]).accuracy(states[new], labels[new]) == 1.0
    blind = LinearProbe(states[seen, 1:], labels[seen]).accuracy(states[new, 1:], labels[new])
    assert blind == pytest.approx(0.7, abs=0.04)


def test_control_labels_belong_to_words_and_are_drawn_as_often_as_the_labels() -> None:
    words = [f"w{i % 4000}" for i in range(8000)]
    labels = (torch.rand(8000) < 0.2).long()
    control = control_labels(words, labels, seed=3)
    assert torch.equal(control[:4000], control[4000:])
    assert torch.equal(control, control_labels(words, labels, seed=3))
    assert float(control.double().mean()) == pytest.approx(float(labels.double().mean()), abs=0.03)
    assert not torch.equal(control, control_labels(words, labels, seed=4))


def test_a_probe_of_words_learns_the_control_task_and_not_for_new_words() -> None:
    """States are random vectors of 40 words in 64 units: a linear probe can memorize any labels of them."""
    torch.manual_seed(0)
    vectors, numbers = torch.randn(40, 64), torch.randint(40, (800,))
    labels = control_labels(numbers.tolist(), torch.arange(2).repeat(400))
    probe = LinearProbe(vectors[numbers[:400]], labels[:400])
    assert probe.accuracy(vectors[numbers[400:]], labels[400:]) > 0.95


def test_errors() -> None:
    with pytest.raises(ValueError, match="a probe of 4 states with 3 labels: expected a label per state"):
        LinearProbe(torch.randn(4, 2), torch.tensor([0, 1, 0]))
    with pytest.raises(ValueError, match="at least two classes"):
        LinearProbe(torch.randn(4, 2), torch.zeros(4, dtype=torch.long))
    states, labels = torch.randn(4, 2), torch.tensor([0, 1, 0, 1])
    probe = LinearProbe(states, labels == 1)
    for call, message in (
        (
            lambda: LinearProbe(states, torch.tensor([0, 1, -100, 1])),
            "label -100: expected numbers from 0 on",
        ),
        (lambda: LinearProbe(states, labels * 10**12), "label 1000000000000: expected numbers from 0 on, fewer than"),
        (lambda: LinearProbe(states * math.nan, labels), "states that are not finite"),
        (lambda: LinearProbe(states[None], labels), r"states of shape \(1, 4, 2\) .*expected \(examples, width\)"),
        (lambda: LinearProbe(states, labels, weight_decay=-1.0), "weight_decay=-1.0: expected at least 0"),
        (lambda: probe.accuracy(states, labels[:1]), "4 states with 1 labels: expected a label per state"),
        (lambda: probe.accuracy(states[:0], labels[:0]), "0 states with 0 labels"),
        (lambda: probe.accuracy(states[:, :1], labels), "states of width 1; the probe was trained on 2"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
