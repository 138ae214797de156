"""The configuration: its schema, its checks, and building objects from it.

``overrides``, ``explain`` and ``hydra_guard`` are not imported here, because they need Hydra.
"""

from triptych.config.build import (
    ALLOWED,
    build,
    check,
    check_keys,
    check_type,
    class_at,
    describe_type,
    function_at,
    hints_of,
    spell_choices,
    target_of,
)
from triptych.config.errors import ConfigError, RunError, error_prefix, join_names, nearest, one_of, suggestion
from triptych.config.identity import FREE, PLACES, as_dict, chosen, flat
from triptych.config.schema import (
    ACCELERATORS,
    ARCHITECTURES,
    PARTS,
    TRAINER,
    EvaluateConfig,
    PredictConfig,
    ShapeConfig,
    TrainConfig,
    full_precision,
    precision_of,
)
from triptych.config.wording import about_duration, amount, counted, duration

__all__ = [
    "ACCELERATORS",
    "ALLOWED",
    "ARCHITECTURES",
    "FREE",
    "PARTS",
    "PLACES",
    "TRAINER",
    "ConfigError",
    "EvaluateConfig",
    "PredictConfig",
    "RunError",
    "ShapeConfig",
    "TrainConfig",
    "about_duration",
    "amount",
    "as_dict",
    "build",
    "check",
    "check_keys",
    "check_type",
    "chosen",
    "class_at",
    "counted",
    "describe_type",
    "duration",
    "error_prefix",
    "flat",
    "full_precision",
    "function_at",
    "hints_of",
    "join_names",
    "nearest",
    "one_of",
    "precision_of",
    "spell_choices",
    "suggestion",
    "target_of",
]
