"""Set-up of the processes that run tests: run-time checks of shapes and types, seeds, threads; and what tests share."""

import gc
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest
import torch
from omegaconf import DictConfig
from torch import Tensor

import shapes

gc.disable()  # until all tests are imported; each search for garbage would look at all of them
shapes.install(["triptych.nn", "triptych.models", "triptych.models.generation"])

from browser import Browser  # noqa: E402
from command_line import command_lines  # noqa: E402

torch.set_num_threads(1)  # the tests themselves run in parallel
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # as at a terminal, wherever the tests were started


class TorchRandom:
    """PyTorch's generator for hypothesis, which seeds it before each example."""

    def seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def getstate(self) -> Tensor:
        return torch.get_rng_state()

    def setstate(self, state: Tensor) -> None:
        torch.set_rng_state(state)


torch_random = TorchRandom()  # hypothesis keeps a weak reference only
hypothesis.register_random(torch_random)
hypothesis.settings.register_profile("small", deadline=None, max_examples=10, derandomize=True)
hypothesis.settings.load_profile("small")


@pytest.fixture(autouse=True, scope="session")
def _commands(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Sets the environment of the processes that tests start."""
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder  # shared by all workers
    os.environ["TRIPTYCH_CACHE"] = str(folder / "cache")
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # a waiting thread would keep a core from the other processes
    os.environ["PRELOADED"] = str(folder / "preloaded")
    path = [str(Path(__file__).with_name("quick_start")), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(path)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A window, the same for all tests of a process; ``needs_browser`` marks them."""
    with Browser(tmp_path_factory.mktemp("browser")) as window:
        yield window


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
    shapes.calls.clear()


@pytest.fixture
def chosen() -> Iterator[Callable[..., DictConfig]]:
    """Composes the configuration of a ``train`` command line and sets it as Hydra's."""
    with command_lines() as choose:
        yield choose


def pytest_collection_finish() -> None:
    """Freezes what is imported: garbage collection skips it and takes a tenth of the time."""
    gc.freeze()
    gc.enable()
