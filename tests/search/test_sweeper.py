"""``hydra/sweeper=optuna`` as a user runs it: real processes, real files."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import optuna
import pytest

import tiny
from cases import by_day
from commands import Finished, run
from triptych.report.read_records import read_curves
from triptych.search.trials import open_storage

TINY = [
    *tiny.TINY, "trainer.max_steps=4", "trainer.val_check_interval=2", "trainer.log_every_n_steps=2",
    "trainer.accelerator=cpu", "logger=csv", "run_dir=search",
]  # fmt: skip
LR = "optimizer.lr=tag(log,interval(1e-3,10))"


def search(folder: Path, *overrides: str) -> Finished:
    return run("train", "-m", "hydra/sweeper=optuna", *TINY, *overrides, cwd=folder)


def printed(finished: Finished) -> list[list[str]]:
    """The commands at the end of a search, as a shell reads them, without ``triptych``."""
    _, _, commands = finished.stdout.partition(
        "To test the best trials (without training again) and to compare them:\n"
    )
    return [shlex.split(line)[1:] for line in commands.splitlines()]


def records(folder: Path) -> dict[str, dict[str, Any]]:
    return {path.parent.name: json.loads(path.read_text()) for path in folder.glob("search/*/summary.json")}


def test_trials_are_validated_and_the_chosen_one_is_tested_once_by_what_is_printed(tmp_path: Path) -> None:
    own = [
        "experiment=dates/classification", "model=choice(decoder_only,encoder_only)", LR, "hydra.sweeper.n_trials=2",
        "block/norm=choice('rms_norm',layer_norm)",
    ]  # fmt: skip
    finished = search(tmp_path, *own)
    assert finished.returncode == 0, finished.stderr
    (study,) = optuna.get_all_study_summaries(open_storage(tmp_path / "search" / "optuna.journal"))
    assert study.study_name == "dates/classification"
    assert "test/" not in finished.stdout
    assert "Testing" not in finished.stdout + finished.stderr
    trials = records(tmp_path)
    assert len(trials) == 2
    for name, record in trials.items():
        assert {metric.partition("/")[0] for metric in record["metrics"]} == {"val"}
        assert [record[key] for key in ("samples", "optimum", "confusion_matrix")] == [[], {}, None]
        assert not (tmp_path / "search" / name / "predictions.jsonl").exists()
    best = min(trials, key=lambda name: trials[name]["metrics"]["val/loss"])
    confirm = shlex.split(finished.stdout.partition("is partly lucky):\n")[2].partition("\n")[0])
    tested = shlex.split(finished.stdout.rpartition("compare them:\n")[2].partition("\n")[0])
    assert confirm == [*tested, "seed=2,3,4"]

    untested = run("compare", "search", cwd=tmp_path)
    assert untested.returncode == 1
    assert "trials of a search are not tested; test the best one with the command" in untested.stderr

    test, compare = printed(finished)
    sought = run("doctor", "-m", "hydra/sweeper=optuna", *own, cwd=tmp_path)
    assert "doctor checks a single run and does not search an interval" in sought.stderr
    planned = run("doctor", *[f"run_dir=search/{best}" if "run_dir=" in w else w for w in test[2:]], cwd=tmp_path)
    assert "resumes after step 4 of 4" in planned.words
    series = read_curves(tmp_path / "search" / best / "metrics.csv")
    tested = run(*test, cwd=tmp_path)
    assert tested.returncode == 0, tested.stderr
    assert "test/confusion_matrix" in tested.stdout
    now = records(tmp_path)
    (other,) = now.keys() - {best}
    assert now[other] == trials[other]
    assert now[best]["weights_sha256"] == trials[best]["weights_sha256"]
    assert now[best]["metrics"].items() > trials[best]["metrics"].items()
    assert len(now[best]["samples"]) == 8
    assert "pruning" not in now[best]["command"]
    longer = read_curves(tmp_path / "search" / best / "metrics.csv")
    for name in ("train/loss", "val/loss", "tokens"):
        assert longer[name] == series[name]  # nothing was trained again
    evaluated = run("evaluate", f"checkpoint=search/{best}", cwd=tmp_path)
    assert f"{now[best]['metrics']['test/loss']:.6g}" in evaluated.stdout

    assert run(*compare, cwd=tmp_path).returncode == 0
    page = (tmp_path / "search" / "report.html").read_text()
    assert best in page
    assert other not in page
    whole = run("compare", "search", "--output", "search/all.html", cwd=tmp_path)
    for text in (whole.words, (tmp_path / "search" / "all.html").read_text()):
        assert "Left out because trials of a search are not tested: 1" in text
    assert "done already" in run(*test, cwd=tmp_path).stdout
    again = search(tmp_path, *own)
    assert printed(again) == [test, compare]
    assert "\njob " not in again.stdout
    assert records(tmp_path) == now


@pytest.mark.faults  # four trainings
def test_each_architecture_gets_as_many_trials_and_each_trial_all_seeds(tmp_path: Path) -> None:
    experiments = ["dates/classification_decoder_only", "dates/classification_encoder_only"]
    overrides = [
        "experiment=dates/classification", "model=decoder_only,encoder_only", LR, "hydra.sweeper.n_trials=1",
        "hydra.sweeper.seeds=[1,2]",
    ]  # fmt: skip
    overrides += ["hydra.sweeper.storage=search/trials.db", "hydra.sweeper.metric=val/accuracy"]
    overrides += ["hydra/launcher=joblib", "hydra.launcher.n_jobs=1"]
    finished = search(tmp_path, *overrides)
    assert finished.returncode == 0, finished.stderr
    summaries = [json.loads(path.read_text()) for path in tmp_path.glob("search/*/summary.json")]
    storage = open_storage(tmp_path / "search" / "trials.db")
    assert [study.study_name for study in optuna.get_all_study_summaries(storage)] == experiments
    for experiment in experiments:
        study = optuna.load_study(study_name=experiment, storage=storage)
        assert study.direction == optuna.study.StudyDirection.MAXIMIZE
        (trial,) = study.trials
        own = [summary for summary in summaries if summary["experiment"] == experiment]
        assert [summary["seed"] for summary in sorted(own, key=lambda s: s["seed"])] == [1, 2]
        assert trial.value == pytest.approx(fmean(summary["metrics"]["val/accuracy"] for summary in own))
        assert list(trial.intermediate_values) == [2, 4, 6, 8]
        assert all(f"optimizer.lr={trial.params['optimizer.lr']}" in summary["command"] for summary in own)
        assert re.search(rf"{experiment} .*1 complete .*{trial.value:.6g}", finished.stdout)
    page = (tmp_path / "search" / "search.html").read_text()
    assert len(page) < 8e6
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=", page)
    *tests, compare = printed(finished)
    runs = [path.parent.relative_to(tmp_path) for path in tmp_path.glob("search/*/summary.json")]
    assert sorted(compare[1:]) == sorted([*map(str, runs), "--output", "search/report.html"])
    for words in tests:  # with the launcher of the search, and all its seeds
        assert {"hydra/launcher=joblib", "seed=1,2"} <= set(words)
        assert run(*words, cwd=tmp_path).returncode == 0
    assert all("test/loss" in record["metrics"] for record in records(tmp_path).values())

    assert re.search(r"^job 1 of .*: .*optimizer\.lr=", finished.stdout, re.MULTILINE)
    assert "callbacks.pruning" not in finished.stdout

    again = search(tmp_path, *overrides)
    assert again.returncode == 0
    assert "\njob " not in again.stdout
    other = search(tmp_path, *overrides, "block.dropout=0.2")
    assert other.returncode == 1
    assert "run_dir contains another search, dates/classification_decoder_only: " in other.stderr
    assert "and this one block.dropout=0.2" in other.stderr


MISTAKES = [
    ([LR, "hydra.sweeper.sampler=cmaes"], "hydra.sweeper.sampler=cmaes: expected one of tpe, gp, qmc, random"),
    ([LR, "hydra.sweeper.pruner=medain"], "did you mean median?"),
    ([LR, "hydra.sweeper.metric=test/loss"], "hydra.sweeper.metric=test/loss: a search uses the validation set only"),
    ([LR, "hydra.sweeper.n_trial=3"], "there is no such key; did you mean hydra.sweeper.n_trials?"),
    ([LR, "hydra.sweeper.seeds=[1,2]", "seed=3"], "seed: set either seed or hydra.sweeper.seeds"),
    ([LR, "hydra.sweeper.storage=x.sqlite"], "expected a file whose name ends in .journal or .db"),
    (["shape.num_layrs=choice(1,2)"], "shape.num_layrs: there is no such key; did you mean shape.num_layers?"),
    (["optimizer.lr=1,2"], "nothing to search"),
    (
        ["hydra.sweeper.params=../params.yaml"],
        'hydra.sweeper.params=../params.yaml: expected {key: value}, such as {optimizer.lr: "interval(1e-4,1e-2)"}',
    ),
]


@pytest.mark.parametrize(
    ("overrides", "answer"), by_day(MISTAKES, MISTAKES[::3]), ids=[answer[:30] for _, answer in MISTAKES]
)
def test_mistakes_are_answered_before_any_job(overrides: list[str], answer: str, tmp_path: Path) -> None:
    finished = search(tmp_path, "experiment=dates/classification", "model=decoder_only", *overrides)
    assert finished.returncode == 1
    assert answer in finished.stderr
    assert len(finished.stderr.strip().splitlines()) == 1
    assert not list(tmp_path.glob("search/*/"))


def test_without_optuna_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "optuna.py").write_text("raise ImportError")
    # with an interpreter of its own, which finds modules in its folder
    command = [sys.executable, "-m", "triptych", "train", "-m", "hydra/sweeper=optuna", *TINY, LR]
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert finished.returncode == 1
    assert finished.stderr == "error: hydra/sweeper=optuna needs Optuna: pip install 'triptych[optuna]'\n"
