"""Searched and listed values of the command line: Hydra's overrides as Optuna's distributions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import product

from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, RangeSweep, Sweep, ValueType
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from triptych.config import ConfigError, error_prefix, nearest
from triptych.launch.sweep import NAMING

Distribution = CategoricalDistribution | FloatDistribution | IntDistribution
Value = float | int | str


@dataclass(frozen=True)
class Space:
    """The values that a command line asks for.

    Attributes:
        fixed: the overrides that all jobs share.
        listed: the overrides of each key with several values, separated by commas.
        searched: the distribution of each searched key, in the order of the keys.
    """

    fixed: list[str]
    listed: dict[str, list[str]]
    searched: dict[str, Distribution]

    def combinations(self) -> list[list[str]]:
        """The overrides of each study: all combinations of listed values."""
        return [list(chosen) for chosen in product(*self.listed.values())]


def read_space(overrides: Sequence[Override]) -> Space:
    """Classifies the overrides of a search; the last one per key counts."""
    by_key = {override.get_key_element(): override for override in overrides}
    fixed: list[str] = []
    listed: dict[str, list[str]] = {}
    searched: dict[str, Distribution] = {}
    for key, override in by_key.items():
        value = override.value()
        if isinstance(value, ChoiceSweep) and any(isinstance(part, Sweep) for part in value.list):
            raise ConfigError(
                f"{override.input_line}: expected either a list of values, {key}=1,2, or one interval(a,b), range(a,b) "
                "or choice(a,b)"
            )
        if not override.is_sweep_override():
            assert override.input_line is not None
            fixed.append(override.input_line)
        elif key == "seed":
            seeds = ",".join(override.sweep_string_iterator()) if override.is_discrete_sweep() else "1,2,3"
            raise ConfigError(
                f"{override.input_line}: seeds are not searched; hydra.sweeper.seeds=[{seeds}] runs each trial with all"
            )
        elif key == "run_dir":
            raise ConfigError(f"{override.input_line}: expected one folder, for the whole search")
        elif override.value_type in (ValueType.SIMPLE_CHOICE_SWEEP, ValueType.GLOB_CHOICE_SWEEP):
            listed[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
        else:
            searched[key] = distribution_of(override)
    if not searched:
        raise ConfigError(
            "hydra/sweeper=optuna: nothing to search; give at least one key=interval(a,b), key=choice(a,b,c) or "
            "key=range(a,b) (what is listed by commas is not searched)"
        )
    return Space(fixed, listed, dict(sorted(searched.items())))


def distribution_of(override: Override) -> Distribution:
    """The distribution of ``interval(a,b)`` (numbers from a to b; integers with ``int(interval(a,b))``),
    ``range(a,b,step)`` (a, a + step, ... below b) or ``choice(a,b,...)``; on a log scale with the tag log."""
    sweep, line = override.value(), override.input_line
    assert isinstance(sweep, Sweep)
    for tag in sweep.tags - {"log"}:
        raise ConfigError(f"{line}: unknown tag {tag}; expected tag(log,...){nearest(tag, ['log'])}")
    log = "log" in sweep.tags
    if isinstance(sweep, ChoiceSweep | RangeSweep) and sweep.shuffle:
        raise ConfigError(f"{line}: a search does not support shuffle")
    if isinstance(sweep, ChoiceSweep):
        if log:
            raise ConfigError(f"{line}: a choice does not support the tag log")
        return CategoricalDistribution(list(override.sweep_string_iterator()))
    step: float | None = None
    if isinstance(sweep, IntervalSweep):
        assert sweep.start is not None
        assert sweep.end is not None
        low, high = sweep.start, sweep.end
    else:
        assert isinstance(sweep, RangeSweep)
        values = sorted(sweep.range())
        if not values:
            raise ConfigError(f"{line}: an empty range")
        low, high, step = values[0], values[-1], abs(sweep.step)
        if isinstance(high, float):  # a whole number of steps, as Optuna requires
            high = float(Decimal(str(low)) + (len(values) - 1) * Decimal(str(step)))
    with error_prefix(f"{line}: "):
        if isinstance(low, int) and isinstance(high, int):
            return IntDistribution(low, high, log=log, step=1 if step is None else int(step))
        return FloatDistribution(low, high, log=log, step=step)


def lowest(searched: Mapping[str, Distribution]) -> dict[str, Value]:
    """A fixed value of each key: the lowest, or the first."""
    return {
        key: str(distribution.choices[0]) if isinstance(distribution, CategoricalDistribution) else distribution.low
        for key, distribution in searched.items()
    }


def other_names(searched: Mapping[str, Distribution]) -> list[dict[str, Value]]:
    """Choices that change the name of a run: all but the first of a searched experiment, corpus, task or model."""
    return [
        {key: str(choice)}
        for key in ("experiment", *NAMING)
        if isinstance(distribution := searched.get(key), CategoricalDistribution)
        for choice in distribution.choices[1:]
    ]


def as_overrides(values: Mapping[str, Value]) -> list[str]:
    """The parameters of a trial as Hydra overrides; a choice is already text."""
    return [f"{key}={value}" for key, value in values.items()]
