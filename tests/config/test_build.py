"""The allow list, and answers to wrong names and types."""

import re
from collections.abc import Callable
from typing import Literal, get_args

import pytest
from lightning.fabric.connector import _convert_precision_to_unified_args
from lightning.fabric.plugins.precision.precision import _PRECISION_INPUT
from omegaconf import DictConfig, OmegaConf

from command_line import with_parts
from triptych.assembly.checks import check_before_data
from triptych.config import ConfigError, build, check_type, hints_of, precision_of
from triptych.config.build import check_keys
from triptych.config.schema import ShapeConfig
from triptych.data import DateInstructions, Dates
from triptych.nn import Head
from triptych.training.optimizers import AdamW

ADAMW = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.98, "eps": 1e-9, "weight_decay": 0.0}


def build_node(target: str, **values: object) -> object:
    return build(OmegaConf.create({"node": {"_target_": target, **values}}), "node")


def test_builds_what_the_node_says() -> None:
    assert build_node("triptych.training.optimizers.AdamW", **ADAMW) == AdamW(**ADAMW)


def test_builds_nodes_within() -> None:
    node = {"_target_": "triptych.nn.Head", "d_model": 4, "num_outputs": 8}
    class_path = f"{Holder.__module__}.Holder"
    config = OmegaConf.create({"outer": {"_target_": class_path, "inner": node}})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRIPTYCH_ALLOW", f"{Holder.__module__}.")
        built = build(config, "outer")
    assert isinstance(built.inner, Head)
    assert built.inner.output.weight.shape == (8, 4)


class Vault(Dates):
    def __init__(self, *, pin: str, first_year: float) -> None:
        pass


def test_the_constructor_of_a_class_says_what_it_takes() -> None:
    """Not the fields of the dataclass that it extends."""
    assert hints_of(Vault) == {"pin": str, "first_year": float, "return": type(None)}
    assert {"turns": int, "first_year": int}.items() <= hints_of(DateInstructions).items()


class Holder:
    def __init__(self, *, inner: Head) -> None:
        self.inner = inner


@pytest.mark.parametrize(
    "target",
    [
        "os.system",
        "subprocess.Popen",
        "builtins.eval",
        "torch.load",
        "pathlib.Path",
        "triptych_evil.run",
        "triptych.report.summary.subprocess.run",  # an alias inside the allowed package
        "triptych.training.hardware.platform.system",
        "lightning.pytorch.trainer.trainer.os.system",
    ],
)
def test_builds_nothing_that_is_not_allowed(target: str) -> None:
    with pytest.raises(ConfigError, match=r"not allowed|no such class"):
        build_node(target)


def test_the_environment_extends_the_allow_list(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="not allowed"):
        build_node("fractions.Fraction", numerator=1)
    monkeypatch.setenv("TRIPTYCH_ALLOW", "fractions.,decimal.")
    assert str(build_node("fractions.Fraction", numerator=1, denominator=3)) == "1/3"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({**ADAMW, "lrr": 1.0}, r"node\.lrr: AdamW has no such setting; did you mean lr\?"),
        ({k: v for k, v in ADAMW.items() if k != "lr"}, r"node\.lr is missing"),
        ({**ADAMW, "lr": "???"}, r"node\.lr is missing: set node\.lr="),
        ({**ADAMW, "lr": "fast"}, r"node\.lr=fast: expected a number"),
        ({**ADAMW, "lr": True}, r"node\.lr=true: expected a number"),
        ({**ADAMW, "lr": float("nan")}, r"node\.lr=nan: expected a finite number"),
        ({**ADAMW, "lr": float("inf")}, r"node\.lr=inf: expected a finite number"),
        ({**ADAMW, "lr": 0.0}, r"optimizer\.lr=0\.0: expected more than 0"),
        ({**ADAMW, "beta2": 1.0}, r"optimizer\.beta2=1\.0"),
    ],
)
def test_a_wrong_setting_is_named(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_node("triptych.training.optimizers.AdamW", **values)


def test_a_missing_class_is_named() -> None:
    with pytest.raises(ConfigError, match=r"_target_=triptych\.training\.optimizers\.Adam: there is no such class"):
        build_node("triptych.training.optimizers.Adam")


@pytest.mark.parametrize(
    ("value", "hint", "fits"),
    [
        (1, int, True),
        (1.0, int, False),
        (True, int, False),
        (1, float, True),
        ("1", float, False),
        (None, int | None, True),
        ("a", int | None, False),
        ("pre", Literal["pre", "post"], True),
        ("prae", Literal["pre", "post"], False),
        (["a", "b"], list[str], True),
        (["a", 1], list[str], False),
        ("a", list[str], False),
        ({"a": "b"}, dict[str, str], True),
        ({"a": 1}, dict[str, str] | None, False),
        (["a"], dict[str, str] | str, False),
        (object(), Head, True),  # not a value that a configuration can hold: left to the constructor
    ],
)
def test_types(value: object, hint: object, fits: bool) -> None:
    if fits:
        check_type("key", value, hint)
    else:
        with pytest.raises(ConfigError, match=r"^key="):
            check_type("key", value, hint)


def test_a_wrong_choice_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"expected one of pre, post; did you mean post\?"):
        check_type("block.norm_position", "posst", Literal["pre", "post"])


def test_choices_are_said_once() -> None:
    """Lightning has precisions as numbers and as texts."""
    with pytest.raises(ConfigError, match=r"expected one of 64, 32, bf16$"):
        check_type("precision", "fast", Literal[64, 32] | Literal["64", "32", "bf16"])


