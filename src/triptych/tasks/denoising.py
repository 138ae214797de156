"""Masked language modeling and other denoising: restoring hidden parts of a text, for pretraining without labels."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Int

from triptych.data import IGNORE_INDEX, Batch, EncodedExample, Example, TokenizedWords, collate
from triptych.tasks.generative import GenerativeTask
from triptych.tasks.predictions import Prediction
from triptych.tasks.task import Metrics, TaskContext
from triptych.tasks.views import View, causal_view, labelled_at, masked_views, word_ends

Objective = Literal["masked_lm", "text_infilling", "span_corruption", "next_token"]

OBJECTIVES: Mapping[str, tuple[Objective, ...]] = {
    "encoder_only": ("masked_lm",),
    "full": ("text_infilling", "span_corruption"),
    "decoder_only": ("next_token",),
    "prefix_lm": ("text_infilling", "span_corruption"),
}
"""Supported objectives by architecture, the default first."""

SCORING_METHODS: Mapping[Objective, tuple[str, ...]] = {
    "masked_lm": ("pseudo_log_likelihood_l2r", "pseudo_log_likelihood"),
    "text_infilling": ("infilling_by_word",),
    "span_corruption": ("span_corruption_by_word",),
    "next_token": ("log_likelihood",),
}
"""Methods of ``Predictor.score`` by objective, the default first."""

REASONS = {
    "encoder_only": "an encoder predicts tokens at the positions of its input, and attends to all of them",
    "full": "its decoder generates a text, and its encoder must not attend to that text",
    "decoder_only": "a decoder-only model attends to earlier positions only",
    "prefix_lm": "it generates a text after a prefix with bidirectional attention",
}


def objective_for(architecture: str, objective: str | None) -> Objective:
    """Returns the objective, or the default of the architecture.

    Args:
        architecture: architecture of the network.
        objective: the objective; None: the default.

    Raises:
        ValueError: if the architecture does not support the objective.
    """
    choices = OBJECTIVES[architecture]
    if objective is None:
        return choices[0]
    if objective in choices:
        return objective
    reason = f"{REASONS[architecture]}; " if any(objective in others for others in OBJECTIVES.values()) else ""
    raise ValueError(
        f"task.objective={objective} on model={architecture}: {reason}expected {' or '.join(choices)}, or null"
    )


@dataclass(kw_only=True, eq=False, repr=False)
class Denoising(GenerativeTask):
    """Restores hidden parts of a text; the objectives, and so the scores, differ between architectures.

    - ``masked_lm`` (encoder-only): some tokens are masked; only these are targets. See ``mask_tokens``.
    - ``text_infilling`` (full, prefix decoder): each span of the source is replaced by one mask; the decoder generates
      the whole text. See ``mask_spans``.
    - ``span_corruption`` (full, prefix decoder): each span is replaced by a different sentinel; the decoder generates
      the spans. See ``corrupt_spans``. The tokenizer must have sentinels (``tokenizer.num_sentinels``).
    - ``next_token`` (decoder-only): nothing is hidden.

    The hidden parts of an example are a function of the seed, the index of the example and, in training, its copy.

    Args:
        objective: one of these; None: the default of the architecture, which is the first it supports.
        whole_word_masking: whether masked_lm masks whole words instead of single tokens.
        mask_prob: fraction of the tokens that is hidden (Devlin et al. and Raffel et al.: 0.15; Lewis et al.: 0.3).
        mean_span_length: mean number of tokens of a span.
        copies_per_text: how often an epoch has each training text, each time with other hidden parts (Devlin et al.
            2019: 10).

    Raises:
        ValueError: if the architecture or tokenizer does not support the objective, or a number is out of range.
    """

    name = "denoising"
    title = "Denoising"
    encodes_randomly = True
    not_comparable = "each architecture has its own denoising objective and loss."

    @classmethod
    def check_architecture(cls, architecture: str, settings: Mapping[str, Any]) -> None:
        objective_for(architecture, settings["objective"])

    objective: Objective | None
    whole_word_masking: bool
    mask_prob: float
    mean_span_length: float
    copies_per_text: int = 1

    def __post_init__(self, context: TaskContext) -> None:
        if not 0 < self.mask_prob < 1:
            raise ValueError(f"task.mask_prob={self.mask_prob}: expected more than 0 and less than 1")
        if not 1 <= self.mean_span_length < float("inf"):
            raise ValueError(f"task.mean_span_length={self.mean_span_length}: expected at least 1")
        if self.copies_per_text < 1:
            raise ValueError(f"task.copies_per_text={self.copies_per_text}: expected at least 1")
        super().__post_init__(context)
        self.objective = objective_for(self.architecture, self.objective)
        if self.whole_word_masking and self.objective != "masked_lm":
            raise ValueError(
                f"task.whole_word_masking=true: {self.objective} hides no words; expected false, or masked_lm"
            )
        special = self.tokenizer.special
        if self.objective in ("masked_lm", "text_infilling") and special.mask is None:
            hint = "; expected span_corruption, for it has sentinels" if len(special.sentinels) > 1 else ""
            raise ValueError(f"task.objective={self.objective}: the tokenizer has no mask token{hint}")
        if self.objective == "span_corruption" and len(special.sentinels) < 2:
            raise ValueError(
                f"task.objective=span_corruption: the tokenizer has {len(special.sentinels)} sentinels; "
                "expected at least 2 (tokenizer.num_sentinels)"
            )

    @property
    def is_filled_in(self) -> bool:
        """False: an encoder predicts masked tokens, all at once."""
        return False

    def reference(self, example: Example) -> str:
        """Returns the whole text."""
        return example.text

    def encode(self, examples: Sequence[Example]) -> list[EncodedExample]:
        """Hides a part of each text."""
        return self._hide_parts(examples, copies=1)

    def encode_training(self, examples: Sequence[Example]) -> list[EncodedExample]:
        """Hides other parts in each copy of a text."""
        return self._hide_parts(examples, copies=self.copies_per_text)

    def _hide_parts(self, examples: Sequence[Example], copies: int) -> list[EncodedExample]:
        texts = self.tokenizer.encode([example.text for example in examples])
        return [
            replace(self._hide(ids, np.random.default_rng((self.seed, number))), example=example)
            for number, (example, ids) in enumerate([*zip(examples, texts, strict=True)] * copies)
        ]

    def _hide(self, ids: list[int], random: np.random.Generator) -> EncodedExample:
        special = self.tokenizer.special
        if self.objective == "next_token":
            return self.lay_out([special.bos], ids)
        if self.objective == "masked_lm":
            begins = self.tokenizer.begins_word(ids) if self.whole_word_masking else np.ones(len(ids), dtype=bool)
            tokens, labels = mask_tokens(
                np.array(ids, dtype=np.int64), begins, self.mask_prob, self.mask, self.tokenizer.text_ids, random
            )
            whole = np.array(special.single(tokens.tolist()))
            answers = np.full(len(whole), IGNORE_INDEX)
            answers[len(special.begin) : len(special.begin) + len(ids)] = labels
            return EncodedExample(whole, answers)
        if self.objective == "text_infilling":
            source, target = mask_spans(ids, self.mask_prob, self.mean_span_length, self.mask, random), ids
        else:
            source, target = corrupt_spans(ids, self.mask_prob, self.mean_span_length, special.sentinels, random)
        return self.lay_out(self.build_prompt(source), target)

    def truncate(self, item: EncodedExample) -> EncodedExample:
        """Truncates source and target (see ``truncate_pair``); the target of span corruption ends like the source."""
        has_source = self.objective in ("text_infilling", "span_corruption")
        return self.truncate_pair(item) if has_source else super().truncate(item)

    def target_of(self, source: Sequence[int], target: Sequence[int]) -> Sequence[int]:
        if self.objective != "span_corruption":
            return target
        sentinels = self.tokenizer.special.sentinels
        return target[: target.index(sentinels[int(np.isin(source, sentinels).sum())]) + 1]

    @property
    def scoring_methods(self) -> tuple[str, ...]:
        assert self.objective is not None
        return SCORING_METHODS[self.objective]

    def views(self, context: Sequence[int], text: TokenizedWords, method: str) -> Iterator[View]:
        """Yields views that hide one token each, or one word each from the encoder; see ``SCORING_METHODS``."""
        special = self.tokenizer.special
        if self.objective == "next_token":
            if text.ids:
                yield causal_view([special.bos, *context], text.ids)
        elif self.objective == "masked_lm":
            ends = word_ends(text) if method == "pseudo_log_likelihood_l2r" else range(1, len(text.ids) + 1)
            yield from masked_views([*special.begin, *context], text.ids, special.end, self.mask, ends)
        else:
            yield from self._views_of_words(context, text)

    def _views_of_words(self, context: Sequence[int], text: TokenizedWords) -> Iterator[View]:
        whole, special = [*context, *text.ids], self.tokenizer.special
        for begin, end in pairwise(np.searchsorted(text.word_of, range(len(text.words) + 1)).tolist()):
            word, places = slice(len(context) + begin, len(context) + end), [*range(begin, end)]
            if self.objective == "text_infilling":
                mark, target, before = self.mask, whole, word.start
            else:
                mark, closing = special.sentinels[:2]
                target, before = [mark, *whole[word], closing], 1
                places.append(end - 1)  # the closing sentinel; without it, longer words would count, too
            item = self.lay_out(self.build_prompt([*whole[: word.start], mark, *whole[word.stop :]]), target)
            first = item.prefix if item.source is None else len(special.target_begin)
            yield labelled_at(item, first + before, places)

    def evaluate(self, batch: Batch, metrics: Metrics, stage: str) -> None:
        """Adds a batch to the metrics."""
        self.scored_tokens(metrics, batch)

    @property
    def fills_batches(self) -> bool:
        """False for ``masked_lm``, which fills in all masks at once; see ``GenerativeTask``."""
        return self.objective != "masked_lm"

    def predict_batch(self, texts: Sequence[str]) -> Sequence[Prediction]:
        """Returns each text with its masks filled in; a decoder-only model continues the text instead.

        The masks are <mask>, or <extra_id_0>, <extra_id_1>, ... for span corruption (by their names in the tokenizer).
        """
        special = self.tokenizer.special
        if self.objective == "next_token":
            return self.answer([special.opening(ids) for ids in self.tokenizer.encode(texts)])
        marks = special.sentinels if self.objective == "span_corruption" else [self.mask]
        sources = self.tokenizer.encode_marked(texts, marks)
        if self.objective != "masked_lm":
            return self.answer([self.build_prompt(ids) for ids in sources])
        given = [special.single(ids) for ids in sources]
        batch = collate([EncodedExample(np.array(ids), np.array(ids)) for ids in given]).to(self.device)
        filled = batch.inputs.where(batch.inputs != self.mask, self.forward(batch).argmax(-1))
        return [self.tokenizer.decode(row[: len(ids)].tolist()) for row, ids in zip(filled, given, strict=True)]

    def text_of(self, ids: Sequence[int], given: Sequence[int]) -> str:
        """Decodes tokens (see ``GenerativeTask``); generated spans are inserted into the whole text."""
        if self.objective == "span_corruption":
            ids = restore_spans(given, ids, self.tokenizer.special.sentinels)
        return self.tokenizer.decode(ids)


def mask_tokens(
    ids: Int[np.ndarray, " length"],
    begins_word: Bool[np.ndarray, " length"],
    share: float,
    mask: int,
    others: Int[np.ndarray, " others"],
    random: np.random.Generator,
) -> tuple[Int[np.ndarray, " length"], Int[np.ndarray, " length"]]:
    """Masks tokens for masked language modeling (Devlin et al. 2019, section 3.1).

    Of the chosen tokens, 80 % become the mask, 10 % a random token, and 10 % stay.

    Args:
        begins_word: True where a word begins; words are chosen as a whole. (All True: single tokens are chosen.)
        share: fraction of the tokens to choose; the number of words, in random order, is the one that comes closest to
            it, and at least one.
        mask: the mask token.
        others: tokens to draw random tokens from.

    Returns:
        The input tokens, and the labels: the chosen tokens at their positions.
    """
    word = begins_word.cumsum() - 1
    sizes = np.bincount(word)
    order = random.permutation(len(sizes))
    distance = np.abs(sizes[order].cumsum() - num_hidden(len(ids), share))
    chosen = np.isin(word, order[: distance.argmin() + 1]) if len(ids) else np.zeros(0, dtype=bool)
    kind = random.random(len(ids))
    hidden = np.where(kind < 0.8, mask, np.where(kind < 0.9, random.choice(others, len(ids)), ids))
    return np.where(chosen, hidden, ids), np.where(chosen, ids, IGNORE_INDEX)


def mask_spans(
    ids: Sequence[int], share: float, mean_span_length: float, mask: int, random: np.random.Generator
) -> list[int]:
    """Replaces spans by one mask each, for text infilling (Lewis et al. 2020, section 2.2).

    The span lengths are drawn from a Poisson distribution; a span of length 0 inserts a mask between two tokens.

    Args:
        share: fraction of the tokens that is hidden; the last span is shortened to match it.
        mean_span_length: mean of the Poisson distribution.
        mask: the mask token.
    """
    source, lengths = list(ids), list[int]()
    to_hide = num_hidden(len(ids), share)
    while (left := to_hide - sum(lengths)) > 0:
        lengths.append(min(int(random.poisson(mean_span_length)), left))
    for span in reversed(place_spans(lengths, len(ids), random)):
        source[span] = [mask]
    return source


def corrupt_spans(
    ids: Sequence[int], share: float, mean_span_length: float, sentinels: Sequence[int], random: np.random.Generator
) -> tuple[list[int], list[int]]:
    """Replaces each span by a different sentinel, for span corruption (Raffel et al. 2020, section 3.1.4).

    The target is each sentinel followed by its span, and one more sentinel.

    Args:
        share: fraction of the tokens that is hidden.
        mean_span_length: the number of spans is that of the hidden tokens divided by it, at least one, and at most one
            less than the number of sentinels (then the spans are longer).
        sentinels: sentinels in the order of the spans.
        random: generator of all draws; every division of the hidden tokens into spans is equally likely.

    Returns:
        The source and the target.
    """
    if not ids:
        return [], [sentinels[0]]
    to_hide = num_hidden(len(ids), share)
    count = min(max(1, round(to_hide / mean_span_length)), len(sentinels) - 1)
    cuts = np.sort(random.choice(to_hide - 1, count - 1, replace=False)) + 1
    source, target = list(ids), list[int]()
    spans = place_spans(np.diff([0, *cuts, to_hide]).tolist(), len(ids), random)
    for span, sentinel in zip(spans, sentinels, strict=False):
        target += [sentinel, *ids[span]]
    for span, sentinel in reversed(list(zip(spans, sentinels, strict=False))):
        source[span] = [sentinel]
    return source, [*target, sentinels[len(spans)]]


def restore_spans(source: Sequence[int], target: Sequence[int], sentinels: Sequence[int]) -> list[int]:
    """Restores the text from the source and target of ``corrupt_spans``.

    Args:
        source: text with sentinels; a sentinel that the target lacks is removed.
        target: spans after the same sentinels.
        sentinels: all sentinels of the tokenizer.
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
    """Returns the number of hidden tokens of a text: its fraction, rounded, and at least one."""
    return min(max(1, round(share * length)), length)


def place_spans(lengths: Sequence[int], length: int, random: np.random.Generator) -> list[slice]:
    """Places spans in a text, not adjacent, each placement equally likely, and returns them from left to right.

    Args:
        lengths: lengths of the spans, in any order; if too few tokens remain to separate them, the last ones are
            merged.
    """
    most = length - sum(lengths) + 1  # positions between, before and after the remaining tokens
    if len(lengths) > most:
        lengths = [*lengths[: most - 1], sum(lengths[most - 1 :])]
    ordered = random.permutation(lengths)
    before = np.sort(random.choice(most, len(lengths), replace=False))  # remaining tokens before each span
    starts = before + ordered.cumsum() - ordered
    return [slice(start, start + size) for start, size in zip(starts.tolist(), ordered.tolist(), strict=True)]
