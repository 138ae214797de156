"""The recipes of CONTRIBUTING.md: what they add from outside works everywhere, without a change in here."""

import json
import re
from pathlib import Path
from urllib.parse import urlencode

import pytest

import tiny
from commands import Finished, run
from triptych.report.playground import Playground
from triptych.report.records import find_runs

RECIPES = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
TRAINING = [*tiny.TINY, "trainer.max_steps=6", "trainer.val_check_interval=3", "trainer.accelerator=cpu", "logger=csv"]


def write_recipes(folder: Path) -> list[str]:
    """Writes each file whose name stands in the first line of a block, and returns the names."""
    names = []
    for block in re.findall(r"^```(?:python|yaml)\n(# \S+\n.*?)^```$", RECIPES, re.MULTILINE | re.DOTALL):
        name = block.split("\n")[0].removeprefix("# ")
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(block, encoding="utf-8")
        names.append(name)
    return names


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder with the files of the recipes."""
    assert write_recipes(tmp_path) == ["mine.py", "conf/task/script.yaml", "conf/data/script_dates.yaml"]
    return tmp_path


def triptych(folder: Path, *arguments: str) -> Finished:
    variables = {"PYTHONPATH": str(folder), "TRIPTYCH_ALLOW": "mine"}
    finished = run(*arguments, cwd=folder, variables=variables)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished


def test_a_task_is_one_class_and_one_file(outside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is planned, trained, recorded, compared, evaluated, asked and played with."""
    chosen = ["--config-dir=conf", "task=script", "data=script_dates", *TRAINING]
    assert "parameters" in triptych(outside, "doctor", *chosen, "model=encoder_only").stdout
    for model in ("encoder_only", "decoder_only"):
        triptych(outside, "train", *chosen, f"model={model}", f"run_dir=runs/{model}")
    record = json.loads((outside / "runs/encoder_only/summary.json").read_text())
    assert (record["task"], record["task_facts"]["title"]) == ("script", "Script")
    assert {sample["reference"] for sample in record["samples"]} <= {"ascii", "other"}

    compared = triptych(outside, "compare", "runs", "--output", "page.html").stdout
    assert "accuracy" in compared
    assert "Script" in (outside / "page.html").read_text(encoding="utf-8")
    evaluated = triptych(outside, "evaluate", "checkpoint=runs/encoder_only").stdout
    assert f"{record['metrics']['test/accuracy']:.6g}" in evaluated
    (outside / "texts.txt").write_text("5.3.1998\n1998\u5e743\u67085\u65e5\n", encoding="utf-8")
    triptych(outside, "predict", "checkpoint=runs/encoder_only", "input=texts.txt", "output=answers.txt")
    answers = (outside / "answers.txt").read_text(encoding="utf-8").splitlines()
    assert len(answers) == 2
    assert {json.loads(answer)["label"] for answer in answers} <= {"ascii", "other"}

    monkeypatch.setenv("TRIPTYCH_ALLOW", "mine")
    monkeypatch.syspath_prepend(str(outside))
    playground = Playground(find_runs([outside / "runs"], outside).runs, outside)
    status, page = playground.page("/?" + urlencode({"text": "5.3.1998"}))
    assert status == 200
    assert page.count("ascii") >= 2
