"""What the runs of a study say to its claims: against scipy, and against counting by hand."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from triptych.config import ConfigError
from triptych.report.page.charts import draw_costs, draw_validation
from triptych.report.read_records import RecordedRun, find_runs
from triptych.report.statistics.groups import group_runs
from triptych.report.statistics.reach import reach
from triptych.studies.findings import judge_claims
from triptych.studies.study import Claim, Study

FULL, DECODER = (0.95, 0.96, 0.97), (0.80, 0.81, 0.85)


def runs_of(write_run, folder: Path, num_answers: int = 10, **values: Sequence[float]) -> list[RecordedRun]:
    """Runs of classification, an architecture per variant, a value per seed."""
    for architecture, found in values.items():
        for seed, value in enumerate(found, 1):
            answers = [
                {
                    "input": "x",
                    "reference": "a",
                    "output": "a" if i < num_answers * value else "b",
                    "difficulty": {"length": i},
                }
                for i in range(num_answers)
            ]
            changes = {"train_difficulty_range": {"length": [0, 5]}}
            write_run(
                architecture, "classification", {"test/accuracy": value}, seed=seed, answers=answers, changes=changes,
                settings={"init_from": f"before/{seed}"},
            )  # fmt: skip
    return [replace(run, variant=run.architecture) for run in find_runs([folder / "runs"], folder).runs]


def study(*claims: Claim) -> Study:
    return Study("Which?", "", "", {"full": "", "decoder_only": ""}, list(claims), name="mine", place="mine.yaml")


def claim(**options: object) -> Claim:
    return Claim(statement="So", rationale="of that", **options)  # type: ignore[arg-type]


BETTER = {"better": ["full", "decoder_only"]}


def test_three_claims(write_run, tmp_path: Path) -> None:
    """Their p-values are corrected together; each way round is found."""
    runs = runs_of(write_run, tmp_path, full=FULL, decoder_only=DECODER)
    claims = [
        claim(**BETTER),
        claim(better=["decoder_only", "full"]),
        claim(equivalent=["full", "decoder_only"], margin=0.01),
    ]
    first, second, third = judge_claims(study(*claims), runs, {})
    rounding = 0.1**2 / 12  # of ten answers
    a, b = ((np.var(values, ddof=1) + rounding) / 3 for values in (FULL, DECODER))
    difference, error, freedom = np.mean(FULL) - np.mean(DECODER), np.sqrt(a + b), 2 * (a + b) ** 2 / (a**2 + b**2)
    p = [2 * stats.t.sf(difference / error, freedom)] * 2 + [2 * stats.t.sf((difference - 0.01) / error, freedom)]
    assert [one.p for one in (first, second, third)] == pytest.approx([3 * p[0], 3 * p[0], max(3 * p[0], p[2])])
    assert [one.outcome for one in (first, second, third)] == ["as predicted", "not as predicted", "not as predicted"]
    low, high = (100 * (difference + side * error * stats.t.ppf(0.975, freedom)) for side in (-1, 1))
    assert f"14.0 points higher (95 % interval {low:.1f} to {high:.1f} points)" in first.text
    assert f"14.0 points lower (95 % interval {low:.1f} to {high:.1f} points)" in second.text
    assert "full 96.0 % (3 seeds) vs. decoder only 82.0 % (3 seeds)" in first.text


def test_what_is_not_decided_names_the_command(write_run, tmp_path: Path) -> None:
    runs = runs_of(write_run, tmp_path, full=(0.9, 0.8, 0.85), decoder_only=(0.82, 0.84, 0.8))
    (one,) = judge_claims(study(claim(**BETTER)), runs, {})
    assert one.outcome == "inconclusive"
    assert one.command == "triptych study mine.yaml 'seed=range(1,28)'"


def test_beyond_the_training(write_run, tmp_path: Path) -> None:
    """Of ten examples four are longer than those of the training; of 9 right answers 3 are among them, of 8 2."""
    runs = runs_of(write_run, tmp_path, full=(0.9, 0.8), decoder_only=(0.7, 0.6))
    (one,) = judge_claims(study(claim(**BETTER, extrapolate="length")), runs, {})
    assert one.values == {"full": [3 / 4, 2 / 4], "decoder_only": [1 / 4, 0.0]}
    assert one.what == "accuracy beyond the training length"
    with pytest.raises(ConfigError, match="no test example is known to be beyond the training depth"):
        judge_claims(study(claim(**BETTER, extrapolate="depth")), runs, {})


def test_of_one_difficulty(write_run, tmp_path: Path) -> None:
    """The answers of each length, counted by hand."""
    runs = runs_of(write_run, tmp_path, full=(0.9, 0.8), decoder_only=(0.7, 0.6))
    lengths = {answer["difficulty"]["length"] for answer in runs[0].predictions}
    for length in lengths:
        (one,) = judge_claims(study(claim(**BETTER, difficulty={"length": length})), runs, {})
        for variant, values in one.values.items():
            for run in (run for run in runs if run.variant == variant):
                own = [answer for answer in run.predictions if answer["difficulty"]["length"] == length]
                hits = sum(answer["output"] == answer["reference"] for answer in own)
                assert values[run.seed - 1] == pytest.approx(hits / len(own))
        assert one.what == f"accuracy at length {length}"
    with pytest.raises(ConfigError, match=r"no test example is known to have the difficulty {'length': 77}"):
        judge_claims(study(claim(**BETTER, difficulty={"length": 77})), runs, {})


def test_cost_until(write_run, tmp_path: Path) -> None:
    """Counted in the curves by hand; what a run has not reached is more than all that it had."""
    runs = runs_of(write_run, tmp_path, full=FULL, decoder_only=DECODER)
    (one,) = judge_claims(study(claim(**BETTER, target_score=0.7, cost_unit="train_flops")), runs, {})
    for run in runs:
        curve = run.curves["val/accuracy"]
        step = next(step for step, value in zip(curve.steps, curve.values, strict=True) if value >= 0.7)
        assert one.values[run.variant][run.seed - 1] == 3.9e9 * step
    (far,) = judge_claims(study(claim(**BETTER, target_score=0.9)), runs, {})
    assert far.shown["decoder_only"] == "not reached within 800 (0 of 3 runs reached it)"
    assert far.outcome == "as predicted"
    (wrong,) = judge_claims(study(claim(better=["decoder_only", "full"], target_score=0.9)), runs, {})
    assert wrong.outcome == "not as predicted"
    (neither,) = judge_claims(study(claim(**BETTER, target_score=2.0)), runs, {})
    assert neither.outcome == "inconclusive"


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
        assert reached.costs[contender.name]["steps"] == sum(min(step + 1, 800) for step in steps) / 3
        assert reached.costs[contender.name]["train_flops"] == pytest.approx(3.9e9 * sum(steps) / 3)


def test_operations_that_are_not_counted_alike_are_not_compared(write_run, tmp_path: Path) -> None:
    """Of runs of several versions: updates and seconds still are."""
    runs = runs_of(write_run, tmp_path, full=FULL, decoder_only=DECODER)
    runs = [replace(runs[0], train_flops_of=("forward", "backward", "optimizer")), *runs[1:]]
    (group,) = group_runs(runs)
    reached = reach(group)
    assert reached is not None
    assert {clock for costs in reached.costs.values() for clock in costs} == {"steps", "elapsed_s"}
    assert "FLOPs" not in draw_costs(group).keys() | draw_validation(group).keys()
    with pytest.raises(ConfigError, match="count the FLOPs of the optimizer; train the others"):
        judge_claims(study(claim(**BETTER, target_score=0.7, cost_unit="train_flops")), runs, {})


def test_scores_of_different_computations_are_not_compared(write_run, tmp_path: Path) -> None:
    runs = runs_of(write_run, tmp_path, full=FULL, decoder_only=DECODER)
    runs = [replace(run, signatures={"accuracy": f"tok:{i}"}) for i, run in enumerate(runs)]
    with pytest.raises(
        ConfigError, match=r"study mine: full, decoder_only are not comparable: .* with different settings"
    ):
        judge_claims(study(claim(**BETTER)), runs, {})


def test_alike(write_run, tmp_path: Path) -> None:
    """Within the margin, beyond it, or neither: a mean outside of it is not enough, nor an interval that excludes 0."""
    runs = runs_of(write_run, tmp_path, 1000, full=(0.70, 0.71, 0.72), decoder_only=(0.66, 0.67, 0.68))
    margins = {0.14: "as predicted", 0.05: "inconclusive", 0.001: "not as predicted"}
    for margin, outcome in margins.items():
        (one,) = judge_claims(study(claim(equivalent=["full", "decoder_only"], margin=margin)), runs, {})
        assert one.outcome == outcome, (margin, one.p)
        assert f"for the test against the margin of {margin:g}" in one.text
    (tight,) = judge_claims(study(claim(equivalent=["full", "decoder_only"], margin=0.2)), runs, {})
    assert (tight.outcome, tight.command) == ("inconclusive", "")
    assert tight.reasons == ("both variants are within two margins of the ceiling",)
    (never,) = judge_claims(study(claim(equivalent=["full", "decoder_only"], margin=1000, target_score=2.0)), runs, {})
    assert never.outcome == "inconclusive"
    assert never.command == ""


@pytest.mark.parametrize(("least", "is_said"), [(0.2, True), (0.1, False), (None, False)])
def test_a_difference_that_matters_less(write_run, tmp_path: Path, least: float | None, is_said: bool) -> None:
    """The means differ by 0.14."""
    runs = runs_of(write_run, tmp_path, full=FULL, decoder_only=DECODER)
    (one,) = judge_claims(study(claim(**BETTER, min_difference=least)), runs, {})
    assert one.outcome == "as predicted"
    assert ("better by less than matters (0.2)" in one.text) == is_said


def test_negative_scores_are_scores(write_run, tmp_path: Path) -> None:
    for architecture, values in (("full", (-0.1, -0.12, -0.11)), ("decoder_only", (-0.5, -0.52, -0.51))):
        for seed, value in enumerate(values, 1):
            write_run(architecture, "similarity", {"test/pearson": value, "test/spearman": value}, seed=seed)
    runs = [replace(run, variant=run.architecture) for run in find_runs([tmp_path / "runs"], tmp_path).runs]
    (one,) = judge_claims(study(claim(**BETTER)), runs, {})
    assert one.values["full"] == [-0.1, -0.12, -0.11]
    assert one.outcome == "as predicted"
    assert "at least" not in one.text


def test_what_cannot_be_judged(write_run, tmp_path: Path) -> None:
    runs = runs_of(write_run, tmp_path, full=(0.9,), decoder_only=(0.8, 0.7))
    (one,) = judge_claims(study(claim(**BETTER)), runs, {})
    assert one.outcome == "inconclusive"
    assert one.reasons == ("full has 1 seed, expected at least 3", "decoder only has 2 seeds, expected at least 3")
    assert one.command == "triptych study mine.yaml 'seed=range(1,4)'"
    with pytest.raises(ConfigError, match="score=bleu: expected one of accuracy for classification"):
        judge_claims(study(claim(**BETTER, score="bleu")), runs, {})


def test_a_score_that_is_not_finite_is_a_failed_run(write_run, tmp_path: Path) -> None:
    runs = runs_of(write_run, tmp_path, full=FULL, decoder_only=(*DECODER, math.nan))
    (one,) = judge_claims(study(claim(**BETTER)), runs, {})
    assert one.shown["decoder_only"] == "82.0 % (3 seeds; 1 of 4 runs failed)"
    assert one.outcome == "as predicted"


def test_all_against_none_needs_three_seeds_for_one_claim_and_four_for_six(write_run, tmp_path: Path) -> None:
    """Barnard's p is 1/32 with three seeds and 1/128 with four."""
    for number, claims, outcome in [(3, 1, "as predicted"), (3, 2, "inconclusive"), (4, 6, "as predicted")]:
        folder = tmp_path / f"{number}{claims}"
        for architecture, value in (("full", 1.0), ("decoder_only", 0.0)):
            for seed in range(1, number + 1):
                metrics = {"test/bleu": 0.0, "test/exact_match": value}
                write_run(
                    architecture,
                    "translation",
                    metrics,
                    seed=seed,
                    name=f"{folder.name}",
                    optimum={"test/exact_match": 1.0},
                )
        found = [run for run in find_runs([tmp_path / "runs"], tmp_path).runs if run.directory.endswith(folder.name)]
        runs = [replace(run, variant=run.architecture) for run in found]
        one, *_ = judge_claims(study(*[claim(**BETTER)] * claims), runs, {})
        assert one.reasons == (() if outcome == "as predicted" else ("p is not below 5 % after Holm's correction",))
        assert (one.outcome, one.p) == (outcome, pytest.approx(claims * 2 * 0.5 ** (2 * number)))


