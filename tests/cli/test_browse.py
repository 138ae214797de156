"""Finding things: what there is, what a setting means and where it was set, completion, skeletons, the schema."""

import ast
import importlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pexpect
import pytest
import yaml
from omegaconf import DictConfig, OmegaConf

from cases import by_day
from clock import bound
from command_line import composed
from triptych.cli import main
from triptych.cli.completion import SCRIPTS, complete_line
from triptych.cli.help import kept_help
from triptych.cli.json_schema import make_schema
from triptych.cli.listing import COLUMNS, KINDS, describe_choice
from triptych.cli.show import explain_key as describe_key
from triptych.config.diagnose import choices_of, keys_of

CONF = Path(__file__).parents[2] / "conf"
WIDE = {"COLUMNS": "250"}


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Calls ``triptych`` in this process: its exit status, and what it has printed."""
    monkeypatch.setenv("COLUMNS", WIDE["COLUMNS"])

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["triptych", *arguments])
        status = main()
        return status, *capsys.readouterr()

    return call


def test_what_answers_while_one_types_imports_no_torch() -> None:
    commands = [
        ["list"],
        ["completion", "--answer", "triptych train optimizer."],
        ["show", "shape.d_model"],
        ["--version"],
    ]
    code = f"""
import sys
from triptych.cli import main
for arguments in {commands}:
    sys.argv = ["triptych", *arguments]
    assert main() == 0
    assert "torch" not in sys.modules, arguments
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=300)


class TestList:
    @pytest.mark.parametrize("kind", KINDS)
    def test_everything_is_there_and_says_what_it_is(self, kind: str) -> None:
        rows = describe_choice(kind, [])
        assert sorted(rows) == choices_of(KINDS[kind], [])
        for name, cells in rows.items():
            wanted = [cell for cell, column in zip(cells, COLUMNS[kind], strict=True) if column != "answer"]
            assert all(wanted), name

    def test_models_stand_by_family_with_their_architectures_and_sizes(self, chosen: Callable[..., DictConfig]) -> None:
        rows = describe_choice("models", [])
        classes = {
            **{"full": "EncoderDecoder", "encoder_only": "EncoderOnly", "decoder_only": "DecoderOnly"},
            "dual_decoder": "DualDecoder",
        }
        for name in (name for name in rows if name.endswith("style")):
            assert chosen(f"model={name}").model._target_ == f"triptych.models.{classes[rows[name][0]]}"
        llamas = [name for name in rows if name.startswith("llama/")]
        assert llamas[2:6] == ["llama/3.2-1b", "llama/7b", "llama/3.1-8b", "llama/13b"]
        assert rows["llama/7b"][:2] == ("decoder_only", "6,738,415,616")
        assert [*rows].index("llama/65b") == [*rows].index("llama/7b") + 4

    def test_a_word_leaves_out_the_others(self, answer: Any) -> None:
        status, said, _ = answer("list", "experiments", "SST2")
        shown = re.findall(r"[\w]+/[\w]+(?= +│)", said)
        assert status == 0
        assert {"sst2/full", "sst2/tuning"} <= {*shown}
        assert "dates/translation" not in said
        assert "accuracy 79.9 %" in said

    def test_a_word_that_nothing_has(self, answer: Any) -> None:
        assert answer("list", "sst3") == (
            1,
            "",
            "error: triptych list sst3: no entries contain this word; did you mean sst2?\n",
        )

    def test_a_group_is_shown_elsewhere(self, answer: Any) -> None:
        _, said, _ = answer("list", "optimizer")
        assert said.endswith("The choices of optimizer: triptych show optimizer\n")
        _, _, said = answer("list", "block/attention")
        assert said.endswith("no entries contain this word; its choices: triptych show block/attention\n")

    def test_a_word_that_another_kind_has(self, answer: Any) -> None:
        status, _, said = answer("list", "experiments", "parallel")
        assert status == 1
        assert said.endswith(": no experiments contain this word; corpora: parallel_text\n")
        _, _, said = answer("list", "models", "max_steps")
        assert said.endswith("; keys: scheduler.max_steps, trainer.max_steps\n")


