"""The sub-commands on folders of runs, on checkpoints, and on what is published. Each imports when it is called."""

import argparse
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from triptych.config import (
    ConfigError,
    class_at,
    function_at,
    suggestion,
)
from triptych.config.paths import check_writable
from triptych.launch.environment import cpus
from triptych.storage.run_directory import find_checkpoint

if TYPE_CHECKING:
    from triptych.interop.families.family import Family
    from triptych.launch.sweep import Job


def chat(arguments: list[str]) -> None:
    """``triptych chat``."""
    parser = argparse.ArgumentParser(
        prog="triptych chat",
        description="A conversation with a model of task=chat, a message a line; its answers come as it writes them. "
        "/new begins anew.",
    )
    parser.add_argument("checkpoint", type=Path, help="a checkpoint, or a run directory (its newest checkpoint)")
    parser.add_argument("--system", metavar="TEXT", help="what the model is told beforehand")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 (default): the likeliest token")
    parser.add_argument("--top-k", type=int, default=0, metavar="K", help="of the K likeliest tokens; 0 (default): all")
    parser.add_argument("--top-p", type=float, default=1.0, metavar="P", help="of the likeliest that reach P together")
    parser.add_argument("--seed", type=int, default=0, help="of the draws")
    parser.add_argument("--max-new-tokens", type=int, metavar="N", help="of an answer (default: that of the training)")
    parsed = parser.parse_args(arguments)
    if parsed.max_new_tokens is not None and parsed.max_new_tokens < 1:
        raise ConfigError(f"--max-new-tokens {parsed.max_new_tokens}: expected at least 1")
    find_checkpoint(parsed.checkpoint)
    from triptych.cli.chat_repl import chat
    from triptych.models.generation import Sampling

    try:
        sampling = Sampling(parsed.temperature, parsed.top_k, parsed.top_p, parsed.seed)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    chat(parsed.checkpoint, system=parsed.system, sampling=sampling, max_new_tokens=parsed.max_new_tokens)


def compare(arguments: list[str]) -> None:
    """``triptych compare``."""
    parser = parser_of_runs("compare", "Compares finished runs: a table, an HTML page, and the same as JSON.")
    parser.add_argument("--output", type=Path, default=Path("report.html"), help="the page; the JSON goes beside it")
    parser.add_argument(
        "--plot", action="append", default=[], metavar="PACKAGE.FUNCTION",
        help="a plot of your own for the page; the package stands in TRIPTYCH_ALLOW",
    )  # fmt: skip
    parsed = parser.parse_args(arguments)
    check_suffix(parsed.output, ".html", "an HTML page")
    check_writable("--output", parsed.output)
    plots = [function_at("--plot", path, ("triptych.report.page.charts",)) for path in parsed.plot]
    from triptych.report.compare import compare

    with value_errors_of_runs():
        compare(parsed.directories, parsed.output, plots)


def scaling(arguments: list[str]) -> None:
    """``triptych scaling``."""
    says = (
        "Fits scaling laws to finished runs of several sizes and budgets: a table, an HTML page, and the same as JSON."
    )
    parser = parser_of_runs("scaling", says, "run directories, or folders that hold some; or one CSV file of models")
    parser.add_argument("--output", type=Path, default=Path("scaling.html"), help="the page; the JSON goes beside it")
    parser.add_argument(
        "--column", action="append", default=[], metavar="NAME=HEAD",
        help="of a CSV file, the column of params, tokens, train_flops, loss, architecture or seed, if not called so",
    )  # fmt: skip
    parser.add_argument(
        "--leave-out", type=int, default=0, metavar="N", help="fit without the N models with the highest losses"
    )
    parser.add_argument(
        "--delta", type=float, metavar="WIDTH",
        help="of Huber's function of the logarithm of the loss (1e-3: Hoffmann et al. 2022; default: by the noise)",
    )  # fmt: skip
    parsed = parser.parse_args(arguments)
    check_suffix(parsed.output, ".html", "an HTML page")
    check_writable("--output", parsed.output)
    for column in parsed.column:
        if "=" not in column:
            raise ConfigError(f"--column {column}: expected NAME=HEAD, such as --column 'params=Model Size'")
    if parsed.leave_out < 0 or (parsed.delta is not None and not 0 < parsed.delta < 1):
        raise ConfigError(
            f"--leave-out {parsed.leave_out} --delta {parsed.delta}: expected 0 or more, and between 0 and 1"
        )
    from triptych.report.scaling import scaling

    columns = dict(column.split("=", 1) for column in parsed.column)
    with value_errors_of_runs():
        scaling(parsed.directories, parsed.output, columns=columns, leave_out=parsed.leave_out, delta=parsed.delta)


