"""The command that started this process, as far as the record of a run tells it."""

from collections.abc import Sequence
from dataclasses import dataclass

from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from triptych.launch.sweep import experiment_of


@dataclass(frozen=True, slots=True)
class Command:
    """A command line, read by Hydra.

    Attributes:
        overrides: key=value, as they were given.
        experiment: the name of what is run; see ``experiment_of``.
        data: the choice of the config group ``data``.
        launcher: the choice of ``hydra/launcher``.
        is_job: whether a launcher that is not ours has called this process.
    """

    overrides: Sequence[str]
    experiment: str
    data: str
    launcher: str
    is_job: bool


def this_command() -> Command:
    """The command of this process."""
    hydra = HydraConfig.get()
    return Command(
        overrides=list(hydra.overrides.task),
        experiment=experiment_of(hydra),
        data=hydra.runtime.choices["data"],
        launcher=hydra.runtime.choices["hydra/launcher"],
        is_job=not OmegaConf.is_missing(hydra.job, "num"),
    )
