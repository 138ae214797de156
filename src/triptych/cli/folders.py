"""The sub-commands for run directories, checkpoints and published data. Each imports what it needs when called.

Tested by tests/test_printed_commands.py and tests/studies/test_study.py.
"""

import argparse
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from triptych.config import ConfigError, class_at, error_prefix, suggestion
from triptych.config.build import function_at
from triptych.config.paths import check_writable
from triptych.launch.environment import cpus
from triptych.storage.run_directory import find_checkpoint

if TYPE_CHECKING:
    from triptych.interop.families.family import Family
    from triptych.launch.sweep import Job


def run_chat(arguments: list[str]) -> None:
    """``triptych chat``."""
    says = "Chats with a model trained with task=chat, one message per line, and streams its replies. "
    parser = make_parser("chat", says + "/new starts a new conversation.")
    parser.add_argument("checkpoint", type=Path, help="checkpoint file, or run directory (its latest checkpoint)")
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 (default): greedy; above 0: sampling")
    parser.add_argument(
        "--top-k", type=int, default=0, metavar="K", help="sample from the K most likely tokens; 0: all"
    )
    parser.add_argument("--top-p", type=float, default=1.0, metavar="P", help="sample from a total probability of P")
    parser.add_argument("--seed", type=int, default=0, help="random seed of the sampling")
    parser.add_argument("--max-new-tokens", type=int, metavar="N", help="maximum per reply (default: as in training)")
    parsed = parser.parse_args(arguments)
    if parsed.max_new_tokens is not None and parsed.max_new_tokens < 1:
        raise ConfigError(f"--max-new-tokens {parsed.max_new_tokens}: expected at least 1")
    find_checkpoint(parsed.checkpoint)
    from triptych.cli.chat_repl import chat
    from triptych.models.generation import Sampling

    with error_prefix():
        sampling = Sampling(parsed.temperature, parsed.top_k, parsed.top_p, parsed.seed)
    chat(parsed.checkpoint, system=parsed.system, sampling=sampling, max_new_tokens=parsed.max_new_tokens)


def run_compare(arguments: list[str]) -> None:
    """``triptych compare``."""
    parser = parser_of_runs("compare", "Compares finished runs: prints a table, writes an HTML page and a JSON file.")
    parser.add_argument("--output", type=Path, default=Path("report.html"), help="HTML page, next to its JSON file")
    parser.add_argument(
        "--plot", action="append", default=[], metavar="PACKAGE.FUNCTION",
        help="function that adds your own plot to the page; its package must be in TRIPTYCH_ALLOW",
    )  # fmt: skip
    parser.add_argument(
        "--reference", type=Path, metavar="FILE",
        help="CSV file with published accuracies on minimal pairs: a column UID, and one per model",
    )  # fmt: skip
    add_factors(parser)
    parsed = parser.parse_args(arguments)
    check_output(parsed.output, ".html", "an HTML page")
    if parsed.reference is not None and not parsed.reference.is_file():
        raise ConfigError(f"--reference {parsed.reference}: no such file")
    plots = [function_at("--plot", path, ("triptych.report.page.charts",)) for path in parsed.plot]
    from triptych.report.compare import compare

    with error_prefix():
        compare(parsed.directories, parsed.output, plots, parsed.by, parsed.tuned, parsed.reference)


