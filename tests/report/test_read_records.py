"""Reading run directories."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from triptych.report.read_records import MOST_POINTS, find_runs, read_curves, read_run
from triptych.report.statistics.groups import group_runs

ACCURACY = {"test/accuracy": 0.9}


def test_jobs_that_failed_at_once_or_wait_are_named(seven_runs: Path) -> None:
    """Their sweep has noted them, before they had a log of their own."""
    for name, said in (("failed", "error: seed=-2: expected 0 or more\n"), ("waiting", "")):
        (seven_runs / name).mkdir()
        (seven_runs / name / "job.json").write_text('{"overrides": ["seed=-2"]}')
        if said:
            (seven_runs / name / "terminal.log").write_text(said)
    found = find_runs([seven_runs], seven_runs.parent)
    expected = ("runs/failed (seed=-2: expected 0 or more)", "runs/translation_killed", "runs/waiting")
    assert found.unfinished == expected


def test_finds_runs_below_a_parent_once_and_names_the_unfinished(seven_runs: Path) -> None:
    found = find_runs([seven_runs, seven_runs / "translation_full_seed1"], seven_runs.parent)
    assert [run.directory for run in found.runs][:2] == [
        "runs/classification_full_seed1",
        "runs/classification_encoder_only_seed1",
    ]
    assert len(found.runs) == 7
    assert found.unfinished == ("runs/translation_killed",)


def test_a_directory_can_be_the_run_itself(write_run, tmp_path: Path) -> None:
    directory = write_run("full", "classification", ACCURACY)
    (run,) = find_runs([directory], tmp_path).runs
    assert run.directory == "runs/classification_full_seed1"
    assert [*run.curves["val/accuracy"].steps] == [*range(80, 801, 80)]  # the blank cells between are left out
    assert len(run.curves["train/loss"].values) == 80


def test_no_run_is_an_error_that_names_the_directory(tmp_path: Path, write_run) -> None:
    write_run("full", "classification", ACCURACY)
    with pytest.raises(ValueError, match=r"absent: no such directory, expected a run directory or one above it"):
        find_runs([tmp_path / "runs", tmp_path / "absent"], tmp_path)
    with pytest.raises(ValueError, match=r"rums: no such directory; did you mean runs\?"):
        find_runs([tmp_path / "rums"], tmp_path)
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed" / "metrics.csv").write_text("epoch,step\n")
    with pytest.raises(ValueError, match=r"killed: no finished run found.*1 unfinished"):
        find_runs([tmp_path / "killed"], tmp_path)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("architecture", "rnn", "one of full, encoder_only, decoder_only"),
        ("task", ["translation"], "a text"),
        ("task_info", {"title": "Translation", "comparison_metrics": []}, "the metadata of a task"),
        ("params", "many", "a whole number"),
        ("seed", True, "a whole number"),
        ("train_flops", math.nan, "a number"),
        ("metrics", {"test/accuracy": "high"}, "an object of numbers"),
        ("samples", [{"input": "a"}], "a list of objects with the texts input, output and reference"),
        ("tested_weights", "middle", "one of last, best"),
    ],
)
def test_a_wrong_value_is_answered_with_file_key_and_expectation(
    write_run, tmp_path: Path, key: str, value: object, expected: str
) -> None:
    directory = write_run("full", "classification", ACCURACY, changes={key: value})
    with pytest.raises(ValueError, match=r"summary\.json") as error:
        read_run(directory, tmp_path)
    message = str(error.value)
    assert f"{directory / 'summary.json'}: key {key} is " in message
    assert f"expected {expected}" in message
    assert "\n" not in message


@pytest.mark.parametrize("key", ["seed", "optimum", "command", "samples"])
def test_a_missing_key_is_named(write_run, tmp_path: Path, key: str) -> None:
    path = write_run("full", "classification", ACCURACY) / "summary.json"
    summary = json.loads(path.read_text())
    del summary[key]
    path.write_text(json.dumps(summary))
    with pytest.raises(ValueError, match=rf"summary\.json: key {key} is missing, expected ") as error:
        read_run(path.parent, tmp_path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("text", ['{"experiment": "dates', "[]", "", "\x00"])
def test_a_damaged_summary_names_the_file(write_run, tmp_path: Path, text: str) -> None:
    path = write_run("full", "classification", ACCURACY) / "summary.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="expected") as error:
        read_run(path.parent, tmp_path)
    assert str(error.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("name", "content"), [("config.yaml", b"[]"), ("config.yaml", b""), ("predictions.jsonl", b"\xff\xfe")]
)
def test_a_damaged_file_of_a_run_is_named(write_run, tmp_path: Path, name: str, content: bytes) -> None:
    path = write_run("full", "classification", ACCURACY) / name
    path.write_bytes(content)
    write_run("encoder_only", "classification", ACCURACY)
    found = find_runs([tmp_path], tmp_path)
    assert [run.architecture for run in found.runs] == ["encoder_only"]
    assert [text.partition(": damaged, expected ")[0] for text in found.damaged] == [f"runs/{path.parent.name}/{name}"]


def test_a_run_without_its_metric_is_left_out_and_named(write_run, tmp_path: Path) -> None:
    write_run("full", "classification", {"test/loss": 0.3})
    with pytest.raises(ValueError, match=r"classification_full_seed1/summary\.json: key metrics has no test/accuracy"):
        find_runs([tmp_path], tmp_path)
    write_run("encoder_only", "classification", ACCURACY)
    found = find_runs([tmp_path], tmp_path)
    assert [run.architecture for run in found.runs] == ["encoder_only"]
    assert [text.partition(":")[0] for text in found.damaged] == ["runs/classification_full_seed1/summary.json"]


def test_translation_is_compared_by_bleu_where_no_ceiling_is_known(write_run, tmp_path: Path) -> None:
    write_run("full", "translation", {"test/exact_match": 0.04, "test/bleu": 33.26})
    (group,) = group_runs(find_runs([tmp_path], tmp_path).runs)
    assert group.metric.key == "test/bleu"
    assert group.metric.show(33.26) == "33.3"


def test_a_damaged_curve_names_file_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("epoch,step,train/loss\n0,10,3.5\n0,20,oops\n")
    with pytest.raises(ValueError, match=r"metrics\.csv: line 3, column train/loss: .*invalid value 'oops'"):
        read_curves(path)


def test_a_blank_step_is_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("step,train/loss\n10,3.5\n,2\n")
    with pytest.raises(ValueError, match=r"metrics\.csv: column step has blank cells"):
        read_curves(path)


def test_a_quoted_metric_is_read(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text('step,"a, ""b"""\n10,3.5\n')
    assert [*read_curves(path)['a, "b"'].values] == [3.5]


