"""Lists experiments, studies, models and corpora, from the comments in their files."""

import re
from collections.abc import Mapping, Sequence

import yaml  # type: ignore[import-untyped]
from hydra.core.config_store import ConfigStore
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from triptych.config import ConfigError, TrainConfig, suggestion
from triptych.config.diagnose import choices_in, choices_of, find_choice, keys_of

KINDS = {"experiments": "experiment", "studies": "study", "models": "model", "corpora": "data"}
"""The groups of what can be listed."""
COLUMNS = {
    "experiments": ("shows", "expected", "cost"),
    "studies": ("question", "answer", "runtime_note"),
    "models": ("architecture", "parameters", "what it is"),
    "corpora": ("what it is",),
}
"""Columns after the name; for experiments and studies, fields of the file."""
COMMANDS = {
    "experiments": "triptych train experiment=NAME",
    "studies": "triptych study NAME",
    "models": "triptych train model=NAME ...",
    "corpora": "triptych train data=NAME ...",
}
"""The command that uses the names."""
FIRST = (
    *("dates/translation", "dates/classification", "dates/language_modeling", "dates/tagging", "synthetic/copy"),
    *("digits/encoder_only", "captions/drawn", "tones/transcription", "shakespeare/on_a_cpu"),
    "your_text/language_modeling",
)
"""Experiments to start with."""
MOST_NAMES = 5
"""Maximum number of names of other kinds in an error message."""


def print_overview(arguments: Sequence[str]) -> None:
    """Prints the number of choices of each kind, and the experiments to start with.

    Args:
        arguments: arguments of the command line, perhaps with --config-dir.
    """
    kinds = Table(box=SIMPLE_HEAD)
    for column in ("kind", "number", "to list them", "to use one"):
        kinds.add_column(column, justify="right" if column == "number" else "left")
    for kind, group in KINDS.items():
        kinds.add_row(kind, str(len(choices_of(group, arguments))), f"triptych list {kind}", COMMANDS[kind])
    first = Table("experiments to start with", "what they show", box=SIMPLE_HEAD)
    for name in FIRST:
        shows = read_header(find_choice("experiment", name, arguments).read_text(encoding="utf-8"))["shows"]
        first.add_row(name, Text(shows.partition("\n")[0]))
    console = Console()
    console.print(kinds, first)
    console.print("All of one kind, or those with a word, with results and cost: triptych list experiments sst2")


def print_list(kind: str | None, word: str, arguments: Sequence[str]) -> None:
    """Prints a table per kind.

    Args:
        kind: one of ``KINDS``; None: all.
        word: only rows with this word are printed, in upper or lower case; empty: all rows.
        arguments: arguments of the command line, perhaps with --config-dir.
    """
    kinds, is_group = [kind] if kind else list(KINDS), bool(word and choices_of(word, arguments))
    found = {each: rows_with(word, each, arguments) for each in kinds}
    if not any(found.values()):
        names = [name for each in kinds for name in describe_choice(each, arguments)]
        place = kind or "entries"
        hint = f"; its choices: triptych show {word}" if is_group else find_elsewhere(kind, word, arguments)
        hint = hint or suggestion(word, names)
        raise ConfigError(f"triptych list {' '.join(filter(None, (kind, word)))}: no {place} contain this word{hint}")
    for each, rows in found.items():
        if rows:
            print_table(each, rows)
    if is_group:
        print(f"The choices of {word}: triptych show {word}")


def find_elsewhere(kind: str | None, word: str, arguments: Sequence[str]) -> str:
    """The rows of other kinds and the keys that contain a word; empty: none.

    Args:
        kind: one of ``KINDS``; None: all were searched.
        arguments: arguments of the command line.
    """
    others = [each for each in KINDS if each != kind] if kind else []
    there = {each: [*rows_with(word, each, arguments)] for each in others}
    ConfigStore.instance().store(name="train_schema", node=TrainConfig)
    there["keys"] = [key for key in keys_of("train", choices_in(arguments)) if word.lower() in key.lower()]
    shown = [
        f"{each}: {', '.join(names[:MOST_NAMES])}{', ...' if len(names) > MOST_NAMES else ''}"
        for each, names in there.items()
        if names
    ]
    return f"; {'; '.join(shown)}" if shown else ""