def run_scaling(arguments: list[str]) -> None:
    """``triptych scaling``."""
    says = (
        "Fits scaling laws to finished runs of several sizes and budgets: prints a table, writes an HTML page and JSON."
    )
    parser = parser_of_runs("scaling", says, "run directories, or folders that contain some; or one CSV file of models")
    parser.add_argument("--output", type=Path, default=Path("scaling.html"), help="HTML page, next to its JSON file")
    parser.add_argument(
        "--column", action="append", default=[], metavar="NAME=HEAD",
        help="column of a CSV file for params, tokens, train_flops, loss, architecture or seed, if its name differs",
    )  # fmt: skip
    parser.add_argument("--drop-highest", type=int, default=0, metavar="N", help="exclude the N highest losses")
    parser.add_argument(
        "--huber-delta", type=float, metavar="WIDTH",
        help="threshold of the Huber loss on the log loss (1e-3: Hoffmann et al. 2022; default: least squares)",
    )  # fmt: skip
    parsed = parser.parse_args(arguments)
    check_output(parsed.output, ".html", "an HTML page")
    for column in parsed.column:
        if "=" not in column:
            raise ConfigError(f"--column {column}: expected NAME=HEAD, such as --column 'params=Model Size'")
    if parsed.drop_highest < 0 or (parsed.huber_delta is not None and not 0 < parsed.huber_delta < 1):
        raise ConfigError(
            f"--drop-highest {parsed.drop_highest} --huber-delta {parsed.huber_delta}: expected at least 0, and a "
            "delta between 0 and 1"
        )
    from triptych.report.scaling_report import scaling

    columns = dict(column.split("=", 1) for column in parsed.column)
    with error_prefix():
        scaling(
            parsed.directories, parsed.output, columns=columns, leave_out=parsed.drop_highest, delta=parsed.huber_delta
        )


def run_study(arguments: list[str], *, is_demo: bool = False) -> None:
    """``triptych study``, and ``triptych demo``.

    Args:
        is_demo: whether to run the demo, which the arguments do not name.
    """
    does = "runs the unfinished runs of a study, and tests its predictions."
    if is_demo:
        parser = make_parser("demo", f"The demo, same as `triptych study demo`: {does}")
        parser.set_defaults(name="demo")
    else:
        parser = make_parser("study", does.capitalize())
        parser.add_argument("name", nargs="?", help="a study, or your own YAML file; without one: lists the studies")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="for all runs, such as 'seed=range(1,9)'")
    parser.add_argument("--jobs", type=int, default=cpus(), help="number of parallel runs (default: number of CPUs)")
    parser.add_argument(
        "--print-overrides", action="store_true", help="only print the overrides of each run, for slurm/array.sbatch"
    )
    parser.add_argument("--output", type=Path, help="output page (default: report.html in the study's folder)")
    parsed = parser.parse_intermixed_args(arguments)
    from triptych.studies.study import read_study

    if parsed.name is None:
        from triptych.studies.run import print_studies

        return print_studies()
    if parsed.jobs < 1:
        raise ConfigError(f"--jobs {parsed.jobs}: expected at least 1")
    found = read_study(parsed.name)
    found.overrides = [text for text in parsed.overrides if not text.startswith("seed=")]
    others = [re.sub(r"[^\w.]", "-", text) for text in parsed.overrides if not text.startswith("seed=")]
    output = parsed.output or found.folder / f"{'--'.join(['report', *others])}.html"
    check_output(output, ".html", "an HTML page")
    if parsed.print_overrides:  # runs initialized from others, or from the best trial, follow when those are finished
        from triptych.studies.plan import check_variants, plan_study

        left = [job for job in plan_study(found, parsed.overrides).startable if not job.is_done]
        check_lines(left)
        if left:
            check_variants(found, parsed.overrides)
        sys.stdout.writelines(" ".join(job.arguments) + "\n" for job in left)
        return None
    from triptych.studies.run import report_findings, train_study

    again = shlex.join([*parser.prog.split(), *arguments])
    return report_findings(found, train_study(found, parsed.overrides, parsed.jobs, output, again), output)


def check_lines(jobs: "Sequence[Job]") -> None:
    """Raises an error for arguments that a line for slurm/array.sbatch cannot contain."""
    for argument in (argument for job in jobs for argument in job.arguments):
        if re.search(r"\s", argument):
            raise ConfigError(
                f"--print-overrides: {argument} contains a space, and slurm/array.sbatch splits lines at spaces"
            )


