"""``match=... reference=...``: solves the size or the number of steps that gives a run the same budget as another.

- ``params``, ``active_params``: solves the size; the number of steps, the width and the heads are kept. Each depth has
  a d_ff that matches. The depth whose d_ff is closest to the configured one, as a ratio, is used, if the ratio is at
  most 2. If there is none, other widths are tried in the same way, with d_ff in proportion, the closest width first.
  d_ff is a multiple of 8 if that is accurate enough.
- ``train_flops``, ``tokens``, ``wall_time``: solves the number of steps; the network is kept. The scheduler keeps its
  warmup, and its decay ends with the run.
"""
# Takes a DictConfig: before the plan, overrides, checkpoints and matches may still set any key.

import json
import logging
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from math import lcm
from statistics import fmean
from typing import Any

from omegaconf import DictConfig, OmegaConf

from triptych.assembly.choose_parts import choose_parts
from triptych.assembly.compatibility import check_grid
from triptych.assembly.make_task import check_network
from triptych.config import ARCHITECTURES, ConfigError, build, counted, error_prefix, nearest, target_of
from triptych.config.overrides import base_of, composed_with, has_towers
from triptych.models.flops import COUNTED, TrainingCost, active_parameters, count_parameters
from triptych.planning.batch_shapes import BatchEstimate, Data, ReadData
from triptych.planning.check_results import listening
from triptych.storage.run_directory import RunDirectory, check_format
from triptych.training.optimizers import optimizer_flops

log = logging.getLogger("triptych")

SIZES = ("params", "active_params")
"""Quantities that depend only on the network."""
RECORDED = {"params": "params", "active_params": "active_params", "train_flops": "train_flops",
            "tokens": "train_tokens", "wall_time": "wall_time_s"}  # fmt: skip
"""The key of each quantity in summary.json."""
UNITS = {"params": "parameters", "active_params": "active parameters", "train_flops": "FLOP", "tokens": "tokens",
         "wall_time": "s"}  # fmt: skip
TOLERANCE, TOLERANCE_OF_TIME = 0.02, 0.1
"""Maximum relative difference between a match and its goal."""
DEEPER, WIDER, STRETCH = 4, 4, 2
"""Maximum factors: of the depth, of the width (also as a divisor), and of the proportional d_ff (also as a divisor)."""
SAMPLE, STEPS = 50_000, 100
"""Number of training examples to encode, and of steps to count; further steps cost the mean of these."""
TOWERS = ("dual_encoder", "dual_decoder")
"""Architectures with two towers."""


@dataclass(frozen=True, slots=True)
class NetworkSize:
    """The solved size of a network; see ``ShapeConfig``."""

    d_model: int
    num_layers: int
    d_ff: int


@dataclass(frozen=True, slots=True)
class Reference:
    """The reference of a match.

    Attributes:
        name: the reference as typed.
        config: configuration with another architecture, if that is the reference.
        record: record of a finished run, if that is the reference.
        target_value: target value, if the reference is a finished run or a number.
    """

    name: str
    config: DictConfig | None = None
    record: Mapping[str, Any] | None = None
    target_value: float | None = None


