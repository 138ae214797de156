"""Encoded examples, and their collation into batches."""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from triptych.data.example import Example

IGNORE_INDEX = -100
"""The label of a position that does not count towards the loss (the default of PyTorch's cross-entropy)."""


Given: TypeAlias = (
    Int[np.ndarray, " length"] | Float[np.ndarray, "frames mels"] | Float[np.ndarray, "channels height width"]
)
"""Tokens, audio frames, or pixels of an image."""


@dataclass(frozen=True, slots=True)
class EncodedExample:
    """An example as input of the network.

    Attributes:
        inputs: input of an encoder-only or decoder-only model, or of the decoder of the full (encoder-decoder) model:
            tokens, audio frames or an image.
        labels: one label per position of ``inputs``, or one for the whole; IGNORE_INDEX: not counted in the loss.
        source: input of the encoder of the full model; or the image or audio frames that precede the text.
        prefix: for a text with a given beginning (a source, or the prefix of a language model), the number of labels
            within the beginning. It is one less than the tokens of the beginning. For two texts read as one, the start
            of the second; else 0.
        example: the original example; None for a window of a long text.
    """

    inputs: Given
    labels: Int[np.ndarray, " labels"]
    source: Given | None = None
    prefix: int = 0
    example: Example | None = None

    @property
    def size(self) -> int:
        """Number of tokens or frames of both sides; an image counts as one. Batches of examples of similar size have
        little padding."""
        return sum(map(_size, self._sides))

    @property
    def longest(self) -> int:
        """Number of tokens of the longer side."""
        return max(map(_size, self._sides))

    @property
    def _sides(self) -> tuple[np.ndarray, ...]:
        return (self.inputs,) if self.source is None else (self.inputs, self.source)

    @property
    def num_scored(self) -> int:
        """Number of labels that count towards the loss."""
        return int((self.labels != IGNORE_INDEX).sum())


def _size(given: np.ndarray) -> int:
    return 1 if given.ndim == 3 else len(given)


class EncodedDataset(Protocol):
    """An encoded split: random access to its examples, and the sizes that samplers need."""

    @property
    def sizes(self) -> Int[np.ndarray, " examples"]:
        """Number of tokens of each example."""

    @property
    def num_scored(self) -> Int[np.ndarray, " examples"]:
        """Number of labels of each example that count towards the loss."""

    @property
    def too_long(self) -> int:
        """Number of examples that were truncated or dropped."""

    def __getitem__(self, index: int) -> EncodedExample:
        """Returns one example."""


class EncodedListDataset:
    """An encoded split in memory.

    Args:
        items: encoded examples.
        too_long: number of examples that were truncated or dropped.
    """

    def __init__(self, items: Sequence[EncodedExample], *, too_long: int = 0) -> None:
        self.items, self.too_long = items, too_long
        self.sizes: Int[np.ndarray, " examples"] = np.array([item.size for item in items])
        is_scored = np.concatenate([np.empty(0, np.int64), *(item.labels for item in items)]) != IGNORE_INDEX
        ends = np.cumsum([len(item.labels) for item in items], dtype=np.int64)
        self.num_scored: Int[np.ndarray, " examples"] = np.diff(np.append(0, np.cumsum(is_scored))[ends], prepend=0)

    def __getitem__(self, index: int) -> EncodedExample:
        return self.items[index]


