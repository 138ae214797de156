"""The compute device: its choice, memory and name.

Tested by tests/gpu/test_trainings.py.
"""

import ctypes
import platform
import resource
import sys
from pathlib import Path

import torch

from triptych.config import ConfigError, counted, one_of
from triptych.config.schema import ACCELERATORS

LARGEST_KEPT = 32 * 2**20
"""Maximum size in bytes of a freed block that is kept, the largest value that glibc accepts.

Kept blocks fragment: a process that evaluated a language model of 33,000 words in blocks of 136 MB, and kept them, grew
by 3 GB per minute."""


def keep_freed_memory() -> None:
    """Makes this process keep the memory that it frees.

    By default, glibc returns each large block to the kernel, which clears it before the next use: on CPUs, this takes a
    fifth of the time of a training step of a small model."""
    if platform.libc_ver()[0] == "glibc":
        m_trim_threshold, m_mmap_threshold = -1, -3  # of malloc.h
        libc = ctypes.CDLL(None)
        libc.mallopt(m_mmap_threshold, LARGEST_KEPT)
        libc.mallopt(m_trim_threshold, 2**31 - 1)


def device_for(accelerator: str) -> torch.device:
    """Returns the device for using a trained model.

    Args:
        accelerator: ``trainer.accelerator``: auto (the GPU if there is one, else the CPU), cpu, gpu, cuda or mps.

    Raises:
        ConfigError: if the accelerator is unknown or not available.
    """
    if accelerator not in ACCELERATORS:
        raise ConfigError(f"trainer.accelerator={accelerator}: {one_of(accelerator, ACCELERATORS)}")
    if accelerator != "cpu" and accelerator != "mps" and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    if accelerator in ("gpu", "mps") and torch.backends.mps.is_available():
        return torch.device("mps")
    if accelerator in ("auto", "cpu"):
        return torch.device("cpu")
    raise ConfigError(f"trainer.accelerator={accelerator}: there is none here; expected auto or cpu")


def is_on_cpu(accelerator: str) -> bool:
    """Returns whether ``trainer.accelerator`` selects the CPU on this host."""
    has_other = torch.cuda.is_available() or torch.backends.mps.is_available()
    return accelerator == "cpu" or (accelerator == "auto" and not has_other)


def peak_memory(device: torch.device) -> int:
    """Returns the peak memory of this process in bytes: allocated by PyTorch on a GPU, else resident."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak  # bytes on macOS, KiB elsewhere


def hardware(device: torch.device) -> str:
    """Returns the name of the GPU, or of the CPU with its number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return f"{names[0] if names else platform.machine()}, {counted(torch.get_num_threads(), 'thread')}"
