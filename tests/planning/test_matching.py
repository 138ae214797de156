"""Matched budgets: the solver against formulas and by brute force, and trainings as a user starts them."""

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from omegaconf import DictConfig, OmegaConf
from torch.utils.flop_counter import FlopCounterMode

import small_models
import tiny
from cases import by_day
from command_line import with_parts
from commands import Finished, answers_to
from triptych.assembly.checks import check_root
from triptych.assembly.loaders import make_data_module
from triptych.assembly.make_task import check_network, make_task
from triptych.assembly.read_data import train_tokenizer
from triptych.config import ConfigError, as_dict, build
from triptych.config.run_settings import RunSettings
from triptych.launch.sweep import UNCOUNTED, digest_of, plain_numbers
from triptych.models.flops import COUNTED, TrainingCost, active_parameters, count_parameters
from triptych.nn.network import weights_sha256
from triptych.planning import matching
from triptych.planning import pace as calibration
from triptych.planning.batch_shapes import ReadData
from triptych.planning.matching import (
    DEEPER,
    STRETCH,
    TOLERANCE,
    WIDER,
    BudgetMatch,
    Costs,
    NetworkSize,
    StepTiming,
    check_same,
    find_match,
    recorded_match,
    reference_of,
    solve_size,
    solve_steps,
)
from triptych.planning.pace import measure_paces
from triptych.training.optimizers import step_on_meta

Choose = Callable[..., DictConfig]

ARCHITECTURES = ["encoder_only", "decoder_only", "full"]
VOCAB, LENGTH, HEADS = 11, 24, 4  # of the models that ``build`` builds


def formula(architecture: str, size: NetworkSize, *, tied: bool, learned: bool, active: bool) -> int:
    """Parameters of what ``build`` builds, by hand."""
    d, f, n = size.d_model, size.d_ff, size.num_layers
    attention, norm = 4 * (d * d + d), 2 * d
    stacks = n * (attention + 2 * d * f + f + d + 2 * norm) + norm
    if architecture == "full":
        stacks = 2 * stacks + n * (attention + norm)
    if active:
        return stacks + d * VOCAB
    tables = (2 if architecture == "full" else 1) * LENGTH * d if learned else 0
    return stacks + VOCAB * d + tables + (0 if tied else VOCAB * d)


sizes = st.builds(
    lambda heads, layers, ratio: NetworkSize(8 * heads, layers, round(8 * heads * ratio)),
    heads=st.integers(1, 6),
    layers=st.integers(1, 4),
    ratio=st.floats(0.5, 8),
)


