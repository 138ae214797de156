"""What there is: experiments, studies, models and corpora, by the comments of their files."""

import re
from collections.abc import Mapping, Sequence

import yaml  # type: ignore[import-untyped]
from rich.console import Console
from rich.table import Table
from rich.text import Text

from triptych.config import ConfigError, suggestion
from triptych.config.explain import choices_of, find_choice

KINDS = {"experiments": "experiment", "studies": "study", "models": "model", "corpora": "data"}
"""What can be listed, and the groups."""
COLUMNS = {
    "experiments": ("shows", "expected", "cost"),
    "studies": ("question", "answer", "cost"),
    "models": ("what it is",),
    "corpora": ("what it is",),
}
"""After the name; of experiments and studies these are what the file calls so."""
COMMANDS = {
    "experiments": "triptych train experiment=NAME",
    "studies": "triptych study NAME",
    "models": "triptych train model=NAME ...",
    "corpora": "triptych train data=NAME ...",
}
"""What takes the names."""


def print_list(kind: str | None, word: str, arguments: Sequence[str]) -> None:
    """A table of each kind.

    Args:
        kind: one of ``KINDS``; None: all.
        word: rows without it are left out, case aside; empty: none is.
        arguments: of the command line; the user's own folder of configurations is listed, too.

    Raises:
        ConfigError: no row has the word.
    """
    kinds = [kind] if kind else list(KINDS)
    found = {each: describe(each, arguments) for each in kinds}
    kept = {
        each: {name: cells for name, cells in rows.items() if is_in(word, name, cells)} for each, rows in found.items()
    }
    if not any(kept.values()):
        names = [name for rows in found.values() for name in rows]
        raise ConfigError(f"triptych list {word}: nothing has this word{suggestion(word, names)}")
    for each, rows in kept.items():
        if rows:
            print_table(each, rows)


def is_in(word: str, name: str, cells: Sequence[str]) -> bool:
    """Whether a row has a word, case aside."""
    return word.lower() in " ".join((name, *cells)).lower()


def print_table(kind: str, rows: Mapping[str, Sequence[str]]) -> None:
    """On the terminal.

    Args:
        rows: the cells after the name, by name.
    """
    title = Text.assemble((kind, "bold"), f": {COMMANDS[kind]}")
    table = Table(title=title, title_justify="left", title_style="", show_lines=len(COLUMNS[kind]) > 1)
    table.add_column("name", no_wrap=True)
    for column in COLUMNS[kind]:
        table.add_column(column, ratio=1 if column == "cost" else 2)
    for name, cells in rows.items():
        table.add_row(Text(name), *map(Text, cells))
    Console().print(table)


def describe(kind: str, arguments: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The cells of each row, after its name.

    Args:
        kind: one of ``KINDS``.
        arguments: of the command line.
    """
    group = KINDS[kind]
    texts = {
        name: find_choice(group, name, arguments).read_text(encoding="utf-8") for name in choices_of(group, arguments)
    }
    if kind == "experiments":
        headers = {name: read_header(text) for name, text in texts.items()}
        return {name: tuple(header.get(field, "") for field in COLUMNS[kind]) for name, header in headers.items()}
    if kind == "studies":
        studies = {name: yaml.load(text, Loader=yaml.CSafeLoader) for name, text in texts.items()}
        return {name: tuple(str(study.get(field, "")) for field in COLUMNS[kind]) for name, study in studies.items()}
    return {name: (" ".join(comment_of(text)),) for name, text in texts.items()}


def comment_of(text: str) -> list[str]:
    """The lines of the comment that a file begins with, without what is for Hydra and for editors."""
    head = re.match(r"(?:#.*\n)*", text)
    lines = head[0].splitlines() if head else []
    return [line[1:].removeprefix(" ") for line in lines if not re.match("# (@package|yaml-language-server)", line)]


def read_header(text: str) -> dict[str, str]:
    """What the comment of an experiment's file says: shows, command, expected, cost."""
    fields: dict[str, str] = {}
    name = ""
    for line in comment_of(text):
        if match := re.match("(Shows|Command|Expected|Cost): (.*)", line):
            name = match[1].lower()
            fields[name] = match[2]
        elif name:
            fields[name] += f"\n{line.strip()}"
    return fields


def meaning_of_choice(group: str, choice: str, arguments: Sequence[str]) -> str:
    """The comment that the file of a choice begins with; empty: it has none."""
    return " ".join(comment_of(find_choice(group, choice, arguments).read_text(encoding="utf-8")))
