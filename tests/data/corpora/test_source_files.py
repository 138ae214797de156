"""Source files as a corpus."""

import logging
import platform
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from triptych.data import SourceFiles


def corpus(folder: Path | None, **options: Any) -> SourceFiles:
    settings: dict[str, Any] = {
        "include": ["*.py"], "exclude": [], "piece": 40, "validation": 0.2, "test": 0.2, "split_seed": 1,
    }  # fmt: skip
    return SourceFiles(dir=None if folder is None else str(folder), **settings | options)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    for i in range(10):
        place = tmp_path / ("deep/er" if i % 2 else "")
        (place / f"m{i}.py").write_text("".join(f"line {n} of file {i}\n" for n in range(12)))
    (tmp_path / "readme.md").write_text("no program")
    (tmp_path / "blank.py").write_text("\n \n")
    (tmp_path / "twin.py").write_text((tmp_path / "m0.py").read_text())
    return tmp_path


def test_pieces_are_whole_lines_of_files_of_one_split(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    splits = corpus(folder).splits()
    files = []
    for split in (splits.train, splits.validation, splits.test):
        by_file: dict[Path, list[str]] = {}
        for example in split:
            assert example.place is not None
            path, line = example.place
            assert path.read_text().split("\n")[int(line) - 1] == example.text.split("\n")[0]
            assert len(example.text) <= 40
            by_file.setdefault(path, []).append(example.text)
        for path, pieces in by_file.items():
            assert "\n".join(pieces) == path.read_text().rstrip("\n")
        files.append({*by_file})
    assert [len(names) for names in files] == [6, 2, 2]
    assert not files[0] & files[1] | files[0] & files[2] | files[1] & files[2]
    assert {path.name for names in files for path in names} == {f"m{i}.py" for i in range(10)}
    assert "12 files, 2 skipped because blank or duplicate" in caplog.text


def test_splits_follow_from_their_seed(folder: Path) -> None:
    assert corpus(folder).splits() == corpus(folder).splits()
    assert corpus(folder).splits() != corpus(folder, split_seed=2).splits()


def test_a_long_line_is_a_piece(tmp_path: Path) -> None:
    for i in range(5):
        (tmp_path / f"{i}.py").write_text(f"x = {i}\n{'y' * 90}\n\n\nz\n")
    pieces = [example.text for example in corpus(tmp_path).splits().train]
    assert pieces[1] == "y" * 90
    assert [piece.strip("\n") for piece in pieces[2::3]] == ["z"] * 3


def test_what_is_included(folder: Path) -> None:
    splits = corpus(folder, exclude=["deep/*"], validation=0.3, test=0.3).splits()
    assert {example.place[0].parent for example in splits.train if example.place} == {folder}


def test_two_stars_and_a_slash_mean_what_they_mean_to_pathlib(tmp_path: Path) -> None:
    """Patterns in which it makes no difference that ``*`` alone stands for folders too."""
    for path in product(["", "a", "b", "a/b", "a/b/c", "b/a", "xa"], ["a.py", "b.py", "xa.py", "a.pyx"]):
        file = tmp_path.joinpath(*path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("/".join(path))
    for pattern in ("**/*.py", "a/**/*.py", "**/a/**/*.py", "**/a.py", "a/**/b.py", "**/a/**/b.py", "**/**/xa.py"):
        splits = corpus(tmp_path, include=[pattern]).splits()
        examples = [*splits.train, *splits.validation, *splits.test]
        found = {example.place[0] for example in examples if example.place}
        assert found == {*tmp_path.glob(pattern)}, pattern


def test_each_pattern_has_its_count(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    corpus(folder, include=["**/*.py", "deep/*.py", "*.md"], exclude=["**/twin.py", "*.rs"]).splits()
    assert "data.include: **/*.py 12 files, deep/*.py 5 files, *.md 1 file" in caplog.text
    assert "data.exclude: **/twin.py 1 file, *.rs 0 files" in caplog.text
    (warning,) = (record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)
    assert warning == f"data.exclude: no file in {folder} matches *.rs"


def test_mistakes(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"data.include: no file in .* matches \*\.rs or /\*\.py$"):
        corpus(folder, include=["*.rs", "*.py", "/*.py"])
    with pytest.raises(ValueError, match=r"data.exclude: no file of data.include=\['\*\*/\*.py'\] is left"):
        corpus(folder, include=["**/*.py"], exclude=["*"])
    with pytest.raises(ValueError, match="no such folder"):
        corpus(folder / "nowhere")
    with pytest.raises(ValueError, match=r"data.piece=0: expected at least 1"):
        corpus(folder, piece=0)
    with pytest.raises(ValueError, match=r"2 files cannot fill three splits"):
        corpus(folder, include=["m0.py", "**/m1.py"]).splits()
    (folder / "m3.py").unlink(missing_ok=True)
    (folder / "bad.py").write_bytes(b"x = 1\ny = '\xe9'\n")
    with pytest.raises(ValueError, match=r"bad.py, line 2: not UTF-8 .*; to skip files, set data.exclude"):
        corpus(folder).splits()


def test_pythons_own_library() -> None:
    library = corpus(None, include=["json/*.py", "email/*.py", "ast.py"])
    assert library.info.version == f"Python {platform.python_version()}"
    splits = library.splits()
    assert any("class JSONDecoder" in example.text for split in (splits.train, splits.validation, splits.test)
               for example in split)  # fmt: skip
