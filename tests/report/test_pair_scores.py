"""Accuracy on minimal pairs, against pandas and binomial formulas, and through the commands."""

import csv
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiny
import triptych
from command_line import composed
from commands import run
from triptych.config import ConfigError
from triptych.data import MinimalPair, MinimalPairs
from triptych.evaluate import evaluate
from triptych.predict import predict
from triptych.report.pair_scores import PairScores
from triptych.tasks import TextScore

COLUMNS = {"good": "sentence_good", "bad": "sentence_bad", "paradigm": "UID", "phenomenon": "linguistics_term"}
PAIRS = [
    ("The cat runs.", "The cat run.", "regular", "subject_verb_agreement"),
    ("The cats run.", "The cats runs.", "regular", "subject_verb_agreement"),
    ("Who did he see?", "Did he see who?", "questions", "island_effects"),
    ("He saw it.", "He saw it.", "questions", "island_effects"),
    ("The cats saw", "The cat saw", "verbs", "s-selection"),
]


def write_table(folder: Path, rows: list[tuple[str, ...]] = PAIRS, name: str = "pairs.tsv") -> MinimalPairs:
    with (folder / name).open("w", newline="") as file:
        writer = csv.writer(file, delimiter="\t", quoting=csv.QUOTE_NONE, quotechar=None)
        writer.writerows([[*COLUMNS.values()], *rows])
    return MinimalPairs(dir=str(folder), test=name, pairs_per_paradigm=None, **COLUMNS)


def score(nats: float, tokens: int = 1, unknown: int = 0) -> TextScore:
    return TextScore("log_likelihood", ["x"] * tokens, [nats / tokens] * tokens, [], [], unknown)


numbers = st.integers(0, 3).map(float)
rows = st.lists(st.tuples(st.sampled_from("abc"), numbers, numbers, st.integers(1, 4), st.integers(1, 4)), min_size=1)


def scores_of(drawn: list[tuple[str, float, float, int, int]]) -> PairScores:
    pairs = [MinimalPair("A b.", "B a.", paradigm, f"of {paradigm}") for paradigm, *_ in drawn]
    good = [score(nats, tokens) for _, nats, _, tokens, _ in drawn]
    return PairScores.of(pairs, good, [score(nats, tokens) for _, _, nats, _, tokens in drawn])


@given(drawn=rows)
def test_means_of_paradigms(drawn: list[tuple[str, float, float, int, int]]) -> None:
    """By pandas; the errors are those of proportions, if there are no ties."""
    scores = scores_of(drawn)
    table = pd.DataFrame(drawn, columns=["paradigm", "good", "bad", "m", "n"])
    table["points"] = (table.good < table.bad) + 0.5 * (table.good == table.bad)
    shares = table.groupby("paradigm").points.mean()
    found = scores.accuracy([*scores.paradigms])
    assert found.value == pytest.approx(100 * shares.mean())
    assert found.spread == pytest.approx(100 * shares.std() / math.sqrt(len(shares)), nan_ok=True)
    assert scores.ties == pytest.approx((table.good == table.bad).mean())
    nats = np.concatenate([scores.nats, np.full((2, 3), np.nan)], axis=1)  # pairs that are left out are no ties
    left_out = np.concatenate([scores.is_permutation, [False] * 3])
    tokens = np.concatenate([scores.tokens, np.ones((2, 3), int)], axis=1)
    more = PairScores([*scores.paradigm, *"abc"], [*scores.phenomenon, *"abc"], left_out, nats, tokens)
    assert more.ties == scores.ties
    if not scores.ties:
        errors = shares * (1 - shares) / table.groupby("paradigm").size()
        assert found.error == pytest.approx(100 * math.sqrt(errors.sum()) / len(shares))


@given(drawn=rows)
def test_swapping_the_sentences(drawn: list[tuple[str, float, float, int, int]]) -> None:
    """The accuracies add up to 100; a network that cannot tell sentences apart has 50, all ties."""
    scores, swapped = scores_of(drawn), scores_of([(x, bad, good, n, m) for x, good, bad, m, n in drawn])
    names = [*scores.paradigms]
    assert scores.accuracy(names).value + swapped.accuracy(names).value == pytest.approx(100)
    means = scores.accuracy(names, scores.points_per_token).value
    assert means + swapped.accuracy(names, swapped.points_per_token).value == pytest.approx(100)
    alike = scores_of([(x, good, good, m, m) for x, good, _, m, _ in drawn])
    assert (alike.accuracy(names).value, alike.ties) == (50, 1)


