"""What is composed once for many jobs, and for many tests, is what Hydra composes for each."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.errors import HydraException
from hydra.types import RunMode
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf, open_dict

from command_line import command_lines, composed
from triptych.config import hydra_guard

CHOICES = [
    ["model=full"], ["model=bert/style"], ["experiment=dates/classification", "model=encoder_only"], ["~scheduler"],
]  # fmt: skip
VALUES = [
    "seed=3", "run_dir=somewhere", "optimizer.lr=2e-3", "++optimizer.lr=1", "shape.d_model=${shape.d_ff}",
    "block.attention.dropout=0.25", "~batch.global_size", "++data.extra={a: [1, 2]}", "+data.extra.b=null",
    "trainer={max_steps: 7}", "hydra.job.name=other", "hydra.verbose=true",
    "hydra.job.config.override_dirname.exclude_keys=[seed]", "optimizer=muon", "+callbacks=checkpoints", "sed=1",
    "model.no_such_key=1", "seed=1,2",
]  # fmt: skip
"""Some of them are mistakes."""


def outcomes(loader: hydra_guard.GuardedLoader, overrides: Sequence[str]) -> list[object]:
    """What each of the two makes of a command line: a configuration, or an error."""
    found: list[object] = []
    for load in (loader.load_configuration, lambda *given: ConfigLoaderImpl.load_configuration(loader, *given)):
        try:
            config = load("train", list(overrides), RunMode.RUN)
        except HydraException as error:
            found.append((type(error), str(error)))
        else:
            found.append((OmegaConf.to_container(config), OmegaConf.get_type(config), OmegaConf.is_struct(config)))
    return found


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(CHOICES), st.lists(st.sampled_from(VALUES), max_size=5))
def test_kept_or_composed_again(choices: list[str], values: list[str]) -> None:
    kept, anew = outcomes(LOADER, [*choices, *values, "hydra.mode=RUN"])
    assert kept == anew


@settings(max_examples=8, deadline=None)
@given(st.sampled_from(CHOICES), st.lists(st.sampled_from(VALUES), max_size=4))
def test_the_configurations_of_the_tests(choices: list[str], values: list[str]) -> None:
    """Those of ``tests/command_line.py``, also after a test has changed one."""
    overrides = ["run_dir=unused", *choices, *values]
    try:
        expected = ConfigLoaderImpl.load_configuration(LOADER, "train", overrides, RunMode.RUN, from_shell=False)
    except HydraException as error:
        with pytest.raises(type(error), match=re.escape(str(error))):
            composed(*choices, *values)
        return
    with open_dict(expected):
        del expected.hydra
    with command_lines() as chosen:
        for compose in (composed, chosen, composed):
            config = compose(*choices, *values)
            assert OmegaConf.to_container(config) == OmegaConf.to_container(expected)
            assert OmegaConf.get_type(config) is OmegaConf.get_type(expected)
            assert OmegaConf.is_struct(config) == OmegaConf.is_struct(expected)
            config.seed = 99


def test_files_of_ones_own_are_read_again_by_the_next_command(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    arguments = [f"--config-dir={tmp_path}", "experiment=own", "seed=7", f"run_dir={tmp_path / 'run'}"]
    seen = []
    for lr in (1e-3, 2e-3):
        (tmp_path / "experiment" / "own.yaml").write_text(f"# @package _global_\noptimizer: {{lr: {lr}}}\n")
        hydra_guard.run("train", arguments, lambda config: seen.append((config.optimizer.lr, config.seed)))
    assert seen == [(1e-3, 7), (2e-3, 7)]


hydra_guard.register_schemas("train", [])
LOADER = hydra_guard.read_arguments([])[2].config_loader
