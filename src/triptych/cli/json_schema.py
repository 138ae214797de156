"""The JSON schema of experiments, made from the typed schema, the files of the groups, and the classes they name."""

import dataclasses
import json
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, Union

import yaml  # type: ignore[import-untyped]

from triptych.cli.completion import choices_of_fields, groups
from triptych.cli.show import described
from triptych.config import ALLOWED, PARTS, TrainConfig, class_at, hints_of
from triptych.config.diagnose import choices_of, own_folders
from triptych.config.paths import check_writable
from triptych.storage.atomic import write_text

Schema = dict[str, Any]
PLAIN = {bool: "boolean", int: "integer", float: "number", str: ["string", "number"], type(None): "null"}
REFERENCE: Schema = {"type": "string", "pattern": r"\$\{"}
"""Any value may be an interpolation of another key."""
PARTS_OF_MODELS = {
    **dict.fromkeys(("encoder", "decoder"), "model/parts"),
    **dict.fromkeys(("embedding", "source_embedding"), "model/embedding"),
    "head": "head",
}
SIGNALS = ("audio_embedding", "image_embedding")
"""Embeddings of audio and images at the root; files of model/embedding."""


def write_schema(output: Path, arguments: Sequence[str]) -> None:
    """Writes the schema, and prints how to use it in an editor.

    Args:
        output: the file.
        arguments: arguments of the command line, perhaps with --config-dir.
    """
    check_writable("--output", output)
    write_text(output, json.dumps(make_schema(arguments), indent=1) + "\n")
    print(f"{output}: add this first line to an experiment: # yaml-language-server: $schema={output}")


def make_schema(arguments: Sequence[str]) -> Schema:
    """The schema of an experiment."""
    folders = [Path(str(files("triptych.conf"))), *own_folders(arguments)]
    root = of_class(TrainConfig)
    for name, node in root["properties"].items():
        for part in PARTS if name == "block" else ():
            node["properties"][part] = of_files(folders, f"block/{part}")
        if typing.get_origin(hints_of(TrainConfig)[name]) is dict:
            root["properties"][name] = of_files(folders, "model/embedding" if name in SIGNALS else name)
    heads = root["properties"]["heads"]["properties"]
    heads |= dict.fromkeys(heads, of_files(folders, "head"))
    for part, group in PARTS_OF_MODELS.items():
        root["properties"]["model"]["properties"][part] = of_files(folders, group)
    choices = {group: choices_of(group, arguments) for group in groups(own_folders(arguments))}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "An experiment of Triptych",
        **root,
        "properties": {"defaults": of_defaults(choices), "hydra": {"type": "object"}, **root["properties"]},
    }


def of_defaults(choices: Mapping[str, Sequence[str]]) -> Schema:
    """The schema of a defaults list, from the choices of each group."""
    keys = {}
    for group, names in choices.items():
        one = {"enum": [*names, None]}
        keys[rf"^(override )?/{group}(@.*)?$"] = {"anyOf": [one, {"type": "array", "items": one}]}
    return {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "object", "patternProperties": keys}]}}


def of_files(folders: Sequence[Path], group: str) -> Schema:
    """The schema of the node of a group: all settings of any of its choices."""
    found: Schema = {"type": ["object", "null"], "properties": {}, "additionalProperties": False}
    for folder in folders:
        for file in sorted((folder / group).rglob("*.yaml")):
            content = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
            if "# @package _global_" not in file.read_text(encoding="utf-8"):
                add(found, content)
    return found


def add(found: Schema, content: Mapping[str, Any]) -> None:
    """Adds the settings of a node, and the arguments of its class."""
    properties = found["properties"]
    if "_target_" in content:
        kind = class_at("_target_", content["_target_"], ALLOWED)
        for name, schema in of_class(kind)["properties"].items():
            properties.setdefault(name, schema)
        properties |= {"_target_": {"type": "string"}, "_partial_": {"type": "boolean"}}
    for name, value in content.items():
        if name == "defaults" or name.startswith("_"):
            continue
        if isinstance(value, dict) and "_target_" in value:
            if "properties" not in properties.get(name, {}):
                properties[name] = {"type": ["object", "null"], "properties": {}, "additionalProperties": False}
            add(properties[name], value)
        else:
            properties.setdefault(name, {})


def of_class(kind: type) -> Schema:
    """The schema of the arguments of a class."""
    properties = {}
    choices = choices_of_fields(kind)
    for name, hint in hints_of(kind).items():
        if name == "return":
            continue
        schema = {"enum": [*choices[name], None]} if name in choices else of_hint(hint)
        said = next((text for base in kind.__mro__ if (text := described(base, name))), "")
        properties[name] = {**schema, **({"description": said} if said else {})}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def of_hint(hint: Any) -> Schema:
    """The schema of a type annotation."""
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return of_class(hint)
    origin = typing.get_origin(hint)
    if origin in (Union, types.UnionType):
        return {"anyOf": [of_hint(part) for part in typing.get_args(hint)]}
    if origin is Literal:
        return {"anyOf": [{"enum": list(typing.get_args(hint))}, REFERENCE]}
    if origin in (list, Sequence):
        return {"anyOf": [{"type": "array", "items": of_hint(typing.get_args(hint)[0])}, REFERENCE]}
    if origin is dict or origin is Callable:
        return {"type": ["object", "null"]}
    return {"anyOf": [{"type": PLAIN[hint]}, REFERENCE]} if hint in PLAIN else {}
