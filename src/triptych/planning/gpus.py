"""Devices: what is known of common GPUs, and what there is here."""

import os
from dataclasses import dataclass, replace

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
    """A GPU of the table."""
    if name not in GPUS:
        raise ConfigError(f"device={name}: not known{suggestion(name, list(GPUS))}")
    return GPUS[name]


def gpu_called(name: str) -> Device | None:
    """A GPU of the table by the name that its driver gives it, such as NVIDIA A100-SXM4-80GB; None: it is not there."""
    words = set(name.lower().replace("-", " ").split())
    known = [key for key in GPUS if set(key.split("-")) <= words]
    return GPUS[max(known, key=len)] if known else None


def device_here(accelerator: str) -> Device:
    """What a training on this machine would use.

    Args:
        accelerator: ``trainer.accelerator``.
    """
    import torch  # here, since to know the names of devices nothing needs it

    from triptych.training.hardware import hardware

    if accelerator != "cpu" and torch.cuda.is_available():
        name, memory = hardware(torch.device("cuda")), torch.cuda.get_device_properties(0).total_memory
        known = gpu_called(name)
        return Device(name, memory) if known is None else replace(known, name=name, memory=memory)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Device(hardware(torch.device("cpu")), memory, is_gpu=False)
