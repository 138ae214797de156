"""Files that are there as a whole or not at all."""

from pathlib import Path

import pytest

from triptych.config import RunError
from triptych.storage.atomic import link, remove_leftovers, replacing, write_text


def test_replaces_the_whole(tmp_path: Path) -> None:
    write_text(tmp_path / "a", "old and long")
    write_text(tmp_path / "a", "new")
    assert (tmp_path / "a").read_text() == "new"
    assert [f.name for f in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, KeyError])
def test_what_fails_in_the_middle_leaves_what_was_there(error: type[BaseException], tmp_path: Path) -> None:
    write_text(tmp_path / "a", "old")

    def fail(temporary: Path) -> None:
        temporary.write_text("half")
        raise error

    with pytest.raises(error), replacing(tmp_path / "a") as temporary:
        fail(temporary)
    assert (tmp_path / "a").read_text() == "old"
    assert [f.name for f in tmp_path.iterdir()] == ["a"]


def test_two_may_write_the_same_file_at_once(tmp_path: Path) -> None:
    with replacing(tmp_path / "a") as first:
        first.write_text("first")
        with replacing(tmp_path / "a") as second:
            second.write_text("second")
        assert (tmp_path / "a").read_text() == "second"
    assert (tmp_path / "a").read_text() == "first"
    assert [f.name for f in tmp_path.iterdir()] == ["a"]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"nowhere/a cannot be written .No such file or directory"):
        write_text(tmp_path / "nowhere" / "a", "text")


def test_link_is_the_same_file_and_replaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("first")
    (tmp_path / "b").write_text("second")
    link(tmp_path / "a", tmp_path / "last")
    link(tmp_path / "b", tmp_path / "last")
    link(tmp_path / "b", tmp_path / "last")
    assert sorted(f.name for f in tmp_path.iterdir()) == ["a", "b", "last"]
    assert (tmp_path / "last").samefile(tmp_path / "b")
    (tmp_path / "b").unlink()
    assert (tmp_path / "last").read_text() == "second"

    def refuse(source: Path, target: Path) -> None:
        raise OSError("a file system without links")

    monkeypatch.setattr("os.link", refuse)
    link(tmp_path / "a", tmp_path / "last")
    assert (tmp_path / "last").read_text() == "first"


def test_leftovers_go_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    for name in (".a.ckpt.0a1b2c3d.tmp", "a.ckpt", ".lock", "below/.b.0a1b2c3d.tmp", "below/b"):
        (tmp_path / name).touch()
    remove_leftovers(tmp_path, of="b")
    assert sorted(f.name for f in tmp_path.rglob("*")) == [".a.ckpt.0a1b2c3d.tmp", ".lock", "a.ckpt", "b", "below"]
    remove_leftovers(tmp_path)
    assert sorted(f.name for f in tmp_path.rglob("*")) == [".lock", "a.ckpt", "b", "below"]
