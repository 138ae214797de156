"""A run that is pruned: stopped in order, marked, and of use afterwards. Real trainings, and a study in a real file."""

import json
from pathlib import Path

import optuna
import pytest
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState, create_trial

import tiny
from commands import Finished, run
from triptych.report.read_records import find_runs
from triptych.search.trials import open_storage

TINY = [
    *tiny.TINY, "experiment=dates/classification", "model=decoder_only", "trainer.max_steps=6",
    "trainer.val_check_interval=2", "trainer.log_every_n_steps=2", "trainer.accelerator=cpu", "logger=csv",
]  # fmt: skip


def study_with(folder: Path, *curves: dict[int, float]) -> optuna.Study:
    """A study with a complete trial for each curve, and one that is to be run."""
    study = optuna.create_study(study_name="s", storage=open_storage(folder / "x.journal"))
    space = {"params": {"x": 0.5}, "distributions": {"x": FloatDistribution(0, 1)}}
    for curve in curves:
        study.add_trial(create_trial(value=1.0, intermediate_values=curve, **space))
    study.add_trial(create_trial(state=TrialState.RUNNING, **space))
    return study


def train(folder: Path, trial: int, *overrides: str, **changes: object) -> Finished:
    own: dict[str, object] = {
        "_target_": "triptych.search.pruning.Pruning", "storage": folder / "x.journal", "study": "s", "trial": trial,
        "metric": "val/loss", "pruner": "median", "startup_trials": 1, "warmup_steps": 0, "seed_index": 0, **changes,
    }  # fmt: skip
    callback = ",".join(f"{key}:{value}" for key, value in own.items())
    return run("train", *TINY, "run_dir=run", f"++callbacks.pruning={{{callback}}}", *overrides, cwd=folder)


def test_a_hopeless_run_ends_in_order(tmp_path: Path) -> None:
    study = study_with(tmp_path, {2: 9.0, 4: 0.0, 6: 0.0})
    finished = train(tmp_path, 1)
    assert finished.returncode == 0, finished.stderr
    run_dir = tmp_path / "run"
    what = {"architecture": "decoder_only", "task": "classification", "data": "dates"}
    assert json.loads((run_dir / "pruned.json").read_text()) == {"steps": 4, **what}
    assert not (run_dir / "summary.json").exists()
    assert "pruned after 4 steps" in (run_dir / "train.log").read_text()
    trial = study.trials[1]
    assert list(trial.intermediate_values) == [2, 4]  # better than the other at 2, worse at 4
    assert trial.state == TrialState.RUNNING  # the sweeper tells
    with pytest.raises(ValueError, match="no finished run found"):
        find_runs([tmp_path], tmp_path)

    again = train(tmp_path, 1)
    assert "holds this run, finished: nothing to do" in again.stdout
    evaluated = run("evaluate", "checkpoint=run", cwd=tmp_path)
    assert evaluated.returncode == 0, evaluated.stderr


@pytest.mark.faults
def test_without_the_search_a_pruned_run_continues_to_its_end(tmp_path: Path) -> None:
    study_with(tmp_path, {2: 0.0})
    run_dir = tmp_path / "run"
    assert train(tmp_path, 1).returncode == 0
    assert (run_dir / "pruned.json").exists()
    resumed = run("train", *TINY, "run_dir=run", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert "resuming from run/checkpoints/step-00000002.ckpt" in resumed.stderr + resumed.stdout
    assert not (run_dir / "pruned.json").exists()
    straight = run("train", *TINY, "run_dir=straight", cwd=tmp_path)
    assert straight.returncode == 0, straight.stderr
    weights = [json.loads((tmp_path / d / "summary.json").read_text())["weights_sha256"] for d in ("run", "straight")]
    assert weights[0] == weights[1]


@pytest.mark.faults
def test_all_ranks_end(tmp_path: Path) -> None:
    study = study_with(tmp_path, dict.fromkeys((8, 10, 12), 0.0))
    finished = train(tmp_path, 1, "trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=2", seed_index=1)
    assert finished.returncode == 0, finished.stderr
    assert json.loads((tmp_path / "run" / "pruned.json").read_text())["steps"] == 2
    assert list(study.trials[1].intermediate_values) == [8]  # the second seed begins where the first has ended
    assert (tmp_path / "run" / "checkpoints" / "step-00000002.ckpt").exists()


@pytest.mark.parametrize(
    ("curves", "changes"),
    [
        ([{6: 0.0}], {}),
        ([{2: 0.0, 4: 0.0}], {"startup_trials": 2}),
        pytest.param([{2: 0.0}], {"warmup_steps": 3}, marks=pytest.mark.faults),
        pytest.param([{2: 9.0, 4: 9.0}], {}, marks=pytest.mark.faults),
        pytest.param([{2: 0.0, 4: 0.0}], {"pruner": "none"}, marks=pytest.mark.faults),
    ],
    ids=["worse at its end", "too few others", "too early", "better", "nobody looks"],
)
def test_others_continue(curves: list[dict[int, float]], changes: dict[str, object], tmp_path: Path) -> None:
    study = study_with(tmp_path, *curves)
    finished = train(tmp_path, 1, **changes)
    assert finished.returncode == 0, finished.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    values = study.trials[1].intermediate_values
    assert list(values) == [2, 4, 6]
    assert values[6] == pytest.approx(summary["metrics"]["val/loss"])


def test_a_metric_that_is_not_measured_is_rejected_before_the_first_step(tmp_path: Path) -> None:
    study_with(tmp_path)
    finished = train(tmp_path, 0, metric="val/acuracy")
    assert finished.returncode == 1
    assert "hydra.sweeper.metric=val/acuracy: expected one of val/accuracy, " in finished.stderr
    assert "did you mean val/accuracy?" in finished.stderr
    assert not (tmp_path / "run" / "checkpoints").exists()
