"""Differences within the levels of another setting: their mean, and whether they differ."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from triptych.report.compare import compare
from triptych.report.read_records import find_runs
from triptych.report.statistics.audit import audit
from triptych.report.statistics.blocks import average_over_blocks, interaction_p
from triptych.report.statistics.factors import find_roles
from triptych.report.statistics.groups import Group, group_runs
from triptych.report.statistics.significance import Welch
from triptych.report.statistics.standings import compare_pairs, describe_training
from triptych.report.statistics.verdicts import judge

Scores = Mapping[tuple[str, int], Sequence[float]]
Judged = Callable[..., Group]

CROSSED: Scores = {
    ("multi_head", 2): (0.61, 0.60, 0.62),
    ("performer", 2): (0.567, 0.592, 0.597),
    ("multi_head", 4): (0.90, 0.89, 0.88),
    ("performer", 4): (0.878, 0.868, 0.858),
}


@pytest.fixture
def grouped(write_run, tmp_path: Path) -> Judged:
    """Runs of attentions and numbers of layers, with these scores of the seeds."""

    def grouped(
        scores: Scores,
        rates: Sequence[float] = (1e-3,),
        architecture: str = "encoder_only",
        by: Sequence[str] = ("block/attention",),
        without: Sequence[tuple[str, int, float]] = (),
    ) -> Group:
        for (attention, layers), values in scores.items():
            for lr in rates:
                if (attention, layers, lr) in without:
                    continue
                for seed, value in enumerate(values, start=1):
                    settings = {"block": {"attention": attention}, "shape": {"num_layers": layers}}
                    command = f"triptych train block/attention={attention} shape.num_layers={layers} optimizer.lr={lr}"
                    write_run(
                        architecture, "classification", {"val/accuracy": 1 - abs(lr - 2e-3), "test/accuracy": value},
                        seed=seed, settings={**settings, "optimizer": {"lr": lr}}, changes={"command": command},
                        name=f"{attention}{layers}{lr}",
                    )  # fmt: skip
        (group,) = group_runs(find_runs([tmp_path / "runs"], tmp_path).runs, by=by)
        return group

    return grouped


def test_the_mean_is_that_of_the_formulas() -> None:
    """Welch and Satterthwaite's degrees of freedom, from the variances of all cells."""
    random = np.random.default_rng(3)
    cells = [(random.normal(1, s, n), random.normal(0, t, n)) for s, t, n in ((1, 2, 3), (0.5, 1, 4), (2, 1, 5))]
    found = average_over_blocks([Welch.of(list(a), list(b)) for a, b in cells])
    parts = [(x.var(ddof=1) / len(x) / 9, len(x) - 1) for pair in cells for x in pair]
    error = math.sqrt(sum(part for part, _ in parts))
    freedom = sum(part for part, _ in parts) ** 2 / sum(part**2 / count for part, count in parts)
    difference = np.mean([a.mean() - b.mean() for a, b in cells])
    assert (found.difference, found.error, found.freedom) == pytest.approx((difference, error, freedom))
    assert found.p == pytest.approx(2 * stats.t.sf(difference / error, freedom))


def test_one_block_is_as_before() -> None:
    """With unequal seeds, the degrees of freedom are capped."""
    one = Welch.of([0.98, 0.982, 0.979], [0.95, 0.948, 0.953, 0.951, 0.949])
    again = average_over_blocks([one])
    assert (again.difference, again.error, again.freedom) == pytest.approx((one.difference, one.error, one.freedom))


def test_interaction_of_equal_numbers_of_seeds() -> None:
    """The sum of squares of cell means without those of rows and columns."""
    values = np.random.default_rng(0).normal(size=(2, 3, 4)) + np.array([[0, 0, 0], [0, 1, 3]])[..., None]
    means = values.mean(-1)
    rest = means - means.mean(0) - means.mean(1, keepdims=True) + means.mean()
    statistic = (4 * (rest**2).sum() / 2) / values.var(-1, ddof=1).mean()
    assert interaction_p(values.tolist()) == pytest.approx(stats.f.sf(statistic, 2, 18))
    rounded = (4 * (rest**2).sum() / 2) / (values.var(-1, ddof=1).mean() + 0.5**2 / 12)
    assert interaction_p(values.tolist(), grain=0.5) == pytest.approx(stats.f.sf(rounded, 2, 18))