class TestShow:
    def test_a_default_of_lightning_is_not_ours(self, answer: Any) -> None:
        _, said, _ = answer("show", "trainer.max_steps")
        assert "Stop training after this number of steps." in said
        assert "Disabled" not in said
        _, said, _ = answer("show", "trainer.log_every_n_steps")
        assert "How often to log within steps." in said
        assert "Default" not in said

    def test_a_group_without_a_choice_has_values(self, answer: Any) -> None:
        _, said, _ = answer("show", "shape", "shape.d_ff=64")
        assert re.search(r"chosen +none of these: shape.d_model=128 .* shape.d_ff=64 ", said)
        _, said, _ = answer("show", "shape", "shape=tiny")
        assert re.search(r"chosen +tiny *\n", said)

    def test_where_a_key_was_set(self, answer: Any) -> None:
        status, said, _ = answer("show", "optimizer.lr", "experiment=sst2/full", "optimizer.lr=3e-4")
        assert status == 0
        places = re.findall(r"conf/(\S+):(\d+) ", said)
        lines = [(CONF / file).read_text().splitlines()[int(line) - 1].strip() for file, line in places]
        assert [file for file, _ in places] == ["optimizer/adamw.yaml", "experiment/sst2/full.yaml"]
        assert all(line.startswith("lr: 1.0e-3") for line in lines)
        assert said.rstrip().endswith("then by   the command line  optimizer.lr=3e-4")
        for word in ("value     0.0003", "peak learning rate", "a number"):
            assert word in said

    def test_a_key_of_the_typed_root_and_one_that_is_taken_from_it(self, answer: Any) -> None:
        _, said, _ = answer("show", "batch.too_long")
        assert "one of error, truncate, drop" in said
        _, said, _ = answer("show", "model.encoder.d_model", "shape.d_model=64")
        assert "64 (from ${shape.d_model})" in said

    def test_a_group(self, answer: Any) -> None:
        _, said, _ = answer("show", "block/position", "experiment=sst2/full")
        assert re.search(r"chosen +relative_bias *\n", said)
        assert re.search(r"rotary +Rotates queries and keys", said)

    def test_mistakes(self, answer: Any) -> None:
        _, _, said = answer("show", "optimizer.learning_rate")
        assert said == "error: optimizer.learning_rate: there is no such key; did you mean optimizer.lr?\n"
        _, _, said = answer("show", "optimizer.lr", "experiment=sst2/ful")
        assert said.startswith("error: experiment=sst2/ful: there is no such choice; ")

    def test_every_key_is_described_without_an_error(self) -> None:
        config = composed()
        keys = [key for key in keys_of("train", ()) if "/" not in key and key not in ("experiment", "debug")]
        said = {key: describe_key(config, key) for key in keys}
        assert len(said) > 150
        for key, (meaning, _) in said.items():
            assert meaning or not key.startswith(("shape.", "batch.", "block.d", "optimizer.")), key


class TestCompletion:
    def test_it_leads_to_every_key_that_hydra_composes(self) -> None:
        for key in keys_of("train", ()):
            offered = complete_line(f"triptych train {key}", [])
            assert {f"{key}=", f"{key}."} & {*offered}, key

    @pytest.mark.parametrize("shell", by_day(SCRIPTS, ["bash"]))
    def test_the_tab_key(self, shell: str, tmp_path: Path) -> None:
        """In the shell itself, at a terminal. What is typed behind the key shows whether a blank is before it."""
        if not shutil.which(shell):
            pytest.skip(f"{shell} is not installed")
        command, said = tmp_path / "bin/triptych", tmp_path / "said"
        command.parent.mkdir()
        answer = f'[ "$1" = completion ] && exec {sys.executable} -m triptych "$@"'
        command.write_text(f'#!/bin/sh\n{answer}\nIFS="|"; echo "$*" >> {said}\n')
        command.chmod(0o755)
        start, prompt, completion = STARTS[shell]
        (tmp_path / completion).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / start).write_text(f"{prompt}\n")
        with open(tmp_path / completion, "a") as file:
            file.write(SCRIPTS[shell])
        (tmp_path / "outputs").mkdir()
        pressed = {
            "triptych exp\tX": "export|X",
            "cd . && A=1 triptych exp\tX": "export|X",
            "triptych train experiment=sst2/t\tX": "train|experiment=sst2/tuning|X",
            "triptych train batch.too\tX": "train|batch.too_long=X",
            "triptych train model=full,dec\tX": "train|model=full,decoder_only|X",
            "triptych compare outp\tX": "compare|outputs/X",
            "triptych train run_dir=outp\tX": "train|run_dir=outputs/X",
        }
        variables = {"HOME": str(tmp_path), "TERM": "xterm", "PATH": f"{command.parent}:{os.environ['PATH']}"}
        terminal = pexpect.spawn(shell, ["-i"], cwd=tmp_path, env={**os.environ, **variables}, timeout=bound(60))
        terminal.expect("ready> ")
        for keys in pressed:
            terminal.send(f"{keys}\r")
        terminal.send("exit\r")
        terminal.expect(pexpect.EOF)
        assert said.read_text().splitlines() == [*pressed.values()]


