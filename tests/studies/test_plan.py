"""Tuning: equal trials, extended for all at once, the best on the validation set, then seeds that no trial had."""

import json
import math
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from report.conftest import summary_of
from triptych.config import ConfigError
from triptych.launch.sweep import Job
from triptych.studies.findings import judge_claims
from triptych.studies.plan import StudyPlan, plan_study, read_runs
from triptych.studies.study import Claim, Study, values_of

CLAIM = Claim("So it is", "of that", better=["first", "second"])
Score = Callable[[str, float, int], float]


def make_study(**changes: object) -> Study:
    options: dict[str, object] = {
        "common": "task=classification seed=1,2,3",
        "variants": {"first": "model=encoder_only", "second": "model=decoder_only"},
        "claims": [CLAIM],
        "tune": "optimizer.lr=1e-3,2e-3,4e-3 seed=101",
        "name": "mine",
    }
    return Study("Which?", "", **{**options, **changes})  # type: ignore[arg-type]


def train(job: Job, score: float, test: float = 0.5) -> None:
    values = values_of(job.overrides)
    metrics = {"val/accuracy": score, "test/accuracy": test}
    summary = summary_of(values["model"], "classification", metrics, {}, int(values["seed"])) | {"train_flops": 200}
    summary["command"] = shlex.join(["triptych", "train", *job.arguments])
    job.directory.mkdir(parents=True, exist_ok=True)
    (job.directory / "summary.json").write_text(json.dumps(summary))
    settings = {"seed": int(values["seed"]), "optimizer": {"lr": float(values["optimizer.lr"])}}
    (job.directory / "config.yaml").write_text(json.dumps(settings))
    (job.directory / "metrics.csv").write_text(f"step,train_flops,val/accuracy\n49,100,{score / 2}\n99,200,{score}\n")


def train_all(study: Study, score: Score) -> StudyPlan:
    """Trains what can start, until nothing is left."""
    while left := [job for job in plan_study(study, []).startable if not job.is_done]:
        for job in left:
            values = values_of(job.overrides)
            name = job.directory.parent.name
            train(job, score(name, float(values["optimizer.lr"]), int(values["seed"])))
    return plan_study(study, [])


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def peak_at(**rates: float) -> Score:
    return lambda name, rate, seed: 0.9 - 0.1 * abs(math.log2(rate / rates[name])) - 0.001 * (seed % 7)


def test_the_best_trial_on_validation_is_trained_with_fresh_seeds() -> None:
    plan = plan_study(make_study(), [])
    assert not plan.jobs
    assert [job.overrides for job in plan.trials["second"]] == [
        ["task=classification", "seed=101", "model=decoder_only", f"optimizer.lr={rate}"]
        for rate in (0.001, 0.002, 0.004)
    ]
    assert {job.directory for job in plan.startable} == {
        Path(f"outputs/studies/mine/{name}/seed-101--optimizer.lr-{rate}")
        for name in ("first", "second")
        for rate in (0.001, 0.002, 0.004)
    }
    plan = train_all(make_study(), peak_at(first=0.002, second=0.0021))
    assert {name: len(jobs) for name, jobs in plan.trials.items()} == {"first": 3, "second": 3}
    for name, jobs in plan.jobs.items():
        assert [str(job.directory) for job in jobs] == [
            f"outputs/studies/mine/{name}/seed-{seed}--optimizer.lr-0.002" for seed in (1, 2, 3)
        ]
    tuning = plan.tunings["first"]
    assert (tuning.chosen.values, tuning.edges, tuning.measure) == (
        {"optimizer.lr": "0.002"},
        [],
        "validation accuracy",
    )
    assert [trial.score for trial in tuning.trials] == pytest.approx([0.797, 0.897, 0.797])


@pytest.mark.parametrize(
    ("rate", "tried", "beyond"),
    [
        (0.008, ["0.001", "0.002", "0.004", "0.008", "0.016"], None),
        (0.0005, ["0.001", "0.002", "0.004", "0.0005", "0.00025"], None),
        (1.0, ["0.001", "0.002", "0.004", "0.008", "0.016"], 0.032),
    ],
)
def test_all_variants_get_a_value_beyond_an_edge(rate: float, tried: list[str], beyond: float | None) -> None:
    """At most twice. Then the variant at the edge cannot lose."""
    study = make_study()
    plan = train_all(study, peak_at(first=rate, second=0.002))
    for tuning in plan.tunings.values():
        assert [trial.values["optimizer.lr"] for trial in tuning.trials] == tried
    assert [edge.beyond for edge in plan.tunings["first"].edges] == ([] if beyond is None else [beyond])
    for name, tests in {"first": (0.5, 0.51, 0.52), "second": (0.9, 0.91, 0.92)}.items():
        for job, test in zip(plan.jobs[name], tests, strict=True):
            train(job, 0.5, test)
    runs = read_runs(plan.jobs, Path()).runs
    (one,) = judge_claims(study, runs, plan.tunings)
    edge = "the best optimizer.lr of first (0.016) is the largest tried; try 0.032"
    assert (one.outcome, one.reasons) == (("inconclusive", (edge,)) if beyond else ("not as predicted", ()))
    study.claims = [Claim("So", "of that", better=["second", "first"], blind=True)]
    assert judge_claims(study, runs, plan.tunings)[0].outcome == ("inconclusive" if beyond else "as predicted")