def run_dashboard(arguments: list[str]) -> None:
    """``triptych dashboard``."""
    says = "Writes a W&B workspace and a W&B report of finished runs as Python code; needs no network."
    parser = parser_of_runs("dashboard", says)
    parser.add_argument("--output", type=Path, default=Path("dashboard.py"), help="output file; run it to upload")
    add_factors(parser)
    parsed = parser.parse_args(arguments)
    check_output(parsed.output, ".py", "Python code")
    from triptych.report.dashboard import dashboard

    with error_prefix():
        dashboard(parsed.directories, parsed.output, parsed.by, parsed.tuned)


def run_playground(arguments: list[str]) -> None:
    """``triptych playground``."""
    says = "Serves a page to compare the predictions and the attention of trained models on any text."
    parser = parser_of_runs("playground", says)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: only this computer)")
    parser.add_argument("--port", type=int, default=7860, help="port of the page; 0: any free port")
    parsed = parser.parse_args(arguments)
    from triptych.report.playground_server import serve

    with error_prefix():
        serve(parsed.directories, parsed.host, parsed.port)


def make_parser(command: str, description: str) -> argparse.ArgumentParser:
    """The parser of a sub-command."""
    return argparse.ArgumentParser(prog=f"triptych {command}", description=description)


def parser_of_runs(
    command: str, description: str, directories: str = "run directories, or folders that contain some"
) -> argparse.ArgumentParser:
    """The parser of a command that reads finished runs."""
    parser = make_parser(command, description)
    parser.add_argument("directories", nargs="+", type=Path, help=directories)
    return parser


def add_factors(parser: argparse.ArgumentParser) -> None:
    """Adds the options ``--by`` and ``--tuned``."""
    parser.add_argument(
        "--by", type=lambda text: text.split(","), default=[], metavar="KEY[,KEY]",
        help="compared settings, such as block/attention; by default model, or the only setting that varies",
    )  # fmt: skip
    parser.add_argument(
        "--tuned", action="append", default=[], metavar="KEY", help="setting that is tuned, not compared"
    )


def check_output(output: Path, suffix: str, what: str) -> None:
    """Raises an error if the output file has another suffix or cannot be written."""
    if output.suffix.lower() != suffix:
        better = output / f"report{suffix}" if output.is_dir() else output.with_suffix(suffix)
        raise ConfigError(f"--output {output}: this writes {what}; did you mean --output {better}?")
    check_writable("--output", output)


def run_import(arguments: list[str]) -> None:
    """``triptych import``."""
    says = "Converts a Hugging Face folder to a checkpoint for evaluate, predict and train init_from=."
    parser = make_parser("import", says)
    parser.add_argument("folder", type=Path, help="folder with config.json, safetensors files and tokenizer files")
    parser.add_argument("--output", type=Path, required=True, help="checkpoint to write, a new file")
    parser.add_argument("--task", help="task of the model (default: from its class)")
    add_family(parser)
    parser.add_argument("--new-head", action="store_true", help="initialize a new head if the folder has none")
    parsed = parser.parse_args(arguments)
    if not parsed.folder.is_dir():
        raise ConfigError(f"{parsed.folder}: no such folder; expected one with config.json and safetensors files")
    check_writable("--output", parsed.output)
    from triptych.interop import import_folder
    from triptych.models.flops import count_parameters

    families = families_at(parsed.family)
    task = import_folder(parsed.folder, parsed.output, parsed.task, new_head=parsed.new_head, families=families).task
    parameters, _ = count_parameters(task.network)
    print(
        f"{parsed.output}: {task.name} on {task.architecture}, {parameters:,} parameters, "
        f"{task.tokenizer.vocab_size:,} tokens"
    )
    print(
        f"next: triptych predict checkpoint={parsed.output} input=FILE, or triptych train init_from={parsed.output} ..."
    )


