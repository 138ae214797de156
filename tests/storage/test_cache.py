"""Entries of the cache: what damages them, and folders that cannot be written."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triptych.storage.array_files import read_arrays, write_arrays
from triptych.storage.cache import read_entry, write_entry

ARRAYS = {"tokens": np.arange(5, dtype=np.int32), "ends": np.array([2, 5]), "none": np.empty(0, np.int32)}


@given(st.data())
def test_a_flipped_bit_is_found_or_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "entry.npz"
    write_arrays(path, ARRAYS)
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    found = read_arrays(path)
    assert found is None or found.keys() == ARRAYS.keys()
    for name, array in (found or {}).items():
        np.testing.assert_array_equal(array, ARRAYS[name])


@pytest.mark.parametrize(("place", "bit"), [(10, 1), (8, 1), (32, 64)], ids=["compression", "encryption", "comment"])
def test_a_changed_directory_is_damage(tmp_path: Path, place: int, bit: int, caplog: pytest.LogCaptureFixture) -> None:
    """Offsets in the first record of the central directory, whose content has no checksum."""
    path = tmp_path / "entry.npz"
    write_arrays(path, ARRAYS)
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x01\x02") + place] ^= bit
    path.write_bytes(content)
    assert read_arrays(path) is None
    assert "is damaged" in caplog.text


def test_a_file_system_that_is_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It refuses to mark the file as used, which only a mount could show here."""
    path = tmp_path / "entry.npz"
    write_arrays(path, ARRAYS)

    def refuse(path: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(os, "utime", refuse)
    found = read_arrays(path)
    assert found is not None
    assert found.keys() == ARRAYS.keys()


@pytest.mark.parametrize(
    "change", [("size", "sizo"), ("512", "511"), ("}", ""), ('{"size": 512, "share": 0.1}', "{}"), ("{", "[")]
)
def test_a_changed_value_is_damage(tmp_path: Path, change: tuple[str, str]) -> None:
    path = tmp_path / "entry.json"
    write_entry(path, {"size": 512, "share": 0.1})
    assert read_entry(path) == {"size": 512, "share": 0.1}
    path.rename(tmp_path / "other.json")
    assert read_entry(tmp_path / "other.json") is None  # the entry of another
    path.write_text((tmp_path / "other.json").read_text().replace(*change))
    assert read_entry(path) is None
