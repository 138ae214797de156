"""Images through the commands: training, evaluation, answers, refusals."""

import base64
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import tiny
import triptych
from command_line import composed
from commands import run
from small_images import ROWS, TO_DRAW, write_small_images
from triptych.config import ConfigError
from triptych.data import Digits, Example, Image, read_image
from triptych.data.images import PNG_ADDRESS, as_png
from triptych.evaluate import evaluate
from triptych.models import EncoderOnly
from triptych.nn import Head, PatchEmbedding, Stack
from triptych.predict import predict
from triptych.report.playground import Playground
from triptych.report.read_records import find_runs
from triptych.training.callbacks.cost_tracker import CostTracker

STEPS = ["trainer.max_steps=80", "trainer.val_check_interval=80", "scheduler.warmup_steps=10", "optimizer.lr=1e-2"]


def train(folder: Path, experiment: str) -> Path:
    options = [*tiny.NETWORK, *STEPS, "shape.d_model=32", "callbacks.progress.refresh_rate=0", "logger=csv"]
    finished = run("train", f"experiment={experiment}", *options, "run_dir=run", cwd=folder)
    assert finished.returncode == 0, finished.stderr
    return folder / "run"


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("encoder"), "digits/encoder_only")


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("decoder"), "digits/decoder_only")


@pytest.fixture(scope="module")
def examples() -> list[Example]:
    return list(Digits(validation=0.1, test=0.2, split_seed=1).splits().test)


@pytest.mark.parametrize("name", ["encoder", "decoder"])
def test_learns(name: str, request: pytest.FixtureRequest, examples: list[Example]) -> None:
    """Chance is 10 %."""
    directory: Path = request.getfixturevalue(name)
    record = json.loads((directory / "summary.json").read_text())
    assert record["metrics"]["test/accuracy"] > 0.6
    assert record["train_tokens"] == 80 * 64
    assert record["train_flops"] > 0
    assert [sample["input"] for sample in record["samples"]] == [example.text for example in examples[:8]]
    shown = base64.b64decode(record["samples"][0]["image"].removeprefix(PNG_ADDRESS))
    assert examples[0].image is not None
    assert shown == as_png(examples[0].image)