STARTS = {
    "bash": (".bashrc", "PS1='ready> '", ".bashrc"),
    "zsh": (".zshrc", "PS1='ready> '", ".zshrc"),
    "fish": (
        ".config/fish/config.fish",
        "function fish_prompt; echo -n 'ready> '; end",
        ".config/fish/completions/triptych.fish",
    ),
}
"""What a shell reads at its start, a prompt to wait for, and the file that ``triptych completion --help`` names."""


def test_skeletons_name_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    """Their keys are settings of what they choose or name, and what they import is there."""
    monkeypatch.chdir(tmp_path)
    for kind, name in (("experiment", "mine/first"), ("task", "script"), ("corpus", "sums")):
        assert answer("new", kind, name)[0] == 0
    experiment = yaml.safe_load((tmp_path / "conf/experiment/mine/first.yaml").read_text())
    choices = [entry.popitem() for entry in experiment.pop("defaults")]
    config = composed(*(f"{group.removeprefix('override /')}={choice}" for group, choice in choices))
    assert OmegaConf.merge(config, experiment).trainer.max_steps == experiment["trainer"]["max_steps"]
    modules = sorted(tmp_path.rglob("*.py"))
    assert len(modules) >= 5
    for file in modules:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("triptych"):
                assert all(hasattr(importlib.import_module(node.module), name.name) for name in node.names)


@pytest.mark.nightly
def test_skeletons_pass_as_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for kind, name in (("experiment", "mine/first"), ("task", "script"), ("corpus", "sums")):
        assert answer("new", kind, name)[0] == 0
    tests = sorted(tmp_path.glob("test_*.py"))
    assert len(tests) == 3
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *tests], cwd=tmp_path, capture_output=True,
        text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=300,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "3 passed" in finished.stdout
    assert (
        answer("new", "task", "script")[2] == "error: triptych new task script: script.py exists; expected a new file\n"
    )


class TestSchema:
    @pytest.fixture(scope="class")
    def check(self) -> Any:
        schema = make_schema([])
        jsonschema.Draft202012Validator.check_schema(schema)
        return jsonschema.Draft202012Validator(schema)

    def test_every_experiment_fits(self, check: Any) -> None:
        for file in (CONF / "experiment").rglob("*.yaml"):
            found = [
                (file.stem, [*error.path], error.message)
                for error in check.iter_errors(yaml.safe_load(file.read_text()))
            ]
            assert not found

    @pytest.mark.parametrize(
        "content",
        [
            {"optimizer": {"lrr": 1.0}}, {"shape": {"d_model": "wide"}}, {"defaults": [{"override /model": "ful"}]},
            {"sede": 1}, {"trainer": {"max_steps": [1]}}, {"block": {"position": {"thetaa": 1.0}}},
        ],
    )  # fmt: skip
    def test_mistakes_do_not(self, check: Any, content: dict[str, Any]) -> None:
        assert not check.is_valid(content)


def test_help_is_composed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("triptych.cli.help.files", lambda _: tmp_path)
    composed = []

    def print_help() -> None:
        composed.append(1)
        print("what can be set")

    for arguments in (["--help"], ["--help"], ["model=full", "-h"], ["--help"]):
        assert kept_help("train", arguments, print_help) == "what can be set\n"
    assert len(composed) == 2
    for _ in range(2):
        assert kept_help("train", ["--help", "--config-dir=mine"], print_help) == "what can be set\n"
    assert len(composed) == 4
    (tmp_path / "train.yaml").write_text("seed: 1\n")  # a file of conf/ is new
    assert kept_help("train", ["--help"], print_help) == "what can be set\n"
    assert len(composed) == 5
    monkeypatch.setenv("TRIPTYCH_CACHE", "/proc/nowhere")
    assert kept_help("train", ["--help"], print_help) == "what can be set\n"
