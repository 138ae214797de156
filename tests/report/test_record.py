"""The record of a run: keys that are written, checked and read."""

import json
from dataclasses import asdict, fields
from pathlib import Path

import pytest

from triptych.planning.matching import RECORDED
from triptych.report.record import RunRecord, fields_of, read_summary

ACCURACY = {"test/accuracy": 0.9}


def test_what_was_written_is_read(write_run, tmp_path: Path) -> None:
    changes = {"train_flops_of": ["forward", "backward", "optimizer"], "overlap": {"test": {"inputs": 0.5}}}
    path = (
        write_run("full", "classification", {**ACCURACY, "test/loss": float("nan")}, changes=changes) / "summary.json"
    )
    record = RunRecord(**fields_of(read_summary(path)))
    again = tmp_path / "again.json"
    again.write_text(json.dumps(asdict(record)))
    assert list(read_summary(again)) == [field.name for field in fields(RunRecord)]
    assert repr(RunRecord(**fields_of(read_summary(again)))) == repr(record)  # NaN does not equal itself


def test_keys_of_later_versions_stay_and_those_of_earlier_ones_may_be_missing(write_run) -> None:
    path = write_run("full", "classification", ACCURACY, changes={"new": 1}) / "summary.json"
    content = read_summary(path)
    assert content["new"] == 1
    assert "train_flops_of" not in content
    assert fields_of(content).keys() < {field.name for field in fields(RunRecord)}
    assert RunRecord(**fields_of(content)).train_flops_of == ("forward", "backward")


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [("overlap", {"test": 0.5}, "a mapping or null"), ("decoding", {"flops": "many"}, "a mapping or null")],
)
def test_a_key_that_may_be_missing_is_checked_where_it_stands(
    write_run, key: str, value: object, expected: str
) -> None:
    path = write_run("full", "classification", ACCURACY, changes={key: value}) / "summary.json"
    with pytest.raises(ValueError, match=rf"summary\.json: key {key} is .*, expected {expected}"):
        read_summary(path)


def test_what_is_matched_is_recorded() -> None:
    assert set(RECORDED.values()) <= {field.name for field in fields(RunRecord)}
