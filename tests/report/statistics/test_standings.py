"""Differences over seeds and over test examples, against scipy and sacrebleu."""

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest
from scipy import stats

from triptych.report.compare import compare
from triptych.report.page.charts import draw_difficulty
from triptych.report.page.examples import INPUT_WORDS, find_telling_examples, score_by
from triptych.report.read_records import find_runs
from triptych.report.statistics.bootstrap import paired_bootstrap, resample, terms_of
from triptych.report.statistics.groups import Group, group_runs
from triptych.report.statistics.pareto import find_pareto_front
from triptych.report.statistics.significance import student_interval
from triptych.report.statistics.standings import (
    compare_pairs,
    describe_training,
    note_test_noise,
    summarize_configurations,
)
from triptych.report.statistics.verdicts import judge

WORDS = [
    "a", "man", "and", "his", "dog", "walk", "along", "the", "wet", "street", "in", "front", "of", "an", "old",
    "house",
]  # fmt: skip


def group_of(directory: Path) -> Group:
    """The only group of a directory."""
    (group,) = group_runs(find_runs([directory], directory).runs)
    return group


def translations(count: int, errors: float, seed: int) -> list[dict[str, object]]:
    """Sentences of 3 to 20 words and answers of which a share of the words is wrong."""
    truth, noise = random.Random(0), random.Random(seed)
    rows: list[dict[str, object]] = []
    for _ in range(count):
        reference = [truth.choice(WORDS) for _ in range(truth.randint(3, 20))]
        output = [noise.choice(WORDS) if noise.random() < errors else word for word in reference]
        given = " ".join(reversed(reference))
        rows.append({"input": given, "input_words": len(reference), "reference": " ".join(reference)}
                    | {"output": " ".join(output)})  # fmt: skip
    return rows


def sentence_chrf(row: dict[str, object]) -> float:
    return CHRF().sentence_score(str(row["output"]), [str(row["reference"])]).score


def corpus_bleu(rows: Sequence[dict[str, object]]) -> float:
    """By sacrebleu itself."""
    outputs, references = ([str(row[key]) for row in rows] for key in ("output", "reference"))
    return BLEU().corpus_score(outputs, [references]).score


@pytest.fixture
def translated(write_run, tmp_path: Path):
    """A group of one run each of the full and the decoder-only model, with their answers."""

    def translated(full: list[dict[str, object]], decoder_only: list[dict[str, object]]) -> Group:
        for architecture, rows in (("full", full), ("decoder_only", decoder_only)):
            settings = {"task": {"bleu_tokenizer": "13a"}}
            metrics = {"test/bleu": corpus_bleu(rows)}
            answers = [{**row, "chrf": sentence_chrf(row)} for row in rows]
            write_run(architecture, "translation", metrics, settings=settings, answers=answers)
        return group_of(tmp_path)

    return translated


@pytest.mark.parametrize("errors", [0.235, 0.25])
def test_bleu_is_compared_as_sacrebleu_does(translated, errors: float) -> None:
    """Its p-value looks at one side."""
    rows = translations(300, 0.2, seed=1), translations(300, errors, seed=2)
    (duel,) = compare_pairs(translated(*rows))
    systems = [(name, [str(row["output"]) for row in of_one]) for name, of_one in zip("ab", rows, strict=True)]
    references = [[str(row["reference"]) for row in rows[0]]]
    _, found = PairedTest(systems, {"BLEU": BLEU()}, references, test_type="bs", n_samples=2000)()
    assert duel.difference == pytest.approx(found["BLEU"][0].score - found["BLEU"][1].score)
    assert duel.paired is not None
    assert duel.paired.difference == pytest.approx(duel.difference)
    assert duel.paired.p == pytest.approx(2 * found["BLEU"][1].p_value, abs=0.03)


def test_shares_are_compared_as_scipy_does(write_run, tmp_path: Path) -> None:
    draw = random.Random(3)
    hits = {name: [draw.random() < share for _ in range(400)] for name, share in (("full", 0.8), ("encoder_only", 0.7))}
    for name, of_one in hits.items():
        answers = [
            {"input": f"text {i}", "input_words": 2, "reference": "yes", "output": "yes" if hit else "no"}
            | {"probability": 0.9 if hit else 0.1}
            for i, hit in enumerate(of_one)
        ]
        write_run(name, "classification", {"test/accuracy": np.mean(of_one)}, answers=answers)
    (duel,) = compare_pairs(group_of(tmp_path))
    expected = stats.bootstrap(
        (np.array(hits["full"], float), np.array(hits["encoder_only"], float)),
        lambda x, y, axis: x.mean(axis) - y.mean(axis),
        paired=True,
        vectorized=True,
        method="percentile",
        n_resamples=4000,
        rng=np.random.default_rng(0),
    ).confidence_interval
    assert duel.paired is not None
    assert (duel.paired.low, duel.paired.high) == pytest.approx((expected.low, expected.high), abs=0.008)


