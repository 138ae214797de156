"""Optimizers with decay groups, and learning-rate schedules."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

Schedule = Callable[[int], float]
"""The factor of the learning rate at update 0, 1, 2, ..."""


def decay_groups(module: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Two parameter groups: matrices decay; embeddings, biases, norms and position tables do not.

    Args:
        module: whose parameters; a tied matrix counts as the embedding that it is.
        weight_decay: of the first group.
    """
    tables = {id(m.weight) for m in module.modules() if isinstance(m, nn.Embedding)}
    matrices = {id(m.weight) for m in module.modules() if isinstance(m, nn.Linear)} - tables
    parameters = [p for p in module.parameters() if p.requires_grad]
    return [
        {"params": [p for p in parameters if id(p) in matrices], "weight_decay": weight_decay},
        {"params": [p for p in parameters if id(p) not in matrices], "weight_decay": 0.0},
    ]


@dataclass(frozen=True, slots=True)
class AdamW:
    """Adam with decoupled weight decay. Loshchilov and Hutter 2019.

    Attributes:
        lr: peak learning rate.
        beta1: decay of the mean of the gradients.
        beta2: decay of the mean of their squares.
        eps: added to the root of the latter.
        weight_decay: of the matrices (see ``decay_groups``).
        fused: one kernel for all parameters; not with float16, which scales its gradients.
    """

    lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    fused: bool = True

    def __post_init__(self) -> None:
        if not self.lr > 0:
            raise ValueError(f"optimizer.lr={self.lr}: expected more than 0")
        for name, beta in (("beta1", self.beta1), ("beta2", self.beta2)):
            if not 0 <= beta < 1:
                raise ValueError(f"optimizer.{name}={beta}: expected at least 0 and less than 1")
        if self.weight_decay < 0:
            raise ValueError(f"optimizer.weight_decay={self.weight_decay}: expected 0 or more")

    def __call__(self, module: nn.Module) -> torch.optim.Optimizer:
        """The optimizer of a module's parameters."""
        groups = decay_groups(module, self.weight_decay)
        return torch.optim.AdamW(groups, lr=self.lr, betas=(self.beta1, self.beta2), eps=self.eps, fused=self.fused)


@dataclass(frozen=True, slots=True)
class _WarmUp:
    warmup_steps: int

    def __post_init__(self) -> None:
        if self.warmup_steps < 0:
            raise ValueError(f"scheduler.warmup_steps={self.warmup_steps}: expected 0 or more")

    def __call__(self, step: int) -> float:
        """The factor of the learning rate at this update; during warm-up it rises linearly from 1/n to 1."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        return self.after_warmup(step)

    def after_warmup(self, step: int) -> float:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Constant(_WarmUp):
    """1 after the warm-up.

    Attributes:
        warmup_steps: updates of linear warm-up.
    """

    def after_warmup(self, step: int) -> float:
        """1."""
        return 1.0


@dataclass(frozen=True, slots=True)
class InverseSquareRoot(_WarmUp):
    """sqrt(warmup / step) after the warm-up. Vaswani et al. 2017, section 5.3, with the peak as the unit.

    Attributes:
        warmup_steps: updates of linear warm-up.
    """

    def after_warmup(self, step: int) -> float:
        """sqrt(warmup / step)."""
        return math.sqrt(max(self.warmup_steps, 1) / (step + 1))


@dataclass(frozen=True, slots=True)
class _Decay(_WarmUp):
    max_steps: int
    min_factor: float

    def progress(self, step: int, start: int) -> float:
        """From 0 at update ``start`` to 1 at the last."""
        return min(max((step - start) / max(self.max_steps - 1 - start, 1), 0.0), 1.0)


@dataclass(frozen=True, slots=True)
class Cosine(_Decay):
    """From 1 to min_factor along half a cosine. Loshchilov and Hutter 2017, without restarts.

    Attributes:
        warmup_steps: updates of linear warm-up.
        max_steps: updates in all.
        min_factor: factor at the last update.
    """

    def after_warmup(self, step: int) -> float:
        """min + (1 - min) (1 + cos(pi t)) / 2 with t from 0 to 1."""
        t = self.progress(step, self.warmup_steps)
        return self.min_factor + (1 - self.min_factor) * (1 + math.cos(math.pi * t)) / 2


@dataclass(frozen=True, slots=True)
class Linear(_Decay):
    """From 1 to min_factor along a line.

    Attributes:
        warmup_steps: updates of linear warm-up.
        max_steps: updates in all.
        min_factor: factor at the last update.
    """

    def after_warmup(self, step: int) -> float:
        """1 - (1 - min) t with t from 0 to 1."""
        return 1 - (1 - self.min_factor) * self.progress(step, self.warmup_steps)


@dataclass(frozen=True, slots=True)
class WarmupStableDecay(_Decay):
    """1 until the last ``decay_steps`` updates, then along a line to min_factor. Hu et al. 2024 (MiniCPM).

    Attributes:
        warmup_steps: updates of linear warm-up.
        max_steps: updates in all.
        min_factor: factor at the last update.
        decay_steps: updates of the decay.
    """

    decay_steps: int

    def after_warmup(self, step: int) -> float:
        """1, then 1 - (1 - min) t with t from 0 to 1 over the decay."""
        return 1 - (1 - self.min_factor) * self.progress(step, self.max_steps - 1 - self.decay_steps)
