"""Builds objects from the configuration.

``build`` replaces ``hydra.utils.instantiate``. It builds only what is on an allow list, and an error names the key, the
value and the nearest valid choice.
"""
# Takes a DictConfig: the nodes are open, each typed by the class that its _target_ names.

import dataclasses
import functools
import importlib
import inspect
import math
import os
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Union

from omegaconf import DictConfig, ListConfig, OmegaConf

from triptych.config.errors import CollectedErrors, ConfigError, error_prefix, one_of, suggestion
from triptych.config.schema import ShapeConfig

ALLOWED = (
    "triptych",
    "lightning.pytorch.Trainer",
    "lightning.pytorch.trainer",
    "lightning.pytorch.callbacks",
    "lightning.pytorch.loggers",
    "lightning.pytorch.plugins",
    "lightning.pytorch.profilers",
    "lightning.pytorch.strategies",
)
"""The classes and packages that a configuration may build; the environment variable TRIPTYCH_ALLOW adds more, separated
by commas."""


def target_of(config: DictConfig, key: str) -> Any:
    """The class that ``key._target_`` names."""
    path = OmegaConf.select(config, f"{key}._target_")
    if not isinstance(path, str):
        raise ConfigError(f"{key}: expected a group choice with a _target_, got {OmegaConf.select(config, key)}")
    return class_at(f"{key}._target_", path, ALLOWED)


def class_at(key: str, path: str, allowed: Sequence[str]) -> Any:
    """The class at a path. Both the path and the module that defines the class must be allowed: an alias may lead
    elsewhere (``triptych.train.Path``), and a function could do anything.

    Args:
        key: key of the path in the configuration.
        path: dotted path of the class.
        allowed: allowed classes and packages, in addition to TRIPTYCH_ALLOW.
    """
    target = object_at(key, path, allowed)
    if not isinstance(target, type):
        raise ConfigError(f"{key}={path}: not allowed; expected a class")
    return target


def function_at(key: str, path: str, allowed: Sequence[str]) -> Any:
    """The function at a path from the command line (a file must not name one). See ``class_at``."""
    target = object_at(key, path, allowed)
    if not isinstance(target, types.FunctionType):
        raise ConfigError(f"{key}={path}: expected a function")
    return target


def object_at(key: str, path: str, allowed: Sequence[str]) -> Any:
    """The class or function at a path; see ``class_at``."""
    roots = check_allowed(key, path, allowed)
    module, _, name = path.rpartition(".")
    try:
        target = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        is_own = not f"{path}.".startswith(tuple(f"{root}." for root in allowed))
        hint = f" ({error})" if is_own else ""
        if is_own and isinstance(error, ModuleNotFoundError):
            hint += "; set PYTHONPATH to the folder of the package"
        raise ConfigError(f"{key}={path}: there is no such class or function{hint}") from None
    if isinstance(target, type | types.FunctionType):
        place = f"{target.__module__}.{target.__qualname__}"
        if not f"{place}.".startswith(roots):
            raise ConfigError(f"{key}={path} is {place}: not allowed")
    return target


def check_allowed(key: str, path: str, allowed: Sequence[str]) -> tuple[str, ...]:
    """Raises an error for a path that is not allowed, without importing it; see ``class_at``.

    Returns:
        The prefixes of allowed paths.
    """
    own = [entry.strip(" .") for entry in os.environ.get("TRIPTYCH_ALLOW", "").split(",")]
    roots = tuple(f"{root}." for root in (*allowed, *filter(None, own)))
    if not f"{path}.".startswith(roots):
        packages = ", ".join(dict.fromkeys(root.partition(".")[0] for root in allowed))
        raise ConfigError(
            f"{key}={path}: not allowed; expected a class of {packages}. To use your own classes, set the environment "
            "variables TRIPTYCH_ALLOW=PACKAGE and PYTHONPATH=FOLDER"
        )
    return roots


def build(config: DictConfig, key: str, given: Mapping[str, object] | None = None) -> Any:
    """Calls the class ``key._target_`` with the other values of the node; nested nodes are built first. If
    ``key._partial_`` is true, returns a ``functools.partial``: the stack later passes the sizes.

    Args:
        key: key of the node, for example "model.encoder".
        given: arguments that are not in the configuration.

    Raises:
        ConfigError: a setting is unknown, missing or invalid.
    """
    arguments = {**check(config, key, tuple(given or ())), **(given or {})}
    for name, value in arguments.items():
        if isinstance(value, DictConfig):
            arguments[name] = build(config, f"{key}.{name}")
    if OmegaConf.select(config, f"{key}._partial_"):
        return functools.partial(target_of(config, key), **arguments)
    with error_prefix():
        return target_of(config, key)(**arguments)


