"""What all launchers share: the jobs of a sweep, where each has its directory, and what became of it."""
# Takes a DictConfig: of the jobs of a sweep, as Hydra composes them, with its own node.

import copy
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product, takewhile
from pathlib import Path
from typing import Any, cast

from hydra import compose
from hydra.conf import HydraConf
from hydra.core.config_loader import ConfigLoader
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict

from triptych.config import ARCHITECTURES, ConfigError
from triptych.config.overrides import check_chosen, write_override
from triptych.launch.environment import is_one_of_several
from triptych.storage.atomic import write_text
from triptych.storage.redaction import Redactor
from triptych.storage.run_directory import RunDirectory

UNCOUNTED = ("hydra", "run_dir", "logger")
"""Parts of the configuration that do not make a job another job; ``callbacks.pruning`` is another."""
ADDED = ("match", "reference")
"""Settings that came later: where they are null, the directories of sweeps keep the names that they had before."""
NAMING = ("data", "task", "model")
"""Groups whose choices name a run."""
PRUNING = "++callbacks.pruning="
"""The beginning of the override by which a search makes a job a trial."""
NOT_PLAIN = re.compile("[^A-Za-z0-9._-]")
"""What the name of a directory that we choose does not have."""
LAST_LINES = 10
"""So many lines of the log of a failed job are shown."""


class SweepFailed(ConfigError):
    """Jobs of a sweep failed; the message names them.

    Attributes:
        results: what became of every job, in the order of the jobs.
    """

    def __init__(self, message: str, results: Sequence[JobReturn]) -> None:
        super().__init__(message)
        self.results = results


@dataclass(frozen=True)
class Job:
    """One run of a sweep.

    Attributes:
        overrides: of the command line, without run_dir.
        directory: of the run.
        config: as the sweep composes it.
        name: that users see; empty: its overrides.
    """

    overrides: list[str]
    directory: Path
    config: DictConfig = field(repr=False)
    name: str = ""

    @property
    def is_done(self) -> bool:
        """Whether there is nothing left to do."""
        return RunDirectory(self.directory).is_done(is_trial=self.is_trial)

    @property
    def is_trial(self) -> bool:
        """Whether it is a trial of a search, which validates and does not test."""
        return any(override.startswith(PRUNING) for override in self.overrides)

    @property
    def is_pruned(self) -> bool:
        """Whether it was stopped as a hopeless trial of a search."""
        return RunDirectory(self.directory).pruned.exists()

    @property
    def title(self) -> str:
        """The job for people: its name, or its overrides without what a search adds for itself."""
        return self.name or " ".join(self.own)

    @property
    def own(self) -> list[str]:
        """The overrides without what a search adds for itself."""
        return [override for override in self.overrides if not override.startswith(PRUNING)]

    @property
    def arguments(self) -> list[str]:
        """The arguments of ``triptych train``."""
        return [*self.overrides, write_override("run_dir", str(self.directory))]

    def announce(self, redact: Redactor) -> None:
        """Makes its directory, with a note of its overrides: who watches sees the job before it begins."""
        self.directory.mkdir(parents=True, exist_ok=True)
        write_text(RunDirectory(self.directory).job, json.dumps({"overrides": redact(self.own)}) + "\n")


@dataclass(frozen=True)
class Failure:
    """How a job failed.

    Attributes:
        how: in a few words.
        log: the file whose last lines may say why.
    """

    how: str
    log: Path


def jobs_of(loader: ConfigLoader, sweep: DictConfig, overrides: Sequence[Sequence[str]]) -> list[Job]:
    """The jobs of a sweep. A job's directory is named by its experiment and the hash of its configuration, so that the
    same command finds its own work again.

    Args:
        loader: composes the configuration of each.
    """
    if is_one_of_several():
        raise ConfigError(
            "-m: srun or torchrun has started several processes, and each would run the whole sweep; start it once, "
            "without them: each job starts its own processes"
        )
    jobs: list[Job] = []
    others = [[override for override in own if not override.startswith("run_dir=")] for own in overrides]
    for own, other, name in zip(map(list, overrides), others, name_jobs(others, sweep), strict=True):
        check_chosen(own)
        config = loader.load_sweep_config(sweep, own)
        jobs.append(Job(other, job_directory(config, own), config, name))
        jobs[0].directory.parent.mkdir(parents=True, exist_ok=True)  # to be watched, before all others are composed
    if not jobs:
        given = " ".join(override for override in sweep.hydra.overrides.task if "(" in override)
        raise ConfigError(f"{given}: a sweep without jobs; expected something for each glob, range or choice")
    return jobs


def name_jobs(overrides: Sequence[Sequence[str]], sweep: DictConfig) -> list[str]:
    """The overrides in which each job differs from the others; of one job of a search, those that the search chose.
    Empty: all of a single job, or none."""
    if not overrides:
        return []
    shared = set.intersection(*map(set, overrides)) if len(overrides) > 1 else set[str]()
    if any(override.startswith(PRUNING) for override in overrides[0]):
        shared |= set(sweep.hydra.overrides.task)
    if not shared:
        return [""] * len(overrides)
    return [" ".join(o for o in own if o not in shared and not o.startswith(PRUNING)) for own in overrides]


