"""Writes the pages of the configuration: every group, choice and key, from the files of conf and the docstrings of what
they build."""

import dataclasses
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import yaml
from hydra.utils import get_class

from triptych.config.schema import (
    BatchConfig,
    BlockConfig,
    DoctorConfig,
    EvaluateConfig,
    HeadsConfig,
    PredictConfig,
    ShapeConfig,
    TrainConfig,
)

VERBATIM = ("debug", "experiment", "model", "shape", "study")
"""Groups whose files are overrides of other groups: the pages show them as they are."""
SLASHED = ("data", "experiment", "model", "shape")
"""Groups whose folders are parts of a choice's name: `model=bert/base`."""
PLACES = {"head": "heads.tokens"}
"""Where a group is in the configuration, if not under its own name."""
ROOTS: dict[str, dict[str, type]] = {
    "train": {
        "": TrainConfig,
        "shape.": ShapeConfig,
        "block.": BlockConfig,
        "heads.": HeadsConfig,
        "batch.": BatchConfig,
    },
    "doctor": {"": DoctorConfig},
    "evaluate": {"": EvaluateConfig},
    "predict": {"": PredictConfig},
}
NOT_KEYS = ("defaults", "_target_", "_partial_", "_convert_")

Row = tuple[str, str, str]
"""A key, its value as YAML, and what it means."""


def meanings(built: type) -> dict[str, str]:
    """What the docstrings of a class, and of those that it extends, say of its arguments."""
    found: dict[str, str] = {}
    for docstring in [doc or "" for cls in built.__mro__[:-1] for doc in (cls.__doc__, cls.__init__.__doc__)]:
        for section in re.split(r"^(?:Args|Attributes):$", inspect.cleandoc(docstring), flags=re.M)[1:]:
            section = re.split(r"^\S", section, maxsplit=1, flags=re.M)[0]
            for name, text in re.findall(r"^ {4}(\w+): *((?:.|\n {5,}|\n\n {5,})+)", section, re.M):
                found.setdefault(name, " ".join(text.split("\n\n")[0].split()))
    return found


def rows_of(node: yaml.MappingNode, lines: list[str], prefix: str, inherited: dict[str, str]) -> Iterator[Row]:
    """The keys below a node of a file.

    Args:
        lines: of the file.
        prefix: of the keys.
        inherited: what keys mean of which the file says nothing.
    """
    values = {key.value: value for key, value in node.value}
    arguments = meanings(get_class(values["_target_"].value)) if "_target_" in values else {}
    for key, value in node.value:
        if key.value in NOT_KEYS:
            continue
        name = prefix + key.value
        comment = lines[key.start_mark.line].partition(" # ")[2]
        meaning = comment or arguments.get(key.value, "") or inherited.get(name, "")
        if isinstance(value, yaml.MappingNode) and value.value:
            if meaning:
                yield name, "", meaning
            yield from rows_of(value, lines, name + ".", inherited)
        else:
            begin, end = value.start_mark, value.end_mark
            text = "\n".join(lines[begin.line : end.line + 1])
            last = len(text) - len(lines[end.line]) + end.column if end.line < len(lines) else len(text)
            yield name, " ".join(text[begin.column : last].split()), meaning


def prose(text: str) -> str:
    """A comment or a docstring as Markdown."""
    return re.sub(r"([<*$\[])", r"\\\1", text.replace("``", "`").replace("|", r"\|"))


def table(rows: list[Row]) -> str:
    """Keys, defaults and meanings.

    Raises:
        ValueError: a key of which nobody says what it is.
    """
    for key, _, says in rows:
        if not says:
            raise ValueError(f"{key}: neither its line in conf nor the docstring of its class says what it is")
    code = [(f"`{key}`", f"`{value}`".replace("|", r"\|") if value else "", prose(says)) for key, value, says in rows]
    lines = [f"| {key} | {value} | {says} |" for key, value, says in code]
    return "\n".join(["| key | default | what it is |", "|---|---|---|", *lines, ""])


