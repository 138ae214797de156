"""Explains a setting: its meaning, its valid values and where it is set."""
# Takes a DictConfig: it looks up keys and classes that any file may name.

import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import yaml  # type: ignore[import-untyped]
from hydra import compose, initialize_config_module
from hydra.core.config_store import ConfigStore
from hydra.core.default_element import ResultDefault
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.table import Table
from rich.text import Text

from triptych.cli.completion import choices_of_fields, typed_node
from triptych.cli.listing import meaning_of_choice
from triptych.config import ALLOWED, ConfigError, TrainConfig, class_at, describe_type, hints_of
from triptych.config.build import spell_choices
from triptych.config.diagnose import check_key, choices_of, explain, own_folders, parse_hydra_overrides

FOREIGN_DEFAULT = re.compile(r" (?:Disabled by default|Defaults? to|Default:) ?(?:\([^)]*\)|``[^`]*``)?\.")
"""The sentence about a default in a library's docstring, where Triptych's default differs."""
TYPED = "src/triptych/config/schema.py"


@dataclass(frozen=True)
class Setting:
    """A place that sets a key.

    Attributes:
        place: file and line, or the command line.
        text: the line without its comment.
        comment: the comment of the line.
    """

    place: str
    text: str
    comment: str = ""


def print_key(key: str, arguments: Sequence[str]) -> None:
    """Prints a key or group: its value, meaning, valid values, and each place that sets it.

    Args:
        arguments: overrides of a run, perhaps with --config-dir.
    """
    group = key.partition("@")[0]
    choices = choices_of(group, arguments)
    ConfigStore.instance().store(name="train_schema", node=TrainConfig)
    if not choices:
        check_key(key, "train", arguments)
    overrides = [str(override.input_line) for override in parse_hydra_overrides(arguments)]
    folders = [f"hydra.searchpath=['file://{folder}']" for folder in own_folders(arguments)]
    try:
        with initialize_config_module("triptych.conf", version_base="1.3"):
            config = compose("train", overrides=[*overrides, *folders], return_hydra_config=True)
            loader = GlobalHydra.instance().config_loader()
            defaults = loader.compute_defaults_list("train", [*overrides, *folders], RunMode.RUN).defaults
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(explain(error, "train", arguments) or str(error)) from None
    table = Table.grid(padding=(0, 2))
    if choices:
        chosen = config.hydra.runtime.choices.get(key)
        settings = [Setting("the command line", text) for text in overrides if text.partition("=")[0] == key]
        rows = [("chosen", str(chosen) if chosen else f"none of these: {possible_values(config, key)}")]
        rows += [(choice, meaning_of_choice(group, choice, arguments)) for choice in choices]
    else:
        settings = where_set(key, config, defaults, overrides, own_folders(arguments))
        comments = [setting.comment for setting in settings if setting.comment]
        said, kinds = explain_key(config, key)
        rows = [
            ("value", value_of(config, key)),
            ("meaning", said),
            ("", comments[-1] if comments and comments[-1].rstrip(".") not in said else ""),
            ("expected", kinds),
        ]
    rows += [("set by" if i == 0 else "then by", f"{s.place}  {s.text}") for i, s in enumerate(settings)]
    for row in rows:
        if row[-1]:
            table.add_row(Text(row[0], style="bold"), Text(row[-1]))
    Console().print(Text(key, style="bold"), table)


def possible_values(config: DictConfig, group: str) -> str:
    """The settings of a group's node as overrides."""
    node = OmegaConf.to_container(config, resolve=False)
    for name in group.split("/"):
        node = node.get(name, {}) if isinstance(node, dict) else {}
    given = node.items() if isinstance(node, dict) else ()
    return " ".join(f"{group.replace('/', '.')}.{name!s}={spell_choices(value)}" for name, value in given)


