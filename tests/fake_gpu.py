"""A stand-in for a GPU: a device with values, whose tensors refuse to be mixed with those of the CPU.

A tensor of it holds one of the CPU and computes with that. What it cannot show: kernels, their precision, their speed.
torch wants it registered before the first backward pass of a process, so the tests that use it have a process of their
own (see ``test_fake_gpu.py``)."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch.accelerators import Accelerator
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

NAME = "standin"
aten = torch.ops.aten


class Event:
    """A moment that has always come: the stand-in does at once what it is told."""

    def record(self) -> None: ...

    def synchronize(self) -> None:
        assert Device.active is not None
        Device.active.looks += 1


class Module(_DummyBackendModule):
    """What ``torch.get_device_module`` finds."""

    manual_seed = staticmethod(torch.manual_seed)

    @staticmethod
    def get_amp_supported_dtype() -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    Event = Event


_setup_privateuseone_for_python_backend(NAME, backend_module=Module())
HERE = torch.device(NAME, 0)

COPIES = (aten.copy_.default, aten._to_copy.default)
"""What may read a tensor of one device and write to the other."""

WAITS = (
    aten._local_scalar_dense.default, aten.equal.default, aten.nonzero.default, aten.masked_select.default,
    aten.unique_consecutive.default, aten._unique2.default, aten.repeat_interleave.Tensor,
)  # fmt: skip
"""What a program on the CPU has to wait for: values, or shapes that follow from them. So it does for copies from one
device to the other, unless it says that it need not (``non_blocking=True``)."""


class Mixed(RuntimeError):
    """Tensors of the CPU and of the device in one operation."""


class Missing(TypeError):
    """The device does not have this type of numbers."""


class StandIn(Tensor):
    """A tensor of the device."""

    values: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, values: Tensor) -> "StandIn":
        place = {"strides": values.stride(), "storage_offset": values.storage_offset(), "device": HERE}
        with torch.inference_mode(False):  # torch counts the versions of those that others are views of
            tensor: StandIn = Tensor._make_wrapper_subclass(cls, values.shape, dtype=values.dtype, **place)
        tensor.values = values
        return tensor

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        mode = Device.active
        assert mode is not None, "with on_fake_gpu():"
        return mode.run(func, args, kwargs or {})

    def tolist(self) -> Any:
        """The values, for which the CPU waits."""
        assert Device.active is not None
        Device.active.waits["tolist"] += 1
        return self.values.tolist()

    def __repr__(self) -> str:
        return f"{self.values!r} on {NAME}"


class Device(TorchDispatchMode):
    """Computes on the stand-in what is asked of it.

    Args:
        lacks: types of numbers that it does not have.

    Attributes:
        waits: how often the CPU had to wait for it, by what it asked.
        looks: how often the CPU waited for something that it had told the device to copy before.
    """

    active: "Device | None" = None

    def __init__(self, lacks: Sequence[torch.dtype] = ()) -> None:
        super().__init__()
        self.lacks, self.waits, self.looks = lacks, Counter[str](), 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """One operation."""
        if torch.is_inference_mode_enabled() and func._can_decompose():  # elsewhere torch has done so before
            with self:
                return func.decompose(*args, **kwargs)
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        ours = {id(x.values): x for x in tensors if isinstance(x, StandIn)}
        others = [x for x in tensors if not isinstance(x, StandIn) and x.ndim]  # a number goes along, as on a GPU
        device = kwargs.get("device")
        is_here = bool(ours) if device is None else torch.device(device).type == NAME
        if ours and others and func not in COPIES:
            raise Mixed(f"{func}: of the CPU are {', '.join(str(tuple(x.shape)) for x in others)}")
        is_masked = func is aten.index.Tensor and any(
            x.dtype == torch.bool for x in tree_leaves(args[1]) if x is not None
        )
        ends = {
            COPIES[0]: lambda: (isinstance(args[0], StandIn), isinstance(args[1], StandIn), args[2:] == (True,)),
            COPIES[1]: lambda: (is_here, bool(ours), kwargs.get("non_blocking", False)),
        }
        is_known = func is aten.repeat_interleave.Tensor and kwargs.get("output_size") is not None
        to, of, may_go_on = ends[func]() if func in ends else (False, False, False)
        is_copied = to != of and not may_go_on
        if is_copied or (ours and not is_known and (func in WAITS or is_masked)):
            self.waits[func.overloadpacket.__name__] += 1
        if device is not None and is_here:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        args, kwargs = tree_map_only(StandIn, lambda x: x.values, (args, kwargs))
        return tree_map(lambda x: ours.get(id(x), self._moved(x) if is_here else x), func(*args, **kwargs))

    def _moved(self, x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        if x.dtype in self.lacks:
            raise Missing(f"{NAME} has no {x.dtype}")
        return StandIn(x)


@contextmanager
def on_fake_gpu(lacks: Sequence[torch.dtype] = ()) -> Iterator[Device]:
    """Where tensors may be made on the stand-in, and computed with."""
    generator = torch.Generator
    with Device(lacks) as device:
        Device.active = device
        torch.Generator = lambda *_: generator()  # type: ignore[assignment,misc]
        torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(..., device=...) shows its copy
        try:
            yield device
        finally:
            torch._C._set_only_lift_cpu_tensors(False)
            torch.Generator, Device.active = generator, None  # type: ignore[misc]


class StandInAccelerator(Accelerator):
    """Lightning's view of it."""

    def setup_device(self, device: torch.device) -> None: ...

    def teardown(self) -> None: ...

    @staticmethod
    def parse_devices(devices: Any) -> list[int]:
        return [0]

    @staticmethod
    def get_parallel_devices(devices: Any) -> list[torch.device]:
        return [HERE]

    @staticmethod
    def auto_device_count() -> int:
        return 1

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def name() -> str:
        return NAME

    def get_device_stats(self, device: Any) -> dict[str, Any]:
        return {}


def strategy() -> SingleDeviceStrategy:
    """For ``L.Trainer(accelerator=StandInAccelerator(), strategy=strategy())``."""
    return SingleDeviceStrategy(device=HERE)


class Twins(dist.ProcessGroup):
    """Two ranks that have the same, on the stand-in: like NCCL, it refuses tensors of the CPU."""

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> None:
        """Both get what both have."""
        for gathered, given in zip(outputs, inputs, strict=True):
            for tensor in (given, *gathered):
                if not isinstance(tensor, StandIn):
                    raise Mixed(f"a tensor of the CPU is gathered: {tuple(tensor.shape)}")
            for tensor in gathered:
                tensor.copy_(given)

    def barrier(self, opts: Any = None) -> None:
        """Both are here."""


dist.Backend.register_backend("twins", lambda *_: Twins(0, 2), devices=[NAME])


@contextmanager
def twins() -> Iterator[None]:
    """Where ``torch.distributed`` knows two ranks, ours and its twin."""
    dist.init_process_group("twins", store=dist.HashStore(), rank=0, world_size=2)
    try:
        yield
    finally:
        dist.destroy_process_group()