def test_a_winner_may_be_at_its_edge() -> None:
    study = make_study()
    plan = train_all(study, peak_at(first=1.0, second=0.002))
    for name, tests in {"first": (0.9, 0.91, 0.92), "second": (0.5, 0.51, 0.52)}.items():
        for job, test in zip(plan.jobs[name], tests, strict=True):
            train(job, 0.5, test)
    (one,) = judge_claims(study, read_runs(plan.jobs, Path()).runs, plan.tunings)
    assert one.outcome == "as predicted"


def test_variants_with_their_own_grids_are_extended_at_the_same_end() -> None:
    variants = {
        "first": "model=encoder_only optimizer.lr=1e-3,2e-3", "second": "model=decoder_only optimizer.lr=0.1,0.3",
        "third": "model=full optimizer.lr=0.5,1,2",
    }  # fmt: skip
    study = make_study(variants=variants, tune="seed=101,102")
    plan = train_all(study, peak_at(first=0.001, second=0.3, third=1.0))
    tried = {name: [trial.values["optimizer.lr"] for trial in x.trials] for name, x in plan.tunings.items()}
    assert tried["first"] == ["0.001", "0.002", "0.0005", "0.004"]
    assert tried["second"] == ["0.1", "0.3", "0.0333", "0.9"]
    assert tried["third"] == ["0.5", "1", "2"]  # no claim compares it with the others
    assert plan.tunings["third"].curve("optimizer.lr").keys() == {0.5, 1, 2}
    assert plan.tunings["third"].curve("optimizer.momentum") == {}
    assert [len(trial.jobs) for trial in plan.tunings["first"].trials] == [2] * 4
    assert len(plan.jobs["third"]) == 3


def test_a_claim_about_a_cost_chooses_by_it() -> None:
    """The best score at the end is not the first to reach the target."""
    study = make_study(claims=[Claim("So", "of that", better=["first", "second"], target_score=0.4)])
    plan = train_all(study, lambda name, rate, seed: {0.001: 0.5, 0.002: 0.85, 0.004: 0.6}.get(rate, 0.1))
    tuning = plan.tunings["first"]
    assert tuning.measure == "steps to 40.0 % accuracy in validation"
    assert [trial.score for trial in tuning.trials] == [100, 50, 100]
    assert tuning.chosen.values == {"optimizer.lr": "0.002"}
    assert tuning.train_flops == 3 * 200


def test_a_trial_starts_from_the_best_trial_of_its_source() -> None:
    variants = {
        "after": "model=full init_from={before}", "before": "model=decoder_only", "other": "model=encoder_only",
    }  # fmt: skip
    study = make_study(variants=variants, claims=[Claim("So", "of that", better=["after", "other"])])
    assert {*plan_study(study, []).trials} == {"before"}  # the others are compared, so they wait together
    plan = train_all(study, peak_at(before=0.002, after=0.002, other=0.002))
    folder = "outputs/studies/mine/before"
    assert {values_of(job.overrides)["init_from"] for job in plan.trials["after"]} == {
        f"{folder}/seed-101--optimizer.lr-0.002"
    }
    assert [values_of(job.overrides)["init_from"] for job in plan.jobs["after"]] == [
        f"{folder}/seed-{seed}--optimizer.lr-0.002" for seed in (1, 2, 3)
    ]


def test_seeds_of_trials_are_not_judged() -> None:
    with pytest.raises(
        ConfigError, match="study mine: tune: seed=2 is also a seed of the judged runs; expected another"
    ):
        plan_study(make_study(tune="optimizer.lr=1,2 seed=2"), [])
    with pytest.raises(ConfigError, match="seed=101 is also a seed"):
        plan_study(make_study(), ["seed=range(100,103)"])


def test_a_run_of_other_settings_is_not_taken_for_one_of_the_study() -> None:
    """As after an edit of its file."""

    def with_steps(steps: str) -> Study:
        second = f"model=decoder_only{steps and ' trainer.max_steps='}{steps}"
        return make_study(variants={"first": "model=encoder_only", "second": second})

    plan = train_all(with_steps("100"), peak_at(first=0.002, second=0.002))
    assert plan_study(with_steps("1e2"), []).jobs.keys() == plan.jobs.keys(), "the same number"
    said = (
        r"second/seed-101--optimizer.lr-0.001: the run was trained with trainer.max_steps=100, but study mine now has "
        r"trainer.max_steps={}. Move or delete this directory to train it again"
    )
    for steps, shown in (("90", "90"), ("", "the default")):
        with pytest.raises(ConfigError, match=said.format(shown)):
            plan_study(with_steps(steps), [])
    variants = {
        "before": "model=encoder_only",
        "first": "model=encoder_only",
        "second": "model=full init_from={before}",
    }
    plan = train_all(make_study(variants=variants, name="chain"), lambda name, rate, seed: 0.9 - rate)
    (source, *_) = plan.trials["before"]
    train(source, 2.0)  # now the best, so that others would start from it
    with pytest.raises(ConfigError, match=r"chain/second/.*: the run was trained with init_from="):
        plan_study(make_study(variants=variants, name="chain"), [])


def test_a_source_has_one_run_per_seed() -> None:
    variants = {"first": "model=full optimizer.lr=1,2", "second": "model=full init_from={first}"}
    with pytest.raises(ConfigError, match=r"study mine: \{first\} has 2 runs of seed 1, expected one"):
        plan_study(make_study(variants=variants, tune=""), [])
