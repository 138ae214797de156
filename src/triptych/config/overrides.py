"""The overrides of the command line, and how they combine with experiments and checkpoints.

Tested by tests/launch/test_sweep.py, tests/config/test_diagnose.py and tests/planning/test_matching.py.
"""
# Takes a DictConfig: before the plan, overrides, checkpoints and matches may still set any key.

import logging
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from hydra import compose
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from triptych.config import PARTS, ConfigError, flat, target_of
from triptych.config.schema import STACKS, ShapeConfig

log = logging.getLogger("triptych")


def quote(text: str) -> str:
    """Quotes a text so that Hydra and OmegaConf read it back unchanged."""
    literal = re.sub(r"(\\*)\$\{", r"\1\1\\${", text)  # not an interpolation
    return QuotedString(literal, Quote.single).with_quotes()


def write_override(key: str, text: str) -> str:
    """``KEY=TEXT``, with quotes only if Hydra would not read the plain text unchanged."""
    plain = f"{key}={text}"
    try:
        is_plain = "${" not in text and read_value(plain) == text
    except HydraException:
        is_plain = False
    return plain if is_plain else f"{key}={quote(text)}"


def read_value(override: str) -> object:
    """The value of an override, without its quotes.

    Raises:
        HydraException: it cannot be read.
    """
    (parsed,) = OverridesParser.create().parse_overrides([override])
    return parsed.value()


def list_overridden() -> list[str]:
    """The keys and groups that the command line sets; of group@package=choice, the package."""
    names = [override.partition("=")[0].lstrip("+~") for override in HydraConfig.get().overrides.task]
    return [name.rpartition("@")[2].replace("/", ".") for name in names]


def check_chosen(overrides: Collection[str]) -> None:
    """Raises an error if the command line selects nothing to train."""
    if not {"experiment", "task"} & {override.partition("=")[0].lstrip("+") for override in overrides}:
        raise ConfigError(
            "nothing to train: set experiment=NAME, such as experiment=dates/translation, or "
            "task=... model=... data=... (triptych train --help lists them)"
        )


def is_overridden(key: str) -> bool:
    """Whether the command line sets this key, one of its parents or one of its children. (The choice model=full sets
    no key.)"""
    names = [name for name in list_overridden() if name != "model"]
    return any(f"{key}.".startswith(f"{name}.") or f"{name}.".startswith(f"{key}.") for name in names)


def check_model_choice(config: DictConfig) -> None:
    """Checks a published model that the command line combines with an experiment. The experiment's network settings
    still apply: options that differ are named in a warning, and a size that differs is an error."""
    choices = HydraConfig.get().runtime.choices
    model, experiment = choices["model"], choices["experiment"]
    if "model" not in list_overridden() or experiment is None or model == target_of(config, "model").architecture:
        return
    own = compose("train", overrides=[f"model={model}"])
    differ = {
        node: [key for key in own[node] if config[node][key] != own[node][key] and not is_overridden(f"{node}.{key}")]
        for node in ("shape", "block", "heads")
    }
    if differ["shape"] and own.shape != OmegaConf.structured(ShapeConfig()):
        of_model, of_experiment = (" ".join(f"shape.{k}={c.shape[k]}" for k in differ["shape"]) for c in (own, config))
        of_experiment = of_experiment if choices["shape"] is None else f"shape={choices['shape']}"
        raise ConfigError(
            f"experiment={experiment} and model={model} have different shapes. Set {of_model} for the model's shape, "
            f"or {of_experiment} for the experiment's"
        )
    differences = [
        f"{node}.{key}={spelled_value(config[node][key])} (model={model}: {spelled_value(own[node][key])})"
        for node in ("block", "heads")
        for key in differ[node]
    ]
    if differences:
        log.warning("experiment=%s has %s", experiment, ", ".join(differences))


def warn_of_learning_rate(config: DictConfig) -> None:
    """Warns if the learning rate of an experiment, meant for AdamW, is used by an optimizer that needs another one."""
    choices = HydraConfig.get().runtime.choices
    name, experiment = choices["optimizer"], choices["experiment"]
    overridden = list_overridden()
    if experiment is None or "optimizer" not in overridden or "optimizer.lr" in overridden:
        return
    own, adamw = (compose("train", overrides=[f"optimizer={each}"]).optimizer.lr for each in (name, "adamw"))
    if own not in (adamw, config.optimizer.lr):
        meant = f"optimizer.lr={config.optimizer.lr} of experiment={experiment} is meant for AdamW"
        log.warning("%s; the default of optimizer=%s is %s. Set optimizer.lr", meant, name, own)


