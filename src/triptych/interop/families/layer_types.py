"""Windows by layer: ``layer_types`` of a configuration, full_attention or sliding_attention for each.

Tested by tests/interop/test_decoder_families.py and tests/interop/test_encoder_families.py.
"""

from collections.abc import Sequence
from typing import Any

from triptych.config import ConfigError
from triptych.interop.families.family import HFConfig, Settings

FULL, SLIDING = "full_attention", "sliding_attention"


def layer_windows(config: HFConfig, kinds: Sequence[str], window: int | None) -> list[int | None] | None:
    """Our windows, one per layer; None if no layer has one.

    Args:
        config: whose ``layer_types`` are read.
        kinds: the default.
        window: window of sliding layers, including the position itself; None if it is not given.
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
        raise ConfigError(f"{config.place}: sliding_window=None; expected the window of layers of {SLIDING}")
    return [window if kind == SLIDING else None for kind in types]


def hf_layer_types(model: Settings, stack: str) -> tuple[list[str], int | None]:
    """Their ``layer_types``, and the window: the first of several widths; None if no layer has one."""
    windows: list[Any] = model.get(f"{stack}.attention.sliding_windows") or [None]
    used = [windows[i % len(windows)] for i in range(model[f"{stack}.num_layers"])]
    return [FULL if window is None else SLIDING for window in used], next(filter(None, used), None)
