"""``match=... reference=...``: the size, or the number of updates, that gives a training the budget of another one.

- ``params``, ``active_params``: the size is solved, the training stays as long as it is. Width and heads are kept. To
  each depth belongs the d_ff that matches; taken is the depth whose d_ff is nearest to the configured one, as a ratio,
  and at most twice or half of it. Where there is none, the next width is tried (d_ff in proportion to it), the nearest
  first, as a ratio. So d_ff is solved last; it is a multiple of 8 if that is near enough.
- ``train_flops``, ``tokens``, ``wall_time``: the number of updates is solved, the network stays as it is. The schedule
  follows: its warm-up stays, its decay ends with the training.
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
from triptych.assembly.network import check_network
from triptych.config import ARCHITECTURES, ConfigError, build, counted, nearest, refusing, target_of
from triptych.config.overrides import base_of, composed_with, has_towers
from triptych.models.flops import COUNTED, TrainingCost, active_parameters, count_parameters
from triptych.planning.batch_shapes import BatchEstimate, Data
from triptych.planning.findings import listening
from triptych.storage.run_directory import RunDirectory
from triptych.training.optimizers import optimizer_flops

log = logging.getLogger("triptych")

SIZES = ("params", "active_params")
"""What depends on the network alone."""
RECORDED = {"params": "params", "active_params": "active_params", "train_flops": "train_flops",
            "tokens": "train_tokens", "wall_time": "wall_time_s"}  # fmt: skip
"""Where summary.json has each quantity."""
UNITS = {"params": "parameters", "active_params": "active parameters", "train_flops": "FLOP", "tokens": "tokens",
         "wall_time": "s"}  # fmt: skip
TOLERANCE, TOLERANCE_OF_TIME = 0.02, 0.1
"""The most that is left between a match and its goal, as a share of the goal."""
DEEPER, WIDER, STRETCH = 4, 4, 2
"""At most so many times the configured depth, the configured width (or its part), and the proportional d_ff (or its
part)."""
SAMPLE, UPDATES = 50_000, 100
"""Training examples that are laid out, and updates of these whose cost is counted. What goes beyond costs their
mean."""
TOWERS = ("two_encoders", "two_decoders")
"""What can do what needs two towers."""


@dataclass(frozen=True, slots=True)
class Size:
    """What is solved of a network.

    Attributes:
        d_model: width.
        num_layers: of each stack.
        d_ff: width of the feed-forward sub-layers.
    """

    d_model: int
    num_layers: int
    d_ff: int


@dataclass(frozen=True, slots=True)
class Reference:
    """What a training is matched with.

    Attributes:
        name: as it was given.
        config: of an architecture that is not the training's own.
        record: of a finished run.
        goal: of a finished run, or of a number, the amount itself.
    """

    name: str
    config: DictConfig | None = None
    record: Mapping[str, Any] | None = None
    goal: float | None = None


@dataclass(frozen=True, slots=True)
class Match:
    """A match that was found.

    Attributes:
        quantity: what ``match`` says.
        reference: as it was given.
        goal: what the reference has of it; None: the training is the reference.
        expected: what this training will have of it; None: the training is the reference.
        given: what the configuration says of the settings that may be solved, by their keys.
        chosen: what was put in its place; only what differs.
    """

    quantity: str
    reference: str
    goal: float | None
    expected: float | None
    given: Mapping[str, int]
    chosen: Mapping[str, int]

    def apply(self, config: DictConfig) -> None:
        """Puts it into the configuration."""
        for key, value in self.chosen.items():
            OmegaConf.update(config, key, value)

    def record(self, reached: float) -> dict[str, Any]:
        """For summary.json.

        Args:
            reached: what the training had of the quantity in the end.
        """
        goal = reached if self.goal is None else self.goal
        return {**asdict(self), "goal": goal, "reached": reached, "mismatch": reached / goal - 1}

    def warn_of(self, record: Mapping[str, Any]) -> None:
        """Says so where the training has not kept to it: where it was stopped early, or slower than measured."""
        if abs(record["mismatch"]) > tolerance_of(self.quantity):
            log.warning(
                "match=%s reference=%s: in the end %s %s, %s %s",
                self.quantity,
                self.reference,
                spell(record["reached"]),
                UNITS[self.quantity],
                compare(record["mismatch"]),
                spell(record["goal"]),
            )

    def __str__(self) -> str:
        if self.goal is None or self.expected is None:
            return f"match={self.quantity} reference={self.reference}: this is the reference, nothing is solved"
        solved = [f"{key}={value} (was {self.given[key]})" for key, value in self.chosen.items()]
        unit = UNITS[self.quantity]
        return (
            f"match={self.quantity} reference={self.reference}: {', '.join(solved) or 'nothing to change'}: "
            f"{spell(self.expected)} {unit}, {compare(self.expected / self.goal - 1)} {spell(self.goal)}"
        )


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a training is.

    Attributes:
        update: seconds of one.
        validation: seconds of a whole one.
        interval: updates from one validation to the next.
    """

    update: float
    validation: float
    interval: float

    def seconds(self, updates: int) -> float:
        """How long a training of so many updates takes."""
        return updates * self.update + updates // self.interval * self.validation


