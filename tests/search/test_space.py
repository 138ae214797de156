"""What a command line searches: Hydra's own reading of it is the reference."""

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import RandomSampler
from optuna.study import create_study

from triptych.config import ConfigError
from triptych.search.space import Space, as_overrides, other_names, read_space


def read(*lines: str) -> Space:
    return read_space(OverridesParser.create().parse_overrides(list(lines)))


def test_what_is_listed_is_not_searched_and_what_is_fixed_stays() -> None:
    lines = ("model=full,decoder_only", "block.dropout=interval(0,0.3)", "data.languages=[de,en]", "a=1,2", "b='x,y'")
    space = read(*lines)
    assert space.fixed == ["data.languages=[de,en]", "b='x,y'"]
    assert list(space.searched) == ["block.dropout"]
    assert space.combinations() == [[f"model={m}", f"a={a}"] for m in ("full", "decoder_only") for a in (1, 2)]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("x=interval(1,2)", FloatDistribution(1, 2)),
        ("x=int(interval(1,8))", IntDistribution(1, 8)),
        ("x=tag(log,interval(1e-4,1e-2))", FloatDistribution(1e-4, 1e-2, log=True)),
        ("x=tag(log,int(interval(1,8)))", IntDistribution(1, 8, log=True)),
        ("x=range(0.1,0.9,0.2)", FloatDistribution(0.1, 0.7, step=0.2)),
        ("x=choice(1,2.5,relu,'a b',[1,2])", CategoricalDistribution(["1", "2.5", "relu", r"a\ b", "[1,2]"])),
    ],
    ids=["interval", "whole numbers", "logarithm", "logarithm of whole numbers", "steps", "choice"],
)
def test_distributions(line: str, expected: object) -> None:
    assert read(line).searched == {"x": expected}


@given(st.integers(-20, 20), st.integers(-20, 20), st.integers(-4, 4).filter(bool))
def test_a_range_has_the_values_that_hydra_gives_it(start: int, stop: int, step: int) -> None:
    line = f"x=range({start},{stop},{step})"
    (override,) = OverridesParser.create().parse_overrides([line])
    values = list(override.sweep_iterator())
    if not values:
        with pytest.raises(ConfigError, match="an empty range"):
            read(line)
        return
    distribution = read(line).searched["x"]
    assert isinstance(distribution, IntDistribution)
    assert sorted(values) == list(range(distribution.low, distribution.high + 1, distribution.step))


def test_a_searched_model_names_a_run_otherwise() -> None:
    space = read(
        "model=choice(full,decoder_only,llama/style)",
        "block/norm=choice(layer_norm,rms_norm)",
        "data.num_train=range(9)",
    )
    assert other_names(space.searched) == [{"model": "decoder_only"}, {"model": "llama/style"}]


def test_what_is_drawn_is_read_again_as_it_was_drawn() -> None:
    space = read("a=tag(log,interval(1e-9,1e9))", "b=choice('a b','c,d',e)", "c=range(0.1,0.9,0.2)", "d=range(3)")
    study = create_study(sampler=RandomSampler(seed=1))
    for _ in range(50):
        params = study.ask(space.searched).params
        again = {o.key_or_group: o.value() for o in OverridesParser.create().parse_overrides(as_overrides(params))}
        assert again["a"] == params["a"]
        assert again["b"] in ("a b", "c,d", "e")
        assert again["c"] == pytest.approx(params["c"])
        assert again["d"] == params["d"]


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("seed=1,2,3", r"hydra\.sweeper\.seeds=\[1,2,3\]"),
        ("seed=interval(1,2)", r"hydra\.sweeper\.seeds="),
        ("run_dir=choice(a,b)", r"run_dir=choice\(a,b\): expected one folder"),
        ("run_dir=a,b", "run_dir=a,b: expected one folder"),
        ("x=interval(1,2),1", r"x=interval\(1,2\),1: expected either a list of values, x=1,2, or one interval"),
        ("x=1,2", r"nothing to search; give at least one key=interval\(a,b\)"),
        ("x=1", "nothing to search"),
        ("x=tag(lgo,interval(1,2))", "unknown tag lgo.*did you mean log"),
        ("x=tag(log,choice(1,2))", "a choice does not support the tag log"),
        ("x=tag(log,interval(0,2))", "x=.*low"),
        ("x=tag(log,range(1,9,2))", "x=.*step"),
        ("x=interval(2,1)", "x=interval.*low"),
        ("x=shuffle(range(9))", "does not support shuffle"),
    ],
)
def test_what_has_no_meaning_is_rejected(line: str, answer: str) -> None:
    with pytest.raises(ConfigError, match=answer):
        read(line)
