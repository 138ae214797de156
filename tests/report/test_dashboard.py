"""The code of a dashboard, executed as its user would."""

import json
import runpy
from pathlib import Path

import pytest

from triptych.report.dashboard import dashboard

NAMES = [
    '"""; open("executed", "w"); """',
    "'''; open('executed', 'w'); '''",
    "a\nopen('executed', 'w')\n#",
    "\\",
    "$project ${run}",
]


@pytest.mark.parametrize("name", NAMES)
def test_the_name_of_a_directory_is_text(
    write_run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """What is written is executed at once, and again by whoever uploads it."""
    monkeypatch.chdir(tmp_path)
    run = write_run("full", "classification", {"test/accuracy": float("nan")})  # the verdict names it
    (run / "config.yaml").write_text(json.dumps({"logger": {"wandb": {"project": "mine"}}}))
    (run / "wandb" / "offline-run-1").mkdir(parents=True)
    (run / "wandb" / "id").write_text("0123abcd")
    run.rename(tmp_path / "runs" / name)
    dashboard([tmp_path / "runs"], tmp_path / "board.py")
    code = runpy.run_path(str(tmp_path / "board.py"))
    assert not (tmp_path / "executed").exists()
    assert code["SYNC"] in capsys.readouterr().out
    assert code["PROJECT"] == "mine"
    assert code["COMPARISONS"][0]["runs"] == ["0123abcd"]


def test_the_charts_are_grouped_by_what_is_compared(write_run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("multi_head", "performer"):
        part = {"attention": {"_partial_": True, "_target_": name}}
        settings = {"block": part | {"dropout": 0.1}, "logger": {"wandb": {"project": "mine"}}}
        changes = {"command": f"triptych train block/attention={name} seed=1"}
        run = write_run("full", "classification", {"test/accuracy": 0.5}, settings=settings, changes=changes, name=name)
        (run / "config.yaml").write_text(json.dumps(settings))
        (run / "wandb").mkdir()
        (run / "wandb" / "id").write_text(name)
    dashboard([tmp_path / "runs"], tmp_path / "board.py", ["block/attention"])
    code = runpy.run_path(str(tmp_path / "board.py"))
    assert code["COMPARISONS"][0]["by"] == ["block.attention._target_"]
    assert code["COMPARISONS"][0]["table"].startswith("| variant | seeds |")
    curves = json.loads(code["curves"](code["COMPARISONS"][0])[0]._to_model().json())
    assert curves["config"]["group_by"] == "block.value.attention._target_"
