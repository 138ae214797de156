"""The console command ``triptych``."""
# Takes a DictConfig: it is the command's own configuration, as Hydra has composed it.

import argparse
import atexit
import gc
import logging
import os
import platform
import re
import shlex
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import triptych
from triptych.assembly.early_checks import check_evaluation, check_prediction, check_training
from triptych.browse import commands as browse
from triptych.browse.help import kept_help
from triptych.config import (
    PARTS,
    TRAINER,
    ConfigError,
    ConfigErrors,
    RunError,
    class_at,
    function_at,
    messages_of,
    nearest,
    suggestion,
)
from triptych.config.paths import check_writable
from triptych.launch.environment import cpus, is_rank_0, wait_briefly
from triptych.launch.requeue import goes_back, job_of_slurm, requeue
from triptych.launch.signals import Interruption, catch_signals
from triptych.planning.gpus import gpu_named
from triptych.storage.redaction import Redactor
from triptych.storage.run_directory import find_checkpoint

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from triptych.interop.families.family import Family
    from triptych.launch.sweep import Job

USAGE = """\
triptych: trains and compares the three Transformer architectures.

  triptych train experiment=dates/translation     train, validate, test; one directory for each run
  triptych train -m experiment=... seed=1,2,3          a sweep: one process and one directory for each combination
  triptych doctor experiment=... key=value             the plan of a training, and what would stop it; trains nothing
  triptych evaluate checkpoint=RUN                     the metrics of a checkpoint, or of a run's newest one
  triptych predict checkpoint=RUN input=FILE           translate, classify or continue, line by line
  triptych chat RUN                                    a conversation with a model of task=chat
  triptych compare RUN... [--output PAGE.html]         tables, a page and a JSON file of finished runs
  triptych scaling RUN... [--output PAGE.html]         scaling laws of finished runs of several sizes, or of a CSV file
  triptych study [NAME] [key=value...]                 a question, a prediction, trainings, the answer; a list
  triptych playground RUN... [--port N]                a page to type into: each model's answer, and where it looks
  triptych dashboard RUN... [--output FILE.py]         the same comparison for W&B: a workspace and a report, as code
  triptych import FOLDER --output CHECKPOINT           the checkpoint of a Hugging Face folder
  triptych export CHECKPOINT --output FOLDER           the Hugging Face folder of a checkpoint, or of a run
  triptych list [KIND] [WORD]                          experiments, studies, models, corpora: expected figures and costs
  triptych show KEY [key=value...]                     what a setting means, may be, and where this training sets it
  triptych new experiment|task|corpus NAME             the beginning of one of your own, with its test
  triptych watch DIR                                   the jobs of a sweep or a study, as they run
  triptych get [NAME...]                               downloads the published data that experiments read; lists them
  triptych demo                                        a study of the three architectures: `triptych study demo`
  triptych completion bash|zsh|fish                    what a shell reads to complete all of this
  triptych schema                                      the JSON schema of experiments, for editors

After train, doctor, evaluate and predict stand Hydra overrides (key=value). `triptych COMMAND --help` says more.
"""


OF_SWEEPS = ("hydra/launcher=", "hydra.launcher.", "hydra/sweeper=", "hydra.sweeper.")


NEEDED = ("model", "task", "data", "tokenizer", "optimizer", "scheduler", "trainer", "logger", "callbacks")
"""Groups that every training has a choice of."""


def main() -> int:
    """Runs a sub-command and returns the exit status: 0, or 1 after a mistake of the user."""
    wait_briefly()
    command, *rest = sys.argv[1:] or ["help"]
    functions: dict[str, Callable[[list[str]], object]] = {
        "chat": chat,
        "compare": compare,
        "scaling": scaling,
        "study": study,
        "playground": playground,
        "dashboard": dashboard,
        "import": import_folder,
        "export": export,
        "get": get,
        "list": browse.list_things,
        "show": browse.show,
        "new": browse.new,
        "watch": watch,
        "demo": lambda more: study(more, is_demo=True),
        "completion": lambda more: browse.completion(more, commands),
        "schema": browse.schema,
    }
    commands = ("train", "doctor", "evaluate", "predict", *functions)
    if command == "train":
        catch_signals(signal.SIGUSR1)  # a scheduler's warning may come before the training begins
    try:
        if command in ("-h", "--help", "help"):
            print(USAGE, flush=True)
        elif command in ("-V", "--version", "version"):
            print(f"triptych {triptych.__version__}, torch {version('torch')}, Python {platform.python_version()}")
        elif command in functions:
            functions[command](rest)
        elif command in commands:
            run_hydra(command, rest)
        else:
            raise ConfigError(f"triptych {command}: expected {', '.join(commands)}{nearest(command, commands)}")
    except (ConfigError, RunError) as error:
        for message in messages_of(error):
            print(f"error: {Redactor()(message)}", file=sys.stderr)
        return 1
    except Interruption as interruption:
        return answer(interruption)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return 0


