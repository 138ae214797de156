"""Autoregressive decoding: each chosen token is the next input."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from triptych.models.generation.constraints import PADDING, Constraints
from triptych.nn.transfer import Download, upload


@runtime_checkable
class NextToken(Protocol):
    """What decoding needs of a model (``triptych.models.Continuation`` is one)."""

    def __call__(self, tokens: Int[Tensor, "batch new"]) -> Float[Tensor, "batch vocab"]:
        """Logits of the token after the last of ``tokens``, which follow those given before."""
        ...

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        """Keeps the given rows of the batch, in the given order.

        Args:
            rows: on the CPU, wherever the model is.
        """
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

    @property
    def may_run_ahead(self) -> bool:
        """Whether a row that has ended may be given one more token, which is dropped: greedy search draws nothing."""
        return self.temperature == 0

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

    A GPU need not wait for the CPU, if the sampling may run ahead: it computes a token while the CPU looks at the one
    before. A row then leaves one step later, and its last token is dropped.

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
    generator, device = generator or sampling.generator(prompt.device), prompt.device
    limits = [max_new_tokens] * len(prompt) if isinstance(max_new_tokens, int) else max_new_tokens
    outputs: list[list[int]] = [[] for _ in limits]
    rows, tokens, unseen = list(range(len(limits))), prompt, deque[tuple[list[int], Download]]()
    most, ahead = max(limits), int(device.type != "cpu" and sampling.may_run_ahead)
    for num_new in range(most + ahead if most else 0):
        if num_new < most:  # else all that is left is to look at the last tokens
            logits = next_token(tokens)
            if constraints is not None:
                is_last = upload(torch.tensor([limits[row] == num_new + 1 for row in rows]), device)
                logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
                logits = constraints.applied(logits, history, num_new=num_new, is_last=is_last, ends=ends)
            tokens = sampling.choose(logits, generator)[:, None]
            unseen.append((rows, Download(tokens[:, 0])))
            if constraints is not None:
                history = torch.cat((history, tokens), dim=1)
        if num_new < ahead:
            continue
        seen, download = unseen.popleft()
        going_on = set[int]()
        for row, token in zip(seen, download.wait()[0].tolist(), strict=True):
            if row in rows and token not in ends:
                outputs[row].append(token)
                if len(outputs[row]) < limits[row]:
                    going_on.add(row)
        kept = [i for i, row in enumerate(rows) if row in going_on]
        if not kept:
            break
        if len(kept) < len(rows):
            next_token.select(torch.tensor(kept))
            on_device = upload(torch.tensor(kept), device)
            tokens, history, rows = tokens[on_device], history[on_device], [rows[i] for i in kept]
    return outputs
