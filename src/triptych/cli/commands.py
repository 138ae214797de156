"""The console command ``triptych``: its sub-commands, and how it handles errors and signals.

Tested by tests/cli/test_runs.py and tests/cli/test_browse.py.
"""

import os
import platform
import signal
import sys
from collections.abc import Callable
from importlib.metadata import version

import triptych
from triptych.cli import browse, folders
from triptych.cli.runs import run_hydra
from triptych.config import ConfigError, RunError, nearest
from triptych.config.errors import messages_of
from triptych.config.terms import RENAMED_COMMANDS
from triptych.launch.environment import is_rank_0, wait_briefly
from triptych.launch.requeue import job_of_slurm, requeue, should_requeue
from triptych.launch.signals import Interruption, catch_signals
from triptych.storage.redaction import Redactor

USAGE = """\
triptych: trains and compares the three Transformer architectures.

  triptych train experiment=dates/translation          train, validate and test a model; one directory per run
  triptych train -m experiment=... seed=1,2,3          run a sweep: one process and one directory per combination
  triptych doctor experiment=... key=value             check a run before training: its plan, memory, time and errors
  triptych evaluate checkpoint=RUN                     print the metrics of a checkpoint, or of a run's latest one
  triptych predict checkpoint=RUN input=FILE           predict line by line: translate, classify, continue a text
  triptych chat RUN                                    chat with a model trained with task=chat
  triptych compare RUN... [--output PAGE.html]         compare finished runs: tables, an HTML page and a JSON file
  triptych scaling RUN... [--output PAGE.html]         fit scaling laws to runs of several sizes, or to a CSV file
  triptych study [NAME] [key=value...]                 run a study and test its predictions; without NAME: list studies
  triptych playground RUN... [--port N]                try models in the browser: predictions and attention
  triptych dashboard RUN... [--output FILE.py]         write a W&B workspace and report of the comparison as code
  triptych import FOLDER --output CHECKPOINT           convert a Hugging Face folder to a checkpoint
  triptych export CHECKPOINT --output FOLDER           convert a checkpoint or run to a Hugging Face folder
  triptych list [KIND] [WORD]                          list experiments, studies, models and corpora, with their cost
  triptych show KEY [key=value...]                     explain a setting: meaning, valid values and where it is set
  triptych new experiment|task|corpus NAME             create a template with a test
  triptych watch DIR                                   show the running jobs of a sweep or study
  triptych download [NAME...]                          download published datasets; without NAME: list them
  triptych demo                                        run the demo of the three architectures: `triptych study demo`
  triptych completion bash|zsh|fish                    print a shell completion script
  triptych schema                                      write the JSON schema of experiments, for editors

train, doctor, evaluate and predict take Hydra overrides (key=value). `triptych COMMAND --help` shows all options.
"""


def main() -> int:
    """Runs a sub-command and returns the exit status: 0, or 1 after invalid input."""
    wait_briefly()
    command, *rest = sys.argv[1:] or ["help"]
    functions: dict[str, Callable[[list[str]], object]] = {
        "chat": folders.run_chat,
        "compare": folders.run_compare,
        "scaling": folders.run_scaling,
        "study": folders.run_study,
        "playground": folders.run_playground,
        "dashboard": folders.run_dashboard,
        "import": folders.run_import,
        "export": folders.run_export,
        "download": folders.run_download,
        "list": browse.run_list,
        "show": browse.run_show,
        "new": browse.run_new,
        "watch": folders.run_watch,
        "demo": lambda more: folders.run_study(more, is_demo=True),
        "completion": lambda more: browse.run_completion(more, commands),
        "schema": browse.run_schema,
    }
    commands = ("train", "doctor", "evaluate", "predict", *functions)
    if command == "train":
        catch_signals(signal.SIGUSR1)  # a scheduler may send its warning before training starts
    try:
        if command in ("-h", "--help", "help"):
            print(USAGE, flush=True)
        elif command in ("-V", "--version", "version"):
            print(f"triptych {triptych.__version__}, torch {version('torch')}, Python {platform.python_version()}")
        elif command in functions:
            functions[command](rest)
        elif command in commands:
            run_hydra(command, rest)
        elif command in RENAMED_COMMANDS:
            raise ConfigError(f"triptych {command} was renamed to triptych {RENAMED_COMMANDS[command]}")
        else:
            raise ConfigError(f"triptych {command}: expected {', '.join(commands)}{nearest(command, commands)}")
    except (ConfigError, RunError) as error:
        for message in messages_of(error):
            print(f"error: {Redactor()(message)}", file=sys.stderr)
        return 1
    except Interruption as interruption:
        return exit_after_interruption(interruption)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of the output has exited, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return 0


def exit_after_interruption(interruption: Interruption) -> int:
    """Handles an interrupted run and returns the exit status: a job that its scheduler warned or preempted is
    requeued."""
    job = job_of_slurm()
    if not is_rank_0():  # otherwise srun would end rank 0, which may still have to requeue the job
        return interruption.status if job is None else 0
    try:
        if job is None or not should_requeue(job, interruption.signum):
            print(f"{interruption}. Run {interruption.again} to resume.", file=sys.stderr)
            return interruption.status
        print(f"{interruption}; job {job} is requeued", file=sys.stderr)
        requeue(job)
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return interruption.status
    return 0