def answer(interruption: Interruption) -> int:
    """What a run that was asked to end still does: a job that was warned by its scheduler, or gives way to another one,
    goes back into the queue.

    Returns:
        The exit status.
    """
    job = job_of_slurm()
    if not is_rank_0():  # srun would end the rank that may still have to put the job back
        return interruption.status if job is None else 0
    try:
        if job is None or not goes_back(job, interruption.signum):
            print(f"{interruption}; {interruption.again} goes on from there", file=sys.stderr)
            return interruption.status
        print(f"{interruption}; job {job} goes back into the queue", file=sys.stderr)
        requeue(job)
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return interruption.status
    return 0


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
    from triptych.chat import chat
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
    """Refuses arguments that a line of slurm/array.sbatch cannot hold.

    Raises:
        ConfigError: one with a blank in it.
    """
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
    """Refuses a name that says that the file is something else.

    Raises:
        ConfigError: such a name.
    """
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
    """The family that ``--family`` names; without it, the published ones.

    Raises:
        ConfigError: not allowed, or no family.
    """
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


def run_hydra(command: str, arguments: list[str]) -> None:
    """A sub-command whose arguments are Hydra's."""
    if {"-h", "--help"} & {*arguments}:
        print(kept_help(command, arguments, partial(compose_and_run, command, arguments)), end="")
    else:
        compose_and_run(command, arguments)


def compose_and_run(command: str, arguments: list[str]) -> None:
    """What Hydra composes, run; or its help."""
    from triptych.config.explain import explain
    from triptych.config.hydra_guard import register_schemas, run

    register_schemas(command, arguments)
    check_arguments(arguments, command)
    if command == "evaluate" and not any(argument.startswith("data=") for argument in arguments):
        # settings of the training's corpus, which Hydra does not know
        arguments = [f"++{argument}" if argument.startswith("data.") else argument for argument in arguments]
    sweep: list[list[str]] = []
    if command == "doctor" and (flags := {"-m", "--multirun"} & {*arguments}):
        arguments, sweep = first_job([argument for argument in arguments if argument not in flags])
    sys.argv = [f"triptych {command}", *arguments]
    failures: list[Exception] = []
    try:
        run(command, arguments, task_function(command, failures, sweep))
    except Exception as error:
        failures.append(error)
    for failure in failures:
        if isinstance(failure, ConfigErrors):
            raise failure
        message = explain(failure, command, arguments)
        if os.environ.get("HYDRA_FULL_ERROR") == "1" or message is None:
            raise failure
        raise ConfigError(message)


def first_job(arguments: list[str]) -> tuple[list[str], list[list[str]]]:
    """Of a sweep, the arguments of its first job, and the overrides of each.

    Raises:
        ConfigError: overrides that Hydra cannot read.
    """
    from hydra.errors import HydraException

    from triptych.config.explain import explain
    from triptych.launch.sweep import split_sweep

    swept = [a for a in arguments if ("=" in a or a.startswith("~")) and not a.startswith(("-", "hydra"))]
    try:
        sweep = split_sweep(swept)
    except HydraException as error:
        raise ConfigError(explain(error, "doctor", arguments) or str(error)) from None
    return [*sweep[0], *(argument for argument in arguments if argument not in swept)], sweep


def check_arguments(arguments: list[str], command: str) -> None:
    """Refuses what is neither key=value nor an option of Hydra's, for which Hydra would print its grammar.

    Raises:
        ConfigError: such an argument.
    """
    from triptych.config.explain import check_choices, not_an_option, own_folders, without_choice, without_key

    takes_value = {"--package", "-p", "--config-dir", "-cd", "--cfg", "-c", "--info", "-i"}
    known = {"--help", "-h", "--version", "--resolve", "--run", "-r", "--multirun", "-m", *takes_value}
    known |= {"--shell-completion", "-sc"}
    for argument in arguments if command in ("evaluate", "predict") else ():
        key, _, setting = argument.partition("=")[0].partition(".")
        if key == "trainer" and setting not in ("", *TRAINER):
            raise ConfigError(f"{argument}: {command} has {' and '.join(f'trainer.{name}' for name in TRAINER)} alone")
    for folder in own_folders(arguments):
        if not folder.is_dir():
            raise ConfigError(f"--config-dir={folder}: no such folder; expected one with experiment/NAME.yaml in it")
    for number, (previous, argument) in enumerate(zip(["", *arguments], arguments, strict=False)):
        name, equals, _ = argument.partition("=")
        if name in ("--config-path", "-cp", "--config-name", "-cn", "--experimental-rerun"):
            raise ConfigError(f"{name}: not taken here; files of your own go into the folder of --config-dir")
        if argument.startswith("-"):
            if name not in known:
                raise ConfigError(not_an_option(argument, command, arguments))
        elif (
            command in ("train", "doctor")
            and argument.startswith("~")
            and name[1:] in [*NEEDED, *(f"block/{part}" for part in PARTS)]
        ):
            raise ConfigError(without_choice(name[1:], arguments))
        elif name == "hydra.mode":
            raise ConfigError(f"{argument}: not taken here; -m makes a sweep")
        elif command == "train" and argument.startswith(OF_SWEEPS) and not {"-m", "--multirun"} & set(arguments):
            raise ConfigError(f"{argument} is for sweeps: add -m (one job is a sweep too)")
        elif previous.count("[") > previous.count("]"):
            raise ConfigError(f"{previous} {argument}: write a list without blanks, or in quotes: 'key=[a,b]'")
        elif (not equals or not name) and not argument.startswith("~") and previous not in takes_value:
            raise ConfigError(without_key(number, arguments, command))
    check_choices(arguments)


