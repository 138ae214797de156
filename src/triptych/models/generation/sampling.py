"""Autoregressive decoding: each selected token is the next input."""

import math
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from triptych.models.generation.logits_processors import PADDING, LogitsProcessors
from triptych.nn.device_copy import HostCopy, copy_to_device


@runtime_checkable
class NextToken(Protocol):
    """The interface that decoding requires of a model, such as ``triptych.models.IncrementalDecoder``."""

    def __call__(self, tokens: Int[Tensor, "batch new"]) -> Float[Tensor, "batch vocab"]:
        """Returns the logits after the last of ``tokens``, which follow the tokens of earlier calls."""

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        """Keeps the given rows of the batch, in the given order.

        Args:
            rows: row indices, on the CPU whatever the model's device.
        """

    def join(self, other: Any) -> None:
        """Appends the rows of another instance."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """The distribution of the next token: p ~ softmax(logits / temperature), truncated to the most probable tokens.

    Attributes:
        temperature: 0 is greedy decoding, 1 samples from the model's own distribution.
        top_k: keep the k most probable tokens (and ties with the last of them); 0: all (Fan et al. 2018).
        top_p: keep the smallest set of most probable tokens whose probabilities reach p; 1: all (Holtzman et al. 2020).
        seed: seed of the random draws.
        on_tokens: called with the tokens of all rows at each step; None: nothing is called.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    on_tokens: Callable[[list[int]], None] | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise ValueError(f"temperature={self.temperature}: expected a finite number, 0 (greedy) or more")
        if self.top_k < 0:
            raise ValueError(f"top_k={self.top_k}: expected 0 (all tokens) or more")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p}: expected more than 0 and at most 1 (all tokens)")
        if not -(2**63) <= self.seed < 2**64:
            raise ValueError(f"seed={self.seed}: expected a whole number of at most 64 bits")

    def generator(self, device: torch.device) -> torch.Generator:
        """Returns a new random generator."""
        return torch.Generator(device).manual_seed(self.seed)

    @property
    def may_run_ahead(self) -> bool:
        """Whether a finished row may get one more token, which is dropped.

        True if no random numbers are drawn and no tokens are reported, which could not be dropped."""
        return self.temperature == 0 and self.on_tokens is None

    def distribution(self, logits: Float[Tensor, "batch vocab"]) -> Float[Tensor, "batch vocab"]:
        """Returns the probabilities to sample from; the temperature must be above 0."""
        limits = torch.finfo(logits.dtype)
        factor = min(max(1 / self.temperature, limits.tiny), limits.max)  # so that neither 0 inf nor inf - inf occurs
        logits = (logits - logits.amax(-1, keepdim=True)) * factor
        if self.top_k:
            smallest_kept = logits.topk(min(self.top_k, logits.shape[-1])).values[:, -1:]
            logits = logits.masked_fill(logits < smallest_kept, float("-inf"))
        if self.top_p < 1:
            ordered, order = logits.sort(descending=True)
            before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)  # probability of all more probable tokens
            dropped = torch.zeros_like(before, dtype=torch.bool).scatter(1, order, before >= self.top_p)
            logits = logits.masked_fill(dropped, float("-inf"))
        return logits.softmax(-1)

    def choose(self, logits: Float[Tensor, "batch vocab"], generator: torch.Generator) -> Int[Tensor, " batch"]:
        """Selects one token for each row, and reports the tokens to ``on_tokens``."""
        if self.temperature == 0:
            tokens = logits.argmax(-1)
        else:
            tokens = torch.multinomial(self.distribution(logits.float()), 1, generator=generator)[:, 0]
        if self.on_tokens is not None:
            self.on_tokens(tokens.tolist())
        return tokens


def with_streamer(sampling: Sampling, follow: Callable[[list[int]], None]) -> Sampling:
    """Returns the same sampling, which reports the tokens it selects."""
    return replace(sampling, on_tokens=follow)


class Prompts(NamedTuple):
    """Prompts to continue.

    Attributes:
        next_token: the model, not yet called with them.
        tokens: tokens of the prompts.
        mask: True at non-padding tokens; None: no padding.
        limits: maximum number of new tokens of each.
    """

    next_token: NextToken
    tokens: Int[Tensor, "batch length"]
    mask: Bool[Tensor, "batch length"] | None
    limits: Sequence[int]