def add_family(parser: argparse.ArgumentParser) -> None:
    """Adds the option ``--family``."""
    parser.add_argument(
        "--family", metavar="PACKAGE.CLASS",
        help="your own family class; its package must be in TRIPTYCH_ALLOW (default: Triptych's families)",
    )  # fmt: skip


def families_at(path: str | None) -> "Sequence[Family]":
    """The family given by ``--family``, or else Triptych's families."""
    from triptych.interop.families.family import Family
    from triptych.interop.networks import FAMILIES

    if path is None:
        return FAMILIES
    kind: type = class_at("--family", path, ("triptych.interop.families",))
    if not issubclass(kind, Family) or not hasattr(kind, "model_type"):
        raise ConfigError(f"--family={path}: expected a class of triptych.interop.families.family.Family")
    return (kind(),)


def run_export(arguments: list[str]) -> None:
    """``triptych export``."""
    parser = make_parser("export", "Converts the model of a checkpoint to a folder that transformers loads.")
    parser.add_argument("checkpoint", type=Path, help="checkpoint file, or run directory (its latest checkpoint)")
    parser.add_argument("--output", type=Path, required=True, help="folder to write, new or empty")
    parser.add_argument(
        "--push",
        metavar="USER/NAME",
        help="upload the folder to this repository on the Hugging Face Hub (private if new)",
    )
    add_family(parser)
    parsed = parser.parse_args(arguments)
    find_checkpoint(parsed.checkpoint)
    if parsed.push is not None and not re.fullmatch(r"[\w.-]+/[\w.-]+", parsed.push):
        raise ConfigError(f"--push {parsed.push}: expected USER/NAME")
    check_writable("--output", parsed.output)
    from triptych.interop import push_folder, save_pretrained

    class_name = save_pretrained(parsed.checkpoint, parsed.output, families=families_at(parsed.family))
    print(f"{parsed.output}: {class_name}; its README.md describes how to load it")
    if parsed.push is not None:
        print(push_folder(parsed.output, parsed.push))


def run_download(arguments: list[str]) -> None:
    """``triptych download``."""
    from triptych.config.overrides import write_override
    from triptych.storage.downloads import FOLDER, SETS, download, print_sets

    says = "Downloads, checks and prepares published datasets for the experiments. Without NAME: lists them."
    parser = make_parser("download", says)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"datasets: {', '.join(SETS)}")
    parser.add_argument(
        "--output", type=Path, default=Path(FOLDER), metavar="FOLDER",
        help=f"folder for the datasets, each in its own subfolder (default: {FOLDER}, which the experiments use)",
    )  # fmt: skip
    parsed = parser.parse_args(arguments)
    for name in parsed.names:
        if name not in SETS:
            raise ConfigError(f"triptych download {name}: no such dataset{suggestion(name, list(SETS))}")
    if not parsed.names:
        print_sets(parsed.output)
    for name in parsed.names:
        data_set, folder = SETS[name], parsed.output / name
        print(f"{name}: {data_set.about}; licence: {data_set.licence}")
        download(data_set, folder)
        place = [] if folder == Path(FOLDER) / name else [write_override("data.dir", str(folder))]
        command = shlex.join(["triptych", "train", f"experiment={data_set.experiment}", *place])
        print(f"{folder}: {', '.join(data_set.prepared)}; {command}")


def run_watch(arguments: list[str]) -> None:
    """``triptych watch``."""
    says = "Shows the running jobs of a sweep, a study or an array, from their run directories."
    parser = make_parser("watch", says)
    parser.add_argument("directory", type=Path, metavar="DIR", help="a run directory, or a folder that contains some")
    parser.add_argument("--once", action="store_true", help="print the table once and exit")
    parser.add_argument("--every", type=float, default=2.0, metavar="SECONDS", help="refresh interval (default: 2)")
    parsed = parser.parse_args(arguments)
    if not parsed.every > 0:
        raise ConfigError(f"--every {parsed.every}: expected more than 0")
    from triptych.launch.watch import watch

    watch(parsed.directory, once=parsed.once, every=parsed.every)
