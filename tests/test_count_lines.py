"""The lines of code that CONTRIBUTING.md speaks of."""

import runpy
from pathlib import Path

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


def test_statements_count_once_and_documentation_never() -> None:
    """The import, the head of the function, the condition with what depends on it, and the line of two assignments."""
    script = runpy.run_path(str(Path(__file__).parents[1] / "benchmarks" / "count_lines.py"))
    assert script["lines_of_code"](CODE) == 4
