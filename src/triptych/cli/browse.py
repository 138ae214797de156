"""The sub-commands ``triptych list``, ``show``, ``new``, ``completion`` and ``schema``."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from triptych.cli.folders import make_parser
from triptych.config import ConfigError, suggestion


def run_list(arguments: list[str]) -> None:
    """``triptych list``."""
    from triptych.cli.listing import KINDS, print_list, print_overview

    parser = make_parser("list", "Lists experiments, studies, models and corpora, with results and cost.")
    parser.add_argument("words", nargs="*", metavar="KIND WORD", help=f"one of {', '.join(KINDS)}; a word to find")
    add_config_dir(parser)
    parsed = parser.parse_intermixed_args(arguments)
    if not parsed.words:
        print_overview(folder_of(parsed))
        return
    kind_of = {word: kind for kind, group in KINDS.items() for word in (kind, group)}
    kind, *words = parsed.words if parsed.words[0] in kind_of else [None, *parsed.words]
    print_list(kind_of.get(kind), " ".join(words), folder_of(parsed))


def run_show(arguments: list[str]) -> None:
    """``triptych show``."""
    says = "Explains a setting (meaning, valid values, where this run sets it) or a group (its choices)."
    parser = make_parser("show", says)
    parser.add_argument("key", help="such as optimizer.lr or block/position")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="overrides of the run")
    add_config_dir(parser)
    parsed = parser.parse_intermixed_args(arguments)
    from triptych.cli.show import print_key

    print_key(parsed.key, [*parsed.overrides, *folder_of(parsed)])


def run_new(arguments: list[str]) -> None:
    """``triptych new``."""
    from triptych.cli.skeletons import GROUPS, write_skeleton

    parser = make_parser(
        "new",
        "Creates a template for your own experiment, task, corpus, optimizer or part of a block, with a passing test.",
    )
    parser.add_argument("kind", metavar="KIND", help=f"one of {', '.join(GROUPS)}")
    parser.add_argument("name", metavar="NAME", help="its name; files are written to the current folder")
    parsed = parser.parse_args(arguments)
    if parsed.kind not in GROUPS:
        raise ConfigError(f"triptych new {parsed.kind}: no such kind{suggestion(parsed.kind, list(GROUPS))}")
    write_skeleton(parsed.kind, parsed.name)


def run_completion(arguments: list[str], commands: Sequence[str]) -> None:
    """``triptych completion``."""
    from triptych.cli.completion import SCRIPTS, complete_line

    parser = make_parser(
        "completion",
        "Prints a completion script for the commands, groups and keys of triptych: "
        "triptych completion bash >> ~/.bashrc; zsh >> ~/.zshrc; fish > ~/.config/fish/completions/triptych.fish",
    )
    parser.add_argument("shell", nargs="?", metavar="SHELL", help=f"one of {', '.join(SCRIPTS)}")
    parser.add_argument("--answer", metavar="LINE", help="print the completions of a line (used by the scripts)")
    parsed = parser.parse_args(arguments)
    if parsed.answer is not None:
        for word in complete_line(parsed.answer, commands):
            print(word)
        return None
    if parsed.shell not in SCRIPTS:
        raise ConfigError(f"triptych completion {parsed.shell or ''}: expected one of {', '.join(SCRIPTS)}")
    return print(SCRIPTS[parsed.shell], end="")


def run_schema(arguments: list[str]) -> None:
    """``triptych schema``."""
    parser = make_parser("schema", "Writes a JSON schema of experiments, for completion and checks in editors.")
    parser.add_argument("--output", type=Path, default=Path("triptych.schema.json"), help="output file")
    add_config_dir(parser)
    parsed = parser.parse_args(arguments)
    from triptych.cli.json_schema import write_schema

    write_schema(parsed.output, folder_of(parsed))


def add_config_dir(parser: argparse.ArgumentParser) -> None:
    """Adds the option ``--config-dir``."""
    parser.add_argument("--config-dir", type=Path, metavar="FOLDER", help="folder with your own configs, as for train")


def folder_of(parsed: argparse.Namespace) -> list[str]:
    """The config folder as an argument of ``triptych train``."""
    if parsed.config_dir is None:
        return []
    if not parsed.config_dir.is_dir():
        raise ConfigError(f"--config-dir={parsed.config_dir}: no such folder")
    return [f"--config-dir={parsed.config_dir}"]