def study(arguments: list[str], *, is_demo: bool = False) -> None:
    """``triptych study``, and ``triptych demo``.

    Args:
        is_demo: whether the study is the demo, which is not named among the arguments then.
    """
    does = "trains what a study asks for (what is done is not trained again), and judges what it predicts."
    parser = argparse.ArgumentParser(
        prog="triptych demo" if is_demo else "triptych study",
        description=f"The demo, which is the same as `triptych study demo`: {does}" if is_demo else does.capitalize(),
    )
    if is_demo:
        parser.set_defaults(name="demo")
    else:
        parser.add_argument("name", nargs="?", help="of a study, or a YAML file of your own; without one: a list")
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="for all trainings, such as 'seed=range(1,9)'"
    )
    parser.add_argument("--jobs", type=int, default=cpus(), help="trainings at once (default: as many as CPUs)")
    parser.add_argument(
        "--lines",
        action="store_true",
        help="print the overrides of each training, for slurm/array.sbatch; train nothing",
    )
    parser.add_argument("--output", type=Path, help="the page (default: report.html in the study's folder)")
    parsed = parser.parse_intermixed_args(arguments)
    from triptych.studies.study import read_study

    if parsed.name is None:
        from triptych.studies.run import print_studies

        return print_studies()
    if parsed.jobs < 1:
        raise ConfigError(f"--jobs {parsed.jobs}: expected 1 or more")
    found = read_study(parsed.name)
    jobs = found.jobs(parsed.overrides)
    found.overrides = [text for text in parsed.overrides if not text.startswith("seed=")]
    others = [re.sub(r"[^\w.]", "-", text) for text in parsed.overrides if not text.startswith("seed=")]
    output = parsed.output or found.folder / f"{'--'.join(['report', *others])}.html"
    check_suffix(output, ".html", "an HTML page")
    check_writable("--output", output)
    if parsed.lines:  # those that begin from others come when these are done
        waiting = [arm for arm, of_arm in jobs.items() if not all(job.is_done for job in of_arm)]
        for arm in waiting:
            if found.needs(arm).isdisjoint(waiting):
                check_lines(jobs[arm])
                print(*(" ".join(job.arguments) for job in jobs[arm] if not job.is_done), sep="\n")
        return None
    from triptych.studies.run import answer, introduce, train

    again = shlex.join([*parser.prog.split(), *arguments])
    introduce(found, jobs, parsed.jobs, output, again)
    train(found, jobs, parsed.jobs, again)
    return answer(found, jobs, output)


def check_lines(jobs: "Sequence[Job]") -> None:
    """Refuses arguments that a line of slurm/array.sbatch cannot hold."""
    for argument in (argument for job in jobs for argument in job.arguments):
        if re.search(r"\s", argument):
            raise ConfigError(f"--lines: {argument} has a blank, and slurm/array.sbatch splits lines at blanks")


def dashboard(arguments: list[str]) -> None:
    """``triptych dashboard``."""
    says = "Writes the code of a W&B workspace and a W&B report of finished runs; needs no network."
    parser = parser_of_runs("dashboard", says)
    parser.add_argument("--output", type=Path, default=Path("dashboard.py"), help="the file; running it uploads")
    parsed = parser.parse_args(arguments)
    check_suffix(parsed.output, ".py", "Python code")
    check_writable("--output", parsed.output)
    from triptych.report.dashboard import dashboard

    with value_errors_of_runs():
        dashboard(parsed.directories, parsed.output)


def playground(arguments: list[str]) -> None:
    """``triptych playground``."""
    says = "A page to type into: what each trained model makes of a text, side by side, and where it looks."
    parser = parser_of_runs("playground", says)
    parser.add_argument("--host", default="127.0.0.1", help="where to listen; by default, this machine alone can ask")
    parser.add_argument("--port", type=int, default=7860, help="of the page; 0: any that is free")
    parsed = parser.parse_args(arguments)
    from triptych.report.playground_server import serve

    with value_errors_of_runs():
        serve(parsed.directories, parsed.host, parsed.port)


def parser_of_runs(
    command: str, description: str, directories: str = "run directories, or folders that hold some"
) -> argparse.ArgumentParser:
    """Of a command that reads finished runs."""
    parser = argparse.ArgumentParser(prog=f"triptych {command}", description=description)
    parser.add_argument("directories", nargs="+", type=Path, help=directories)
    return parser


def check_suffix(output: Path, suffix: str, what: str) -> None:
    """Refuses a name that says that the file is something else."""
    if output.suffix.lower() != suffix:
        better = output / f"report{suffix}" if output.is_dir() else output.with_suffix(suffix)
        raise ConfigError(f"--output {output}: this writes {what}; did you mean --output {better}?")