Measure = Callable[[Sequence[DictConfig]], Sequence[Pace]]
"""Measures the paces of trainings."""


def reference_of(config: DictConfig, overrides: Sequence[str]) -> Reference | None:
    """The reference, as far as it is known before the data are read. None: nothing is matched."""
    quantity, name = config.match, config.reference
    if quantity is None and name is None:
        return None
    if name is None:
        raise ConfigError(f"match={quantity} needs a reference: one of {_expected(config)}")
    if quantity is None:
        raise ConfigError(f"reference={name} needs match=...: give match={', '.join(RECORDED)}, or omit it")
    if config.resume not in ("auto", "never"):
        raise ConfigError(f"match={quantity}: resume={config.resume} goes on with another run's network and updates")
    if config.init_from is not None and (quantity in SIZES or name in _models(config)):
        raise ConfigError(
            f"match={quantity} reference={name}: init_from={config.init_from} says what the network is; expected "
            "match=train_flops, tokens or wall_time, and a finished run as the reference"
        )
    if (amount := _amount(quantity, name)) is not None:
        return Reference(name, goal=amount)
    if name not in _models(config):
        return _run(config, name)
    if name == base_of(config):
        return Reference(name)
    other = composed_with(name, overrides)
    with refusing(f"reference={name}: "):
        check_grid(other)
        choose_parts(other)
        check_network(other)
    return Reference(name, config=other)


def _models(config: DictConfig) -> tuple[str, ...]:
    """The architectures that a reference can be."""
    return TOWERS if has_towers(config) else ARCHITECTURES


def _expected(config: DictConfig) -> str:
    """What a reference can be."""
    return f"{', '.join(_models(config))}, the directory of a finished run, or a number"


def _amount(quantity: str, name: str) -> float | None:
    """A reference that is a number: the goal itself."""
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
            raise ConfigError(f"reference={name} holds several runs; expected the directory of one of them")
        if run.path.is_dir():
            raise ConfigError(f"reference={name}: there is no {path.name}, so no run is finished there")
        raise ConfigError(f"reference={name}: expected {_expected(config)}{nearest(name, _models(config))}")
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        goal = record.get(RECORDED[config.match])
    except (ValueError, AttributeError):
        raise ConfigError(f"reference={name}: {path} is damaged") from None
    task = target_of(config, "task").name
    if record.get("task") != task:
        raise ConfigError(f"reference={name} has task={record.get('task')}, but this run has task={task}")
    their_data = OmegaConf.select(OmegaConf.load(run.config), "data._target_") if run.config.exists() else None
    if their_data not in (None, config.data._target_):
        raise ConfigError(f"reference={name} has data={record.get('data')}, but this run has {config.data._target_}")
    if not isinstance(goal, int | float) or not goal > 0:
        raise ConfigError(f"match={config.match}: {path} says {RECORDED[config.match]}={goal}; expected more than 0")
    if config.match == "train_flops" and record.get("train_flops_of") != list(COUNTED):
        raise ConfigError(
            f"match=train_flops: {path} counts operations without those of the optimizer; train {name} again, or give "
            "the number of operations as the reference"
        )
    return Reference(name, record=record, goal=float(goal))


def check_same(reference: Reference, quantity: str, *, data: str, tokenizer: str) -> None:
    """Refuses a run on other data, and tokens of another tokenizer.

    Args:
        data: SHA-256 of the examples.
        tokenizer: SHA-256 of the tokenizer.
    """
    if reference.record is None:
        return
    if (theirs := reference.record.get("data_sha256")) != data:
        raise ConfigError(
            f"reference={reference.name} was trained on other data: SHA-256 {str(theirs)[:8]}, here {data[:8]}"
        )
    if quantity == "tokens" and reference.record.get("tokenizer_sha256") != tokenizer:
        raise ConfigError(f"match=tokens reference={reference.name}: its tokens are those of another tokenizer")


def check_countable(config: DictConfig, world_size: int) -> None:
    """Refuses to measure the time of several processes."""
    if config.match == "wall_time" and world_size > 1:
        raise ConfigError(
            f"match=wall_time measures one process, and trainer.devices={config.trainer.devices} are {world_size}; "
            "expected one, or match=train_flops"
        )


