"""The complete configuration of a run, with typed fields, which nothing changes: what is read once everything is
decided."""
# Takes a DictConfig: before the plan, overrides, checkpoints and matches may still set any key.

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from omegaconf import DictConfig, OmegaConf

from triptych.config.build import build, target_of

T = TypeVar("T", "EncodingSettings", "LoaderSettings", "TrainerSettings")


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodingSettings:
    """How examples are encoded; ``BatchConfig`` describes the first four.

    Attributes:
        seed: of the run.
        task: the settings of the task.
    """

    too_long: str = "error"
    eval_stride: int | None = None
    merge_dropout: float = 0.0
    cuts: int = 8
    seed: int = 1
    task: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderSettings:
    """How encoded examples become batches; see ``BatchConfig``."""

    size: int | None
    tokens: int | None
    packed: bool | None
    eval_size: int
    num_workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSettings:
    """What is read of ``trainer``, besides by Lightning."""

    max_steps: int
    accumulate_grad_batches: int
    limit_val_batches: int | float
    limit_test_batches: int | float
    accelerator: str
    precision: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """A complete configuration; ``TrainConfig`` describes what is not described here.

    Attributes:
        vocab_size: of the network; None: it reads no tokens.
        max_length: the most tokens that a stack reads at once.
        learning_rate: of the optimizer; None: it has none of that name.
        encoding: of examples.
        loader: of batches.
        loggers: their names.
        callbacks: their names.
    """

    seed: int
    run_dir: Path
    init_from: str | None
    match: str | None
    compile: bool
    not_finite: str
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
        """Those of a complete configuration, of which a copy is kept."""
        nodes = config.copy()
        OmegaConf.set_readonly(nodes, True)
        batch, trainer = nodes.batch, nodes.trainer
        return cls(
            seed=nodes.seed,
            run_dir=Path(nodes.run_dir),
            init_from=nodes.init_from,
            match=nodes.match,
            compile=nodes.compile,
            not_finite=nodes.not_finite,
            test_weights=nodes.test_weights,
            vocab_size=nodes.shape.vocab_size,
            max_length=nodes.shape.max_length,
            learning_rate=OmegaConf.select(nodes, "optimizer.lr"),
            encoding=_typed(EncodingSettings, batch, seed=nodes.seed, task=_plain(nodes.task)),
            loader=_typed(LoaderSettings, batch),
            trainer=_typed(TrainerSettings, trainer, precision=str(trainer.precision)),
            loggers=tuple(map(str, nodes.logger)),
            callbacks=tuple(map(str, nodes.callbacks)),
            _nodes=nodes,
        )

    def build(self, key: str, given: Mapping[str, object] | None = None) -> Any:
        """What a node describes; see ``triptych.config.build``."""
        return build(self._nodes, key, given)

    def target(self, key: str) -> Any:
        """The class that a node names."""
        return target_of(self._nodes, key)

    def plain(self, key: str) -> dict[str, Any]:
        """The settings of a node, in plain containers of their own."""
        return _plain(self._nodes[key])


def _typed(kind: type[T], node: DictConfig, **given: Any) -> T:
    """The values of a node that a class has fields for, besides those that are given."""
    return kind(**{name: node[name] for name in (each.name for each in fields(kind)) if name not in given}, **given)


def _plain(node: DictConfig) -> dict[str, Any]:
    return cast(dict[str, Any], OmegaConf.to_container(node, resolve=True))
