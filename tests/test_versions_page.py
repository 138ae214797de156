"""The page of what was run with which Python and torch, and what pyproject.toml promises by it."""

import re
import shutil
import tomllib
from pathlib import Path

from versions_page import COLUMNS, ROOT, ROW, write_row

PAGE = ROOT / "docs" / "versions.md"
ROWS = [dict(zip(COLUMNS, row[0].strip("| ").split(" | "), strict=True)) for row in ROW.finditer(PAGE.read_text())]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_what_is_promised_has_passed() -> None:
    passed = [row for row in ROWS if row["failed"] == row["skipped"] == "0"]
    classifiers = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert classifiers == sorted({row["Python"].rpartition(".")[0] for row in passed}, key=lambda v: int(v[2:]))
    assert PROJECT["requires-python"] == f">={classifiers[0]}"
    (oldest,) = (re.match(r"torch>=([\d.]+)$", library) for library in PROJECT["dependencies"] if "torch>" in library)
    assert oldest is not None
    assert any(row["torch"].startswith(f"{oldest[1]}.") for row in passed)


def test_a_row_takes_its_place(tmp_path: Path) -> None:
    """The page is as its template writes it; a row that was run anew stands once, and 2.9 before 2.11."""
    page = tmp_path / "page.md"
    shutil.copy(PAGE, page)
    write_row(page, tuple(ROWS[0].values()))
    assert page.read_text() == PAGE.read_text()
    write_row(page, (ROWS[-1]["Python"], "2.9.0+cpu", "1", "2", "3", "0.2.0", "2026-11-24"))
    last = [found[2] for found in ROW.finditer(page.read_text()) if found[1] == ROWS[-1]["Python"]]
    assert last == ["2.9.0+cpu", *[row["torch"] for row in ROWS if row["Python"] == ROWS[-1]["Python"]]]
