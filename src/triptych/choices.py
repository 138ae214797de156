"""What the command line chooses, beside what the files say that it names."""

import logging

from hydra import compose
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from triptych.config import ConfigError, Shape, target_of

log = logging.getLogger("triptych")


def given() -> list[str]:
    """The keys and groups that the command line sets."""
    return [override.partition("=")[0].lstrip("+~") for override in HydraConfig.get().overrides.task]


def is_given(key: str) -> bool:
    """Whether the command line sets this key, a node around it or a part of it."""
    return any(f"{key}.".startswith(f"{name}.") or f"{name}.".startswith(f"{key}.") for name in given())


def check_model_choice(config: DictConfig) -> None:
    """Looks whether the command line puts a published model in the place of an experiment's. What the experiment says
    of the network still holds then: its options are named in a warning, and another size than the model's is refused.

    Raises:
        ConfigError: both have a size.
    """
    choices = HydraConfig.get().runtime.choices
    model, experiment = choices["model"], choices["experiment"]
    if "model" not in given() or experiment is None or model == target_of(config, "model").architecture:
        return
    own = compose("train", overrides=[f"model={model}"])
    differ = {
        node: [key for key in own[node] if config[node][key] != own[node][key] and not is_given(f"{node}.{key}")]
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
        f"{node}.{key}={config[node][key]} (model={model}: {own[node][key]})"
        for node in ("block", "heads")
        for key in differ[node]
    ]
    if differences:
        log.warning("experiment=%s has %s", experiment, ", ".join(differences))