class TestSize:
    @settings(max_examples=40)
    @given(
        own=st.sampled_from(ARCHITECTURES),
        other=st.sampled_from(ARCHITECTURES),
        start=sizes,
        theirs=st.none() | sizes,
        tied=st.booleans(),
        learned=st.booleans(),
        active=st.booleans(),
    )
    def test_within_two_percent_or_rejected(
        self,
        own: str,
        other: str,
        start: NetworkSize,
        theirs: NetworkSize | None,
        tied: bool,
        learned: bool,
        active: bool,
    ) -> None:
        options = {"tied": tied, "learned": learned, "active": active}
        goal = formula(other, theirs or start, **options)
        size = solve_size(lambda size: formula(own, size, **options), start, goal, step=8)
        bounds = {
            width: round(start.d_ff * width / start.d_model)
            for width in range(8, WIDER * start.d_model + 1, 8)
            if WIDER * width >= start.d_model
        }
        if size is None:  # no width has a depth whose range of d_ff holds the goal, but for what rounding leaves
            for width, d_ff in bounds.items():
                for n in range(1, DEEPER * start.num_layers + 1):
                    few, many = -(-d_ff // STRETCH), STRETCH * d_ff
                    counts = [formula(own, NetworkSize(width, n, f), **options) for f in range(few + 1, many)]
                    assert all(abs(count / goal - 1) > TOLERANCE for count in counts)
            return
        with torch.device("meta"):
            network = small_models.build(
                own,
                d_model=size.d_model,
                num_layers=size.num_layers,
                d_ff=size.d_ff,
                tie_word_embeddings=tied,
                position="learned" if learned else "sinusoidal",
            )
        count = active_parameters(network) if active else count_parameters(network)[0]
        assert count == formula(own, size, **options)
        assert abs(count / goal - 1) <= TOLERANCE
        assert 1 <= size.num_layers <= DEEPER * start.num_layers
        assert size == start or abs(size.d_ff - bounds[size.d_model]) <= (STRETCH - 1) * bounds[size.d_model] + 4
        if own == other and theirs is None:
            assert size == start

    @pytest.mark.parametrize(("own", "other"), [("decoder_only", "full"), ("full", "decoder_only")])
    def test_of_usual_shapes_only_depth_and_d_ff_change(self, own: str, other: str) -> None:
        options = {"tied": True, "learned": False, "active": False}
        for d_model, num_layers in ((64, 2), (128, 2), (512, 6), (768, 12)):
            start = NetworkSize(d_model, num_layers, 4 * d_model)
            goal = formula(other, start, **options)
            size = solve_size(lambda size: formula(own, size, **options), start, goal, step=8)
            assert size is not None
            assert (size.d_model, size.d_ff % 8) == (d_model, 0)
            deeper = size.num_layers - num_layers
            assert deeper > 0 if own == "decoder_only" else deeper < 0

    def test_of_a_depth_that_is_overridden_d_ff_alone_is_solved(self) -> None:
        def count(size: NetworkSize) -> int:
            return formula("full", NetworkSize(size.d_model, 3, size.d_ff), tied=True, learned=False, active=False)

        assert solve_size(count, NetworkSize(32, 2, 64), count(NetworkSize(32, 9, 104)), step=8) == NetworkSize(
            32, 2, 104
        )

    def test_of_a_d_ff_that_is_overridden_the_depth_alone_is_solved(self) -> None:
        def count(size: NetworkSize) -> int:
            return formula(
                "full", NetworkSize(size.d_model, size.num_layers, 77), tied=True, learned=False, active=False
            )

        assert solve_size(count, NetworkSize(32, 2, 64), count(NetworkSize(32, 5, 64)), step=8) == NetworkSize(
            32, 5, 64
        )


class TestUpdates:
    @given(costs=st.lists(st.integers(1, 1000), min_size=1, max_size=12), steps=st.integers(1, 40))
    def test_costs_of_so_many(self, costs: list[int], steps: int) -> None:
        """The first cost what they cost, the others the mean."""
        known = np.array(costs[:steps]).sum()
        assert Costs(costs).after(steps) == pytest.approx(known + max(steps - len(costs), 0) * np.mean(costs))

    @given(costs=st.lists(st.integers(1, 1000), min_size=1, max_size=12), goal=st.floats(0.1, 30_000))
    def test_nearest_of_all(self, costs: list[int], goal: float) -> None:
        total = Costs(costs).after
        steps = solve_steps(total, goal)
        bound = int(goal) + 2  # an update costs at least 1
        best = min(abs(total(n) - goal) for n in range(1, min(bound, steps + 50) + 1))
        assert steps >= 1
        assert abs(total(steps) - goal) == best

    @given(steps=st.integers(1, 500), seconds=st.floats(0.001, 10), validation=st.floats(0, 100))
    def test_time_has_validations_in_it(self, steps: int, seconds: float, validation: float) -> None:
        pace = StepTiming(seconds, validation, 20)
        assert pace.seconds(steps) == pytest.approx(steps * seconds + (steps // 20) * validation)
        assert solve_steps(pace.seconds, pace.seconds(steps)) == steps


def data_of(config: DictConfig) -> ReadData:
    corpus = build(config, "data")
    splits = corpus.splits()
    return ReadData(splits, corpus.info, train_tokenizer(config, splits), world_size=1)


CASES = [
    ("train_flops", "task=translation model=decoder_only reference=full", "batch.global_size=20"),
    ("train_flops", "task=translation model=decoder_only reference=full", "optimizer=muon"),
    ("tokens", "task=classification model=full reference=encoder_only", "batch.global_size=null batch.max_tokens=500"),
    (
        "tokens",
        "task=language_modeling model=full reference=decoder_only",
        "batch.packing=true trainer.accumulate_grad_batches=2",
    ),
]


class TestMatches:
    @pytest.fixture(autouse=True)
    def _few_updates(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(matching, "STEPS", 30)

    @pytest.mark.parametrize(("quantity", "cell", "batches"), by_day(CASES, CASES[1::2]))
    def test_steps_cost_what_the_training_will_count(
        self, chosen: Choose, quantity: str, cell: str, batches: str
    ) -> None:
        """Against the loader that trains."""
        overrides = [*tiny.TINY, *cell.split(), *batches.split(), f"match={quantity}", "trainer.max_steps=20"]
        config = with_parts(chosen(*overrides))
        data, reference = data_of(config), reference_of(config, overrides)
        assert reference is not None
        assert reference.config is not None
        match = find_match(config, reference, data, None)
        assert match.target_value is not None
        match.apply(config)
        assert config.scheduler.max_steps == config.trainer.max_steps  # the decay ends with the training

        def counted(config: DictConfig) -> float:
            config = data.complete(config)
            task = make_task(RunSettings.of(config), data.tokenizer, data.info)
            loader = iter(make_data_module(RunSettings.of(config), task, data.splits).train_dataloader())
            batches = [next(loader) for _ in range(config.trainer.max_steps * config.trainer.accumulate_grad_batches)]
            if quantity == "tokens":
                return sum(batch.num_nonpadding for batch in batches)
            cost_log = calibration.CostTracker(check_network(config), build(config, "optimizer"))
            for batch in batches:
                cost_log.shapes[calibration.shape_of(batch, task.network)] += 1
                cost_log.unanswered += task.num_unprojected(batch)
            cost = TrainingCost(check_network(config))
            flops = cost.by_part(cost_log.shapes, unanswered=cost_log.unanswered)
            with FlopCounterMode(display=False) as counter:
                step_on_meta(check_network(config), build(config, "optimizer"))
            return sum(flops.values()) + config.trainer.max_steps * counter.get_total_flops()

        assert match.expected == counted(config)
        assert match.target_value == counted(reference.config)
        assert abs(match.expected / match.target_value - 1) <= TOLERANCE

    def test_a_number_is_the_goal_itself(self, chosen: Choose) -> None:
        config = with_parts(chosen(*tiny.TINY, "match=train_flops", "reference=3e8", "trainer.max_steps=20"))
        data, reference = data_of(config), reference_of(config, [])
        assert reference is not None
        match = find_match(config, reference, data, None)
        assert (match.reference, match.target_value) == (config.reference, 3e8)
        assert match.expected is not None
        assert abs(match.expected / 3e8 - 1) <= TOLERANCE
        match.apply(config)
        again = find_match(config, reference, data, None)
        assert (again.solved, again.expected) == ({}, match.expected)

    def test_too_few_steps_are_rejected(self, chosen: Choose) -> None:
        overrides = [*tiny.TINY, "model=decoder_only", "reference=full", "match=train_flops", "trainer.max_steps=1"]
        config = with_parts(chosen(*overrides))
        reference = reference_of(config, overrides)
        assert reference is not None
        refusal = (
            r"^match=train_flops reference=full: the closest solution is 1 step with .*expected a longer reference run$"
        )
        with pytest.raises(ConfigError, match=refusal):
            find_match(config, reference, data_of(config), None)

    def test_a_size_out_of_reach_is_rejected(self, chosen: Choose, tmp_path: Path) -> None:
        record = {"format": 1, "task": "translation", "params": 10**12}
        (tmp_path / "summary.json").write_text(json.dumps(record))
        config = with_parts(chosen(*tiny.TINY, f"reference={tmp_path}", "match=params"))
        reference = reference_of(config, [])
        assert reference is not None
        with pytest.raises(ConfigError, match=r"no size near shape.d_model=16 num_layers=1 d_ff=32 .* has 1.000e\+12 "):
            find_match(config, reference, data_of(config), None)

    def test_a_width_suits_the_heads_of_every_stack(self, chosen: Choose, tmp_path: Path) -> None:
        (tmp_path / "summary.json").write_text(json.dumps({"format": 1, "task": "translation", "params": 500_000}))
        heads = ["shape.d_model=24", "shape.num_heads=4", "model.decoder.num_heads=3"]
        config = with_parts(chosen(*tiny.TINY, *heads, f"reference={tmp_path}", "match=params"))
        reference = reference_of(config, [])
        assert reference is not None
        match = find_match(config, reference, data_of(config), None)
        assert match.solved["shape.d_model"] % 24 == 0

    def test_the_pace_is_measured_on_the_training_itself(self, chosen: Choose, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(calibration, "ROUND_S", 0.01)
        config = with_parts(chosen(*tiny.TINY, "trainer.accelerator=cpu", "trainer.accumulate_grad_batches=2"))
        data = data_of(config)
        before = OmegaConf.to_yaml(config)
        ours = [weights_sha256(make_task(RunSettings.of(data.complete(config)), data.tokenizer, data.info).network)]
        (pace,) = measure_paces(data, LightningEnvironment(), [config])
        ours.append(weights_sha256(make_task(RunSettings.of(data.complete(config)), data.tokenizer, data.info).network))
        assert OmegaConf.to_yaml(config) == before
        assert ours[0] == ours[1]
        assert 0 < pace.seconds_per_step < 5
        assert 0 < pace.validation < 60
        assert pace.interval == 50  # of 100 batches, two an update


REFUSALS = {
    "match=params": "needs a reference: one of full, encoder_only, decoder_only",
    "reference=full": "reference=full needs match, one of params",
    "match=parms reference=full": "match=parms: expected one of .*; did you mean params",
    "match=params reference=ful": "reference=ful: expected full, .* did you mean full",
    "match=params reference=full task=image_text_matching data=drawn_digits model=dual_encoder "
    "image_embedding.num_channels=3": "reference=full: expected dual_encoder, dual_decoder, the directory",
    "match=params reference=encoder_only task=captioning": "reference=encoder_only: task=captioning on model=",
    "match=params reference=decoder_only model=full model.encoder.num_layers=3": "this command does not work with it",
    "match=params reference=full model=decoder_only init_from=x": "init_from=x defines the network",
    "match=tokens reference=full model=decoder_only resume=x": "not supported with resume=x, which keeps that run",
    "match=train_flops reference=-3e12": "reference=-3.*: expected more than 0 FLOP",
    "match=params reference={folder}/several": "contains several runs",
    "match=params reference={folder}/several/other": "has task=classification, but this run has task=translation",
    "match=params reference={folder}/several/same": "has params=None; expected more than 0",
    "match=params reference={folder}/unfinished": "has no summary.json; expected the directory of a finished run",
}


class TestRefusals:
    @pytest.mark.parametrize("overrides", REFUSALS)
    def test_early_in_one_line(self, chosen: Choose, tmp_path: Path, overrides: str) -> None:
        for name, task in (("other", "classification"), ("same", "translation")):
            (tmp_path / "several" / name).mkdir(parents=True)
            (tmp_path / "several" / name / "summary.json").write_text(json.dumps({"format": 1, "task": task}))
        (tmp_path / "unfinished").mkdir()
        given = [*tiny.TINY, *overrides.format(folder=tmp_path).split()]
        config = chosen(*given)

        def look() -> None:
            check_root(config)
            reference_of(config, given)

        with pytest.raises(ConfigError, match=REFUSALS[overrides]) as error:
            look()
        assert "\n" not in str(error.value)

    def test_other_data_and_tokens_of_another_tokenizer(self, chosen: Choose, tmp_path: Path) -> None:
        record = {
            "format": 1, "task": "translation", "train_tokens": 5, "data_sha256": "a" * 64,
            "tokenizer_sha256": "b" * 64,
        }  # fmt: skip
        (tmp_path / "summary.json").write_text(json.dumps(record))
        reference = reference_of(chosen(f"reference={tmp_path}", "match=tokens"), [])
        assert reference is not None
        check_same(reference, "tokens", data="a" * 64, tokenizer="b" * 64)
        check_same(reference, "train_flops", data="a" * 64, tokenizer="c" * 64)
        with pytest.raises(ConfigError, match="another tokenizer"):
            check_same(reference, "tokens", data="a" * 64, tokenizer="c" * 64)
        with pytest.raises(ConfigError, match="trained on other data"):
            check_same(reference, "train_flops", data="c" * 64, tokenizer="b" * 64)

    def test_operations_that_leave_out_the_optimizer(self, chosen: Choose, tmp_path: Path) -> None:
        record: dict[str, Any] = {"format": 1, "task": "translation", "train_flops": 5.0}
        (tmp_path / "summary.json").write_text(json.dumps(record))
        config = chosen(f"reference={tmp_path}", "match=train_flops")
        with pytest.raises(ConfigError, match=r"do not include the optimizer\. Train "):
            reference_of(config, [])
        (tmp_path / "summary.json").write_text(json.dumps(record | {"train_flops_of": COUNTED}))
        reference = reference_of(config, [])
        assert reference is not None
        assert reference.target_value == 5


def test_a_run_that_was_begun_is_not_measured_again(chosen: Choose, tmp_path: Path) -> None:
    given = [*tiny.TINY, "model=decoder_only", "match=wall_time", "reference=full", f"run_dir={tmp_path}"]
    found = {"quantity": "wall_time", "reference": "full", "target_value": 10.0, "expected": 9.9}
    found |= {"configured": {"trainer.max_steps": 1000}, "solved": {"trainer.max_steps": 1234}}
    (tmp_path / "match.json").write_text(json.dumps(found))
    assert recorded_match(chosen(*given)) is None  # nothing was trained with it
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "step-1.ckpt").touch()
    config = chosen(*given)
    match = recorded_match(config)
    assert match is not None
    match.apply(config)
    assert config.trainer.max_steps == config.scheduler.max_steps == 1234
    for other in ("trainer.max_steps=999", "match=tokens", "reference=encoder_only", "resume=never"):
        assert recorded_match(chosen(*given, other)) is None, other


def test_a_sweep_without_a_match_keeps_its_directories(chosen: Choose) -> None:
    config = chosen("seed=3")
    plain = OmegaConf.create(
        {key: value for key, value in as_dict(config, resolve=False).items() if key not in UNCOUNTED}
    )
    del plain.match, plain.reference
    without = hashlib.sha256(
        json.dumps(plain_numbers(as_dict(plain, resolve=False)), sort_keys=True).encode()
    ).hexdigest()
    assert digest_of(config) == without != digest_of(chosen("seed=3", "match=params", "reference=full"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("matched")


@pytest.fixture(scope="module")
def answers(folder: Path) -> dict[str, Finished]:
    job = ["experiment=dates/translation", *tiny.TINY, "logger=csv", "trainer.accelerator=cpu"]
    job += ["trainer.max_steps=60", "trainer.val_check_interval=60", "scheduler.warmup_steps=10"]
    flops = [*job, "model=decoder_only", "match=train_flops", "reference=full", "run_dir=flops"]
    params = [*job, "match=params", "reference=full"]
    commands = {
        "full": ["train", *params, "run_dir=run"],
        "params": ["train", *params, "model=decoder_only", "run_dir=params"],
        "plan": ["doctor", *flops],
        "flops": ["train", *flops],
        "stopped": ["unlink", "flops/summary.json"],
        "again": ["train", *flops],
        "done": ["train", *flops],
        "sweep": ["doctor", "-m", *params, "model=full,decoder_only", "run_dir=sweep"],
        "of a run": ["doctor", *job, "model=decoder_only", "match=tokens", "reference=run", "run_dir=new"],
        "time": ["doctor", *job, "model=decoder_only", "match=wall_time", "reference=run", "run_dir=new"],
        "other data": ["doctor", *params, "reference=run", "data.num_train=399"],
    }
    answered = [name for name in commands if name != "stopped"]
    return dict(zip(answered, answers_to(list(commands.values()), folder), strict=True))


def record_of(run_dir: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
    return record


class TestCommands:
    def test_parameters(self, folder: Path, answers: dict[str, Finished]) -> None:
        assert answers["params"].returncode == 0, answers["params"].stderr
        full, decoder = record_of(folder / "run"), record_of(folder / "params")
        assert abs(decoder["params"] / full["params"] - 1) <= 0.02
        assert (full["match"]["solved"], full["match"]["mismatch"]) == ({}, 0)
        match = decoder["match"]
        assert (match["target_value"], match["achieved"]) == (full["params"], decoder["params"])
        assert match["mismatch"] == decoder["params"] / full["params"] - 1
        config = OmegaConf.load(folder / "params" / "config.yaml")
        assert match["solved"]
        for key, value in match["solved"].items():
            assert OmegaConf.select(config, key) == value
        assert isinstance(config, DictConfig)
        assert count_parameters(check_network(config))[0] == decoder["params"]
        assert "match=params reference=full: shape." in (folder / "params" / "train.log").read_text()

    def test_operations(self, folder: Path, answers: dict[str, Finished]) -> None:
        """Those of the reference were found without training it."""
        assert answers["flops"].returncode == 0, answers["flops"].stderr
        full, record = record_of(folder / "run"), record_of(folder / "flops")
        assert record["match"]["target_value"] == full["train_flops"]
        assert record["match"]["achieved"] == record["match"]["expected"] == record["train_flops"]
        assert abs(record["train_flops"] / full["train_flops"] - 1) <= 0.02
        assert record["steps"] == record["match"]["solved"]["trainer.max_steps"] != 60

    def test_the_same_command_resumes_and_then_does_nothing(self, answers: dict[str, Finished]) -> None:
        assert (answers["again"].returncode, answers["done"].returncode) == (0, 0), answers["again"].stderr
        assert "resuming from flops/checkpoints" in answers["again"].stderr
        assert "match=train_flops: counting" not in answers["again"].stderr
        assert "nothing to do" in answers["done"].stdout

    def test_doctor_finds_the_same(self, folder: Path, answers: dict[str, Finished]) -> None:
        steps = record_of(folder / "flops")["match"]["solved"]["trainer.max_steps"]
        assert f"match=train_flops reference=full: trainer.max_steps={steps} (was 60)" in answers["plan"].words
        assert f"steps {steps:,} of 20 examples" in answers["plan"].words
        assert "this run is the reference, nothing to solve" in answers["sweep"].words
        tokens = f"{record_of(folder / 'run')['train_tokens']:,}"
        assert re.search(rf"match=tokens reference=run: .* tokens, .*{tokens}", answers["of a run"].words)
        assert "match=wall_time is measured when the run starts" in answers["time"].words
        assert "reference=run was trained on other data" in answers["other data"].words
        named = ("plan", "sweep", "of a run", "time", "other data")
        assert [answers[name].returncode for name in named] == [0, 0, 0, 0, 1]


def test_what_was_reached_is_told_beside_the_goal(caplog: pytest.LogCaptureFixture) -> None:
    match = BudgetMatch("params", "full", target_value=200.0, expected=200.0, configured={}, solved={})
    match.warn_of(match.record(200.0))
    assert not caplog.records
    match.warn_of(match.record(300.0))
    (record,) = caplog.records
    assert re.fullmatch(
        r"match=params reference=full: the run used 300 .*, 50\.00 % more than 200", record.getMessage()
    )
