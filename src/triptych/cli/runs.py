"""``triptych train``, ``doctor``, ``evaluate`` and ``predict``, which take Hydra overrides."""
# Takes a DictConfig: it is the command's own configuration, composed by Hydra.

import atexit
import gc
import logging
import os
import shlex
import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from triptych.assembly.early_checks import check_evaluation, check_prediction, check_training
from triptych.cli.help import kept_help
from triptych.config import PARTS, ConfigError, RunError
from triptych.config.errors import ConfigErrors
from triptych.config.schema import TRAINER
from triptych.launch.signals import Interruption
from triptych.planning.gpus import gpu_named

if TYPE_CHECKING:
    from omegaconf import DictConfig


OF_SWEEPS = ("hydra/launcher=", "hydra.launcher.", "hydra/sweeper=", "hydra.sweeper.")


NEEDED = ("model", "task", "data", "tokenizer", "optimizer", "scheduler", "trainer", "logger", "callbacks")
"""Groups that every run needs a choice of."""


def run_hydra(command: str, arguments: list[str]) -> None:
    """Runs a sub-command that takes Hydra overrides."""
    if {"-h", "--help"} & {*arguments}:
        print(kept_help(command, arguments, partial(compose_and_run, command, arguments)), end="")
    else:
        compose_and_run(command, arguments)


def compose_and_run(command: str, arguments: list[str]) -> None:
    """Composes the configuration with Hydra and runs the sub-command, or prints its help."""
    from triptych.config.diagnose import explain
    from triptych.config.hydra_guard import register_schemas, run

    register_schemas(command, arguments)
    check_arguments(arguments, command)
    if command == "evaluate" and not any(argument.startswith("data=") for argument in arguments):
        # settings of the recorded corpus, which Hydra does not know
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
    """The arguments of the first job of a sweep, and the overrides of each job."""
    from hydra.errors import HydraException

    from triptych.config.diagnose import explain
    from triptych.launch.sweep import split_sweep

    swept = [a for a in arguments if ("=" in a or a.startswith("~")) and not a.startswith(("-", "hydra"))]
    try:
        sweep = split_sweep(swept)
    except HydraException as error:
        raise ConfigError(explain(error, "doctor", arguments) or str(error)) from None
    return [*sweep[0], *(argument for argument in arguments if argument not in swept)], sweep


def check_arguments(arguments: list[str], command: str) -> None:
    """Raises an error for arguments that are not key=value or a Hydra option, for which Hydra prints its grammar."""
    from triptych.config.diagnose import check_choices, not_an_option, own_folders, without_choice, without_key

    takes_value = {"--package", "-p", "--config-dir", "-cd", "--cfg", "-c", "--info", "-i"}
    known = {"--help", "-h", "--version", "--resolve", "--run", "-r", "--multirun", "-m", *takes_value}
    known |= {"--shell-completion", "-sc"}
    needed = [*NEEDED, *(f"block/{part}" for part in PARTS)] if command in ("train", "doctor") else []
    for argument in arguments if command in ("evaluate", "predict") else ():
        key, _, setting = argument.partition("=")[0].partition(".")
        if key == "trainer" and setting not in ("", *TRAINER):
            raise ConfigError(f"{argument}: {command} only has {' and '.join(f'trainer.{name}' for name in TRAINER)}")
    for folder in own_folders(arguments):
        if not folder.is_dir():
            raise ConfigError(f"--config-dir={folder}: no such folder; expected one with experiment/NAME.yaml in it")
    for number, (previous, argument) in enumerate(zip(["", *arguments], arguments, strict=False)):
        name, equals, _ = argument.partition("=")
        if name in ("--config-path", "-cp", "--config-name", "-cn", "--experimental-rerun"):
            raise ConfigError(f"{name}: not supported. Put your own files into the folder of --config-dir")
        if argument.startswith("-"):
            if name not in known:
                raise ConfigError(not_an_option(argument, command, arguments))
        elif argument.startswith("~") and name[1:] in needed:
            raise ConfigError(without_choice(name[1:], arguments))
        elif name == "hydra.mode":
            raise ConfigError(f"{argument}: not supported. For a sweep, add -m")
        elif command == "train" and argument.startswith(OF_SWEEPS) and not {"-m", "--multirun"} & set(arguments):
            raise ConfigError(f"{argument} is for sweeps: add -m (also for a single job)")
        elif previous.count("[") > previous.count("]"):
            raise ConfigError(f"{previous} {argument}: write a list without spaces, or in quotes: 'key=[a,b]'")
        elif (not equals or not name) and not argument.startswith("~") and previous not in takes_value:
            raise ConfigError(without_key(number, arguments, command))
    check_choices(arguments)


