"""The console command ``triptych``: its sub-commands, and what each mistake and signal becomes."""

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
from triptych.launch.environment import is_rank_0, wait_briefly
from triptych.launch.requeue import goes_back, job_of_slurm, requeue
from triptych.launch.signals import Interruption, catch_signals
from triptych.storage.redaction import Redactor

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


def main() -> int:
    """Runs a sub-command and returns the exit status: 0, or 1 after a mistake of the user."""
    wait_briefly()
    command, *rest = sys.argv[1:] or ["help"]
    functions: dict[str, Callable[[list[str]], object]] = {
        "chat": folders.chat,
        "compare": folders.compare,
        "scaling": folders.scaling,
        "study": folders.study,
        "playground": folders.playground,
        "dashboard": folders.dashboard,
        "import": folders.import_folder,
        "export": folders.export,
        "get": folders.get,
        "list": browse.list_things,
        "show": browse.show,
        "new": browse.new,
        "watch": folders.watch,
        "demo": lambda more: folders.study(more, is_demo=True),
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