def value_of(config: DictConfig, key: str) -> str:
    """The value of a key, and its interpolation if it has one."""
    parent, _, name = key.rpartition(".")
    node = OmegaConf.select(config, parent) if parent else config
    raw = OmegaConf.to_container(node, resolve=False)[name]  # type: ignore[call-overload, index]
    if isinstance(raw, dict):
        names = ", ".join(str(name) for name in raw if name not in ("_target_", "_partial_"))
        return f"{raw.get('_target_', '')}: {names}".removeprefix(": ")
    if not (isinstance(raw, str) and "${" in raw):
        return spell_choices(raw)
    try:
        value = node[name]
    except OmegaConfBaseException:  # only known when a run starts
        return raw
    return raw if isinstance(value, DictConfig) else f"{spell_choices(value)} (from {raw})"


def explain_key(config: DictConfig, key: str) -> tuple[str, str]:
    """The meaning and the valid values of a key, from the docstring and the types of its class."""
    parent, _, name = key.rpartition(".")
    owner = typed_node(parent.split(".") if parent else (), TrainConfig)
    path = OmegaConf.select(config, f"{parent}._target_") if parent else None
    if owner is None and isinstance(path, str):
        owner = class_at(f"{parent}._target_", path, (*ALLOWED, "hydra_plugins"))
    if not isinstance(owner, type):
        return "", ""
    said = next((text for kind in owner.__mro__ if (text := described(kind, name))), "")
    if choices := choices_of_fields(owner).get(name):
        return said, f"one of {', '.join(choices)}"
    kind = hints_of(owner).get(name)
    node = OmegaConf.select(config, parent) if parent else config
    is_known = not OmegaConf.is_interpolation(node, name) and not OmegaConf.is_missing(node, name)
    is_node = is_known and isinstance(node[name], DictConfig)
    return said, "" if kind is None or is_node else describe_type(kind)


def described(kind: type, name: str) -> str:
    """The description of an argument in the docstring of a class or its constructor; empty: none."""
    for doc in (kind.__doc__, vars(kind).get("__init__", kind).__doc__):
        if doc and (match := re.search(rf"^    {name}:(.*(?:\n {{8,}}.*)*)", inspect.cleandoc(doc), re.MULTILINE)):
            said = " ".join(match[1].split())
            return said if kind.__module__.startswith("triptych.") else FOREIGN_DEFAULT.sub("", said)
    return ""


def where_set(
    key: str, config: DictConfig, defaults: Sequence[ResultDefault], overrides: Sequence[str], folders: Sequence[Path]
) -> list[Setting]:
    """The places that set a key; the last one takes precedence.

    Args:
        defaults: the composed files, in order.
        overrides: overrides of the command line.
        folders: the user's config folders.
    """
    found = []
    places = [*((folder, str(folder)) for folder in folders), (Path(str(files("triptych.conf"))), "conf")]
    for default in defaults:
        package = default.package or ""
        inside = key.removeprefix(f"{package}.") if package not in ("", "_global_") else key
        if default.config_path is None or (inside == key and package not in ("", "_global_")):
            continue
        for folder, shown in places:
            file = folder / f"{default.config_path}.yaml"
            if file.is_file():
                found += find_lines(file.read_text(encoding="utf-8"), inside, f"{shown}/{default.config_path}.yaml")
                break
    found += [Setting("the command line", text) for text in overrides if text.partition("=")[0].lstrip("+") == key]
    return found or [Setting(TYPED, "")]


def find_lines(text: str, key: str, file: str) -> list[Setting]:
    """The line of a YAML file that sets a key; empty: none."""
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    line = 0
    for name in key.split("."):
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        match = next(((k, v) for k, v in pairs if k.value == name), None)
        if match is None:
            return []
        line, node = match[0].start_mark.line, match[1]
    whole = text.splitlines()[line].strip()
    end = node.end_mark if isinstance(node, yaml.ScalarNode) and node.end_mark.line == line else None
    written_there, _, comment = whole.partition(" # ")
    return [Setting(f"{file}:{line + 1}", written_there.strip() if end or not comment else whole, comment.strip())]