@dataclass(frozen=True, slots=True)
class BudgetMatch:
    """A solved match.

    Attributes:
        quantity: value of ``match``.
        reference: the reference as typed.
        target_value: target value; None: this run is the reference.
        expected: expected value of this run; None: this run is the reference.
        configured: configured values of the settings that may be solved, by key.
        solved: solved values, if they differ.
    """

    quantity: str
    reference: str
    target_value: float | None
    expected: float | None
    configured: Mapping[str, int]
    solved: Mapping[str, int]

    def apply(self, config: DictConfig) -> None:
        """Applies the solved values to the configuration."""
        for key, value in self.solved.items():
            OmegaConf.update(config, key, value)

    def record(self, reached: float) -> dict[str, Any]:
        """The entry in summary.json, with the value that the run reached."""
        goal = reached if self.target_value is None else self.target_value
        return {**asdict(self), "target_value": goal, "achieved": reached, "mismatch": reached / goal - 1}

    def warn_of(self, record: Mapping[str, Any]) -> None:
        """Warns if the run missed the goal, because it stopped early or was slower than measured."""
        if abs(record["mismatch"]) > tolerance_of(self.quantity):
            used = f"{spell_amount(record['achieved'])} {UNITS[self.quantity]}"
            missed = f"{compare(record['mismatch'])} {spell_amount(record['target_value'])}"
            log.warning("match=%s reference=%s: the run used %s, %s", self.quantity, self.reference, used, missed)

    def __str__(self) -> str:
        if self.target_value is None or self.expected is None:
            return f"match={self.quantity} reference={self.reference}: this run is the reference, nothing to solve"
        solved = [f"{key}={value} (was {self.configured[key]})" for key, value in self.solved.items()]
        return (
            f"match={self.quantity} reference={self.reference}: {', '.join(solved) or 'nothing to change'}: "
            f"{spell_amount(self.expected)} {UNITS[self.quantity]}, {compare(self.expected / self.target_value - 1)} "
            f"{spell_amount(self.target_value)}"
        )


@dataclass(frozen=True, slots=True)
class StepTiming:
    """The speed of a run.

    Attributes:
        seconds_per_step: seconds per step.
        validation: seconds per validation.
        interval: steps between two validations.
    """

    seconds_per_step: float
    validation: float
    interval: float

    def seconds(self, steps: int) -> float:
        """The duration of a run with a number of steps."""
        return steps * self.seconds_per_step + steps // self.interval * self.validation


Measure = Callable[[Sequence[DictConfig]], Sequence[StepTiming]]
"""Measures the speed of runs."""


def reference_of(config: DictConfig, overrides: Sequence[str]) -> Reference | None:
    """The reference, as far as it is known before data are read; None: no match."""
    quantity, name = config.match, config.reference
    if quantity is None and name is None:
        return None
    if name is None:
        raise ConfigError(f"match={quantity} needs a reference: one of {_expected(config)}")
    if quantity is None:
        raise ConfigError(f"reference={name} needs match, one of {', '.join(RECORDED)}. Set match, or omit reference")
    if config.resume not in ("auto", "never"):
        raise ConfigError(
            f"match={quantity}: not supported with resume={config.resume}, which keeps that run's network and steps"
        )
    if config.init_from is not None and (quantity in SIZES or name in _models(config)):
        raise ConfigError(
            f"match={quantity} reference={name}: init_from={config.init_from} defines the network; expected "
            "match=train_flops, tokens or wall_time, and a finished run as the reference"
        )
    if (amount := _amount(quantity, name)) is not None:
        return Reference(name, target_value=amount)
    if name not in _models(config):
        return _run(config, name)
    if name == base_of(config):
        return Reference(name)
    other = composed_with(name, overrides)
    with error_prefix(f"reference={name}: "):
        check_grid(other)
        choose_parts(other)
        check_network(other)
    return Reference(name, config=other)


def _models(config: DictConfig) -> tuple[str, ...]:
    """The valid architectures of a reference."""
    return TOWERS if has_towers(config) else ARCHITECTURES


def _expected(config: DictConfig) -> str:
    """Describes the valid references."""
    return f"{', '.join(_models(config))}, the directory of a finished run, or a number"


def _amount(quantity: str, name: str) -> float | None:
    """A reference that is a number; None: it is not."""
    try:
        amount = float(name)
    except ValueError:
        return None
    if not 0 < amount < math.inf:
        raise ConfigError(f"match={quantity} reference={name}: expected more than 0 {UNITS[quantity]}")
    return amount


