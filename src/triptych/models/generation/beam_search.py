"""Beam search: extends several sequences in parallel and returns the best ones found."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from triptych.models.generation.logits_processors import PADDING, LogitsProcessors
from triptych.models.generation.sampling import NextToken
from triptych.nn.device_copy import HostCopy, copy_to_device


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A finished sequence.

    Attributes:
        tokens: the new tokens, without the end token.
        score: see ``BeamSearch``.
    """

    tokens: list[int]
    score: float


@dataclass(frozen=True, slots=True)
class BeamSearch:
    """Settings of beam search, with score(y_1 ... y_n) = sum_t log p(y_t | y_1 ... y_{t-1}) / n ** length_penalty.

    n counts the new tokens and the end token. Wu et al. 2016, section 7, use (5 + n) / 6 instead of n. This definition
    and its stopping rules are those of Hugging Face's ``GenerationMixin._beam_search`` (transformers 5).

    Attributes:
        num_beams: maximum number of unfinished sequences (beams), and of hypotheses; 1: greedy search.
        length_penalty: 0 compares sums of log p; positive values favor long sequences, negative ones short sequences.
        early_stopping: when to stop with num_beams hypotheses. True: at once; False: when the best beam, if it ended
            now, would not beat the worst hypothesis; "never": when no continuation of the best beam can beat it.
        num_return_sequences: number of hypotheses to return.
    """

    num_beams: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    num_return_sequences: int = 1

    def __post_init__(self) -> None:
        if self.num_beams < 1:
            raise ValueError(f"num_beams={self.num_beams}: expected at least 1")
        if not isinstance(self.early_stopping, bool) and self.early_stopping != "never":
            raise ValueError(f"early_stopping={self.early_stopping}: expected true, false or never")
        if not 1 <= self.num_return_sequences <= self.num_beams:
            raise ValueError(
                f"num_return_sequences={self.num_return_sequences}: expected 1 to num_beams={self.num_beams}"
            )

    def score(self, log_p: float, length: int) -> float:
        """Computes the score by the formula above."""
        return log_p / math.pow(length, self.length_penalty)

    def should_continue(self, found: Sequence[Hypothesis], *, log_p: float, length: int, limit: int) -> bool:
        """Returns whether to continue the search after the hypotheses found so far.

        Args:
            found: these hypotheses, best first.
            log_p: log-probability of the best beam.
            length: length of the beams.
            limit: maximum length of the beams.
        """
        if length == limit or len(found) < self.num_beams:
            return length < limit
        if self.early_stopping is True or self.num_beams == 1:
            return False
        best_length = limit if self.early_stopping == "never" and self.length_penalty > 0 else length
        return self.score(log_p, best_length) > found[-1].score


@torch.inference_mode()
def beam_search(
    next_token: NextToken,
    prompt: Int[Tensor, "batch length"],
    *,
    end: int,
    max_new_tokens: int | Sequence[int],
    search: BeamSearch,
    logits_processors: LogitsProcessors | None = None,
    prompt_mask: Bool[Tensor, "batch length"] | None = None,
) -> list[list[Hypothesis]]:
    """Returns the hypotheses of each row, best first, or fewer if no more exist. Finished rows leave the batch.

    A step extends each beam by each token and takes the 2 num_beams candidates of the highest log p (with N end tokens,
    (1 + N) num_beams). The best num_beams of them without an end token continue; those with one, if among the first
    num_beams of all, become hypotheses. At the limit all of the first num_beams become hypotheses. Sums of log p are
    float32, or float64 if the logits are. Each step waits for the GPU once, for the candidates.

    Args:
        next_token: the model; receives the prompt once, then the last token of each beam.
        prompt: tokens to start from.
        end: token that ends a sequence.
        max_new_tokens: maximum number of new tokens, for all sequences or for each; the end token counts.
        logits_processors: changes to the logits; None: no changes.
        prompt_mask: True where the prompt has tokens; None: everywhere.

    Raises:
        ValueError: a limit is below 1.
    """
    ends = [end] if logits_processors is None else logits_processors.eos_token_id or [end]
    real_prompt = prompt if prompt_mask is None else prompt.masked_fill(~prompt_mask, PADDING)
    (real_prompt,) = HostCopy(real_prompt).wait()
    limits = [max_new_tokens] * len(prompt) if isinstance(max_new_tokens, int) else max_new_tokens
    if min(limits) < 1:
        raise ValueError(f"max_new_tokens={max_new_tokens}: expected at least 1")
    device, found, rows = prompt.device, [list[Hypothesis]() for _ in limits], list(range(len(prompt)))
    tokens, beams, log_p = prompt, real_prompt.new_empty(len(prompt), 1, 0), torch.zeros(len(prompt), 1)
    for length in range(1, max(limits) + 1):
        logits = next_token(tokens)
        step = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
        if logits_processors is not None:
            history = torch.cat((real_prompt[rows].repeat_interleave(beams.shape[1], 0), beams.flatten(0, 1)), dim=1)
            is_last = torch.tensor([limits[row] == length for row in rows]).repeat_interleave(beams.shape[1])
            step = logits_processors.applied(
                step,
                copy_to_device(history, device),
                num_new=length - 1,
                is_last=copy_to_device(is_last, device),
                ends=ends,
            )
        sums = copy_to_device(log_p, device)[:, :, None] + step.view(*log_p.shape, -1)
        _, width, vocab = sums.shape
        best, order = HostCopy(*sums.flatten(1).topk(min((1 + len(ends)) * search.num_beams, width * vocab))).wait()
        parents, last = order // vocab, order % vocab
        candidates = torch.cat((beams.take_along_dim(parents[:, :, None], 1), last[:, :, None]), dim=2)

        ended = torch.isin(last, torch.tensor(ends))
        finished = ended | torch.tensor([[limits[row] == length] for row in rows])
        finished[:, search.num_beams :] = False
        finished &= best > -torch.inf  # what constraints forbid is no candidate
        rows_finished = [rows[i] for i in finished.nonzero()[:, 0].tolist()]
        for row, ids, value in zip(rows_finished, candidates[finished].tolist(), best[finished].tolist(), strict=True):
            found[row].append(Hypothesis([id for id in ids if id not in ends], search.score(value, length)))
            found[row] = sorted(found[row], key=lambda hypothesis: -hypothesis.score)[: search.num_beams]

        num_unended = int((~ended).sum(1).min())  # less than num_beams only in the first steps of a small vocabulary
        running = ended.int().argsort(dim=1, stable=True)[:, : min(search.num_beams, num_unended)]
        log_p = best.gather(1, running)
        going_on = [
            i
            for i, (row, value) in enumerate(zip(rows, log_p[:, 0].tolist(), strict=True))
            if search.should_continue(found[row], log_p=value, length=length, limit=limits[row])
        ]
        if not going_on:
            break
        sources = parents.gather(1, running) + width * torch.arange(len(rows))[:, None]
        sources = sources[going_on].flatten()
        if not torch.equal(sources, torch.arange(len(tokens))):
            next_token.select(sources)
        beams = candidates.take_along_dim(running[:, :, None], 1)[going_on]
        rows, log_p = [rows[i] for i in going_on], log_p[going_on]
        tokens = copy_to_device(beams[:, :, -1].reshape(-1, 1), device)
    return [hypotheses[: search.num_return_sequences] for hypotheses in found]