def test_equal_answers_are_a_tie(translated) -> None:
    rows = translations(50, 0.3, seed=1)
    (duel,) = compare_pairs(translated(rows, rows))
    assert duel.paired is not None
    assert (duel.paired.difference, duel.paired.low, duel.paired.high, duel.paired.p) == (0, 0, 0, 1)


@pytest.mark.parametrize(
    ("shifts", "close"),
    [
        ({2: 13}, "decoder-only"),
        ({2: 0}, ""),
        ({2: 0, 4: 13}, "decoder-only (num_layers=4)"),
        ({2: 13, 4: 13}, "decoder-only (num_layers=2) and decoder-only (num_layers=4)"),
    ],
)
def test_a_lead_within_the_noise_of_the_test_set(write_run, tmp_path: Path, shifts: dict[int, int], close: str) -> None:
    """Of 20 examples, one model answers 12 or 13 and the other 7 or 8: other examples, or some of the same."""
    for layers, shift in shifts.items():
        for architecture, counts, first in (("full", (12, 13, 12), 0), ("decoder_only", (7, 8, 7), shift)):
            for seed, count in enumerate(counts, start=1):
                right = {(first + i) % 20 for i in range(count)}
                answers = [{"input": str(i), "reference": "a", "output": "a" if i in right else "b"} for i in range(20)]
                write_run(
                    architecture, "classification", {"test/accuracy": count / 20}, seed=seed, answers=answers,
                    settings={"shape": {"num_layers": layers}}, name=str(layers),
                )  # fmt: skip
    group = group_of(tmp_path)
    verdict = judge(group)
    assert verdict.winner == "full"
    said = f" For these weights, the lead over {close} is within the noise of the test set." if close else ""
    assert note_test_noise(group, verdict, compare_pairs(group)).text == verdict.text + said


def test_answers_to_other_examples_are_not_paired(translated) -> None:
    rows = translations(50, 0.3, seed=1)
    (duel,) = compare_pairs(translated(rows, [*rows[1:], rows[0]]))
    assert duel.paired is None


def test_the_mean_over_seeds_is_what_is_drawn(write_run, tmp_path: Path) -> None:
    settings = {"task": {"bleu_tokenizer": "13a"}}
    for seed in (1, 2, 3):
        for architecture, errors in (("full", 0.2), ("decoder_only", 0.3)):
            rows = translations(60, errors, seed=seed + 10 * len(architecture))
            metrics = {"test/bleu": corpus_bleu(rows)}
            write_run(architecture, "translation", metrics, seed=seed, settings=settings, answers=rows)
    group = group_of(tmp_path)
    (duel,) = compare_pairs(group)
    full, decoder = (
        [r.metrics["test/bleu"] for r in group.runs if r.architecture == a] for a in ("full", "decoder_only")
    )
    assert duel.paired is not None
    assert duel.paired.difference == pytest.approx(np.mean(full) - np.mean(decoder))
    assert duel.paired.low < duel.paired.difference < duel.paired.high
    interval = stats.ttest_ind(full, decoder, equal_var=False).confidence_interval(0.95)
    assert (duel.low, duel.high) == pytest.approx((interval.low, interval.high))
    assert [s.seeds for s in summarize_configurations(group)] == [(1, 2, 3)] * 2


@given(st.lists(st.integers(-100, 100), min_size=2, max_size=6, unique=True))
def test_the_interval_of_a_mean_is_scipys(values: list[int]) -> None:
    expected = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
    assert student_interval(values) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("task", "metric", "row", "value"),
    [
        ("tagging", "test/accuracy", {"correct": 3, "words": 4}, 0.75),
        ("tagging", "test/entity_f1", {"found_and_true": 2, "found": 3, "true": 5, "correct": 1, "words": 9}, 0.5),
        ("question_answering", "test/f1", {"f1": 0.25, "exact_match": 0.0}, 0.25),
        ("language_modeling", "test/bits_per_byte", {"nats": 8 * math.log(2), "bytes": 4}, 2.0),
    ],
)
def test_the_metric_of_the_rows(write_run, tmp_path: Path, task: str, metric: str, row: dict, value: float) -> None:
    """The rows of one example each; of several the sums count, not the mean of the ratios."""
    metrics = {metric: value} | ({"test/accuracy": 0.5, "test/f1": 0.5} if task != "language_modeling" else {})
    write_run("decoder_only", task, metrics | {metric: value}, answers=[row, row])
    group = group_of(tmp_path)
    terms = terms_of(group.metric, group.runs[0])
    assert terms is not None
    assert group.metric.key == metric
    assert terms.value(terms.terms.sum(0)) == pytest.approx(value)
    draws = resample([terms, terms])
    assert draws[0][0] == pytest.approx(value)
    assert paired_bootstrap(draws[:1], draws[1:]).difference == 0


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=8), st.booleans())
def test_the_pareto_front_is_what_nothing_beats(points: list[tuple[int, int]], higher: bool) -> None:
    sign = 1 if higher else -1

    def beats(a: tuple[int, int], b: tuple[int, int]) -> bool:
        return a[0] <= b[0] and sign * a[1] >= sign * b[1] and a != b

    front = find_pareto_front(points, higher_is_better=higher)
    assert {points[i] for i in front} == {p for p in points if not any(beats(q, p) for q in points)}
    assert [points[i][0] for i in front] == sorted(points[i][0] for i in front)