def check(config: DictConfig, key: str, given: Sequence[str] = ()) -> dict[str, object]:
    """Checks a node against the signature of ``key._target_``, without calling it.

    Args:
        given: names of arguments that are not in the configuration.

    Returns:
        The arguments in the node; nested nodes are not built yet.
    """
    target = target_of(config, key)
    node = OmegaConf.select(config, key)
    parameters = inspect.signature(target).parameters
    hints = hints_of(target)
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    is_partial = bool(OmegaConf.select(config, f"{key}._partial_"))
    named = [p for p in parameters.values() if p.kind is inspect.Parameter.KEYWORD_ONLY or not is_partial]
    settings = [p.name for p in named if p.name not in given and p.kind is not inspect.Parameter.VAR_KEYWORD]
    arguments: dict[str, object] = {}
    for name in node:
        if name in ("_target_", "_partial_"):
            continue
        if name not in settings and (not takes_any or name.startswith("_")):
            if name in parameters and name not in given:
                raise ConfigError(
                    f"{key}.{name}: an option of a part must be keyword-only; put it after a * in {target.__name__}"
                )
            raise ConfigError(f"{key}.{name}: {target.__name__} has no such setting{suggestion(name, settings)}")
        if OmegaConf.is_missing(node, name):
            raise ConfigError(f"{key}.{name} is missing: set {key}.{name}=...")
        value, hint = node[name], hints.get(name, Any)
        if isinstance(value, DictConfig) and "_target_" in value:
            check_kind(config, f"{key}.{name}", hint)
            check(config, f"{key}.{name}")
        else:
            if isinstance(value, DictConfig | ListConfig):
                value = OmegaConf.to_container(value, resolve=True)
            check_type(f"{key}.{name}", value, hint)
            check_dropout(f"{key}.{name}", value)
            if type(value) is int and float in (hint, *typing.get_args(hint)) and int not in typing.get_args(hint):
                value = float(value)  # 5 and 5.0 are the same setting
        arguments[name] = value
    for name in settings:
        if name not in arguments and parameters[name].default is inspect.Parameter.empty:
            raise ConfigError(f"{key}.{name} is missing: {target.__name__} needs it")
    return arguments


def check_kind(config: DictConfig, key: str, hint: Any) -> None:
    """Raises an error for a part of the wrong kind: ``block.position`` must build a ``Position``.

    Args:
        hint: type of the argument: what the part is called with, and what it returns.
    """
    if typing.get_origin(hint) is not Callable:
        return
    target = target_of(config, key)
    taken, made = typing.get_args(hint)
    first = next(iter(inspect.signature(target).parameters.values()), None)
    annotation = Any if first is None else hints_of(target).get(first.name, Any)
    place = f"{key}._target_={target.__module__}.{target.__qualname__}"
    if isinstance(made, type) and not issubclass(target, made):
        raise ConfigError(f"{place}: expected a {made.__name__}")
    given, wanted = (positional_names(each) for each in (target, made))
    if given is not None and not set(wanted or ()) <= {*given}:
        raise ConfigError(f"{place}({', '.join(given)}): expected ({', '.join(wanted or ())}), then options after a *")
    if isinstance(taken, list) and annotation not in (Any, taken[0]) and isinstance(annotation, type):
        raise ConfigError(f"{place}: takes {annotation.__name__} first, expected {taken[0].__name__}")


def positional_names(target: type) -> list[str] | None:
    """The parameters of a class that are not keyword-only; None: it accepts any."""
    parameters = inspect.signature(target).parameters.values()
    if any(p.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD) for p in parameters):
        return None
    return [p.name for p in parameters if p.kind is not inspect.Parameter.KEYWORD_ONLY]


def check_keys(config: DictConfig, schema: type) -> None:
    """Checks a typed node: keys added by ``+key=value``, choices, sizes and probabilities.

    Args:
        schema: dataclass of the node.
    """
    prefix = config._get_full_key("")
    fields = {field.name: field for field in dataclasses.fields(schema)}
    names, mistakes = list(fields), CollectedErrors()
    for name in map(str, config):
        with mistakes.noted():
            key = f"{prefix}.{name}".lstrip(".")
            if name not in names:
                raise ConfigError(f"{key}: there is no such key{suggestion(name, names)}")
            value: Any = None if OmegaConf.is_missing(config, name) else config[name]
            if isinstance(value, DictConfig) and (typed := OmegaConf.get_type(value)) is not dict and typed is not None:
                check_keys(value, typed)
            elif (choices := fields[name].metadata.get("choices")) and value not in (None, *choices):
                raise ConfigError(f"{key}={value}: {one_of(str(value), choices)}")
            elif schema is ShapeConfig and value is not None and value < 1:
                raise ConfigError(f"{key}={value}: expected at least 1")
            else:
                check_dropout(key, value)
    mistakes.raise_all()