def test_typed_nodes_refuse_new_keys_and_sizes_below_one() -> None:
    config = OmegaConf.structured(ShapeConfig(num_heads=0))
    with pytest.raises(ConfigError, match="num_heads=0: expected at least 1"):
        check_keys(config, ShapeConfig)
    config = OmegaConf.structured(ShapeConfig)
    OmegaConf.set_struct(config, False)
    config._set_item_impl("d_modl", 3)
    with pytest.raises(ConfigError, match=r"d_modl: there is no such key; did you mean d_model\?"):
        check_keys(config, ShapeConfig)


SPELLINGS = [spelling for kind in get_args(_PRECISION_INPUT) for spelling in get_args(kind)]


@pytest.mark.filterwarnings("ignore:.*is supported for historical reasons")
def test_a_precision_in_full_is_what_lightning_takes_it_for() -> None:
    assert {16, "16", "bf16", 64, "32-true"} <= {*SPELLINGS}
    for spelling in SPELLINGS:
        config = OmegaConf.create({"trainer": {"precision": spelling}})
        assert precision_of(config) == _convert_precision_to_unified_args(spelling)
    assert precision_of(OmegaConf.create({"trainer": {"precision": None}})) == "32-true"


@pytest.mark.parametrize("spelling", ["16", "'16'", "16-mixed"])
def test_no_spelling_of_float16_gets_past_the_fused_optimizer(spelling: str, chosen: Callable[..., DictConfig]) -> None:
    given = ["experiment=dates/translation", f"trainer.precision={spelling}"]
    with pytest.raises(ConfigError, match=f"^trainer.precision={spelling.strip(chr(39))} scales gradients"):
        check_before_data(with_parts(chosen(*given)))
    check_before_data(with_parts(chosen(*given, "optimizer.fused=false")))
    with pytest.raises(ConfigError, match="FSDP has 32-true"):
        check_before_data(with_parts(chosen(*given, "trainer=fsdp")))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["optimizer=schedule_free_adamw", "callbacks=[default,ema]"],
            r"^callbacks\.ema: not supported with optimizer=sched",
        ),
        (
            ["optimizer=schedule_free_adamw", "callbacks=[default,freeze_pretrained]"],
            r"^callbacks\.freeze_pretrained: not supported with optimizer=schedule_free_adamw",
        ),
        (["optimizer=muon", "trainer=fsdp"], "^optimizer: Muon looks at whole matrices, of which FSDP"),
        (["optimizer=adafactor", "trainer=fsdp"], "^optimizer: Adafactor looks at whole matrices"),
        *(
            ([f"optimizer={name}", "trainer.precision=16-true"], r"^optimizer\.eps=1e-0[89]: with .* at least 1e-05")
            for name in ("adamw", "muon", "schedule_free_adamw")
        ),
    ],
)
def test_an_optimizer_is_not_given_what_it_cannot_do(
    overrides: list[str], message: str, chosen: Callable[..., DictConfig]
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_before_data(with_parts(chosen("experiment=dates/translation", *overrides)))


@pytest.mark.parametrize("name", ["muon", "schedule_free_adamw", "adafactor", "sgd"])
def test_other_optimizers_than_adamw_go_with_float16(name: str, chosen: Callable[..., DictConfig]) -> None:
    given = ["experiment=dates/translation", f"optimizer={name}"]
    check_before_data(with_parts(chosen(*given, "trainer.precision=16-mixed")))
    eps = ["optimizer.eps=1.0e-4"] * (name in ("muon", "schedule_free_adamw"))
    check_before_data(with_parts(chosen(*given, "trainer.precision=16-true", *eps)))


def test_a_schedule_free_optimizer_chooses_no_schedule_unless_one_is_given(chosen: Callable[..., DictConfig]) -> None:
    given = ["experiment=dates/translation", "optimizer=schedule_free_adamw"]
    assert chosen(*given).scheduler._target_.endswith(".Constant")
    assert chosen(*given, "scheduler=cosine").scheduler._target_.endswith(".Cosine")
    assert chosen("experiment=dates/translation").scheduler._target_.endswith(".Cosine")


def test_of_several_texts_one_is_expected() -> None:
    with pytest.raises(ConfigError, match=r"^data.train=\[a,b\]: expected one text or null$"):
        check_type("data.train", ["a", "b"], str | None)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("experiment=generation/drawn shape.max_length=288", "shape.max_length=288: an image has 288 pixels"),
        ("experiment=generation/drawn task.num_inference_steps=289", "task.num_inference_steps=289: expected 1 to 288"),
        ("task=infilling tokenizer.num_sentinels=2", "tokenizer.num_sentinels=2: task=infilling"),
        ("tokenizer=characters batch.bpe_dropout=0.1", "batch.bpe_dropout=0.1: this tokenizer has no merges"),
    ],
)
def test_what_sizes_and_tokenizer_rule_out_needs_no_data(
    chosen: Callable[..., DictConfig], overrides: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        check_before_data(with_parts(chosen(*overrides.split())))


def test_sizes_and_tokenizers_that_just_suffice_are_not_ruled_out(chosen: Callable[..., DictConfig]) -> None:
    check_before_data(
        with_parts(
            chosen("experiment=generation/drawn", "model=full", "shape.max_length=288", "task.num_inference_steps=288")
        )
    )
    check_before_data(with_parts(chosen("task=infilling", "tokenizer.num_sentinels=3")))
    check_before_data(with_parts(chosen("tokenizer=bpe", "batch.bpe_dropout=0.1")))
