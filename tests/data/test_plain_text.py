"""A text file in three parts."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triptych.data import PlainText

KEPT = 3 * "\ufeffone\r\ntwo\x85three\u2028\ufeff\n\nend  "


def write(folder: Path, content: bytes) -> dict[str, Any]:
    (folder / "text.txt").write_bytes(content)
    return {"dir": str(folder), "file": "text.txt", "validation": 0.2, "test": 0.1}


def parts(**options: Any) -> list[str]:
    splits = PlainText(**options).splits()
    return [example.text for split in (splits.train, splits.validation, splits.test) for example in split]


@given(
    text=st.text(st.characters(exclude_categories=["Cs"]), min_size=30),
    validation=st.floats(0.1, 0.4),
    test=st.floats(0.1, 0.4),
)
def test_the_parts_are_the_file(
    tmp_path_factory: pytest.TempPathFactory, text: str, validation: float, test: float
) -> None:
    """In its order, with the shares asked for, to the character."""
    shares = {"validation": validation, "test": test}
    train, middle, end = parts(**write(tmp_path_factory.mktemp("text"), text.encode()) | shares)
    assert train + middle + end == text
    assert abs(len(middle) - validation * len(text)) <= 0.5
    assert abs(len(end) - test * len(text)) <= 0.5


def test_lines_and_spaces_are_kept(tmp_path: Path) -> None:
    assert "".join(parts(**write(tmp_path, KEPT.encode()))) == KEPT


@pytest.mark.parametrize("size", [0, 2, 10])
def test_a_file_too_short_for_three_splits_is_named(tmp_path: Path, size: int) -> None:
    with pytest.raises(ValueError, match=rf"text\.txt: {size} characters are too few"):
        parts(**write(tmp_path, b"x" * size))


def test_shares(tmp_path: Path) -> None:
    assert [len(part) for part in parts(**write(tmp_path, b"x" * 1000))] == [700, 200, 100]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_what_is_not_utf8_is_named_by_file_and_line(tmp_path: Path, end: str) -> None:
    content = f"first{end}zweitens: ä{end}".encode() + "drittens: ö".encode("latin-1")
    with pytest.raises(ValueError, match=rf"text\.txt, line 3: not UTF-8 \(byte {len(content) - 1}: "):
        PlainText(**write(tmp_path, content)).splits()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    options = write(tmp_path, b"text") | {"file": "other.txt"}
    with pytest.raises(ValueError, match=r"data\.dir=.* data\.file=other\.txt: no such file"):
        PlainText(**options)


@pytest.mark.parametrize(("validation", "test"), [(0, 0.1), (0.1, 0), (-0.1, 0.1), (0.5, 0.5), (1, 0.1), (0.1, 1.5)])
def test_refuses_shares_that_leave_nothing(tmp_path: Path, validation: float, test: float) -> None:
    shares = {"validation": validation, "test": test}
    with pytest.raises(ValueError, match=rf"data\.validation={validation} and data\.test={test}"):
        PlainText(**write(tmp_path, b"text") | shares)


def test_serves_language_models_in_windows(tmp_path: Path) -> None:
    corpus = PlainText(**write(tmp_path, b"text"))
    assert corpus.tasks == ("language_modeling",)
    assert corpus.facts.is_stream
    assert corpus.optimum("language_modeling", "full", []) == {}