def composed_with(architecture: str, overrides: Sequence[str]) -> DictConfig:
    """Composes the command line with another architecture."""
    others = [override for override in overrides if not override.startswith("model=")]
    try:
        return compose(HydraConfig.get().job.config_name, overrides=[*others, f"model={architecture}"])
    except (HydraException, OmegaConfBaseException) as error:
        said = str(error).splitlines()[0]
        raise ConfigError(f"reference={architecture}: this command does not work with it: {said}") from None


def adopt(config: DictConfig, theirs: DictConfig) -> None:
    """Copies the network settings and the tokenizer of a trained model into a configuration.

    Settings of the command line take precedence, as do those of an experiment that sets ``init_from``. If the command
    line chooses a published model, the network is that model. The head depends on the task.

    Args:
        config: configuration of this run, composed by Hydra.
        theirs: complete configuration of the trained model.
    """
    architecture, template = base_of(theirs), adopt_architecture(config, theirs)
    own = base_of(config)
    if is_overridden("tokenizer") and config.tokenizer != theirs.tokenizer:
        raise ConfigError(
            f"tokenizer: the tokenizer of init_from={config.init_from} is used. Remove the tokenizer settings"
        )
    config.tokenizer = theirs.tokenizer
    if "model" in list_overridden() and HydraConfig.get().runtime.choices["model"] != own:
        if config.shape.vocab_size is None:
            config.shape.vocab_size = theirs.shape.vocab_size
        return
    if theirs.model.embedding._target_ != config.model.embedding._target_:  # of images, or of tokens
        config.model.embedding = theirs.model.embedding
    meant = settings_of_experiment()

    def is_set(key: str) -> bool:
        return is_overridden(key) or any(f"{name}.".startswith(f"{key}.") for name in meant)

    embeddings = [OmegaConf.select(theirs, f"model.{name}") for name in ("embedding", "source_embedding")]
    signals = {"audio_embedding": "num_mels", "image_embedding": "patch_size"}  # with a key that no other has
    read = [node for node, key in signals.items() if any(part is not None and key in part for part in embeddings)]
    nodes = ("shape", "block", "heads", *read)
    settings = {f"{node}.{key}": value for node in nodes for key, value in theirs[node].items()}
    differing = differing_settings(theirs, template)
    if architecture != own:
        differing = of_other_stacks(differing, architecture, own)
    for key, value in {**settings, **differing}.items():
        own_value = OmegaConf.select(config, key)
        are_parts = isinstance(value, DictConfig) and own_value is not None
        if not is_set(key):
            OmegaConf.update(config, key, value, merge=False)
        elif are_parts and (value._target_ == own_value._target_ or not is_set(f"{key}._target_")):
            if value._target_ != own_value._target_:  # only options are set, so they belong to their part
                given = {name: own_value[name] for name in map(str, own_value) if is_set(f"{key}.{name}")}
                OmegaConf.update(config, key, OmegaConf.merge(value, given), merge=False)
                own_value = OmegaConf.select(config, key)
            for name in map(str, value):  # of the same part, the options that are not set
                if not is_set(f"{key}.{name}"):
                    own_value[name] = value[name]
                else:
                    warn_of_difference(config, f"{key}.{name}", value[name])
        else:
            warn_of_difference(config, key, value)


def adopt_architecture(config: DictConfig, theirs: DictConfig) -> DictConfig:
    """Changes a configuration to the architecture of a trained model, unless the command line chooses another.

    Returns:
        The architecture of the trained model, with unresolved references to shape, block and heads.
    """
    hydra, chosen = HydraConfig.get(), list_overridden()
    architecture, own = base_of(theirs), base_of(config)
    template: DictConfig = config.model
    if architecture == own:
        return template
    adapts = "model" in chosen  # then settings of single stacks are meant for that model
    if adapts and (has_towers(theirs) or has_towers(config)):
        raise ConfigError(f"init_from={config.init_from} is {architecture}: its weights cannot initialize model={own}")
    others = [o for o in hydra.overrides.task if not (adapts and re.match(r"[+~]*(model|.*@model\b)", o))]
    template = compose(hydra.job.config_name, overrides=[*others, f"model={architecture}"]).model
    if not adapts and "experiment" in chosen:
        raise ConfigError(
            f"init_from={config.init_from} is {architecture}, but experiment={hydra.runtime.choices['experiment']} is "
            f"{own}; add model={architecture}, or model={own} to use the weights of another architecture"
        )
    if not adapts:
        config.model = template
    return template


