"""Learning-rate schedules: the factor of the learning rate at each update, after a linear warm-up."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _WarmUp:
    """From 1/n to 1 along a line.

    Attributes:
        warmup_steps: n, the updates of the warm-up.
    """

    warmup_steps: int

    def __post_init__(self) -> None:
        if self.warmup_steps < 0:
            raise ValueError(f"scheduler.warmup_steps={self.warmup_steps}: expected 0 or more")

    def __call__(self, step: int) -> float:
        """The factor of the learning rate at this update."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        return self.after_warmup(step)

    def after_warmup(self, step: int) -> float:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Constant(_WarmUp):
    """1 after the warm-up."""

    def after_warmup(self, step: int) -> float:
        """1."""
        return 1.0


@dataclass(frozen=True, slots=True)
class InverseSquareRoot(_WarmUp):
    """sqrt(warmup / step) after the warm-up. Vaswani et al. 2017, section 5.3, with the peak as the unit."""

    def after_warmup(self, step: int) -> float:
        """sqrt(warmup / step)."""
        return math.sqrt(max(self.warmup_steps, 1) / (step + 1))


@dataclass(frozen=True, slots=True)
class _Decay(_WarmUp):
    """To ``min_factor`` after the warm-up.

    Attributes:
        max_steps: updates in all.
        min_factor: factor at the last update.
    """

    max_steps: int
    min_factor: float

    def progress(self, step: int, start: int) -> float:
        """From 0 at update ``start`` to 1 at the last."""
        return min(max((step - start) / max(self.max_steps - 1 - start, 1), 0.0), 1.0)


@dataclass(frozen=True, slots=True)
class Cosine(_Decay):
    """From 1 to min_factor along half a cosine. Loshchilov and Hutter 2017, without restarts."""

    def after_warmup(self, step: int) -> float:
        """min + (1 - min) (1 + cos(pi t)) / 2 with t from 0 to 1."""
        t = self.progress(step, self.warmup_steps)
        return self.min_factor + (1 - self.min_factor) * (1 + math.cos(math.pi * t)) / 2


@dataclass(frozen=True, slots=True)
class Linear(_Decay):
    """From 1 to min_factor along a line."""

    def after_warmup(self, step: int) -> float:
        """1 - (1 - min) t with t from 0 to 1."""
        return 1 - (1 - self.min_factor) * self.progress(step, self.warmup_steps)


@dataclass(frozen=True, slots=True)
class WarmupStableDecay(_Decay):
    """1 until the last ``decay_steps`` updates, then along a line to min_factor. Hu et al. 2024 (MiniCPM).

    Attributes:
        decay_steps: updates of the decay.
    """

    decay_steps: int

    def after_warmup(self, step: int) -> float:
        """1, then 1 - (1 - min) t with t from 0 to 1 over the decay."""
        return 1 - (1 - self.min_factor) * self.progress(step, self.max_steps - 1 - self.decay_steps)
