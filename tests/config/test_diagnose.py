"""What Hydra cannot read as one text is answered with the form that it can."""

import shlex
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from hypothesis import example, given, settings
from hypothesis import strategies as st

from triptych.config import PredictConfig
from triptych.config.diagnose import explain, in_quotes, without_key
from triptych.config.overrides import read_value
from triptych.launch.lock import locked, remove_unused


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1))
@example("a\"b'c$d`e\\")
@example("outputs/lr=0.1,wd=[0](x){y}")
@example("a\\\\")
@example("${x}")
def test_a_text_in_quotes_is_read_back_from_a_shell(text: str) -> None:
    quoted = in_quotes(f"checkpoint={text}")
    assert quoted is not None
    (argument,) = shlex.split(quoted)
    assert str(read_value(argument)).replace("\\${", "${") == text


@settings(max_examples=15)
@given(
    st.lists(st.sampled_from(["a", "run", "/", "=", "(", ")", "[", "]", "{", "}", ",", "ü", "#", "1", "."]), min_size=1)
    .map("".join)
    .filter(lambda text: not text.startswith("~"))
)
def test_a_path_that_hydra_cannot_read_is_answered_with_its_quoted_form(text: str) -> None:
    ConfigStore.instance().store(name="predict_schema", node=PredictConfig)
    argument = f"checkpoint={text}"
    try:
        with initialize_config_module("triptych.conf", version_base="1.3"):
            compose("predict", overrides=[argument])
    except HydraException as error:
        answer = explain(error, "predict", [argument])
        assert answer is not None
        assert "expecting" not in answer
        assert "input" not in answer
        if "requires -m" not in answer and "expected" not in answer:
            assert str(in_quotes(argument)) in answer


@pytest.mark.parametrize("argument", ["a b=c", "x", "=3", "ü=3"])
def test_what_is_no_override_is_not_quoted(argument: str) -> None:
    assert in_quotes(argument) is None


def test_a_home_folder_that_the_shell_did_not_expand() -> None:
    with pytest.raises(HydraException) as caught:
        read_value("checkpoint=~/runs/a")
    assert "expected checkpoint=$HOME/runs/a" in str(explain(caught.value, "predict", ["checkpoint=~/runs/a"]))


@pytest.mark.parametrize("kept", [[], ["train.log"], ["config.yaml"], ["train.log", "metrics.csv"]])
def test_the_directory_of_a_run_that_never_began_is_removed(
    kept: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    other, run_dir = Path("outputs/other"), Path("outputs/dates/full/now")
    other.mkdir(parents=True)
    with locked(run_dir):
        for name in kept:
            (run_dir / name).write_text("x")
    remove_unused(run_dir)
    assert other.is_dir()
    assert run_dir.exists() == Path("outputs/dates").exists() == any(name != "train.log" for name in kept)


@pytest.mark.parametrize(
    ("argument", "meant"),
    [("last.ckpt", "checkpoint=last.ckpt"), ("run/a:b.ckpt", "checkpoint=run/a:b.ckpt"), ("seed:3", "seed=3")],
)
def test_only_a_key_before_a_colon_is_taken_for_one(argument: str, meant: str) -> None:
    assert without_key(0, [argument], "evaluate") == f"{argument}: expected key=value; did you mean {meant}?"
