"""Import and export of networks as Hugging Face folders: configuration and weights.

Tested by tests/interop/test_refusals.py and tests/interop/test_full_families.py.
"""
# Takes a DictConfig: creates a configuration, or reads one to change it.

import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_module
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf, ValidationError
from safetensors.torch import save_file
from torch import Tensor

from triptych.assembly.choose_parts import choose_parts
from triptych.config import ConfigError, TrainConfig, build, error_prefix, flat, join_names, nearest
from triptych.config.overrides import base_of, spelled_value
from triptych.interop.families import find_families
from triptych.interop.families.equivalences import absorb, canonical, setting_differences
from triptych.interop.families.family import CLASSIFYING, Family, HFConfig, Settings
from triptych.interop.tensors import FILE, Tensors, from_hf, read_json_object, to_hf, write_json
from triptych.nn import Network
from triptych.storage.atomic import replacing

log = logging.getLogger("triptych")

NOWHERE = ("run_dir=imported", "logger=csv")
"""Overrides for an imported network, which has no run."""

FAMILIES = find_families()


@dataclass(frozen=True, slots=True)
class ImportedNetwork:
    """A network from a folder.

    Attributes:
        network: with its weights, in evaluation mode.
        config: as for a training run, without a corpus.
        task: the task of its head.
        labels: the classes of the head, if any.
    """

    network: Network
    config: DictConfig
    task: str
    labels: tuple[str, ...]


def read_network(
    folder: str | Path, task: str | None = None, *, new_head: bool = False, families: Sequence[Family] = FAMILIES
) -> ImportedNetwork:
    """Reads the network of a folder.

    Args:
        folder: with config.json and safetensors files.
        task: the task; None: the task of its class.
        new_head: whether to initialize a missing head.
        families: supported families.

    Raises:
        ConfigError: an unsupported or incomplete folder.
    """
    place = Path(folder) / "config.json"
    config = HFConfig(read_json_object(place), str(place))
    kinds = {known.model_type: known for known in families}
    kind = str(config["model_type"])
    if kind not in kinds:
        raise ConfigError(f"{place}: model_type={kind}; expected one of {', '.join(kinds)}{nearest(kind, list(kinds))}")
    family = kinds[kind]
    task = task or family.task_of(config)
    if task not in family.classes:
        raise ConfigError(f"task={task} with {place}: expected one of {', '.join(family.classes)}")
    config.expect("quantization_config", None, [None])
    further = {name: read_further(place.parent, name, *other) for name, other in family.files.items()}
    config = HFConfig({**config.values, **further}, config.place)
    if task in CLASSIFYING:
        check_problem(config, task)
    tensors = Tensors(place.parent, family)
    labels = config.labels if task in CLASSIFYING else ()
    settings = family.settings(config, tensors)
    num_outputs = settings.get("model.head.num_outputs", len(labels) or 2)  # common space; classes; start and end
    if family.predicts_tokens(task):
        num_outputs = settings["shape.vocab_size"]
    with error_prefix(f"{place}: "):
        ours = configuration(family.model, task, settings, num_outputs)
        network: Network = build(ours, "model")
    is_tied = ours.block.tie_word_embeddings  # of the folder; with classes as outputs, the network itself ties nothing
    state = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    weights, new, left_out = from_hf(family, task, config, tensors, state, is_tied=is_tied, new_head=new_head)
    network.load_state_dict(weights, strict=False)  # the missing ones are tied, or a new head
    for names, what in ((new, "new"), (left_out, "left out, since they belong to another head")):
        if names:
            log.warning("%s: %s tensors are %s: %s", folder, len(names), what, join_names(names))
    return ImportedNetwork(network.eval(), ours, task, labels)


def check_problem(config: HFConfig, task: str) -> None:
    """Checks that a classifier predicts exactly one of several classes.

    Raises:
        ConfigError: regression, or several classes per text.
    """
    kind = config.get("problem_type", None)
    if kind == "regression" or (kind is None and task == "classification" and len(config.labels) == 1):
        said = "problem_type=regression" if kind else f"one label {config.labels[0]!r} means regression"
        raise ConfigError(f"{config.place}: {said}, which is not supported; expected at least two classes (id2label)")
    if kind not in (None, "single_label_classification"):
        raise ConfigError(
            f"{config.place}: problem_type={kind} is not supported; expected single_label_classification, one class "
            "for each text"
        )
    if task == "classification" and len(config.labels) == 1:
        raise ConfigError(f"{config.place}: the only label is {config.labels[0]!r}; expected at least two classes")


def read_further(folder: Path, name: str, other: str, key: str) -> Mapping[str, Any]:
    """The content of another file of a folder; see ``Family.files``."""
    file, others = folder / f"{name}.json", folder / f"{other}.json"
    if not file.is_file() and others.is_file():
        return HFConfig(read_json_object(others), str(others)).part(key).values
    return read_json_object(file)


