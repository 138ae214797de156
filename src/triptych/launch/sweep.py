"""Shared by all launchers: the jobs of a sweep, their directories and their results."""
# Takes a DictConfig: that of a sweep and its jobs, composed by Hydra and including Hydra's node.

import copy
import hashlib
import json
import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product, takewhile
from pathlib import Path
from typing import Any

from hydra import compose
from hydra.conf import HydraConf
from hydra.core.config_loader import ConfigLoader
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict

from triptych.config import ARCHITECTURES, ConfigError, as_dict
from triptych.config.overrides import check_chosen, write_override
from triptych.launch.environment import is_one_of_several
from triptych.storage.atomic import write_text
from triptych.storage.redaction import Redactor
from triptych.storage.run_directory import RunDirectory

UNCOUNTED = ("hydra", "run_dir", "logger")
"""Nodes that do not identify a job; neither does ``callbacks.pruning``."""
ADDED = ("match", "reference")
"""Newer settings, left out of the hash while null, so that the directories of earlier sweeps keep their names."""
NAMING = ("data", "task", "model")
"""Groups whose choices name a run."""
PRUNING = "++callbacks.pruning="
"""Prefix of the override that makes a job a trial of a search."""
NOT_PLAIN = re.compile("[^A-Za-z0-9._-]")
"""Characters to replace in the names of directories."""
LAST_LINES = 10
"""Number of log lines to show of a failed job."""


class SweepFailed(ConfigError):
    """Jobs of a sweep failed; the message names them.

    Attributes:
        results: results of all jobs, in order.
    """

    def __init__(self, message: str, results: Sequence[JobReturn]) -> None:
        super().__init__(message)
        self.results = results


@dataclass(frozen=True)
class Job:
    """One run of a sweep.

    Attributes:
        overrides: overrides without run_dir.
        directory: run directory.
        config: composed configuration.
        name: displayed name; empty: the overrides.
    """

    overrides: list[str]
    directory: Path
    config: DictConfig = field(repr=False)
    name: str = ""

    @property
    def is_done(self) -> bool:
        """Whether the job has finished."""
        return RunDirectory(self.directory).is_done(is_trial=self.is_trial)

    @property
    def is_trial(self) -> bool:
        """Whether the job is a trial of a search, which is validated but not tested."""
        return any(override.startswith(PRUNING) for override in self.overrides)

    @property
    def is_pruned(self) -> bool:
        """Whether a search pruned the job."""
        return RunDirectory(self.directory).pruned.exists()

    @property
    def title(self) -> str:
        """The displayed name of the job, or its overrides."""
        return self.name or " ".join(self.own)

    @property
    def own(self) -> list[str]:
        """The overrides without those that a search adds."""
        return [override for override in self.overrides if not override.startswith(PRUNING)]

    @property
    def arguments(self) -> list[str]:
        """The arguments of ``triptych train``."""
        return [*self.overrides, write_override("run_dir", str(self.directory))]

    def announce(self, redact: Redactor) -> None:
        """Creates the directory with a file of the overrides, so that ``triptych watch`` shows the job before it
        starts."""
        self.directory.mkdir(parents=True, exist_ok=True)
        write_text(RunDirectory(self.directory).job, json.dumps({"overrides": redact(self.own)}) + "\n")


@dataclass(frozen=True)
class Failure:
    """How a job failed.

    Attributes:
        how: short description.
        log: log file.
    """

    how: str
    log: Path


def jobs_of(loader: ConfigLoader, sweep: DictConfig, overrides: Sequence[Sequence[str]]) -> list[Job]:
    """The jobs of a sweep. Their directories are named by experiment and a hash of the configuration, so that the same
    command finds them again.

    Args:
        loader: composes the configuration of each job.
    """
    if is_one_of_several():
        raise ConfigError(
            "-m: srun or torchrun started several processes, and each of them would run the whole sweep. Run the "
            "command without srun or torchrun; each job starts its own processes"
        )
    jobs: list[Job] = []
    others = [[override for override in own if not override.startswith("run_dir=")] for own in overrides]
    for own, other, name in zip(map(list, overrides), others, name_jobs(others, sweep), strict=True):
        check_chosen(own)
        config = loader.load_sweep_config(sweep, own)
        jobs.append(Job(other, job_directory(config, own), config, name))
        jobs[0].directory.parent.mkdir(parents=True, exist_ok=True)  # to watch it while the other jobs are composed
    if not jobs:
        given = " ".join(override for override in sweep.hydra.overrides.task if "(" in override)
        raise ConfigError(f"{given}: the sweep has no jobs; expected at least one value for each glob, range or choice")
    return jobs