def _run(config: DictConfig, name: str) -> Reference:
    run = RunDirectory(name)
    path = run.record
    if not path.is_file():
        if any(RunDirectory(file).record.exists() for file in run.path.glob("*")):
            raise ConfigError(f"reference={name} contains several runs; expected the directory of one of them")
        if run.path.is_dir():
            raise ConfigError(f"reference={name}: has no {path.name}; expected the directory of a finished run")
        raise ConfigError(f"reference={name}: expected {_expected(config)}{nearest(name, _models(config))}")
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        goal = record.get(RECORDED[config.match])
    except (ValueError, AttributeError):
        raise ConfigError(f"reference={name}: {path} is damaged") from None
    with error_prefix("reference="):
        check_format(record, path)
    task = target_of(config, "task").name
    if record.get("task") != task:
        raise ConfigError(f"reference={name} has task={record.get('task')}, but this run has task={task}")
    their_data = OmegaConf.select(OmegaConf.load(run.config), "data._target_") if run.config.exists() else None
    if their_data not in (None, config.data._target_):
        raise ConfigError(f"reference={name} has data={record.get('data')}, but this run has {config.data._target_}")
    if not isinstance(goal, int | float) or not goal > 0:
        raise ConfigError(f"match={config.match}: {path} has {RECORDED[config.match]}={goal}; expected more than 0")
    if config.match == "train_flops" and record.get("train_flops_of") != list(COUNTED):
        raise ConfigError(
            f"match=train_flops: the FLOPs in {path} do not include the optimizer. Train {name} again, or set "
            "reference to a number of FLOPs"
        )
    return Reference(name, record=record, target_value=float(goal))


def check_same(reference: Reference, quantity: str, *, data: str, tokenizer: str) -> None:
    """Raises an error if the reference has other data, or for match=tokens another tokenizer.

    Args:
        data: SHA-256 of the examples.
        tokenizer: SHA-256 of the tokenizer.
    """
    if reference.record is None:
        return
    if (theirs := reference.record.get("data_sha256")) != data:
        raise ConfigError(
            f"reference={reference.name} was trained on other data: its SHA-256 is {str(theirs)[:8]}, not {data[:8]}"
        )
    if quantity == "tokens" and reference.record.get("tokenizer_sha256") != tokenizer:
        raise ConfigError(f"match=tokens reference={reference.name}: it was trained with another tokenizer")


def recorded_match(config: DictConfig) -> BudgetMatch | None:
    """The match of an earlier start of this run, which is not solved again. None: not started yet, or with other
    settings (a later check raises an error)."""
    run = RunDirectory(config.run_dir)
    is_begun = any(run.checkpoints.glob("*.ckpt")) or run.is_done(is_trial=True)
    if config.match is None or config.resume == "never" or not is_begun or not run.match.is_file():
        return None
    match = BudgetMatch(**json.loads(run.match.read_text(encoding="utf-8")))
    is_same = (match.quantity, match.reference) == (config.match, config.reference)
    return match if is_same and solved_settings(config, match.quantity) == match.configured else None


def solved_settings(config: DictConfig, quantity: str) -> dict[str, int]:
    """The configured values of the settings that may be solved for a quantity, by key."""
    names = ("shape.num_layers", "shape.d_model", "shape.d_ff") if quantity in SIZES else ("trainer.max_steps",)
    return {name: int(OmegaConf.select(config, name)) for name in names}


def solve(config: DictConfig, reference: Reference, data: Data, measure: Measure | None) -> BudgetMatch:
    """Checks the reference and solves the match; see ``find_match``."""
    if isinstance(data, ReadData):
        check_same(reference, config.match, data=data.info.sha256, tokenizer=data.tokenizer.sha256)
    return find_match(config, reference, data, measure)