@pytest.mark.parametrize("precision", ["bf16-true", "64-true"])
def test_trains_in_other_types_than_the_pixels(precision: str, tmp_path: Path, examples: list[Example]) -> None:
    few = [*tiny.NETWORK, "trainer.max_steps=2", "trainer.val_check_interval=2", "trainer.limit_val_batches=1"]
    few += ["trainer.limit_test_batches=1", "callbacks.progress.refresh_rate=0", "logger=csv"]
    options = ["experiment=digits/encoder_only", *few, f"trainer.precision={precision}"]
    finished = run("train", *options, "run_dir=run", cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    record = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert record["precision"] == precision
    assert math.isfinite(record["metrics"]["test/loss"])
    (answer,) = triptych.load(tmp_path / "run").predict([examples[0].image])
    assert sum(answer.probabilities.values()) == pytest.approx(1, abs=1e-3)


def test_leaves_no_word_of_a_tokenizer(encoder: Path) -> None:
    said = (encoder / "train.log").read_text()
    assert "images in patches" in said
    assert not re.search("token|vocabulary", said)
    assert not (encoder / "tokenizer.json").exists()
    assert "vocab_size: null" in (encoder / "config.yaml").read_text()


def test_the_accuracy_is_that_of_the_answers(encoder: Path, examples: list[Example]) -> None:
    answers = triptych.load(encoder).predict([np.array(example.image) for example in examples])
    hits = np.mean([answer.label == example.label for answer, example in zip(answers, examples, strict=True)])
    metrics = json.loads((encoder / "summary.json").read_text())["metrics"]
    assert hits == pytest.approx(metrics["test/accuracy"], abs=1e-6)
    assert all(sum(answer.probabilities.values()) == pytest.approx(1, abs=1e-5) for answer in answers)


def test_evaluate_prints_what_training_printed(
    encoder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    evaluate(composed(f"checkpoint={encoder}", command="evaluate"))
    printed = dict(re.findall(r"│ ((?:val|test)/\w+) +│ +([\d.e-]+) │", capsys.readouterr().out))
    metrics = json.loads((encoder / "summary.json").read_text())["metrics"]
    assert printed == {name: f"{value:.6g}" for name, value in metrics.items()}


def test_predict_reads_an_image_a_line(decoder: Path, examples: list[Example], tmp_path: Path) -> None:
    """With its channel and without; the answers are those from Python."""
    images = [np.array(example.image) for example in examples[:5]]
    lines = [json.dumps((image if number % 2 else image[0]).tolist()) for number, image in enumerate(images)]
    (tmp_path / "images.jsonl").write_text("\n".join(lines) + "\n")
    predict(
        composed(f"checkpoint={decoder}", f"input={tmp_path}/images.jsonl", f"output={tmp_path}/out", command="predict")
    )
    answers = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    for answer, prediction in zip(answers, triptych.load(decoder).predict(images), strict=True):
        assert answer["label"] == prediction.label
        assert answer["probabilities"] == pytest.approx(prediction.probabilities, abs=1e-6)


def test_predict_reads_files(
    decoder: Path, examples: list[Example], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a file of another size and in colours too, which is made to fit."""
    image = examples[0].image
    assert image is not None
    (tmp_path / "a.png").write_bytes(as_png(image))
    large = np.asarray(image).repeat(2, 1).repeat(2, 2).repeat(3, 0)
    (tmp_path / "b.png").write_bytes(as_png(Image.of(large)))
    (tmp_path / "files").write_text(f"{tmp_path}/a.png\n{tmp_path}/b.png\n")
    predict(composed(f"checkpoint={decoder}", f"input={tmp_path}/files", f"output={tmp_path}/out", command="predict"))
    found = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    fitting, done = read_image(tmp_path / "b.png", channels=1, size=(8, 8))
    for answer, shown in zip(found, triptych.load(decoder).predict([image, fitting]), strict=True):
        assert answer["probabilities"] == pytest.approx(shown.probabilities, abs=2e-3)  # a byte has 256 steps, not 17
    assert done == ("converted to grey", "stretched")
    assert [record.getMessage() for record in caplog.records] == [f"1 of 2 images were {what}" for what in done]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (json.dumps([[0.0] * 7] * 8), "line 2: 8x7; expected 8x8 or 1x8x8 (patches: channels, rows, columns)"),
        ("Donnerstag", "line 2: Donnerstag: no such file"),
        ("images.jsonl", "line 2: images.jsonl: not a readable image"),
        ("", "line 2: not JSON"),
        ('["seven"]', "line 2: not an array of numbers"),
        ("[" * 100_000, "line 2: not JSON"),
    ],
    ids=["shape", "text", "file", "empty", "string", "deep"],
)
def test_a_line_that_is_no_image(
    line: str, words: str, encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "images.jsonl"
    file.write_text(json.dumps([[0.5] * 8] * 8) + "\n" + line + "\n")
    with pytest.raises(ConfigError) as error:
        predict(composed(f"checkpoint={encoder}", f"input={file}", f"output={tmp_path}/out", command="predict"))
    assert str(error.value).startswith(f"{file}, {words}")
    assert not (tmp_path / "out").exists()


def test_python_too_says_what_it_expects(encoder: Path) -> None:
    with pytest.raises(ValueError, match="'image': 3x3; expected 8x8 or 1x8x8"):
        triptych.load(encoder).predict([np.zeros((3, 3))])


def test_images_are_not_evaluated_on_texts(encoder: Path) -> None:
    with pytest.raises(ConfigError, match="data=dates has texts, and model=encoder_only reads images"):
        evaluate(composed(f"checkpoint={encoder}", "data=dates", command="evaluate"))


def test_the_counts_of_batches_of_images_come_back() -> None:
    with torch.device("meta"):
        embedding = PatchEmbedding(image_size=[8, 8], patch_size=[2, 2], num_channels=1, d_model=4)
        encoder = Stack(num_layers=1, causal=False, max_length=17, d_model=4, num_heads=2, d_ff=8)
        network = EncoderOnly(
            embedding=embedding, encoder=encoder, head=Head(d_model=4, num_outputs=10, pooling="first")
        )
    cost_log, again = (CostTracker(network, lambda module: torch.optim.SGD(module.parameters())) for _ in range(2))
    cost_log.shapes.update({(64, 1, 8, 8): 80, (7, 1, 8, 8): 1})
    cost_log.began = "2026-01-02T03:04:05+00:00"
    again.load_state_dict(cost_log.state_dict())
    assert again.began == cost_log.began
    assert again.shapes == cost_log.shapes
    assert again.flops == (80 * 64 + 7) * cost_log.cost.of_batch((1, 1, 8, 8)) > 0
    older = {key: value for key, value in cost_log.state_dict().items() if key != "began"}
    again.load_state_dict(older)
    assert again.began is None


@pytest.fixture(scope="module")
def drawing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_small_images(tmp_path_factory.mktemp("drawn"))
    options = ["shape.d_model=32", "shape.num_heads=2", "shape.num_layers=2", "shape.d_ff=64", *STEPS]
    options += ["model=decoder_only", "block/position=rotary", "tokenizer=words", "batch.global_size=32", "logger=csv"]
    finished = run("train", *TO_DRAW, *options, f"data.dir={folder}", "run_dir=run", cwd=folder)
    assert finished.returncode == 0, finished.stderr
    return folder / "run"


class TestDrawing:
    """An image for a text, through the commands."""

    def test_the_record_shows_what_is_drawn(self, drawing: Path) -> None:
        record = json.loads((drawing / "summary.json").read_text())
        assert record["metrics"]["test/bits_per_dimension"] < 0.1
        answers = [json.loads(line) for line in (drawing / "predictions.jsonl").read_text().splitlines()]
        bits = sum(row["nats"] for row in answers) / math.log(2) / sum(row["dimensions"] for row in answers)
        assert bits == pytest.approx(record["metrics"]["test/bits_per_dimension"])
        assert {row["input"] for row in answers} <= {f"the {name} row" for name in ROWS}
        for sample in record["samples"]:
            assert sample["input"].split()[1] in ROWS
            assert sample["output"] == sample["reference"] == ""
            assert sample["output_image"].startswith(PNG_ADDRESS)
            assert sample["reference_image"].startswith(PNG_ADDRESS)
            assert "image" not in sample

    def test_predict_writes_files_and_a_table_that_is_data(self, drawing: Path) -> None:
        folder = drawing.parent
        (folder / "texts").write_text("the third row\nthe first row\n")
        options = [f"checkpoint={drawing}", f"input={folder}/texts"]
        predict(composed(*options, f"output={folder}/made/all.tsv", "temperature=0", command="predict"))
        table = (folder / "made" / "all.tsv").read_text()
        assert table == "file\ttarget\nall/1.png\tthe third row\nall/2.png\tthe first row\n"
        for name, row in (("1", 2), ("2", 0)):
            image, _ = read_image(folder / "made" / "all" / f"{name}.png", channels=1)
            assert np.asarray(image)[0].tolist() == [[float(i == row)] * 4 for i in range(4)]
        same = triptych.load(drawing)
        assert [as_png(image) for image in same.predict(["the third row"])] == [  # type: ignore[arg-type]
            (folder / "made" / "all" / "1.png").read_bytes()
        ]

    def test_a_line_of_output_is_an_address(self, drawing: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (drawing.parent / "text").write_text("the last row\n")
        asked = [f"checkpoint={drawing}", f"input={drawing.parent}/text"]
        predict(composed(*asked, "temperature=0", command="predict"))
        pixels = np.zeros((1, 4, 4))
        pixels[0, 3] = 1
        expected = PNG_ADDRESS + base64.b64encode(as_png(Image.of(pixels))).decode()
        assert capsys.readouterr().out == f"{expected}\n"
        with pytest.raises(ConfigError, match="max_new_tokens=3: images have one size; expected null"):
            predict(composed(*asked, "max_new_tokens=3", command="predict"))
        with pytest.raises(ConfigError, match=r"classes=\['a', 'b'\]: image_generation chooses from no texts"):
            predict(composed(*asked, "classes=[a,b]", command="predict"))

    def test_the_pages_show_them(self, drawing: Path) -> None:
        finished = run("compare", "run", "--output", "page.html", cwd=drawing.parent)
        assert finished.returncode == 0, finished.stderr
        page = (drawing.parent / "page.html").read_text()
        record = json.loads((drawing / "summary.json").read_text())
        assert all(sample[key] in page for sample in record["samples"] for key in ("output_image", "reference_image"))
        playground = Playground(find_runs([drawing], Path()).runs, Path())
        status, text = playground.page("/?group=0&text=the+first+row&temperature=0")
        assert status == 200
        pixels = np.zeros((1, 4, 4))
        pixels[0, 0] = 1
        address = PNG_ADDRESS + base64.b64encode(as_png(Image.of(pixels))).decode()
        assert f'<img class="given" src="{address}" alt="the generated image">' in text
        assert 'class="chart"' in text
