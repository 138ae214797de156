"""``hydra/sweeper=optuna``: samples the settings of jobs, launches them, and records their results."""
# Takes a DictConfig: Hydra composes the jobs of a sweep with its own node.

import os
import shlex
import time
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_type_hints

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.core.utils import JobStatus
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from triptych.config import ConfigError, check_type
from triptych.config.overrides import quote
from triptych.launch.lock import wait_until_free
from triptych.launch.sweep import (
    PRUNING,
    Job,
    SweepFailed,
    common_name,
    digest_of,
    experiment_of,
    jobs_of,
    parent_of,
    train_command,
)
from triptych.search.trials import check_optuna, locks_of, open_storage, storage_errors
from triptych.storage.redaction import Redactor
from triptych.storage.run_directory import RunDirectory

if TYPE_CHECKING:
    from triptych.search.optuna_study import OptunaStudy, SearchSettings, Trial
    from triptych.search.space import Space

OF_SEARCH = ("hydra/sweeper", "hydra.sweeper", "hydra.mode")
"""Prefixes of the overrides that make a sweep a search."""
PATIENCE_S = 2.0
"""Seconds between polls of a trial of another worker."""


class OptunaSearch(Sweeper):
    """Searches with Optuna: draws parameters, launches jobs with the chosen launcher, and reports their values.

    Args:
        settings: see conf/hydra/sweeper/optuna.yaml.
    """

    def __init__(self, **settings: Any) -> None:
        self._given = settings

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Called by Hydra."""
        check_optuna()
        self._loader, self._config = hydra_context.config_loader, config
        self._launcher = Plugins.instance().instantiate_launcher(hydra_context, task_function, config)

    def sweep(self, arguments: list[str]) -> None:
        """Searches.

        Args:
            arguments: the overrides of the command line, without Hydra's own.
        """
        from triptych.search.page import report
        from triptych.search.space import read_space

        settings = self._settings()
        parser = OverridesParser.create(config_loader=self._loader)
        lines = [f"{key}={value}" for key, value in (settings.params or {}).items()]
        space = read_space(parser.parse_overrides([*lines, *arguments]))
        if settings.seeds and any(override.startswith("seed=") for override in space.fixed):
            raise ConfigError("seed: set either seed or hydra.sweeper.seeds")
        Path(self._config.hydra.sweep.dir).mkdir(parents=True, exist_ok=True)  # the launcher writes the sweep there
        self._launched = 0
        folder, studies = self._studies(settings, space)
        working = list(studies)
        while working:
            for study in list(working):  # in turns, so that all are equally far whenever this ends
                with storage_errors(self._storage):
                    mine, waiting = study.take()
                if mine:
                    self._run(study, mine)
                elif waiting:
                    time.sleep(PATIENCE_S)
                else:
                    working.remove(study)
        best = [study for study in studies if study.best is not None]
        tests = {study.name: self._command(study, study.settings.seeds or ()) for study in best}
        report(
            studies, folder / "search.html", tests, [self._command(study, self._fresh_seeds(study)) for study in best]
        )

    def _settings(self) -> "SearchSettings":
        """The validated settings."""
        from triptych.search.optuna_study import SearchSettings

        plain = {k: OmegaConf.to_container(v) if OmegaConf.is_config(v) else v for k, v in self._given.items()}
        if not isinstance(plain["params"], dict | None):
            raise ConfigError(
                f"hydra.sweeper.params={plain['params']}: expected {{key: value}}, such as "
                '{optimizer.lr: "interval(1e-4,1e-2)"}, or null'
            )
        hints = get_type_hints(SearchSettings)
        for field in fields(SearchSettings):
            check_type(f"hydra.sweeper.{field.name}", plain[field.name], hints[field.name])
        settings = SearchSettings(**cast(dict[str, Any], plain))
        for name, least in (("n_trials", 1), ("n_jobs", 1), ("startup_trials", 0), ("warmup_steps", 0), ("seed", 0)):
            if (value := getattr(settings, name)) < least:
                raise ConfigError(f"hydra.sweeper.{name}={value}: expected at least {least}")
        if not settings.metric.startswith("val/"):
            raise ConfigError(
                f"hydra.sweeper.metric={settings.metric}: a search uses the validation set only; expected a "
                "metric such as val/loss"
            )
        if settings.seeds is not None and len(set(settings.seeds)) < max(len(settings.seeds), 1):
            raise ConfigError(f"hydra.sweeper.seeds={settings.seeds}: expected one or more different seeds, or null")
        if OmegaConf.select(self._config, "hydra.launcher.wait") is False:
            raise ConfigError("hydra.launcher.wait=false: a search must wait for its jobs, since it uses their results")
        return settings

    def _studies(self, settings: "SearchSettings", space: "Space") -> "tuple[Path, list[OptunaStudy]]":
        """The folder of the sweep, and its studies, created or loaded from the storage."""
        from optuna.distributions import distribution_to_json

        from triptych.search.optuna_study import Identity, OptunaStudy
        from triptych.search.space import as_overrides, lowest, other_names

        self._redact = Redactor(OmegaConf.to_container(self._config))
        self._overrides: dict[str, list[str]] = {}
        parents, identities, directed = [], [], []
        searched = {key: distribution_to_json(distribution) for key, distribution in space.searched.items()}
        several = {key for key, values in space.listed.items() if len(values) > 1} - {"experiment", "model"}
        for combination in space.combinations():
            overrides = [*combination, *space.fixed]
            seed = [f"seed={settings.seeds[0]}"] if settings.seeds else []
            example = [*overrides, *as_overrides(lowest(space.searched)), *seed]
            config = self._loader.load_sweep_config(self._config, example)
            parts = [override for override in combination if override.partition("=")[0] in several]
            variants = [config]
            for change in other_names(space.searched):
                own = [*overrides, *as_overrides({**lowest(space.searched), **change}), *seed]
                variants.append(self._loader.load_sweep_config(self._config, own))
            name = " ".join([common_name(experiment_of(each.hydra) for each in variants), *parts])
            self._overrides[name] = overrides
            parents += [parent_of(each, overrides) for each in variants]
            shown = [self._redact(override) for override in overrides]
            direction = direction_of(settings, config)
            directed.append(replace(settings, direction=direction))
            identities.append(Identity(searched, settings.metric, direction, settings.seeds, digest_of(config), shown))
        folder = Path(os.path.commonpath(parents))
        path = folder / "optuna.journal" if settings.storage is None else Path(settings.storage)
        storage = open_storage(path)
        self._storage = path.absolute()
        locks, names = locks_of(path), zip(self._overrides, identities, directed, strict=True)
        return folder, [OptunaStudy(name, storage, locks, space.searched, own, of_own) for name, own, of_own in names]

    def _jobs_of(self, study: "OptunaStudy", number: int) -> list[Job]:
        """The runs of a trial, one per seed."""
        from triptych.search.space import as_overrides

        settings = study.settings
        params = as_overrides(study.trials[number].params)
        jobs = []
        for index, seed in enumerate(settings.seeds or [None]):
            pruning = {
                "_target_": "triptych.search.pruning.Pruning",
                "storage": quote(str(self._storage)),
                "study": quote(study.name),
                "trial": number,
                "metric": quote(settings.metric),
                "pruner": settings.pruner,
                "startup_trials": settings.startup_trials,
                "warmup_steps": settings.warmup_steps,
                "seed_index": index,
            }
            callback = "{" + ",".join(f"{key}:{value}" for key, value in pruning.items()) + "}"
            own = [*params, *([] if seed is None else [f"seed={seed}"]), PRUNING + callback]
            jobs += jobs_of(self._loader, self._config, [[*self._overrides[study.name], *own]])
        return jobs

    def _command(self, study: "OptunaStudy", seeds: Sequence[int]) -> str:
        """The command of the best trial of a study without the search. With the seeds of the trial, its runs are not
        trained again; they validate once more, test, and complete their records.

        Args:
            seeds: empty: that of the configuration.
        """
        from triptych.search.space import as_overrides

        assert study.best is not None
        folders = [word for word in train_command(self._config) if word.startswith("--config-dir=")]
        of_hydra = [o for o in self._config.hydra.overrides.hydra if not o.lstrip("+~").startswith(OF_SEARCH)]
        own = [o for o in self._overrides[study.name] if not (seeds and o.startswith("seed="))]
        own += [*as_overrides(study.best.params), *([f"seed={','.join(map(str, seeds))}"] if seeds else [])]
        return shlex.join(map(self._redact, ["triptych", "train", "-m", *folders, *of_hydra, *own]))

    def _fresh_seeds(self, study: "OptunaStudy") -> range:
        """Three seeds that no trial has."""
        typed = [int(o.partition("=")[2]) for o in self._overrides[study.name] if o.startswith("seed=")]
        last = max([self._config.seed, *typed, *(study.settings.seeds or ())])
        return range(last + 1, last + 4)

    def _run(self, study: "OptunaStudy", trials: "Sequence[Trial]") -> None:
        """Runs the jobs of some trials, seed after seed, and records the results."""
        jobs = [self._jobs_of(study, trial.number) for trial in trials]
        places = [override for override in self._overrides[study.name] if override.startswith("run_dir=")]
        for trial in trials:
            params = " ".join(f"{key}={value}" for key, value in trial.params.items())
            last = max(study.settings.n_trials, len(study.trials)) - 1
            print(f"trial {trial.number} (the last is {last}) of {study.name}: {params}", flush=True)
        for index in range(len(jobs[0])):
            due = [own[index] for own in jobs if all(job.is_done and not job.is_pruned for job in own[:index])]
            for job in due:
                wait_until_free(job.directory)  # a worker may have died while its job still runs
            if not due:
                break
            try:
                results = self._launcher.launch([[*job.overrides, *places] for job in due], self._launched)
            except SweepFailed as error:
                results = error.results
            failed = [result.status == JobStatus.FAILED for result in results]
            for job, has_failed in zip(due, failed, strict=True):
                if not job.is_done and not has_failed:
                    raise ConfigError(f"the launcher returned before this job was done: {job.directory}")
            has_begun = any(RunDirectory(job.directory).checkpoints.exists() for own in jobs for job in own)
            if any(failed) and not has_begun and not study.has_values:
                raise ConfigError(f"{study.name}: no job started to train, so the search stops; see their errors above")
            self._launched += len(due)
        for trial, own in zip(trials, jobs, strict=True):
            with storage_errors(self._storage):
                study.tell(trial, own)


def direction_of(settings: "SearchSettings", config: DictConfig) -> Literal["minimize", "maximize"]:
    """The direction in which the metric is optimized.

    Args:
        settings: of the search.
        config: of its jobs.
    """
    if settings.metric == "val/loss" and settings.direction in (None, "minimize"):
        return "minimize"  # for every task; its class would import torch
    from triptych.assembly.monitors import mode_of

    mode = mode_of(
        config, settings.metric, settings.direction, key="hydra.sweeper.metric", mode_key="hydra.sweeper.direction",
        low="minimize", high="maximize",
    )  # fmt: skip
    return "minimize" if mode == "minimize" else "maximize"