def write_network(
    folder: Path,
    network: Network,
    config: DictConfig,
    task: str,
    *,
    labels: Sequence[str] = (),
    special: Mapping[str, int] | None = None,
    families: Sequence[Family] = FAMILIES,
) -> Family:
    """Writes config.json and model.safetensors of the family that matches this network exactly.

    Args:
        folder: created if needed.
        config: the complete configuration of the network.
        task: that it was trained for.
        labels: the classes of its head, if any.
        special: more content of config.json, such as pad_token_id.
        families: supported families.

    Raises:
        ConfigError: no family matches; lists the obstacles in the closest family.
    """
    family, values, state, is_tied = find_family(network, config, task, special or {}, families)
    content: dict[str, Any] = {
        "model_type": family.model_type,
        "architectures": [family.classes[task]],
        "dtype": "float32",
        **values,
    }
    if labels:
        content["id2label"] = dict(enumerate(labels))
        content["label2id"] = {label: i for i, label in enumerate(labels)}
    tensors = to_hf(family, task, HFConfig(content, "config.json"), state, is_tied=is_tied)
    folder.mkdir(parents=True, exist_ok=True)
    for name in family.files:
        write_json(folder / f"{name}.json", content.pop(name))
    write_json(folder / "config.json", content)
    with replacing(folder / FILE) as temporary:
        save_file(tensors, str(temporary), metadata={"format": "pt"})
        shutil.copymode(folder / "config.json", temporary)  # safetensors restricts the file to its owner
    return family


def find_family(
    network: Network, config: DictConfig, task: str, special: Mapping[str, int], families: Sequence[Family]
) -> tuple[Family, dict[str, Any], dict[str, Tensor], bool]:
    """Finds the family that matches this network exactly; see ``write_network``. Returns it with its configuration, the
    weights by our names, and whether the output is tied.

    Raises:
        ConfigError: no family matches; lists the obstacles in the closest family.
    """
    model = flat(OmegaConf.to_container(config.model, resolve=True))
    mine, num_outputs = canonical(model), config.model.head.num_outputs
    architecture = network.architecture
    fitting: list[tuple[int, Family, dict[str, Any], dict[str, Tensor], bool]] = []
    others: list[tuple[int, str]] = []
    for family in families:
        reads_alike = family.embedding == model["embedding._target_"]
        if family.architecture != architecture or not reads_alike or task not in family.classes:
            continue
        try:
            values = {**special} | family.config(model)
        except ConfigError as error:
            others.append((1, f"the nearest, {family.model_type}, has no such configuration: {error}"))
            continue
        values |= {part: {**special, **values[part]} for part in family.parts}
        settings = family.settings(HFConfig(values, "config.json"), {})
        theirs = configuration(family.model, task, settings, num_outputs)
        other = canonical(flat(OmegaConf.to_container(theirs.model, resolve=True)))
        weights = {**network.state_dict(), **dict(network.named_buffers())}
        state = {name: tensor.detach().to("cpu", torch.float32) for name, tensor in weights.items()}
        differing = setting_differences(mine, other)
        obstacles = [
            f"model.{key}={spelled_value(differing[key][0])} (expected {spelled_value(differing[key][1])})"
            for key in absorb(state, mine, other)
        ]
        obstacles += [
            f"{key}={value} (expected {values[key]})" for key, value in special.items() if values[key] != value
        ]
        if obstacles:
            others.append((len(obstacles), f"the nearest, {family.model_type}, differs in {'; '.join(obstacles)}"))
        else:
            fitting.append((len(differing), family, values, state, bool(other["tie_word_embeddings"])))
    if not fitting:
        why = min(others)[1] if others else f"none has a head for task={task} with these inputs"
        raise ConfigError(f"no published family matches this network (model={base_of(config)}): {why}")
    return min(fitting, key=lambda candidate: candidate[0])[1:]


def configuration(model: str, task: str, settings: Settings, num_outputs: int) -> DictConfig:
    """The configuration of a training run of such a network.

    Args:
        model: encoder_only, decoder_only, full or dual_decoder.
        settings: by dotted key, or by group.

    Raises:
        ConfigError: a setting of another type.
    """
    choices = tuple(f"{key}={value}" for key, value in settings.items() if "/" in key or "@" in key)
    config = defaults(model, task, choices).copy()
    for key, value in settings.items():
        if "/" in key or "@" in key:
            continue
        if isinstance(value, str) and not isinstance(OmegaConf.select(config, key), str):  # it would be converted
            raise ConfigError(f"{key}={value!r}: expected a number, not a text")
        try:
            OmegaConf.update(config, key, value, merge=False)
        except ValidationError as error:
            raise ConfigError(f"{key}={value}: {str(error).splitlines()[0]}") from None
    config.model.head.num_outputs = num_outputs
    choose_parts(config)
    return config


@cache
def defaults(model: str, task: str, choices: tuple[str, ...]) -> DictConfig:
    """The project's configuration, without a corpus, and with some choices of parts."""
    ConfigStore.instance().store(name="train_schema", node=TrainConfig)
    with initialize_config_module("triptych.conf", version_base="1.3"):
        config = compose("train", overrides=[f"model={model}", f"task={task}", *choices, *NOWHERE])
    config.data = {}
    return config