def find_match(config: DictConfig, reference: Reference, data: Data, measure: Measure | None) -> BudgetMatch:
    """Solves a match without changing the configuration.

    Args:
        measure: measures the speed, for ``match=wall_time``.
    """
    quantity, name, given = config.match, reference.name, solved_settings(config, config.match)
    goal = reference.target_value
    if reference.config is None and goal is None:
        return BudgetMatch(quantity, name, None, None, given, {})
    own, other = data.complete(config), None if reference.config is None else data.complete(reference.config)
    if quantity in SIZES:
        count = active_parameters if quantity == "active_params" else lambda network: count_parameters(network)[0]
        goal = goal if other is None else count(check_network(other))
        assert goal is not None
        found, expected = _solved_size(own, reference, goal, lambda size: count(check_network(resized(own, size))))
    else:
        with listening():  # warnings about the data are logged later, when it is encoded for training
            totals = _totals(quantity, [own] if other is None else [own, other], data, measure)
        goal = goal if other is None else totals[1](other.trainer.max_steps)
        assert goal is not None
        steps = solve_steps(totals[0], goal)
        found, expected = {"trainer.max_steps": steps}, totals[0](steps)
        if abs(expected / goal - 1) > tolerance_of(quantity):
            raise ConfigError(
                f"match={quantity} reference={name}: the closest solution is {counted(steps, 'step')} with "
                f"{spell_amount(expected)} {UNITS[quantity]}, {compare(expected / goal - 1)} {spell_amount(goal)}; "
                "expected a longer reference run"
            )
    chosen = {key: value for key, value in found.items() if value != given[key]}
    return BudgetMatch(quantity, name, goal, expected, given, chosen)


def _solved_size(
    own: DictConfig, reference: Reference, goal: float, count: Callable[[NetworkSize], int]
) -> tuple[dict[str, int], float]:
    start = NetworkSize(own.shape.d_model, own.shape.num_layers, own.shape.d_ff)
    heads = [own.model[name].num_heads for name in ("encoder", "decoder") if name in own.model]
    size = solve_size(count, start, goal, step=2 * lcm(*heads))
    if size is None:
        least, most = count(smallest_size(start)), count(largest_size(start))
        raise ConfigError(
            f"match={own.match} reference={reference.name}: no size near shape.d_model={start.d_model} num_layers="
            f"{start.num_layers} d_ff={start.d_ff} of model={target_of(own, 'model').architecture} has "
            f"{spell_amount(goal)} {UNITS[own.match]}; this width allows {least:,} to {most:,}"
        )
    return {f"shape.{key}": value for key, value in asdict(size).items()}, count(size)


def _totals(
    quantity: str, configs: Sequence[DictConfig], data: Data, measure: Measure | None
) -> list[Callable[[int], float]]:
    if quantity == "wall_time":
        assert measure is not None
        return [pace.seconds for pace in measure(configs)]
    costs_of = operations if quantity == "train_flops" else count_nonpadding_tokens
    counts = [STEPS, *(min(STEPS, reference.trainer.max_steps) for reference in configs[1:])]
    estimates = [data.estimate(c, sample=SAMPLE, num_steps=n) for c, n in zip(configs, counts, strict=True)]
    return [Costs(costs_of(estimate)).after for estimate in estimates]


def solve_size(
    count: Callable[[NetworkSize], int], start: NetworkSize, goal: float, *, step: int
) -> NetworkSize | None:
    """A size that reaches the goal within the tolerance, by the rule above; None: there is none within the bounds.

    The number of parameters is linear in the depth and in d_ff, as is the effect of d_ff in the depth. So four counts
    of small networks determine it for a width.

    Args:
        count: counts the parameters of a size.
        start: configured size.
        step: widths are multiples of it, so that each head has an even width.
    """
    if count(start) == goal:
        return start
    if found := _depth_and_d_ff(count, start, goal):
        return found

    def of_width(width: int) -> NetworkSize:
        return NetworkSize(width, start.num_layers, max(round(start.d_ff * width / start.d_model), 1))

    widths = [w for w in range(step, WIDER * start.d_model + 1, step) if WIDER * w >= start.d_model != w]
    first = bisect_left(widths, goal, key=lambda width: count(largest_size(of_width(width))))
    last = bisect_right(widths, goal, key=lambda width: count(smallest_size(of_width(width))))
    for width in sorted(widths[first:last], key=lambda width: abs(math.log(width / start.d_model))):
        if found := _depth_and_d_ff(count, of_width(width), goal):
            return found
    return None