@contextmanager
def value_errors_of_runs() -> Iterator[None]:
    """A ValueError about a run directory becomes the answer to the command."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(str(error)) from None


def import_folder(arguments: list[str]) -> None:
    """``triptych import``."""
    parser = argparse.ArgumentParser(
        prog="triptych import",
        description="Writes a checkpoint of a Hugging Face folder's model, for evaluate, predict and train init_from=.",
    )
    parser.add_argument("folder", type=Path, help="with config.json, safetensors files and the files of a tokenizer")
    parser.add_argument("--output", type=Path, required=True, help="the checkpoint, a new file")
    parser.add_argument("--task", help="what the model is for; by default what its class says")
    add_family(parser)
    parser.add_argument("--new-head", action="store_true", help="begin with a new head where the folder has none")
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


def add_family(parser: argparse.ArgumentParser) -> None:
    """The option of a family that is not published here."""
    parser.add_argument(
        "--family", metavar="PACKAGE.CLASS",
        help="a family of your own; the package stands in TRIPTYCH_ALLOW (default: the published ones)",
    )  # fmt: skip


def families_at(path: str | None) -> "Sequence[Family]":
    """The family that ``--family`` names; without it, the published ones."""
    from triptych.interop.families.family import Family
    from triptych.interop.networks import FAMILIES

    if path is None:
        return FAMILIES
    kind: type = class_at("--family", path, ("triptych.interop.families",))
    if not issubclass(kind, Family) or not hasattr(kind, "model_type"):
        raise ConfigError(f"--family={path}: expected a class of triptych.interop.families.family.Family")
    return (kind(),)


def export(arguments: list[str]) -> None:
    """``triptych export``."""
    parser = argparse.ArgumentParser(
        prog="triptych export",
        description="Writes the model of a checkpoint as a folder that transformers loads.",
    )
    parser.add_argument("checkpoint", type=Path, help="a checkpoint, or a run directory (its newest checkpoint)")
    parser.add_argument("--output", type=Path, required=True, help="the folder, new or empty")
    parser.add_argument(
        "--push",
        metavar="USER/NAME",
        help="upload the folder to this repository of the Hugging Face hub, private if new",
    )
    add_family(parser)
    parsed = parser.parse_args(arguments)
    find_checkpoint(parsed.checkpoint)
    if parsed.push is not None and not re.fullmatch(r"[\w.-]+/[\w.-]+", parsed.push):
        raise ConfigError(f"--push {parsed.push}: expected USER/NAME")
    check_writable("--output", parsed.output)
    from triptych.interop import push_folder, save_pretrained

    class_name = save_pretrained(parsed.checkpoint, parsed.output, families=families_at(parsed.family))
    print(f"{parsed.output}: {class_name}; README.md there says how to load it")
    if parsed.push is not None:
        print(push_folder(parsed.output, parsed.push))


def get(arguments: list[str]) -> None:
    """``triptych get``."""
    from triptych.config.overrides import write_override
    from triptych.storage.downloads import FOLDER, SETS, get, print_sets

    parser = argparse.ArgumentParser(
        prog="triptych get",
        description="Downloads published data sets, and checks and prepares them for the experiments; no name: a list.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of data sets: {', '.join(SETS)}")
    parser.add_argument(
        "--output", type=Path, default=Path(FOLDER), metavar="FOLDER",
        help=f"a folder for each set goes into this one (default: {FOLDER}, where the experiments look)",
    )  # fmt: skip
    parsed = parser.parse_args(arguments)
    for name in parsed.names:
        if name not in SETS:
            raise ConfigError(f"triptych get {name}: no such data set{suggestion(name, list(SETS))}")
    if not parsed.names:
        print_sets(parsed.output)
    for name in parsed.names:
        data_set, folder = SETS[name], parsed.output / name
        print(f"{name}: {data_set.about}; licence: {data_set.licence}")
        get(data_set, folder)
        place = [] if folder == Path(FOLDER) / name else [write_override("data.dir", str(folder))]
        command = shlex.join(["triptych", "train", f"experiment={data_set.experiment}", *place])
        print(f"{folder}: {', '.join(data_set.prepared)}; {command}")


def watch(arguments: list[str]) -> None:
    """``triptych watch``."""
    parser = argparse.ArgumentParser(
        prog="triptych watch",
        description="The jobs of a sweep, a study or an array as they run, by their run directories alone.",
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="a run directory, or a folder that holds some")
    parser.add_argument("--once", action="store_true", help="print it once")
    parser.add_argument("--every", type=float, default=2.0, metavar="SECONDS", help="between two looks (default: 2)")
    parsed = parser.parse_args(arguments)
    if not parsed.every > 0:
        raise ConfigError(f"--every {parsed.every}: expected more than 0")
    from triptych.launch.watch import watch

    watch(parsed.directory, once=parsed.once, every=parsed.every)
