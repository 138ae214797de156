"""How often a verdict is false, and how often it finds a difference: simulated runs, judged by the public function."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from triptych.report.read_records import RecordedRun, find_runs
from triptych.report.statistics.factors import Factor
from triptych.report.statistics.groups import Group, group_runs
from triptych.report.statistics.significance import FALSE_WINNER
from triptych.report.statistics.verdicts import Verdict, judge

COLLAPSED = -40.0
"""The mean of runs that do not learn; guessing scores one less."""


@dataclass(frozen=True)
class Setting:
    """Two variants whose scores are normal over seeds.

    Attributes:
        seeds: the number of each.
        spreads: the standard deviation of each.
        gap: the first mean minus the second.
        collapse: the probability that a run does not learn.
        winner: the least rate at which the first wins (power); None: not asked.
        false: the largest rate at which a variant that is not better wins.
        draws: simulated comparisons in the nightly test.
    """

    seeds: tuple[int, int]
    false: float
    spreads: tuple[float, float] = (1.0, 1.0)
    gap: float = 0.0
    collapse: float = 0.0
    winner: float | None = None
    draws: int = 4000


SETTINGS = [
    *(
        Setting(seeds, (FALSE_WINNER[0] + 1) / 100 if spreads == (1.0, 1.0) else (FALSE_WINNER[1] + 0.8) / 100, spreads)
        for seeds in ((3, 3), (3, 5), (5, 5), (3, 10))
        for spreads in ((1.0, 1.0), (1.0, 4.0), (4.0, 1.0))
    ),
    Setting((3, 3), 0.0, gap=3.0, winner=0.64),
    Setting((5, 5), 0.0, gap=2.0, winner=0.73),
    *(Setting(seeds, 0.065, collapse=q) for q in (0.1, 0.3, 0.5) for seeds in ((3, 3), (3, 5), (5, 5))),
    Setting((5, 5), 0.01, gap=4.0, collapse=0.1, winner=0.68, draws=2000),
    Setting((2, 2), 0.0, gap=40.0, draws=100),
    Setting((2, 5), 0.0, gap=40.0, draws=100),
]


def name_of(setting: Setting) -> str:
    """``3v5-sd1:4-gap0-collapse0.1``."""
    (m, n), (a, b) = setting.seeds, setting.spreads
    return f"{m}v{n}-sd{a:g}:{b:g}-gap{setting.gap:g}-collapse{setting.collapse:g}"


Judge = Callable[[np.ndarray, np.ndarray], Verdict]


@pytest.fixture
def judged(write_run, tmp_path: Path) -> Judge:
    """Judges scores of two architectures; guessing is the first validation of all runs."""
    for architecture in ("full", "decoder_only"):
        write_run(architecture, "similarity", {"test/spearman": 0.5, "test/pearson": 0.5})
    (group,) = group_runs(find_runs([tmp_path], tmp_path).runs)
    full, decoder = group.runs
    key = group.metric.key

    def runs(template: RecordedRun, values: np.ndarray) -> list[RecordedRun]:
        curve = replace(template.curves["val/pearson"], values=(COLLAPSED - 1,), steps=(1,))
        curves = {key.replace("test/", "val/"): curve}
        return [
            replace(template, seed=seed, metrics={key: float(value)}, curves=curves)
            for seed, value in enumerate(values, start=1)
        ]

    def judged(first: np.ndarray, second: np.ndarray) -> Verdict:
        return judge(Group(group.task, group.data, group.metric, (*runs(full, first), *runs(decoder, second))))

    return judged


def draw(setting: Setting, random: np.random.Generator) -> list[np.ndarray]:
    """The scores of both variants."""
    found = []
    for count, spread, mean in zip(setting.seeds, setting.spreads, (setting.gap, 0.0), strict=True):
        means = np.where(random.random(count) < setting.collapse, COLLAPSED, mean)
        found.append(random.normal(means, spread))
    return found


def check(judged: Judge, setting: Setting, draws: int) -> None:
    """The rates, within three standard errors where there are fewer draws than the specification has."""
    random = np.random.default_rng(draws)
    winners = [judged(*draw(setting, random)).winner for _ in range(draws)]
    wins, losses = (sum(winner == name for winner in winners) / draws for name in ("full", "decoder_only"))

    print(f"{name_of(setting)}: {draws} draws, the first wins {wins:.2%}, the second {losses:.2%}")

    def slack(rate: float) -> float:
        return 0.0 if draws == setting.draws else 3 * math.sqrt(max(rate * (1 - rate), 0.01) / draws)

    assert (losses if setting.gap else wins + losses) <= setting.false + slack(setting.false)
    if setting.winner is not None:
        assert wins >= setting.winner - slack(setting.winner)
    if min(setting.seeds) < 3:
        assert not any(winners)


@pytest.mark.parametrize("setting", SETTINGS, ids=name_of)
def test_rates_of_few_draws(judged: Judge, setting: Setting) -> None:
    check(judged, setting, 100)


@pytest.mark.nightly
@pytest.mark.parametrize("setting", SETTINGS, ids=name_of)
def test_rates(judged: Judge, setting: Setting) -> None:
    check(judged, setting, setting.draws)


def check_blocks(write_run, folder: Path, gap: float, draws: int, false: float, power: float) -> None:
    """Two architectures of three sizes, 5 sd apart, with three seeds each: how often a winner is named, by the mean or
    for any size."""
    for architecture in ("full", "decoder_only"):
        write_run(architecture, "similarity", {"test/spearman": 0.5, "test/pearson": 0.5})
    (group,) = group_runs(find_runs([folder], folder).runs)
    key, size_of = group.metric.key, Factor("shape.num_layers", ("0", "1", "2"), "block")
    random, wins, losses = np.random.default_rng(draws), 0, 0
    for _ in range(draws):
        runs = [
            replace(run, seed=seed, settings={"shape.num_layers": size}, curves={}, metrics={key: float(value)})
            for run, mean in zip(group.runs, (gap, 0.0), strict=True)
            for size in range(3)
            for seed, value in enumerate(random.normal(mean + 5 * size, 1, 3), start=1)
        ]
        verdict = judge(Group(group.task, group.data, group.metric, tuple(runs), factors=(size_of,)))
        named = {verdict.winner, *verdict.by_block.values()}
        wins, losses = wins + ("full" in named), losses + ("decoder_only" in named)
    print(f"blocks, gap {gap:g}: {draws} draws, the first wins {wins / draws:.2%}, the second {losses / draws:.2%}")
    slack = 0.0 if draws == 2000 else 3 * math.sqrt(0.06 / draws)
    assert (losses if gap else wins + losses) / draws <= false + slack
    assert wins / draws >= power - slack


BLOCKS = [pytest.param(0.0, 0.06, 0.0, id="no effect"), pytest.param(2.0, 0.01, 0.92, id="2 sd")]


@pytest.mark.parametrize(("gap", "false", "power"), BLOCKS)
def test_rates_with_blocks_of_few_draws(write_run, tmp_path: Path, gap: float, false: float, power: float) -> None:
    check_blocks(write_run, tmp_path, gap, 60, false, power)


@pytest.mark.nightly
@pytest.mark.parametrize(("gap", "false", "power"), BLOCKS)
def test_rates_with_blocks(write_run, tmp_path: Path, gap: float, false: float, power: float) -> None:
    check_blocks(write_run, tmp_path, gap, 2000, false, power)


RATES = (0.001, 0.002, 0.004, 0.008, 0.016)
"""Learning rates that a search tries."""
KINDS = ("a", "b", "c", "d", "e")
"""Other settings that it tries, which have no largest one."""
Means = Callable[[np.random.Generator], list[np.ndarray]]


def judge_searches(
    write_run, folder: Path, draws: int, values: Sequence[object], draw_means: Means
) -> list[tuple[str | None, bool]]:
    """Two architectures with a search each: one seed on the validation set chooses, and three other seeds are tested.

    Args:
        values: of the setting that the searches vary.
        draw_means: the true mean of each trial of each architecture.

    Returns:
        the winner of each comparison, and whether it has the better mean as it was trained.
    """
    for architecture in ("full", "decoder_only"):
        write_run(architecture, "similarity", {"test/spearman": 0.5, "test/pearson": 0.5})
    (group,) = group_runs(find_runs([folder], folder).runs)
    key, random, found = group.metric.key, np.random.default_rng(draws), list[tuple[str | None, bool]]()
    for _ in range(draws):
        runs, trials, reached = list[RecordedRun](), list[RecordedRun](), list[float]()
        for run, means in zip(group.runs, draw_means(random), strict=True):
            configurations = [replace(run, settings={"optimizer.lr": x}, curves={}) for x in values[: len(means)]]
            chosen = int(random.normal(means, 1).argmax())
            trials += [replace(trial, seed=101, metrics={}) for trial in configurations]
            runs += [
                replace(configurations[chosen], seed=seed, metrics={key: float(value)})
                for seed, value in enumerate(random.normal(means[chosen], 1, 3), start=1)
            ]
            reached.append(means[chosen])
        winner = judge(Group(group.task, group.data, group.metric, tuple(runs), untested=tuple(trials))).winner
        found.append((winner, reached[winner == "decoder_only"] > reached[winner == "full"]))
    return found


@pytest.mark.parametrize("tau", [0.0, 1.0])
@pytest.mark.parametrize(
    "draws", [pytest.param(100, id="few draws"), pytest.param(4000, marks=pytest.mark.nightly, id="all draws")]
)
def test_rates_of_equal_searches(write_run, tmp_path: Path, draws: int, tau: float) -> None:
    """Trials differ by tau sd; the winner is better as it was trained."""
    found = judge_searches(write_run, tmp_path, draws, KINDS, lambda random: [*random.normal(0, tau, (2, 5))])
    slack = 3 * math.sqrt(0.06 / draws) if draws < 4000 else 0.0
    false = sum(winner is not None and not is_better for winner, is_better in found) / draws
    print(f"searches, tau {tau:g}: {draws} draws, false {false:.2%}")
    assert false <= 0.06 + slack


@pytest.mark.parametrize(
    "draws", [pytest.param(50, id="few draws"), pytest.param(500, marks=pytest.mark.nightly, id="all draws")]
)
def test_rates_of_a_search_whose_best_rate_was_not_tried(write_run, tmp_path: Path, draws: int) -> None:
    """It is one step beyond the largest of the first architecture, which would be as good as the second with it. One
    step costs 2 sd, two cost 8."""
    means = [-2.0 * (np.arange(5) - best) ** 2 for best in (5, 2)]
    found = judge_searches(write_run, tmp_path, draws, RATES, lambda _: means)
    assert "decoder_only" not in [winner for winner, _ in found]


def test_a_search_of_more_trials_names_no_winner(write_run, tmp_path: Path) -> None:
    means = [np.full(24, 5.0), np.zeros(1)]
    assert {winner for winner, _ in judge_searches(write_run, tmp_path, 100, range(24), lambda _: means)} == {None}