def recorded(config: DictConfig) -> Match | None:
    """What a run that was begun has found, which is then not sought again. None: no run was begun, or one with other
    settings (which will be refused)."""
    run = RunDirectory(config.run_dir)
    is_begun = any(run.checkpoints.glob("*.ckpt")) or run.is_done(is_trial=True)
    if config.match is None or config.resume == "never" or not is_begun or not run.match.is_file():
        return None
    match = Match(**json.loads(run.match.read_text(encoding="utf-8")))
    is_same = (match.quantity, match.reference) == (config.match, config.reference)
    return match if is_same and settings(config, match.quantity) == match.given else None


def settings(config: DictConfig, quantity: str) -> dict[str, int]:
    """What may be solved for a quantity, by its keys."""
    names = ("shape.num_layers", "shape.d_model", "shape.d_ff") if quantity in SIZES else ("trainer.max_steps",)
    return {name: int(OmegaConf.select(config, name)) for name in names}


def find_match(config: DictConfig, reference: Reference, data: Data, measure: Measure | None) -> Match:
    """Solves what the quantity depends on. Changes nothing.

    Args:
        measure: the paces of trainings; of ``match=wall_time`` alone.
    """
    quantity, name, given = config.match, reference.name, settings(config, config.match)
    goal = reference.goal
    if reference.config is None and goal is None:
        return Match(quantity, name, None, None, given, {})
    own, other = data.complete(config), None if reference.config is None else data.complete(reference.config)
    if quantity in SIZES:
        count = active_parameters if quantity == "active_params" else lambda network: count_parameters(network)[0]
        goal = goal if other is None else count(check_network(other))
        assert goal is not None
        found, expected = _solved_size(own, reference, goal, lambda size: count(check_network(resized(own, size))))
    else:
        with listening([]):  # what is to be said of the data is said when they are made ready for the training
            totals = _totals(quantity, [own] if other is None else [own, other], data, measure)
        goal = goal if other is None else totals[1](other.trainer.max_steps)
        assert goal is not None
        updates = solve_updates(totals[0], goal)
        found, expected = {"trainer.max_steps": updates}, totals[0](updates)
        if abs(expected / goal - 1) > tolerance_of(quantity):
            raise ConfigError(
                f"match={quantity} reference={name}: {counted(updates, 'update')} would be {spell(expected)} "
                f"{UNITS[quantity]}, {compare(expected / goal - 1)} {spell(goal)}, and no other number is nearer: "
                "expected a longer run"
            )
    chosen = {key: value for key, value in found.items() if value != given[key]}
    return Match(quantity, name, goal, expected, given, chosen)


def _solved_size(
    own: DictConfig, reference: Reference, goal: float, count: Callable[[Size], int]
) -> tuple[dict[str, int], float]:
    start = Size(own.shape.d_model, own.shape.num_layers, own.shape.d_ff)
    heads = [own.model[name].num_heads for name in ("encoder", "decoder") if name in own.model]
    size = solve_size(count, start, goal, step=2 * lcm(*heads))
    if size is None:
        least, most = count(smallest(start)), count(largest(start))
        raise ConfigError(
            f"match={own.match} reference={reference.name}: no size near shape.d_model={start.d_model} num_layers="
            f"{start.num_layers} d_ff={start.d_ff} of model={target_of(own, 'model').architecture} has {spell(goal)} "
            f"{UNITS[own.match]}; of this width it has {least:,} to {most:,}"
        )
    return {f"shape.{key}": value for key, value in asdict(size).items()}, count(size)


def _totals(
    quantity: str, configs: Sequence[DictConfig], data: Data, measure: Measure | None
) -> list[Callable[[int], float]]:
    if quantity == "wall_time":
        assert measure is not None
        return [pace.seconds for pace in measure(configs)]
    costs_of = operations if quantity == "train_flops" else real_tokens
    counts = [UPDATES, *(min(UPDATES, reference.trainer.max_steps) for reference in configs[1:])]
    estimates = [data.estimate(c, sample=SAMPLE, num_updates=n) for c, n in zip(configs, counts, strict=True)]
    return [Costs(costs_of(estimate)).after for estimate in estimates]


