"""Linear probes: can a property be read from the states of a layer?

Tested by tests/inspection/test_linear_probe.py.
"""

from collections.abc import Hashable, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

MOST_CLASSES = 100_000


class LinearProbe(nn.Module):
    """softmax(W (x - mean) / std + b), a classifier of single states (Alain and Bengio 2017).

    Args:
        states: the states to train with.
        labels: the class of each.
        weight_decay: c in the loss, mean cross-entropy + c/2 |W|^2, whose only minimum L-BFGS finds.

    Raises:
        ValueError: fewer than two classes, a number of labels other than that of the states, negative labels, or states
            that are not finite.
    """

    def __init__(
        self,
        states: Float[Tensor, "examples width"],
        labels: Int[Tensor, " examples"],
        *,
        weight_decay: float = 1e-3,
    ) -> None:
        super().__init__()
        if weight_decay < 0:
            raise ValueError(f"weight_decay={weight_decay}: expected at least 0")
        labels = _checked(states, labels)
        if len({*labels.tolist()}) < 2:
            raise ValueError("a probe needs labels of at least two classes")
        if int(labels.max()) >= MOST_CLASSES:
            raise ValueError(f"label {int(labels.max())}: expected numbers from 0 on, fewer than {MOST_CLASSES:,}")
        states = states.detach().double()
        self.mean, self.std = states.mean(0), states.std(0).clamp(min=1e-12)
        x = (states - self.mean) / self.std
        self.linear = nn.Linear(states.shape[1], int(labels.max()) + 1, device=states.device, dtype=torch.float64)
        for parameter in self.linear.parameters():
            nn.init.zeros_(parameter)
        optimizer = torch.optim.LBFGS(
            self.linear.parameters(),
            max_iter=500,
            tolerance_grad=1e-7,
            tolerance_change=1e-12,
            line_search_fn="strong_wolfe",
        )

        def loss() -> Tensor:
            optimizer.zero_grad()
            value = F.cross_entropy(self.linear(x), labels) + weight_decay / 2 * self.linear.weight.square().sum()
            value.backward()  # type: ignore[no-untyped-call]
            return value

        with torch.enable_grad():
            optimizer.step(loss)  # type: ignore[no-untyped-call]

    def forward(self, states: Float[Tensor, "examples width"]) -> Float[Tensor, "examples classes"]:
        """Returns the logits."""
        logits: Tensor = self.linear((states.double() - self.mean) / self.std)
        return logits

    @torch.no_grad()
    def accuracy(self, states: Float[Tensor, "examples width"], labels: Int[Tensor, " examples"]) -> float:
        """Returns the share of states whose class is right; give it others than those of the training."""
        labels = _checked(states, labels)
        if states.shape[1] != len(self.mean):
            raise ValueError(f"states of width {states.shape[1]}; the probe was trained on {len(self.mean)}")
        return float((self(states).argmax(-1) == labels).double().mean())


def _checked(states: Tensor, labels: Tensor) -> Int[Tensor, " examples"]:
    """Returns the labels as integers, if they fit the states."""
    if states.ndim != 2 or labels.ndim != 1:
        shapes = f"states of shape {(*states.shape,)} and labels of shape {(*labels.shape,)}"
        raise ValueError(f"{shapes}; expected (examples, width) and (examples,)")
    if len(states) != len(labels) or not len(states):
        raise ValueError(f"a probe of {len(states)} states with {len(labels)} labels: expected a label per state")
    if not states.isfinite().all():
        raise ValueError("states that are not finite")
    if (labels < 0).any():
        raise ValueError(f"label {int(labels.min())}: expected numbers from 0 on; leave out states without a label")
    return labels.long()


def control_labels(
    words: Sequence[Hashable] | Int[Tensor, " examples"], labels: Int[Tensor, " examples"], *, seed: int = 0
) -> Int[Tensor, " examples"]:
    """Returns labels for a control task: each distinct word has one label, drawn at random as often as in ``labels``.

    Only a probe that memorizes words can learn them. The accuracy on the property less that on the control task is the
    selectivity of a probe (Hewitt and Liang 2019, section 2).

    Args:
        words: the word behind each state. Label training and test states in one call.
        labels: labels of the property.
        seed: seed of the draws.
    """
    words = words.tolist() if isinstance(words, Tensor) else words  # tensors are hashed by identity
    generator = torch.Generator().manual_seed(seed)
    drawn = {word: int(labels[torch.randint(len(labels), (), generator=generator)]) for word in dict.fromkeys(words)}
    return torch.tensor([drawn[word] for word in words])
