"""What an interrupted training says that resumes it."""

import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

import tiny
import triptych.train
from triptych.cli import main
from triptych.config.overrides import read_value
from triptych.launch.signals import Interruption

RANK_0 = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("given", "variables", "again"),
    [
        (["run_dir=mine"], {}, "the same command again"),
        ([], {}, "the same command with run_dir=outputs/dates/classification_encoder_only/"),
        (["run_dir=mine/${now:%Y}"], {}, "the same command with run_dir=mine/2"),
        (["run_dir=mine it"], RANK_0, "the same command with 'run_dir=mine it'"),  # of trainer=ddp_cpu
        (["run_dir='a=1,b'"], RANK_0, "the same command with"),
    ],
    ids=["typed", "default", "time", "one of two processes", "characters of Hydra's"],
)
def test_run_dir_is_named_unless_the_same_command_has_it(
    given: list[str],
    variables: dict[str, str],
    again: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stopped: list[str] = []

    def stop(config: Any) -> None:
        stopped.append(config.run_dir)
        raise Interruption(15, 3)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(triptych.train, "train", stop)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    command = ["triptych", "train", *tiny.dates("classification_encoder_only"), *given]
    monkeypatch.setattr(sys, "argv", command)
    assert main() == 128 + 15
    said = capsys.readouterr().err
    assert f"stopped by SIGTERM at step 3. Run {again}" in said
    assert said.endswith(" to resume.\n")
    if again == "the same command again":
        assert f"{again} to resume." in said
    else:
        (named,) = shlex.split(said.partition("command with ")[2].removesuffix(" to resume.\n"))
        assert named.partition("=")[0] == "run_dir"
        assert read_value(named) == stopped[0]
