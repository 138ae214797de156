"""What can be set, how it is checked, and how objects are built from it.

``overrides``, ``explain`` and ``hydra_guard`` are imported by their names alone: they need Hydra.
"""

from triptych.config.build import (
    ALLOWED,
    build,
    check,
    check_allowed,
    check_keys,
    check_type,
    class_at,
    expected,
    function_at,
    target_of,
)
from triptych.config.errors import MOST, ConfigError, RunError, listed, more, nearest, one_of, suggestion
from triptych.config.identity import FREE, PLACES, flat
from triptych.config.schema import (
    ACCELERATORS,
    ARCHITECTURES,
    MATCHES,
    TRAINER,
    BatchConfig,
    Block,
    DoctorConfig,
    EvaluateConfig,
    HeadOptions,
    Heads,
    PredictConfig,
    Shape,
    TrainConfig,
    precision_of,
)

__all__ = [
    "ACCELERATORS",
    "ALLOWED",
    "ARCHITECTURES",
    "FREE",
    "MATCHES",
    "MOST",
    "PLACES",
    "TRAINER",
    "BatchConfig",
    "Block",
    "ConfigError",
    "DoctorConfig",
    "EvaluateConfig",
    "HeadOptions",
    "Heads",
    "PredictConfig",
    "RunError",
    "Shape",
    "TrainConfig",
    "build",
    "check",
    "check_allowed",
    "check_keys",
    "check_type",
    "class_at",
    "expected",
    "flat",
    "function_at",
    "listed",
    "more",
    "nearest",
    "one_of",
    "precision_of",
    "suggestion",
    "target_of",
]
