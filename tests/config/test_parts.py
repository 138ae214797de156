"""Parts of the blocks as the configuration chooses them."""

import inspect
import sys
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from cases import by_day
from command_line import composed, with_parts
from commands import run
from triptych.assembly.choose_parts import choose_parts
from triptych.assembly.make_task import check_network
from triptych.config import PARTS, ConfigError, check, target_of
from triptych.config.diagnose import choices_of
from triptych.nn import LearnedPositions, Position, Rotary, Sizes, Stack

FILES = sorted((Path(__file__).parents[2] / "conf" / "block").glob("*/*.yaml"))
PARTS_OF_THEIR_OWN = [file for file in FILES if "defaults" not in OmegaConf.load(file)]  # a family's begin with one


CHOICES = {part: choices_of(f"block/{part}", []) for part in PARTS}


@pytest.mark.parametrize("number", range(max(map(len, CHOICES.values()))))
def test_a_file_says_all_options_of_its_class_and_no_other(number: int) -> None:
    chosen = {part: names[number] for part, names in CHOICES.items() if number < len(names)}  # one of each part
    config = composed(*(f"block/{part}={name}" for part, name in chosen.items()))
    for part, name in chosen.items():
        parameters = inspect.signature(target_of(config, f"block.{part}")).parameters.values()
        expected = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
        assert set(check(config, f"block.{part}")) == expected, f"block/{part}={name}"


@pytest.mark.parametrize("file", PARTS_OF_THEIR_OWN, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_a_class_has_the_same_defaults_in_python(file: Path) -> None:
    options = OmegaConf.load(file)
    parameters = inspect.signature(target_of(DictConfig({"part": options}), "part")).parameters.values()
    assert {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY} == {
        name: value for name, value in options.items() if name not in ("_target_", "_partial_")
    }


def test_the_last_word_has_the_command_line_then_the_experiment_then_the_family() -> None:
    def position(*overrides: str) -> str:
        return str(composed(*overrides).block.position._target_).rpartition(".")[2]

    assert position("model=bart/style") == "LearnedPositions"
    assert position("model=bart/style", "experiment=sst2/full") == "RelativeBias"
    assert position("model=bart/style", "experiment=sst2/full", "block/position=rotary") == "Rotary"


def test_no_option_of_a_family_outlives_its_part() -> None:
    config = composed("model=bart/style", "block/position=rotary")
    assert set(config.block.position) == {
        "_target_",
        "_partial_",
        "theta",
        "local_theta",
        "partial_rotary_factor",
        "scaling",
        "rotate_cross_attention",
    }
    assert composed("model=bart/style").block.position.first == 2


def test_one_stack_alone_has_another_part() -> None:
    one = "block/position@model.decoder.position"
    network = check_network(
        with_parts(composed("block/position=learned", f"{one}=rotary", "model.decoder.position.theta=5"))
    )
    encoder, decoder = (stack.position for stack in network.stacks)
    assert isinstance(encoder, LearnedPositions)
    assert isinstance(decoder, Rotary)
    assert decoder.theta == 5.0


def test_stacks_do_not_share_what_is_trained() -> None:
    network = check_network(with_parts(composed("block/position=learned")))
    encoder, decoder = network.stacks
    assert encoder.position.table is not decoder.position.table


def test_the_parts_of_a_run_are_said_in_full() -> None:
    config = composed("block/norm=rms_norm", "block.norm.eps=1e-3")
    choose_parts(config)
    for stack in (config.model.encoder, config.model.decoder):
        assert stack.norm == config.block.norm
        assert None not in [stack[part] for part in PARTS]


def test_a_wrong_option_is_named_where_it_was_set() -> None:
    with pytest.raises(ConfigError, match=r"^block\.position\.theta=abc: expected a number$"):
        check_network(with_parts(composed("block/position=rotary", "block.position.theta=abc")))
    with pytest.raises(ConfigError, match=r"^block\.norm\.epz: LayerNorm has no such setting"):
        check_network(with_parts(composed("+block.norm.epz=1")))


def test_a_stack_takes_parts_from_python_too() -> None:
    stack = Stack(num_layers=1, d_model=8, num_heads=2, d_ff=8, causal=True, position=Rotary)
    assert isinstance(stack.position, Rotary)
    assert stack.position.theta == 10000.0


def test_help_lists_parts_and_options(tmp_path: Path) -> None:
    lines = run("train", "--help", cwd=tmp_path).stdout.splitlines()
    (line,) = [line for line in lines if line.split()[:1] == ["block/position"]]
    assert "rotary (theta, local_theta, partial_rotary_factor, scaling, rotate_cross_attention)" in line
    assert "none," in line
    assert "bart" not in line


class Untidy(Position):
    """A scheme whose option is not keyword-only."""

    def __init__(self, sizes: Sizes, steepest: float = 8.0) -> None:
        super().__init__(sizes)


@pytest.mark.parametrize(
    ("overrides", "answer"),
    [
        (
            ["block/norm=rms_norm", "block.norm._target_=triptych.nn.GatedFeedForward", "~block.norm.eps"],
            "takes Sizes first",
        ),
        (["block/position=none", "block.position._target_=triptych.nn.PreNorm"], "expected a Position"),
        (["block/residual=pre_norm", "block.residual._target_=triptych.nn.FeedForward"], "expected a Residual"),
        (
            ["block/position=none", "block.position._target_=test_parts.Untidy", "+block.position.steepest=4"],
            "keyword-only",
        ),
    ],
)
def test_a_class_that_is_no_such_part_is_named(
    overrides: list[str], answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIPTYCH_ALLOW", "test_parts")
    monkeypatch.setitem(sys.modules, "test_parts", sys.modules[__name__])
    monkeypatch.setattr(Untidy, "__module__", "test_parts")
    with pytest.raises(ConfigError, match=answer):
        check_network(with_parts(composed(*overrides)))


@pytest.mark.parametrize(
    "model", by_day(["full", "encoder_only", "decoder_only", "prefix_lm", "dual_encoder"], ["full"])
)
def test_a_head_pools_where_the_task_has_one_output_for_a_text(model: str) -> None:
    """Of every task that the architecture can do: with the other kind of pool it is refused, with its own it is not."""
    for name in choices_of("task", []):
        config = composed(f"task={name}", f"model={model}")
        task = target_of(config, "task")
        try:
            task.check_architecture(target_of(config, "model").architecture, config.task)
        except ValueError:
            continue
        if task.is_dual_encoder != (model == "dual_encoder"):
            continue
        own = task.pooling[target_of(config, "model").architecture]
        for pool in ("none", "first", "mean"):
            changed = config.copy()
            changed.model.head.pooling = pool
            if (pool == "none") == (own == "none"):
                choose_parts(changed)
            else:
                with pytest.raises(
                    ConfigError, match=rf"^model\.head\.pooling={pool}: task={name} has outputs for each"
                ):
                    choose_parts(changed)


def test_a_head_that_pools_is_rejected_where_it_was_chosen() -> None:
    with pytest.raises(ConfigError, match=r"^heads\.tokens\.pooling=mean: .*; expected none, or null$"):
        check_network(with_parts(composed("head@heads.tokens=modernbert-mean")))
