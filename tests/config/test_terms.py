"""The runs of Triptych 0.2 (see fixtures/README.md), whose names differ: every command that reads one says so in one
line, and the command that trained it names today's keys."""

import json
import shlex
import shutil
from pathlib import Path

import pytest

import triptych
from commands import run
from triptych.config import ConfigError
from triptych.config.terms import RENAMED_CHOICES, RENAMED_KEYS, renamed_choice, renamed_key

RUN = Path(__file__).parents[1] / "fixtures" / "b740c1b" / "classification"
ANSWER = "written by Triptych 0.2 or earlier, whose names differ. Train it again, or use 0.2."


@pytest.mark.parametrize(
    "arguments",
    [
        ["evaluate", "checkpoint=old"],
        ["predict", "checkpoint=old"],
        ["compare", "old"],
        ["export", "old", "--output", "folder"],
        ["train", "experiment=dates/classification", "init_from=old", "logger=csv"],
        ["train", "experiment=dates/classification", "model=encoder_only", "resume=old", "logger=csv"],
        ["train", "experiment=dates/classification", "match=train_flops", "reference=old", "logger=csv"],
    ],
    ids=lambda arguments: " ".join(arguments),
)
def test_is_named_in_one_line(arguments: list[str], tmp_path: Path) -> None:
    shutil.copytree(RUN, tmp_path / "old")
    finished = run(*arguments, cwd=tmp_path)
    assert finished.returncode == 1
    assert finished.stderr.splitlines()[-1].endswith(ANSWER)
    assert "Traceback" not in finished.stderr


def test_is_named_in_python() -> None:
    with pytest.raises(ConfigError, match=r"written by Triptych 0\.2 or earlier"):
        triptych.load(RUN)


def test_its_command_names_the_new_keys(tmp_path: Path) -> None:
    command = shlex.split(json.loads((RUN / "summary.json").read_text())["command"])[1:]
    finished = run(*command, cwd=tmp_path)
    assert (finished.returncode, finished.stderr) == (1, "error: batch.size was renamed to batch.global_size\n")


@pytest.mark.parametrize(("old", "new"), RENAMED_KEYS.items())
def test_a_renamed_key_is_named(old: str, new: str) -> None:
    assert renamed_key(old) == new
    assert renamed_key(new) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("model.decoder.position.share", "model.decoder.position.partial_rotary_factor"),
        ("model.encoder.attention.windows", "model.encoder.attention.sliding_windows"),
        ("frames.stride", "audio_embedding.stride"),
        ("patches.patch_size", "image_embedding.patch_size"),
        ("shape.d_model", None),
        ("model.decoder.num_layers", None),
    ],
)
def test_so_is_one_of_a_stack_or_of_a_signal(old: str, new: str | None) -> None:
    assert renamed_key(old) == new


def test_renamed_choices_are_named() -> None:
    for group, choices in RENAMED_CHOICES.items():
        for old, new in choices.items():
            assert renamed_choice(group, old) == renamed_choice(f"{group}@model.encoder.x", old) == new
            assert renamed_choice(group, new) is None
    assert renamed_choice("experiment", "probes/copy") == "synthetic/copy"
