"""The files that a comparison writes, and the page in a real browser."""

import json
import re
from html import unescape
from html.parser import HTMLParser
from itertools import product
from pathlib import Path

import pytest

from browser import SCREENS, Browser, needs_browser
from cases import by_day
from triptych.report.compare import compare, compare_runs
from triptych.report.page.charts import draw_loss, draw_results
from triptych.report.page.render import Panel
from triptych.report.read_records import find_runs
from triptych.report.statistics.groups import MOST_SHOWN, group_runs


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
    record = json.loads(page.with_suffix(".comparison.json").read_text(encoding="utf-8"))
    assert list(record) == ["runs", "verdicts", "configurations", "pairwise", "audit", "unfinished", "damaged"]
    assert len(record["runs"]) == 7
    for run in record["runs"]:
        directory = run.pop("directory")
        assert not Path(directory).is_absolute()
        assert run == json.loads((page.parent / directory / "summary.json").read_text(encoding="utf-8"))
    assert [verdict["task"] for verdict in record["verdicts"]] == ["classification", "language_modeling", "translation"]
    for verdict in record["verdicts"]:
        assert set(verdict) == {
            "task", "data", "metric", "by", "outcome", "winner", "reasons", "text", "commands", "price", "by_block"
        }  # fmt: skip
        assert verdict["winner"] is None
    assert ("language_modeling", "tokenizer_sha256") in {(entry["task"], entry["field"]) for entry in record["audit"]}
    assert [len(standing["seeds"]) for standing in record["configurations"]] == [1] * 7
    assert [(duel["first"], duel["second"]) for duel in record["pairwise"]] == [
        ("full", "encoder-only"),
        ("full", "decoder-only"),
        ("encoder-only", "decoder-only"),
        ("full", "decoder-only"),
        ("full", "decoder-only"),
    ]
    assert [duel["low"] for duel in record["pairwise"]] == [None] * 5
    for entry in record["audit"]:
        assert set(entry) == {"task", "field", "values", "text"}
        assert set(entry["values"]) < {"../runs/" + path.name for path in seven_runs.iterdir()}


def test_comparison_json_is_strict_where_a_run_diverged(write_run, tmp_path: Path) -> None:
    write_run("full", "classification", {"test/accuracy": float("nan")})
    write_run("decoder_only", "classification", {"test/accuracy": 0.9})
    compare([tmp_path / "runs"], tmp_path / "page.html")

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    record = json.loads((tmp_path / "page.comparison.json").read_text(), parse_constant=refuse)
    assert [run["metrics"]["test/accuracy"] for run in record["runs"]] == [None, 0.9]
    assert "not finite" in parsed(tmp_path / "page.html").text


