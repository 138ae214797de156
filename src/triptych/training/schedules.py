"""Learning rate schedules: the factor of the learning rate at each step, with a linear warmup.

Tested by tests/training/test_optimizers.py.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _WarmUp:
    """A linear warmup from 1/n to 1.

    Attributes:
        warmup_steps: n, the number of warmup steps.
    """

    warmup_steps: int

    def __post_init__(self) -> None:
        if self.warmup_steps < 0:
            raise ValueError(f"scheduler.warmup_steps={self.warmup_steps}: expected 0 or more")

    def __call__(self, step: int) -> float:
        """Returns the factor of the learning rate at this step."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        return self.after_warmup(step)

    def after_warmup(self, step: int) -> float:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Constant(_WarmUp):
    """A constant factor of 1 after the warmup."""

    def after_warmup(self, step: int) -> float:
        """Returns 1."""
        return 1.0


@dataclass(frozen=True, slots=True)
class InverseSquareRoot(_WarmUp):
    """The factor sqrt(warmup / step) after the warmup (Vaswani et al. 2017, section 5.3, relative to the peak)."""

    def after_warmup(self, step: int) -> float:
        """Returns sqrt(warmup / step)."""
        return math.sqrt(max(self.warmup_steps, 1) / (step + 1))


@dataclass(frozen=True, slots=True)
class _Decay(_WarmUp):
    """A decay to ``min_lr_factor`` after the warmup.

    Attributes:
        max_steps: total number of steps.
        min_lr_factor: factor at the last step.
    """

    max_steps: int
    min_lr_factor: float

    def __post_init__(self) -> None:
        _WarmUp.__post_init__(self)
        if not 0 <= self.min_lr_factor <= 1:
            raise ValueError(f"scheduler.min_lr_factor={self.min_lr_factor}: expected 0 to 1")

    def progress(self, step: int, start: int) -> float:
        """Returns the progress of the decay, from 0 at step ``start`` to 1 at the last step."""
        return min(max((step - start) / max(self.max_steps - 1 - start, 1), 0.0), 1.0)


@dataclass(frozen=True, slots=True)
class Cosine(_Decay):
    """A cosine decay from 1 to min_lr_factor (Loshchilov and Hutter 2017, without restarts)."""

    def after_warmup(self, step: int) -> float:
        """Returns min + (1 - min) (1 + cos(pi t)) / 2 with t from 0 to 1."""
        t = self.progress(step, self.warmup_steps)
        return self.min_lr_factor + (1 - self.min_lr_factor) * (1 + math.cos(math.pi * t)) / 2


@dataclass(frozen=True, slots=True)
class Linear(_Decay):
    """A linear decay from 1 to min_lr_factor."""

    def after_warmup(self, step: int) -> float:
        """Returns 1 - (1 - min) t with t from 0 to 1."""
        return 1 - (1 - self.min_lr_factor) * self.progress(step, self.warmup_steps)


@dataclass(frozen=True, slots=True)
class WarmupStableDecay(_Decay):
    """A factor of 1 until the last ``decay_steps`` steps, then linear decay to min_lr_factor (MiniCPM, Hu et al. 2024).

    Attributes:
        decay_steps: number of steps of the decay, at most those after the warmup.
    """

    decay_steps: int

    def __post_init__(self) -> None:
        _Decay.__post_init__(self)
        if self.decay_steps < 1:
            raise ValueError(f"scheduler.decay_steps={self.decay_steps}: expected at least 1")

    def after_warmup(self, step: int) -> float:
        """Returns 1, then 1 - (1 - min) t with t from 0 to 1 over the decay."""
        start = max(self.max_steps - 1 - self.decay_steps, self.warmup_steps)
        return 1 - (1 - self.min_lr_factor) * self.progress(step, start)
