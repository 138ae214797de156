"""Autoregressive decoding: each chosen token is the next input."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from triptych.models.generation.constraints import PADDING, Constraints


@runtime_checkable
class NextToken(Protocol):
    """What decoding needs of a model (``triptych.models.Continuation`` is one)."""

    def __call__(self, tokens: Int[Tensor, "batch new"]) -> Float[Tensor, "batch vocab"]:
        """Logits of the token after the last of ``tokens``, which follow those given before."""
        ...

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        """Keeps the given rows of the batch, in the given order."""
        ...


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen: p ~ softmax(logits / temperature), cut to the likeliest tokens.

    Attributes:
        temperature: 0 is greedy (the likeliest token), 1 samples from the model's own distribution.
        top_k: keep the k likeliest tokens (and those as likely as the last of them); 0: all (Fan et al. 2018).
        top_p: keep the smallest set of likeliest tokens whose probabilities reach p; 1: all (Holtzman et al. 2020).
        seed: of the draws.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"temperature={self.temperature}: expected 0 (greedy) or more")
        if self.top_k < 0:
            raise ValueError(f"top_k={self.top_k}: expected 0 (all tokens) or more")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p}: expected more than 0 and at most 1 (all tokens)")

    def generator(self, device: torch.device) -> torch.Generator:
        """A new source of draws."""
        return torch.Generator(device).manual_seed(self.seed)

    def distribution(self, logits: Float[Tensor, "batch vocab"]) -> Float[Tensor, "batch vocab"]:
        """The probabilities that are sampled from; needs a temperature above 0."""
        logits = logits / self.temperature
        if self.top_k:
            smallest_kept = logits.topk(min(self.top_k, logits.shape[-1])).values[:, -1:]
            logits = logits.masked_fill(logits < smallest_kept, float("-inf"))
        if self.top_p < 1:
            ordered, order = logits.sort(descending=True)
            before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)  # probability of all likelier tokens
            dropped = torch.zeros_like(before, dtype=torch.bool).scatter(1, order, before >= self.top_p)
            logits = logits.masked_fill(dropped, float("-inf"))
        return logits.softmax(-1)

    def choose(self, logits: Float[Tensor, "batch vocab"], generator: torch.Generator) -> Int[Tensor, " batch"]:
        """One token for each row."""
        if self.temperature == 0:
            return logits.argmax(-1)
        return torch.multinomial(self.distribution(logits.float()), 1, generator=generator)[:, 0]


@torch.inference_mode()
def generate(
    next_token: NextToken,
    prompt: Int[Tensor, "batch length"],
    *,
    end: int,
    max_new_tokens: int | Sequence[int],
    sampling: Sampling,
    generator: torch.Generator | None = None,
    constraints: Constraints | None = None,
    prompt_mask: Bool[Tensor, "batch length"] | None = None,
) -> list[list[int]]:
    """New tokens for each row, up to and without the end token. Finished rows leave the batch.

    Args:
        next_token: the model.
        prompt: the tokens it starts from.
        end: token that ends a sequence.
        max_new_tokens: the most tokens to add to a sequence, or to each.
        generator: of the draws; None: a new one with the sampling's seed.
        constraints: what a text may be; None: anything.
        prompt_mask: True where the prompt has tokens; None: everywhere.
    """
    ends = {end} if constraints is None else {*(constraints.eos_token_id or [end])}
    history = prompt if prompt_mask is None else prompt.masked_fill(~prompt_mask, PADDING)
    generator = generator or sampling.generator(prompt.device)
    limits = [max_new_tokens] * len(prompt) if isinstance(max_new_tokens, int) else max_new_tokens
    outputs: list[list[int]] = [[] for _ in range(len(prompt))]
    rows = list(range(len(prompt)))
    tokens = prompt
    for num_new in range(max(limits)):
        logits = next_token(tokens)
        if constraints is not None:
            is_last = torch.tensor([limits[row] == num_new + 1 for row in rows], device=prompt.device)
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
            logits = constraints.applied(logits, history, num_new=num_new, is_last=is_last, ends=ends)
        chosen = sampling.choose(logits, generator)
        values = chosen.tolist()  # at once: a GPU is waited for each time that a value is asked for
        going_on = [i for i, token in enumerate(values) if token not in ends]
        for i in going_on:
            outputs[rows[i]].append(values[i])
        going_on = [i for i in going_on if len(outputs[rows[i]]) < limits[rows[i]]]
        if not going_on:
            break
        if len(going_on) < len(rows):
            kept = torch.tensor(going_on, device=prompt.device)
            next_token.select(kept)
            chosen, rows, history = chosen[kept], [rows[i] for i in going_on], history[kept]
        tokens = chosen[:, None]
        if constraints is not None:
            history = torch.cat((history, tokens), dim=1)
    return outputs
