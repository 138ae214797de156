"""The heat map of minimal pairs, from runs with scores to the page."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from triptych.report.compare import compare
from triptych.report.page.pair_table import read_reference
from triptych.report.pair_scores import PairScores

METRICS = {"test/bits_per_byte": 1.0, "test/loss": 2.0, "test/continuation_bits_per_byte": 1.0}


def score(directory: Path, method: str, shares: tuple[float, float]) -> PairScores:
    """Scores of two paradigms with 100 pairs, of which these shares are right."""
    names = ["island"] * 100 + ["noun"] * 100
    right = np.concatenate([np.arange(100) < 100 * share for share in shares])
    nats = np.array([np.where(right, 1.0, 3.0), np.full(200, 2.0)])
    phenomena = ["islands"] * 100 + ["noun_agreement"] * 100
    scores = PairScores(names, phenomena, np.array([True] * 100 + [False] * 100), nats, np.ones((2, 200), int))
    scores.write(directory / "minimal_pairs" / f"pairs.{method}.tsv")
    return scores


@pytest.fixture
def runs(write_run: Any, tmp_path: Path) -> Path:
    for seed, share in ((1, 0.9), (2, 0.8)):
        score(write_run("decoder_only", "language_modeling", METRICS, seed=seed), "log_likelihood", (0.5, share))
    full = write_run("full", "language_modeling", METRICS)
    score(full, "prefix_log_likelihood", (0.8, 0.3))
    return full.parent


def test_page_and_record(runs: Path, tmp_path: Path) -> None:
    reference = tmp_path / "reference.csv"
    reference.write_text("UID,field,human,unigram\nisland,syntax,90,40\nnoun,syntax,95.5,20\n")
    compare([runs], tmp_path / "out/report.html", reference=reference)
    (pairs,) = json.loads((tmp_path / "out/report.comparison.json").read_text())["pairs"]
    assert pairs["name"] == "pairs"
    columns = ["full, prefix log likelihood", "decoder-only, log likelihood", "human", "unigram"]
    assert pairs["heads"] == columns
    rows = {
        name: [cell["text"].split(" ")[0] for cell in cells] for name, cells in pairs["groups"] + pairs["paradigms"]
    }
    assert rows == {
        "overall (2)": ["55.0", "67.5", "92.8", "30.0"], "agreement (1)": ["30.0", "85.0", "95.5", "20.0"],
        "permutations (1)": ["80.0", "50.0", "90.0", "40.0"], "islands (1)": ["80.0", "50.0", "90.0", "40.0"],
        "noun_agreement (1)": ["30.0", "85.0", "95.5", "20.0"], "island": ["80.0", "50.0", "90.0", "40.0"],
        "noun": ["30.0", "85.0", "95.5", "20.0"],
    }  # fmt: skip
    assert [[cell["is_soft"] for cell in cells[:2]] for _, cells in pairs["paradigms"]] == [[False, False]] * 2
    (difference,) = pairs["differences"]
    assert [cell[2].partition(" (")[0] for cell in difference[1:]] == ["-12.5", "-55.0", "+30.0"]
    text = re.sub(r"<[^>]*>", "", (tmp_path / "out/report.html").read_text())
    assert "Gray: not above the unigram model" in text
    assert "55.0 ± 3.0" in text  # sqrt(0.16 + 0.21) / 2 of 100 pairs each


def test_gray_is_not_above_chance(runs: Path, tmp_path: Path) -> None:
    """50 of 100 are not, 80 are."""
    compare([runs], tmp_path / "report.html")
    (pairs,) = json.loads((tmp_path / "report.comparison.json").read_text())["pairs"]
    soft = {name: [cell["is_soft"] for cell in cells] for name, cells in pairs["paradigms"]}
    assert soft == {"island": [False, True], "noun": [True, False]}
    assert "Gray: not above chance" in (tmp_path / "report.html").read_text()


def test_each_table_of_pairs_has_a_heat_map(runs: Path, tmp_path: Path) -> None:
    for file in sorted(runs.rglob("*.tsv"))[:1]:
        file.with_name(file.name.replace("pairs.", "other.table.")).write_bytes(file.read_bytes())
    compare([runs], tmp_path / "report.html")
    tables = json.loads((tmp_path / "report.comparison.json").read_text())["pairs"]
    assert [(table["name"], len(table["heads"])) for table in tables] == [("other.table", 1), ("pairs", 2)]


def test_runs_without_scores_have_no_section(write_run: Any, tmp_path: Path) -> None:
    compare([write_run("decoder_only", "language_modeling", METRICS)], tmp_path / "report.html")
    assert "Minimal pairs" not in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("content", "message"),
    [("a,b\n1,2\n", "no column UID"), ("UID,b\nx,y\n", "no column of numbers"), ("", "no column UID")],
)
def test_other_files_as_reference(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        read_reference(path)