def check_early(command: str, config: "DictConfig") -> None:
    """What can be seen to be wrong without torch.

    Raises:
        ConfigError: all that is.
    """
    from hydra.core.hydra_config import HydraConfig

    from triptych.config.overrides import check_chosen

    if command in ("train", "doctor"):
        check_chosen(HydraConfig.get().overrides.task)
    if command == "doctor" and config.device is not None:
        gpu_named(config.device)
    checks = {"train": check_training, "evaluate": check_evaluation, "predict": check_prediction}
    if command in checks:  # the doctor tells all that is wrong at once
        checks[command](config)


def command_again(config: "DictConfig", *, is_started_by_another: bool) -> str:
    """Describes the command that resumes this run. It names run_dir unless the user typed one without the time.

    Args:
        is_started_by_another: whether another process has started this one, and may have added run_dir.
    """
    from triptych.config.overrides import write_override
    from triptych.launch.processes import depends_on_clock

    is_typed = any(argument.startswith("run_dir=") for argument in sys.argv)
    if is_typed and not depends_on_clock(config) and not is_started_by_another:
        return "the same command"
    return f"the same command with {shlex.quote(write_override('run_dir', config.run_dir))}"


def task_function(command: str, failures: list[Exception], sweep: list[list[str]]) -> "Callable[[DictConfig], None]":
    """The function of a sub-command.

    It imports when it is called: torch and Lightning take seconds to import, and neither --help nor a mistake in an
    override should wait for them. What it raises goes into ``failures``, since Hydra would print a line of its own. The
    doctor is told of the other jobs of the ``sweep`` that it looks at the first of.
    """

    def run(config: "DictConfig") -> None:
        from hydra.core.hydra_config import HydraConfig
        from omegaconf import OmegaConf

        from triptych.launch.lock import locked, remove_unused
        from triptych.launch.sweep import run_directory

        is_rank = "LOCAL_RANK" in os.environ  # which Lightning removes
        # A launcher that is not ours (submitit's, Hydra's) calls this function itself, perhaps in another process.
        is_called_by_launcher = command == "train" and not OmegaConf.is_missing(HydraConfig.get().job, "num")
        if is_called_by_launcher:
            config.run_dir = str(run_directory(config))
        try:
            # before the imports, which take longer than an answer should
            check_early(command, config)
            with locked(Path(config.run_dir)) if command == "train" else nullcontext():
                work(config)
        except Exception as error:
            if is_called_by_launcher:  # which brings the error home; it cannot bring this list
                raise RunError(str(error)) if isinstance(error, Interruption) else error from None
            if isinstance(error, Interruption):
                error.again = command_again(config, is_started_by_another=is_rank)
            is_default = not any(argument.startswith("run_dir=") for argument in sys.argv)
            is_refused = command == "train" and isinstance(error, ConfigError)
            if is_refused and is_default and not Path(config.run_dir).is_absolute():
                remove_unused(Path(config.run_dir))
            failures.append(error)

    def work(config: "DictConfig") -> None:
        gc.disable()  # a tenth of the imports' time: garbage is looked for where there is none, now and later
        import triptych.evaluate
        import triptych.planning.doctor
        import triptych.predict
        import triptych.train

        gc.freeze()
        gc.enable()
        atexit.register(gc.unfreeze)  # what is frozen is never freed, and triton's bindings report each such object

        # Advice of the libraries about what is settled here. (Lightning sets its level when it is imported.)
        known = ("Experiment logs directory", ".*LeafSpec.*", ".*does not have many workers")
        for message in (*known, ".*sync_dist=True", "The .srun. command is available"):
            warnings.filterwarnings("ignore", message=message)
        for name in ("lightning.pytorch", "lightning.fabric"):
            logging.getLogger(name).setLevel(logging.WARNING)
        functions: dict[str, Callable[[DictConfig], object]] = {
            "train": triptych.train.train,
            "doctor": partial(triptych.planning.doctor.doctor, sweep=sweep),
            "evaluate": triptych.evaluate.evaluate,
            "predict": triptych.predict.predict,
        }
        functions[command](config)

    return run