def describe(file: Path, group: str, inherited: dict[str, dict[str, str]]) -> str:
    """A choice of a group: what its file says at the top, then its keys.

    Args:
        group: as it is chosen: `block/position`, `experiment`.
        inherited: what the keys of each choice mean; that of this one is added.
    """
    text = file.read_text(encoding="utf-8")
    header = re.match(r"(?:#.*\n)*", text)[0]  # type: ignore[index]
    comment = [line.removeprefix("#").removeprefix(" ") for line in header.splitlines() if "@package" not in line]
    said = "\n".join(comment)
    if group.split("/")[0] in VERBATIM:
        body = "\n\n".join(
            part for part in (header.replace("# @package _global_\n", "").strip(), text[len(header) :]) if part
        )
        return f"```yaml\n{body.strip()}\n```\n"
    node = yaml.compose(text)
    top = {key.value: value for key, value in node.value} if node else {}
    entries = top["defaults"].value if "defaults" in top else []
    parents = [v.value for v in entries if isinstance(v, yaml.ScalarNode) and v.value != "_self_"]
    known = {key: says for parent in parents for key, says in inherited.get(parent, {}).items()}
    package = PLACES.get(group, group.split("/")[0] if "@package" in header else group.replace("/", "."))
    rows = list(rows_of(node, text.splitlines(), package + ".", known)) if node else []
    inherited[file.stem] = known | {key: says for key, _, says in rows}
    parts = [prose(said)]
    if "_target_" in top:
        parts.append(f"Builds {{py:class}}`{top['_target_'].value}`.")
    if parents:
        parts.append(
            f"As `{'`, `'.join(parents)}`{', but for' if rows else ''}:".replace("`:", "`." if not rows else "`:")
        )
    return "\n\n".join([part for part in parts if part] + ([table(rows)] if rows else [])) + "\n"


def by_parents(file: Path) -> tuple[int, str]:
    """The order of the choices of a group: what others are like comes before them."""
    parent = re.search(r"^defaults:\n  - ([\w.-]+)$", file.read_text(encoding="utf-8"), re.M)
    above = file.with_name(f"{parent[1]}.yaml") if parent else file
    return (by_parents(above)[0] + 1 if above != file and above.exists() else 0), file.stem


def group_page(folder: Path) -> str:
    """A group, and the groups below it."""
    parts = [f"# `{folder.name}`\n"]
    for below in (folder, *sorted(path for path in folder.rglob("*") if path.is_dir())):
        group, level = below.relative_to(folder.parent).as_posix(), "##"
        files = sorted(below.glob("*.yaml"), key=by_parents)
        if not files or group in ("hydra/help", "hydra/job_logging"):
            continue
        if below != folder and folder.name not in SLASHED:
            parts.append(f"## `{group}`\n")
            level = "###"
        inherited: dict[str, dict[str, str]] = {}
        for file in files:
            choice = file.relative_to(folder if folder.name in SLASHED else below).with_suffix("").as_posix()
            name = f"{folder.name if folder.name in SLASHED else group}={choice}"
            parts += [f"{level} `{name}`\n", describe(file, group, inherited)]
    return "\n".join(parts)


def root_page(file: Path) -> str:
    """The keys of a command that belong to no group.

    Args:
        file: of conf.
    """
    parts = [f"# `triptych {file.stem}`\n\nThe keys that are in no group.\n"]
    lines = file.read_text(encoding="utf-8").splitlines()
    set_here = {key: (value, says) for key, value, says in rows_of(yaml.compose("\n".join(lines)), lines, "", {})}
    for prefix, schema in ROOTS[file.stem].items():
        says = meanings(schema)
        rows = []
        for field in dataclasses.fields(schema):
            if "dict" not in str(field.type) and field.default is not dataclasses.MISSING:
                value, comment = set_here.get(prefix + field.name, (yaml.safe_dump(field.default).split("\n")[0], ""))
                rows.append((prefix + field.name, value, says.get(field.name, comment)))
        if rows:
            parts += [f"## `{prefix.strip('.')}`\n" if prefix else "", table(rows)]
    return "\n".join(parts)


def write_pages(project: Path) -> None:
    """Writes docs/configuration; files that stay as they are keep their time."""
    folders = sorted(path for path in (project / "conf").iterdir() if path.is_dir() and any(path.rglob("*.yaml")))
    pages = {command: root_page(project / f"conf/{command}.yaml") for command in ROOTS}
    pages |= {folder.name: group_page(folder) for folder in folders}
    names = "\n".join(pages)
    pages["index"] = INDEX + f"\n```{{toctree}}\n:maxdepth: 1\n\n{names}\n```\n"
    target = project / "docs/configuration"
    target.mkdir(exist_ok=True)
    for old in target.glob("*.md"):
        if old.stem not in pages:
            old.unlink()
    for name, text in pages.items():
        file = target / f"{name}.md"
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")


INDEX = """\
# Configuration

Every group, its choices and their keys, as the files of `conf` have them. `GROUP=CHOICE` on the command line takes a
choice (`model=decoder_only`, `block/position=rotary`), `KEY=VALUE` sets a key (`block.position.theta=5e5`).
`triptych train --help` explains the keys that one changes most often, and `triptych train experiment=... --cfg job`
prints every key with the value that it would have.
"""
