"""The committed answers of studies: each holds against its record, and the record against scipy."""

import json
import math
import re
import subprocess
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from scipy import stats

from triptych.studies.study import Sentence, find_studies, read_study

RECORDS = Path(__file__).parents[2] / "docs" / "studies"
REDONE = [name for name in find_studies() if "claims:" in find_studies()[name].read_text().partition("\nvariants:")[0]]
"""Studies whose answers state their claims."""
COMPARING = re.compile(
    r"\b(better|worse|more|fewer|less|faster|slower|higher|lower|ahead|behind|same|alike|equal(ly)?|helps?|outperforms?|"
    r"as (good|well|many))\b"
)
NUMBER = re.compile(r"\d(?:[\d,]*\d)?(?:\.\d+)?")


def record_of(name: str) -> dict[str, Any]:
    record = json.loads((RECORDS / f"{name}.json").read_text())
    assert isinstance(record, dict)
    return record


def problems_of(sentence: Sentence, findings: Sequence[dict[str, Any]]) -> list[str]:
    """What is wrong with a sentence of an answer."""
    own = [findings[number - 1] for number in sentence.claims]
    known = {
        number for one in own for number in NUMBER.findall(json.dumps([one["shown"], one["difference"], one["claim"]]))
    }
    found = [f"{number} is in no finding" for number in NUMBER.findall(sentence.text) if own and number not in known]
    if any(one["outcome"] == "inconclusive" for one in own) and "inconclusive" not in sentence.text:
        found += [f"{word[0]}: inconclusive" for word in COMPARING.finditer(sentence.text)]
    return found


@pytest.mark.parametrize("name", REDONE)
def test_an_answer_says_what_its_findings_say(name: str) -> None:
    study, findings = read_study(name), record_of(name)["findings"]
    assert [one["claim"]["statement"] for one in findings] == [claim.statement for claim in study.claims]
    assert {number for sentence in study.answer for number in sentence.claims} == {*range(1, len(findings) + 1)}
    assert {sentence.text: found for sentence in study.answer if (found := problems_of(sentence, findings))} == {}


@pytest.mark.parametrize(
    ("text", "outcome", "problems"),
    [
        ("A recalls 72.5 %, B 20.0 %.", "as predicted", []),
        ("A recalls 73 %.", "as predicted", ["73 is in no finding"]),
        ("A is better.", "as predicted", []),
        ("A is better.", "inconclusive", ["better: inconclusive"]),
        ("Whether A is better is inconclusive.", "inconclusive", []),
        ("A recalls as many as B.", "inconclusive", ["as many: inconclusive"]),
    ],
)
def test_what_a_sentence_may_not_say(text: str, outcome: str, problems: list[str]) -> None:
    finding = {"shown": {"a": "72.5 %", "b": "20.0 %"}, "difference": "", "claim": {}, "outcome": outcome}
    assert problems_of(Sentence(text, [1]), [finding]) == problems


@pytest.mark.parametrize("name", REDONE)
def test_a_record_can_be_judged_again(name: str) -> None:
    """p from the values of each seed, where all runs learned; Holm's correction by hand."""
    record = record_of(name)
    findings, tests = record["findings"], []
    for one in findings:
        values = [np.array(found, float) for found in one["values"].values()]
        assert all(len(found) >= 3 for found in values) or one["outcome"] == "inconclusive"
        parts = [
            (found.var(ddof=1) + grain**2 / 12) / len(found)
            for found, grain in zip(values, one["grain"].values(), strict=True)
        ]
        freedom = sum(parts) ** 2 / sum(part**2 / (len(x) - 1) for part, x in zip(parts, values, strict=True))
        freedom, error = min(freedom, 2 * min(map(len, values)) - 2), math.sqrt(sum(parts))
        gap, margin = abs(fmean(values[0]) - fmean(values[1])), one["claim"]["margin"]
        if margin is None:
            p = 2 * stats.t.sf(gap / error, freedom)
        else:
            p = min(
                1, 2 * min(stats.t.sf((margin - gap) / error, freedom), stats.t.sf((gap - margin) / error, freedom))
            )
        tests.append(p)
    failed = ["runs learned against" in one["difference"] for one in findings]  # whose p is not that of the means
    floor = 0.0
    for rank, index in enumerate(np.argsort(tests)):
        one, p = findings[index], tests[index]
        floor = max(floor, min(1.0, (len(tests) - rank) * p))
        if not any(failed):
            assert one["p"] == pytest.approx(floor, rel=0.02, abs=1e-12), one["claim"]["statement"]
        elif not failed[index]:
            assert 0.98 * p <= one["p"] <= 1.02 * len(tests) * p
        assert one["outcome"] == "inconclusive" or one["p"] < 0.05


@pytest.mark.parametrize("name", REDONE)
def test_the_page_is_that_of_the_record(name: str) -> None:
    study, text = read_study(name), " ".join((RECORDS / f"{name}.md").read_text().split())
    assert study.conclusion in text
    for one in record_of(name)["findings"]:
        assert f"**{one['outcome']}** |" in text
        assert one["difference"] in text


def test_the_records_are_small() -> None:
    assert sum(file.stat().st_size for file in RECORDS.glob("*.json")) < 3e6


@pytest.mark.nightly
@pytest.mark.parametrize("name", REDONE)
def test_predictions_were_committed_before_their_runs(name: str) -> None:
    for claim in read_study(name).claims:
        search = ["git", "log", "--format=%cI", "-S", claim.statement[:40], "--", f"conf/study/{name}.yaml"]
        dates = subprocess.run(
            search, cwd=RECORDS.parents[1], capture_output=True, text=True, check=True
        ).stdout.split()
        began = min(datetime.fromisoformat(run["began"]) for run in record_of(name)["runs"])
        assert datetime.fromisoformat(dates[-1]) < began, claim.statement
