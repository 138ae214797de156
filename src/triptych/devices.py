"""Devices: what is known of common GPUs, and what there is here."""

import ctypes
import os
import platform
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from lightning.pytorch.plugins import DoublePrecision, HalfPrecision, MixedPrecision, Precision

from triptych.config import ConfigError, suggestion

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Device:
    """What a plan needs to know of a device.

    Attributes:
        name: of it.
        memory: bytes.
        is_gpu: whether kernels are a GPU's.
        half: peak of dense matrix products in bf16 (or float16), operations a second; None: not known.
        single: the same in float32, without TF32, as torch computes unless it is told otherwise.
        has_bf16: whether the hardware has bf16.
    """

    name: str
    memory: int
    is_gpu: bool = True
    half: float | None = None
    single: float | None = None
    has_bf16: bool = True


def _gpu(name: str, gib: float, half: float, single: float, *, has_bf16: bool = True) -> Device:
    return Device(name, int(gib * GIB), True, half * 1e12, single * 1e12, has_bf16)


# The data sheets of NVIDIA and AMD: TFLOP/s of dense products (they often print twice that, "with sparsity") that are
# summed in float32, SXM boards where nothing else is said. Memory: GiB that the driver reports.
GPUS = {
    "v100-16gb": _gpu("V100 16 GB", 16, 125, 15.7, has_bf16=False),
    "v100-32gb": _gpu("V100 32 GB", 32, 125, 15.7, has_bf16=False),
    "t4": _gpu("T4 16 GB", 15, 65, 8.1, has_bf16=False),
    "rtx-3090": _gpu("RTX 3090 24 GB", 24, 71, 35.6),
    "rtx-4090": _gpu("RTX 4090 24 GB", 24, 165, 82.6),
    "rtx-a6000": _gpu("RTX A6000 48 GB", 48, 155, 38.7),
    "a10": _gpu("A10 24 GB", 22, 125, 31.2),
    "a100-40gb": _gpu("A100 40 GB", 39.5, 312, 19.5),
    "a100-80gb": _gpu("A100 80 GB", 79.3, 312, 19.5),
    "l4": _gpu("L4 24 GB", 22, 121, 30.3),
    "l40s": _gpu("L40S 48 GB", 44, 362, 91.6),
    "h100": _gpu("H100 80 GB", 79.2, 989, 67),
    "h100-pcie": _gpu("H100 PCIe 80 GB", 79.2, 756, 51),
    "h200": _gpu("H200 141 GB", 139.8, 989, 67),
    "b200": _gpu("B200 180 GB", 178, 2250, 75),
    "mi250x": _gpu("MI250X, one of its two dies, 64 GB", 64, 191, 23.9),
    "mi300x": _gpu("MI300X 192 GB", 191.5, 1307, 163),
}


def gpu_named(name: str) -> Device:
    """A GPU of the table.

    Args:
        name: its key.

    Raises:
        ConfigError: none of them.
    """
    if name not in GPUS:
        raise ConfigError(f"device={name}: not known{suggestion(name, list(GPUS))}")
    return GPUS[name]


def device_here(accelerator: str) -> Device:
    """What a training on this machine would use.

    Args:
        accelerator: ``trainer.accelerator``.
    """
    if accelerator != "cpu" and torch.cuda.is_available():
        return Device(hardware(torch.device("cuda")), torch.cuda.get_device_properties(0).total_memory)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Device(hardware(torch.device("cpu")), memory, is_gpu=False)


def device_for(accelerator: str) -> torch.device:
    """The device that a model which is trained already is used on.

    Args:
        accelerator: ``trainer.accelerator``: auto (the GPU if there is one, else the CPU), cpu, gpu, cuda or mps.

    Raises:
        ConfigError: a GPU where there is none, or none of these.
    """
    choices = ["auto", "cpu", "gpu", "cuda", "mps"]
    if accelerator not in choices:
        raise ConfigError(f"trainer.accelerator={accelerator}{suggestion(accelerator, choices)}")
    if accelerator != "cpu" and accelerator != "mps" and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    if accelerator in ("gpu", "mps") and torch.backends.mps.is_available():
        return torch.device("mps")
    if accelerator in ("auto", "cpu"):
        return torch.device("cpu")
    raise ConfigError(f"trainer.accelerator={accelerator}: there is none here; expected auto or cpu")


def arithmetic(precision: str, device: torch.device) -> Precision:
    """What Lightning's trainer computes with: its ``convert_module`` gives a network the type of its weights, and the
    network computes within its ``forward_context``.

    Args:
        precision: ``trainer.precision``.
        device: of the network.
    """
    number, _, kind = precision.partition("-")
    if number == "64":
        return DoublePrecision()
    if number not in ("16", "bf16"):
        return Precision()
    if kind == "true":
        return HalfPrecision("16-true" if number == "16" else "bf16-true")
    return MixedPrecision("16-mixed" if number == "16" else "bf16-mixed", device.type)


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


def peak_memory(device: torch.device) -> int:
    """The most bytes that this process has had: on a GPU those that torch allocated there, else resident ones."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak  # there in bytes, elsewhere in KiB


def hardware(device: torch.device) -> str:
    """The name of the GPU, or of the CPU with its number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return f"{names[0] if names else platform.machine()}, {torch.get_num_threads()} threads"
