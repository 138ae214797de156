"""The files that a comparison writes, and the page in a real browser."""

import json
import re
import shutil
import subprocess
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from triptych.report import compare


class Elements(HTMLParser):
    """The elements of a page, and its text outside of scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.styles = ""
        self.text = ""
        self.inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.inside = tag

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside == "style":
            self.styles += data
        elif self.inside != "script":
            self.text += data


@pytest.fixture
def page(seven_runs: Path) -> Path:
    """The page of the seven runs."""
    output = seven_runs.parent / "report" / "page.html"
    compare([seven_runs], output)
    return output


def parsed(page: Path) -> Elements:
    """The page's elements."""
    elements = Elements()
    elements.feed(page.read_text(encoding="utf-8"))
    return elements


def test_comparison_json(page: Path, seven_runs: Path) -> None:
    record = json.loads(page.with_name("comparison.json").read_text(encoding="utf-8"))
    assert list(record) == ["runs", "verdicts", "audit"]
    assert len(record["runs"]) == 7
    for run in record["runs"]:
        directory = run.pop("directory")
        assert not Path(directory).is_absolute()
        assert run == json.loads((page.parent / directory / "summary.json").read_text(encoding="utf-8"))
    assert [verdict["task"] for verdict in record["verdicts"]] == ["translation", "classification", "language_modeling"]
    for verdict in record["verdicts"]:
        assert set(verdict) == {"task", "data", "metric", "winner", "text"}
        assert verdict["winner"] is None
    assert ("language_modeling", "tokenizer_sha256") in {(entry["task"], entry["field"]) for entry in record["audit"]}
    for entry in record["audit"]:
        assert set(entry) == {"task", "field", "values", "text"}
        assert set(entry["values"]) < {"../runs/" + path.name for path in seven_runs.iterdir()}


def test_comparison_json_is_strict_where_a_run_diverged(write_run, tmp_path: Path) -> None:
    write_run("full", "classification", {"test/accuracy": float("nan")})
    write_run("decoder_only", "classification", {"test/accuracy": 0.9})
    compare([tmp_path / "runs"], tmp_path / "page.html")

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    record = json.loads((tmp_path / "comparison.json").read_text(), parse_constant=refuse)
    assert [run["metrics"]["test/accuracy"] for run in record["runs"]] == [None, 0.9]
    assert "not finite" in parsed(tmp_path / "page.html").text


def test_the_table_is_printed(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compare([page.parent.parent / "runs"], page)
    printed = capsys.readouterr().out
    assert "1.2 points below" in printed
    assert "one seed each" in printed
    assert "translation_killed" in printed
    assert "…" not in printed  # nothing is cut off at 80 columns


def test_the_page_says_what_the_runs_show(page: Path, seven_runs: Path) -> None:
    text = parsed(page).text
    assert "full 98.1 % vs decoder-only 97.2 %, one seed each: not distinguishable without more seeds." in text
    assert "1.2 points below the ceiling" in text
    assert "3.8 % above the entropy" in text
    assert "translation_killed" in text
    assert "triptych train experiment=dates/translation_full seed=1" in text
    summary = json.loads((seven_runs / "translation_full_seed1" / "summary.json").read_text(encoding="utf-8"))
    for sample in summary["samples"]:
        assert sample["input"] in text


def test_wrong_outputs_are_marked_and_only_those(page: Path) -> None:
    source = page.read_text(encoding="utf-8").split("<script>")[0]
    wrong = re.findall(r'<span class="wrong"[^>]*>(.*?)</span>', source)
    assert wrong[:2] == ["1998-03-0<mark>9</mark>", "2003-06-1<mark>9</mark>"]
    assert len(wrong) == 5  # two of translation, three of classification, none of language modelling


def test_text_of_runs_is_escaped(page: Path, hostile: str) -> None:
    found = parsed(page)
    assert hostile in found.text
    assert "evil.example" not in "".join(str(attributes) for _, attributes in found.elements)
    assert len([tag for tag, _ in found.elements if tag == "script"]) == 2 + 3 * 3  # plotly, ours, three charts a task


def test_hostile_names_of_runs_are_escaped_in_the_charts_too(write_run, hostile: str, tmp_path: Path) -> None:
    run = write_run("full", "classification", {"test/accuracy": 0.9}, changes={"data": hostile, "command": hostile})
    run.rename(run.with_name("<b onclick=alert(1)>"))
    compare([tmp_path / "runs"], tmp_path / "page.html")
    found = parsed(tmp_path / "page.html")
    assert hostile in found.text
    assert not {tag for tag, _ in found.elements} & {"img", "b onclick"}
    assert not any("onclick" in attributes or "onerror" in attributes for _, attributes in found.elements)
    figures = re.findall(r'<script type="application/json">(.*?)</script>', (tmp_path / "page.html").read_text())
    assert figures
    assert all("<b onclick" not in json.dumps(json.loads(figure)) for figure in figures)


def test_the_page_asks_the_network_for_nothing(page: Path) -> None:
    found = parsed(page)
    for tag, attributes in found.elements:
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            assert (attributes.get(name) or "#").startswith("#"), (tag, name)
    styles = found.styles + "".join(attributes.get("style") or "" for _, attributes in found.elements)
    assert "url(" not in styles
    assert "@import" not in styles
    (policy,) = [a["content"] for tag, a in found.elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    assert policy.startswith("default-src 'none';")
    assert "http" not in policy


def test_the_page_is_light(page: Path) -> None:
    assert page.stat().st_size < 8e6


def test_long_curves_are_thinned(write_run, tmp_path: Path) -> None:
    run = write_run("full", "classification", {"test/accuracy": 0.9})
    rows = "".join(f"0,{step},{1 / (step + 1)}\n" for step in range(50_001))
    (run / "metrics.csv").write_text("epoch,step,train/loss\n" + rows)
    compare([run], tmp_path / "page.html")
    figures = re.findall(r'<script type="application/json">(.*?)</script>', (tmp_path / "page.html").read_text())
    (steps,) = [trace["x"] for figure in figures for trace in json.loads(figure)["data"] if trace.get("name") == "full"]
    assert 200 < len(steps) <= 400
    assert steps[-1] == 50_000


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs a browser: no chromium on PATH")
def test_a_browser_draws_the_charts_without_a_complaint(page: Path, tmp_path: Path) -> None:
    options = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking"
    options += " --disable-component-update --disable-sync --enable-logging=stderr --virtual-time-budget=10000"
    done = subprocess.run(
        ["chromium", *options.split(), f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "CONSOLE" not in done.stderr, [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert done.stdout.count('class="chart js-plotly-plot"') == 9
    assert len(re.findall(r'<path class="point"', done.stdout)) > 7  # a dot for each run, and those of the curves
    assert len(re.findall(r'class="js-line"[^>]* d="M[^"]*L', done.stdout)) == 14  # two curves for each run
    drawn = unescape(done.stdout)
    assert "ceiling 99.3 %" in drawn
    assert "entropy 0.611 bits/byte" in drawn


def test_a_translation_that_differs_is_not_called_wrong(write_run, tmp_path: Path) -> None:
    """Where no best exact match is known, BLEU is the metric: many translations of a sentence are right."""
    write_run("full", "translation", {"test/exact_match": 0.04, "test/bleu": 33.26})
    compare([tmp_path], tmp_path / "page.html")
    assert 'class="wrong"' not in (tmp_path / "page.html").read_text(encoding="utf-8")
