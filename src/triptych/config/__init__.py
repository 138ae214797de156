"""What can be set, how it is checked, and how objects are built from it.

``overrides``, ``explain`` and ``hydra_guard`` are imported by their names alone: they need Hydra.
"""

from triptych.config.build import (
    ALLOWED,
    build,
    check,
    check_allowed,
    check_dropout,
    check_keys,
    check_type,
    class_at,
    expected,
    target_of,
)
from triptych.config.errors import MOST, ConfigError, RunError, listed, more, nearest, one_of, suggestion
from triptych.config.identity import FREE, PLACES, flat
from triptych.config.schema import (
    ACCELERATORS,
    ARCHITECTURES,
    MATCHES,
    PARTS,
    TRAINER,
    BatchConfig,
    Block,
    DoctorConfig,
    EvaluateConfig,
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
    "PARTS",
    "PLACES",
    "TRAINER",
    "BatchConfig",
    "Block",
    "ConfigError",
    "DoctorConfig",
    "EvaluateConfig",
    "Heads",
    "PredictConfig",
    "RunError",
    "Shape",
    "TrainConfig",
    "build",
    "check",
    "check_allowed",
    "check_dropout",
    "check_keys",
    "check_type",
    "class_at",
    "expected",
    "flat",
    "listed",
    "more",
    "nearest",
    "one_of",
    "precision_of",
    "suggestion",
    "target_of",
]
