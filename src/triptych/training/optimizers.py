"""Optimizers with weight decay groups."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from importlib.util import find_spec
from typing import Any, cast

import torch
from torch import nn
from torch._ops import OpOverload
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from triptych.config import ConfigError
from triptych.nn import Block


def decay_groups(module: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Returns two parameter groups: matrices decay; embeddings, biases, norms and position embeddings do not.

    Args:
        module: module with the parameters; a tied matrix counts as an embedding.
        weight_decay: weight decay of the first group.
    """
    tables = {id(m.weight) for m in module.modules() if isinstance(m, nn.Embedding)}
    matrices = {id(m.weight) for m in module.modules() if isinstance(m, nn.Linear)} - tables
    parameters = [p for p in module.parameters() if p.requires_grad]
    return [
        {"params": [p for p in parameters if id(p) in matrices], "weight_decay": weight_decay},
        {"params": [p for p in parameters if id(p) not in matrices], "weight_decay": 0.0},
    ]


@dataclass(frozen=True, slots=True)
class _OptimizerBase:
    """The settings that all optimizers share.

    Attributes:
        lr: peak learning rate.
        weight_decay: weight decay of the matrices (see ``decay_groups``).
    """

    lr: float
    weight_decay: float

    def __post_init__(self) -> None:
        for name, value in ((field.name, getattr(self, field.name)) for field in fields(self)):
            if name == "lr" and not value > 0:
                raise ValueError(f"optimizer.{name}={value}: expected more than 0")
            if name in ("beta1", "beta2", "momentum") and not 0 <= value < 1:
                raise ValueError(f"optimizer.{name}={value}: expected at least 0 and less than 1")
            if name in ("weight_decay", "eps", "eps2") and not value >= 0:
                raise ValueError(f"optimizer.{name}={value}: expected 0 or more")


