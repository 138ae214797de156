"""Constraints on generated texts.

Tested by tests/models/generation/test_incremental_decoder.py and tests/interop/test_generation.py.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from triptych.nn.device_copy import copy_to_device

PADDING = -1
"""Replaces padding in the tokens so far; it is not a token id, so no rule matches it."""


@dataclass(frozen=True, slots=True)
class LogitsProcessors:
    """Rules that change the scores of the next token.

    Names and order are those of Hugging Face's ``GenerationMixin`` (transformers 5). Scores are logits, or in
    beam search log-probabilities.

    Attributes:
        eos_token_id: tokens that end a text; empty: the tokenizer's end token.
        repetition_penalty: divides the positive scores of tokens that already occur, and multiplies the negative
            ones (Keskar et al. 2019); 1: no effect.
        no_repeat_ngram_size: no n-gram of this size occurs twice (Paulus et al. 2018); 0: no limit.
        bad_words_ids: token sequences that are never generated.
        min_new_tokens: minimum number of tokens before the end token.
        forced_bos_token_id: token after a prompt of one token (as the encoder-decoder model has); None: any token.
        forced_eos_token_id: last token of a text that reaches its limit; None: any token.
        suppress_tokens: tokens that are never generated, not even to end a text.
        begin_suppress_tokens: the same for the first new token (for the second, after a forced one).
        renormalize_logits: whether to normalize the scores to log-probabilities again for beam search.
    """

    eos_token_id: list[int] = field(default_factory=list)
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    bad_words_ids: list[list[int]] = field(default_factory=list)
    min_new_tokens: int = 0
    forced_bos_token_id: int | None = None
    forced_eos_token_id: int | None = None
    suppress_tokens: list[int] = field(default_factory=list)
    begin_suppress_tokens: list[int] = field(default_factory=list)
    renormalize_logits: bool = False

    def __post_init__(self) -> None:
        if self.repetition_penalty <= 0:
            raise ValueError(f"repetition_penalty={self.repetition_penalty}: expected more than 0")
        for name in ("no_repeat_ngram_size", "min_new_tokens"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}: expected 0 or more")
        if not all(self.bad_words_ids):
            raise ValueError(f"bad_words_ids={self.bad_words_ids}: expected sequences of at least one token")

    @property
    def largest(self) -> int:
        """The largest token id in the constraints; -1: there is none."""
        single = [i for i in (self.forced_bos_token_id, self.forced_eos_token_id) if i is not None]
        several = (*self.bad_words_ids, self.eos_token_id, self.suppress_tokens, self.begin_suppress_tokens)
        return max([-1, *single, *(i for ids in several for i in ids)])

    def applied(
        self,
        scores: Float[Tensor, "rows vocab"],
        tokens: Int[Tensor, "rows length"],
        *,
        num_new: int,
        is_last: Bool[Tensor, " rows"],
        ends: Collection[int],
    ) -> Float[Tensor, "rows vocab"]:
        """Returns the scores of the next token, minus infinity for a forbidden one.

        Args:
            scores: scores by the network.
            tokens: all tokens so far, including the prompt, with ``PADDING``.
            num_new: number of new tokens among them.
            is_last: whether the next token reaches the limit of its row.
            ends: tokens that end a text.
        """
        vocab = scores.shape[-1]
        if self.repetition_penalty != 1:
            is_there = _marked(tokens, tokens != PADDING, vocab)
            weaker = torch.where(scores < 0, scores * self.repetition_penalty, scores / self.repetition_penalty)
            scores = scores.where(~is_there, weaker)
        if (n := self.no_repeat_ngram_size) and tokens.shape[1] >= n:
            ngrams, suffix = tokens.unfold(1, n, 1), tokens[:, tokens.shape[1] + 1 - n :]
            follows = (ngrams[..., :-1] == suffix[:, None]).all(-1) & (ngrams[..., -1] != PADDING)
            scores = scores.masked_fill(_marked(ngrams[..., -1], follows, vocab), -torch.inf)
        banned = torch.zeros_like(scores, dtype=torch.bool)
        for *before, last in self.bad_words_ids:
            if (before or last not in ends) and len(before) <= tokens.shape[1]:
                suffix = tokens[:, tokens.shape[1] - len(before) :]
                given = copy_to_device(torch.tensor(before, dtype=torch.long), tokens.device)
                banned[:, last] |= (suffix == given).all(-1)
        if num_new < self.min_new_tokens:
            for end in ends:  # one by one: a list of them would have to be copied to the device
                banned[:, end] = True
        scores = scores.masked_fill(banned, -torch.inf)
        if self.forced_bos_token_id is not None and tokens.shape[1] == 1:
            scores = _only(self.forced_bos_token_id, scores)
        if self.forced_eos_token_id is not None:
            scores = torch.where(is_last[:, None], _only(self.forced_eos_token_id, scores), scores)
        is_forced = self.forced_bos_token_id is not None and tokens.shape[1] - num_new == 1
        suppressed = [*self.suppress_tokens, *(self.begin_suppress_tokens if num_new == int(is_forced) else ())]
        if suppressed:
            scores = scores.index_fill(1, copy_to_device(torch.tensor(suppressed), scores.device), -torch.inf)
        return scores.log_softmax(-1) if self.renormalize_logits else scores


def _marked(
    tokens: Int[Tensor, "rows length"], where: Bool[Tensor, "rows length"], vocab: int
) -> Bool[Tensor, "rows vocab"]:
    """Returns whether each token of the vocabulary is among the given ones."""
    marks = torch.zeros(len(tokens), vocab + 1, dtype=torch.bool, device=tokens.device)
    return marks.scatter(1, tokens.where(where, vocab), True)[:, :vocab]


def _only(token: int, scores: Float[Tensor, "rows vocab"]) -> Float[Tensor, "rows vocab"]:
    """Returns scores that allow only this token."""
    forced = torch.full_like(scores, -torch.inf)
    forced[:, token] = 0
    return forced
