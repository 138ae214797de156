"""The complete, read-only configuration of a run, with typed fields."""
# Takes a DictConfig: before the plan, overrides, checkpoints and matches may still set any key.

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

from omegaconf import DictConfig, OmegaConf

from triptych.config.build import build, target_of
from triptych.config.identity import as_dict

T = TypeVar("T", "EncodingSettings", "LoaderSettings", "TrainerSettings", "RunSettings")


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodingSettings:
    """How examples are encoded; see ``BatchConfig``. ``task`` holds the settings of the task."""

    too_long: str = "error"
    eval_stride: int | None = None
    bpe_dropout: float = 0.0
    bpe_dropout_copies: int = 8
    seed: int = 1
    task: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderSettings:
    """How encoded examples are batched; see ``BatchConfig``."""

    global_size: int | None
    max_tokens: int | None
    packing: bool | None
    eval_batch_size: int
    num_workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSettings:
    """The ``trainer`` settings that Triptych reads, not only Lightning."""

    max_steps: int
    accumulate_grad_batches: int
    limit_val_batches: int | float
    limit_test_batches: int | float
    accelerator: str
    precision: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """A complete configuration; see ``TrainConfig`` and ``ShapeConfig``.

    Attributes:
        vocab_size: vocabulary of the network; None: the input is not tokens.
        learning_rate: optimizer.lr; None: the optimizer has no such setting.
        loggers: names of the loggers.
        callbacks: names of the callbacks.
    """

    seed: int
    run_dir: Path
    init_from: str | None
    match: str | None
    compile: bool
    on_nonfinite: str
    test_weights: Literal["last", "best"]
    vocab_size: int | None
    max_length: int
    learning_rate: float | None
    encoding: EncodingSettings
    loader: LoaderSettings
    trainer: TrainerSettings
    loggers: tuple[str, ...]
    callbacks: tuple[str, ...]
    _nodes: DictConfig = field(repr=False, compare=False)

    @classmethod
    def of(cls, config: DictConfig) -> "RunSettings":
        """Reads a complete configuration, and keeps a copy of it."""
        nodes = config.copy()
        OmegaConf.set_readonly(nodes, True)
        batch, trainer = nodes.batch, nodes.trainer
        return _typed(
            cls,
            nodes,
            run_dir=Path(nodes.run_dir),
            vocab_size=nodes.shape.vocab_size,
            max_length=nodes.shape.max_length,
            learning_rate=OmegaConf.select(nodes, "optimizer.lr"),
            encoding=_typed(EncodingSettings, batch, seed=nodes.seed, task=as_dict(nodes.task)),
            loader=_typed(LoaderSettings, batch),
            trainer=_typed(TrainerSettings, trainer, precision=str(trainer.precision)),
            loggers=tuple(map(str, nodes.logger)),
            callbacks=tuple(map(str, nodes.callbacks)),
            _nodes=nodes,
        )

    def build(self, key: str, given: Mapping[str, object] | None = None) -> Any:
        """Builds the object of a node; see ``triptych.config.build``."""
        return build(self._nodes, key, given)

    def target(self, key: str) -> Any:
        """The class that a node names."""
        return target_of(self._nodes, key)

    def plain(self, key: str) -> dict[str, Any]:
        """A copy of the settings of a node, in plain containers."""
        return as_dict(self._nodes[key])


def _typed(kind: type[T], node: DictConfig, **given: Any) -> T:
    """An object of a class, with the given values; the other fields are read from a node."""
    return kind(**{name: node[name] for name in (each.name for each in fields(kind)) if name not in given}, **given)
