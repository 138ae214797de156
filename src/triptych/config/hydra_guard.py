"""Checks the objects that Hydra itself builds, against an allow list.

``build`` guards Triptych's part of the configuration. Hydra builds its callbacks, launcher, sweeper and logging before
Triptych's code runs, from nodes that any file may change. Hydra's own list of blocked classes cannot be complete:
``torch.load`` is not on it.

Only this module uses Hydra's internals: ``hydra.main`` has no hook between composing and building.
"""
# Takes a DictConfig: it checks keys and classes that any file may name.

import copy
import os
import re
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from functools import cache
from typing import cast

from hydra import version
from hydra._internal.config_loader_impl import ConfigLoaderImpl, get_overrides_dirname
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path, get_args_parser
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.types import RunMode, TaskFunction
from omegaconf import DictConfig, OmegaConf

from triptych.config import ConfigError, as_dict, class_at
from triptych.config.diagnose import describe_parts
from triptych.config.schema import DoctorConfig, EvaluateConfig, PredictConfig, TrainConfig

BUILT = ("callbacks", "launcher", "sweeper", "hydra_logging", "job_logging")
"""The nodes from which Hydra builds objects."""

ALLOWED = (
    "hydra._internal.core_plugins",
    "hydra_plugins.triptych_local_launcher",
    "hydra_plugins.triptych_optuna_sweeper",
    "hydra_plugins.triptych_slurm_launcher",
    "logging.FileHandler",
    "logging.Formatter",
    "logging.NullHandler",
    "logging.StreamHandler",
)
"""The classes that Hydra may build, in addition to the environment variable TRIPTYCH_ALLOW."""


def register_schemas(command: str, arguments: Sequence[str]) -> None:
    """Registers the schemas with Hydra, and the text about parts in its help."""
    is_help = bool({"-h", "--help"} & {*arguments})  # Hydra resolves its help in every run
    OmegaConf.register_new_resolver("parts", lambda: describe_parts(arguments) if is_help else "", replace=True)
    store = ConfigStore.instance()
    store.store(name="train_schema", node=DoctorConfig if command == "doctor" else TrainConfig)
    store.store(name="evaluate_schema", node=EvaluateConfig)
    store.store(name="predict_schema", node=PredictConfig)


def run(config_name: str, arguments: Sequence[str], task_function: TaskFunction) -> None:
    """Like ``hydra.main``, but the loader checks what Hydra would build, and errors are exceptions.

    Args:
        config_name: name of a file in conf/.
        task_function: called with the configuration.
    """
    parser, options, hydra = read_arguments(arguments)
    GlobalHydra.instance().clear()  # a forked rank has that of its parent
    GlobalHydra.instance().initialize(hydra)
    try:
        kinds = ("cfg", "info", "shell_completion", "multirun", "run")
        chosen = [f"--{kind.replace('_', '-')}" for kind in kinds if getattr(options, kind)]
        if options.help:
            hydra.app_help(config_name, parser, options)
        elif len(chosen) > 1:
            raise ConfigError(f"{' '.join(chosen)}: these options exclude each other; expected one of them")
        elif options.cfg:
            hydra.show_cfg(config_name, options.overrides, options.cfg, options.package, options.resolve)
        elif options.info:
            hydra.show_info(options.info, config_name, options.overrides)
        elif options.shell_completion:
            hydra.shell_completion(config_name, options.overrides)
        elif options.multirun:
            hydra.multirun(config_name, task_function, [*options.overrides, "hydra.mode=MULTIRUN"])
        else:
            hydra.run(config_name, task_function, [*options.overrides, "hydra.mode=RUN"])
    finally:
        GlobalHydra.instance().clear()
        composed.clear()  # the files may have changed at the next command


def read_arguments(arguments: Sequence[str]) -> tuple[ArgumentParser, Namespace, Hydra]:
    """Hydra's parser, the parsed options, and a Hydra object with ``GuardedLoader`` and the user's config folder."""
    version.setbase("1.3")
    parser = get_args_parser()
    options = parser.parse_intermixed_args(list(arguments))
    search_path = create_config_search_path("pkg://triptych.conf")
    if options.config_dir is not None:
        folder, last = f"file://{os.path.abspath(options.config_dir)}", SearchPathQuery(provider="schema")
        search_path.prepend(provider="command-line", path=folder, anchor=last)
    return parser, options, Hydra("triptych", GuardedLoader(search_path))


def compose_ahead(config_name: str, arguments: Sequence[str]) -> None:
    """Composes the files that ``run`` needs for these arguments, and keeps them for forked processes."""
    if not composed:  # the jobs of a sweep have the same command
        register_schemas(config_name, arguments)
    _, options, hydra = read_arguments(arguments)
    loader = cast(GuardedLoader, hydra.config_loader)
    loader.compose_files(config_name, [*options.overrides, "hydra.mode=RUN"], RunMode.RUN)


@cache
def parse(override: str) -> Override:
    """Parses an override. (Hydra takes 3 ms for it.)"""
    [parsed] = OverridesParser.create().parse_overrides([override])
    return parsed


composed: dict[tuple[str, ...], DictConfig] = {}
"""Composed files, by the overrides that choose them: composing takes 0.2 s, and the jobs of a sweep differ in values
more often than in files."""


