"""The runs of a study. If it tunes its variants, these are trials first:

1. Each variant has the same number of trials. The best one is chosen on the validation set.
2. If the best value of any variant is the smallest or the largest tried, all variants that claims compare with it get
   one more value beyond, at most twice.
3. The chosen values are trained with seeds that no trial had, and only these runs are judged.
"""
# Takes a DictConfig: a job has one, which Hydra composes for a sweep.

import json
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

from hydra import compose, initialize_config_module
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from triptych.config import ConfigError, amount, counted
from triptych.config.diagnose import explain
from triptych.config.schema import TrainConfig
from triptych.launch.sweep import NOT_PLAIN, Job, split_sweep
from triptych.report.read_records import RecordedRun, RunSet, find_runs
from triptych.report.statistics.edges import Edge
from triptych.report.statistics.metrics import validation_key
from triptych.report.statistics.reach import cost_to_reach
from triptych.storage.redaction import REDACTED
from triptych.storage.run_directory import RunDirectory
from triptych.studies.findings import claimed_group, name_measure
from triptych.studies.study import REFERENCE, Study, StudyTrial, Tuning, override_key, values_of

NO_SEED = "no seed; expected one in common, such as seed=1,2,3"
MOST_EXTENSIONS = 2
"""How often the tried values are extended."""
Grid = dict[str, list[str]]
"""The values of each tuned setting."""


@dataclass
class StudyPlan:
    """The runs of a study that are known by now.

    Attributes:
        trials: the jobs of each variant's trials.
        tunings: of variants whose trials are finished.
        jobs: the jobs to judge, of each variant; of a tuned variant, only when its trials are finished.
        startable: trials and jobs that can start now, or are finished.
    """

    trials: dict[str, list[Job]] = field(default_factory=dict)
    tunings: dict[str, Tuning] = field(default_factory=dict)
    jobs: dict[str, list[Job]] = field(default_factory=dict)
    startable: list[Job] = field(default_factory=list)


def plan_study(study: Study, more: Sequence[str]) -> StudyPlan:
    """Plans the runs of a study. Trials that are finished decide what follows, so plan again after each training.

    Args:
        more: overrides that come last.
    """
    plan, waiting = StudyPlan(), study.panels()
    while now := [panel for panel in waiting if all(study.needs(variant) <= {*plan.jobs} for variant in panel)]:
        waiting = [panel for panel in waiting if panel not in now]
        for panel in now:
            if study.tune:
                _tune(study, plan, panel, more)
            for variant in panel:
                if not study.tune or variant in plan.tunings:
                    tuning = plan.tunings.get(variant)
                    chosen = [f"{key}={value}" for key, value in tuning.chosen.values.items()] if tuning else []
                    plan.jobs[variant] = _list_jobs(study, plan, variant, more, chosen)
    for variant, jobs in (*plan.trials.items(), *plan.jobs.items()):
        sources = [job for name in study.needs(variant) for job in plan.jobs[name]]
        if all(job.is_done for job in sources):
            plan.startable += jobs
    return plan


def check_variants(study: Study, more: Sequence[str]) -> None:
    """Composes the configuration of each variant, so that a wrong setting is found before anything is trained.

    Args:
        more: overrides that come last.
    """
    ConfigStore.instance().store(name="train_schema", node=TrainConfig)
    for variant in study.variants:
        overrides = _split(study, variant, [*more, *shlex.split(study.tune)])[0]
        try:
            with initialize_config_module("triptych.conf", version_base="1.3"):
                compose("train", overrides=overrides)
        except (HydraException, OmegaConfBaseException) as error:
            said = explain(error, "train", overrides) or str(error)
            raise ConfigError(f"study {study.name}, variant {variant}: {said}") from None


def read_runs(jobs: Mapping[str, Sequence[Job]], relative_to: Path) -> RunSet:
    """The runs of finished jobs, each with its variant.

    Args:
        jobs: of each variant.
        relative_to: the folder that the directories in the result are relative to.
    """
    variants = {job.directory.resolve(): variant for variant, of_variant in jobs.items() for job in of_variant}
    try:
        found = find_runs([*variants], relative_to)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    runs = [replace(run, variant=variants[(relative_to / run.directory).resolve()]) for run in found.runs]
    return replace(found, runs=tuple(runs))


