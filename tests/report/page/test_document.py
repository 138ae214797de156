"""The templates of the pages: what a run or a file has named is text in each of them, and no variable is missing."""

import json
import re
import tomllib
from dataclasses import asdict
from fnmatch import fnmatch
from html.parser import HTMLParser
from pathlib import Path

import pytest
from jinja2 import UndefinedError

import triptych
from triptych import config
from triptych.report.compare import compare
from triptych.report.page.document import read_source, render_template
from triptych.report.page.style import ARCHITECTURES
from triptych.tasks import Classification

PACKAGE = Path(triptych.__file__).parent


class Structure(HTMLParser):
    """The elements of a page with the names of their attributes."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, ...]] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, *(name for name, _ in attrs)))


def write_page(write_run, folder: Path, text: str, name: str) -> Path:
    """The page of two architectures and an unfinished run, where everything that can have a name has this one.

    Args:
        write_run: writes a run.
        folder: for runs and page.
        text: the name.
        name: of the runs' directories, which cannot have every name.
    """
    score = {"name": text, "key": "test/accuracy", "title": text, "higher_is_better": True, "unit": text, "note": text}
    info = {"title": text, "comparison_metrics": [score | {"optimum_name": text}], "ranked_by_title": text}
    changes = {
        "task_info": asdict(Classification.info("full", {"test/accuracy": 0.9}, {})) | info,
        "data": text, "command": text, "git_commit": text, "precision": text, "versions": {text: text},
        "too_long": {"policy": text, "test": 1}, "samples": [{"input": text, "reference": text + "a", "output": text}],
        "confusion_matrix": {"labels": [text, "b"], "counts": [[1, 2], [3, 4]]},
    }  # fmt: skip
    tokens = {"queries": [text], "keys": [text], "written": [], "num_tokens": 1, "weights_x1000": [[[[1000]]]]}
    attention = {"input": text, "output": text, "encoder": tokens, "decoder": None, "cross": None}
    answer = {"input": text, "reference": "a", "output": text, "correct": True, "probability": 0.5}
    for architecture in ("full", "encoder_only"):
        for seed, rate in ((1, text), (2, text), (1, "~")):
            run = write_run(
                architecture, "classification", {"test/accuracy": 0.9}, seed=seed, name=rate[0], answers=[answer],
                optimum={"test/accuracy": 0.95},
                changes=changes | {"hardware": text + architecture}, settings={"optimizer": {"lr": rate, text: 1}},
            )  # fmt: skip
            (run / "attention.json").write_text(json.dumps({"samples": [attention]}))
            run.rename(folder / f"{name} {run.name}")
    (folder / f"{name} unfinished").mkdir()
    (folder / f"{name} unfinished" / "metrics.csv").write_text("step,train/loss\n1,2\n")
    compare([folder], folder / "page.html")
    return folder / "page.html"


def test_no_text_of_a_run_changes_the_structure_of_the_page(write_run, hostile: str, tmp_path: Path) -> None:
    """Wherever it stands: the page has the elements of one that says harmless things."""
    for name in ("harmless", "hostile"):
        (tmp_path / name).mkdir()
    harmless = Structure(write_page(write_run, tmp_path / "harmless", "x" * len(hostile), "abc")).elements
    assert sum(tag == "code" for tag, *_ in harmless) > 2
    assert sum(tag == "script" for tag, *_ in harmless) > 6
    hostile_page = write_page(write_run, tmp_path / "hostile", hostile, "<b>")
    assert Structure(hostile_page).elements == harmless
    figures = re.findall(r'<script type="application/json">(.*?)</script>', hostile_page.read_text(encoding="utf-8"))
    for figure in (figure for switch in figures for figure in json.loads(switch).values()):
        assert "<img" not in json.dumps([figure["data"], figure["layout"]])  # which plotly reads as HTML
    assert "&lt;b&gt;" in hostile_page.read_text(encoding="utf-8")


def test_a_variable_that_is_missing_is_an_error() -> None:
    found = {"num_untested": 0, "unfinished": [], "damaged": []}
    context: dict[str, object] = {"num_runs": 0, "sections": [], "present": [], "found": found, "question": ""}
    context |= {"findings": [], "false_winner": (5, 7), "answer": "", "pairs": []}
    assert "0 runs of 0 tasks" in render_template("report.html", {**context, "has_charts": False})
    with pytest.raises(UndefinedError, match="'has_charts' is undefined"):
        render_template("report.html", context)


def test_what_is_beside_the_code_is_installed_with_it() -> None:
    project = tomllib.loads((PACKAGE.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = [
        f"{package.replace('.', '/')}/{pattern}"
        for package, several in project["tool"]["setuptools"]["package-data"].items()
        for pattern in several
    ]
    for path in PACKAGE.rglob("*"):
        if path.is_file() and path.suffix not in (".py", ".pyc"):
            assert any(fnmatch(str(path.relative_to(PACKAGE.parent)), pattern) for pattern in patterns), path


def test_every_architecture_has_a_style_and_a_colour() -> None:
    colours = read_source("page.css").partition("@media")[0]
    assert tuple(ARCHITECTURES) == config.ARCHITECTURES
    for name in ARCHITECTURES:
        assert f"--{name}: #" in colours
    for looks in zip(*ARCHITECTURES.values(), strict=True):
        assert len(set(looks)) == len(ARCHITECTURES)
