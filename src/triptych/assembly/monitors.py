"""Determines whether a monitored metric is minimized or maximized."""
# Takes a DictConfig: it checks keys and classes that any file may name.

import inspect

from omegaconf import DictConfig, OmegaConf, open_dict

from triptych.config import ConfigError, suggestion, target_of
from triptych.tasks import Task


def choose_modes(config: DictConfig) -> None:
    """Fills in the mode of each callback that monitors a metric, if it is null or missing."""
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
        metric: name of the metric, such as val/loss.
        given: configured mode; None: that of the task.
        key: key of the metric, for messages.
        mode_key: key of the mode.
        low: name of the mode that minimizes.
        high: name of the mode that maximizes.
    """
    task: type[Task] = target_of(config, "task")
    modes = task.all_metric_modes()
    known = [f"val/{name}" for name in modes]
    name = metric.removeprefix("val/")
    if name == metric:
        raise ConfigError(f"{key}={metric}: expected a validation metric{suggestion(metric, known)}")
    stated = modes.get(name)
    expected = None if stated is None else low if stated == "min" else high
    if given is None and name not in modes:
        raise ConfigError(
            f"{key}={metric}: {task.__name__} has no such metric{suggestion(metric, known)} (for your own metric, "
            f"set {mode_key}={low} or {high})"
        )
    if given is None and expected is None:
        raise ConfigError(f"{mode_key}=null: {task.__name__} defines no mode for {metric}; expected {low} or {high}")
    if given is not None and expected is not None and given != expected:
        best = "lowest" if stated == "min" else "highest"
        raise ConfigError(f"{mode_key}={given}: the {best} {metric} is best; expected {expected} or null")
    return str(given or expected)
