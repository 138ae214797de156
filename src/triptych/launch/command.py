"""The command that started this process, as far as the record of a run tells it."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from triptych.launch.sweep import experiment_of, own_choices


@dataclass(frozen=True, slots=True)
class Command:
    """A command line, read by Hydra.

    Attributes:
        overrides: key=value, as they were given.
        own_choices: where it finds the user's own choices; see ``triptych.launch.sweep.own_choices``.
        experiment: the name of what is run; see ``experiment_of``.
        data: the choice of the config group ``data``.
        launcher: the choice of ``hydra/launcher``.
        is_job: whether a launcher that is not ours has called this process.
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
