"""The audit, and what it says of a verdict: every setting counts, except those that follow from the architecture."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from command_line import command_lines, with_parts
from triptych.config import ConfigError
from triptych.report.read_records import find_runs, read_settings
from triptych.report.statistics.audit import audit
from triptych.report.statistics.groups import Group, group_runs
from triptych.report.statistics.verdicts import Verdict, judge

CLEAR = {"full": (0.80, 0.81, 0.82), "decoder_only": (0.50, 0.51, 0.52)}
FOLDER = Path(__file__).parents[3] / "conf" / "experiment"
EXPERIMENTS = sorted(str(file.relative_to(FOLDER).with_suffix("")) for file in FOLDER.rglob("*.yaml"))
ARCHITECTURES = ("full", "prefix_lm", "encoder_only", "decoder_only")

Judge = Callable[..., tuple[Group, Verdict]]


@pytest.fixture
def judged(write_run, tmp_path: Path) -> Judge:
    """Writes a clear difference of two architectures with these settings each, and judges it."""

    def judged(
        full: dict[str, Any], decoder: dict[str, Any], changes: dict[str, Any] | None = None, command: str = ""
    ) -> tuple[Group, Verdict]:
        for (architecture, values), settings in zip(CLEAR.items(), (full, decoder), strict=True):
            for seed, value in enumerate(values, start=1):
                own = {"command": f"triptych train model={architecture} {command}", "params": 1, "train_flops": 1.0}
                write_run(
                    architecture, "classification", {"test/accuracy": value}, seed=seed, settings=settings,
                    changes=own | ((changes or {}) if architecture == "decoder_only" else {}),
                )  # fmt: skip
        (group,) = group_runs(find_runs([tmp_path], tmp_path).runs)
        return group, judge(group)

    return judged


def test_a_clear_difference_wins_without_another(judged: Judge) -> None:
    group, verdict = judged({"trainer": {"gradient_clip_val": 1.0}}, {"trainer": {"gradient_clip_val": 1.0}})
    assert (verdict.winner, audit(group)) == ("full", [])


@pytest.mark.parametrize(
    ("full", "decoder", "said"),
    [
        (
            {"trainer": {"gradient_clip_val": 1.0, "accumulate_grad_batches": 1}},
            {"trainer": {"gradient_clip_val": None, "accumulate_grad_batches": 2}},
            "trainer.gradient_clip_val (1.0, null); trainer.accumulate_grad_batches (1, 2)",
        ),
        ({"data": {"num_train": 10}}, {"data": {"num_train": 20}}, "data.num_train (10, 20)"),
        ({"match": "params"}, {"match": "tokens"}, "match (params, tokens)"),
        (
            {"data": {"a": 1}, "callbacks": {"ema": {"decay": 0.9}}},
            {"data": {"a": 1}},
            "callbacks.ema.decay (0.9, absent)",
        ),
    ],
)
def test_any_other_setting_that_differs_gives_no_winner(judged: Judge, full: Any, decoder: Any, said: str) -> None:
    group, verdict = judged(full, decoder)
    assert (verdict.winner, verdict.commands) == (None, ())
    assert verdict.reasons == (f"the runs also differ in {said}",)
    assert [difference.field for difference in audit(group)] == ["settings"]


def test_many_settings_are_counted(judged: Judge) -> None:
    full, decoder = ({"data": {f"key{i}": value for i in range(7)}} for value in (1, 2))
    _, verdict = judged(full, decoder)
    assert verdict.reasons[0].endswith("data.key3 (1, 2), and 3 others")


def test_what_a_matched_budget_solved_does_not_count(judged: Judge) -> None:
    """The reference was not matched, so its settings have no match."""
    full = {"match": None, "reference": None, "trainer": {"max_steps": 900}, "scheduler": {"max_steps": 900}}
    decoder = {"match": "tokens", "reference": "full", "trainer": {"max_steps": 800}, "scheduler": {"max_steps": 800}}
    solved = {"match": {"quantity": "tokens", "solved": {"trainer.max_steps": 800}}}
    assert judged(full, decoder, solved)[1].winner == "full"


def test_what_follows_from_the_architecture_does_not_count(judged: Judge) -> None:
    full, decoder = {"model": {"head": {"pooling": "first"}}}, {"model": {"head": {"pooling": "last"}}}
    assert judged(full, decoder)[1].winner == "full"


def test_a_key_of_the_model_on_the_command_line_counts(judged: Judge) -> None:
    full, decoder = {"model": {"head": {"pooling": "first"}}}, {"model": {"head": {"pooling": "last"}}}
    _, verdict = judged(full, decoder, command="model.head.pooling=last")
    assert verdict.reasons == ("the runs also differ in model.head.pooling (first, last)",)


@pytest.mark.parametrize(
    ("key", "value"), [("trainer.limit_test_batches", 0.1), ("task.num_beams", 4), ("task.length_penalty", 0.6)]
)
def test_scores_of_another_test_are_not_comparable(judged: Judge, key: str, value: float) -> None:
    node, setting = key.split(".")
    _, verdict = judged({node: {setting: 1.0}}, {node: {setting: value}})
    assert (verdict.outcome, verdict.winner) == ("not comparable", None)
    assert verdict.text == f"Not comparable: the runs were tested with different values of {key} (1.0, {value})."


def test_another_trainer_and_another_test(judged: Judge) -> None:
    """The scores are not comparable in the first place, and the audit names all three settings."""
    full, decoder = (
        {"trainer": {"gradient_clip_val": clip, "accumulate_grad_batches": batches, "limit_test_batches": share}}
        for clip, batches, share in ((None, 2, 0.1), (1.0, 1, 1.0))
    )
    group, verdict = judged(full, decoder)
    assert (verdict.outcome, verdict.winner) == ("not comparable", None)
    assert verdict.text.startswith("Not comparable: the runs were tested with different values of trainer.limit_test")
    (difference,) = audit(group)
    keys = ("gradient_clip_val", "accumulate_grad_batches", "limit_test_batches")
    assert difference.text == f"The settings differ: {', '.join(f'trainer.{key}' for key in keys)}."


def settings_of(composed: Callable[..., Any], folder: Path, *overrides: str) -> dict[str, object] | None:
    """The settings of a run, as its ``config.yaml`` has them; None if the architecture cannot do the task."""
    try:
        config = with_parts(composed(*overrides))
    except ConfigError:
        return None
    file = folder / "config.yaml"
    file.write_text(OmegaConf.to_yaml(config, resolve=True))
    return read_settings(file)


def check_experiment(group: Group, name: str, folder: Path) -> None:
    """The architectures of an experiment differ in nothing else."""
    with command_lines() as composed:
        found = [settings_of(composed, folder, f"experiment={name}", f"model={model}") for model in ARCHITECTURES]
    runs = [replace(group.runs[0], settings=settings) for settings in found if settings is not None]
    assert len(runs) > 1
    assert group.differing_settings(runs) == []


@pytest.fixture
def group(write_run, tmp_path: Path) -> Group:
    write_run("full", "classification", {"test/accuracy": 0.5})
    return group_runs(find_runs([tmp_path], tmp_path).runs)[0]


@pytest.mark.parametrize("name", ["dates/classification", "tones/transcription"])
def test_architectures_of_an_experiment_differ_in_nothing_else(group: Group, tmp_path: Path, name: str) -> None:
    check_experiment(group, name, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_architectures_of_any_experiment_differ_in_nothing_else(group: Group, tmp_path: Path, name: str) -> None:
    check_experiment(group, name, tmp_path)
