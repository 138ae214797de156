"""What the runs of a study say to its claims: against scipy, and against counting by hand."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from scipy import stats

from triptych.config import ConfigError
from triptych.report.read_records import Run, find_runs
from triptych.report.statistics.reach import reach
from triptych.report.statistics.verdicts import group_runs
from triptych.studies.findings import find
from triptych.studies.study import Claim, Study

FULL, DECODER = (0.95, 0.96, 0.97), (0.80, 0.81, 0.85)


def runs_of(write_run, folder: Path, **values: Sequence[float]) -> list[Run]:
    """Runs of classification, an arm an architecture, a value a seed."""
    for architecture, found in values.items():
        for seed, value in enumerate(found, 1):
            answers = [
                {"input": "x", "reference": "a", "output": "a" if i < 10 * value else "b", "difficulty": {"length": i}}
                for i in range(10)
            ]
            changes = {"training_range": {"length": [0, 5]}}
            write_run(
                architecture, "classification", {"test/accuracy": value}, seed=seed, answers=answers, changes=changes,
                settings={"init_from": f"before/{seed}"},
            )  # fmt: skip
    return [replace(run, arm=run.architecture) for run in find_runs([folder / "runs"], folder).runs]


def study(*claims: Claim) -> Study:
    return Study("Which?", "", "", {"full": "", "decoder_only": ""}, list(claims), name="mine")


def claim(**options: object) -> Claim:
    return Claim(says="So", because="of that", **options)  # type: ignore[arg-type]


BETTER = {"better": ["full", "decoder_only"]}


def test_three_claims(write_run, tmp_path: Path) -> None:
    """Their p-values are corrected together; each way round is found."""
    runs = runs_of(write_run, tmp_path, full=FULL, decoder_only=DECODER)
    claims = [
        claim(**BETTER),
        claim(better=["decoder_only", "full"]),
        claim(alike=["full", "decoder_only"], within=0.01),
    ]
    first, second, third = find(study(*claims), runs)
    p = stats.ttest_ind(FULL, DECODER, equal_var=False).pvalue
    assert (first.p, second.p) == pytest.approx((3 * p, 3 * p))
    assert [one.outcome for one in (first, second, third)] == ["as predicted", "not as predicted", "not as predicted"]
    low, high = stats.ttest_ind(FULL, DECODER, equal_var=False).confidence_interval(0.95)
    assert f"14.0 points more (95 % interval {100 * low:.1f} to {100 * high:.1f} points)" in first.text
    assert f"14.0 points less (95 % interval {100 * low:.1f} to {100 * high:.1f} points)" in second.text
    assert "full 96.0 % against decoder only 82.0 % (means of 3 seeds)" in first.text


def test_what_is_not_decided_names_the_command(write_run, tmp_path: Path) -> None:
    runs = runs_of(write_run, tmp_path, full=(0.9, 0.8, 0.85), decoder_only=(0.82, 0.84, 0.8))
    (one,) = find(study(claim(**BETTER)), runs)
    assert one.outcome == "not decided"
    assert one.command == "triptych study mine 'seed=range(1,28)'"


def test_beyond_the_training(write_run, tmp_path: Path) -> None:
    """Of ten examples four are longer than those of the training; of 9 right answers 3 are among them, of 8 2."""
    runs = runs_of(write_run, tmp_path, full=(0.9, 0.8), decoder_only=(0.7, 0.6))
    (one,) = find(study(claim(**BETTER, beyond="length")), runs)
    assert one.values == {"full": [3 / 4, 2 / 4], "decoder_only": [1 / 4, 0.0]}
    assert one.what == "accuracy beyond the length of the training"
    with pytest.raises(ConfigError, match="no test example is known to be beyond the depth"):
        find(study(claim(**BETTER, beyond="depth")), runs)


def test_cost_until(write_run, tmp_path: Path) -> None:
    """Counted in the curves by hand; what a run has not reached is more than all that it had."""
    runs = runs_of(write_run, tmp_path, full=FULL, decoder_only=DECODER)
    (one,) = find(study(claim(**BETTER, until=0.7, cost="train_flops")), runs)
    for run in runs:
        curve = run.curves["val/accuracy"]
        step = next(step for step, value in zip(curve.steps, curve.values, strict=True) if value >= 0.7)
        assert one.values[run.arm][run.seed - 1] == 3.9e9 * step
    (far,) = find(study(claim(**BETTER, until=0.9)), runs)
    assert far.shown["decoder_only"] == "at least 800"
    assert far.outcome == "as predicted"
    (wrong,) = find(study(claim(better=["decoder_only", "full"], until=0.9)), runs)
    assert wrong.outcome == "not as predicted"
    (neither,) = find(study(claim(**BETTER, until=2.0)), runs)
    assert neither.outcome == "not decided"


def test_all_reach_what_the_least_good_reaches(write_run, tmp_path: Path) -> None:
    runs = runs_of(write_run, tmp_path, full=FULL, decoder_only=DECODER)
    (group,) = group_runs(runs)
    assert [len(contender.runs) for contender in group.contenders] == [3, 3]  # though each began from another run
    reached = reach(group)
    assert reached is not None
    best = {run.directory: max(run.curves["val/accuracy"].values) for run in runs}
    assert reached.target == min(best.values())
    for contender in group.contenders:
        steps = []
        for run in contender.runs:
            curve = run.curves["val/accuracy"]
            values = zip(curve.steps, curve.values, strict=True)
            steps.append(next(step for step, value in values if value >= reached.target))
        assert reached.costs[contender.name]["updates"] == sum(steps) / 3 + 1
        assert reached.costs[contender.name]["train_flops"] == pytest.approx(3.9e9 * sum(steps) / 3)


def test_what_cannot_be_judged(write_run, tmp_path: Path) -> None:
    runs = runs_of(write_run, tmp_path, full=(0.9,), decoder_only=(0.8, 0.7))
    with pytest.raises(ConfigError, match="arm full: 1 seeds; expected two at least"):
        find(study(claim(**BETTER)), runs)
    with pytest.raises(ConfigError, match="score=bleu: the runs of classification have accuracy"):
        find(study(claim(**BETTER, score="bleu")), runs)
