"""The command that started this process, for the record of a run."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from triptych.launch.sweep import experiment_of, own_choices


@dataclass(frozen=True, slots=True)
class Command:
    """A command line, parsed by Hydra.

    Attributes:
        overrides: overrides as typed.
        own_choices: arguments with the user's config folder; see ``triptych.launch.sweep.own_choices``.
        experiment: name of the run; see ``experiment_of``.
        data: choice of the config group ``data``.
        launcher: choice of ``hydra/launcher``.
        is_job: whether another launcher than Triptych's called this process.
    """

    overrides: Sequence[str]
    own_choices: Sequence[str]
    experiment: str
    data: str
    launcher: str
    is_job: bool

    def __str__(self) -> str:
        return shlex.join(["triptych", "train", *self.own_choices, *self.overrides])


def this_command() -> Command:
    """The command of this process."""
    hydra = HydraConfig.get()
    return Command(
        overrides=list(hydra.overrides.task),
        own_choices=own_choices(hydra),
        experiment=experiment_of(hydra),
        data=hydra.runtime.choices["data"],
        launcher=hydra.runtime.choices["hydra/launcher"],
        is_job=not OmegaConf.is_missing(hydra.job, "num"),
    )
