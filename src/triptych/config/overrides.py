"""What the command line chooses, beside what the files say that it names."""
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

from triptych.config import PARTS, ConfigError, Shape, flat, target_of
from triptych.config.schema import STACKS

log = logging.getLogger("triptych")


def quote(text: str) -> str:
    """A text in quotes, from which Hydra and OmegaConf read it back unchanged."""
    literal = re.sub(r"(\\*)\$\{", r"\1\1\\${", text)  # not an interpolation
    return QuotedString(literal, Quote.single).with_quotes()


def write_override(key: str, text: str) -> str:
    """``KEY=TEXT``, with quotes only where Hydra would read anything else than the text."""
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
            "nothing to train is chosen: give experiment=NAME, such as experiment=dates/translation, or "
            "task=... model=... data=... (triptych train --help lists them)"
        )


def is_overridden(key: str) -> bool:
    """Whether the command line sets this key, a node around it or a part of it; model=full, a choice, sets none."""
    names = [name for name in list_overridden() if name != "model"]
    return any(f"{key}.".startswith(f"{name}.") or f"{name}.".startswith(f"{key}.") for name in names)


def check_model_choice(config: DictConfig) -> None:
    """Looks whether the command line puts a published model in the place of an experiment's. What the experiment says
    of the network still holds then: its options are named in a warning, and another size than the model's is refused.
    """
    choices = HydraConfig.get().runtime.choices
    model, experiment = choices["model"], choices["experiment"]
    if "model" not in list_overridden() or experiment is None or model == target_of(config, "model").architecture:
        return
    own = compose("train", overrides=[f"model={model}"])
    differ = {
        node: [key for key in own[node] if config[node][key] != own[node][key] and not is_overridden(f"{node}.{key}")]
        for node in ("shape", "block", "heads")
    }
    if differ["shape"] and own.shape != OmegaConf.structured(Shape()):
        of_model, of_experiment = (" ".join(f"shape.{k}={c.shape[k]}" for k in differ["shape"]) for c in (own, config))
        of_experiment = of_experiment if choices["shape"] is None else f"shape={choices['shape']}"
        raise ConfigError(
            f"experiment={experiment} has another shape than model={model}: for the model's give {of_model}, "
            f"for the experiment's {of_experiment}"
        )
    differences = [
        f"{node}.{key}={name_of(config[node][key])} (model={model}: {name_of(own[node][key])})"
        for node in ("block", "heads")
        for key in differ[node]
    ]
    if differences:
        log.warning("experiment=%s has %s", experiment, ", ".join(differences))


def warn_of_learning_rate(config: DictConfig) -> None:
    """Says that the learning rate of an experiment, which is meant for AdamW, is now that of an optimizer whose steps
    have another size."""
    choices = HydraConfig.get().runtime.choices
    name, experiment = choices["optimizer"], choices["experiment"]
    overridden = list_overridden()
    if experiment is None or "optimizer" not in overridden or "optimizer.lr" in overridden:
        return
    own, adamw = (compose("train", overrides=[f"optimizer={each}"]).optimizer.lr for each in (name, "adamw"))
    if own not in (adamw, config.optimizer.lr):
        log.warning(
            "optimizer.lr=%s is that of experiment=%s, for AdamW; optimizer=%s begins with %s: give optimizer.lr=...",
            config.optimizer.lr,
            experiment,
            name,
            own,
        )


def composed_with(architecture: str, overrides: Sequence[str]) -> DictConfig:
    """What a command line would be with another architecture.

    Args:
        architecture: one of ``ARCHITECTURES``.
    """
    others = [override for override in overrides if not override.startswith("model=")]
    try:
        return compose(HydraConfig.get().job.config_name, overrides=[*others, f"model={architecture}"])
    except (HydraException, OmegaConfBaseException) as error:
        said = str(error).splitlines()[0]
        raise ConfigError(f"reference={architecture}: this command does not fit model={architecture}: {said}") from None