def test_bleu_by_length_is_sacrebleus_of_those_sentences(translated) -> None:
    rows = translations(300, 0.3, seed=1)
    (contender, found), _ = score_by(translated(rows, translations(300, 0.1, seed=2)), INPUT_WORDS)
    assert contender.architecture == "full"
    assert len(found) == 6
    assert sum(of_one.count for of_one in found) == 300
    for of_one in found:
        of_bin = [row for row in rows if of_one.low <= int(str(row["input_words"])) <= of_one.high]
        assert of_one.count == len(of_bin)
        assert of_one.values == pytest.approx([corpus_bleu(of_bin)])


def test_the_examples_that_tell_most(translated) -> None:
    good = translations(40, 0.0, seed=1)
    bad = [dict(row) for row in good]
    bad[7]["output"] = "nothing of all that"
    good[9]["output"] = bad[9]["output"] = "zzz"
    shown = find_telling_examples(translated(good, bad), count=1)
    assert shown["Where they differ most"][0].input == good[7]["input"]
    assert shown["Where they differ most"][0].outputs["decoder_only"] == "nothing of all that"
    assert shown["Hardest for all"][0].input == good[9]["input"]


def test_words_without_entities_are_no_error(write_run, tmp_path: Path) -> None:
    """A bin of lengths has none, and draws may have none; who rightly finds nothing there is right."""
    nothing = {"input": "Hello", "input_words": 1, "reference": "O", "output": "O", "correct": 1, "words": 1}
    nothing |= {"found": 0, "true": 0, "found_and_true": 0}
    other = {**nothing, "input": "in Rome now", "input_words": 3, "reference": "O B-LOC O", "true": 1}
    for architecture, right in (("full", 1), ("encoder_only", 0)):
        found = {**other, "found": right, "found_and_true": right}
        metrics = {"test/accuracy": 0.9, "test/entity_f1": float(right)}
        write_run(architecture, "tagging", metrics, answers=[*[nothing] * 40, *[found] * 20])
    group = group_of(tmp_path)
    assert [of_one.values for of_one in score_by(group, INPUT_WORDS)[0][1]] == [(0,), (1,)]
    assert find_telling_examples(group)["Hardest for all"][0].input == "in Rome now"
    (duel,) = compare_pairs(group)
    assert duel.paired is not None
    assert duel.paired.difference == 1


@pytest.mark.parametrize("left_out", [{}, {"probability": math.nan}, {"probability": None}])
def test_a_run_that_diverged_still_has_its_page(write_run, tmp_path: Path, left_out: dict) -> None:
    rows = [
        {"input": f"{i} " * (1 + i % 3), "input_words": 1 + i % 3, "reference": "a", "output": "a", "probability": 0.5}
        for i in range(60)
    ]
    write_run("full", "classification", {"test/accuracy": 1.0}, answers=rows)
    broken = [{key: value for key, value in {**row, **left_out}.items() if value is not None} for row in rows]
    metrics = {"test/accuracy": math.nan}
    write_run("encoder_only", "classification", metrics, answers=broken, changes={"metrics": {"test/accuracy": None}})
    compare([tmp_path], tmp_path / "page.html")
    record = json.loads((tmp_path / "page.comparison.json").read_text(), parse_constant=pytest.fail)
    assert [duel["paired"] for duel in record["pairwise"]] == [None]


def rows_of_difficulty(axis: str, sizes: Sequence[int], right: Sequence[bool]) -> list[dict[str, object]]:
    """Answers to examples of these sizes, right or wrong."""
    return [
        {"input": f"text {i}", "input_words": 2, "difficulty": {axis: size}, "reference": "a", "output": "ba"[is_right]}
        for i, (size, is_right) in enumerate(zip(sizes, right, strict=True))
    ]


