"""The device that these tests are about: ``TRIPTYCH_DEVICE``; cuda, unless it says cpu, where they show that they
run."""

import os

import pytest
import torch


@pytest.fixture(scope="session")
def device() -> torch.device:
    """A GPU, or the CPU in its place."""
    return torch.device(os.environ.get("TRIPTYCH_DEVICE", "cuda"))


@pytest.fixture(scope="session")
def on_device(device: torch.device) -> list[str]:
    """The overrides that put a training there."""
    return ["trainer.accelerator=cpu" if device.type == "cpu" else "trainer.accelerator=gpu"]
