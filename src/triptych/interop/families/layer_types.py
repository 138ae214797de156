"""Which layers have a window: ``layer_types`` of a configuration, full_attention or sliding_attention for each."""

from collections.abc import Sequence
from typing import Any

from triptych.config import ConfigError
from triptych.interop.families.family import Settings, TheirConfig

FULL, SLIDING = "full_attention", "sliding_attention"


def windows_of(config: TheirConfig, kinds: Sequence[str], window: int | None) -> list[int | None] | None:
    """Our windows, one for each layer; None: no layer has one.

    Args:
        config: whose ``layer_types`` are read.
        kinds: what is meant where it has none.
        window: how far a position sees in a layer that is sliding, itself included; None: nothing says it.
    """
    types = config.get("layer_types", None) or kinds
    if len(types) != config.size("num_hidden_layers") or not {FULL, SLIDING}.issuperset(types):
        raise ConfigError(
            f"{config.place}: layer_types={types}; expected {FULL} or {SLIDING} for each of "
            f"num_hidden_layers={config['num_hidden_layers']}"
        )
    if SLIDING not in types:
        return None
    if window is None:
        raise ConfigError(f"{config.place}: sliding_window=None; expected how far layers of {SLIDING} see")
    return [window if kind == SLIDING else None for kind in types]


def their_layer_types(model: Settings, stack: str) -> tuple[list[str], int | None]:
    """Their ``layer_types``, and the window; of several widths, the first; None: no layer has one."""
    windows: list[Any] = model.get(f"{stack}.attention.windows") or [None]
    used = [windows[i % len(windows)] for i in range(model[f"{stack}.num_layers"])]
    return [FULL if window is None else SLIDING for window in used], next(filter(None, used), None)
