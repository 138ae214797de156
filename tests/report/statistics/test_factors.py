"""What differs between runs, and which of it is compared."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from triptych.report.compare import compare
from triptych.report.read_records import RecordedRun, find_runs
from triptych.report.statistics.factors import Factor, choose_factor, find_factors
from triptych.report.statistics.groups import group_runs
from triptych.report.statistics.standings import compare_pairs
from triptych.report.statistics.verdicts import judge

MULTI_HEAD: dict[str, Any] = {"block": {"attention": {"_partial_": True, "_target_": "triptych.nn.MultiHeadAttention"}}}
PERFORMER: dict[str, Any] = {
    "block": {"attention": {"_partial_": True, "_target_": "triptych.nn.PerformerAttention", "num_features": 64}}
}
LEVELS = (("multi_head", MULTI_HEAD, (0.80, 0.81, 0.82)), ("performer", PERFORMER, (0.50, 0.51, 0.52)))

Sweep = Callable[..., list[RecordedRun]]


@pytest.fixture
def sweep(write_run, tmp_path: Path) -> Sweep:
    """Runs of two attentions, with three seeds and some learning rates."""

    def sweep(
        rates: tuple[float, ...] = (1e-3,), architectures: tuple[str, ...] = ("encoder_only",)
    ) -> list[RecordedRun]:
        for architecture in architectures:
            for name, settings, values in LEVELS:
                for lr in rates:
                    for seed, value in enumerate(values, start=1):
                        command = f"triptych train model={architecture} block/attention={name} optimizer.lr={lr}"
                        metrics = {"val/accuracy": value - abs(lr - 2e-3), "test/accuracy": value}
                        write_run(
                            architecture, "classification", metrics, seed=seed, changes={"command": command},
                            settings={**settings, "optimizer": {"lr": lr}}, name=f"{name}{lr}",
                        )  # fmt: skip
        return [*find_runs([tmp_path], tmp_path).runs]

    return sweep


def test_two_attentions_in_one_sweep_are_compared(sweep: Sweep) -> None:
    """Its options follow from the attention."""
    runs = sweep()
    assert find_factors(runs) == [Factor("block/attention", ("multi_head", "performer"))]
    (group,) = group_runs(runs)
    verdict = judge(group)
    assert (verdict.by, verdict.winner) == (("block/attention",), "attention=multi_head")
    assert verdict.text.startswith("attention=multi_head 81.0 % (3 seeds) vs attention=performer 51.0 % (3 seeds)")
    (pair,) = compare_pairs(group)
    assert (pair.first, pair.second) == ("attention=multi_head", "attention=performer")


def test_two_seeds_of_two_attentions_need_a_third(sweep: Sweep) -> None:
    (group,) = group_runs([run for run in sweep() if run.seed < 3])
    verdict = judge(group)
    assert (verdict.outcome, verdict.winner, len(verdict.commands)) == ("inconclusive", None, 2)
    assert verdict.reasons == tuple(
        f"attention={name} has 2 seeds, expected at least 3" for name in ("multi_head", "performer")
    )


def test_a_rate_that_was_tuned_is_not_compared(sweep: Sweep) -> None:
    """Each attention is compared at its best rate."""
    runs = sweep((1e-3, 2e-3, 4e-3))
    assert {factor.key for factor in find_factors(runs)} == {"block/attention", "optimizer.lr"}
    assert choose_factor(runs) == "block/attention"
    verdict = judge(group_runs(runs)[0])
    assert verdict.winner == "attention=multi_head"
    assert "attention=performer with lr=0.002 (of 3 configurations)" in verdict.text


def test_the_best_trials_of_a_search_are_confirmed_with_other_seeds(write_run, tmp_path: Path) -> None:
    """What the search varied was tuned, though each architecture has one value of it in the tested runs."""
    for architecture, best, score in (("full", 0.002, 0.9), ("decoder_only", 0.004, 0.8)):
        for seed in (101, 1, 2, 3):
            for lr in (0.001, 0.002, 0.004, 0.008) if seed == 101 else (best,):
                metrics = {"val/accuracy": score} | ({} if seed == 101 else {"test/accuracy": score + seed / 100})
                changes = {"command": f"triptych train model={architecture} shape.d_ff={lr}"}
                settings = {"shape": {"d_ff": lr}}
                write_run(architecture, "classification", metrics, seed=seed, changes=changes, settings=settings,
                          name=str(lr))  # fmt: skip
    found = find_runs([tmp_path], tmp_path)
    (group,) = group_runs(found.runs, found.untested)
    assert judge(group).winner == "full"
    (group,) = group_runs(found.runs)
    assert judge(group).reasons == ("the runs also differ in shape.d_ff (0.002, 0.004)",)
    (group,) = group_runs(found.runs, tuned=["shape.d_ff"])
    assert judge(group).winner == "full"


def test_architectures_are_compared_unless_another_key_is_given(sweep: Sweep) -> None:
    runs = sweep(architectures=("encoder_only", "decoder_only"))
    assert choose_factor(runs) == "model"
    (group,) = group_runs(runs, by=["block/attention"])
    assert [*group.by_level] == ["attention=multi_head", "attention=performer"]
    (both,) = group_runs(runs, by=["model", "block/attention"])
    assert len(both.by_level) == 4
    assert "model=encoder_only, attention=performer" in both.by_level


def test_several_settings_differ(write_run, tmp_path: Path) -> None:
    """The verdict asks which one is compared."""
    for size in (1, 2):
        for batch in (8, 16):
            settings = {"data": {"num_train": size}, "batch": {"global_size": batch}}
            write_run("full", "classification", {"test/accuracy": 0.9}, settings=settings, name=f"{size}-{batch}")
    runs = find_runs([tmp_path], tmp_path).runs
    verdict = judge(group_runs(runs)[0])
    assert verdict.winner is None
    assert verdict.text == (
        "Several settings differ: data.num_train (2), batch.global_size (2). Choose what is compared, such as "
        "--by data.num_train."
    )
    assert group_runs(runs, tuned=["batch.global_size"])[0].by == ("data.num_train",)


@pytest.mark.parametrize(
    ("by", "answer"),
    [
        ("block/atention", "no run has such a setting; expected one of block/attention; did you mean"),
        ("optimizer.lr", "the same in all runs; expected one of block/attention"),
        ("model", "the same in all runs; expected one of block/attention"),
    ],
)
def test_a_key_that_does_not_vary(sweep: Sweep, by: str, answer: str) -> None:
    with pytest.raises(ValueError, match="--by") as caught:
        group_runs(sweep(), by=[by])
    assert str(caught.value).startswith(f"--by {by}: {answer}")


@pytest.mark.parametrize(
    ("key", "answer"),
    [
        ("optimizer.lrr", "no run has such a setting; expected one of block/attention"),
        ("block/attention", "also given to --by; expected one of block/attention"),
    ],
)
def test_a_tuned_key_is_checked(sweep: Sweep, key: str, answer: str) -> None:
    with pytest.raises(ValueError, match="--tuned") as caught:
        group_runs(sweep(), by=["block/attention"], tuned=[key])
    assert str(caught.value) == f"--tuned {key}: {answer}"


def test_numbers_are_in_ascending_order(write_run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever the names of the folders; so are the rows of the table, with the seeds of a level together."""
    for name, layers in (("a", 10), ("b", 2), ("c", 4)):
        for seed in (1, 2):
            changes = {"command": f"triptych train shape.num_layers={layers}"}
            settings = {"shape": {"num_layers": layers}}
            metrics = {"test/accuracy": 0.9}
            write_run("full", "classification", metrics, seed=seed, settings=settings, changes=changes, name=name)
    (group,) = group_runs(find_runs([tmp_path], tmp_path).runs)
    assert [factor.levels for factor in group.factors] == [("2", "4", "10")]
    assert [*group.by_level] == ["num_layers=2", "num_layers=4", "num_layers=10"]
    compare([tmp_path / "runs"], tmp_path / "page.html")
    rows = [line.split()[1:3] for line in capsys.readouterr().out.splitlines() if line.startswith(" full ")]
    assert rows == [["2", "1"], ["2", "2"], ["4", "1"], ["4", "2"], ["10", "1"], ["10", "2"]]


