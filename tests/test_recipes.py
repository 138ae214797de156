"""The recipes of CONTRIBUTING.md: what they add from outside works everywhere, without a change in here."""

import importlib
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import torch
import transformers
from safetensors.torch import load_file
from sklearn.metrics import matthews_corrcoef
from torch.testing import assert_close

import tiny
from cases import by_day
from commands import Finished, run
from small_models import random_model
from triptych.report.playground import Playground
from triptych.report.read_records import find_runs

RECIPES = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
ALLOWED = {"TRIPTYCH_ALLOW": "mine"}
TRAINING = [*tiny.NETWORK, "batch.global_size=20", "batch.eval_batch_size=32", "callbacks.progress.refresh_rate=0"]
TRAINING += ["trainer.max_steps=6", "trainer.val_check_interval=3", "trainer.accelerator=cpu", "logger=csv"]
DATES = ["data=dates", *tiny.DATES]


def read_recipes() -> dict[str, dict[str, str]]:
    """By what is added, the files whose names stand in the first lines of the blocks below its name."""
    recipes = {}
    for name, recipe in re.findall(r"^\*\*An? (\w+)[\w ]*\*\*(.*?)(?=^\*\*)", RECIPES, re.MULTILINE | re.DOTALL):
        blocks = re.findall(r"^```(?:python|yaml)\n(# (\S+)\n.*?)^```$", recipe, re.MULTILINE | re.DOTALL)
        recipes[name] = {file: block for block, file in blocks}
    return recipes


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder with the files of the recipes: for each one file, and one of YAML where it is chosen by a name."""
    files = {}
    for name, recipe in read_recipes().items():
        assert sorted(Path(file).suffix for file in recipe) == ([".py"] if name == "plot" else [".py", ".yaml"]), name
        files |= recipe
    assert len(files) == 13
    for name, text in files.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return tmp_path


def triptych(folder: Path, *arguments: str) -> Finished:
    finished = run(*arguments, cwd=folder, variables={"PYTHONPATH": str(folder), **ALLOWED})
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished


def go_through(folder: Path, chosen: list[str], texts: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What is chosen is planned, trained to the end, compared, evaluated, asked and played with.

    Returns:
        summary.json of the run.
    """
    command = ["--config-dir=conf", *chosen, *TRAINING]
    assert "parameters" in triptych(folder, "doctor", *command).stdout
    triptych(folder, "train", *command, "run_dir=runs/one")
    record: dict[str, Any] = json.loads((folder / "runs/one/summary.json").read_text())

    score = record["task_info"]["comparison_metrics"][0]
    assert score["title"] in triptych(folder, "compare", "runs", "--output", "page.html").stdout
    assert record["task_info"]["title"] in (folder / "page.html").read_text(encoding="utf-8")
    evaluated = triptych(folder, "evaluate", "checkpoint=runs/one").stdout
    assert f"{record['metrics'][score['key']]:.6g}" in evaluated
    (folder / "texts.txt").write_text(texts, encoding="utf-8")
    triptych(folder, "predict", "checkpoint=runs/one", "input=texts.txt", "output=answers.txt")
    assert len((folder / "answers.txt").read_text(encoding="utf-8").splitlines()) == len(texts.splitlines())

    monkeypatch.setenv(*next(iter(ALLOWED.items())))
    monkeypatch.syspath_prepend(str(folder))
    playground = Playground(find_runs([folder / "runs"], folder).runs, folder)
    status, page = playground.page("/?" + urlencode({"text": texts.splitlines()[0]}))
    assert status == 200
    assert 'class="prediction"' in page
    return record


