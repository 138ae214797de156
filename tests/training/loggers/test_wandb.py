"""W&B and TensorBoard beside metrics.csv, of a run that is killed and goes on; nothing here has a network."""

import csv
import json
import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator

import tiny
from commands import Command, finish, run

RUN = "outputs/pair/run-0123abcd"
COMMAND = [
    "train", *tiny.TINY, "experiment=dates/classification", "model=full", "logger=[wandb,tensorboard]",
    "trainer.max_steps=40", "trainer.val_check_interval=8", "trainer.log_every_n_steps=3",
    "callbacks.checkpoints.every_n_steps=5", "logger.wandb.tags=[mine]", "logger.wandb.log_model=true",
    f"run_dir={RUN}",
]  # fmt: skip


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Killed with all that it has started, as a scheduler does, and begun again."""
    folder = tmp_path_factory.mktemp("killed")
    output = folder / "output.txt"
    output.touch()
    environment, files = {**os.environ, "OMP_NUM_THREADS": "1"}, (Path(os.devnull), output, output)
    process = Command(*COMMAND, cwd=folder, environment=environment, files=files)
    deadline = time.monotonic() + 300
    while not any((folder / RUN / "checkpoints").glob("step-*10.ckpt")) and time.monotonic() < deadline:
        assert process.poll() is None, (folder / "output.txt").read_text()
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(60)
    finished = run(*COMMAND, cwd=folder)
    assert finished.returncode == 0, finished.stderr
    assert "resuming from" in finished.stderr
    return folder / RUN


@pytest.fixture(scope="module")
def table(killed: Path) -> list[dict[str, float]]:
    with open(killed / "metrics.csv") as file:
        return [{name: float(cell) for name, cell in row.items() if cell} for row in csv.DictReader(file)]


@pytest.fixture(scope="module")
def records(killed: Path) -> list[dict[str, Any]]:
    """What ``wandb sync`` would send, both parts one after the other."""
    files = sorted(killed.glob("wandb/offline-run-*/*.wandb"))
    assert len(files) == 2
    assert {file.stem for file in files} == {f"run-{(killed / 'wandb' / 'id').read_text()}"}
    tool = [str(Path(sys.executable).parent / "wandb"), "leet", "inspect", "--json"]
    inspected = [
        subprocess.run([*tool, str(file)], capture_output=True, text=True, check=True).stdout for file in files
    ]
    return [json.loads(line) for part in inspected for line in part.splitlines()]


def of_kind(records: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [record[kind] for record in records if record["type"] == kind]


def test_wandb_has_the_rows_of_the_table(records: list[dict[str, Any]], table: list[dict[str, float]]) -> None:
    """Of a row that was logged again after the kill, the later one counts."""
    rows: dict[tuple[float, int], dict[str, float]] = {}
    for item in (history["item"] for history in of_kind(records, "history")):
        if "tokens" in item:  # the tables have none
            row = {name: value for name, value in item.items() if not name.startswith(("_", "trainer/"))}
            row["step"] = item["trainer/global_step"]
            rows[row["step"], ["train/loss" in row, "val/loss" in row, "test/loss" in row].index(True)] = row
    assert [rows[key] for key in sorted(rows)] == table


def test_wandb_can_draw_against_what_was_spent(records: list[dict[str, Any]], table: list[dict[str, float]]) -> None:
    metrics = of_kind(records, "metric")
    assert {"trainer/global_step", "tokens", "train_flops", "elapsed_s"} <= {metric.get("name") for metric in metrics}
    assert {metric["step_metric"] for metric in metrics if metric.get("glob_name") == "*"} == {"trainer/global_step"}
    assert all({"tokens", "train_flops", "elapsed_s"} <= row.keys() for row in table)


def test_wandb_knows_what_the_run_is(killed: Path, records: list[dict[str, Any]]) -> None:
    for known in of_kind(records, "run"):
        assert known["tags"] == ["mine", "full", "classification", "dates", "sweep:pair"]
        assert (known["run_group"], known["job_type"]) == ("dates/classification_full", "train")
        assert known["config"]["update"]["labels"]["architecture"] == "full"
    configured = {name for config in of_kind(records, "config") for name in config["update"]}
    assert {"shape", "optimizer", "seed", "run_dir"} <= configured
    (said,) = [s["update"] for s in of_kind(records, "summary") if "params" in s["update"]]
    record = json.loads((killed / "summary.json").read_text())
    for name in ("params", "train_flops", "train_tokens", "architecture", "weights_sha256"):
        assert said[name] == record[name]


def test_wandb_has_samples_classes_and_the_checkpoint(killed: Path, records: list[dict[str, Any]]) -> None:
    """Tables are files beside the records; the checkpoint is read from where it is when the run is sent."""
    record = json.loads((killed / "summary.json").read_text())
    contents = {
        entry["path"]: Path(entry["local_path"])
        for artifact in of_kind(records, "artifact")
        for entry in artifact["manifest"]["contents"]
    }
    samples = json.loads(contents["test/samples.table.json"].read_text())
    assert samples["columns"] == ["input", "reference", "output"]
    assert samples["data"] == [[s["input"], s["reference"], s["output"]] for s in record["samples"]]
    classes = json.loads(contents["test/confusion_matrix_table.table.json"].read_text())
    labels, counts = record["confusion_matrix"]["labels"], record["confusion_matrix"]["counts"]
    assert {(actual, predicted): count for actual, predicted, count in classes["data"]} == {
        (labels[i], labels[j]): counts[i][j] for i in range(len(labels)) for j in range(len(labels))
    }
    assert contents["model.ckpt"] == killed / "checkpoints" / "last.ckpt"
    assert all(path.is_relative_to(killed) for path in contents.values())
    aliases = [set(a["aliases"]) for a in of_kind(records, "artifact") if a["type"] == "model"]
    assert {"latest", "last"} in aliases


def test_wandb_has_pictures_of_the_attention(killed: Path, records: list[dict[str, Any]]) -> None:
    sample = json.loads((killed / "attention.json").read_text())["samples"][0]
    pictures = {
        name.removeprefix("attention/").removesuffix(".path"): json.loads(
            next(killed.glob(f"wandb/*/files/{path}")).read_text()
        )
        for item in (history["item"] for history in of_kind(records, "history"))
        for name, path in item.items()
        if name.startswith("attention/") and name.endswith(".path")
    }
    kinds = ("encoder rollout", "encoder heads", "decoder rollout", "decoder heads", "alignment", "cross heads")
    assert set(pictures) == set(kinds)
    for kind, weights in (("encoder heads", sample["encoder"]), ("decoder heads", sample["decoder"])):
        of_heads = np.array(weights["weights_x1000"])[0] / 1000  # of the one layer
        assert [trace["z"] for trace in pictures[kind]["data"]] == of_heads.tolist()
    assert "var(" not in json.dumps(pictures)  # W&B knows no colours by name


def test_tensorboard_has_the_columns_of_the_table(killed: Path, table: list[dict[str, float]]) -> None:
    events = EventAccumulator(str(killed / "tensorboard"), size_guidance={SCALARS: 0})
    events.Reload()
    names = {name for row in table for name in row} - {"step"}
    assert set(events.Tags()["scalars"]) == names
    for name in names:
        found = {(event.step, event.value) for event in events.Scalars(name)}
        assert found == {(row["step"], float(np.float32(row[name]))) for row in table if name in row}, name


def test_the_dashboard_is_code_that_builds_its_views(killed: Path) -> None:
    finished = run("dashboard", "outputs", "--output", "views/board.py", cwd=killed.parents[2])
    assert finished.returncode == 0, finished.stderr
    (said,) = finished.stdout.splitlines()
    assert "wandb sync outputs/pair/run-0123abcd/wandb/offline-run-*; python views/board.py ENTITY" in said
    code = runpy.run_path(str(killed.parents[2] / "views" / "board.py"))
    identity = (killed / "wandb" / "id").read_text()
    workspace = code["workspace"]("me")._to_model().spec.model_dump(by_alias=True, exclude_none=True)["section"]
    sections = {section["name"]: section["panels"] for section in workspace["panelBankConfig"]["sections"]}
    of_curves = [panel["config"] for panel in sections["Classification on dates: curves"]]
    axes = ("trainer/global_step", "tokens", "train_flops", "elapsed_s")
    drawn = {(panel["xAxis"], *panel["metrics"]) for panel in of_curves}
    assert drawn == {(axis, y) for axis in axes for y in ("train/loss", "val/loss", "val/accuracy")}
    points = [panel["config"] for panel in sections["Classification on dates: quality"]]
    costs = ("params", "train_flops", "wall_time_s")
    assert {(panel["xAxis"], panel["yAxis"]) for panel in points} == {
        (f"summary:{cost}", "summary:test/accuracy") for cost in costs
    }
    assert len(sections["Classification on dates: predictions"]) == 2
    report = code["report"]("")._to_model().spec.model_dump_json(by_alias=True, exclude_none=True)
    for part in (identity, "test/confusion_matrix_table", "All runs are full", "test/samples"):
        assert part in report, part


def test_what_wandb_has_not_makes_no_dashboard(tmp_path: Path, killed: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "summary.json").write_text((killed / "summary.json").read_text())
    finished = run("dashboard", "run", cwd=tmp_path)
    assert finished.returncode == 1
    assert finished.stderr == "error: run: none of its 1 runs was logged to W&B; train with logger=wandb\n"
    assert not (tmp_path / "dashboard.py").exists()


def test_an_interrupted_run_does_not_need_the_process_of_wandb_when_it_exits(tmp_path: Path) -> None:
    program = """
import psutil
from triptych.training.loggers.wandb import WandbLogger
logger = WandbLogger(project="project", name="name", save_dir=".")
logger.log_metrics({"loss": 1.0}, 1)
started = psutil.Process().children()
print(len(started))
logger.finish(failed=True)
for process in started:
    if process.is_running():
        process.kill()
        process.wait(20)
"""
    finished = finish(cwd=tmp_path, environment=dict(os.environ), program=program)
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, "1\n", "")


@pytest.mark.parametrize(
    ("module", "arguments", "message"),
    [
        (
            "tensorboard",
            ["train", "task=translation", "data=dates", "logger=tensorboard"],
            "pip install 'triptych[tensorboard]'",
        ),
        ("wandb_workspaces", ["dashboard", "."], "pip install 'triptych[dashboard]'"),
    ],
)
def test_a_package_that_is_missing_is_named(tmp_path: Path, module: str, arguments: list[str], message: str) -> None:
    hidden = f"import sys; sys.modules['{module}'] = None; from triptych.cli import main; sys.exit(main())"
    finished = finish(*arguments, cwd=tmp_path, environment=dict(os.environ), program=hidden)
    assert finished.returncode == 1
    assert finished.stderr.count("\n") == 1
    assert message in finished.stderr