def name_jobs(overrides: Sequence[Sequence[str]], sweep: DictConfig) -> list[str]:
    """The overrides that distinguish each job; for a single job of a search, those that the search chose. Empty:
    none."""
    if not overrides:
        return []
    shared = set.intersection(*map(set, overrides)) if len(overrides) > 1 else set[str]()
    if any(override.startswith(PRUNING) for override in overrides[0]):
        shared |= set(sweep.hydra.overrides.task)
    if not shared:
        return [""] * len(overrides)
    return [" ".join(o for o in own if o not in shared and not o.startswith(PRUNING)) for own in overrides]


def describe_shared(jobs: Sequence[Job]) -> str:
    """One line with the overrides that all jobs share; empty: one job, nothing shared, or trials of a search."""
    if jobs[0].is_trial:
        return ""
    shared = [override for override in jobs[0].own if all(override in job.own for job in jobs)]
    return f"{len(jobs)} jobs, all with {' '.join(shared)}" if len(jobs) > 1 and shared else ""


def split_sweep(arguments: Sequence[str]) -> list[list[str]]:
    """The overrides of each job of a sweep: every combination of the values, the last key changing first.

    Raises:
        HydraException: an override is invalid, or an interval.
    """
    choices: dict[str, list[str]] = {}
    for override in OverridesParser.create().parse_overrides(list(arguments)):
        key = override.get_key_element()
        if not override.is_sweep_override():
            choices[key] = [str(override.input_line)]
        elif override.is_discrete_sweep():
            choices[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
        else:
            raise HydraException(f"{override.input_line}: does not support sweep type")
    return [list(job) for job in product(*choices.values())]


def job_directory(config: DictConfig, overrides: Sequence[str]) -> Path:
    """PARENT/EXPERIMENT-HASH."""
    name = NOT_PLAIN.sub(".", experiment_of(config.hydra))
    return parent_of(config, overrides) / f"{name}-{digest_of(config)[:8]}"


def parent_of(config: DictConfig, overrides: Sequence[str]) -> Path:
    """The parent folder of a sweep's run directories; ``run_dir`` if the overrides set it."""
    if not any(override.startswith("run_dir=") for override in overrides):
        choices = config.hydra.runtime.choices
        return Path("outputs/sweeps") / (choices["experiment"] or experiment_of(config.hydra))
    parent = str(as_dict(config, resolve=False)["run_dir"])
    if "${" in parent:
        raise ConfigError(f"run_dir={parent}: for a sweep, expected a fixed folder name, so that it can be resumed")
    return Path(parent)


def experiment_of(hydra: DictConfig | HydraConf) -> str:
    """The name of a run: EXPERIMENT_MODEL, or only the experiment if its name ends with the architecture.

    DATA/TASK_MODEL without an experiment, or if its data, its task or the model in its name are overridden.

    Args:
        hydra: Hydra's node of a configuration.
    """
    choices, name = hydra.runtime.choices, hydra.runtime.choices["experiment"]
    model = choices["model"].replace("/", "-")
    if name is not None:
        says_model = re.search(rf"(^|[/_])({'|'.join(ARCHITECTURES)})$", name)
        full_name, decisive = (name, NAMING) if says_model else (f"{name}_{model}", ("data", "task"))
        if not {override.partition("=")[0] for override in hydra.overrides.task} & {*decisive}:
            return str(full_name)
        where = [override for override in hydra.overrides.hydra if override.startswith("hydra.searchpath=")]
        own = compose(hydra.job.config_name, overrides=[f"experiment={name}", *where], return_hydra_config=True)
        if all(own.hydra.runtime.choices[group] == choices[group] for group in decisive):
            return str(full_name)
    return f"{choices['data']}/{choices['task']}_{model}"


def common_name(names: Iterable[str]) -> str:
    """The common prefix of names: dates/translation for dates/translation_full and dates/translation_decoder_only."""
    words = zip(*(re.split("([/_])", name) for name in names), strict=False)
    shared = takewhile(lambda same: len(set(same)) == 1, words)
    return "".join(word for word, *_ in shared).rstrip("/_") or "search"


def digest_of(config: DictConfig) -> str:
    """SHA-256 of the settings that identify a job."""
    content = as_dict(config, resolve=False)
    later = [key for key in ADDED if content[key] is None]
    counted = {key: value for key, value in content.items() if key not in (*UNCOUNTED, *later)}
    counted["callbacks"].pop("pruning", None)
    return hashlib.sha256(json.dumps(plain_numbers(counted), sort_keys=True).encode()).hexdigest()


def plain_numbers(content: Any) -> Any:
    """Converts 10000.0 to 10000, because both are the same setting."""
    if isinstance(content, dict):
        return {key: plain_numbers(value) for key, value in content.items()}
    if isinstance(content, list):
        return [plain_numbers(value) for value in content]
    return int(content) if isinstance(content, float) and content.is_integer() else content


def run_directory(config: DictConfig) -> Path:
    """The job directory for a job that another launcher called in its own process.

    Args:
        config: configuration of the job without Hydra's node.
    """
    whole = copy.deepcopy(config)
    with open_dict(whole):
        whole.hydra = HydraConfig.get()
    return job_directory(whole, list(HydraConfig.get().overrides.task))


def train_command(sweep: DictConfig) -> list[str]:
    """The command of each job, without its arguments."""
    return [*own_command(), *own_choices(sweep.hydra)]


def own_choices(hydra: HydraConf) -> list[str]:
    """The arguments with the user's config folders."""
    sources = [source for source in hydra.runtime.config_sources if source.provider == "command-line"]
    folders = [f"--config-dir={os.path.abspath(source.path)}" for source in sources]
    return [*folders, *(override for override in hydra.overrides.hydra if override.startswith("hydra.searchpath="))]


def own_command() -> list[str]:
    """The command ``triptych train``."""
    return [*own_program(), "train"]


def own_program() -> list[str]:
    """The command ``triptych``."""
    return [*own_python(), "-m", "triptych"]


def own_python() -> list[str]:
    """The interpreter of this process, with the same import path."""
    return [sys.executable, *([] if os.getcwd() in sys.path else ["-P"])]


def redact_notes(sweep: DictConfig) -> Redactor:
    """Redacts secrets in Hydra's multirun.yaml, and returns the redactor for other texts."""
    whole = OmegaConf.to_container(sweep)
    redact = Redactor(whole)
    notes = Path(sweep.hydra.sweep.dir) / "multirun.yaml"
    notes.write_text(OmegaConf.to_yaml(OmegaConf.create(redact(whole))))
    return redact


def collect(
    jobs: Sequence[Job], failures: Mapping[Path, Failure], waiting: Sequence[Path], redact: Redactor
) -> list[JobReturn]:
    """The results of the jobs: their directories, or None if not done. Prints the last log lines of failed jobs.

    Args:
        failures: failures by directory.
        waiting: directories of unfinished jobs.

    Raises:
        SweepFailed: jobs failed.
    """
    results, failed = [], []
    for number, job in enumerate(jobs, 1):
        value = None if job.directory in waiting else str(job.directory)
        result = JobReturn(overrides=job.overrides, status=JobStatus.COMPLETED, _return_value=value)
        if failure := failures.get(job.directory):
            failed.append(f"{redact(job.title)} ({failure.how}, {job.directory})")
            result.status, result.return_value = JobStatus.FAILED, ConfigError(failed[-1])
            lines = failure.log.read_text(errors="replace").splitlines() if failure.log.exists() else []
            tail = "".join(f"\n  {redact(line)}" for line in lines[-LAST_LINES:])
            print(f"job {number} of {len(jobs)} failed, {failure.log}:{tail or ' it is empty'}", file=sys.stderr)
        results.append(result)
    if failed:
        raise SweepFailed(f"{len(failed)} of {len(jobs)} jobs failed: " + "; ".join(failed), results)
    return results


def end_sweep(jobs: Sequence[Job], failures: Mapping[Path, Failure], redact: Redactor) -> list[JobReturn]:
    """The results of the jobs, see ``collect``. Prints the command that compares them; none for trials, which are not
    tested."""
    results = collect(jobs, failures, [], redact)
    if not any(job.is_trial for job in jobs):
        folders = dict.fromkeys(str(job.directory.parent) for job in jobs)
        print(f"next: {shlex.join(['triptych', 'compare', *folders])}", flush=True)
    return results