class GuardedLoader(ConfigLoaderImpl):
    """Hydra's loader with ``check_hydra``."""

    def load_configuration(
        self,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        from_shell: bool = True,
        validate_sweep_overrides: bool = True,
    ) -> DictConfig:
        """Called by Hydra. Configurations that differ only in values are composed once."""
        files, values = self.compose_files(config_name, overrides, run_mode, from_shell, validate_sweep_overrides)
        config = copy.deepcopy(files)
        self._apply_overrides_to_config(values, config)
        own = [override for override in map(parse, overrides) if not override.is_hydra_override()]
        job = config.hydra.job
        config.hydra.overrides.task = [override.input_line for override in own]
        job.override_dirname = get_overrides_dirname(own, **job.config.override_dirname)
        check_hydra(config, overrides)
        return config

    def compose_files(
        self,
        config_name: str | None,
        overrides: Sequence[str],
        run_mode: RunMode,
        from_shell: bool = True,
        validate_sweep_overrides: bool = True,
    ) -> tuple[DictConfig, list[Override]]:
        """The configuration of the chosen files (do not modify it), and the overrides that set values."""
        parsed = [parse(override) for override in overrides]
        values = [] if run_mode is RunMode.MULTIRUN else [override for override in parsed if self._sets_value(override)]
        if any(override.key_or_group == "hydra.searchpath" for override in parsed):  # may add groups
            values = []
        choices = [str(override.input_line) for override in parsed if override not in values]
        key = (*map(str, self.config_search_path.get_path()), str(config_name), str(run_mode), *choices)
        if key not in composed:
            composed[key] = super().load_configuration(
                config_name, choices, run_mode, from_shell, validate_sweep_overrides
            )
        return composed[key], values

    def _sets_value(self, override: Override) -> bool:
        """Whether an override only sets a value: it chooses no file and is not Hydra's."""
        is_choice = self.repository.group_exists(override.key_or_group) and not isinstance(override.value(), dict)
        is_plain = override.package is None and not override.is_sweep_override()
        return is_plain and not is_choice and not override.is_hydra_override()

    def get_group_options(
        self,
        group_name: str,
        results_filter: ObjectType | None = ObjectType.CONFIG,
        config_name: str | None = None,
        overrides: list[str] | None = None,
    ) -> list[str]:
        """Called by Hydra once per group for its help; Hydra's own method copies its whole store each time."""
        if overrides:
            return super().get_group_options(group_name, results_filter, config_name, overrides)
        return self.repository.get_group_options(group_name, results_filter)


def check_hydra(config: DictConfig, overrides: Sequence[str]) -> None:
    """Raises an error if Hydra would build a class that is not allowed, or change the environment.

    Nodes are checked unresolved: the value of an interpolation may change before Hydra uses it.

    Args:
        config: configuration that includes Hydra's part.
    """
    hydra = as_dict(config, resolve=False).get("hydra")
    job = hydra.get("job") if isinstance(hydra, dict) else None
    if not isinstance(hydra, dict) or not isinstance(job, dict):
        raise ConfigError("hydra: expected Hydra's settings")
    run = hydra.get("run")
    if isinstance(run, dict) and run.get("dir") not in ("${run_dir}", "."):
        raise ConfigError(f"hydra.run.dir={run.get('dir')}: not supported; expected run_dir=FOLDER")
    if job.get("chdir"):
        raise ConfigError("hydra.job.chdir: not supported; a run writes to run_dir and keeps its working directory")
    if job.get("env_set"):
        raise ConfigError("hydra.job.env_set: not allowed. Set environment variables before the command")
    for name in BUILT:
        check_node(f"hydra.{name}", hydra.get(name))
    if isinstance(hydra.get("launcher"), dict):
        check_shell(hydra["launcher"], overrides)


def check_shell(launcher: dict[str, object], overrides: Sequence[str]) -> None:
    """Raises an error for launcher options that a shell would execute, unless they are on the command line."""
    typed = {override.partition("=")[0].lstrip("+") for override in overrides}
    options = launcher.get("additional_parameters") or {}
    keys = [f"additional_parameters.{name}" for name in options] if isinstance(options, dict) else []
    keys += ["setup"] if launcher.get("setup") else []
    allowed = [entry.strip(" .") for entry in os.environ.get("TRIPTYCH_ALLOW", "").split(",")]
    for key in keys:
        if f"hydra.launcher.{key}" not in typed and "hydra.launcher" not in allowed:
            raise ConfigError(
                f"hydra.launcher.{key}: not allowed in a file, because a shell executes it. Set it on the command "
                "line, or set the environment variable TRIPTYCH_ALLOW=hydra.launcher"
            )


def check_node(key: str, node: object) -> None:
    """Raises an error for a class that is not allowed, or text that could become one."""
    if isinstance(node, dict):
        for name, value in node.items():
            if name in ("_target_", "class", "()"):
                class_at(f"{key}.{name}", str(value), ALLOWED)
            else:
                check_node(f"{key}.{name}", value)
    elif isinstance(node, list):
        for i, value in enumerate(node):
            check_node(f"{key}.{i}", value)
    elif isinstance(node, str):
        is_file = re.fullmatch(r"\$\{hydra\.runtime\.output_dir\}/([^${}]|\$\{hydra\.\w+\.\w+\})*", node)
        of_submitit = node in ("${hydra.sweep.dir}/.submitit/%j", "${hydra.job.name}")
        if "${" in node and not is_file and not of_submitit:
            raise ConfigError(f"{key}={node}: not allowed; expected a value, or ${{hydra.runtime.output_dir}}/FILE")
        if "://" in node and node not in ("ext://sys.stdout", "ext://sys.stderr"):
            raise ConfigError(f"{key}={node}: not allowed; expected ext://sys.stdout or ext://sys.stderr")