@given(drawn=rows)
def test_a_record_can_be_read(drawn: list[tuple[str, float, float, int, int]], tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("record") / "pairs" / "log_likelihood.tsv"
    scores = scores_of(drawn)
    scores.nats[0, 0] = np.nan
    scores.write(path)
    read = PairScores.read(path)
    assert (*read.paradigm,) == (*scores.paradigm,)
    assert (*read.phenomenon,) == (*scores.phenomenon,)
    for name in ("is_permutation", "nats", "tokens"):
        np.testing.assert_array_equal(getattr(read, name), getattr(scores, name))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a\tb\n", "line 1: a, b; expected paradigm, phenomenon"),
        ("a\ta\t1\t2.0\t?\t1\t1\n", "line 2: damaged; expected paradigm"),
        ("a\ta\t1\t2.0\n", "line 2: damaged; expected paradigm"),
        ("", "no pairs; expected a row per pair"),
    ],
)
def test_damaged_records(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.tsv"
    scores_of([("a", 1, 2, 1, 1)]).write(path)
    heads = path.read_text().splitlines()[0]
    path.write_text(content if content.startswith("a\tb") else f"{heads}\n{content}")
    with pytest.raises(ValueError, match=re.escape(message)):
        PairScores.read(path)


def test_groups(tmp_path: Path) -> None:
    pairs = write_table(tmp_path).read()
    scores = PairScores.of(pairs, [score(1)] * 5, [score(2)] * 3 + [score(1), score(2, unknown=1)])
    groups = scores.groups()
    assert groups == {
        "overall": ["questions", "regular"], "agreement": ["regular"], "permutations": ["questions"],
        "island_effects": ["questions"], "subject_verb_agreement": ["regular"],
    }  # fmt: skip
    assert scores.accuracy(groups["overall"]).value == pytest.approx(100 * (1 + 0.75) / 2)
    assert np.isnan(scores.points).tolist() == [False] * 4 + [True]


def test_reading(tmp_path: Path) -> None:
    table = write_table(tmp_path)
    pairs = table.read()
    assert [pair.prefix for pair in pairs] == ["The cat", "The cats", "", "He saw it.", "The"]
    assert [pair.is_permutation for pair in pairs] == [False, False, True, True, False]
    assert [pair.phenomenon for pair in pairs][-1] == "argument_structure"
    pd.DataFrame(PAIRS, columns=[*COLUMNS.values()]).to_json(tmp_path / "p.jsonl", orient="records", lines=True)
    same = MinimalPairs(dir=str(tmp_path), test="p.jsonl", pairs_per_paradigm=None, **COLUMNS)
    assert same.read() == pairs
    few = MinimalPairs(dir=str(tmp_path), test="p.jsonl", pairs_per_paradigm=1, **COLUMNS)
    assert few.read() == [pairs[0], pairs[2], pairs[4]]
    settings: dict[str, Any] = {"dir": str(tmp_path), "test": "p.jsonl", "pairs_per_paradigm": None, **COLUMNS}
    for options, message in (
        ({"bad": "sentence_worse"}, "no column sentence_worse .data.bad=sentence_worse.*did you mean sentence_good"),
        ({"test": "q.tsv"}, "data.test=q.tsv: no such file"),
        ({"pairs_per_paradigm": 0}, "data.pairs_per_paradigm=0: expected at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            MinimalPairs(**{**settings, **options}).read()
    (tmp_path / "empty.tsv").write_text("\t".join(COLUMNS.values()) + "\n")
    with pytest.raises(ValueError, match="no rows; expected minimal pairs"):
        MinimalPairs(dir=str(tmp_path), test="empty.tsv", pairs_per_paradigm=None, **COLUMNS).read()


TEXT = ["the cats run.", "the cat runs.", "he saw it and who did he see?"] * 40
STEPS = [
    "trainer.max_steps=2",
    "trainer.val_check_interval=2",
    "scheduler.warmup_steps=1",
    "logger=csv",
    "batch.global_size=16",
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    (folder / "text.txt").write_text("\n".join(TEXT) + "\n")
    write_table(folder)
    settings = ["data=text_lines", "data.dir=.", "data.train=text.txt", *tiny.NETWORK, *STEPS]
    for name, *more in (
        ("decoder", "task=language_modeling", "model=decoder_only", "tokenizer=words"),
        ("prefix", "task=language_modeling", "model=full", "tokenizer=bytes"),
        ("encoder", "task=denoising", "model=encoder_only", "tokenizer=bytes"),
    ):
        finished = run("train", *settings, *more, f"run_dir={name}", cwd=folder)
        assert finished.returncode == 0, finished.stderr
    return folder


DATA = ["data=minimal_pairs", "data.test=pairs.tsv"]


def test_evaluate(trained: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    """The scores are those of Python, and the warnings count what says little."""
    evaluate(composed(f"checkpoint={trained}/encoder", *DATA, f"data.dir={trained}", command="evaluate"))
    record = PairScores.read(trained / "encoder/minimal_pairs/pairs.pseudo_log_likelihood_l2r.tsv")
    sides = zip(*((good, bad) for good, bad, *_ in PAIRS), strict=True)
    expected = [[score.total for score in triptych.load(trained / "encoder").score(side)] for side in sides]
    np.testing.assert_allclose(record.nats, expected, rtol=1e-5)
    shown = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert "by pseudo_log_likelihood_l2r" in shown
    assert f"overall (3) │ {record.accuracy([*record.paradigms]).value:.1f}" in shown
    assert "1 of 5 pairs have two identical sentences, half a point each" in caplog.text
    assert "20.0 % of the pairs are ties" in caplog.text


def test_prefix_models_read_the_common_words(trained: Path, caplog: pytest.LogCaptureFixture) -> None:
    evaluate(composed(f"checkpoint={trained}/prefix", *DATA, f"data.dir={trained}", command="evaluate"))
    record = PairScores.read(trained / "prefix/minimal_pairs/pairs.prefix_log_likelihood.tsv")
    (expected,) = triptych.load(trained / "prefix").score([" runs."], ["The cat"])
    assert record.nats[0, 0] == pytest.approx(expected.total, rel=1e-5)
    assert record.tokens[:, 0].tolist() == [6, 5]
    assert "1 of 5 pairs have no common first word, and training has no empty prefix" in caplog.text


def test_unknown_words_are_left_out(trained: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A vocabulary of words has no "The"."""
    evaluate(composed(f"checkpoint={trained}/decoder", *DATA, f"data.dir={trained}", command="evaluate"))
    assert "5 of 5 pairs are left out: they have an unknown token or an empty sentence" in caplog.text


def test_methods(trained: Path) -> None:
    options = [f"checkpoint={trained}/encoder", "method=pll"]
    with pytest.raises(ConfigError, match="method=pll: denoising on encoder_only supports pseudo_log_likelihood_l2r"):
        evaluate(composed(*options, *DATA, f"data.dir={trained}", command="evaluate"))
    with pytest.raises(ConfigError, match="method=pll scores minimal pairs; expected data=minimal_pairs"):
        evaluate(composed(*options, command="evaluate"))
    with pytest.raises(ConfigError, match="method=pll computes the surprisal; expected surprisal=true"):
        predict(composed(*options, f"input={trained}/text.txt", "output=-", command="predict"))


def test_surprisal(trained: Path, tmp_path: Path) -> None:
    """A row per word, with the numbers of Python."""
    (tmp_path / "in.txt").write_text("the cats  run. \n\nhe saw it\n")
    options = [f"checkpoint={trained}/encoder", f"input={tmp_path}/in.txt", f"output={tmp_path}/out.tsv"]
    predict(composed(*options, "surprisal=true", command="predict"))
    table = pd.read_csv(tmp_path / "out.tsv", sep="\t", quoting=csv.QUOTE_NONE)
    assert [*zip(table.line, table.position, table.word, table.after_space, strict=True)] == [
        (1, 1, "the", 1), (1, 2, "cats", 1), (1, 3, "run", 1), (1, 4, ".", 0), (3, 1, "he", 1), (3, 2, "saw", 1),
        (3, 3, "it", 1),
    ]  # fmt: skip
    first, _, third = triptych.load(trained / "encoder").score(["the cats  run. ", "", "he saw it"])
    assert table.nats.tolist() == pytest.approx([*first.word_nats, *third.word_nats], abs=1e-5)


def test_surprisal_that_is_refused_leaves_no_file(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("the cats run.\n" + "the cats run. " * 50 + "\n")
    options = [
        f"checkpoint={trained}/encoder",
        f"input={tmp_path}/in.txt",
        f"output={tmp_path}/out.tsv",
        "surprisal=true",
    ]
    for more, message in (
        ([], r"in.txt, line 2: [0-9]+ tokens; the network reads at most [0-9]+"),
        (["method=pll"], "method=pll: denoising on encoder_only supports"),
        (["num_beams=4"], "num_beams=4: surprisal=true generates no text; expected null"),
    ):
        with pytest.raises(ConfigError, match=message):
            predict(composed(*options, *more, command="predict"))
        assert not (tmp_path / "out.tsv").exists()
