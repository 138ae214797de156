"""Mistakes in overrides, answered with the key, the value, what was expected and the nearest valid choice."""

import re
from importlib.resources import files
from pathlib import Path

from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from triptych.config import ConfigError, nearest


def explain(error: BaseException, command: str) -> str | None:
    """What the user should read, in one or two lines; None if the mistake is ours.

    Args:
        error: what was raised.
        command: the sub-command; its configuration gives the valid names.
    """
    if isinstance(error, ConfigError):
        return str(error)
    if not isinstance(error, HydraException | OmegaConfBaseException):
        return None
    message = str(error)
    cause = error.__cause__
    details = str(cause) if isinstance(cause, OmegaConfBaseException) else message
    if match := re.search(r"Could not find '([^']+)'", message):
        return missing_choice(match[1])
    if match := re.search(r"Could not override '([^']+)'", message) or re.search(r"full_key: (\S+)", details):
        key = match[1]
        if "is not in struct" in details or "not in '" in details:
            return f"{key}: there is no such key{nearest_key(key, command)}"
        return f"{key}: {details.splitlines()[0]}"
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
    """The nearest valid key on the level where this one leaves the default configuration."""
    if not GlobalHydra.instance().is_initialized():
        with initialize_config_module("triptych.conf", version_base="1.3"):
            config: object = compose(command)
    else:
        config = compose(command)
    path: list[str] = []
    for part in key.split("."):
        if not isinstance(config, DictConfig) or part not in config:
            break
        path.append(part)
        config = config._get_node(part)
    if not isinstance(config, DictConfig):
        return ""
    hint = nearest(key.split(".")[len(path)], [str(name) for name in config])
    return hint.replace("did you mean ", "did you mean " + "".join(f"{part}." for part in path)) if hint else ""
