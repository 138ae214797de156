"""One Optuna study: its trials, the workers that run them, and the results. Workers share the study's file."""

import hashlib
import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Literal, cast

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution, json_to_distribution
from optuna.samplers import BaseSampler, GPSampler, QMCSampler, RandomSampler, TPESampler
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from triptych.config import ConfigError, suggestion
from triptych.launch.forked_jobs import import_job_modules
from triptych.launch.sweep import Job
from triptych.search.trials import PrunerName, lock_in
from triptych.storage.locks import Lock
from triptych.storage.run_directory import RunDirectory

SamplerName = Literal["tpe", "gp", "qmc", "random"]


@dataclass(frozen=True)
class SearchSettings:
    """The keys of ``hydra.sweeper``, documented in conf/hydra/sweeper/optuna.yaml."""

    params: dict[str, str] | None
    n_trials: int
    metric: str
    direction: Literal["minimize", "maximize"] | None
    sampler: SamplerName
    seed: int
    seeds: list[int] | None
    pruner: PrunerName
    startup_trials: int
    warmup_steps: int
    n_jobs: int
    storage: str | None


@dataclass(frozen=True)
class Identity:
    """What makes the trials of a study comparable, stored in the study.

    Attributes:
        searched: the distributions, as Optuna writes them.
        metric: that is optimized.
        direction: minimize or maximize.
        seeds: of the runs of a trial.
        configuration: digest of the settings that the trials share.
        overrides: as typed; only the digest is compared.
    """

    searched: dict[str, str]
    metric: str
    direction: str
    seeds: list[int] | None
    configuration: str
    overrides: list[str]


@dataclass(frozen=True)
class Trial:
    """A trial that this worker holds exclusively while it lives.

    Attributes:
        number: in the study, from 0.
        params: sampled parameters.
        lock: released by the system when this process dies.
    """

    number: int
    params: dict[str, float | int | str]
    lock: Lock


class OptunaStudy:
    """The trials of one combination of listed values, in a file that several workers share.

    A separate sampler, seeded by (seed, n), draws trial n from the results of the trials before it. A killed search
    therefore resumes exactly, and all studies start with the same draws until there are results. A trial whose worker
    died is run again with its parameters. Each worker holds a lock per trial, so that only trials of dead workers are
    taken over.

    Args:
        name: of the study.
        storage: that holds it.
        locks: folder of the locks.
        searched: the distributions.
        identity: what must not change.
        settings: of the search.
    """

    def __init__(
        self,
        name: str,
        storage: BaseStorage,
        locks: Path,
        searched: Mapping[str, optuna.distributions.BaseDistribution],
        identity: Identity,
        settings: SearchSettings,
    ) -> None:
        self.name, self.searched, self.settings = name, dict(searched), settings
        self._locks, self._key = locks, hashlib.sha256(name.encode()).hexdigest()[:8]
        with self._alone():
            self.optuna = self._open(storage)
            now = asdict(identity)
            earlier = self.optuna.user_attrs.get("identity", now)
            if differs := [key for key in now if key != "overrides" and now[key] != earlier[key]]:
                at_work = ", which is running now" if self._is_at_work() else ""
                if at_work or self.has_values:
                    raise ConfigError(
                        f"run_dir contains another search, {name}{at_work}: {difference(earlier, now, differs[0])}; "
                        "choose another run_dir (or hydra.sweeper.storage)"
                    )
                optuna.delete_study(study_name=name, storage=storage)  # nothing was measured yet, so nothing is lost
                self.optuna = self._open(storage)
            self.optuna.set_user_attr("identity", now)

    def _open(self, storage: BaseStorage) -> optuna.Study:
        direction = self.settings.direction
        with suppress(optuna.exceptions.DuplicatedStudyError):
            return optuna.create_study(study_name=self.name, storage=storage, direction=direction)
        return optuna.load_study(study_name=self.name, storage=storage)

    @property
    def trials(self) -> list[FrozenTrial]:
        """All trials, read from the storage again."""
        return self.optuna.get_trials(deepcopy=False)

    @property
    def has_values(self) -> bool:
        """Whether a trial has a value."""
        return bool(self.optuna.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED)))

    @property
    def best(self) -> FrozenTrial | None:
        """The best completed trial."""
        if not self.optuna.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
            return None
        return self.optuna.best_trial

    def take(self) -> tuple[list[Trial], int]:
        """Takes trials to run, at most ``n_jobs``: first those whose worker died, then new ones.

        Trials that this worker may have at once are drawn from the same results. After a restart, an incomplete round
        is completed first, so that the next one starts where it would have.

        Returns:
            the trials, and the number still to do by any worker. A trial with the same parameters as a running one
                waits for that one.
        """
        count, mine, waiting = self.settings.n_jobs, list[Trial](), 0
        with self._alone():
            trials = self.trials
            running = [trial for trial in trials if trial.state == TrialState.RUNNING]
            for trial in running:
                if (lock := self._lock(trial.number)) is None:
                    continue
                if len(mine) == count or is_twin(trial, running):
                    lock.release()
                    waiting += 1
                else:
                    mine.append(Trial(trial.number, trial.params, lock))
            new = min(count - len(mine), -len(trials) % count if mine else count)
            for number in range(len(trials), min(len(trials) + new, self.settings.n_trials)):
                trial = self._draw(number)
                running.append(trial)
                if is_twin(trial, running):
                    waiting += 1
                    continue
                lock = self._lock(number)
                assert lock is not None
                mine.append(Trial(number, trial.params, lock))
            waiting += max(self.settings.n_trials - len(self.trials), 0)
        return mine, waiting

    def tell(self, trial: Trial, jobs: Sequence[Job]) -> None:
        """Records the result of a trial, and releases it.

        Args:
            trial: held by this worker.
            jobs: its runs, each done or failed.
        """
        state, value = outcome(jobs, self.settings.metric)
        with self._alone():
            frozen = self.trials[trial.number]
            runs = [str(job.directory) for job in jobs if job.directory.exists()]
            self.optuna._storage.set_trial_user_attr(frozen._trial_id, "runs", runs)
            finished = self.optuna.tell(trial.number, value, state=state)
            trial.lock.release()
        reached = "" if finished.value is None else f", {self.settings.metric}={finished.value:.6g}"
        earlier = self.optuna.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
        equal = [
            other.number for other in earlier if other.number < trial.number and other.user_attrs.get("runs") == runs
        ]
        same = f", as trial {equal[0]}" if equal else ""
        print(f"trial {trial.number} of {self.name}: {state.name.lower()}{same}{reached}", flush=True)

    def _draw(self, number: int) -> FrozenTrial:
        """Draws the parameters of a trial in memory and stores the trial as a whole, so that a killed worker leaves no
        partial one."""
        is_sequence = self.settings.sampler == "qmc"  # the trial is an element of this sequence, whatever the results
        digest = hashlib.sha256(f"{self.settings.seed} {0 if is_sequence else number}".encode()).digest()
        sampler = make_sampler(self.settings.sampler, int.from_bytes(digest[:4]))
        memory = optuna.create_study(direction=self.settings.direction, sampler=sampler)
        if is_sequence:
            for _ in range(number):
                memory.ask(self.searched)
        else:
            memory.add_trials(self.trials)
        memory.ask(self.searched)
        drawn = memory.get_trials(deepcopy=False)[number]
        self.optuna.add_trial(drawn)
        return drawn

    def _is_at_work(self) -> bool:
        """Whether a living worker holds a trial."""
        for trial in self.optuna.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if (lock := self._lock(trial.number)) is None:
                return True
            lock.release()
        return False

    def _lock(self, number: int) -> Lock | None:
        lock = lock_in(self._locks, f"{self._key}-{number}")
        return lock if lock.acquire(wait=False) else None

    def _alone(self) -> Lock:
        """A lock against other workers that take or finish trials."""
        return lock_in(self._locks, self._key)