def has_towers(config: DictConfig) -> bool:
    """Whether the network has two towers, each with its own head."""
    return "source_head" in config.model


def base_of(config: DictConfig) -> str:
    """The choice of ``model=`` with the class of the network."""
    architecture: str = target_of(config, "model").architecture
    return f"dual_{architecture.removesuffix('_only')}" if has_towers(config) else architecture


def stack_sources(architecture: str, own: str) -> dict[str, str]:
    """For each stack of an architecture, the stack of another that initializes it: the same name, or the only one."""
    theirs = STACKS[architecture]
    return {name: name if name in theirs else theirs[0] for name in STACKS[own]}


def of_other_stacks(settings: Mapping[str, Any], architecture: str, own: str) -> dict[str, Any]:
    """Renames settings of the stacks of an architecture to those of another; see ``stack_sources``."""
    found = {key: value for key, value in settings.items() if key.startswith("model.embedding.")}
    for name, source in stack_sources(architecture, own).items():
        for key, value in settings.items():
            if key.startswith(f"model.{source}.") and not key.endswith((".causal", ".cross_attention")):
                found[f"model.{name}.{key.removeprefix(f'model.{source}.')}"] = value
    return found


def warn_of_difference(config: DictConfig, key: str, value: object) -> None:
    """Warns if the trained model had another value of a network setting, unless it is a dropout."""
    own_value = OmegaConf.select(config, key)
    if own_value != value and key.startswith(("block.", "model.")) and "dropout" not in key:
        own, their = spelled_value(own_value), spelled_value(value)
        log.warning("%s=%s, but init_from=%s was trained with %s", key, own, config.init_from, their)


def spelled_value(value: object) -> object:
    """The name of a value in a message: the class of a part or path, otherwise the value itself."""
    value = value._target_ if isinstance(value, DictConfig) else value
    return value.rpartition(".")[2] if isinstance(value, str) else value


def settings_of_experiment() -> set[str]:
    """The keys of shape, block and heads that an experiment with ``init_from`` sets, which are meant for the network of
    that checkpoint. Those of other experiments are meant for their own network."""
    choices, name = HydraConfig.get().runtime.choices, HydraConfig.get().job.config_name
    if choices["experiment"] is None:
        return set()
    own = compose(name, overrides=[f"experiment={choices['experiment']}"])
    if OmegaConf.is_missing(own, "init_from") or own.init_from is None:
        return set()
    default = compose(name, overrides=[f"{group}={choices[group]}" for group in ("model", "task", "data", "tokenizer")])
    nodes = ("shape", "block", "heads")
    was, now = (flat({node: OmegaConf.to_container(config[node]) for node in nodes}) for config in (default, own))
    return {key for key, value in now.items() if value != was.get(key)}


def differing_settings(theirs: DictConfig, model: DictConfig) -> dict[str, Any]:
    """The settings of a model that do not follow from its shape, block and heads, by key, such as
    ``model.decoder.num_layers``. The head depends on the task and is left out, except for two towers.

    Args:
        theirs: complete configuration of a trained model.
        model: the same architecture with unresolved references to shape, block and heads.
    """
    nodes = {name: theirs[name] for name in ("shape", "block", "heads")}
    template = OmegaConf.create({**nodes, "model": OmegaConf.to_container(model, resolve=False)})
    found = {}
    for part in map(str, theirs.model):
        if part == "tie_word_embeddings" or (part == "head" and not has_towers(theirs)):
            continue
        node, is_there = theirs.model[part], OmegaConf.select(template, f"model.{part}") is not None
        keys = [f"{part}.{key}" for key in map(str, node)] if isinstance(node, DictConfig) and is_there else [part]
        if part.endswith("head"):  # its other settings are those of heads
            keys = [key for key in keys if key.rpartition(".")[2] in model[part]]
        for key in (f"model.{key}" for key in keys):
            own, name = OmegaConf.select(template, key), key.rpartition(".")[2]
            if name in PARTS and own is None:
                own = theirs.block[name]
            if (value := OmegaConf.select(theirs, key)) != own:
                found[key] = value
    return found
