"""How often a finding is false: simulated runs, judged by the public function."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import triptych.studies.findings
from triptych.report.read_records import Curve, find_runs
from triptych.studies.findings import judge_claims
from triptych.studies.study import Claim, Study

GRAIN, END = 50, 600
KEY = "val/exact_match"
STEPS = tuple(range(GRAIN - 1, END, GRAIN))

Outcome = Callable[..., str]


@pytest.fixture
def outcome(write_run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Outcome:
    """The outcome of a claim for scores, or for the steps at which runs reach a score. Charts are not drawn."""
    monkeypatch.setattr(triptych.studies.findings, "_draw", lambda claim, group: {})
    for architecture in ("full", "decoder_only"):
        write_run(architecture, "translation", {"test/exact_match": 0.5})
    full, decoder = find_runs([tmp_path], tmp_path).runs
    templates = {"full": full, "decoder_only": decoder}

    def outcome(claim: Claim, scores: list[np.ndarray], steps: list[np.ndarray] | None = None) -> str:
        runs = []
        for (name, run), values, times in zip(templates.items(), scores, steps or scores, strict=True):
            for seed, (value, time) in enumerate(zip(values, times, strict=True), start=1):
                curve = Curve(STEPS, tuple(float(step + 1 >= time) for step in STEPS))
                metrics = {"test/exact_match": float(value)}
                found = replace(run, seed=seed, metrics=metrics, steps=END, curves={KEY: curve}, variant=name)
                runs.append(found)
        study = Study("Which?", "", "", dict.fromkeys(templates, ""), [claim], name="mine", place="mine.yaml")
        return judge_claims(study, runs, {})[0].outcome

    return outcome


def claim_of(**options: object) -> Claim:
    own = {"better": ["full", "decoder_only"]} if "margin" not in options else {"equivalent": ["full", "decoder_only"]}
    return Claim(statement="So", rationale="of that", **own, **options)  # type: ignore[arg-type]


def rate(draws: int, work: Callable[[np.random.Generator], bool]) -> float:
    random = np.random.default_rng(draws)
    found = sum(work(random) for _ in range(draws)) / draws
    print(f"{draws} draws: {found:.2%}")
    return found


def slack(expected: float, draws: int, *, is_whole: bool) -> float:
    """Three standard errors, where there are fewer draws than the specification has."""
    return 0.0 if is_whole else 3 * math.sqrt(max(expected * (1 - expected), 0.01) / draws)


def check_times(outcome: Outcome, middle: float, spread: float, seeds: int, draws: int, *, is_whole: bool) -> None:
    """Both variants reach the score after log-normal times of one median and coefficient of variation."""
    width = math.sqrt(math.log1p(spread**2))
    claim = claim_of(target_score=0.5)

    def is_false(random: np.random.Generator) -> bool:
        times = [middle * np.exp(random.normal(0, width, seeds)) for _ in range(2)]
        return outcome(claim, [np.zeros(seeds)] * 2, times) != "inconclusive"

    assert rate(draws, is_false) <= 0.06 + slack(0.06, draws, is_whole=is_whole)


def check_equivalence(outcome: Outcome, draws: int, *, is_whole: bool) -> None:
    """Scores about 50 % with a standard deviation of 1 point, and a margin of 4 points: equal, and 4 points apart."""
    claim = claim_of(margin=0.04)

    def is_equivalent(gap: float) -> Callable[[np.random.Generator], bool]:
        def work(random: np.random.Generator) -> bool:
            scores = [random.normal(mean, 0.01, 3) for mean in (0.5, 0.5 + gap)]
            return outcome(claim, scores, [np.ones(3)] * 2) == "as predicted"

        return work

    assert rate(draws, is_equivalent(0.0)) >= 0.75 - slack(0.75, draws, is_whole=is_whole)
    assert rate(draws, is_equivalent(0.04)) <= 0.045 + slack(0.045, draws, is_whole=is_whole)


def check_floor(outcome: Outcome, draws: int) -> None:
    """At 0.2 % of 1,000 examples, variants that differ by 2 in log odds are never equivalent within 5 points."""
    odds = 0.002 / 0.998
    shares = [odds / (1 + odds), odds * math.e**2 / (1 + odds * math.e**2)]
    claim = claim_of(margin=0.05)

    def is_equivalent(random: np.random.Generator) -> bool:
        scores = [random.binomial(1000, share, 3) / 1000 for share in shares]
        return outcome(claim, scores, [np.ones(3)] * 2) == "as predicted"

    assert rate(draws, is_equivalent) == 0


TIMES = [(middle, cv, seeds) for middle, cv in ((300, 0.5), (550, 0.2), (600, 0.3)) for seeds in (3, 5)]


@pytest.mark.parametrize(("middle", "spread", "seeds"), TIMES)
def test_times_of_few_draws(outcome: Outcome, middle: float, spread: float, seeds: int) -> None:
    check_times(outcome, middle, spread, seeds, 100, is_whole=False)


def test_equivalence_of_few_draws(outcome: Outcome) -> None:
    check_equivalence(outcome, 100, is_whole=False)
    check_floor(outcome, 50)


@pytest.mark.nightly
@pytest.mark.parametrize(("middle", "spread", "seeds"), TIMES)
def test_times(outcome: Outcome, middle: float, spread: float, seeds: int) -> None:
    check_times(outcome, middle, spread, seeds, 4000, is_whole=True)


@pytest.mark.nightly
def test_equivalence(outcome: Outcome) -> None:
    check_equivalence(outcome, 1000, is_whole=True)
    check_floor(outcome, 300)