def check_dropout(key: str, value: object) -> None:
    """Raises an error if a dropout is not a probability."""
    if key.endswith("dropout") and isinstance(value, int | float) and not 0 <= value < 1:
        raise ConfigError(f"{key}={value}: expected at least 0 and less than 1")


def check_type(key: str, value: object, hint: Any) -> None:
    """Checks a value against a type annotation, and that numbers are finite."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{key}={value}: expected a finite number")
    if not _fits(value, hint):
        raise ConfigError(f"{key}={spell_choices(value)}: {expected(value, hint)}")


def spell_choices(value: object) -> str:
    """A value in command-line syntax: ``[64,null]``."""
    if isinstance(value, list):
        return f"[{','.join(map(spell_choices, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else str(value)


def expected(value: object, hint: Any) -> str:
    """The part of an error message that describes the expected type or choices."""
    if choices := [*dict.fromkeys(str(choice) for choice in _choices(hint))]:
        return one_of(str(value), choices)
    example = f", such as [{value}]" if value is not None and _fits([value], hint) else ""
    kinds = ["one text" if kind == "a text" and isinstance(value, list) else kind for kind in _kinds(hint)]
    return f"expected {' or '.join(kinds)}{example}"


def describe_type(hint: Any) -> str:
    """A type annotation in plain words: its choices, or its kinds of values."""
    choices = [*dict.fromkeys(str(choice) for choice in _choices(hint))]
    if choices and _fits(None, hint):
        choices.append("null")
    return f"one of {', '.join(choices)}" if choices else " or ".join(_kinds(hint))


@functools.cache
def hints_of(target: Any) -> dict[str, Any]:
    """The type annotations of a constructor; empty if they name imports that only type checkers see."""
    try:
        owner = next(kind for kind in target.__mro__ if "__init__" in vars(kind))
        return typing.get_type_hints(target if "__dataclass_fields__" in vars(owner) else target.__init__)
    except NameError:
        return {}


def _fits(value: object, hint: Any) -> bool:
    origin = typing.get_origin(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, part) for part in typing.get_args(hint))
    if origin is Literal:
        return value in typing.get_args(hint)
    if hint is None or hint is type(None):
        return value is None
    if hint in (bool, int, float, str):  # a bool is an int for isinstance
        kind = int | float if hint is float else hint
        return isinstance(value, kind) and isinstance(value, bool) == (hint is bool)
    if origin is Callable or dataclasses.is_dataclass(hint):
        return not isinstance(value, str | int | float | list | dict)
    if origin in (list, Sequence):
        part = typing.get_args(hint)[0]
        return isinstance(value, list) and all(_fits(item, part) for item in value)
    if origin is dict:
        keys, values = typing.get_args(hint)
        return isinstance(value, dict) and all(_fits(k, keys) and _fits(v, values) for k, v in value.items())
    return True


def _kinds(hint: Any) -> list[str]:
    """A type annotation in plain words, limited to values that a configuration can hold."""
    if typing.get_origin(hint) in (Union, types.UnionType):
        kinds = [kind for part in typing.get_args(hint) for kind in _kinds(part)]
        kinds = [kind for kind in dict.fromkeys(kinds) if kind != "a whole number" or "a number" not in kinds]
        return sorted(kinds, key=lambda kind: kind == "null")  # null is the last
    if typing.get_origin(hint) in (list, Sequence):
        kinds = [f"{kind.removeprefix('a ')}s" for kind in _kinds(typing.get_args(hint)[0])]
        return [f"a list of {' and '.join(kinds)}"]
    if typing.get_origin(hint) is dict:
        return ["a mapping"]
    if typing.get_origin(hint) is Callable:
        return ["a part chosen by its config group"]
    words = {int: "a whole number", float: "a number", str: "a text", type(None): "null"}
    return [words.get(hint, str(getattr(hint, "__name__", hint)))]


def _choices(hint: Any) -> list[object]:
    if hint is bool:
        return ["true", "false"]
    if typing.get_origin(hint) is Literal:
        return list(typing.get_args(hint))
    return [choice for part in typing.get_args(hint) for choice in _choices(part)]