def _tune(study: Study, plan: StudyPlan, panel: Sequence[str], more: Sequence[str]) -> None:
    """Adds the trials of variants that claims compare, and their tunings if all are finished."""
    for variant in panel:
        _check_seeds(study, variant, more)
    grids = {variant: _find_grid(study, variant) for variant in panel}
    for extension in range(MOST_EXTENSIONS + 1):
        for variant, grid in grids.items():
            values = [f"{key}={','.join(tried)}" for key, tried in grid.items()]
            plan.trials[variant] = _list_jobs(study, plan, variant, [*more, *shlex.split(study.tune)], values)
        if not all(job.is_done for variant in panel for job in plan.trials[variant]):
            return
        runs = read_runs({variant: plan.trials[variant] for variant in panel}, Path()).runs
        tunings = {variant: _choose(study, variant, runs, plan.trials[variant], grids[variant]) for variant in panel}
        edges = {(edge.key, edge.is_largest) for tuning in tunings.values() for edge in tuning.edges}
        if not edges or extension == MOST_EXTENSIONS:
            plan.tunings |= tunings
            return
        for grid in grids.values():
            for key, is_largest in sorted(edges):
                numbers = _numbers(grid.get(key, []))
                if edge := Edge.find(key, max(numbers) if is_largest else min(numbers), numbers) if numbers else None:
                    grid[key].append(f"{edge.beyond:g}")


@dataclass(frozen=True)
class _TrialScore:
    """What chooses the best trial: the claimed metric on the validation set, or the cost of reaching a score.

    Attributes:
        measure: in words.
        higher_is_better: whether it is to be maximized.
        of: the score of a run; NaN or infinite if it has none.
        show: a score in words.
    """

    measure: str
    higher_is_better: bool
    of: Callable[[RecordedRun], float]
    show: Callable[[float], str]


def _choose(study: Study, variant: str, known: Sequence[RecordedRun], jobs: Sequence[Job], grid: Grid) -> Tuning:
    """The best trial of a variant: by the first claim about it, then by the validation loss."""
    runs = {Path(run.directory).resolve(): run for run in known if run.variant == variant}
    score = _find_score(study, variant, [*runs.values()])
    combinations: dict[tuple[str, ...], list[Job]] = {}
    for job in jobs:
        of_job = values_of(job.overrides)
        combinations.setdefault(tuple(of_job[key] for key in grid), []).append(job)
    trials, ranks = [], []
    for values, own in combinations.items():
        trained = [runs[job.directory.resolve()] for job in own]
        mean, loss = fmean(map(score.of, trained)), fmean(run.metrics.get("val/loss", 0.0) for run in trained)
        trials.append(StudyTrial(dict(zip(grid, values, strict=True)), own, mean, score.show(mean)))
        signed = mean if score.higher_is_better else -mean
        ranks.append((signed if math.isfinite(mean) else -math.inf, -loss))
    chosen = trials[ranks.index(max(ranks))]
    is_tie = sum(trial.score == chosen.score for trial in trials) > 1
    measure = f"{score.measure}, then validation loss" if is_tie else score.measure
    found = [Edge.find(key, float(chosen.values[key]), numbers) for key, x in grid.items() if (numbers := _numbers(x))]
    (architecture, *_), flops = [run.architecture for run in runs.values()], sum(x.train_flops for x in runs.values())
    return Tuning(architecture, measure, trials, chosen, [edge for edge in found if edge is not None], flops)


def _find_score(study: Study, variant: str, runs: Sequence[RecordedRun]) -> _TrialScore:
    """By the first claim about a variant. The validation loss counts if the metric was not validated; the metric, if no
    trial reached the score of a claim."""
    claim = next((claim for claim in study.claims if variant in claim.variants), None)
    group = claimed_group(study, claim, runs)
    if claim is not None and (target := claim.target_score) is not None:

        def cost(run: RecordedRun) -> float:
            reached = cost_to_reach(group, run, target, claim.cost_unit)
            return math.inf if reached is None else reached

        if any(math.isfinite(cost(run)) for run in runs):
            return _TrialScore(name_measure(claim, group), False, cost, amount)
    metric, key = group.metric, validation_key(group.metric, group.runs[0])
    if not all(key in run.metrics for run in runs):
        return _TrialScore("validation loss", False, lambda run: run.metrics.get("val/loss", math.nan), "{:.4g}".format)
    return _TrialScore(f"validation {metric.title}", metric.higher_is_better, lambda run: run.metrics[key], metric.show)


def _numbers(values: Sequence[str]) -> list[float]:
    """The values of a numeric setting; empty for another setting."""
    try:
        return [float(value) for value in values]
    except ValueError:
        return []


