"""Running text in three parts."""

import gzip
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triptych.data import PlainText

KEPT = "one\rtwo\x85three\u2028\ufeff\n\nfour\x0b\x0c\x1c\x1d\x1e\x00end  "


def write(folder: Path, content: bytes) -> dict[str, Any]:
    (folder / "text.txt").write_bytes(content)
    return {"dir": str(folder), "train": "text.txt", "validation": 0.2, "test": 0.1}


def parts(**options: Any) -> list[str]:
    splits = PlainText(**options).splits()
    return ["".join(e.text for e in split) for split in (splits.train, splits.validation, splits.test)]


@given(
    text=st.text(st.characters(exclude_categories=["Cs"]), min_size=30),
    validation=st.floats(0.1, 0.4),
    test=st.floats(0.1, 0.4),
)
def test_the_parts_are_the_file(
    tmp_path_factory: pytest.TempPathFactory, text: str, validation: float, test: float
) -> None:
    """In its order, with the shares asked for, to the character; but Windows line ends become line feeds."""
    shares = {"validation": validation, "test": test}
    train, middle, end = parts(**write(tmp_path_factory.mktemp("text"), text.encode("utf-8-sig")) | shares)
    text = text.replace("\r\n", "\n")
    assert train + middle + end == text
    assert abs(len(middle) - validation * len(text)) <= 0.5
    assert abs(len(end) - test * len(text)) <= 0.5


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_lines_and_spaces_are_kept(tmp_path: Path, mark: str, end: str) -> None:
    content = mark + (3 * KEPT).replace("\n", end)
    assert "".join(parts(**write(tmp_path, content.encode()))) == 3 * KEPT


def test_each_part_may_be_a_file(tmp_path: Path) -> None:
    options = write(tmp_path, b"0123456789")
    (tmp_path / "other.txt").write_bytes("\ufeffä\r\nb".encode())
    (tmp_path / "third.gz").write_bytes(gzip.compress(b"third"))
    assert parts(**options | {"validation": "other.txt", "test": "third.gz"}) == ["0123456789", "ä\nb", "third"]
    assert parts(**options | {"validation": "other.txt", "test": 0.2}) == ["01234567", "ä\nb", "89"]
    assert parts(**options | {"train": "third.gz", "validation": 0.4, "test": "other.txt"}) == ["thi", "rd", "ä\nb"]


@pytest.mark.parametrize("size", [0, 2, 10])
def test_a_file_too_short_for_three_splits_is_named(tmp_path: Path, size: int) -> None:
    with pytest.raises(ValueError, match=r"text\.txt: [01] characters are too few for the \w+ split"):
        parts(**write(tmp_path, b"x" * size))


@pytest.mark.parametrize("key", ["train", "validation", "test"])
@pytest.mark.parametrize("content", [b"", b"x", b"\xef\xbb\xbf", b"\r\n"])
def test_a_file_too_short_for_a_split_is_named(tmp_path: Path, key: str, content: bytes) -> None:
    options = write(tmp_path, b"text") | {"validation": "text.txt", "test": "text.txt", key: "short.txt"}
    (tmp_path / "short.txt").write_bytes(content)
    with pytest.raises(ValueError, match=rf"/short\.txt: [01] characters are too few for the {key} split"):
        parts(**options)


def test_shares(tmp_path: Path) -> None:
    assert [len(part) for part in parts(**write(tmp_path, b"x" * 1000))] == [700, 200, 100]


@pytest.mark.parametrize("key", ["train", "validation", "test"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_what_is_not_utf8_is_named_by_file_and_line(tmp_path: Path, key: str, end: str) -> None:
    content = f"first{end}zweitens: ä{end}".encode() + "drittens: ö".encode("latin-1")
    (tmp_path / "other.txt").write_bytes(content)
    with pytest.raises(ValueError, match=rf"other\.txt, line 3: not UTF-8 \(byte {len(content) - 1}: "):
        PlainText(**write(tmp_path, b"x" * 100) | {key: "other.txt"}).splits()


def test_a_damaged_gz_is_named(tmp_path: Path) -> None:
    (tmp_path / "text.gz").write_bytes(gzip.compress(b"x" * 1000)[:-9])
    with pytest.raises(ValueError, match=r"/text\.gz: not a complete gzip file"):
        PlainText(dir=str(tmp_path), train="text.gz", validation=0.1, test=0.1).splits()


@pytest.mark.parametrize("key", ["train", "validation", "test"])
def test_a_missing_file_is_named(tmp_path: Path, key: str) -> None:
    options = write(tmp_path, b"text") | {key: "other.txt"}
    with pytest.raises(ValueError, match=rf"^data\.{key}=other\.txt: no such file in data\.dir="):
        PlainText(**options)


@pytest.mark.parametrize(("validation", "test"), [(0, 0.1), (0.1, 0), (-0.1, 0.1), (0.5, 0.5), (1, 0.1), (0.1, 1.5)])
def test_rejects_shares_that_leave_nothing(tmp_path: Path, validation: float, test: float) -> None:
    shares = {"validation": validation, "test": test}
    with pytest.raises(ValueError, match=rf"data\.validation={validation} and data\.test={test}"):
        PlainText(**write(tmp_path, b"text") | shares)


def test_serves_language_models_in_windows(tmp_path: Path) -> None:
    corpus = PlainText(**write(tmp_path, b"text"))
    assert corpus.columns == ("long_text",)
    assert corpus.info.is_stream
    assert corpus.optimum("language_modeling", "full", []) == {}