def test_a_task(outside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for label, word in (("negative", "bad"), ("positive", "good")):
        (outside / f"{label}.txt").write_text("".join(f"{word} {i}\n" for i in range(100)))
    chosen = ["task=sentiment", "model=encoder_only", "data=labelled_text", "data.dir=."]
    chosen += ["data.train={negative: negative.txt, positive: positive.txt}", "data.validation=0.2", "data.test=0.2"]
    record = go_through(outside, chosen, "good 3\nbad 5\n", monkeypatch)
    assert (record["task"], record["task_info"]["title"]) == ("sentiment", "Sentiment")
    assert {sample["reference"] for sample in record["samples"]} <= {"negative", "positive"}
    answers = [json.loads(line) for line in (outside / "runs/one/predictions.jsonl").read_text("utf-8").splitlines()]
    share = sum(answer["output"] == answer["reference"] for answer in answers) / len(answers)
    assert record["metrics"]["test/accuracy"] == pytest.approx(share, rel=1e-6)
    assert {*(outside / "answers.txt").read_text(encoding="utf-8").splitlines()} <= {"negative", "positive"}


def test_a_task_names_the_example_that_it_cannot_take(outside: Path) -> None:
    (outside / "neutral.txt").write_text("".join(f"so {i}\n" for i in range(100)))
    finished = run(
        "train", "--config-dir=conf", "task=sentiment", "data=labelled_text", "data.dir=.", "model=encoder_only",
        "data.train={negative: neutral.txt, neutral: neutral.txt}", "data.validation=0.2", "data.test=0.2",
        *TRAINING, "run_dir=run", cwd=outside, variables={"PYTHONPATH": str(outside), **ALLOWED},
    )  # fmt: skip
    assert re.search(r"neutral\.txt, line \d+: tuple\.index\(x\): x not in tuple", finished.stderr), finished.stderr


@pytest.mark.nightly
@pytest.mark.parametrize(("task", "model"), [("translation", "full"), ("classification", "decoder_only")])
def test_a_corpus(outside: Path, task: str, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    record = go_through(outside, [f"task={task}", "data=sums", f"model={model}"], "3+4\n20+1\n", monkeypatch)
    assert list(record["optimum"].values()) == [1.0]
    given = [sample["input"].split("+") for sample in record["samples"]]
    sums = [str(int(a) + int(b)) for a, b in given]
    expected = sums if task == "translation" else [("even", "odd")[int(number) % 2] for number in sums]
    assert [sample["reference"] for sample in record["samples"]] == expected


def test_a_corpus_is_not_given_what_it_lacks(outside: Path) -> None:
    finished = run(
        "train", "--config-dir=conf", "task=tagging", "data=sums", "model=encoder_only", *TRAINING, "run_dir=run",
        cwd=outside, variables={"PYTHONPATH": str(outside), **ALLOWED},
    )  # fmt: skip
    assert "task=tagging: data=sums has no words and no tags, but text, target, label" in finished.stderr


@pytest.mark.nightly
def test_a_metric(outside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = go_through(outside, ["task=matthews", *DATES, "model=encoder_only"], "5.3.1998\n", monkeypatch)
    answers = [json.loads(line) for line in (outside / "runs/one/predictions.jsonl").read_text("utf-8").splitlines()]
    expected = matthews_corrcoef([a["reference"] for a in answers], [a["output"] for a in answers])
    assert record["metrics"]["test/matthews"] == pytest.approx(expected, abs=1e-6)
    assert "Matthews correlation" in (outside / "page.html").read_text(encoding="utf-8")


@pytest.mark.nightly
def test_a_plot(outside: Path) -> None:
    command = ["--config-dir=conf", "task=classification", *DATES, "model=encoder_only", *TRAINING]
    triptych(outside, "train", *command, "trainer.log_every_n_steps=1", "run_dir=runs/one")
    triptych(outside, "compare", "runs", "--output", "page.html", "--plot", "mine.gradients.draw_gradients")
    page = (outside / "page.html").read_text(encoding="utf-8")
    panels = [json.loads(data) for data in re.findall(r'<script type="application/json">(.*?)</script>', page)]
    (figure,) = [panel[""] for panel in panels if panel.get("", {}).get("title") == "Norm of the gradient"]
    rows = (outside / "runs/one/metrics.csv").read_text().splitlines()
    column = rows[0].split(",").index("train/grad_norm")
    norms = [float(row.split(",")[column]) for row in rows[1:] if row.split(",")[column]]
    assert figure["data"][0]["y"] == [float(f"{norm:.5g}") for norm in norms]  # what a page shows
    assert len(norms) == 6


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("mine.gradients.draw_gradients", "not allowed; expected"),
        ("triptych.report.page.charts.draw_los", "there is no such"),
        ("triptych.report.page.charts.Figure", "expected a function"),
        ("os.system", "not allowed; expected"),
        ("triptych.report.page.charts.escape", "is html.escape: not allowed"),
    ],
)
def test_a_plot_that_is_not_allowed(path: str, words: str, outside: Path) -> None:
    finished = run("compare", ".", "--plot", path, cwd=outside, variables={"PYTHONPATH": str(outside)})
    assert finished.returncode == 1
    assert f"--plot={path}" in finished.stderr
    assert words in finished.stderr


@pytest.mark.nightly
def test_a_position(outside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = ["task=translation", *DATES, "model=full", "block/position=logarithmic", "block.position.steepest=4"]
    go_through(outside, chosen, "5.3.1998\n", monkeypatch)
    finished = run(
        "export", "runs/one", "--output", "theirs", cwd=outside, variables={"PYTHONPATH": str(outside), **ALLOWED}
    )
    assert "model.encoder.position=Logarithmic (expected SinusoidalPositions)" in finished.stderr
    finished = run(
        "train", "--config-dir=conf", *chosen, "block.position.steepness=4", *TRAINING, "run_dir=run",
        cwd=outside, variables={"PYTHONPATH": str(outside), **ALLOWED},
    )  # fmt: skip
    assert "did you mean block.position.steepest?" in finished.stderr
    helped = run("train", "--config-dir=conf", "--help", cwd=outside).stdout
    assert "logarithmic (steepest)" in helped


def test_an_attention(outside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = ["task=translation", *DATES, "model=full", "block/attention=tempered", "batch.packing=true"]
    go_through(outside, [*chosen, "model.decoder.num_layers=2"], "5.3.1998\n", monkeypatch)
    samples = json.loads((outside / "runs/one/attention.json").read_text())["samples"]
    kinds = [sample[kind] for sample in samples for kind in ("encoder", "decoder", "cross")]
    assert kinds
    assert all(sum(row) == pytest.approx(1000, abs=20) for kind in kinds for row in kind["weights_x1000"][0][0])


@pytest.mark.parametrize("command", by_day(["train", "doctor"], ["train"]))
@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("keys = torch.arange(num_keys, device=self.rates.device)", "keys = torch.arange(num_keys)"),
        (
            "keys = torch.arange(num_keys, device=self.rates.device)",
            "keys = torch.arange(num_keys + int(0 * self.rates.sum()), device=self.rates.device)",
        ),
    ],
    ids=["device", "values"],
)
def test_a_position_that_cannot_be_counted(line: str, instead: str, command: str, outside: Path) -> None:
    """Operations are counted on tensors without values: a part that needs them is refused before it is trained."""
    module = outside / "mine" / "logarithmic.py"
    module.write_text(module.read_text("utf-8").replace(line, instead), "utf-8")
    finished = run(
        command, "--config-dir=conf", "task=translation", *DATES, "model=full", "block/position=logarithmic", *TRAINING,
        "run_dir=run", cwd=outside, variables={"PYTHONPATH": str(outside), **ALLOWED},
    )  # fmt: skip
    assert finished.returncode == 1
    assert f"{module}, line " in finished.stdout + finished.stderr
    assert "the operations of a part are counted" in finished.stdout + finished.stderr
    assert not (outside / "run/config.yaml").exists()


@pytest.mark.parametrize("architecture", ["decoder_only", "full"])
def test_a_position_is_cached_packed_and_windowed(
    outside: Path, architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a cache, in a packed row, and with a window that hides nothing, the logits are those of the plain way."""
    monkeypatch.syspath_prepend(str(outside))
    logarithmic = importlib.import_module("mine.logarithmic").Logarithmic
    model = random_model(architecture, position=logarithmic)
    tokens, source = torch.randint(11, (1, 7)), torch.randint(11, (1, 5))
    given = (source, tokens) if architecture == "full" else (tokens,)
    expected = model(*given)

    start = (source, None) if architecture == "full" else (None,)
    step = model.continuation(*start, capacity=7)
    cached = [step(tokens[:, i : i + 1]).flatten() for i in range(7)]
    assert_close(torch.stack(cached), expected[0])

    windowed = random_model(architecture, position=logarithmic, sliding_windows=[7])
    windowed.load_state_dict(model.state_dict())
    assert_close(windowed(*given), expected)

    rows = tuple(torch.cat((row, row[:, :3]), 1) for row in given)  # and a second document
    lengths = {"lengths": (7, 3), "source_lengths": (5, 3)}
    packed = model(*rows, **{name: lengths[name] for name in ("source_lengths", "lengths")[-len(given) :]})
    assert_close(packed[:, :7], expected)


@pytest.mark.nightly
def test_a_family(outside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    family = ["--family", "mine.mistral.Mistral"]
    record = go_through(outside, ["task=classification", *DATES, "model=mistral/style"], "5.3.1998\n", monkeypatch)
    assert record["architecture"] == "decoder_only"
    triptych(outside, "export", "runs/one", "--output", "theirs", *family)
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(outside / "theirs")
    assert type(theirs) is transformers.MistralForSequenceClassification
    tokenizer = transformers.AutoTokenizer.from_pretrained(outside / "theirs")
    with torch.no_grad():
        logits = theirs(**tokenizer("5.3.1998", return_tensors="pt")).logits[0]
    ours = json.loads((outside / "answers.txt").read_text(encoding="utf-8"))["probabilities"]
    assert logits.softmax(-1).tolist() == pytest.approx(list(ours.values()), abs=1e-5)

    triptych(outside, "import", "theirs", "--output", "mistral.ckpt", *family)
    triptych(outside, "export", "mistral.ckpt", "--output", "again", *family)
    first, second = (load_file(outside / name / "model.safetensors") for name in ("theirs", "again"))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.nightly
def test_a_family_rejects_what_it_cannot_say(outside: Path) -> None:
    command = ["task=classification", *DATES, "model=llama/style", "block.bias=true", *TRAINING, "run_dir=run"]
    triptych(outside, "train", *command)
    finished = run(
        "export", "run", "--output", "theirs", "--family", "mine.mistral.Mistral",
        cwd=outside, variables={"PYTHONPATH": str(outside), **ALLOWED},
    )  # fmt: skip
    assert finished.returncode == 1
    assert "the nearest, mistral, differs in" in finished.stderr
