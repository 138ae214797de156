"""Pages of Markdown that programs here write, each from a template beside its program with a ``{name}`` for whatever is
measured. It needs nothing but the standard library."""

from collections.abc import Iterable, Sequence
from pathlib import Path


def template_of(program: str) -> str:
    """The template of a program: ``families_page`` has ``families_page.md.txt``."""
    return Path(__file__).with_name(f"{program}.md.txt").read_text(encoding="utf-8")


def write_page(page: Path, program: str, **values: object) -> None:
    """Writes a page from the template of a program."""
    page.write_text(template_of(program).format(**values), encoding="utf-8")


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table with its head."""
    return rows([head, ["---"] * len(head), *lines])


def rows(lines: Iterable[Sequence[str]]) -> str:
    """Rows of a table."""
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
