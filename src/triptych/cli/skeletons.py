"""Templates for your own experiments, tasks, corpora, optimizers and parts of blocks, each with a passing test."""

import importlib.util
import re
from importlib.resources import files
from pathlib import Path
from string import Template

from triptych.config import PARTS, ConfigError
from triptych.config.diagnose import choices_of
from triptych.config.paths import check_writable

DERIVED = {
    "attention": ("triptych.nn", "MultiHeadAttention", "multi_head"),
    "position": ("triptych.nn", "Rotary", "rotary"),
    "norm": ("triptych.nn", "LayerNorm", "layer_norm"),
    "feed_forward": ("triptych.nn", "FeedForward", "mlp"),
    "residual": ("triptych.nn", "PreNorm", "pre_norm"),
    "optimizer": ("triptych.training.optimizers", "AdamW", "adamw"),
}
"""The package, class and choice that a new part of a block, or an optimizer, starts from."""
GROUPS = {"experiment": "experiment", "task": "task", "corpus": "data", "optimizer": "optimizer"} | {
    part: f"block/{part}" for part in PARTS
}
"""The config group of each kind of template."""
CHOSEN = {"experiment": "experiment=", "task": "data=dates model=encoder_only task="} | {
    kind: f"task=classification model=encoder_only {'' if kind == 'corpus' else 'data=dates '}{group}="
    for kind, group in GROUPS.items()
    if kind not in ("experiment", "task")
}
"""The overrides that use a template, up to its name."""


def write_skeleton(kind: str, name: str) -> None:
    """Writes the files to the current folder, and prints how to use them.

    Args:
        kind: one of ``GROUPS``.
        name: name of the experiment (perhaps in folders), task or corpus.
    """
    expected = "[a-z][a-z0-9_]*" + ("(/[a-z0-9_]+)*" if kind == "experiment" else "")
    if not re.fullmatch(expected, name):
        raise ConfigError(f"triptych new {kind} {name}: expected lower-case letters, digits and _, such as my_{kind}")
    group = GROUPS[kind]
    if name in choices_of(group, []):
        raise ConfigError(f"triptych new {kind} {name}: {group}={name} exists in Triptych; expected another name")
    if kind != "experiment" and importlib.util.find_spec(name):
        raise ConfigError(f"triptych new {kind} {name}: a module of this name exists; expected another name")
    texts = make_skeleton(kind, name)
    for file in texts:
        if file.exists():
            raise ConfigError(f"triptych new {kind} {name}: {file} exists; expected a new file")
        check_writable(f"triptych new {kind} {name}", file)
    for file, text in texts.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    print(*texts, sep="\n")
    variables = "" if kind == "experiment" else f"PYTHONPATH=. TRIPTYCH_ALLOW={name} "
    print(f"{variables}triptych train --config-dir=conf {CHOSEN[kind]}{name}")
    print(f"python -m pytest {[*texts][-1]}")


def make_skeleton(kind: str, name: str) -> dict[Path, str]:
    """The text of each file; the test is the last."""
    module = name.replace("/", "_")
    fill = {
        "name": name,
        "title": "".join(part.capitalize() for part in name.split("_")),
        "up": "/".join([".."] * (2 + name.count("/"))),
        "chosen": ", ".join(f'"{override}"' for override in f"{CHOSEN[kind]}{name}".split()),
        "allowed": "" if kind == "experiment" else f', "TRIPTYCH_ALLOW": "{name}"',
        "kind": kind,
        "imports": "",
        "check": "",
    }
    folder, template = files("triptych.cli") / "skeletons", kind
    if kind in DERIVED:
        template = "part"
        fill |= dict(zip(("package", "base", "parent"), DERIVED[kind], strict=True))
    if kind in PARTS:
        fill["imports"] = f"\nfrom {name} import {fill['title']}\nfrom triptych.testing import check_part\n"
        fill["check"] = Template((folder / "check.py.txt").read_text(encoding="utf-8")).substitute(fill)
    places = {f"conf/{GROUPS[kind]}/{name}.yaml": f"{template}.yaml", f"test_{module}.py": "test.py"}
    if kind != "experiment":
        places = {f"{module}.py": f"{template}.py", **places}
    texts = {place: (folder / f"{source}.txt").read_text(encoding="utf-8") for place, source in places.items()}
    return {Path(place): Template(text).substitute(fill) for place, text in texts.items()}
