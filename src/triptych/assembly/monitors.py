"""Whether a metric that a callback or a search monitors is best when it is lowest or when it is highest."""
# Takes a DictConfig: it looks for what is wrong in keys and classes that any file may name.

import inspect

from omegaconf import DictConfig, OmegaConf, open_dict

from triptych.config import ConfigError, suggestion, target_of
from triptych.tasks import Task


def choose_modes(config: DictConfig) -> None:
    """Fills in the mode of each callback that monitors a metric, where it is null or not given."""
    for name, node in config.callbacks.items():
        key = f"callbacks.{name}"
        if OmegaConf.select(config, f"{key}.monitor") is None:
            continue
        if "mode" in node or "mode" in inspect.signature(target_of(config, key)).parameters:
            mode = mode_of(config, node.monitor, node.get("mode"), key=f"{key}.monitor", mode_key=f"{key}.mode")
            with open_dict(node):
                node.mode = mode


def mode_of(
    config: DictConfig, metric: str, given: str | None, *, key: str, mode_key: str, low: str = "min", high: str = "max"
) -> str:
    """The mode of a metric of the task, ``low`` or ``high``.

    Args:
        metric: its name, such as val/loss.
        given: the configured mode; None: what the task states.
        key: of the metric, for messages.
        mode_key: of the mode.
        low: the mode of a metric whose lowest value is best.
        high: the mode of one whose highest value is best.
    """
    task: type[Task] = target_of(config, "task")
    modes = task.all_metric_modes()
    known = [f"val/{name}" for name in modes]
    name = metric.removeprefix("val/")
    if name == metric:
        raise ConfigError(f"{key}={metric}: expected a metric of the validation{suggestion(metric, known)}")
    stated = modes.get(name)
    expected = None if stated is None else low if stated == "min" else high
    if given is None and name not in modes:
        raise ConfigError(
            f"{key}={metric}: {task.__name__} does not state such a metric{suggestion(metric, known)} (of a metric of "
            f"your own, set {mode_key}={low} or {high})"
        )
    if given is None and expected is None:
        raise ConfigError(f"{mode_key}=null: {task.__name__} states no mode of {metric}; expected {low} or {high}")
    if given is not None and expected is not None and given != expected:
        best = "lowest" if stated == "min" else "highest"
        raise ConfigError(f"{mode_key}={given}: the {best} {metric} is best; expected {expected} or null")
    return str(given or expected)
