"""Optimizers with decay groups."""

from dataclasses import dataclass

import torch
from torch import nn


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
