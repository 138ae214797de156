"""The configuration: its schema, its checks, and building objects from it.

``overrides``, ``explain`` and ``hydra_guard`` are not imported here, because they need Hydra.
"""

from triptych.config.build import ALLOWED, build, check, check_type, class_at, describe_type, hints_of, target_of
from triptych.config.errors import ConfigError, RunError, error_prefix, join_names, nearest, one_of, suggestion
from triptych.config.identity import FREE, PLACES, as_dict, chosen, flat
from triptych.config.schema import ARCHITECTURES, PARTS, EvaluateConfig, PredictConfig, TrainConfig, precision_of
from triptych.config.wording import about_duration, amount, counted, duration

__all__ = [
    "ALLOWED",
    "ARCHITECTURES",
    "FREE",
    "PARTS",
    "PLACES",
    "ConfigError",
    "EvaluateConfig",
    "PredictConfig",
    "RunError",
    "TrainConfig",
    "about_duration",
    "amount",
    "as_dict",
    "build",
    "check",
    "check_type",
    "chosen",
    "class_at",
    "counted",
    "describe_type",
    "duration",
    "error_prefix",
    "flat",
    "hints_of",
    "join_names",
    "nearest",
    "one_of",
    "precision_of",
    "suggestion",
    "target_of",
]