def _find_grid(study: Study, variant: str) -> Grid:
    """The settings with several values, without seeds."""
    jobs = list(map(values_of, _split(study, variant, shlex.split(study.tune))))
    grid = {key: list(dict.fromkeys(job[key] for job in jobs)) for key in jobs[0]}
    return {key: tried for key, tried in grid.items() if len(tried) > 1 and key != "seed"}


def _split(study: Study, variant: str, more: Sequence[str]) -> list[list[str]]:
    """The overrides of each run of a variant."""
    own = shlex.split(f"{study.common} {study.variants[variant]}")
    texts = [REFERENCE.sub(lambda found: _mark_source(study, found[1]), text) for text in own]
    try:
        return split_sweep([*texts, *more])
    except HydraException as error:
        raise ConfigError(f"study {study.name}, variant {variant}: {' '.join(str(error).split())}") from None


def _mark_source(study: Study, variant: str) -> str:
    """Stands for the run of another variant with the same seed."""
    return f"{study.folder}/{variant}/@seed"


def _list_jobs(study: Study, plan: StudyPlan, variant: str, more: Sequence[str], values: Sequence[str]) -> list[Job]:
    """The jobs of a variant. Their directories are named by seed, by settings with several values, and by the last
    overrides.

    Args:
        more: overrides that come after those of the study.
        values: of the tuned settings, as overrides.
    """
    split = _split(study, variant, [*more, *values])
    several = {key for key in values_of(split[0]) if len({values_of(job).get(key) for job in split}) > 1}
    named = several | {"seed", *map(override_key, [*more, *values])}
    jobs = []
    for overrides in split:
        own = values_of(overrides)
        if "seed" not in own:
            raise ConfigError(f"study {study.name}, variant {variant}: {NO_SEED}")
        for source in study.needs(variant):
            run = str(_find_source(study, plan, source, own["seed"]))
            overrides = [override.replace(_mark_source(study, source), run) for override in overrides]
        shown = {key: value for key, value in own.items() if key in named}
        folder = NOT_PLAIN.sub(".", "--".join(f"{key}-{value}" for key, value in shown.items()))
        title = " ".join([variant, *(f"{key}={value}" for key, value in shown.items())])
        jobs.append(Job(overrides, study.folder / variant / folder, DictConfig({}), title))
        _check_settings(study, jobs[-1])
    return jobs


def _check_settings(study: Study, job: Job) -> None:
    """Raises an error if a finished run was trained with other overrides: the study has changed since, or the best
    trial of the variant that it starts from."""
    try:
        command = json.loads(RunDirectory(job.directory).record.read_text(encoding="utf-8"))["command"]
        before = values_of([word for word in shlex.split(command) if "=" in word and not word.startswith("-")])
    except (OSError, ValueError, LookupError, TypeError, AttributeError):  # not finished, or damaged: see read_runs
        return
    now = values_of(job.overrides)
    for key in sorted({*before, *now} - {"run_dir"}):
        old, new = (own.get(key, "the default") for own in (before, now))
        if old != new and REDACTED not in old and len({*_numbers([old, new])}) != 1:
            raise ConfigError(
                f"{job.directory}: the run was trained with {key}={old}, but study {study.name} now has {key}={new}. "
                "Move or delete this directory to train it again"
            )


def _find_source(study: Study, plan: StudyPlan, variant: str, seed: str) -> Path:
    """The run of a variant that another variant with the same seed starts from: for a trial, the best trial."""
    jobs = [*plan.jobs[variant], *(plan.tunings[variant].chosen.jobs if variant in plan.tunings else [])]
    found = [job.directory for job in jobs if values_of(job.overrides)["seed"] == seed]
    if len(found) != 1:
        raise ConfigError(
            f"study {study.name}: {{{variant}}} has {counted(len(found), 'run')} of seed {seed}, expected one"
        )
    return found[0]


def _check_seeds(study: Study, variant: str, more: Sequence[str]) -> None:
    """Raises an error if a judged run has no seed, or that of a trial."""
    trials, judged = (
        {values_of(job).get("seed") for job in _split(study, variant, last)}
        for last in ([*more, *shlex.split(study.tune)], more)
    )
    if None in judged:
        raise ConfigError(f"study {study.name}, variant {variant}: {NO_SEED}")
    if both := trials & judged:
        raise ConfigError(
            f"study {study.name}: tune: seed={min(map(str, both))} is also a seed of the judged runs; expected another "
            "one, such as seed=101"
        )