def test_variants_at_the_floor_are_not_equivalent(write_run, tmp_path: Path) -> None:
    """At 0, 0 and 1 of 1,000 examples, the interval is within the margin because there is no room."""
    for architecture in ("full", "decoder_only"):
        for seed, value in enumerate((0.0, 0.0, 0.001), 1):
            write_run(architecture, "translation", {"test/exact_match": value}, seed=seed)
    runs = [replace(run, variant=run.architecture) for run in find_runs([tmp_path / "runs"], tmp_path).runs]
    (one,) = judge_claims(study(claim(equivalent=["full", "decoder_only"], margin=0.05)), runs, {})
    assert one.p < 0.001
    reasons = ("no variant is better than guessing", "both variants are within two margins of the floor")
    assert (one.outcome, one.reasons, one.command) == ("inconclusive", reasons, "")


@pytest.mark.parametrize("trials", [2, 24])
def test_unequal_numbers_of_trials_are_inconclusive(write_run, tmp_path: Path, trials: int) -> None:
    """The best of several configurations per seed against the only one."""
    runs = runs_of(write_run, tmp_path, full=FULL, decoder_only=DECODER)
    again = [replace(run, params=run.params + i) for run in runs if run.variant == "full" for i in range(1, trials)]
    (one,) = judge_claims(study(claim(**BETTER)), [*runs, *again], {})
    assert (one.outcome, one.command) == ("inconclusive", "")
    assert one.reasons == (f"unequal numbers of configurations were tried: {trials} of full and 1 of decoder_only",)