def test_interaction_of_unequal_numbers_of_seeds() -> None:
    """Two linear models of all runs: with effects of rows and columns, and with a mean per cell."""
    random, counts = np.random.default_rng(1), [[3, 5], [4, 3], [3, 6]]
    cells = [[random.normal(a * b, 1, counts[a][b]).tolist() for b in range(2)] for a in range(3)]
    runs = [(a, b, x) for a in range(3) for b in range(2) for x in cells[a][b]]
    y = np.array([x for *_, x in runs])

    def residual(columns: list[list[float]]) -> float:
        design = np.array(columns, float)
        return float(((y - design @ np.linalg.pinv(design) @ y) ** 2).sum())

    additive = residual([[a == 0, a == 1, a == 2, b == 0, b == 1] for a, b, _ in runs])
    whole = residual([[(a, b) == (i, j) for i in range(3) for j in range(2)] for a, b, _ in runs])
    statistic = ((additive - whole) / 2) / (whole / (len(runs) - 6))
    assert interaction_p(cells) == pytest.approx(stats.f.sf(statistic, 2, len(runs) - 6))


def test_without_spread_or_blocks_there_is_no_interaction() -> None:
    assert interaction_p([[[1.0, 1.0], [2.0, 2.0]], [[1.0, 1.0], [9.0, 9.0]]]) == 1.0
    assert interaction_p([[[1.0, 2.0]], [[5.0, 6.0]]]) == 1.0


def test_a_crossed_setting_is_a_block(grouped: Judged) -> None:
    """Within two layers or four, three seeds cannot decide it; their mean can."""
    group = grouped(CROSSED)
    assert [(factor.key, factor.role) for factor in group.factors] == [
        ("block/attention", "compared"),
        ("shape.num_layers", "block"),
    ]
    for block in group.blocks.values():
        assert judge(block).winner is None
    differences = [Welch.of(CROSSED["multi_head", layers], CROSSED["performer", layers]) for layers in (2, 4)]
    low, high = (100 * end for end in average_over_blocks(differences).interval)
    verdict = judge(group)
    assert (verdict.winner, verdict.by_block) == ("attention=multi_head", {})
    assert verdict.text == (
        "Mean over num_layers=2, num_layers=4: attention=multi_head 75.0 % (6 runs) vs attention=performer 72.7 % "
        f"(6 runs); attention=multi_head is 2.3 points ahead of attention=performer (95 % interval {low:.2f} to "
        f"{high:.1f} points): attention=multi_head is better."
    )


def test_the_pairs_are_compared_within_each_block(grouped: Judged) -> None:
    pairs = compare_pairs(grouped(CROSSED))
    assert [pair.block for pair in pairs] == ["num_layers=2", "num_layers=4", "mean over 2 blocks"]
    assert [pair.difference for pair in pairs] == pytest.approx([0.61 - 1.756 / 3, 0.022, 0.305 + 0.011 - 1.756 / 6])
    assert pairs[2].low > 0 > pairs[0].low


def test_an_effect_that_depends_on_the_block(grouped: Judged) -> None:
    """One verdict each: p is 0.0003 and 0.03, doubled by Holm."""
    scores = {**CROSSED, ("performer", 2): (0.64, 0.65, 0.66), ("performer", 4): (0.80, 0.79, 0.81)}
    group = grouped(scores)
    p = interaction_p([[scores[x, layers] for layers in (2, 4)] for x in ("multi_head", "performer")])
    verdict = judge(group)
    assert (verdict.winner, verdict.outcome, verdict.commands) == (None, "inconclusive", ())
    assert verdict.reasons == (f"the difference depends on the block (F test of interaction, p = {p:.2g})",)
    assert verdict.by_block == {"num_layers=2": "attention=performer", "num_layers=4": "attention=multi_head"}
    assert verdict.text.startswith(f"Mean over num_layers=2, num_layers=4: no verdict, because {verdict.reasons[0]}. ")
    assert "num_layers=4: attention=multi_head 89.0 % (3 seeds) vs attention=performer 80.0 % (3 seeds)" in verdict.text