def solve_size(count: Callable[[Size], int], start: Size, goal: float, *, step: int) -> Size | None:
    """A size that has the goal within the tolerance, by the rule above. None: there is none within bounds.

    Parameters are linear in depth and in d_ff, and so is what a unit of d_ff adds in the depth: four counts of small
    networks say all of a width.

    Args:
        count: parameters of a size, or the like.
        start: as it is configured.
        step: widths are multiples of it; so they divide by the number of heads, into even parts.
    """
    if count(start) == goal:
        return start
    if found := _depth_and_d_ff(count, start, goal):
        return found

    def of_width(width: int) -> Size:
        return Size(width, start.num_layers, max(round(start.d_ff * width / start.d_model), 1))

    widths = [w for w in range(step, WIDER * start.d_model + 1, step) if WIDER * w >= start.d_model != w]
    first = bisect_left(widths, goal, key=lambda width: count(largest(of_width(width))))
    last = bisect_right(widths, goal, key=lambda width: count(smallest(of_width(width))))
    for width in sorted(widths[first:last], key=lambda width: abs(math.log(width / start.d_model))):
        if found := _depth_and_d_ff(count, of_width(width), goal):
            return found
    return None


def smallest(size: Size) -> Size:
    """The smallest that is tried in the place of a size, with its width."""
    return replace(size, num_layers=1, d_ff=max(size.d_ff // STRETCH, 1))


def largest(size: Size) -> Size:
    """The largest that is tried in the place of a size, with its width."""
    return replace(size, num_layers=DEEPER * size.num_layers, d_ff=STRETCH * size.d_ff)


def _depth_and_d_ff(count: Callable[[Size], int], start: Size, goal: float) -> Size | None:
    f = start.d_ff
    one, two, one_wide, two_wide = (count(replace(start, num_layers=n, d_ff=w)) for w in (f, 2 * f) for n in (1, 2))
    # of the first layer, and of each further one: what it has, and what a unit of d_ff adds
    layer, unit, more = two - one, (one_wide - one) / f, (two_wide - two - one_wide + one) / f
    candidates = []
    for n in range(1, DEEPER * start.num_layers + 1) if layer else [start.num_layers]:
        slope = unit + (n - 1) * more
        d_ff = f + (goal - one - (n - 1) * layer) / slope if slope else f  # 0: that of every stack is overridden
        if f / STRETCH <= d_ff <= f * STRETCH:
            candidates.append((abs(math.log(d_ff / f)), n, d_ff))
    for _, n, d_ff in sorted(candidates):
        for rounded in (8 * round(d_ff / 8), round(d_ff)):
            size = replace(start, num_layers=n, d_ff=rounded)
            if rounded and abs(count(size) / goal - 1) <= TOLERANCE:
                return size
    return None


def solve_updates(total: Callable[[int], float], goal: float) -> int:
    """The number of updates, at least 1, whose total is nearest to the goal.

    Args:
        total: of so many updates; grows with them.
    """
    bound = 1
    while total(bound) < goal:
        bound *= 2
    above = max(bisect_left(range(bound + 1), goal, lo=1, key=total), 1)
    return min((n for n in (above, above - 1) if n), key=lambda n: abs(total(n) - goal))


class Costs:
    """What a number of updates costs, from what the first ones cost: those beyond cost the mean.

    Args:
        costs: of each of the first updates.
    """

    def __init__(self, costs: Sequence[float]) -> None:
        self._sums, self._mean = [0.0, *accumulate(costs)], fmean(costs)

    def after(self, updates: int) -> float:
        """The cost of all updates up to this one."""
        beyond = max(updates - len(self._sums) + 1, 0)
        return self._sums[updates - beyond] + beyond * self._mean


def operations(estimate: BatchEstimate) -> list[float]:
    """Operations of each update, over all processes, and of the optimizer's step."""
    network = check_network(estimate.config)
    cost, of_step = TrainingCost(network), optimizer_flops(network, build(estimate.config, "optimizer"))
    return [
        estimate.world_size * sum(cost.by_part(update.shapes, unanswered=update.unanswered).values()) + of_step
        for update in estimate.updates
    ]


def real_tokens(estimate: BatchEstimate) -> list[float]:
    """Tokens that the network reads in each update, over all processes."""
    return [estimate.world_size * update.tokens for update in estimate.updates]


def resized(config: DictConfig, size: Size) -> DictConfig:
    """A copy of a configuration with another size."""
    config = config.copy()
    for key, value in asdict(size).items():
        config.shape[key] = value
    return config


def spell(amount: float) -> str:
    """An amount for people."""
    return f"{amount:,.0f}" if 100 <= amount < 1e9 else f"{amount:.3e}" if amount >= 1e9 else f"{amount:.3g}"


def tolerance_of(quantity: str) -> float:
    """The most that may be left, as a share of the goal."""
    return TOLERANCE_OF_TIME if quantity == "wall_time" else TOLERANCE


def compare(mismatch: float) -> str:
    """A difference to a goal for people, in front of the goal."""
    share = f"{abs(mismatch):.2%}".replace("%", " %")
    return "as many as" if mismatch == 0 else f"{share} {'more' if mismatch > 0 else 'less'} than"