def rows_with(word: str, kind: str, arguments: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The rows of ``describe_choice`` that contain a word, in upper or lower case."""
    rows = describe_choice(kind, arguments).items()
    return {name: cells for name, cells in rows if word.lower() in " ".join((name, *cells)).lower()}


def print_table(kind: str, rows: Mapping[str, Sequence[str]]) -> None:
    """Prints a table on the terminal; ``rows`` are the cells after the name, by name."""
    title = Text.assemble((kind, "bold"), f": {COMMANDS[kind]}")
    table = Table(title=title, title_justify="left", title_style="", show_lines=kind in ("experiments", "studies"))
    table.add_column("name", no_wrap=True)
    for column in COLUMNS[kind]:
        name = column.replace("runtime_note", "cost")
        if name in ("architecture", "parameters"):
            table.add_column(name, no_wrap=True, justify="right" if name == "parameters" else "left")
        else:
            table.add_column(name, ratio=1 if name == "cost" else 2)
    family = None
    for name, cells in rows.items():
        if family not in (None, family := name.rpartition("/")[0]):
            table.add_section()
        table.add_row(Text(name), *map(Text, cells))
    Console().print(table)


def describe_choice(kind: str, arguments: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The cells of each row, by name. Models are sorted by family and size."""
    group, names = KINDS[kind], choices_of(KINDS[kind], arguments)
    texts = {name: find_choice(group, name, arguments).read_text(encoding="utf-8") for name in names}
    if kind == "experiments":
        headers = {name: read_header(text) for name, text in texts.items()}
        return {name: tuple(header.get(field, "") for field in COLUMNS[kind]) for name, header in headers.items()}
    if kind == "studies":
        studies = {name: yaml.load(text, Loader=yaml.CSafeLoader) for name, text in texts.items()}
        for study in studies.values():
            study["answer"] = " ".join(sentence["text"] for sentence in study.get("answer", []))
        return {name: tuple(str(study[field]) for field in COLUMNS[kind]) for name, study in studies.items()}
    said = {name: " ".join(comment_of(text)) for name, text in texts.items()}
    if kind == "models":
        counts = {name: re.search(r": ([\d,]+) parameters", text) for name, text in said.items()}
        sizes = {name: int(count[1].replace(",", "")) if count else 0 for name, count in counts.items()}
        shown = {name: f"{size:,}" if size else "any" for name, size in sizes.items()}
        about = {name: re.sub(r": [\d,]+ parameters", "", text) for name, text in said.items()}
        ordered = sorted(said, key=lambda name: (name.rpartition("/")[0], sizes[name], name))
        return {name: (architecture_of(name, arguments), shown[name], about[name]) for name in ordered}
    return {name: (text,) for name, text in said.items()}


def architecture_of(model: str, arguments: Sequence[str]) -> str:
    """The architecture that a model's file is based on; empty: none."""
    if "/" not in model:
        return model
    content = yaml.load(find_choice("model", model, arguments).read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    names = [name for name in content.get("defaults", []) if isinstance(name, str) and name.startswith("/model/")]
    return architecture_of(names[0].removeprefix("/model/").partition("@")[0], arguments) if names else ""


def comment_of(text: str) -> list[str]:
    """The lines of the comment at the start of a file, without those for Hydra and editors."""
    head = re.match(r"(?:#.*\n)*", text)
    lines = head[0].splitlines() if head else []
    return [line[1:].removeprefix(" ") for line in lines if not re.match("# (@package|yaml-language-server)", line)]


def read_header(text: str) -> dict[str, str]:
    """The fields in the comment of an experiment: shows, command, expected, cost."""
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
    """The comment at the start of the file of a choice; empty: none."""
    return " ".join(comment_of(find_choice(group, choice, arguments).read_text(encoding="utf-8")))
