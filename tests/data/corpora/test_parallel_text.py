"""Sentence pairs in two files."""

import gzip
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from triptych.data import Example, ParallelText

SEPARATORS = "\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"  # of str.splitlines, but for the line feed
HARD = [("", "leer"), (f"all of{SEPARATORS}them", ""), ("\rlone", "mid\ufeffdle"), ('"a\tb"', " \x00"), ("", "")]

any_line = st.text(
    st.sampled_from(SEPARATORS) | st.characters(exclude_categories=["Cs"], exclude_characters="\n"), max_size=8
).filter(lambda line: not line.endswith("\r"))


def write(path: Path, lines: list[str], *, end: str = "\n", bom: bool = True, final: bool = True) -> str:
    text = end.join(lines) + (end if final or not lines[-1] else "")
    content = text.encode("utf-8-sig" if bom or text.startswith("\ufeff") else "utf-8")
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
    return path.name


def corpus(folder: Path, **options: Any) -> ParallelText:
    given = {"train": ["de", "en"], "validation": 0.2, "test": 0.2, "split_seed": 1}
    return ParallelText(**{"dir": str(folder), **given, **options})


def pairs(examples: Any) -> list[tuple[str, str | None]]:
    return [(e.text, e.target) for e in examples]


style = st.fixed_dictionaries({"end": st.sampled_from(["\n", "\r\n"]), "bom": st.booleans(), "final": st.booleans()})


@settings(max_examples=50)
@given(
    rows=st.lists(st.tuples(any_line, any_line), min_size=1, max_size=6),
    styles=st.tuples(style, style),
    names=st.sampled_from([["de", "en"], ["de.gz", "en"], ["de", "en.gz"], ["de.gz", "en.gz"]]),
)
@example(
    rows=HARD,
    styles=({"end": "\r\n", "bom": True, "final": False}, {"end": "\n", "bom": False, "final": True}),
    names=["de", "en.gz"],
)
def test_line_by_line(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[str, str]],
    styles: tuple[dict[str, Any], dict[str, Any]],
    names: list[str],
) -> None:
    folder = tmp_path_factory.getbasetemp()
    for side in (0, 1):
        write(folder / names[side], [row[side] for row in rows], **styles[side])
    splits = corpus(folder, train=names, validation=names[::-1], test=names).splits()
    assert pairs(splits.train) == pairs(splits.test) == rows
    assert pairs(splits.validation) == [row[::-1] for row in rows]
    assert [e.place for e in splits.train] == [(folder / names[0], line) for line in range(1, len(rows) + 1)]
    assert splits.validation[0].where == f"{folder / names[1]}, line 1"


def test_shares_keep_the_pairs_together(tmp_path: Path) -> None:
    for name in ("de", "en"):
        write(tmp_path / name, [f"{name} {i:02}" for i in range(50)])
    splits = corpus(tmp_path).splits()
    parts = (splits.train, splits.validation, splits.test)
    assert [len(part) for part in parts] == [30, 10, 10]
    assert sorted(pair for part in parts for pair in pairs(part)) == [(f"de {i:02}", f"en {i:02}") for i in range(50)]
    assert all(e.place == (tmp_path / "de", int(e.text[3:]) + 1) for part in parts for e in part)
    assert splits == corpus(tmp_path).splits()
    assert splits != corpus(tmp_path, split_seed=2).splits()


@pytest.mark.parametrize(("source", "target"), [(3, 1200), (1200, 3), (0, 1), (1, 0)])
def test_files_of_unequal_length_are_rejected(tmp_path: Path, source: int, target: int) -> None:
    """At the first line that has no partner, even where it is empty."""
    (tmp_path / "de").write_bytes(b"\n" * source)
    (tmp_path / "en").write_bytes(b"\r\n" * target)
    longer, shorter = ("de", "en") if source > target else ("en", "de")
    most, least = max(source, target), min(source, target)
    message = rf"/{longer}, line {least + 1}: no such line in \S*/{shorter} \({most:,} and {least:,} lines\); expected"
    with pytest.raises(ValueError, match=message):
        corpus(tmp_path).splits()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("en", b"one\ntwo\nth\xe4\n", "/en, line 3: not UTF-8"),
        ("en.gz", gzip.compress(b"one\ntwo\n", mtime=0)[:-5], r"/en\.gz: not a complete gzip file"),
        ("en.gz", b"one\ntwo\nthree\n", r"/en\.gz: not a complete gzip file"),
    ],
)
def test_what_cannot_be_read_is_rejected(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    write(tmp_path / "de", ["eins", "zwei", "drei"])
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        corpus(tmp_path, train=["de", name]).splits()


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf"])
def test_empty_files_are_rejected(tmp_path: Path, content: bytes) -> None:
    for name in ("de", "en"):
        write(tmp_path / name, ["x"] * 10)
        (tmp_path / f"no.{name}").write_bytes(content)
    with pytest.raises(ValueError, match=r"/no\.de: no lines"):
        corpus(tmp_path, test=["no.de", "no.en"]).splits()


@pytest.mark.parametrize("key", ["train", "validation", "test"])
def test_names_of_files_are_checked_at_once(tmp_path: Path, key: str) -> None:
    for name in ("de", "en"):
        write(tmp_path / name, ["x"] * 10)
    with pytest.raises(ValueError, match=rf"^data\.{key}=fr: no such file"):
        corpus(tmp_path, **{key: ["de", "fr"]})
    for files in ([], ["de"], ["de", "en", "de"]):
        with pytest.raises(ValueError, match=rf"^data\.{key}=.*: expected two files, such as \S*\[.+,TARGET\]'"):
            corpus(tmp_path, **{key: files})


def test_rejects_shares_that_leave_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"data\.validation=0\.5 and data\.test=0\.5"):
        corpus(tmp_path, validation=0.5, test=0.5)


def test_has_texts_and_their_targets(tmp_path: Path) -> None:
    for name in ("de", "en"):
        write(tmp_path / name, ["x"] * 10)
    data = corpus(tmp_path)
    assert data.columns == ("text", "target")
    assert not data.info.is_stream
    assert data.splits().train[0] == Example("x", target="x")
    assert data.optimum("translation", "full", []) == {}
