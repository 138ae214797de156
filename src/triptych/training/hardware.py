"""The device of a training: its memory and its name."""

import ctypes
import platform
import resource
import sys
from pathlib import Path

import torch

LARGEST_KEPT = 32 * 2**20
"""Bytes of the largest block that is kept, the most that glibc takes. Kept ones break into pieces: a process that
evaluated a language model of 33,000 words in blocks of 136 MB, and kept them, grew by 3 GB a minute."""


def keep_freed_memory() -> None:
    """Lets this process keep the memory that it frees. By default glibc hands each large block back to the kernel,
    which clears it again before the next use: on CPUs a training step of a small model spends a fifth of its time
    there."""
    if platform.libc_ver()[0] == "glibc":
        m_trim_threshold, m_mmap_threshold = -1, -3  # of malloc.h
        libc = ctypes.CDLL(None)
        libc.mallopt(m_mmap_threshold, LARGEST_KEPT)
        libc.mallopt(m_trim_threshold, 2**31 - 1)


def peak_memory(device: "torch.device") -> int:
    """The most bytes that this process has had: on a GPU those that torch allocated there, else resident ones."""
    import torch

    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak  # there in bytes, elsewhere in KiB


def hardware(device: "torch.device") -> str:
    """The name of the GPU, or of the CPU with its number of threads."""
    import torch

    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return f"{names[0] if names else platform.machine()}, {torch.get_num_threads()} threads"