class TestDifficulty:
    """The metric on the examples of like difficulty, by all configurations."""

    SIZES = tuple(size for size in range(3, 33) for _ in range(20))

    def figures(self, write_run, tmp_path: Path, answers: dict[str, list[list[dict[str, object]]]]) -> dict[str, Any]:
        """Of a run for each list of answers of an architecture, as seeds; trained on 3 to 16."""
        for architecture, seeds in answers.items():
            for seed, rows in enumerate(seeds, 1):
                changes = {"train_difficulty_range": {"length": [3, 16]}}
                metrics = {"test/accuracy": fmean(row["output"] == row["reference"] for row in rows)}
                write_run(architecture, "classification", metrics, seed=seed, answers=rows, changes=changes)
        return draw_difficulty(group_of(tmp_path))

    def test_a_bin_is_its_own_share_and_on_one_side_of_the_training(self, write_run, tmp_path: Path) -> None:
        draws = random.Random(1)
        right = [draws.random() < 3 / size for size in self.SIZES]
        figures = self.figures(write_run, tmp_path, {"full": [rows_of_difficulty("length", self.SIZES, right)]})
        assert list(figures) == ["length"]
        (line,) = figures["length"]["data"]
        assert 8 < len(line["x"]) < 15
        covered = []
        for label, value, count in zip(line["x"], line["y"], line["customdata"], strict=True):
            low, high = (int(end) for end in (label.split(" to ") * 2)[:2])
            of_bin = [is_right for size, is_right in zip(self.SIZES, right, strict=True) if low <= size <= high]
            assert count == len(of_bin)
            assert value == pytest.approx(100 * fmean(of_bin), rel=1e-4)
            assert not low <= 16 < high
            covered += range(low, high + 1)
        assert covered == list(range(3, 33))
        (shade,) = figures["length"]["layout"]["shapes"]
        seen = [label for label in line["x"] if int(label.split(" to ")[-1]) <= 16]
        assert (shade["x0"], shade["x1"]) == (-0.5, len(seen) - 0.5)

    def test_seeds_have_the_interval_of_their_mean(self, write_run, tmp_path: Path) -> None:
        sizes = [1] * 40 + [2] * 40
        shares = {1: (0.9, 0.8, 0.85), 2: (0.5, 0.25, 0.4)}
        seeds = [
            rows_of_difficulty("length", sizes, [i % 40 < 40 * shares[size][seed] for i, size in enumerate(sizes)])
            for seed in range(3)
        ]
        figures = self.figures(write_run, tmp_path, {"full": seeds, "decoder_only": seeds[:1]})
        band, *lines = figures["length"]["data"]
        assert [line["name"] for line in lines] == ["full", "decoder-only"]
        assert band["x"] == ["1", "2", "2", "1"]
        expected = [100 * np.array(stats.t.interval(0.95, 2, np.mean(of), stats.sem(of))) for of in shares.values()]
        assert band["y"] == pytest.approx([expected[0][0], expected[1][0], expected[1][1], expected[0][1]], rel=1e-4)
        lowest, highest = figures["length"]["layout"]["yaxis"]["range"]
        assert lowest < min(band["y"])
        assert max(band["y"]) < highest
        assert "shapes" not in figures["length"]["layout"]  # nothing is beyond the training

    def test_runs_without_difficulty_are_ordered_by_words(self, translated) -> None:
        rows = translations(300, 0.3, seed=1)
        figures = draw_difficulty(translated(rows, rows))
        assert list(figures) == [INPUT_WORDS]
        assert figures[INPUT_WORDS]["layout"]["title"]["text"] == "BLEU by input length"


def test_a_row_says_how_a_configuration_was_trained(write_run, tmp_path: Path) -> None:
    """A decoder of another version did not record everything, and a run of it has failed."""
    for architecture, values in {"full": (0.9, 0.91, 0.92), "decoder_only": (0.8, 0.81, 0.0)}.items():
        for seed, value in enumerate(values, start=1):
            times = {"began": f"2026-03-0{seed}T23:00:00+00:00", "ended": f"2026-03-0{seed + 1}T01:00:00+00:00"}
            changes = {"steps": 2000 + seed, "best_step": 400 * seed, **times} if architecture == "full" else {}
            metrics = {"test/exact_match": value}
            write_run(architecture, "translation", metrics, seed=seed, changes=changes, settings={"batch": {"size": 8}})
    expected = {"seeds": "1, 2, 3", "trials": "1"}
    full = {"failed runs": "0", "best step": "800", "last step": "2,002", "dates": "2026-03-01 to 2026-03-04"}
    decoder = {"failed runs": "1", "best step": "", "last step": "800", "dates": ""}
    rows = describe_training(group_of(tmp_path))
    assert rows == [
        {"configuration": name, **expected, **own} for name, own in (("full", full), ("decoder-only", decoder))
    ]


def test_columns_that_no_record_fills_are_not_shown(write_run, tmp_path: Path) -> None:
    write_run("full", "classification", {"test/accuracy": 0.9})
    (row,) = describe_training(group_of(tmp_path))
    assert list(row) == ["configuration", "seeds", "failed runs", "trials", "last step"]
