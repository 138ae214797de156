"""Finding things: what there is, what a setting means and where it was set, completion, skeletons, the schema."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hydra import compose, initialize_config_module
from hydra.core.config_store import ConfigStore

from triptych.browse.completion import SCRIPTS, complete
from triptych.browse.listing import COLUMNS, KINDS, describe
from triptych.browse.schema import make_schema
from triptych.browse.show import describe as describe_key
from triptych.cli import main
from triptych.config import TrainConfig
from triptych.config.explain import choices_of, keys_of

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
        rows = describe(kind, [])
        assert [*rows] == choices_of(KINDS[kind], [])
        for name, cells in rows.items():
            wanted = [cell for cell, column in zip(cells, COLUMNS[kind], strict=True) if column != "answer"]
            assert all(wanted), name

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
            "error: triptych list sst3: nothing has this word; did you mean sst2?\n",
        )


class TestShow:
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
        assert "64, which is ${shape.d_model}" in said

    def test_a_group(self, answer: Any) -> None:
        _, said, _ = answer("show", "block/position", "experiment=sst2/full")
        assert re.search(r"chosen +relative *\n", said)
        assert re.search(r"rotary +Queries and keys are rotated", said)

    def test_mistakes(self, answer: Any) -> None:
        _, _, said = answer("show", "optimizer.learning_rate")
        assert said == "error: optimizer.learning_rate: there is no such key; did you mean optimizer.lr?\n"
        _, _, said = answer("show", "optimizer.lr", "experiment=sst2/ful")
        assert said.startswith("error: experiment=sst2/ful: there is no such choice; ")

    def test_every_key_is_described_without_an_error(self) -> None:
        ConfigStore.instance().store(name="train_schema", node=TrainConfig)
        with initialize_config_module("triptych.conf", version_base="1.3"):
            config = compose("train")
        keys = [key for key in keys_of("train", ()) if "/" not in key and key not in ("experiment", "debug")]
        said = {key: describe_key(config, key) for key in keys}
        assert len(said) > 150
        for key, (meaning, _) in said.items():
            assert meaning or not key.startswith(("shape.", "batch.", "block.d", "optimizer.")), key


class TestCompletion:
    def test_it_leads_to_every_key_that_hydra_composes(self) -> None:
        for key in keys_of("train", ()):
            offered = complete(f"triptych train {key}", [])
            assert {f"{key}=", f"{key}."} & {*offered}, key

    def test_bash(self, tmp_path: Path) -> None:
        (tmp_path / "triptych").write_text(f'#!/bin/sh\nexec {sys.executable} -m triptych "$@"\n')
        (tmp_path / "triptych").chmod(0o755)

        def press_tab(*words: str) -> list[str]:
            line = " ".join(words).replace(" = ", "=").replace("= ", "=")
            given = (
                f"COMP_LINE={line!r} COMP_POINT={len(line)} COMP_CWORD={len(words) - 1} COMP_WORDS=({' '.join(words)})"
            )
            code = f'{SCRIPTS["bash"]}\n{given}; _triptych; printf "%s\\n" "${{COMPREPLY[@]}}"'
            environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
            finished = subprocess.run(
                ["bash", "-c", code], env=environment, capture_output=True, text=True, timeout=300
            )
            return finished.stdout.split()

        assert press_tab("triptych", "exp") == ["export"]
        # bash takes the = for a word of its own
        assert press_tab("triptych", "train", "experiment", "=", "sst2/t") == ["sst2/tuning"]
        assert press_tab("triptych", "train", "batch.too") == ["batch.too_long="]


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
        answer("new", "task", "script")[2]
        == "error: triptych new task script: script.py is there; expected a new file\n"
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