class Batch:
    """A batch of encoded examples: texts padded on the right, or packed into one row. It is not a dataclass because
    Lightning would assign to its fields.

    Args:
        inputs: see ``EncodedExample``.
        mask: True at non-padding positions of ``tokens``; None: images, which have no padding.
        labels: see ``EncodedExample``.
        source: see ``EncodedExample``.
        source_mask: True at non-padding positions of ``source``; None: images.
        prefix: see ``EncodedExample``.
        num_labels_in_step: number of labels that count towards the loss in the step, over all ranks and accumulated
            batches. The loss is a sum divided by this number.
        examples: original examples of the rows.
        num_nonpadding: number of non-padding positions of ``tokens`` and ``source``.
        lengths: lengths of the examples in the packed row of ``tokens``; None: not packed.
        source_lengths: lengths of the examples in the packed row of ``source``; None: not packed.
        indices: indices of the examples in their split (for windows, see ``TrainingWindows``); None: unknown.

    Attributes:
        scored: flat indices of the labels that count towards the loss.
        is_bidirectional: whether a decoder reads the texts from both sides (see ``mask_next_tokens``).
    """

    def __init__(
        self,
        *,
        inputs: Int[Tensor, "batch length"] | Float[Tensor, "batch *size"],
        mask: Bool[Tensor, "batch length"] | None,
        labels: Int[Tensor, "batch labels"],
        source: Int[Tensor, "batch source"] | Float[Tensor, "batch *size"] | None,
        source_mask: Bool[Tensor, "batch source"] | None,
        prefix: Int[Tensor, " batch"],
        num_labels_in_step: int,
        examples: Sequence[Example | None],
        num_nonpadding: int,
        lengths: Sequence[int] | None = None,
        source_lengths: Sequence[int] | None = None,
        indices: Int[np.ndarray, "batch *place"] | None = None,
    ) -> None:
        self.inputs, self.mask, self.labels = inputs, mask, labels
        self.source, self.source_mask, self.prefix = source, source_mask, prefix
        self.num_labels_in_step, self.examples, self.num_nonpadding = num_labels_in_step, examples, num_nonpadding
        self.lengths, self.source_lengths, self.indices = lengths, source_lengths, indices
        self.is_bidirectional = False
        self.scored: Int[Tensor, " scored"] = (labels.flatten() != IGNORE_INDEX).nonzero()[:, 0]

    def to(self, device: torch.device, non_blocking: bool = False) -> "Batch":
        return self._mapped(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "Batch":
        """Copies the batch to pinned memory, which a GPU can read asynchronously."""
        return self._mapped(Tensor.pin_memory)

    def _mapped(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        changed = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(changed, name, change(value))
        return changed

    @property
    def num_unscored(self) -> int:
        """Number of labels that do not count towards the loss."""
        return self.labels.numel() - len(self.scored)

    @property
    def num_with_padding(self) -> int:
        """Number of positions that are computed, including padding; an image counts as one."""
        sides = [(self.inputs, self.mask), *([] if self.source is None else [(self.source, self.source_mask)])]
        return sum(len(given) if mask is None else mask.numel() for given, mask in sides)


def pad(
    rows: Sequence[Int[np.ndarray, " length"] | Sequence[int]], value: int = 0, *, left: bool = False
) -> tuple[Int[Tensor, "rows longest"], Bool[Tensor, "rows longest"]]:
    """Pads rows to a matrix; returns it with a mask that is True at non-padding positions.

    Args:
        rows: token ids or labels.
        value: padding value; since a mask hides padding, any token works.
        left: whether to pad on the left.
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
    """Pads audio frames with zeros; returns them with a mask that is True at non-padding frames."""
    lengths = [len(row) for row in rows]
    padded = np.zeros((len(rows), max(lengths), rows[0].shape[1]), dtype=np.float32)
    for row, target in zip(rows, padded, strict=True):
        target[: len(row)] = row
    return torch.from_numpy(padded), torch.from_numpy(np.arange(max(lengths)) < np.array(lengths)[:, None])


def pad_and_stack(rows: Sequence[np.ndarray]) -> tuple[Tensor, Tensor | None]:
    """Stacks tokens, audio frames or images in one tensor; returns it with its mask (None for images)."""
    if rows and rows[0].ndim == 3:
        return torch.from_numpy(np.stack(rows)), None
    return pad_frames(rows) if rows and rows[0].ndim == 2 else pad(rows)


def collate(
    items: Sequence[EncodedExample],
    num_labels_in_step: int | None = None,
    *,
    packed: bool = False,
    indices: Int[np.ndarray, "batch *place"] | None = None,
) -> Batch:
    """Makes a batch of examples.

    Args:
        items: encoded examples, all with a source or all without; may be empty.
        num_labels_in_step: number of labels in the whole step that count towards the loss; None: of this batch.
        packed: whether to concatenate texts into one row, without padding.
        indices: indices of the examples in their split; None: unknown.
    """
    rows, labels = [item.inputs for item in items], [item.labels for item in items]
    sources = [item.source for item in items if item.source is not None]
    is_packed = packed and bool(rows) and all(row.ndim == 1 for row in (*rows[:1], *sources[:1]))
    lengths = source_lengths = None
    if is_packed:
        lengths, source_lengths = ([len(row) for row in side] if side else None for side in (rows, sources))
        if all(len(answers) == len(row) for answers, row in zip(labels, rows, strict=True)):
            labels = [np.concatenate(labels)]
        rows, sources = ([np.concatenate(side)] if side else [] for side in (rows, sources))
    tokens, mask = pad_and_stack(rows)
    source, source_mask = pad_and_stack(sources) if sources else (None, None)
    return Batch(
        inputs=tokens,
        mask=mask,
        labels=pad(labels, IGNORE_INDEX)[0],
        source=source,
        source_mask=source_mask,
        prefix=torch.tensor([item.prefix for item in items]),
        num_labels_in_step=sum(item.num_scored for item in items) if num_labels_in_step is None else num_labels_in_step,
        examples=[item.example for item in items],
        num_nonpadding=sum(item.size for item in items),
        lengths=lengths,
        source_lengths=source_lengths,
        indices=indices,
    )


def empty_batch(item: EncodedExample, num_labels_in_step: int) -> Batch:
    """Makes a batch without examples, for a rank that has none while others do. The network processes ``item`` without
    labels, so every parameter gets a zero gradient.

    Args:
        item: any encoded example.
        num_labels_in_step: see ``collate``.
    """
    batch = collate([replace(item, labels=np.full_like(item.labels, IGNORE_INDEX))], num_labels_in_step)
    batch.examples, batch.num_nonpadding = [], 0
    return batch
