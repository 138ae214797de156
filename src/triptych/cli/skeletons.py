"""The beginnings of one's own: an experiment, a task, a corpus, each with a test that passes as it is written."""

import importlib.util
import re
from pathlib import Path
from string import Template

from triptych.config import ConfigError
from triptych.config.explain import choices_of
from triptych.config.paths import check_writable

GROUPS = {"experiment": "experiment", "task": "task", "corpus": "data"}
"""What can be begun, and the groups by which it is chosen."""
CHOSEN = {
    "experiment": "experiment=",
    "task": "data=dates model=encoder_only task=",
    "corpus": "task=classification model=encoder_only data=",
}
"""What a training chooses, before the name of what is begun."""

EXPERIMENT = """\
# @package _global_
# yaml-language-server: $$schema=$up/triptych.schema.json
# Shows: what one learns from it, in a line.
# Command: triptych train --config-dir=conf experiment=$name
# Expected: the score, of how many seeds, and what it stands beside
# Cost: updates, minutes, of which machine
defaults:
  - override /model: encoder_only # triptych list models
  - override /task: classification
  - override /data: dates # triptych list corpora
  - override /tokenizer: characters

shape:
  d_model: 64
  num_layers: 2
  num_heads: 4
  d_ff: 128
batch:
  size: 64
optimizer:
  lr: 1.0e-3 # triptych show optimizer.lr
scheduler:
  warmup_steps: 50
trainer:
  max_steps: 500
  val_check_interval: 100
"""

TASK = '''\
"""A task of one's own: it says all that is known of it. This one is classification with classes of its own."""

from triptych.data import Example
from triptych.tasks import Classification


class $title(Classification):
    """Whether a text is written in ASCII. (In its place: what your task asks.)"""

    name, title, columns = "$name", "$title", ("text",)
    labels = ("ascii", "other")

    @classmethod
    def num_outputs(cls, vocab_size, corpus):
        return len(cls.labels)

    def label(self, example: Example) -> int:
        """A ValueError refuses an example that the task cannot take; this one takes every text."""
        return int(not example.text.isascii())

    def reference(self, example: Example) -> str:
        return self.labels[self.label(example)]
'''

CORPUS = '''\
"""A corpus of one's own: it says which columns it has, and every task that needs no others can be trained on it."""

import random

from triptych.data import CorpusFacts, Example, Splits


class $title:
    """Sums of two numbers, and what they come to. (In its place: what yours has.)"""

    columns = ("text", "target", "label")
    facts = CorpusFacts(labels=("even", "odd"))

    def __init__(self, *, largest: int, seed: int) -> None:
        pairs = [(a, b) for a in range(largest + 1) for b in range(largest + 1)]
        random.Random(seed).shuffle(pairs)
        self.examples = [Example(f"{a}+{b}", target=str(a + b), label=self.facts.labels[(a + b) % 2]) for a, b in pairs]

    def splits(self) -> Splits:
        tenth = len(self.examples) // 10
        test, validation, train = self.examples[:tenth], self.examples[tenth : 2 * tenth], self.examples[2 * tenth :]
        return Splits(train=train, validation=validation, test=test)

    def optimum(self, task, architecture, examples):
        """The best reachable values, as far as they are known."""
        return {}
'''

TEST = '''\
"""Trains two updates, tests, and looks into the record."""

import json
import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
SMALL = ["shape=tiny", "trainer.max_steps=2", "trainer.val_check_interval=2", "trainer.accelerator=cpu", "logger=csv"]


def test_trains(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "triptych", "train", "--config-dir=conf", $chosen, *SMALL]
    places = os.pathsep.join([str(FOLDER), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": places$allowed}
    subprocess.run([*command, f"run_dir={tmp_path}"], cwd=FOLDER, env=environment, check=True)
    record = json.loads((tmp_path / "summary.json").read_text())
    assert record["updates"] == 2
    assert 0 <= record["metrics"]["test/accuracy"] <= 1
'''

FILES = {
    "experiment": ("", EXPERIMENT),
    "task": (TASK, "_target_: $name.$title\nlabel_smoothing: 0.0\n"),
    "corpus": (CORPUS, "_target_: $name.$title\nlargest: 30\nseed: 1\n"),
}
"""The code, and the file of the choice."""


def write_skeleton(kind: str, name: str) -> None:
    """Writes the files into the current folder, and prints how they are used.

    Args:
        kind: one of ``GROUPS``.
        name: of what is begun; an experiment may stand in folders.

    Raises:
        ConfigError: a name that cannot be or is taken, or a file that is there.
    """
    expected = "[a-z][a-z0-9_]*" + ("(/[a-z0-9_]+)*" if kind == "experiment" else "")
    if not re.fullmatch(expected, name):
        raise ConfigError(f"triptych new {kind} {name}: expected small letters, digits and _, such as my_{kind}")
    group = GROUPS[kind]
    if name in choices_of(group, []):
        raise ConfigError(f"triptych new {kind} {name}: {group}={name} comes with Triptych; expected another name")
    if kind != "experiment" and importlib.util.find_spec(name):
        raise ConfigError(f"triptych new {kind} {name}: there is a module of this name; expected another one")
    files = make_skeleton(kind, name)
    for file in files:
        if file.exists():
            raise ConfigError(f"triptych new {kind} {name}: {file} is there; expected a new file")
        check_writable(f"triptych new {kind} {name}", file)
    for file, text in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    print(*files, sep="\n")
    variables = "" if kind == "experiment" else f"PYTHONPATH=. TRIPTYCH_ALLOW={name} "
    print(
        f"{variables}triptych train --config-dir=conf {CHOSEN[kind]}{name}",
        f"python -m pytest {[*files][-1]}",
        sep="\n",
    )


def make_skeleton(kind: str, name: str) -> dict[Path, str]:
    """The files, by their names; the test is the last."""
    module = name.replace("/", "_")
    fill = {
        "name": name,
        "title": "".join(part.capitalize() for part in name.split("_")),
        "up": "/".join([".."] * (2 + name.count("/"))),
        "chosen": ", ".join(f'"{override}"' for override in f"{CHOSEN[kind]}{name}".split()),
        "allowed": "" if kind == "experiment" else f', "TRIPTYCH_ALLOW": "{name}"',
    }
    code, choice = FILES[kind]
    texts = {f"{module}.py": code, f"conf/{GROUPS[kind]}/{name}.yaml": choice, f"test_{module}.py": TEST}
    return {Path(file): Template(text).substitute(fill) for file, text in texts.items() if text}