def check_early(command: str, config: "DictConfig") -> None:
    """Runs the checks that do not need torch, and raises all their errors."""
    from hydra.core.hydra_config import HydraConfig

    from triptych.config.overrides import check_chosen

    if command in ("train", "doctor"):
        check_chosen(HydraConfig.get().overrides.task)
    if command == "doctor" and config.device is not None:
        gpu_named(config.device)
    checks = {"train": check_training, "evaluate": check_evaluation, "predict": check_prediction}
    if command in checks:  # doctor collects all errors itself
        checks[command](config)


def command_again(config: "DictConfig", *, is_started_by_another: bool) -> str:
    """Describes the command that resumes this run, with run_dir unless the user typed one without a timestamp.

    Args:
        is_started_by_another: whether another process started this one, and may have added run_dir.
    """
    from triptych.config.overrides import write_override
    from triptych.launch.processes import depends_on_clock

    is_typed = any(argument.startswith("run_dir=") for argument in sys.argv)
    if is_typed and not depends_on_clock(config) and not is_started_by_another:
        return "the same command again"
    return f"the same command with {shlex.quote(write_override('run_dir', config.run_dir))}"


def task_function(command: str, failures: list[Exception], sweep: list[list[str]]) -> "Callable[[DictConfig], None]":
    """The function of a sub-command.

    It imports torch and Lightning, which takes seconds, only when called, after --help and the early checks. Its
    exceptions are collected in ``failures``, because Hydra would print its own message. ``sweep`` are all jobs of a
    sweep whose first job the doctor checks.
    """

    def run(config: "DictConfig") -> None:
        from hydra.core.hydra_config import HydraConfig
        from omegaconf import OmegaConf

        from triptych.launch.lock import locked, remove_unused
        from triptych.launch.sweep import run_directory

        is_rank = "LOCAL_RANK" in os.environ  # read it now, because Lightning removes it
        # Other launchers (submitit's, Hydra's) call this function themselves, perhaps in another process.
        is_called_by_launcher = command == "train" and not OmegaConf.is_missing(HydraConfig.get().job, "num")
        if is_called_by_launcher:
            config.run_dir = str(run_directory(config))
        try:
            # before the imports, which are slow
            check_early(command, config)
            with locked(Path(config.run_dir)) if command == "train" else nullcontext():
                work(config)
        except Exception as error:
            if is_called_by_launcher:  # it returns the error, but not this list
                raise RunError(str(error)) if isinstance(error, Interruption) else error from None
            if isinstance(error, Interruption):
                error.again = command_again(config, is_started_by_another=is_rank)
            is_default = not any(argument.startswith("run_dir=") for argument in sys.argv)
            is_refused = command == "train" and isinstance(error, ConfigError)
            if is_refused and is_default and not Path(config.run_dir).is_absolute():
                remove_unused(Path(config.run_dir))
            failures.append(error)

    def work(config: "DictConfig") -> None:
        gc.disable()  # saves a tenth of the import time, and later searches for garbage
        import triptych.evaluate
        import triptych.planning.doctor
        import triptych.predict
        import triptych.train
        from triptych.launch.forks import note_imports

        note_imports()
        gc.freeze()
        gc.enable()
        atexit.register(gc.unfreeze)  # otherwise triton's bindings report each frozen object at exit

        # Advice of the libraries that does not apply. (Lightning sets its log level when it is imported.)
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