def test_the_table_is_printed(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compare([page.parent.parent / "runs"], page)
    printed = capsys.readouterr().out
    assert "1.2 points below" in printed
    assert "full has 1 seed" in " ".join(printed.split())
    assert "translation_killed" in printed
    assert "…" not in printed  # nothing is cut off at 80 columns


def test_the_page_says_what_the_runs_show(page: Path, seven_runs: Path) -> None:
    text = parsed(page).text
    assert "full 98.1 % (1 seed) vs decoder-only 97.2 % (1 seed): inconclusive, because full has 1 seed" in text
    assert "1.2 points below the ceiling" in text
    assert "exceed it slightly" not in text
    assert "Macro" not in text  # a macro of the template in place of a value
    assert "3.8 % above the entropy" in text
    assert "translation_killed" in text
    assert "triptych train experiment=dates/translation model=full seed=1" in text
    summary = json.loads((seven_runs / "translation_full_seed1" / "summary.json").read_text(encoding="utf-8"))
    for sample in summary["samples"]:
        assert sample["input"] in text


def test_page_and_terminal_say_how_each_configuration_was_trained(
    write_run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times = {"began": "2026-03-01T10:00:00+00:00", "ended": "2026-03-01T11:00:00+00:00"}
    for architecture in ("full", "decoder_only"):
        write_run(architecture, "classification", {"test/accuracy": 0.9}, changes={"best_step": 400, **times})
    compare([tmp_path / "runs"], tmp_path / "page.html")
    row = ["full", "1", "0", "1", "400", "800", "2026-03-01"]
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", (tmp_path / "page.html").read_text().split("<h3>Training</h3>")[1])
    assert cells[:7] == row
    assert row in [line.split() for line in capsys.readouterr().out.splitlines()]


@pytest.fixture
def attentions(write_run, tmp_path: Path) -> Path:
    """Runs of five attentions and two sizes."""
    for attention in "abcde":
        for layers in (1, 2):
            for seed in (1, 2):
                settings = {"block": {"attention": attention}, "shape": {"num_layers": layers}}
                command = f"triptych train block/attention={attention} shape.num_layers={layers}"
                write_run(
                    "full", "classification", {"test/accuracy": 0.9}, seed=seed, settings=settings,
                    changes={"command": command}, name=f"{attention}{layers}",
                )  # fmt: skip
    return tmp_path / "runs"


@pytest.mark.parametrize(
    ("by", "heading", "other_than"),
    [
        (["block/attention"], "Which block/attention is better?", "block/attention"),
        (
            ["block/attention", "shape.num_layers"],
            "Which combination of block/attention and shape.num_layers is better?",
            "combination of block/attention and shape.num_layers",
        ),
    ],
)
def test_the_page_says_what_is_compared(attentions: Path, by: list[str], heading: str, other_than: str) -> None:
    """Not architectures, so it does not explain them."""
    output = attentions.parent / "page.html"
    compare([attentions], output, by=by)
    page = output.read_text(encoding="utf-8")
    assert f"<h1>{heading}</h1>" in page
    assert f"<h3>Audit: differences other than the {other_than}</h3>" in page
    assert "causal attention over the output" not in page
    assert "<svg" not in page.partition("<main>")[2].partition("<script")[0]


def test_the_page_of_architectures_explains_them(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "<h1>Which architecture is better?</h1>" in text
    assert "causal attention over the output" in text
    assert "Settings that differ" not in text


def test_the_page_lists_the_roles_of_settings(attentions: Path) -> None:
    compare([attentions], attentions.parent / "page.html", by=["block/attention"])
    page = (attentions.parent / "page.html").read_text(encoding="utf-8")
    table = page.partition("<h3>Settings that differ</h3>")[2].partition("</table>")[0]
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in table.split("<tr>")[2:]]
    assert rows == [
        ["block/attention", "compared", "a, b, c, d, e"],
        ["shape.num_layers", "block", "1, 2"],
        ["seed", "replicate", "1, 2"],
    ]


def test_the_compared_levels_have_the_colours(attentions: Path) -> None:
    """In all tables and charts; the fifth has the first colour again, with another dash."""
    (group,) = group_runs(find_runs([attentions], attentions).runs, by=["block/attention"])
    colours = ["full", "encoder_only", "decoder_only", "prefix_lm", "full"]
    assert [contender.style for contender in group.contenders] == [colour for colour in colours for _ in (1, 2)]
    results = draw_results(group)["data"][:-1]
    assert [trace["marker"]["color"] for trace in results] == [f"var(--{x})" for x in colours for _ in (1, 2)]
    curves = [trace for trace in draw_loss(group)["steps"]["data"] if trace.get("showlegend")]
    looks = {trace["name"]: (trace["line"]["color"], trace["line"]["dash"]) for trace in curves}
    assert len({*looks.values()}) == len(looks) == 10
    assert looks["attention=b (num_layers=2)"] == ("var(--encoder_only)", "dash")
    bands = [trace["fillcolor"] for trace in draw_loss(group)["steps"]["data"] if "fillcolor" in trace]
    assert bands == [f"var(--{x})" for x in colours for _ in (1, 2)]
    compare([attentions], attentions.parent / "page.html", by=["block/attention"])
    page = (attentions.parent / "page.html").read_text(encoding="utf-8")
    assert page.count('<div class="run encoder_only">') == 2
    assert page.count('<td class="own encoder_only">attention=b (num_layers=') == 2
    assert page.count('<td class="own encoder_only">full</td>') == 4


def test_wrong_outputs_are_marked_and_only_those(page: Path) -> None:
    source = page.read_text(encoding="utf-8").split("<script>")[0]
    wrong = re.findall(r'<span class="wrong"[^>]*>(.*?)</span>', source)
    assert wrong[-2:] == ["1998-03-0<mark>9</mark>", "2003-06-1<mark>9</mark>"]
    assert len(wrong) == 5  # two of translation, three of classification, none of language modeling


def test_text_of_runs_is_escaped(page: Path, hostile: str) -> None:
    found = parsed(page)
    assert hostile in found.text
    assert "evil.example" not in "".join(str(attributes) for _, attributes in found.elements)
    # plotly, its template, our script, four charts a task
    assert len([tag for tag, _ in found.elements if tag == "script"]) == 3 + 3 * 4


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
    shown = [figure for switch in figures for figure in json.loads(switch).values()]
    (steps,) = [t["x"] for f in shown for t in f["data"] if t.get("name") == "full" and len(t["x"]) > 1]
    assert 200 < len(steps) <= 400
    assert steps[-1] == 50_000


@pytest.mark.daily
@needs_browser
def test_a_browser_draws_the_charts_without_a_complaint(page: Path, browser: Browser) -> None:
    browser.open(page.as_uri())
    assert browser.complaints == []
    dom = browser.dom
    assert dom.count('class="chart js-plotly-plot"') == 12  # results, two of curves and costs, of three tasks
    assert len(re.findall(r'<path class="point"', dom)) > 7  # a dot for each run, and those of the curves
    assert len(re.findall(r'class="js-line"[^>]* d="M[^"]*L', dom)) >= 14  # two curves for each run
    drawn = unescape(dom)
    assert "ceiling 99.3 %" in drawn
    assert "entropy 0.611 bits/byte" in drawn


@needs_browser
def test_each_switch_shows_another_figure_and_its_numbers(page: Path, browser: Browser) -> None:
    """With a user who presses the last button of each switch and opens each table."""
    browser.open(page.as_uri())
    browser.ask(
        "document.querySelectorAll('.switch button:last-child').forEach(button => button.click());"
        "document.querySelectorAll('.data').forEach(data => { data.open = true; });"
    )
    browser.ask("new Promise(done => setTimeout(done, 100))")  # the event of the tables
    assert browser.complaints == []
    dom = browser.dom
    pressed = "[...document.querySelectorAll('.switch [aria-pressed=true]')].map(button => button.textContent)"
    assert browser.ask(pressed) == ["time"] * 9  # curves and costs, of three tasks
    assert dom.count("<th>seconds of training</th>") == 9
    assert dom.count("<th>steps</th>") == 0
    translation = page.read_text(encoding="utf-8").split("<h2>")[1]
    tables = dom.split("<h2>")[1].count('<details class="data" open')
    assert tables == translation.count('<details class="data">') == 4
    assert f"<td>full</td><td>{800 / 11:.5g}</td>" in dom


@pytest.fixture
def hard_page(write_run, tmp_path: Path) -> Path:
    """What is hard to show: long names, many settings, classes, layers and columns; a model beyond the optimum; no
    reference; a run that is damaged."""
    classes = [f"a class with a long name, number {i}" for i in range(14)]
    matrix = {"labels": classes, "counts": [[int(i == j) for j in range(14)] for i in range(14)]}
    of_text = {"queries": list("<bos>"), "keys": list("<bos>"), "written": [], "num_tokens": 5}
    heads = [[[[200] * 5] * 5] * 8] * 4
    attention = {kind: {**of_text, "weights_x1000": heads} for kind in ("encoder", "decoder", "cross")}
    for seed in (1, 2):
        for architecture, accuracy in (("full", 0.9868), ("encoder_only", 0.987), ("decoder_only", 0.9872)):
            for lr in (1e-3, 3e-3):
                network = {"_target_": "x", "head": {"pooling": "mean" if architecture == "encoder_only" else "last"}}
                settings = {"optimizer": {"lr": lr}, "task": {"label_smoothing": 20 * lr}, "model": network}
                settings |= {"data": {"train": f"a/long/name/of/a/file/{lr}.csv"}}
                changes = {"confusion_matrix": matrix, "prediction_latency_s": 0.1, "peak_memory_bytes": 10**9 + seed}
                metrics = {"test/accuracy": accuracy + seed * lr, "val/accuracy": 0.9 + lr}
                name = f"_with_a_name_that_has_no_end_at_all_{lr}"
                optimum = {"test/accuracy": 0.9885}
                run = write_run(
                    architecture, "classification", metrics, optimum=optimum, seed=seed, changes=changes,
                    settings=settings, name=name,
                )  # fmt: skip
                (run / "attention.json").write_text(
                    json.dumps({"samples": [{"input": "a", "output": "b", **attention}]})
                )
    for architecture in ("full", "encoder_only"):
        denoised = {"samples": [{"input": "a text", "output": "a test", "reference": ""}]}
        write_run(architecture, "denoising", {"test/loss": 0.5}, changes=denoised)
    (write_run("full", "tagging", {"test/accuracy": 0.5}) / "summary.json").write_text("{")
    compare([tmp_path / "runs"], tmp_path / "hard" / "page.html")
    return tmp_path / "hard" / "page.html"


@pytest.fixture
def study_page(seven_runs: Path) -> Path:
    """The page of a study, with a finding of each kind."""
    output = seven_runs.parent / "study" / "page.html"
    found = find_runs([seven_runs], output.parent)
    outcomes = {"as predicted": "", "not as predicted": "", "inconclusive": "triptych study mine 'seed=range(1,100)'"}
    compare_runs(
        found, output, "Which architecture, for which of all of the tasks?",
        [
            Panel("A prediction", "of that", "Found", outcome, command, draw_results(group))
            for (outcome, command), group in zip(outcomes.items(), group_runs(found.runs), strict=True)
        ],
    )  # fmt: skip
    return output


def test_a_study_begins_with_its_findings(study_page: Path) -> None:
    text = parsed(study_page).text
    places = [
        text.index(part)
        for part in ("Which architecture", "A prediction", "Not as predicted: A", "Inconclusive: A", "All runs")
    ]
    assert places == sorted(places)
    assert "triptych study mine 'seed=range(1,100)'" in text


@needs_browser
@pytest.mark.parametrize(
    ("which", "width"),
    by_day(product(["page", "hard_page", "study_page"], [390, 1280]), [("hard_page", 390), ("study_page", 1280)]),
)
def test_the_page_fits_on_a_screen(which: str, width: int, browser: Browser, request: pytest.FixtureRequest) -> None:
    """Whatever is shown: no title, label or name is cut, and the page is as wide as the screen."""
    browser.open(request.getfixturevalue(which).as_uri(), width=width, height=844)
    count = browser.ask("Math.max(...[...document.querySelectorAll('.switch')].map(x => x.children.length))")
    for i in range(count):
        browser.ask(f"document.querySelectorAll('.switch button:nth-child({i + 1})').forEach(x => x.click())")
        assert browser.ask("document.documentElement.scrollWidth") == width
        assert browser.cut_texts() == []
    assert browser.complaints == []


@needs_browser
@pytest.mark.parametrize(("width", "scheme"), by_day(SCREENS, SCREENS[1:]))
def test_nothing_keeps_anybody_from_reading_it(study_page: Path, browser: Browser, width: int, scheme: str) -> None:
    """With what can be opened open, but for the numbers of the charts."""
    browser.open(study_page.as_uri(), width=width, scheme=scheme)
    browser.ask("document.querySelectorAll('details:not(.data)').forEach(details => { details.open = true; })")
    assert browser.barriers() == []
    assert browser.tab_through() == []
    assert browser.ask("document.documentElement.scrollWidth") == width


@needs_browser
def test_keys_choose_a_figure_and_read_its_numbers(study_page: Path, browser: Browser) -> None:
    browser.open(study_page.as_uri())
    browser.focus(".charts .switch button:last-child")
    browser.press(" ")
    assert browser.ask("document.querySelector('.charts .xtitle').textContent") == "seconds of training"
    browser.focus(".charts .legend button")
    browser.press("Enter")
    assert browser.ask("document.querySelector('.charts .legend button').ariaPressed") == "false"
    browser.focus(".charts .data summary")
    browser.press("Enter")
    browser.ask("new Promise(done => setTimeout(done, 100))")
    browser.press("Tab")
    browser.press("ArrowDown")
    browser.ask("new Promise(done => setTimeout(done, 300))")  # it scrolls smoothly
    assert browser.ask("document.querySelector('.charts .data .scroll').scrollTop") > 0


@needs_browser
def test_a_table_that_is_wider_than_the_screen_says_so(page: Path, browser: Browser) -> None:
    """Until its last column is reached. Nothing says so where all of it is there."""
    browser.open(page.as_uri(), width=390, height=844)
    wider = "[...document.querySelectorAll('.scroll')].filter(box => box.scrollWidth > box.clientWidth)"
    says = "getComputedStyle(box, '::before').content.includes('more columns')"
    count = browser.ask(f"{wider}.length")
    assert count >= 3  # of each task the table of runs
    assert browser.ask(f"{wider}.filter(box => {says}).length") == count
    browser.ask(f"{wider}.forEach(box => {{ box.scrollLeft = box.scrollWidth; }})")
    browser.ask("new Promise(done => setTimeout(done, 100))")
    assert browser.ask(f"{wider}.length") == 0 or browser.ask(f"{wider}.filter(box => {says}).length") == 0
    browser.open(page.as_uri(), width=1280)
    assert browser.ask(f"[...document.querySelectorAll('.scroll')].filter(box => {says}).length") == 0


def figures_in(page: Path) -> list[dict[str, dict]]:
    return [json.loads(x) for x in re.findall(r'<script type="application/json">(.*?)</script>', page.read_text())]


def test_a_small_difference_looks_small(hard_page: Path) -> None:
    """The accuracies are from 98.88 to 99.32 %: no axis that shows them is shorter than two points."""
    (costs,) = [switch for switch in figures_in(hard_page) if "memory" in switch]
    for figure in costs.values():
        low, high = figure["layout"]["yaxis"]["range"]
        assert high - low >= 2
        low, high = figure["layout"]["xaxis"]["range"]  # powers of ten
        assert 10 ** (high - low) >= 2


def test_the_front_of_one_point_is_a_line(write_run, tmp_path: Path) -> None:
    """From what is worse to what is dearer."""
    for architecture, accuracy, params in (
        ("full", 0.8, 3000),
        ("encoder_only", 0.9, 1000),
        ("decoder_only", 0.7, 2000),
    ):
        write_run(architecture, "classification", {"test/accuracy": accuracy}, changes={"params": params})
    compare([tmp_path / "runs"], tmp_path / "page.html")
    (costs,) = [
        switch for switch in figures_in(tmp_path / "page.html") if "memory" not in switch and "parameters" in switch
    ]
    (front,) = [trace for trace in costs["parameters"]["data"] if trace["name"] == "Pareto front"]
    assert front["y"][0] < 70
    assert front["x"][-1] > 3000
    assert (front["x"][:2], front["y"][1:]) == ([1000, 1000], [90, 90])


def test_a_value_beyond_the_optimum_is_explained(hard_page: Path) -> None:
    text = parsed(hard_page).text
    assert "0.32 points above the ceiling" in text
    assert "a model can exceed it slightly by chance" in text


def test_there_is_no_empty_column(hard_page: Path) -> None:
    denoising = hard_page.read_text(encoding="utf-8").split("<h2>")[-1].partition("How to reproduce")[0]
    assert "a test" in denoising
    assert "reference" not in denoising


def test_a_person_reads_words(hard_page: Path, page: Path) -> None:
    """No key of a file, but in the settings and commands that are meant to be typed."""
    for path in (hard_page, page):
        text = re.sub(
            r"<pre>.*?</pre>|<code>.*?</code>|<script>.*?</script>|<style>.*?</style>", "", path.read_text(), flags=re.S
        )
        for key in (
            "train_flops",
            "elapsed_s",
            "tokens_per_step",
            "git_commit",
            "data_sha256",
            "train/",
            "val/",
            "test/",
        ):
            assert key not in text, key


def test_the_tables_show_what_was_varied(
    hard_page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = hard_page.read_text(encoding="utf-8")
    assert re.search(r"<th[^>]*>lr</th><th[^>]*>label_smoothing</th>", text)
    assert re.search(r"0.003</td><td[^>]*>0.06</td>", text)
    capsys.readouterr()
    for width in (160, 80):
        monkeypatch.setenv("COLUMNS", str(width))
        compare(
            [tmp_path / "runs" / f"classification_full_seed{seed}{end}" for seed in (1, 2) for end in ENDS], hard_page
        )
        printed = capsys.readouterr().out
        rows = [line.split() for line in printed.splitlines() if line.strip().startswith(("architecture", "full "))][:5]
        place = rows[0].index("lr")
        assert sorted(row[place] for row in rows[1:]) == ["0.001"] * 2 + ["0.003"] * 2
        assert "…" not in printed
        assert re.search("^ configuration ", printed, re.MULTILINE)


ENDS = ("_with_a_name_that_has_no_end_at_all_0.001", "_with_a_name_that_has_no_end_at_all_0.003")


def test_the_audit_says_what_stands_for_the_whole_text(hard_page: Path) -> None:
    assert "full uses the last state, encoder-only uses the mean of the states" in parsed(hard_page).text


def test_a_damaged_run_is_named_and_the_others_are_compared(
    hard_page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compare([tmp_path / "runs"], hard_page)
    said = "runs/tagging_full_seed1/summary.json: damaged, expected JSON"
    record = json.loads(hard_page.with_suffix(".comparison.json").read_text())
    assert len(record["runs"]) == 14
    (damage,) = record["damaged"]
    assert said in damage
    assert str(tmp_path) not in damage
    assert said in parsed(hard_page).text
    assert said in " ".join(capsys.readouterr().out.split())
    with pytest.raises(ValueError, match="damaged, expected JSON"):
        compare([tmp_path / "runs" / "tagging_full_seed1"], hard_page)


def test_two_pages_in_a_folder_keep_their_content(write_run, tmp_path: Path) -> None:
    for task in ("classification", "tagging"):
        write_run("full", task, {"test/accuracy": 0.9})
        compare([tmp_path / "runs" / f"{task}_full_seed1"], tmp_path / f"{task}.html")
    for task in ("classification", "tagging"):
        (run,) = json.loads((tmp_path / f"{task}.comparison.json").read_text())["runs"]
        assert run["task"] == task


def test_a_translation_that_differs_is_not_called_wrong(write_run, tmp_path: Path) -> None:
    """Where no best exact match is known, BLEU is the metric: many translations of a sentence are right."""
    write_run("full", "translation", {"test/exact_match": 0.04, "test/bleu": 33.26})
    compare([tmp_path], tmp_path / "page.html")
    assert 'class="wrong"' not in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_where_no_best_value_is_known_there_is_no_column_for_it(
    write_run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for architecture in ("full", "decoder_only"):
        write_run(architecture, "translation", {"test/exact_match": 0.04, "test/bleu": 33.26})
    compare([tmp_path], tmp_path / "page.html")
    assert "To the ceiling" not in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "to the ceiling" not in capsys.readouterr().out


def test_each_configuration_has_its_card(write_run, tmp_path: Path) -> None:
    for name, lr in (("a", 1e-3), ("b", 1e-4)):
        settings = {"optimizer": {"lr": lr}, "shape": {"d_model": 16}}
        write_run("full", "translation", {"test/bleu": 33.26}, settings=settings, name=name)
    write_run("decoder_only", "translation", {"test/bleu": 30.0})
    compare([tmp_path], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count('<div class="soft">lr=0.001</div>') == page.count('<div class="soft">lr=0.0001</div>') == 1
    assert page.count("<pre>optimizer.lr=0.001\nshape.d_model=16</pre>") == 1
    assert page.count("<pre>optimizer.lr=0.0001</pre>") == 1  # where it differs from the first run


def test_the_band_is_from_the_lowest_to_the_highest_seed(write_run, tmp_path: Path) -> None:
    for seed, values in enumerate(([0.5, 0.7, 0.8], [0.6, 0.5, 0.9]), start=1):
        run = write_run("full", "classification", {"test/accuracy": 0.9}, seed=seed)
        rows = "".join(f"{10 * i},{100 * i + seed},{value}\n" for i, value in enumerate(values))
        (run / "metrics.csv").write_text("step,tokens,val/accuracy\n" + rows)
    compare([tmp_path], tmp_path / "page.html")
    figures = re.findall(r'<script type="application/json">(.*?)</script>', (tmp_path / "page.html").read_text())
    switches = [json.loads(figure) for figure in figures]
    (switch,) = [switch for switch in switches if "tokens" in switch]
    for clock, places in (("steps", [0, 10, 20]), ("tokens", [1.5, 101.5, 201.5])):
        (band,) = [trace for trace in switch[clock]["data"] if trace.get("fill") == "toself"]
        assert band["x"] == [*places, *reversed(places)]
        assert band["y"] == [50, 50, 80, 90, 70, 60]


def test_what_only_some_parts_have_tells_runs_apart(write_run, tmp_path: Path) -> None:
    write_run("decoder_only", "translation", {"test/bleu": 30.0})
    sinusoidal = {"_target_": "triptych.nn.SinusoidalPositions", "_partial_": True, "first": 0}
    rotary = {"_target_": "triptych.nn.Rotary", "_partial_": True, "scaling": None}
    for name, position in (("a", sinusoidal), ("b", rotary | {"theta": 100.0}), ("c", rotary | {"theta": 10000.0})):
        settings = {"block": {"position": position}, "model": {"decoder": {"position": position}}}
        write_run("full", "translation", {"test/bleu": 33.26}, settings=settings, name=name)
    compare([tmp_path], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count('<div class="soft">position=sinusoidal</div>') == 1
    for theta in (100.0, 10000.0):
        assert page.count(f'<div class="soft">position=rotary, theta={theta}</div>') == 1


def test_optimizers_are_told_apart_by_their_choice(write_run, tmp_path: Path) -> None:
    write_run("decoder_only", "translation", {"test/bleu": 30.0})
    for name in ("AdamW", "Muon"):
        settings = {"optimizer": {"_target_": f"triptych.training.optimizers.{name}", "lr": 1e-3}}
        write_run("full", "translation", {"test/bleu": 33.26}, settings=settings, name=name)
    compare([tmp_path], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count('<div class="soft">optimizer=adamw</div>') == 1
    assert page.count('<div class="soft">optimizer=muon</div>') == 1


def test_another_part_of_one_stack_is_not_hidden_by_that_of_all(write_run, tmp_path: Path) -> None:
    write_run("decoder_only", "translation", {"test/bleu": 30.0})
    for name, (both, own) in {
        "a": ("pre_norm", "pre_norm"),
        "b": ("post_norm", "post_norm"),
        "c": ("pre_norm", "post_norm"),
    }.items():
        settings = {"block": {"residual": both}, "model": {"decoder": {"residual": own}}}
        write_run("full", "translation", {"test/bleu": 33.26}, settings=settings, name=name)
    compare([tmp_path], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count('<div class="soft">residual=pre_norm, model.decoder.residual=post_norm</div>') == 1


@needs_browser
def test_many_configurations(write_run, tmp_path: Path, browser: Browser, capsys: pytest.CaptureFixture[str]) -> None:
    """Charts and cards show the best ones on the validation set; long tables are sorted and filtered."""
    for number in range(60):
        rate, score = (number + 1) / 1000, (7 * number % 60) / 100
        metrics = {"val/accuracy": score, "test/accuracy": score}
        write_run("encoder_only", "classification", metrics, name=f"-{number}", settings={"optimizer": {"lr": rate}})
    compare([tmp_path], tmp_path / "page.html")
    best = [str((number + 1) / 1000) for number in range(60) if 7 * number % 60 >= 60 - MOST_SHOWN]
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert sorted(re.findall(r"<header>lr=([\d.]+)</header>", page)) == sorted(best)
    assert "The best 20 on the validation set; 40 others in the page" in capsys.readouterr().out
    browser.open((tmp_path / "page.html").as_uri())
    table = "[...document.querySelectorAll('.long')].at(-1).querySelector('table')"  # of the runs
    column = f"[...{table}.tBodies[0].rows].filter(row => !row.hidden).map(row => row.cells[3].textContent)"
    scores = [f"{7 * number % 60}.0 %" for number in range(60)]
    assert browser.ask(column) == scores
    for direction in (1, -1):
        browser.ask(f"{table}.tHead.rows[0].cells[3].querySelector('button').click()")
        assert browser.ask(column) == sorted(scores, key=lambda score: direction * float(score[:-2]))
    browser.ask("[...document.querySelectorAll('.filter')].at(-1).focus()")
    browser.type("seed1-7")
    assert browser.ask(column) == ["49.0 %"]
    assert browser.complaints == browser.barriers() == browser.cut_texts() == []