def test_holm_corrects_the_verdicts_of_the_blocks(grouped: Judged) -> None:
    scores = {**CROSSED, ("performer", 2): (0.628, 0.638, 0.648), ("performer", 4): (0.80, 0.79, 0.81)}
    assert 0.025 < Welch.of(scores["multi_head", 2], scores["performer", 2]).p < 0.05
    scores |= {("performer", 4): (0.865, 0.873, 0.857)}
    assert 0.025 < Welch.of(scores["multi_head", 4], scores["performer", 4]).p < 0.05
    verdict = judge(grouped(scores))
    assert verdict.by_block == {"num_layers=2": None, "num_layers=4": None}
    assert verdict.text.count("inconclusive, because p is not below 5 % after Holm's correction") == 2


def test_better_within_each_block(grouped: Judged) -> None:
    """By how much differs, but not which one."""
    scores = {**CROSSED, ("performer", 2): (0.40, 0.41, 0.42), ("performer", 4): (0.80, 0.79, 0.81)}
    verdict = judge(grouped(scores))
    assert (verdict.winner, verdict.outcome, verdict.reasons) == ("attention=multi_head", "better", ())
    assert [*verdict.by_block.values()] == ["attention=multi_head"] * 2
    assert "the difference depends on the block" in verdict.text


def test_failed_runs_leave_no_verdict_of_the_mean(grouped: Judged) -> None:
    verdict = judge(grouped({**CROSSED, ("performer", 4): (0.872, 0.862, math.nan)}))
    assert verdict.winner is None
    assert verdict.reasons == ("1 of 12 runs failed",)
    assert (
        "num_layers=4: attention=multi_head 89.0 % (3 seeds) vs attention=performer 86.7 % (2 seeds; " in verdict.text
    )


def test_blocks_that_a_level_lacks_are_left_out_and_named(grouped: Judged) -> None:
    verdict = judge(grouped({**CROSSED, ("multi_head", 8): (0.99, 0.98, 0.97)}))
    assert verdict.winner == "attention=multi_head"
    assert verdict.text.endswith(" Left out: num_layers=8 has no attention=performer run.")
    assert verdict.text.startswith("Mean over num_layers=2, num_layers=4: ")


def test_levels_that_are_never_side_by_side(grouped: Judged) -> None:
    scores = {("multi_head", 2): (0.6, 0.61, 0.62), ("multi_head", 8): (0.9, 0.91, 0.92), ("performer", 4): (0.1,) * 3}
    group = grouped(scores)
    verdict = judge(group)
    assert (verdict.winner, verdict.outcome) == (None, "inconclusive")
    assert verdict.reasons == (
        "never side by side: num_layers=2 has no attention=performer run; num_layers=4 has no attention=multi_head "
        "run; num_layers=8 has no attention=performer run",
    )
    assert (compare_pairs(group), audit(group)) == ([], [])


def test_a_setting_that_differs_with_the_compared_one_is_no_block(grouped: Judged) -> None:
    scores = {("multi_head", 2): (0.6, 0.61, 0.62), ("performer", 4): (0.9, 0.91, 0.92)}
    verdict = judge(grouped(scores, by=()))
    assert verdict.reasons == ("the runs also differ in shape.num_layers (4, 2)",)


def test_each_cell_has_its_best_rate_and_as_many_trials(grouped: Judged) -> None:
    rates = (1e-3, 2e-3, 4e-3)
    group = grouped(CROSSED, rates)
    assert {factor.role: factor.key for factor in group.factors}["tuned"] == "optimizer.lr"
    verdict = judge(group)
    assert verdict.winner == "attention=multi_head"
    assert verdict.text.count("with lr=0.002 (of 3 configurations)") == 4
    assert "num_layers=4: attention=performer with lr=0.002" in verdict.text


def test_unequal_trials_within_a_block(grouped: Judged) -> None:
    verdict = judge(grouped(CROSSED, (1e-3, 2e-3, 4e-3), without=[("performer", 4, 1e-3)]))
    assert verdict.winner is None
    assert (
        "unequal numbers of configurations were tried: 3 of attention=multi_head and 2 of attention=performer "
        "(num_layers=4)"
    ) in verdict.reasons