def is_twin(trial: FrozenTrial, running: Sequence[FrozenTrial]) -> bool:
    """Whether an earlier trial has the same parameters, and so the same run directory."""
    return any(other.number < trial.number and other.params == trial.params for other in running)


def make_sampler(name: SamplerName, seed: int) -> BaseSampler:
    """Optuna's sampler. (CMA-ES is missing: it stores its state as a pickle, which could run code.)"""
    if name == "qmc":
        with warnings.catch_warnings(action="ignore", category=optuna.exceptions.ExperimentalWarning):
            return QMCSampler(seed=seed, scramble=True)
    if name == "gp":  # computes with several threads: afterwards nothing else may count as only imported
        import_job_modules()
    kinds: dict[str, Callable[..., BaseSampler]] = {"tpe": TPESampler, "gp": GPSampler, "random": RandomSampler}
    return kinds[name](seed=seed)


def outcome(jobs: Sequence[Job], metric: str) -> tuple[TrialState, float | None]:
    """The state of a trial, and its value: the mean over its runs, each with its last or best weights.

    Args:
        jobs: the runs; those after a pruned or failed one were not started.
    """
    values: list[float] = []
    for job in jobs:
        if job.is_pruned:
            return TrialState.PRUNED, None
        if not job.is_done:
            return TrialState.FAIL, None
        metrics = json.loads(RunDirectory(job.directory).record.read_text())["metrics"]
        if metric not in metrics:
            names = [name for name in metrics if name.startswith("val/")]
            raise ConfigError(
                f"hydra.sweeper.metric={metric}: no such metric in {job.directory}{suggestion(metric, names)}"
            )
        values.append(metrics[metric])
    value = fmean(values)
    return (TrialState.COMPLETE, value) if math.isfinite(value) else (TrialState.FAIL, None)


def difference(earlier: dict[str, object], now: dict[str, object], key: str) -> str:
    """The first difference between two searches, in words."""
    if key == "searched":
        old, new = (cast(dict[str, str], search[key]) for search in (earlier, now))
        name = next(name for name in {**old, **new} if old.get(name) != new.get(name))
        return f"it searches {name} in {parse_interval(old.get(name))}, and this one in {parse_interval(new.get(name))}"
    if key == "configuration":
        old_set, new_set = (set(cast(list[str], search["overrides"])) for search in (earlier, now))
        theirs, ours = (" ".join(sorted(only)) or "nothing else" for only in (old_set - new_set, new_set - old_set))
        return f"it has {theirs}, and this one {ours}"
    return f"it has hydra.sweeper.{key}={earlier[key]}, and this one {now[key]}"


def parse_interval(written: str | None) -> str:
    """A distribution as the user would type it."""
    if written is None:
        return "nothing"
    distribution = json_to_distribution(written)
    if isinstance(distribution, CategoricalDistribution):
        return f"choice({','.join(map(str, distribution.choices))})"
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    text = f"interval({distribution.low},{distribution.high})"
    if isinstance(distribution, IntDistribution) or distribution.step is not None:
        text = f"{distribution.low} to {distribution.high} by {distribution.step}"
    return f"tag(log,{text})" if distribution.log else text