def smallest_size(size: NetworkSize) -> NetworkSize:
    """The smallest size of the same width to try."""
    return replace(size, num_layers=1, d_ff=max(size.d_ff // STRETCH, 1))


def largest_size(size: NetworkSize) -> NetworkSize:
    """The largest size of the same width to try."""
    return replace(size, num_layers=DEEPER * size.num_layers, d_ff=STRETCH * size.d_ff)


def _depth_and_d_ff(count: Callable[[NetworkSize], int], start: NetworkSize, goal: float) -> NetworkSize | None:
    f = start.d_ff
    one, two, one_wide, two_wide = (count(replace(start, num_layers=n, d_ff=w)) for w in (f, 2 * f) for n in (1, 2))
    # parameters per further layer; per unit of d_ff in the first layer, and in each further one
    layer, unit, more = two - one, (one_wide - one) / f, (two_wide - two - one_wide + one) / f
    candidates = []
    for n in range(1, DEEPER * start.num_layers + 1) if layer else [start.num_layers]:
        slope = unit + (n - 1) * more
        d_ff = f + (goal - one - (n - 1) * layer) / slope if slope else f  # 0: every stack overrides d_ff
        if f / STRETCH <= d_ff <= f * STRETCH:
            candidates.append((abs(math.log(d_ff / f)), n, d_ff))
    for _, n, d_ff in sorted(candidates):
        for rounded in (8 * round(d_ff / 8), round(d_ff)):
            size = replace(start, num_layers=n, d_ff=rounded)
            if rounded and abs(count(size) / goal - 1) <= TOLERANCE:
                return size
    return None


def solve_steps(total: Callable[[int], float], goal: float) -> int:
    """The number of steps, at least 1, whose total is closest to the goal.

    Args:
        total: total of a number of steps; increasing.
    """
    bound = 1
    while total(bound) < goal:
        bound *= 2
    above = max(bisect_left(range(bound + 1), goal, lo=1, key=total), 1)
    return min((n for n in (above, above - 1) if n), key=lambda n: abs(total(n) - goal))


class Costs:
    """The cost of a number of steps, from the costs of the first ones; each further step costs their mean."""

    def __init__(self, costs: Sequence[float]) -> None:
        self._sums, self._mean = [0.0, *accumulate(costs)], fmean(costs)

    def after(self, steps: int) -> float:
        """The total cost of a number of steps."""
        beyond = max(steps - len(self._sums) + 1, 0)
        return self._sums[steps - beyond] + beyond * self._mean


def operations(estimate: BatchEstimate) -> list[float]:
    """FLOPs of each step over all processes, including the optimizer."""
    network = check_network(estimate.config)
    cost, of_step = TrainingCost(network), optimizer_flops(network, build(estimate.config, "optimizer"))
    return [
        estimate.world_size * sum(cost.by_part(step.shapes, unanswered=step.unprojected).values()) + of_step
        for step in estimate.steps
    ]


def count_nonpadding_tokens(estimate: BatchEstimate) -> list[float]:
    """Non-padding tokens of each step, over all processes."""
    return [estimate.world_size * step.tokens for step in estimate.steps]


def resized(config: DictConfig, size: NetworkSize) -> DictConfig:
    """A copy of a configuration with another size."""
    config = config.copy()
    for key, value in asdict(size).items():
        config.shape[key] = value
    return config


def spell_amount(amount: float) -> str:
    """Formats an amount."""
    return f"{amount:,.0f}" if 100 <= amount < 1e9 else f"{amount:.3e}" if amount >= 1e9 else f"{amount:.3g}"


def tolerance_of(quantity: str) -> float:
    """The maximum relative difference to the goal."""
    return TOLERANCE_OF_TIME if quantity == "wall_time" else TOLERANCE


def compare(mismatch: float) -> str:
    """Formats a relative difference, to be followed by the goal."""
    share = f"{abs(mismatch):.2%}".replace("%", " %")
    return "equal to" if mismatch == 0 else f"{share} {'more' if mismatch > 0 else 'less'} than"
