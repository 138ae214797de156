"""Configurations, composed in the process that asks: by the loader of the program, which composes files once and sets
values in a copy (a hundredth of a second, where Hydra alone takes two tenths)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hydra import compose
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, open_dict

from triptych.assembly.choose_parts import choose_parts, complete_config
from triptych.config.hydra_guard import read_arguments, register_schemas
from triptych.data import CorpusInfo, Tokenizer


def composed(*overrides: str, command: str = "train") -> DictConfig:
    """The configuration of a command, without Hydra's part.

    Args:
        overrides: of the command line.
        command: a file of conf/: train, evaluate or predict.
    """
    register_schemas(command, [])
    where = ["run_dir=unused"] if command == "train" else []
    loader = read_arguments([])[2].config_loader
    return without_hydra(loader.load_configuration(command, [*where, *overrides], RunMode.RUN, from_shell=False))


@contextmanager
def command_lines() -> Iterator[Callable[..., DictConfig]]:
    """A function of the arguments of ``triptych train``, in the place where the program asks Hydra what was given."""
    register_schemas("train", [])
    hydra = HydraConfig.instance()
    before, hydra.cfg = hydra.cfg, None

    def choose(*overrides: str) -> DictConfig:
        if not GlobalHydra().is_initialized():  # at first, and after a command in this process, which clears it
            GlobalHydra.instance().initialize(read_arguments([])[2])
        config = compose("train", overrides=["run_dir=unused", *overrides], return_hydra_config=True)
        hydra.set_config(config)
        return without_hydra(config)

    try:
        yield choose
    finally:
        hydra.cfg = before
        GlobalHydra.instance().clear()


def without_hydra(config: DictConfig) -> DictConfig:
    """The same configuration, without Hydra's part."""
    with open_dict(config):
        del config.hydra
    return config


def with_parts(config: DictConfig) -> DictConfig:
    """The same configuration, with the parts of its network."""
    choose_parts(config)
    return config


def complete(config: DictConfig, tokenizer: Tokenizer, corpus: CorpusInfo) -> None:
    """Fills in all that is null of the network, as a plan has it."""
    choose_parts(config)
    complete_config(config, tokenizer.vocab_size, corpus)
