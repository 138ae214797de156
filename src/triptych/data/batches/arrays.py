"""Encoded splits of short texts as flat arrays, which are cached on disk.

Tested by tests/data/corpora/test_example_cache.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from typing import Self, overload

import numpy as np
import torch
from jaxtyping import Bool, Int, Integer
from torch import Tensor

from triptych.data.batches.batch import IGNORE_INDEX, Batch, EncodedExample
from triptych.data.example import Example


class Ragged:
    """Rows of unequal length, concatenated.

    Args:
        values: values of all rows.
        ends: end of each row in ``values``.
    """

    def __init__(self, values: Integer[np.ndarray, " values"], ends: Int[np.ndarray, " rows"]) -> None:
        self.values, self.ends = values, ends

    @cached_property
    def lengths(self) -> Int[np.ndarray, " rows"]:
        return np.diff(self.ends, prepend=0)

    @classmethod
    def of(cls, rows: Sequence[Int[np.ndarray, " length"]]) -> Self:
        """Concatenates rows, as 32-bit integers."""
        values = np.concatenate([np.empty(0, np.int64), *rows])
        return cls(values.astype(np.int32), np.cumsum([len(row) for row in rows], dtype=np.int64))

    @classmethod
    def join(cls, parts: Sequence["Ragged"]) -> Self:
        """Concatenates the rows of several parts."""
        begins = np.cumsum([0, *(len(part.values) for part in parts)])
        ends = [part.ends + begin for part, begin in zip(parts, begins, strict=False)]
        return cls(np.concatenate([part.values for part in parts]), np.concatenate(ends))

    def __getitem__(self, index: int) -> Int[np.ndarray, " length"]:
        end = self.ends[index]
        return self.values[end - self.lengths[index] : end].astype(np.int64)

    def take(self, indices: Int[np.ndarray, " batch"]) -> Int[np.ndarray, " values"]:
        """Returns some rows, concatenated."""
        lengths = self.lengths[indices]
        begins = self.ends[indices] - lengths
        places = np.arange(lengths.sum()) + np.repeat(begins - (np.cumsum(lengths) - lengths), lengths)
        return np.asarray(self.values[places], np.int64)

    def batch(
        self, indices: Int[np.ndarray, " batch"], value: int = 0, *, packed: bool
    ) -> tuple[Int[Tensor, "rows length"], Bool[Tensor, "rows length"]]:
        """Returns some rows as a matrix, and a mask that is True at non-padding positions.

        Args:
            indices: numbers of the rows.
            value: padding value.
            packed: whether to concatenate the rows into one, without padding.
        """
        if packed:
            row = torch.from_numpy(self.take(indices)[None])
            return row, torch.ones_like(row, dtype=torch.bool)
        lengths = self.lengths[indices]
        mask = np.arange(lengths.max(initial=0)) < lengths[:, None]
        matrix = np.full(mask.shape, value, dtype=np.int64)
        matrix[mask] = self.take(indices)
        return torch.from_numpy(matrix), torch.from_numpy(mask)


class ExampleView(Sequence[Example | None]):
    """Some examples of a split, looked up on access.

    Args:
        examples: examples of the split.
        origins: indices into ``examples``; -1: no example.
    """

    def __init__(self, examples: Sequence[Example], origins: Int[np.ndarray, " chosen"]) -> None:
        self._examples, self._origins = examples, origins

    def __len__(self) -> int:
        return len(self._origins)

    @overload
    def __getitem__(self, index: int) -> Example | None: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Example | None]: ...

    def __getitem__(self, index: int | slice) -> Example | Sequence[Example | None] | None:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        origin = int(self._origins[index])
        return None if origin < 0 else self._examples[origin]

    def __reduce__(self) -> tuple[type, tuple[Sequence[Example | None]]]:
        """Pickles only these examples, not the whole split."""
        return list, (self[:],)


@dataclass(frozen=True, slots=True)
class EncodingStats:
    """Statistics of truncated, dropped and unknown input of a split.

    Attributes:
        lines: number of examples.
        too_long: number of examples that were truncated or dropped.
        tokens: number of tokens; with an encoder and a decoder, of the decoder.
        unknown: number of unknown tokens.
    """

    lines: int
    too_long: int
    tokens: int
    unknown: int

    @classmethod
    def total(cls, parts: Sequence["EncodingStats"]) -> Self:
        """Adds the statistics of parts."""
        return cls(*(sum(column) for column in zip(*map(astuple, parts), strict=True))) if parts else cls(0, 0, 0, 0)


@dataclass(eq=False, repr=False)
class EncodedArrays:
    """An encoded split of texts (an ``EncodedDataset``).

    Args:
        tokens: ``EncodedExample.tokens`` of all items.
        labels: ``EncodedExample.labels`` of all items.
        source: ``EncodedExample.source`` of all items; None: no sources.
        prefix: ``EncodedExample.prefix`` of all items.
        origins: index of each item's example in ``examples``; -1: no example.
        examples: examples of the split.
        lost: statistics of the split.
    """

    tokens: Ragged
    labels: Ragged
    source: Ragged | None
    prefix: Int[np.ndarray, " items"]
    origins: Int[np.ndarray, " items"]
    examples: Sequence[Example]
    lost: EncodingStats

    @cached_property
    def sizes(self) -> Int[np.ndarray, " items"]:
        return self.tokens.lengths + (0 if self.source is None else self.source.lengths)

    @cached_property
    def num_scored(self) -> Int[np.ndarray, " items"]:
        labels, scored = self.labels, np.append(0, np.cumsum(self.labels.values != IGNORE_INDEX))
        return np.asarray(scored[labels.ends] - scored[labels.ends - labels.lengths])

    @classmethod
    def of(cls, items: Sequence[EncodedExample], examples: Sequence[Example], lost: EncodingStats) -> Self:
        """Makes the arrays from encoded examples.

        Args:
            items: encoded examples.
            examples: examples of the split.
            lost: statistics of the split.
        """
        places = {id(example): place for place, example in enumerate(examples)}
        sources = [item.source for item in items if item.source is not None]
        return cls(
            Ragged.of([item.inputs for item in items]),
            Ragged.of([item.labels for item in items]),
            Ragged.of(sources) if sources else None,
            np.array([item.prefix for item in items], np.int64),
            np.array([places.get(id(item.example), -1) for item in items], np.int64),
            examples,
            lost,
        )

    def in_split(self, examples: Sequence[Example], begin: int) -> "EncodedArrays":
        """Returns the items as those of a split whose examples from ``begin`` on are ``self.examples``."""
        return replace(self, examples=examples, origins=np.where(self.origins < 0, -1, self.origins + begin))

    @classmethod
    def join(cls, parts: Sequence["EncodedArrays"]) -> Self:
        """Concatenates items of the same split."""
        sources = [part.source for part in parts if part.source is not None]
        return cls(
            Ragged.join([part.tokens for part in parts]),
            Ragged.join([part.labels for part in parts]),
            Ragged.join(sources) if sources else None,
            np.concatenate([part.prefix for part in parts]),
            np.concatenate([part.origins for part in parts]),
            parts[0].examples,
            EncodingStats.total([part.lost for part in parts]),
        )

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], examples: Sequence[Example]) -> Self:
        """Inverse of ``as_arrays``, given the examples of the same split."""
        names = [name for name in ("tokens", "labels", "source") if name in arrays]
        sides = {name: Ragged(arrays[name], arrays[f"{name}_ends"]) for name in names}
        prefix, origins, lost = arrays["prefix"], arrays["origins"], EncodingStats(*arrays["lost"].tolist())
        return cls(sides["tokens"], sides["labels"], sides.get("source"), prefix, origins, examples, lost)

    def as_arrays(self) -> dict[str, np.ndarray]:
        """Returns all data except the examples, by name."""
        sides = {"tokens": self.tokens, "labels": self.labels, "source": self.source}
        arrays = {name: side.values for name, side in sides.items() if side is not None}
        arrays |= {f"{name}_ends": side.ends for name, side in sides.items() if side is not None}
        return {**arrays, "prefix": self.prefix, "origins": self.origins, "lost": np.array(astuple(self.lost))}

    @property
    def too_long(self) -> int:
        """Number of examples that were truncated or dropped."""
        return self.lost.too_long

    def padding(self, batch_size: int | None, batch_tokens: int | None) -> float:
        """Returns the fraction of padding positions in padded batches of examples that are sorted by length.

        Args:
            batch_size: examples per batch; None: batches of up to ``batch_tokens`` tokens.
            batch_tokens: maximum number of tokens per batch.
        """
        order = np.argsort(self.sizes, kind="stable")
        if batch_size is None:
            assert batch_tokens is not None
            number = np.cumsum(self.sizes[order]) // batch_tokens
        else:
            number = np.arange(len(order)) // batch_size
        begins = np.flatnonzero(np.diff(number, prepend=-1))
        rows = np.diff(begins, append=len(order))
        sides = [side.lengths[order] for side in (self.tokens, self.source) if side is not None]
        positions = sum(int((np.maximum.reduceat(lengths, begins) * rows).sum()) for lengths in sides)
        return 1 - int(self.sizes.sum()) / positions

    def __getitem__(self, index: int) -> EncodedExample:
        source = None if self.source is None else self.source[index]
        example = ExampleView(self.examples, self.origins)[index]
        return EncodedExample(self.tokens[index], self.labels[index], source, int(self.prefix[index]), example)

    def collate(self, indices: Int[np.ndarray, " batch"], num_labels_in_step: int, *, packed: bool = False) -> Batch:
        """Makes the same batch as ``triptych.data.collate``.

        Args:
            indices: indices of the examples; at least one.
            num_labels_in_step: number of labels in the whole step that count towards the loss.
            packed: whether to concatenate the texts into one row, without padding.
        """
        lengths = self.tokens.lengths[indices]
        has_label_each = np.array_equal(self.labels.lengths[indices], lengths)
        labels, _ = self.labels.batch(indices, IGNORE_INDEX, packed=packed and has_label_each)
        tokens, mask = self.tokens.batch(indices, packed=packed)
        source, source_mask = (None, None) if self.source is None else self.source.batch(indices, packed=packed)
        return Batch(
            inputs=tokens,
            mask=mask,
            labels=labels,
            source=source,
            source_mask=source_mask,
            prefix=torch.from_numpy(self.prefix[indices]),
            num_labels_in_step=num_labels_in_step,
            examples=ExampleView(self.examples, self.origins[indices]),
            num_nonpadding=int(self.sizes[indices].sum()),
            lengths=lengths.tolist() if packed else None,
            source_lengths=self.source.lengths[indices].tolist() if packed and self.source is not None else None,
            indices=indices,
        )
