"""Digits as tones: what they sound like, and what is known of the best listener."""

import math
from typing import Any

import numpy as np
import pytest

from triptych.data import ToneDigits
from triptych.data.corpora.tone_digits import HERTZ, RATE, STEP, TONE


def corpus(**options: Any) -> ToneDigits:
    settings: dict[str, Any] = {
        "min_digits": 1, "max_digits": 1, "noise": 3.0, "num_train": 20, "num_validation": 5, "num_test": 5, "seed": 1,
    }  # fmt: skip
    return ToneDigits(**settings | options)


def test_a_digit_is_two_tones() -> None:
    """Without noise, by the largest frequencies of its halves."""
    pairs = {}
    for example in corpus(noise=1e-3, num_train=60).splits().train:
        assert example.audio is not None
        samples = example.audio.samples
        heard = np.flatnonzero(np.abs(samples) > 0.1 * np.abs(samples).max())
        start, stop = heard[0] // STEP * STEP, -(-heard[-1] // STEP) * STEP
        assert stop - start == 2 * TONE
        assert start <= 4 * STEP >= len(samples) - stop
        halves = samples[start : start + TONE], samples[start + TONE : stop]
        tones = [round(int(np.abs(np.fft.rfft(half)).argmax()) * RATE / TONE) for half in halves]
        assert {*tones} <= {*HERTZ}
        assert tones[0] < tones[1]
        assert pairs.setdefault(example.label, tones) == tones
        assert example.label == example.target
    assert len({tuple(pair) for pair in pairs.values()}) == len(pairs) == 10


def test_strings() -> None:
    splits = corpus(min_digits=3, max_digits=6, num_train=200).splits()
    assert {len((example.target or "").split()) for example in splits.train} == {3, 4, 5, 6}
    assert all(example.label is None for example in splits.train)
    targets = [{example.target for example in split} for split in (splits.train, splits.validation)]
    assert not targets[0] & targets[1]
    assert corpus(min_digits=3, max_digits=6, num_train=7).splits().train == splits.train[:7]
    assert corpus().splits().train != corpus(seed=2).splits().train


def test_nothing_is_cut() -> None:
    for example in corpus(noise=8.0).splits().train:
        assert example.audio is not None
        assert np.abs(example.audio.samples).max() < 1


def test_the_evidence_of_a_tone_by_its_phases() -> None:
    """The mean over all phases of the ratio of the densities, in float64."""
    noisy = corpus(noise=2.0, num_test=3)
    for example in noisy.splits().test:
        assert example.audio is not None
        heard = example.audio.samples.astype(float) / noisy.loudness
        for start in (0, 2):
            x = heard[start * STEP : start * STEP + TONE]
            for tone, hertz in enumerate(HERTZ):
                ratios = []
                for phase in np.linspace(0, 2 * math.pi, 400, endpoint=False):
                    wave = np.cos(2 * math.pi * hertz * np.arange(TONE) / RATE + phase)
                    ratios.append((x**2 - (x - wave) ** 2).sum() / (2 * noisy.noise**2))
                expected = np.logaddexp.reduce(ratios) - math.log(len(ratios))
                assert noisy._evidence(example.audio)[start, tone] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("options", "task"), [({}, "classification"), ({"max_digits": 3}, "transcription")])
def test_the_best_listener_is_right_as_often_as_it_says(options: dict[str, int], task: str) -> None:
    noisy = corpus(noise=4.0, num_test=700, **options)
    test = noisy.splits().test
    found = [noisy.listen(example.audio) for example in test if example.audio is not None]
    right = [string == example.target for (string, _), example in zip(found, test, strict=True)]
    [(name, best)] = noisy.optimum(task, "", test).items()
    assert name == ("accuracy" if task == "classification" else "exact_match")
    spread = math.sqrt(sum(p * (1 - p) for _, p in found)) / len(found)
    assert abs(np.mean(right) - best) < 3 * spread
    assert 0.3 < best < 0.97


def test_nothing_is_known_of_other_tasks() -> None:
    digits = corpus()
    assert digits.optimum("tagging", "", digits.splits().test) == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_digits": 3}, "data.min_digits=3: expected 1 to data.max_digits=1"),
        ({"noise": 0.0}, "data.noise=0.0: expected more than 0"),
        ({"num_test": 0}, "data.num_test=0: expected at least 1"),
        ({"seed": -1}, "data.seed=-1: expected 0 or more"),
    ],
)
def test_mistakes(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        corpus(**options)
