"""Mistakes in overrides, answered with the key, the value, what was expected and the nearest valid choice."""

import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from triptych.config import ConfigError, RunError, nearest


def explain(error: BaseException, command: str) -> str | None:
    """What the user should read, in one or two lines; None if the mistake is ours.

    Args:
        error: what was raised.
        command: the sub-command; its configuration gives the valid names.
    """
    if isinstance(error, ConfigError | RunError):
        return str(error)
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
            return f"{key}: there is no such key{nearest_key(key, command)}"
        return f"{key}: {details.splitlines()[0]}"
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


def nearest_key(key: str, command: str) -> str:
    """What the user may have meant: a key that ends in the same name, a similar key, or the keys beside it."""
    if GlobalHydra.instance().is_initialized():
        config = compose(command)
    else:
        with initialize_config_module("triptych.conf", version_base="1.3"):
            config = compose(command)
    keys = list(all_keys(config))
    leaf = key.rpartition(".")[2]
    same_name = [other for other in keys if other.rpartition(".")[2] == leaf]
    if same_name:
        return f"; did you mean {same_name[0]}?"
    if hint := nearest(key, keys):
        return hint
    parent = key.rpartition(".")[0]
    beside = [other for other in keys if other.rpartition(".")[0] == parent]
    return f"; expected one of {', '.join(beside)}" if beside else ""


def all_keys(config: DictConfig, prefix: str = "") -> Iterator[str]:
    """Every key of a configuration, the nodes within before their own."""
    for name in map(str, config):
        yield prefix + name
        value = config._get_node(name)
        if isinstance(value, DictConfig) and not value._is_none() and not value._is_missing():
            yield from all_keys(value, f"{prefix}{name}.")