SINUSOIDAL: dict[str, Any] = {"_target_": "triptych.nn.SinusoidalPositions", "_partial_": True, "first": 0}
ROTARY: dict[str, Any] = {"_target_": "triptych.nn.Rotary", "_partial_": True, "theta": 100.0}


@pytest.mark.parametrize(
    ("parts", "command", "key", "levels"),
    [
        ([{"position": SINUSOIDAL}, {"position": ROTARY}], "", "block.position", ("rotary", "sinusoidal")),
        (
            [{"position": SINUSOIDAL}, {"position": ROTARY}], "block.position.theta=100", "block.position",
            ("rotary", "sinusoidal"),
        ),
        (
            [{"_target_": "triptych.data.Characters"}, {"_target_": "triptych.data.Bytes", "size": 9}], "", "tokenizer",
            ("Bytes", "Characters"),
        ),
        (
            [{"_target_": "mine.Words"}, {"_target_": "yours.Words", "size": 9}], "tokenizer=words", "tokenizer",
            ("mine.Words", "yours.Words"),
        ),
    ],
)  # fmt: skip
def test_a_part_gives_its_name_to_a_level(
    write_run, tmp_path: Path, parts: list[dict[str, Any]], command: str, key: str, levels: tuple[str, ...]
) -> None:
    """Not one of its options, which the other part lacks."""
    for i, part in enumerate(parts):
        settings = {key.split(".")[0]: part}
        changes = {"command": f"triptych train {command}"}
        name = str(i)
        write_run("full", "classification", {"test/accuracy": 0.9}, settings=settings, changes=changes, name=name)
    runs = find_runs([tmp_path], tmp_path).runs
    assert find_factors(runs) == [Factor(key, levels)]
    for (group,) in (group_runs(runs), group_runs(runs, by=[key])):
        assert [*group.by_level] == [f"{key.rpartition('.')[2]}={level}" for level in levels]
    compare([tmp_path / "runs"], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "absent" not in page.partition("How to reproduce")[0]
    assert all(f'<td class="number">{level}</td>' in page for level in levels)


def test_a_part_of_one_stack(write_run, tmp_path: Path) -> None:
    """The key of the command line names the stack after an @."""
    key = "block/position@model.encoder.position"
    for name, part in (("sinusoidal", SINUSOIDAL), ("rotary", ROTARY)):
        settings = {"model": {"encoder": {"position": part}}}
        changes = {"command": f"triptych train {key}={name}"}
        write_run("full", "classification", {"test/accuracy": 0.9}, settings=settings, changes=changes, name=name)
    (group,) = group_runs(find_runs([tmp_path], tmp_path).runs)
    assert (group.by, [*group.by_level]) == ((key,), ["position=rotary", "position=sinusoidal"])


def test_the_page_names_the_levels(sweep: Sweep, tmp_path: Path) -> None:
    sweep()
    compare([tmp_path / "runs"], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "attention=multi_head wins" in page
    assert page.count("attention=performer") > 3
    (verdict,) = json.loads((tmp_path / "page.comparison.json").read_text())["verdicts"]
    assert (verdict["by"], verdict["winner"]) == (["block/attention"], "attention=multi_head")


def test_runs_of_a_study_that_start_from_other_runs(write_run, tmp_path: Path) -> None:
    """Each seed starts from a run of its own, so what is compared is the variant of that run."""
    for source, value in (("decoder", 0.9), (None, 0.5)):
        for seed in (1, 2, 3):
            start = None if source is None else f"outputs/studies/adapt/{source}/optimizer.lr-0.004--seed-{seed}"
            write_run("full", "classification", {"test/accuracy": value + seed / 100}, seed=seed,
                      settings={"init_from": start}, name=str(source))  # fmt: skip
    found = find_runs([tmp_path], tmp_path).runs
    runs = [replace(run, variant="adapted" if run.settings["init_from"] else "from_scratch") for run in found]
    (group,) = group_runs(runs)
    assert group.factors == (Factor("init_from", ("decoder", "null"), "compared"),)
    assert judge(group).winner == "init_from=decoder"
