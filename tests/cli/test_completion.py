"""Completion in real shells."""

import os
import shutil
import sys
from pathlib import Path

import pexpect
import pytest

from cases import by_day
from clock import bound
from triptych.cli.completion import SCRIPTS, complete_line
from triptych.config.diagnose import keys_of
from triptych.config.hydra_guard import register_schemas


class TestCompletion:
    def test_it_leads_to_every_key_that_hydra_composes(self) -> None:
        register_schemas("train", [])
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