def test_architectures_are_blocks_of_another_setting(grouped: Judged) -> None:
    grouped({key: values for key, values in CROSSED.items() if key[1] == 2})
    scores = {(name, 2): CROSSED[name, 4] for name in ("multi_head", "performer")}
    group = grouped(scores, architecture="decoder_only")
    assert [*group.blocks] == ["encoder-only", "decoder-only"]
    verdict = judge(group)
    assert verdict.winner == "attention=multi_head"
    assert verdict.text.startswith("Mean over encoder-only, decoder-only: attention=multi_head 75.0 % (6 runs)")


def test_a_verdict_of_few_seeds_lists_the_commands_of_all_cells(grouped: Judged) -> None:
    verdict = judge(grouped({key: values[:1] for key, values in CROSSED.items()}))
    assert verdict.reasons[0] == "attention=multi_head has 1 seed, expected at least 3 (num_layers=2, num_layers=4)"
    assert len(verdict.commands) == 4
    assert verdict.price.startswith("8 more runs")


def test_what_other_settings_determine_is_no_block(write_run, tmp_path: Path) -> None:
    """A setting that is on no command line, such as the number of steps that a matched budget solved."""
    for i, attention in enumerate(("a", "b")):
        for layers in (2, 4):
            settings: dict[str, Any] = {"block": {"attention": attention}, "shape": {"num_layers": layers}}
            settings["trainer"] = {"max_steps": 100 * layers + i}
            command = f"triptych train block/attention={attention} shape.num_layers={layers}"
            changes = {"command": command}
            name = f"{attention}{layers}"
            write_run("full", "classification", {"test/accuracy": 0.9}, settings=settings, changes=changes, name=name)
    roles = {one.key: one.role for one in find_roles(find_runs([tmp_path], tmp_path).runs, ["block/attention"])}
    assert roles == {"block/attention": "compared", "shape.num_layers": "block", "trainer.max_steps": "follows"}


def test_the_audit_is_of_each_block(grouped: Judged, tmp_path: Path) -> None:
    """Larger networks have more parameters in both levels."""
    grouped(CROSSED)
    for file in (tmp_path / "runs").glob("*/summary.json"):
        summary = json.loads(file.read_text())
        summary["params"] = 1000 if "num_layers=2" in summary["command"] else 2000
        summary["params"] += 100 * ("performer" in summary["command"])
        file.write_text(json.dumps(summary))
    (group,) = group_runs(find_runs([tmp_path / "runs"], tmp_path).runs, by=["block/attention"])
    texts = [one.text for one in audit(group) if one.field == "params"]
    assert texts == [
        "The numbers of parameters differ by up to 10 %.",
        "The numbers of parameters differ by up to 5 %.",
    ]


def test_the_table_of_training_is_of_each_block(grouped: Judged) -> None:
    """Runs of a small network that learned have not failed because larger ones are much better."""
    scores = {**CROSSED, ("multi_head", 2): (0.05, 0.06, 0.05), ("performer", 2): (0.04, 0.06, math.nan)}
    group = grouped(scores, (1e-3, 2e-3), without=[("performer", 4, 1e-3)])
    rows = [
        (row["configuration"].partition("=")[2], row["failed runs"], row["trials"]) for row in describe_training(group)
    ]
    assert rows == [
        ("multi_head (num_layers=2, lr=0.001)", "0", "2"),
        ("multi_head (num_layers=2, lr=0.002)", "0", "2"),
        ("performer (num_layers=2, lr=0.001)", "1", "2"),
        ("performer (num_layers=2, lr=0.002)", "1", "2"),
        ("multi_head (num_layers=4, lr=0.001)", "0", "2"),
        ("multi_head (num_layers=4, lr=0.002)", "0", "2"),
        ("performer (num_layers=4, lr=0.002)", "0", "1"),
    ]


def test_the_page_has_the_difference_of_each_block(grouped: Judged, tmp_path: Path) -> None:
    grouped(CROSSED)
    compare([tmp_path / "runs"], tmp_path / "page.html", by=["block/attention"])
    page = (tmp_path / "page.html").read_text()
    for words in ("num_layers=2", "num_layers=4", "mean over 2 blocks"):
        assert f'<td class="words">{words}</td>' in page
