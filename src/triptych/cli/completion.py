"""Shell completion. It only reads the files of the choices and the schema, because composing a configuration is too
slow."""

import dataclasses
import typing
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from triptych.cli.listing import KINDS
from triptych.cli.skeletons import GROUPS
from triptych.config import PARTS, EvaluateConfig, PredictConfig, TrainConfig, hints_of
from triptych.config.diagnose import choices_of, own_folders

SCRIPTS = {
    "bash": """\
_triptych() {
    local line="${COMP_LINE:0:COMP_POINT}" word
    local typed="${line##* }"
    typed="${typed%"${COMP_WORDS[COMP_CWORD]#[=:]}"}" # the text before the last = or :, where bash splits words
    COMPREPLY=()
    while IFS= read -r word; do
        COMPREPLY+=("${word#"$typed"}")
    done < <(triptych completion --answer "$line" 2>/dev/null)
    [[ ${COMPREPLY[0]} == *[=.] ]] && compopt -o nospace
}
complete -o default -F _triptych triptych
""",
    "zsh": """\
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
_triptych() {
    local -a found
    found=("${(@f)$(triptych completion --answer "${(j: :)words[1,CURRENT-1]} $PREFIX" 2>/dev/null)}")
    if [[ -n "${found[1]}" ]]; then
        compadd -Q -S '' -- ${(M)found:#*[=.]} # incomplete: no space after it
        compadd -Q -- ${found:#*[=.]}
    else
        compset -P '*=' # in run_dir=outputs, the file name starts after the =
        _files
    fi
}
compdef _triptych triptych
""",
    "fish": """\
function __triptych_complete
    set -l line (commandline --current-process --cut-at-cursor | string collect)
    set -l found (triptych completion --answer "$line" 2>/dev/null)
    if set -q found[1]
        string join \\n -- $found
    else # file names; in run_dir=outputs, they start after the =
        set -l word (commandline --current-token --cut-at-cursor)
        set -l key (string match --regex '^.*=' -- "$word")
        string join \\n -- "$key"(__fish_complete_path (string replace --regex '^.*=' '' -- "$word"))
    end
end
complete --command triptych --no-files --arguments '(__triptych_complete)'
""",
}
"""The script of each shell; it calls ``triptych completion --answer LINE``."""
EMBEDDINGS = {"audio_embedding": "frames", "image_embedding": "patches"}
"""By node, the file of its group."""
CONF = Path(str(files("triptych.conf")))
TYPED = ("block", "shape", "batch")
"""Nodes that files of other groups also set."""
HYDRAS = {"train": TrainConfig, "doctor": TrainConfig, "evaluate": EvaluateConfig, "predict": PredictConfig}


def complete_line(line: str, commands: Sequence[str]) -> list[str]:
    """The completions of the last word of a line.

    Args:
        line: command line up to the cursor.
        commands: sub-commands of triptych.
    """
    _, *words = line.lstrip().split(" ")
    words = [word for word in words[:-1] if word] + words[-1:]
    if len(words) < 2:
        found: Iterable[str] = commands
    elif words[0] in HYDRAS:
        found = overrides(words[-1], words[:-1], HYDRAS[words[0]])
    elif words[0] == "show":
        found = [key.removesuffix("=") for key in keys(words[-1], TrainConfig)] + groups(())
    else:
        first = {"list": KINDS, "new": GROUPS, "completion": SCRIPTS, "study": choices_of("study", ())}
        found = first.get(words[0], []) if len(words) == 2 else []
    return [word for word in found if word.startswith(words[-1])]


def overrides(word: str, before: Sequence[str], root: type) -> list[str]:
    """Completions of an override: groups, keys, or values after an = or a comma.

    Args:
        before: the words before it, perhaps with --config-dir.
        root: schema of the configuration.
    """
    key, equals, values = word.partition("=")
    if not equals:
        names = groups(own_folders(before)) if root is TrainConfig else []
        return [f"{name}=" for name in names] + keys(word, root)
    given = word.removesuffix(values.rpartition(",")[2])
    choices = choices_of(key, before) if root is TrainConfig else []
    return [f"{given}{value}" for value in choices or choices_for_key(key, root)]


def groups(folders: Sequence[Path]) -> list[str]:
    """Every config group of a training run."""
    tops = {path.name for folder in (CONF, *folders) for path in folder.iterdir() if path.is_dir()}
    parts = [f"block/{part}" for part in PARTS]
    return [*sorted(tops - {"__pycache__", "block", "hydra", "study"}), *parts, "hydra/launcher", "hydra/sweeper"]


def keys(word: str, root: type) -> list[str]:
    """Keys that start with a word, up to the next dot."""
    parent = word.rpartition(".")[0]
    names = config_keys_below(parent.split(".") if parent else [], root)
    return [f"{parent}.{name}".lstrip(".") + ("." if is_node else "=") for name, is_node in names.items()]


def config_keys_below(path: list[str], root: type) -> dict[str, bool]:
    """The settings of a node in any of its choices, and whether each is a node itself.

    Args:
        path: the names in the key of the node.
        root: schema of the configuration.
    """
    node = typed_node(path, root)
    found = {name: is_node(hint) for name, hint in hints_of(node).items()} if node else {}
    if root is not TrainConfig or not path:
        return found
    sources = [(f"{path[0]}/**/*.yaml", 1)]  # with the number of names in the key of the file's node
    if path[0] in EMBEDDINGS:
        sources = [(f"model/embedding/{EMBEDDINGS[path[0]]}.yaml", 1)]
    if path[0] in ("block", "heads", "model"):
        models = {"head": "model/parts/head.yaml"}
        models |= dict.fromkeys(("embedding", "source_embedding"), "model/embedding/*.yaml")
        of_model = models.get(path[-1] if len(path) == 2 else "", "model/parts/stack.yaml")
        patterns = {"block": f"{'/'.join(path[:2])}/*.yaml", "heads": "head/*.yaml", "model": of_model}
        sources = [(patterns[path[0]], 2)] if path[1:] else []
        sources += [("model/*.yaml", 1)] if path[0] == "model" else []
    if path == ["model"]:
        found |= {"embedding": True, "head": True}
    for file, depth in [(file, depth) for pattern, depth in sources for file in CONF.glob(pattern)]:
        content = yaml.load(file.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
        for name in path[depth:]:
            content = content.get(name) if isinstance(content, dict) else None
        for name, value in (content or {}).items():
            if name not in ("defaults", "_target_", "_partial_", "hydra", *TYPED):
                found[name] = found.get(name, False) or isinstance(value, dict)
    return found


def is_node(hint: Any) -> bool:
    """Whether a type is that of a node with settings."""
    return dataclasses.is_dataclass(hint) or typing.get_origin(hint) is dict


def typed_node(path: Sequence[str], root: type) -> type | None:
    """The dataclass of a node; None: it has none."""
    hint: Any = root
    for name in path:
        hint = hints_of(hint).get(name) if isinstance(hint, type) and dataclasses.is_dataclass(hint) else None
    return hint if isinstance(hint, type) and dataclasses.is_dataclass(hint) else None


def choices_for_key(key: str, root: type) -> list[str]:
    """The valid values of a key in the schema, if it has choices."""
    *parents, name = key.split(".")
    node = typed_node(parents, root)
    if node is None:
        return []
    return [*choices_of_fields(node).get(name, ("true", "false") if hints_of(node).get(name) is bool else ())]


def choices_of_fields(kind: type) -> dict[str, Sequence[str]]:
    """The valid values of the fields of a dataclass that have choices; empty for another class."""
    fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    return {field.name: field.metadata["choices"] for field in fields if "choices" in field.metadata}