def test_the_later_row_of_a_resumed_run_counts(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("epoch,step,train/loss\n0,10,3\n0,20,2\n0,10,5\n0,30,nan\n")
    curve = read_curves(path)["train/loss"]
    assert [*curve.steps] == [10, 20, 30]
    assert [*curve.values[:2]] == [5.0, 2.0]
    assert math.isnan(curve.values[2])


def test_a_long_curve_keeps_its_extremes_and_its_validations(tmp_path: Path) -> None:
    path, random = tmp_path / "metrics.csv", np.random.default_rng(1)
    losses = random.uniform(1, 2, 20_000)
    losses[[777, 12_345]] = 0.1, 9.0
    rows = [f"{step},{loss},{10 * step},{step / 1000 if step % 100 == 99 else ''}" for step, loss in enumerate(losses)]
    path.write_text("step,train/loss,tokens,val/loss\n" + "\n".join(rows) + "\n")
    curves = read_curves(path)
    loss = dict(zip(curves["train/loss"].steps, curves["train/loss"].values, strict=True))
    assert (loss[777], loss[12_345], loss[19_999]) == (0.1, 9.0, losses[-1])
    assert all(value == losses[step] for step, value in loss.items())
    assert len(loss) <= MOST_POINTS + 200  # the 200 validations have a training loss, too
    assert [*curves["val/loss"].steps] == [*range(99, 20_000, 100)]
    tokens = dict(zip(curves["tokens"].steps, curves["tokens"].values, strict=True))
    assert tokens.keys() == loss.keys()
    assert all(value == 10 * step for step, value in tokens.items())


def test_predictions_are_read_when_they_are_used(write_run, tmp_path: Path) -> None:
    answers = [{"input": "x", "reference": "y", "output": output} for output in ("y", "z")]
    first, second, third = (
        read_run(write_run("full", "translation", {"test/bleu": 1.0}, answers=given, name=name), tmp_path).predictions
        for name, given in (("a", answers), ("b", answers[::-1]), ("c", [*answers, answers[0]]))
    )
    assert [row["output"] for row in second] == ["z", "y"]
    assert (first[1]["output"], len(third)) == ("z", 3)
    assert first.asked == second.asked != third.asked  # the outputs may differ