def adopt(config: DictConfig, theirs: DictConfig) -> None:
    """Puts the network of a trained model and its tokenizer into a configuration, where the command line says nothing
    else, nor an experiment that begins with a checkpoint itself; with a published model, the network is that one. The
    head is left to the task.

    Args:
        config: of this run, as Hydra has composed it.
        theirs: the complete configuration of the trained model.
    """
    init_from, choices = config.init_from, HydraConfig.get().runtime.choices
    architecture, own = base_of(theirs), base_of(config)
    template = config.model
    if architecture != own:
        adapts = "model" in list_overridden()  # then settings of single stacks are meant for that model
        if adapts and (has_towers(theirs) or has_towers(config)):
            raise ConfigError(f"init_from={init_from} is {architecture}; model={own} cannot begin with its weights")
        others = [
            o for o in HydraConfig.get().overrides.task if not (adapts and re.match(r"[+~]*(model|.*@model\b)", o))
        ]
        overrides = [*others, f"model={architecture}"]
        template = compose(HydraConfig.get().job.config_name, overrides=overrides).model
        if not adapts:
            if "experiment" in list_overridden():
                raise ConfigError(
                    f"init_from={init_from} is {architecture}, but experiment={choices['experiment']} is {own}; add "
                    f"model={architecture}, or model={own} to begin with the weights of another architecture"
                )
            config.model, own = template, architecture
    if is_overridden("tokenizer") and config.tokenizer != theirs.tokenizer:
        raise ConfigError(f"tokenizer: init_from={init_from} has its own, which is used; omit tokenizer")
    config.tokenizer = theirs.tokenizer
    if "model" in list_overridden() and choices["model"] != own:
        if config.shape.vocab_size is None:
            config.shape.vocab_size = theirs.shape.vocab_size
        return
    if theirs.model.embedding._target_ != config.model.embedding._target_:  # of images, or of tokens
        config.model.embedding = theirs.model.embedding
    meant = settings_of_experiment()

    def is_set(key: str) -> bool:
        return is_overridden(key) or any(f"{name}.".startswith(f"{key}.") for name in meant)

    embeddings = [OmegaConf.select(theirs, f"model.{name}") for name in ("embedding", "source_embedding")]
    signals = {"frames": "num_mels", "patches": "patch_size"}  # and a key that what reads them has
    read = [node for node, key in signals.items() if any(part is not None and key in part for part in embeddings)]
    nodes = ("shape", "block", "heads", *read)
    settings = {f"{node}.{key}": value for node in nodes for key, value in theirs[node].items()}
    differing = differing_settings(theirs, template)
    if architecture != own:
        differing = of_other_stacks(differing, architecture, own)
    for key, value in {**settings, **differing}.items():
        own_value = OmegaConf.select(config, key)
        if not is_set(key):
            OmegaConf.update(config, key, value, merge=False)
        elif (
            isinstance(value, DictConfig)
            and own_value is not None
            and (value._target_ == own_value._target_ or not is_set(f"{key}._target_"))
        ):
            if value._target_ != own_value._target_:  # options are set and no part, so they are of theirs
                given = {name: own_value[name] for name in map(str, own_value) if is_set(f"{key}.{name}")}
                OmegaConf.update(config, key, OmegaConf.merge(value, given), merge=False)
                own_value = OmegaConf.select(config, key)
            for name in map(str, value):  # of the same part, the options that are not set
                option = value[name]
                if not is_set(f"{key}.{name}"):
                    own_value[name] = option
                else:
                    warn_of_difference(config, f"{key}.{name}", option)
        else:
            warn_of_difference(config, key, value)


def has_towers(config: DictConfig) -> bool:
    """Whether the network is one of two towers, which have a head each."""
    return "source_head" in config.model


def base_of(config: DictConfig) -> str:
    """The choice of ``model=`` whose class the network is of, whatever its options."""
    architecture: str = target_of(config, "model").architecture
    return f"two_{architecture.removesuffix('_only')}s" if has_towers(config) else architecture


def stack_sources(architecture: str, own: str) -> dict[str, str]:
    """Which stack of an architecture each stack of another one begins as: that of its name, or the only one."""
    theirs = STACKS[architecture]
    return {name: name if name in theirs else theirs[0] for name in STACKS[own]}


def of_other_stacks(settings: Mapping[str, Any], architecture: str, own: str) -> dict[str, Any]:
    """Settings of the stacks of an architecture, as those of the stacks of another one that begin as these."""
    found = {key: value for key, value in settings.items() if key.startswith("model.embedding.")}
    for name, source in stack_sources(architecture, own).items():
        for key, value in settings.items():
            if key.startswith(f"model.{source}.") and not key.endswith((".causal", ".cross_attention")):
                found[f"model.{name}.{key.removeprefix(f'model.{source}.')}"] = value
    return found


def warn_of_difference(config: DictConfig, key: str, value: object) -> None:
    """Says that the trained model had another value of a setting of the network; another dropout is no other network.

    Args:
        value: of the trained model.
    """
    own_value = OmegaConf.select(config, key)
    if own_value != value and key.startswith(("block.", "model.")) and "dropout" not in key:
        own, their = name_of(own_value), name_of(value)
        log.warning("%s=%s, but init_from=%s was trained with %s", key, own, config.init_from, their)


def name_of(value: object) -> object:
    """What a message calls a value: of a part, or of the path of a class, the class; else the value itself."""
    value = value._target_ if isinstance(value, DictConfig) else value
    return value.rpartition(".")[2] if isinstance(value, str) else value


def settings_of_experiment() -> set[str]:
    """The keys of shape, block and heads that the experiment sets, if it begins with a checkpoint itself: they are
    meant for that checkpoint's network (its dropout, its longest text). Those of others are meant for their own."""
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
    """The settings of single parts of a model that do not follow from its shape, block and heads, by their keys:
    ``model.decoder.num_layers``, for instance. The head is the task's affair, but those of two towers are theirs.

    Args:
        theirs: the complete configuration of a trained model.
        model: the same architecture, as its file has it: with references to shape, block and heads.
    """
    nodes = {name: theirs[name] for name in ("shape", "block", "heads")}
    template = OmegaConf.create({**nodes, "model": OmegaConf.to_container(model, resolve=False)})
    found = {}
    for part in map(str, theirs.model):
        if part == "tie_output" or (part == "head" and not has_towers(theirs)):
            continue
        node, is_there = theirs.model[part], OmegaConf.select(template, f"model.{part}") is not None
        keys = [f"{part}.{key}" for key in map(str, node)] if isinstance(node, DictConfig) and is_there else [part]
        if part.endswith("head"):  # the rest of it is that of heads
            keys = [key for key in keys if key.rpartition(".")[2] in model[part]]
        for key in (f"model.{key}" for key in keys):
            own, name = OmegaConf.select(template, key), key.rpartition(".")[2]
            if name in PARTS and own is None:
                own = theirs.block[name]
            if (value := OmegaConf.select(theirs, key)) != own:
                found[key] = value
    return found
