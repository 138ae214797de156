"""The beginnings of one's own: an experiment, a task, a corpus, each with a test that passes as it is written."""

import importlib.util
import re
from importlib.resources import files
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


def write_skeleton(kind: str, name: str) -> None:
    """Writes the files into the current folder, and prints how they are used.

    Args:
        kind: one of ``GROUPS``.
        name: of what is begun; an experiment may stand in folders.
    """
    expected = "[a-z][a-z0-9_]*" + ("(/[a-z0-9_]+)*" if kind == "experiment" else "")
    if not re.fullmatch(expected, name):
        raise ConfigError(f"triptych new {kind} {name}: expected small letters, digits and _, such as my_{kind}")
    group = GROUPS[kind]
    if name in choices_of(group, []):
        raise ConfigError(f"triptych new {kind} {name}: {group}={name} comes with Triptych; expected another name")
    if kind != "experiment" and importlib.util.find_spec(name):
        raise ConfigError(f"triptych new {kind} {name}: there is a module of this name; expected another one")
    texts = make_skeleton(kind, name)
    for file in texts:
        if file.exists():
            raise ConfigError(f"triptych new {kind} {name}: {file} is there; expected a new file")
        check_writable(f"triptych new {kind} {name}", file)
    for file, text in texts.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    print(*texts, sep="\n")
    variables = "" if kind == "experiment" else f"PYTHONPATH=. TRIPTYCH_ALLOW={name} "
    print(
        f"{variables}triptych train --config-dir=conf {CHOSEN[kind]}{name}",
        f"python -m pytest {[*texts][-1]}",
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
    places = {f"conf/{GROUPS[kind]}/{name}.yaml": f"{kind}.yaml", f"test_{module}.py": "test.py"}
    if kind != "experiment":
        places = {f"{module}.py": f"{kind}.py", **places}
    folder = files("triptych.cli") / "skeletons"
    texts = {place: (folder / f"{source}.txt").read_text(encoding="utf-8") for place, source in places.items()}
    return {Path(place): Template(text).substitute(fill) for place, text in texts.items()}