@pytest.mark.parametrize(("best", "outcome"), [(2e-3, "as predicted"), (4e-3, "inconclusive")])
def test_nothing_is_found_against_the_edge_of_what_was_tried(
    write_run, tmp_path: Path, best: float, outcome: str
) -> None:
    """Each variant has three rates; the best is that of the highest validation."""
    runs = []
    for run in runs_of(write_run, tmp_path, full=FULL, decoder_only=DECODER):
        for lr in (1e-3, 2e-3, 4e-3):
            is_best = lr == (best if run.variant == "decoder_only" else 4e-3)
            metrics = {**run.metrics, "val/accuracy": 0.5 if is_best else 0.1}
            runs.append(replace(run, settings={"optimizer.lr": lr}, metrics=metrics))
    (one,) = judge_claims(study(claim(**BETTER)), runs, {})
    said = "the best optimizer.lr of decoder only (0.004) is the largest tried; try 0.008"
    assert (one.outcome, one.reasons) == (outcome, () if best == 2e-3 else (said,))


def test_different_data_are_not_compared(write_run, tmp_path: Path) -> None:
    runs = runs_of(write_run, tmp_path, full=FULL, decoder_only=DECODER)
    runs = [replace(run, data_sha256=run.variant) for run in runs]
    with pytest.raises(ConfigError, match="not comparable: the runs did not use the same data"):
        judge_claims(study(claim(**BETTER)), runs, {})
