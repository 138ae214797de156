"""What Hydra makes of a command line of ``triptych train``, in the process that asks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hydra import compose, initialize_config_module
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, open_dict

from triptych.config import TrainConfig


@contextmanager
def command_lines() -> Iterator[Callable[..., DictConfig]]:
    """A function of the arguments, in the place where the program asks Hydra what was given."""
    ConfigStore.instance().store(name="train_schema", node=TrainConfig)
    hydra = HydraConfig.instance()
    before, hydra.cfg = hydra.cfg, None

    def choose(*overrides: str) -> DictConfig:
        if not GlobalHydra().is_initialized():  # at first, and after a command in this process, which clears it
            initialize_config_module("triptych.conf", version_base="1.3")
        config = compose("train", overrides=["run_dir=unused", *overrides], return_hydra_config=True)
        hydra.set_config(config)
        with open_dict(config):
            del config.hydra
        return config

    try:
        yield choose
    finally:
        hydra.cfg = before
        GlobalHydra.instance().clear()