@dataclass(frozen=True, slots=True)
class AdamW(_OptimizerBase):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019).

    Attributes:
        beta1: decay of the mean of the gradients.
        beta2: decay of the mean of their squares.
        eps: added to the root of the mean of squares.
        fused: whether one kernel updates all parameters; not with float16, which scales its gradients.
    """

    beta1: float
    beta2: float
    eps: float
    fused: bool = True

    def __call__(self, module: nn.Module) -> Optimizer:
        """Makes the optimizer of the parameters of a module."""
        groups = decay_groups(module, self.weight_decay)
        fused = self.fused and not any(p.is_meta for p in module.parameters())  # the meta device has no such kernel
        return torch.optim.AdamW(groups, lr=self.lr, betas=(self.beta1, self.beta2), eps=self.eps, fused=fused)


@dataclass(frozen=True, slots=True)
class Muon(_OptimizerBase):
    """Orthogonalized momentum for the matrices of the blocks, and AdamW for all other weights (Jordan et al. 2024).

    The others are embeddings, head, norms, biases and position embeddings. With G the gradient of a matrix W of the
    shape m x n:

    B <- momentum B + (1 - momentum) G, N = momentum B + (1 - momentum) G, W <- (1 - lr weight_decay) W -
    0.2 sqrt(max(m, n)) lr O, where O is about U V' of N = U S V' (five Newton-Schulz iterations, in bfloat16).

    The factor before lr makes a Muon step as large as an AdamW step, so that both share the learning rate and the
    weight decay (Liu et al. 2025, equation 4).

    Attributes:
        momentum: decay of the mean of the gradients of a matrix.
        beta1: decay of the mean of the gradients in AdamW.
        beta2: decay of the mean of their squares in AdamW.
        eps: added to the root of the mean of squares in AdamW.
    """

    momentum: float
    beta1: float
    beta2: float
    eps: float

    def __call__(self, module: nn.Module) -> Optimizer:
        """Makes the optimizer of the parameters of a module."""
        blocks = [block for block in module.modules() if isinstance(block, Block)]
        inner = {id(m.weight) for block in blocks for m in block.modules() if isinstance(m, nn.Linear)}
        matrices, rest = decay_groups(module, self.weight_decay)
        parameters = cast(list[nn.Parameter], matrices["params"])
        of_blocks = [{**matrices, "params": [p for p in parameters if id(p) in inner]}]
        muon = torch.optim.Muon(of_blocks, lr=self.lr, momentum=self.momentum, adjust_lr_fn="match_rms_adamw")
        others = [{**matrices, "params": [p for p in parameters if id(p) not in inner]}, rest]
        adamw = torch.optim.AdamW(others, lr=self.lr, betas=(self.beta1, self.beta2), eps=self.eps)
        return CombinedOptimizer(muon, adamw)


class CombinedOptimizer(Optimizer):
    """Several optimizers of disjoint parameters as one: one list of groups, one state, one step.

    Args:
        parts: the optimizers, before their first step.
    """

    def __init__(self, *parts: Optimizer) -> None:
        self._parts = parts
        self._sizes = [len(part.param_groups) for part in parts]
        super().__init__([group for part in parts for group in part.param_groups], {})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Performs a step of each optimizer, with the shared groups and state, which a checkpoint may have restored."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        groups = iter(self.param_groups)
        for part, size in zip(self._parts, self._sizes, strict=True):
            part.param_groups, part.state = [next(groups) for _ in range(size)], self.state
            part.step()
        return loss


@dataclass(frozen=True, slots=True)
class ScheduleFreeAdamW(_OptimizerBase):
    """AdamW with gradients at a point between the weights z and their average x, instead of a schedule.

    See Defazio et al. 2024; it needs the library ``schedulefree``, an optional dependency.

    y = (1 - beta1) z + beta1 x, z <- z - lr (g(y) / (sqrt(v) + eps) + weight_decay y), x <- (1 - c) x + c z, where v is
    AdamW's mean of squares, bias-corrected as there, and c is the fraction of this step in a sum over all steps so far:
    of the square of the largest learning rate until each step.

    y is trained; x is validated, tested and saved (``triptych.training.schedule_free``).

    Attributes:
        beta1: fraction of the average in the weights at which gradients are computed.
        beta2: decay of the mean of the squares of the gradients.
        eps: added to the root of this mean.
    """

    beta1: float
    beta2: float
    eps: float

    def __post_init__(self) -> None:
        _OptimizerBase.__post_init__(self)
        if self.beta1 == 0:
            raise ValueError("optimizer.beta1=0: the average could not be found again; expected more than 0")

    def __call__(self, module: nn.Module) -> Optimizer:
        """Makes the optimizer of the parameters of a module.

        Raises:
            ConfigError: if the library is not installed.
        """
        check_schedule_free()
        from triptych.training.schedule_free import ScheduleFree

        groups = decay_groups(module, self.weight_decay)
        optimizer = ScheduleFree(groups, lr=self.lr, betas=(self.beta1, self.beta2), eps=self.eps)
        optimizer.train()
        return optimizer


def check_schedule_free() -> None:
    """Raises a ConfigError if ``schedulefree`` is not installed."""
    if find_spec("schedulefree") is None:
        raise ConfigError("optimizer=schedule_free_adamw needs schedulefree: pip install 'triptych[schedule_free]'")


@dataclass(frozen=True, slots=True)
class Adafactor(_OptimizerBase):
    """Adam with a factored mean of squares for each matrix, and without a mean of gradients.

    See Shazeer and Stern 2018, algorithms 4 and 5. The mean of squares is a column times a row.

    W <- W - alpha U / max(1, RMS(U) / d), U = G / sqrt(V), alpha = max(eps2, RMS(W)) min(lr, 1 / sqrt(t)): steps are
    relative to the size of the weights. The decay of V is 1 - t^beta2_decay.

    Attributes:
        lr: maximum relative step size.
        beta2_decay: exponent of the decay of V.
        eps1: minimum of the root of V; None: the machine epsilon of the type of the weights.
        eps2: minimum of RMS(W).
        d: maximum RMS of a step before scaling.
    """

    beta2_decay: float
    eps1: float | None
    eps2: float
    d: float

    def __post_init__(self) -> None:
        _OptimizerBase.__post_init__(self)
        if self.beta2_decay > 0:
            raise ValueError(f"optimizer.beta2_decay={self.beta2_decay}: expected 0 or less")
        if self.eps1 is not None and self.eps1 < 0:
            raise ValueError(f"optimizer.eps1={self.eps1}: expected 0 or more, or null")
        if self.d < 1:
            raise ValueError(f"optimizer.d={self.d}: expected at least 1")

    def __call__(self, module: nn.Module) -> Optimizer:
        """Makes the optimizer of the parameters of a module."""
        groups = decay_groups(module, self.weight_decay)
        eps: Any = (self.eps1, self.eps2)
        return torch.optim.Adafactor(groups, lr=self.lr, beta2_decay=self.beta2_decay, eps=eps, d=self.d)


@dataclass(frozen=True, slots=True)
class SGD(_OptimizerBase):
    """Stochastic gradient descent with momentum (Sutskever et al. 2013).

    B <- momentum B + G + weight_decay W, W <- W - lr B; with nesterov W <- W - lr (G + weight_decay W + momentum B).

    Attributes:
        momentum: decay of the sum of the gradients.
        nesterov: whether to use Nesterov momentum.
    """

    momentum: float
    nesterov: bool

    def __post_init__(self) -> None:
        _OptimizerBase.__post_init__(self)
        if self.nesterov and self.momentum == 0:
            raise ValueError("optimizer.nesterov=true needs optimizer.momentum above 0, or optimizer.nesterov=false")

    def __call__(self, module: nn.Module) -> Optimizer:
        """Makes the optimizer of the parameters of a module."""
        groups = decay_groups(module, self.weight_decay)
        return torch.optim.SGD(groups, lr=self.lr, momentum=self.momentum, nesterov=self.nesterov)


def optimizer_flops(network: nn.Module, make: Callable[[nn.Module], Optimizer]) -> int:
    """Counts the FLOPs of the matrix products of an optimizer step, such as the Newton-Schulz iterations of Muon.

    Args:
        network: network on the meta device; gets gradients.
        make: makes the optimizer of a module.
    """
    with FlopCounterMode(display=False) as counter:
        step_on_meta(network, make)
    return int(counter.get_total_flops())


def step_on_meta(network: nn.Module, make: Callable[[nn.Module], Optimizer]) -> Optimizer:
    """Returns the optimizer of a network after a step on the meta device, which computes only shapes.

    Args:
        network: network on the meta device; gets gradients.
        make: makes the optimizer of a module.
    """
    optimizer = make(network)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.empty_like(parameter)
    with AnyNumber():  # type: ignore[no-untyped-call]
        optimizer.step()
    return optimizer


class AnyNumber(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that returns 1 for numbers read from the meta device. (Adafactor reads the RMS of weights and steps.)"""

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Calls the operation, or returns 1."""
        if func is torch.ops.aten._local_scalar_dense.default and args[0].is_meta:
            return 1.0
        return func(*args, **(kwargs or {}))
