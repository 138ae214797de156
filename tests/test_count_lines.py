"""The lines of code that CONTRIBUTING.md speaks of."""

import runpy
from pathlib import Path

import pytest

CODE = '''"""A module."""

import os  # here


def function(
    a: int,
    b: str = """a text
    of two lines""",
) -> None:
    """What it does.

    And more.
    """
    # a comment
    if a: os.remove(b)


x = 1; y = 2
'''


SCRIPT = runpy.run_path(str(Path(__file__).parents[1] / "benchmarks" / "count_lines.py"))


def test_statements_code_and_docstrings() -> None:
    """Statements: the import, the head of the function, the condition with what depends on it, and the line of two
    assignments. Code: those with the lines of the head. Docstrings: one line and four, one of which is blank."""
    assert SCRIPT["count_lines"](CODE) == (4, 8, 5)


def test_a_folder_is_counted_by_package(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lines of a package and of a module at the top, and their sum."""
    for place in ("nn/__init__.py", "nn/stack.py", "train.py"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text(CODE)
    monkeypatch.setattr("sys.argv", ["count_lines.py", str(tmp_path)])
    SCRIPT["main"]()
    rows = [line.split(maxsplit=3) for line in capsys.readouterr().out.splitlines()]
    assert rows[1:4] == [
        ["8", "16", "10", "nn/"],
        ["4", "8", "5", "train.py"],
        ["12", "24", "15", "in all; 1 packages and 1 modules"],
    ]