@torch.inference_mode()
def generate(
    next_token: NextToken,
    prompt: Int[Tensor, "batch length"],
    *,
    end: int,
    max_new_tokens: int | Sequence[int],
    sampling: Sampling,
    generator: torch.Generator | None = None,
    logits_processors: LogitsProcessors | None = None,
    prompt_mask: Bool[Tensor, "batch length"] | None = None,
    more: Callable[[int], Prompts | None] | None = None,
) -> list[list[int]]:
    """Generates new tokens for each row, without the end token.

    Finished rows leave the batch, and others may replace them (Yu et al. 2022, Orca, section 3).

    If the sampling may run ahead, a GPU computes a token while the CPU checks the previous one. A row then leaves one
    step later, and its last token is dropped.

    Args:
        next_token: the model.
        prompt: tokens to start from.
        end: token that ends a sequence.
        max_new_tokens: maximum number of new tokens, for all sequences or for each.
        generator: random generator; None: a new one with the sampling's seed.
        logits_processors: changes to the logits; None: no changes.
        prompt_mask: True at non-padding tokens; None: no padding.
        more: called with the maximum number of new prompts when half of the rows (with constraints, all) have
            finished; returns None if none are left.

    Returns:
        The new tokens of each prompt row, then of each prompt from ``more``.
    """
    limits = [max_new_tokens] * len(prompt) if isinstance(max_new_tokens, int) else max_new_tokens
    if not max(limits):
        return [[] for _ in limits]
    ends = {end} if logits_processors is None else {*(logits_processors.eos_token_id or [end])}
    texts = _Texts(sampling, generator or sampling.generator(prompt.device), logits_processors, ends, prompt.device)
    fewest = len(prompt) // 2 if logits_processors is None else 0
    new: Prompts | None = Prompts(next_token, prompt, prompt_mask, limits)
    while new is not None or texts.rows:
        if new is not None:
            texts.begin(new)
        elif not texts.have_all:
            texts.step()
        texts.remove_finished()
        new = None
        if more is not None and len(texts.rows) <= fewest:
            new = more(len(prompt) - len(texts.rows))
            more = more if new is not None else None
    return texts.outputs


@dataclass(eq=False)
class _Texts:
    """The texts being generated; the unfinished ones are the rows of the batch.

    Attributes:
        sampling: see ``generate``.
        generator: random generator.
        logits_processors: see ``generate``.
        ends: tokens that end a text.
        device: device of the tokens.
        outputs: new tokens of each text.
        rows: indices of the unfinished texts, in the order of the batch.
        num_chosen: number of tokens selected for each text, checked or not.
        limits: maximum number of new tokens of each text.
        unseen: tokens that are not yet checked, with their rows.
        next_token: the model.
        tokens: last token of each row.
        history: tokens before the last, if there are constraints.
    """

    sampling: Sampling
    generator: torch.Generator
    logits_processors: LogitsProcessors | None
    ends: Collection[int]
    device: torch.device
    outputs: list[list[int]] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    num_chosen: list[int] = field(default_factory=list)
    limits: list[int] = field(default_factory=list)
    unseen: deque[tuple[list[int], HostCopy]] = field(default_factory=deque)
    next_token: NextToken = field(init=False)
    tokens: Tensor = field(init=False)
    history: Tensor = field(init=False)

    @property
    def have_all(self) -> bool:
        """Whether every row has reached its limit."""
        return all(self.num_chosen[row] >= self.limits[row] for row in self.rows)

    def begin(self, new: Prompts) -> None:
        """Adds texts to the batch, and selects the first token of each."""
        others, rows = self.rows, list(range(len(self.outputs), len(self.outputs) + len(new.limits)))
        self.outputs += [[] for _ in rows]
        self.num_chosen += [0] * len(rows)
        self.limits += new.limits
        self.rows = others + rows
        read = new.tokens if new.mask is None else new.tokens.masked_fill(~new.mask, PADDING)
        chosen = self._choose(new.next_token(new.tokens), read, rows)
        if others:
            self.next_token.join(new.next_token)
            self.tokens = torch.cat((self.tokens, chosen))
        else:
            self.next_token, self.tokens, self.history = new.next_token, chosen, read

    def step(self) -> None:
        """Selects the next token of each row."""
        if self.logits_processors is not None:
            self.history = torch.cat((self.history, self.tokens), dim=1)
        self.tokens = self._choose(self.next_token(self.tokens), self.history, self.rows)

    def _choose(self, logits: Tensor, history: Tensor, rows: list[int]) -> Tensor:
        if self.logits_processors is not None:
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
            num_new, are_last = self.num_chosen[rows[0]], [self.num_chosen[row] + 1 == self.limits[row] for row in rows]
            is_last = copy_to_device(torch.tensor(are_last), self.device)
            logits = self.logits_processors.applied(logits, history, num_new=num_new, is_last=is_last, ends=self.ends)
        chosen = self.sampling.choose(logits, self.generator)
        self.unseen.append((rows, HostCopy(chosen)))
        for row in rows:
            self.num_chosen[row] += 1
        return chosen[:, None]

    def remove_finished(self) -> None:
        """Checks the oldest unchecked tokens, unless it is too early, and removes the rows that they finish."""
        runs_ahead = self.device.type != "cpu" and self.sampling.may_run_ahead and not self.have_all
        if len(self.unseen) <= int(runs_ahead):
            return
        rows, download = self.unseen.popleft()
        running, finished = set(self.rows), set[int]()
        for row, token in zip(rows, download.wait()[0].tolist(), strict=True):
            if row in running and token not in self.ends:
                self.outputs[row].append(token)
            if token in self.ends or len(self.outputs[row]) == self.limits[row]:
                finished.add(row)
        kept = [i for i, row in enumerate(self.rows) if row not in finished]
        if len(kept) == len(self.rows):
            return
        places = set(kept)  # the last rows replace the finished ones; no other row moves
        last = (i for i in reversed(kept) if i >= len(kept))
        kept = [i if i in places else next(last) for i in range(len(kept))]
        self.rows = [self.rows[i] for i in kept]
        if not kept:
            return
        chosen = torch.tensor(kept, dtype=torch.long)
        self.next_token.select(chosen)
        on_device = copy_to_device(chosen, self.device)
        self.tokens = self.tokens[on_device]
        self.history = self.history if self.logits_processors is None else self.history[on_device]