def describe_shared(jobs: Sequence[Job]) -> str:
    """What all jobs of a sweep have in common, in a line; empty: one job, or nothing, or trials of a search."""
    if jobs[0].is_trial:
        return ""
    shared = [override for override in jobs[0].own if all(override in job.own for job in jobs)]
    return f"{len(jobs)} jobs, all with {' '.join(shared)}" if len(jobs) > 1 and shared else ""


def split_sweep(arguments: Sequence[str]) -> list[list[str]]:
    """The overrides of each job of a sweep: every combination of the values, the last key changing first.

    Args:
        arguments: overrides with several values, and others.

    Raises:
        HydraException: what cannot be read, or an interval, which has no single values.
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
    """The folder of a sweep's run directories: ``run_dir``, if the overrides say it."""
    if not any(override.startswith("run_dir=") for override in overrides):
        choices = config.hydra.runtime.choices
        return Path("outputs/sweeps") / (choices["experiment"] or experiment_of(config.hydra))
    parent = str(unresolved(config)["run_dir"])
    if "${" in parent:
        raise ConfigError(f"run_dir={parent}: of a sweep, expected a folder by its name, to find it again")
    return Path(parent)


def experiment_of(hydra: DictConfig | HydraConf) -> str:
    """EXPERIMENT_MODEL, or the experiment alone if its name ends with the architecture. Without one, or with another
    corpus or task than the experiment's, or another model than its name says: DATA/TASK_MODEL.

    Args:
        hydra: its part of a configuration.
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
    """How all of these names begin: dates/translation, of dates/translation_full and dates/translation_decoder_only."""
    words = zip(*(re.split("([/_])", name) for name in names), strict=False)
    shared = takewhile(lambda same: len(set(same)) == 1, words)
    return "".join(word for word, *_ in shared).rstrip("/_") or "search"


def digest_of(config: DictConfig) -> str:
    """SHA-256 of what makes a job another job."""
    content = unresolved(config)
    later = [key for key in ADDED if content[key] is None]
    counted = {key: value for key, value in content.items() if key not in (*UNCOUNTED, *later)}
    counted["callbacks"].pop("pruning", None)
    return hashlib.sha256(json.dumps(plain_numbers(counted), sort_keys=True).encode()).hexdigest()


def plain_numbers(content: Any) -> Any:
    """The same where 10000 and 10000.0, two spellings of one setting, are written alike."""
    if isinstance(content, dict):
        return {key: plain_numbers(value) for key, value in content.items()}
    if isinstance(content, list):
        return [plain_numbers(value) for value in content]
    return int(content) if isinstance(content, float) and content.is_integer() else content


def unresolved(config: DictConfig) -> dict[str, Any]:
    """A configuration as it is written."""
    return cast(dict[str, Any], OmegaConf.to_container(config, resolve=False))


def run_directory(config: DictConfig) -> Path:
    """The same for a job that a launcher has called in its own process, as those that are not ours do.

    Args:
        config: as the job gets it, without Hydra's part.
    """
    whole = copy.deepcopy(config)
    with open_dict(whole):
        whole.hydra = HydraConfig.get()
    return job_directory(whole, list(HydraConfig.get().overrides.task))


def train_command(sweep: DictConfig) -> list[str]:
    """The command of each job, without its arguments."""
    return [*own_command(), *own_choices(sweep.hydra)]


def own_choices(hydra: HydraConf) -> list[str]:
    """The arguments by which a command finds the user's own choices of config groups.

    Args:
        hydra: Hydra's part of the configuration.
    """
    sources = [source for source in hydra.runtime.config_sources if source.provider == "command-line"]
    folders = [f"--config-dir={os.path.abspath(source.path)}" for source in sources]
    return [*folders, *(override for override in hydra.overrides.hydra if override.startswith("hydra.searchpath="))]


def own_command() -> list[str]:
    """``triptych train`` as this process would start it."""
    return [*own_program(), "train"]


def own_program() -> list[str]:
    """``triptych``, likewise."""
    return [*own_python(), "-m", "triptych"]


def own_python() -> list[str]:
    """The interpreter of this process: it imports from where this process does, no more."""
    return [sys.executable, *([] if os.getcwd() in sys.path else ["-P"])]


def redact_notes(sweep: DictConfig) -> Redactor:
    """Takes the secrets out of the file in which Hydra has noted the sweep.

    Returns:
        What takes them out of other texts.
    """
    whole = OmegaConf.to_container(sweep)
    redact = Redactor(whole)
    notes = Path(sweep.hydra.sweep.dir) / "multirun.yaml"
    notes.write_text(OmegaConf.to_yaml(OmegaConf.create(redact(whole))))
    return redact


def collect(
    jobs: Sequence[Job], failures: Mapping[Path, Failure], waiting: Sequence[Path], redact: Redactor
) -> list[JobReturn]:
    """What became of the jobs: of each its directory, or None while it is not done. The last lines of those that failed
    are printed.

    Args:
        failures: by the directory of the job.
        waiting: directories of the jobs that are not done yet.

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
