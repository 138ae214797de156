"""Restoring a text of which a part is hidden: pre-training without labels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from jaxtyping import Bool, Int
from torchmetrics import Metric

from triptych.data import IGNORE, Batch, Encoded, Example, collate
from triptych.tasks.exact_sums import Mean
from triptych.tasks.generative import GenerativeTask
from triptych.tasks.predictions import Prediction
from triptych.tasks.task import MetricModes, TaskContext

Objective = Literal["masked_lm", "text_infilling", "span_corruption", "next_token"]

OBJECTIVES: Mapping[str, tuple[Objective, ...]] = {
    "encoder_only": ("masked_lm",),
    "full": ("text_infilling", "span_corruption"),
    "decoder_only": ("next_token",),
    "prefix_decoder": ("text_infilling", "span_corruption"),
}
"""By architecture: what it can do, its natural objective first."""

REASONS = {
    "encoder_only": "an encoder answers at the places that it reads, and sees all of them",
    "full": "its decoder writes a text, and its encoder must not see what that text says",
    "decoder_only": "a decoder by itself sees only what stands before each place",
    "prefix_decoder": "it writes a text behind a prefix that it sees whole",
}


def objective_for(architecture: str, objective: str | None) -> Objective:
    """The objective itself, or an architecture's natural one.

    Args:
        architecture: of the network.
        objective: a choice; None: the natural one.

    Raises:
        ValueError: an objective that the architecture cannot do.
    """
    choices = OBJECTIVES[architecture]
    if objective is None:
        return choices[0]
    for choice in choices:
        if objective == choice:
            return choice
    reason = f"{REASONS[architecture]}; " if any(objective in others for others in OBJECTIVES.values()) else ""
    raise ValueError(
        f"task.objective={objective} on model={architecture}: {reason}expected {' or '.join(choices)}, or null"
    )


@dataclass(kw_only=True, eq=False, repr=False)
class Denoising(GenerativeTask):
    """Each architecture by its own objectives, so the scores of different ones are not comparable.

    - ``masked_lm`` (encoder-only): some tokens are masked; they alone are scored. See ``masked``.
    - ``text_infilling`` (full, prefix decoder): the source has spans replaced by one mask each; the decoder writes the
      whole text. See ``infilled``.
    - ``span_corruption`` (full, prefix decoder): each span is replaced by a sentinel of its own; the decoder writes the
      spans. See ``corrupted``. The tokenizer must have sentinels (``tokenizer.num_sentinels``).
    - ``next_token`` (decoder-only): nothing is hidden.

    What is hidden in an example is a function of the seed and of the example's number.

    Args:
        objective: one of these; None: the natural one of the architecture, which stands first.
        whole_words: whether masked_lm chooses words, not tokens: all tokens of a word or none.
        mask_share: share of the tokens that is hidden (Devlin et al. and Raffel et al.: 0.15; Lewis et al.: 0.3).
        mean_span_length: mean number of tokens of a span.

    Raises:
        ValueError: an objective that the architecture or the tokenizer cannot serve, or a number that cannot be.
    """

    name = "denoising"
    metric_modes: ClassVar[MetricModes] = {"token_accuracy": "max"}
    title = "Denoising"
    encodes_randomly = True
    not_comparable = "each architecture has a denoising objective, and so a loss, of its own."

    @classmethod
    def check_architecture(cls, architecture: str, settings: Mapping[str, Any]) -> None:
        objective_for(architecture, settings["objective"])

    objective: Objective | None
    whole_words: bool
    mask_share: float
    mean_span_length: float

    def __post_init__(self, context: TaskContext) -> None:
        if not 0 < self.mask_share < 1:
            raise ValueError(f"task.mask_share={self.mask_share}: expected more than 0 and less than 1")
        if not 1 <= self.mean_span_length < float("inf"):
            raise ValueError(f"task.mean_span_length={self.mean_span_length}: expected at least 1")
        super().__post_init__(context)
        self.objective = objective_for(self.architecture, self.objective)
        if self.whole_words and self.objective != "masked_lm":
            raise ValueError(f"task.whole_words=true: {self.objective} hides no words; expected false, or masked_lm")
        special = self.tokenizer.special
        if self.objective in ("masked_lm", "text_infilling") and special.mask is None:
            hint = "; expected span_corruption, for it has sentinels" if len(special.sentinels) > 1 else ""
            raise ValueError(f"task.objective={self.objective}: the tokenizer has no mask token{hint}")
        if self.objective == "span_corruption" and len(special.sentinels) < 2:
            raise ValueError(
                f"task.objective=span_corruption: the tokenizer has {len(special.sentinels)} sentinels; "
                "expected at least 2 (tokenizer.num_sentinels)"
            )

    def reference(self, example: Example) -> str:
        """The whole text."""
        return example.text

    def encode(self, examples: Sequence[Example]) -> list[Encoded]:
        """Hides a part of each text."""
        texts = self.tokenizer.encode([example.text for example in examples])
        return [
            replace(self._hide(ids, np.random.default_rng((self.seed, number))), example=example)
            for number, (example, ids) in enumerate(zip(examples, texts, strict=True))
        ]

    def _hide(self, ids: list[int], random: np.random.Generator) -> Encoded:
        special = self.tokenizer.special
        if self.objective == "next_token":
            return Encoded(np.array([special.bos, *ids]), np.array([*ids, special.eos]))
        if self.objective == "masked_lm":
            begins = self.tokenizer.begins_word(ids) if self.whole_words else np.ones(len(ids), dtype=bool)
            tokens, labels = masked(
                np.array(ids, dtype=np.int64), begins, self.mask_share, self.mask, self.tokenizer.text_ids, random
            )
            whole = np.array(special.single(tokens.tolist()))
            answers = np.full(len(whole), IGNORE)
            answers[len(special.begin) : len(special.begin) + len(ids)] = labels
            return Encoded(whole, answers)
        if self.objective == "text_infilling":
            source, target = infilled(ids, self.mask_share, self.mean_span_length, self.mask, random), ids
        else:
            source, target = corrupted(ids, self.mask_share, self.mean_span_length, special.sentinels, random)
        return self.lay_out(self.asking(source), target)

    def truncate(self, item: Encoded) -> Encoded:
        """See ``Task`` and ``truncate_pair``; the target of span corruption ends where the source was cut."""
        has_source = self.objective in ("text_infilling", "span_corruption")
        return self.truncate_pair(item) if has_source else super().truncate(item)

    def target_of(self, source: Sequence[int], target: Sequence[int]) -> Sequence[int]:
        if self.objective != "span_corruption":
            return target
        sentinels = self.tokenizer.special.sentinels
        return target[: target.index(sentinels[int(np.isin(source, sentinels).sum())]) + 1]

    def make_metrics(self, stage: str) -> dict[str, Metric]:
        """The share of scored tokens that are restored."""
        return {"token_accuracy": Mean()}

    def evaluate(self, batch: Batch, metrics: Mapping[str, Metric], stage: str) -> None:
        """Counts hits."""
        self.scored_tokens(metrics, batch)

    @property
    def fills_batches(self) -> bool:
        """See ``GenerativeTask``; masks are filled in all at once."""
        return self.objective != "masked_lm"

    def predict_batch(self, texts: Sequence[str]) -> Sequence[Prediction]:
        """Each text with what it hides filled in: <mask>, or <extra_id_0>, <extra_id_1>, ... for span corruption (the
        tokenizer's own names of them). A decoder-only model goes on instead."""
        special = self.tokenizer.special
        if self.objective == "next_token":
            return self.answer([special.opening(ids) for ids in self.tokenizer.encode(texts)])
        marks = special.sentinels if self.objective == "span_corruption" else [self.mask]
        sources = self.tokenizer.encode_marked(texts, marks)
        if self.objective != "masked_lm":
            return self.answer([self.asking(ids) for ids in sources])
        given = [special.single(ids) for ids in sources]
        batch = collate([Encoded(np.array(ids), np.array(ids)) for ids in given]).to(self.device)
        filled = batch.tokens.where(batch.tokens != self.mask, self.forward(batch).argmax(-1))
        return [self.tokenizer.decode(row[: len(ids)].tolist()) for row, ids in zip(filled, given, strict=True)]

    def text_of(self, ids: Sequence[int], given: Sequence[int]) -> str:
        """See ``GenerativeTask``; of spans, the whole text that they complete."""
        if self.objective == "span_corruption":
            ids = restored(given, ids, self.tokenizer.special.sentinels)
        return self.tokenizer.decode(ids)

    @property
    def mask(self) -> int:
        """Hides a token."""
        mask = self.tokenizer.special.mask
        assert mask is not None
        return mask


def masked(
    ids: Int[np.ndarray, " length"],
    begins_word: Bool[np.ndarray, " length"],
    share: float,
    mask: int,
    others: Int[np.ndarray, " others"],
    random: np.random.Generator,
) -> tuple[Int[np.ndarray, " length"], Int[np.ndarray, " length"]]:
    """Masked language modelling: of the chosen tokens, 80 % become the mask, 10 % a random token, 10 % stay. Devlin et
    al. 2019, section 3.1.

    Args:
        begins_word: where words begin: a word is chosen as a whole. (All True: each token by itself.)
        share: of the tokens that is chosen: words in random order, as many as come nearest to it; at least one.
        mask: the token that hides.
        others: what random tokens are drawn from.

    Returns:
        The tokens to be read, and the chosen ones as labels at their places.
    """
    word = begins_word.cumsum() - 1
    sizes = np.bincount(word)
    order = random.permutation(len(sizes))
    distance = np.abs(sizes[order].cumsum() - num_hidden(len(ids), share))
    chosen = np.isin(word, order[: distance.argmin() + 1]) if len(ids) else np.zeros(0, dtype=bool)
    kind = random.random(len(ids))
    hidden = np.where(kind < 0.8, mask, np.where(kind < 0.9, random.choice(others, len(ids)), ids))
    return np.where(chosen, hidden, ids), np.where(chosen, ids, IGNORE)


def infilled(
    ids: Sequence[int], share: float, mean_span_length: float, mask: int, random: np.random.Generator
) -> list[int]:
    """Text infilling: spans, whose lengths are drawn from a Poisson distribution, are each replaced by one mask; one of
    length 0 puts a mask between two tokens. Lewis et al. 2020, section 2.2.

    Args:
        share: of its tokens that is hidden; the last span that is drawn is cut to it.
        mean_span_length: of the Poisson distribution.
        mask: the token that hides a span.
    """
    source, lengths = list(ids), list[int]()
    to_hide = num_hidden(len(ids), share)
    while (left := to_hide - sum(lengths)) > 0:
        lengths.append(min(int(random.poisson(mean_span_length)), left))
    for span in reversed(placed(lengths, len(ids), random)):
        source[span] = [mask]
    return source


def corrupted(
    ids: Sequence[int], share: float, mean_span_length: float, sentinels: Sequence[int], random: np.random.Generator
) -> tuple[list[int], list[int]]:
    """Span corruption: each span is replaced by a sentinel of its own; the target is each sentinel with its span behind
    it, and one more sentinel. Raffel et al. 2020, section 3.1.4.

    Args:
        share: of its tokens that is hidden.
        mean_span_length: the number of spans is that of the hidden tokens divided by it; there is one at least, and one
            less than there are sentinels at most (then the spans are longer).
        sentinels: the first span's comes first.
        random: of all draws. Each way to cut the hidden tokens into spans is equally likely.

    Returns:
        The source and the target.
    """
    if not ids:
        return [], [sentinels[0]]
    to_hide = num_hidden(len(ids), share)
    count = min(max(1, round(to_hide / mean_span_length)), len(sentinels) - 1)
    cuts = np.sort(random.choice(to_hide - 1, count - 1, replace=False)) + 1
    source, target = list(ids), list[int]()
    spans = placed(np.diff([0, *cuts, to_hide]).tolist(), len(ids), random)
    for span, sentinel in zip(spans, sentinels, strict=False):
        target += [sentinel, *ids[span]]
    for span, sentinel in reversed(list(zip(spans, sentinels, strict=False))):
        source[span] = [sentinel]
    return source, [*target, sentinels[len(spans)]]


def restored(source: Sequence[int], target: Sequence[int], sentinels: Sequence[int]) -> list[int]:
    """The text of which ``corrupted`` made source and target.

    Args:
        source: with sentinels; one that the target lacks stands for nothing.
        target: with the same sentinels.
        sentinels: all that there are.
    """
    spans: dict[int, list[int]] = {}
    span: list[int] = []
    for token in target:
        if token in sentinels:
            span = spans.setdefault(token, [])
        else:
            span.append(token)
    return [i for token in source for i in (spans.get(token, []) if token in sentinels else [token])]


def num_hidden(length: int, share: float) -> int:
    """Tokens that are hidden of a text: its share, rounded, and one at least."""
    return min(max(1, round(share * length)), length)


def placed(lengths: Sequence[int], length: int, random: np.random.Generator) -> list[slice]:
    """Spans at random places of a text, from left to right, none touching another. Each way is equally likely.

    Args:
        lengths: of the spans, in any order. If the other tokens are too few to stand between all of them, the
            last ones become one.
    """
    most = length - sum(lengths) + 1  # places between, before and after the tokens that stay
    if len(lengths) > most:
        lengths = [*lengths[: most - 1], sum(lengths[most - 1 :])]
    ordered = random.permutation(lengths)
    before = np.sort(random.choice(most, len(lengths), replace=False))  # tokens that stay, before each span
    starts = before + ordered.cumsum() - ordered
    return [slice(start, start + size) for start, size in zip(starts.tolist(), ordered.tolist(), strict=True)]
