"""How much of the test is in the training split."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import DictConfig

import tiny
from triptych.data import Audio, Dates, Example, Splits
from triptych.data.example import AnswerSpan
from triptych.data.images import Image
from triptych.data.overlap import describe_overlap, find_overlap, read_overlap
from triptych.report.page.render import describe_origin
from triptych.report.read_records import find_runs
from triptych.report.record import read_summary
from triptych.train import train

TEXTS = st.lists(st.sampled_from(["a", "b", "ab", "a b", " a", "a\n b", "ä"]), min_size=1, max_size=8)


@given(TEXTS, TEXTS, st.integers(0, 9))
def test_shares_are_those_of_all_pairs_compared(train: list[str], test: list[str], seed: int) -> None:
    draw = random.Random(seed)
    first, second = ([Example(text, target=draw.choice("xy")) for text in texts] for texts in (train, test))
    blanks = [("".join(t.text.split(" ")) and " ".join(t.text.split()), t.target) for t in first]
    own = [(" ".join(t.text.split()), t.target) for t in second]
    found = find_overlap(first, {"test": second})["test"]
    assert found["inputs"] == pytest.approx(np.mean([any(text == other for other, _ in blanks) for text, _ in own]))
    assert found["targets"] == pytest.approx(np.mean([any(pair == other for other in blanks) for pair in own]))


def image(value: float) -> Image:
    return Image.of(np.full((1, 2, 2), value))


def sound(value: float) -> Audio:
    return Audio.of(np.full(100, value, np.float32), 8000)


@pytest.mark.parametrize(
    ("example", "others"),
    [
        (Example("", words=("a", "b"), tags=("X", None)), [{"tags": ("X", "Y")}]),
        (Example("a", label="x"), [{"label": "y"}]),
        (Example("a", text_pair="b", score=0.5), [{"score": 1.0}]),
        (Example("q", text_pair="b c", answers=(AnswerSpan("b", 0),)), [{"answers": (AnswerSpan("c", 2),)}]),
        (Example("one.png", image=image(0.5), label="x"), [{"label": "y"}]),
        (Example("one.wav", audio=sound(0.5), target="x"), [{"target": "y"}]),
    ],
    ids=["tags", "label", "score", "answer", "image", "audio"],
)
def test_the_target_is_not_the_input(example: Example, others: list[dict[str, object]]) -> None:
    renamed = replace(example, text="other.png") if example.image or example.audio else example
    changed = [replace(renamed, **other) for other in others]  # type: ignore[arg-type]
    assert find_overlap([example], {"test": [renamed]}) == {"test": {"inputs": 1.0, "targets": 1.0}}
    assert find_overlap([example], {"test": changed, "validation": []}) == {"test": {"inputs": 1.0, "targets": 0.0}}
    for other in ({"image": image(0.25)}, {"audio": sound(0.25)}):
        if getattr(example, *other) is not None:
            assert find_overlap([example], {"test": [replace(example, **other)]})["test"]["inputs"] == 0  # type: ignore[arg-type]


def test_it_is_kept_by_the_digest_and_said_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path))
    train, test = [Example("a", label="x"), Example("b", label="x")], [Example("a", label="y"), Example("c", label="x")]
    overlap = read_overlap(Splits(train=train, validation=train[:1], test=test), "digest")
    assert overlap == {"validation": {"inputs": 1.0, "targets": 1.0}, "test": {"inputs": 0.5, "targets": 0.0}}
    assert read_overlap(Splits(train=[], validation=[], test=[]), "digest") == overlap
    assert describe_overlap(overlap) == (
        "100.0 % of the validation inputs (100.0 % of these with the same target) and 50.0 % of the test inputs "
        "(0.0 % of these with the same target) are training inputs too"
    )
    assert describe_overlap({"test": {"inputs": 0.0, "targets": 0.0}}) == ""


@pytest.mark.parametrize("is_made", [True, False])
def test_a_run_records_it_and_warns_unless_its_corpus_is_made(
    is_made: bool,
    chosen: Callable[..., DictConfig],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    overlap = {"validation": {"inputs": 0.5, "targets": 0.25}, "test": {"inputs": 0.0, "targets": 0.0}}
    monkeypatch.setattr("triptych.planning.prepare.read_overlap", lambda splits, digest: overlap)
    monkeypatch.setattr(Dates, "is_made", is_made)
    steps = ["trainer.max_steps=1", "logger=csv"]
    train(chosen(*tiny.dates("classification_encoder_only"), *tiny.TINY, *steps, f"run_dir={tmp_path}"))
    summary = read_summary(tmp_path / "summary.json")
    assert summary["overlap"] == overlap
    warned = [message for message in caplog.messages if "are training inputs too" in message]
    assert len(warned) == (not is_made)
    (run,) = find_runs([tmp_path], tmp_path).runs
    assert "% of the validation inputs" in describe_origin(run, run)["facts"]
    assert run.overlap == overlap
