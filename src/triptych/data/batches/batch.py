"""Encoded examples, and the batches that they are collated into."""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from triptych.data.example import Example

IGNORE = -100
"""The label of a position that is not scored (the default of torch's cross-entropy)."""


Given: TypeAlias = (
    Int[np.ndarray, " length"] | Float[np.ndarray, "frames mels"] | Float[np.ndarray, "channels height width"]
)
"""Tokens, frames of a sound, or the pixels of an image."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """An example as the network will see it.

    Attributes:
        tokens: what the only stack, or the decoder of the full model, reads; or the image, or the frames of a sound,
            that the only stack reads.
        labels: what it should answer: one at each position of ``tokens`` (IGNORE: not scored), or one for the whole.
        source: what the encoder of the full model reads; or the image, or the frames, that are given before the text.
        prefix: of one text with a beginning that is given (a source, the prefix of a language model), the number of
            leading labels that fall into it, one less than its tokens; of a pair of texts that is read as one, the
            place where the second begins; else 0.
        example: where it comes from; None for a window of a long text.
    """

    tokens: Given
    labels: Int[np.ndarray, " labels"]
    source: Given | None = None
    prefix: int = 0
    example: Example | None = None

    @property
    def size(self) -> int:
        """Tokens, or frames, that the network reads; examples of like size make batches with little padding. An image
        counts as one."""
        return sum(map(_size, self._sides))

    @property
    def longest(self) -> int:
        """Tokens of the longer side."""
        return max(map(_size, self._sides))

    @property
    def _sides(self) -> tuple[np.ndarray, ...]:
        return (self.tokens,) if self.source is None else (self.tokens, self.source)

    @property
    def num_scored(self) -> int:
        """Labels that count."""
        return int((self.labels != IGNORE).sum())


def _size(given: np.ndarray) -> int:
    return 1 if given.ndim == 3 else len(given)


class EncodedSet(Protocol):
    """A split, encoded: random access to its examples, and what the sampler must know of all of them."""

    @property
    def sizes(self) -> Int[np.ndarray, " examples"]:
        """Tokens of each example."""

    @property
    def num_scored(self) -> Int[np.ndarray, " examples"]:
        """Scored labels of each example."""

    @property
    def too_long(self) -> int:
        """Examples that had to be truncated or dropped."""

    def __getitem__(self, index: int) -> Encoded:
        """One example."""


class EncodedList:
    """A split whose examples are all in memory.

    Args:
        too_long: how many of the split had to be truncated or dropped.
    """

    def __init__(self, items: Sequence[Encoded], *, too_long: int = 0) -> None:
        self.items, self.too_long = items, too_long
        self.sizes: Int[np.ndarray, " examples"] = np.array([item.size for item in items])
        is_scored = np.concatenate([np.empty(0, np.int64), *(item.labels for item in items)]) != IGNORE
        ends = np.cumsum([len(item.labels) for item in items], dtype=np.int64)
        self.num_scored: Int[np.ndarray, " examples"] = np.diff(np.append(0, np.cumsum(is_scored))[ends], prepend=0)

    def __getitem__(self, index: int) -> Encoded:
        """One example."""
        return self.items[index]


class Batch:
    """Encoded examples side by side, texts padded on the right; or packed: one after the other in one row. (No
    dataclass: Lightning would assign to its fields.)

    Args:
        tokens: what the only stack, or the decoder of the full model, reads; or images.
        mask: True at real tokens; None: images, which have no padding.
        labels: what it should answer; IGNORE where nothing is scored.
        source: what the encoder of the full model reads, or what is given before the text.
        source_mask: True at real source tokens, or frames; None: images.
        prefix: see ``Encoded``.
        normalizer: scored labels of the whole update that this batch is a part of, over all ranks and accumulated
            batches; the loss is a sum divided by it.
        examples: where the rows come from.
        num_real: real tokens of ``tokens`` and ``source``.
        lengths: of the examples in the one row of ``tokens``; None: nothing is packed.
        source_lengths: of those in the one row of ``source``.
        indices: the numbers of the examples in their split (of windows, see ``TrainingWindows``); None: not known.

    Attributes:
        scored: the places of the scored labels, row by row.
    """

    def __init__(
        self,
        *,
        tokens: Int[Tensor, "batch length"] | Float[Tensor, "batch *size"],
        mask: Bool[Tensor, "batch length"] | None,
        labels: Int[Tensor, "batch labels"],
        source: Int[Tensor, "batch source"] | Float[Tensor, "batch *size"] | None,
        source_mask: Bool[Tensor, "batch source"] | None,
        prefix: Int[Tensor, " batch"],
        normalizer: int,
        examples: Sequence[Example | None],
        num_real: int,
        lengths: Sequence[int] | None = None,
        source_lengths: Sequence[int] | None = None,
        indices: Int[np.ndarray, "batch *place"] | None = None,
    ) -> None:
        self.tokens, self.mask, self.labels = tokens, mask, labels
        self.source, self.source_mask, self.prefix = source, source_mask, prefix
        self.normalizer, self.examples, self.num_real = normalizer, examples, num_real
        self.lengths, self.source_lengths, self.indices = lengths, source_lengths, indices
        self.scored: Int[Tensor, " scored"] = (labels.flatten() != IGNORE).nonzero()[:, 0]

    def to(self, device: torch.device, non_blocking: bool = False) -> "Batch":
        """The same batch on another device."""
        return self._mapped(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "Batch":
        """The same batch where a GPU can fetch it while others compute."""
        return self._mapped(Tensor.pin_memory)

    def _mapped(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        changed = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(changed, name, change(value))
        return changed

    @property
    def num_unscored(self) -> int:
        """Places of labels that are not scored."""
        return self.labels.numel() - len(self.scored)

    @property
    def num_slots(self) -> int:
        """Positions that are computed, padding included; an image counts as one."""
        sides = [(self.tokens, self.mask), *([] if self.source is None else [(self.source, self.source_mask)])]
        return sum(len(given) if mask is None else mask.numel() for given, mask in sides)


def pad(
    rows: Sequence[Int[np.ndarray, " length"] | Sequence[int]], value: int = 0, *, left: bool = False
) -> tuple[Int[Tensor, "rows longest"], Bool[Tensor, "rows longest"]]:
    """Rows of unequal length as one matrix, and True where it is real.

    Args:
        rows: token ids or labels.
        value: what fills up; a mask hides it, so any token does.
        left: whether the padding stands before the row instead of after it.
    """
    longest = max((len(row) for row in rows), default=0)
    matrix = np.full((len(rows), longest), value, dtype=np.int64)
    mask = np.zeros((len(rows), longest), dtype=bool)
    for i, row in enumerate(rows):
        place = slice(longest - len(row), longest) if left else slice(len(row))
        matrix[i, place] = row
        mask[i, place] = True
    return torch.from_numpy(matrix), torch.from_numpy(mask)


def pad_frames(
    rows: Sequence[Float[np.ndarray, "frames mels"]],
) -> tuple[Float[Tensor, "rows longest mels"], Bool[Tensor, "rows longest"]]:
    """Frames of sounds of unequal length, with zeros behind them, and True where they are real."""
    lengths = [len(row) for row in rows]
    padded = np.zeros((len(rows), max(lengths), rows[0].shape[1]), dtype=np.float32)
    for row, target in zip(rows, padded, strict=True):
        target[: len(row)] = row
    return torch.from_numpy(padded), torch.from_numpy(np.arange(max(lengths)) < np.array(lengths)[:, None])


def side_by_side(rows: Sequence[np.ndarray]) -> tuple[Tensor, Tensor | None]:
    """Tokens, frames of sounds, or images, as one tensor, and True at what is real; None: all is."""
    if rows and rows[0].ndim == 3:
        return torch.from_numpy(np.stack(rows)), None
    return pad_frames(rows) if rows and rows[0].ndim == 2 else pad(rows)


def collate(
    items: Sequence[Encoded],
    normalizer: int | None = None,
    *,
    packed: bool = False,
    indices: Int[np.ndarray, "batch *place"] | None = None,
) -> Batch:
    """The batch of these examples.

    Args:
        items: encoded examples, all with a source or all without; none: an empty batch.
        normalizer: scored labels of the whole update; None: those of this batch.
        packed: whether texts stand in one row, without padding.
        indices: their numbers in their split; None: not known.
    """
    rows, labels = [item.tokens for item in items], [item.labels for item in items]
    sources = [item.source for item in items if item.source is not None]
    is_packed = packed and bool(rows) and all(row.ndim == 1 for row in (*rows[:1], *sources[:1]))
    lengths = source_lengths = None
    if is_packed:
        lengths, source_lengths = ([len(row) for row in side] if side else None for side in (rows, sources))
        if all(len(answers) == len(row) for answers, row in zip(labels, rows, strict=True)):
            labels = [np.concatenate(labels)]
        rows, sources = ([np.concatenate(side)] if side else [] for side in (rows, sources))
    tokens, mask = side_by_side(rows)
    source, source_mask = side_by_side(sources) if sources else (None, None)
    return Batch(
        tokens=tokens,
        mask=mask,
        labels=pad(labels, IGNORE)[0],
        source=source,
        source_mask=source_mask,
        prefix=torch.tensor([item.prefix for item in items]),
        normalizer=sum(item.num_scored for item in items) if normalizer is None else normalizer,
        examples=[item.example for item in items],
        num_real=sum(item.size for item in items),
        lengths=lengths,
        source_lengths=source_lengths,
        indices=indices,
    )


def nothing(item: Encoded, normalizer: int) -> Batch:
    """A batch without examples, for a process that has none while others have: the network reads ``item`` and is scored
    on nothing, so that each parameter gets a gradient, which is zero.

    Args:
        normalizer: see ``collate``.
    """
    batch = collate([replace(item, labels=np.full_like(item.labels, IGNORE))], normalizer)
    batch.examples, batch.num_real = [], 0
    return batch
