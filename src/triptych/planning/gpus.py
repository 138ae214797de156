"""Common GPUs, and the device of this computer."""

import os
from dataclasses import dataclass, replace

from triptych.config import ConfigError, suggestion

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Device:
    """The properties of a device that a plan needs.

    Attributes:
        name: name of the device.
        memory: memory in bytes.
        is_gpu: whether it is a GPU.
        half: peak FLOP/s of dense matrix products in bf16 (or float16); None: unknown.
        single: the same in float32 without TF32, the default of torch.
        has_bf16: whether the hardware supports bf16.
    """

    name: str
    memory: int
    is_gpu: bool = True
    half: float | None = None
    single: float | None = None
    has_bf16: bool = True


def _gpu(name: str, gib: float, half: float, single: float, *, has_bf16: bool = True) -> Device:
    return Device(name, int(gib * GIB), True, half * 1e12, single * 1e12, has_bf16)


# From the data sheets of NVIDIA and AMD: TFLOP/s of dense products (they often list twice that, "with sparsity") with
# float32 accumulation, for SXM boards unless stated otherwise. Memory: GiB reported by the driver.
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
    """The GPU with this key."""
    if name not in GPUS:
        raise ConfigError(f"device={name}: unknown{suggestion(name, list(GPUS))}")
    return GPUS[name]


def gpu_called(name: str) -> Device | None:
    """The GPU with this driver name, such as NVIDIA A100-SXM4-80GB; None: unknown."""
    words = set(name.lower().replace("-", " ").split())
    known = [key for key in GPUS if set(key.split("-")) <= words]
    return GPUS[max(known, key=len)] if known else None


def device_here(accelerator: str) -> Device:
    """The device that a run on this computer would use, for a ``trainer.accelerator``."""
    import torch  # here, because the names of devices do not need it

    from triptych.training.hardware import hardware

    if accelerator != "cpu" and torch.cuda.is_available():
        name, memory = hardware(torch.device("cuda")), torch.cuda.get_device_properties(0).total_memory
        known = gpu_called(name)
        return Device(name, memory) if known is None else replace(known, name=name, memory=memory)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Device(hardware(torch.device("cpu")), memory, is_gpu=False)
