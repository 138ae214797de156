"""Mistakes in overrides, answered with the key, the value, what was expected and the nearest valid choice."""

import difflib
import re
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path

from hydra import compose, initialize_config_module
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from triptych.config import ConfigError, RunError, nearest


def explain(error: BaseException, command: str, arguments: Sequence[str]) -> str | None:
    """What the user should read, in one or two lines; None if the mistake is ours.

    Args:
        error: what was raised.
        command: the sub-command; its configuration gives the valid names.
        arguments: of the command line; the groups that they choose have keys of their own.
    """
    if isinstance(error, ConfigError | RunError):
        return str(error)
    if isinstance(error.__cause__, ConfigError):  # of what Hydra builds
        return str(error.__cause__)
    if isinstance(error, FileExistsError | NotADirectoryError | PermissionError):
        return f"{error.filename}: {error.strerror}"
    if not isinstance(error, HydraException | OmegaConfBaseException):
        return None
    message = str(error)
    cause = error.__cause__
    details = str(cause) if isinstance(cause, OmegaConfBaseException) else message
    if match := re.search(r"Could not (?:find|load) '([^']+)'", message):
        return missing_choice(match[1])
    if match := re.search(r"Could not override '([^']+)'", message) or re.search(r"full_key: (\S+)", details):
        key = match[1]
        if "is not in struct" in details or "not in '" in details:
            return f"{key}: there is no such key{nearest_key(key, command, arguments)}"
        return f"{key}: {details.splitlines()[0]}"
    if "does not support sweep type" in message:
        if command == "doctor":
            return (
                "an interval is searched, and doctor looks at one training: give one value of it, or a list (key=a,b,c)"
            )
        return "an interval is searched: add hydra/sweeper=optuna, or list values (key=a,b,c)"
    if "requires --multirun" in message:
        return f"{message.splitlines()[0].replace('--multirun', '-m')}"
    if "Ambiguous value for argument" in message:
        return f"{message.splitlines()[0]} Several values make a sweep, which needs -m."
    if message.startswith(("no viable alternative", "mismatched input", "extraneous input", "token recognition")):
        return f"{message.splitlines()[0]} (an override is key=value without blanks; lists in quotes: 'key=[a,b]')"
    return message.splitlines()[0] if "\n" not in message.strip() else " ".join(message.split("\n")[:2])


def missing_choice(path: str) -> str:
    """A group has no such choice: names the nearest, and those that there are.

    Args:
        path: group and choice, for instance "model/ful"; a choice may have parts of its own, as experiments do.
    """
    group, _, choice = path.partition("/")
    folder = Path(str(files("triptych.conf"))) / group
    choices = sorted(file.relative_to(folder).with_suffix("").as_posix() for file in folder.rglob("*.yaml"))
    choices = [choice for choice in choices if not choice.startswith("parts/")]
    if not choices:
        return f"{group}: there is no such group"
    return f"{group}={choice}: there is no such choice{nearest(choice, choices)}; expected one of {', '.join(choices)}"


def nearest_key(key: str, command: str, arguments: Sequence[str]) -> str:
    """What the user may have meant: the key of that name in another place, a similar name, or the keys beside it."""
    with initialize_config_module("triptych.conf", version_base="1.3"):
        try:
            config = compose(command, overrides=choices_in(arguments), return_hydra_config=key.startswith("hydra."))
        except (HydraException, OmegaConfBaseException):  # the mistake is in a file that they choose
            config = compose(command)
    keys = [other for other in all_keys(config) if other != key]
    leaf, parent = leaf_of(key), key.rpartition(".")[0]
    beside = [other for other in keys if other.rpartition(".")[0] == parent]
    for candidates, likeness in ((keys, 1), (beside, 0.6), (keys, 0.8)):
        names = difflib.get_close_matches(leaf, {leaf_of(other) for other in candidates}, cutoff=likeness)
        if like := [other for other in candidates if leaf_of(other) in names]:
            return f"; did you mean {max(like, key=lambda o: difflib.SequenceMatcher(None, key, o).ratio())}?"
    while parent and not beside:
        parent = parent.rpartition(".")[0]
        beside = [other for other in keys if other.rpartition(".")[0] == parent]
    return f"; expected one of {', '.join(beside)}"


def leaf_of(key: str) -> str:
    """The last name of a key."""
    return key.rpartition(".")[2]


def choices_in(arguments: Sequence[str]) -> list[str]:
    """The overrides that choose groups, and the user's folder of configurations; of a sweep, its first values."""
    folder = Path(str(files("triptych.conf")))
    overrides = OverridesParser.create().parse_overrides([a for a in arguments if "=" in a and not a.startswith("-")])
    chosen = [override for override in overrides if (folder / override.key_or_group).is_dir()]
    lines = [
        f"{override.key_or_group}={next(iter(override.sweep_string_iterator()))}"
        if override.is_sweep_override()
        else str(override.input_line)
        for override in chosen
    ]
    for previous, argument in zip(["", *arguments], arguments, strict=False):
        name, _, value = argument.partition("=")
        if (value and name in ("--config-dir", "-cd")) or previous in ("--config-dir", "-cd"):
            lines.append(f"hydra.searchpath=['file://{Path(value or argument).absolute()}']")
    return lines


def all_keys(config: DictConfig, prefix: str = "") -> Iterator[str]:
    """Every key of a configuration that a user may set, the nodes within before their own."""
    for name in map(str, config):
        if name == "_target_":
            continue
        yield prefix + name
        value = config._get_node(name)
        if isinstance(value, DictConfig) and not value._is_none() and not value._is_missing():
            yield from all_keys(value, f"{prefix}{name}.")
