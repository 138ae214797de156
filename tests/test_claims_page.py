"""The page of claims: that it is up to date, its verdicts by rule, and messages for entries that name nothing."""

from pathlib import Path
from typing import Any

import pytest
import yaml

import claims_page
from claims_page import (
    CONDITION,
    CONSTRUCTED,
    FAILS,
    HOLDS,
    NOT_MEASURED,
    OPEN,
    Claim,
    ClaimError,
    ClaimTest,
    draw_tests,
    read_claims,
    write_claims,
)

STUDY = {"study": "recall", "claim": 1}


def test_the_page_is_what_the_claims_and_the_records_say(tmp_path: Path) -> None:
    """Written by `make claims`; the page, its pictures and their data."""
    write_claims(tmp_path)
    written = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    docs = claims_page.DOCS
    kept = [docs / "claims.md", *(docs / "claims").iterdir()]
    assert written == {path.relative_to(docs): path.read_text() for path in kept}


def test_there_are_81_claims_in_ten_sessions() -> None:
    claims, course = read_claims()
    assert len(claims) == 81
    assert len(course) == 10
    assert len({claim.text for claim in claims}) == 81


@pytest.mark.parametrize(
    ("agrees", "samples", "condition", "verdict"),
    [
        ([], 0, "", NOT_MEASURED),
        ([True, True], 2, "", CONSTRUCTED),
        ([True, True], 1, "", HOLDS),
        ([True], 1, "with two layers", CONDITION),
        ([True, None], 0, "", CONDITION),
        ([True, False], 0, "", CONDITION),
        ([False, False], 0, "", FAILS),
        ([False, None], 0, "", OPEN),
        ([None], 0, "", OPEN),
    ],
)
def test_verdicts(agrees: list[bool | None], samples: int, condition: str, verdict: str) -> None:
    tests = tuple(ClaimTest("", "", found, is_sample=number < samples) for number, found in enumerate(agrees))
    assert Claim(1, "", "", tests, condition, "", "").verdict == verdict


def test_a_prediction_against_the_text_counts_the_other_way(tmp_path: Path) -> None:
    found = []
    for number, agrees in ((1, True), (1, False), (2, True), (5, True), (5, False)):
        test = {"study": "recall", "claim": number, "agrees": agrees}
        (claim,), _ = read(tmp_path, {"tests": [test], "condition": "x"})
        found.append(claim.tests[0].agrees)
    assert found == [True, False, None, False, True]


def read(folder: Path, entry: dict[str, Any]) -> Any:
    """The claims of a file with one claim."""
    content = {"course": [{"title": "all", "claims": [1]}], "claims": [{"group": "G", "claim": "It is so."} | entry]}
    (folder / "claims.yaml").write_text(yaml.safe_dump(content))
    return read_claims(folder / "claims.yaml")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"tests": [{"study": "recal", "claim": 1}]}, r"claim 1: recal: there is no such study; expected .*recall"),
        ({"tests": [STUDY | {"claim": 6}]}, "claim 1: study recall has the claims 1 to 5, not 6"),
        ({"tests": [{"sample": "concepts.md#Nothing"}]}, "concepts.md has no section 'Nothing'; expected .*Attention"),
        ({"tests": [{"sample": "concepts.md#Read on"}]}, "concepts.md#Read on has no sample"),
        ({"tests": [{"notebook": "compare_architectures.ipynb#X"}]}, "no such section; expected one of The runs"),
        ({"tests": [{"experiment": "dates/chat", "figure": "99 %"}]}, "dates/chat does not state '99 %'"),
        ({"tests": [{"page": "README.md", "figure": "nowhere"}]}, "README.md does not state 'nowhere'"),
        ({"tests": [{"nothing": 1}]}, "expected sample, notebook, study, experiment or page"),
        ({"tests": [STUDY, STUDY | {"claim": 5}]}, "its tests disagree; expected a condition"),
        ({"verdict": "holds"}, "claim 1: unknown key verdict"),
    ],
)
def test_what_names_nothing_is_an_error(tmp_path: Path, entry: dict[str, Any], message: str) -> None:
    with pytest.raises(ClaimError, match=message):
        read(tmp_path, entry)


def test_each_claim_is_in_one_session(tmp_path: Path) -> None:
    content = {"course": [{"title": "all", "claims": []}], "claims": [{"group": "G", "claim": "It is so."}]}
    (tmp_path / "claims.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(ClaimError, match="course: expected claim 1 in one session"):
        read_claims(tmp_path / "claims.yaml")


def test_a_picture_has_a_dot_for_each_value() -> None:
    (claim,) = (claim for claim in read_claims()[0] if claim.number == 12)
    drawn = draw_tests([test.finding for test in claim.tests])
    assert drawn.count("<circle") == sum(len(values) for values in claim.tests[0].finding["values"].values()) == 8
