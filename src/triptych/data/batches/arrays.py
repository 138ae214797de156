"""A split of short texts as flat arrays: laid out once, read from the disk as it is."""

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Self, overload

import numpy as np
import torch
from jaxtyping import Bool, Int, Integer
from torch import Tensor

from triptych.data.batches.batch import IGNORE, Batch, Encoded
from triptych.data.example import Example


class Ragged:
    """Rows of unequal length, one after the other.

    Args:
        values: of all rows.
        ends: of each row in ``values``.
    """

    def __init__(self, values: Integer[np.ndarray, " values"], ends: Int[np.ndarray, " rows"]) -> None:
        self.values, self.ends = values, ends
        self.lengths: Int[np.ndarray, " rows"] = np.diff(ends, prepend=0)

    @classmethod
    def of(cls, rows: Sequence[Int[np.ndarray, " length"]]) -> Self:
        """These rows, in 32 bits."""
        values = np.concatenate([np.empty(0, np.int32), *(row.astype(np.int32) for row in rows)])
        return cls(values, np.cumsum([len(row) for row in rows], dtype=np.int64))

    def __getitem__(self, index: int) -> Int[np.ndarray, " length"]:
        """A row."""
        end = self.ends[index]
        return self.values[end - self.lengths[index] : end].astype(np.int64)

    def take(self, indices: Int[np.ndarray, " batch"]) -> Int[np.ndarray, " values"]:
        """Some rows, one after the other."""
        lengths = self.lengths[indices]
        begins = self.ends[indices] - lengths
        places = np.arange(lengths.sum()) + np.repeat(begins - (np.cumsum(lengths) - lengths), lengths)
        taken: Int[np.ndarray, " values"] = self.values[places].astype(np.int64)
        return taken

    def batch(
        self, indices: Int[np.ndarray, " batch"], value: int = 0, *, packed: bool
    ) -> tuple[Int[Tensor, "rows length"], Bool[Tensor, "rows length"]]:
        """Some rows as one matrix, and True where it is real.

        Args:
            indices: of the rows.
            value: what fills up.
            packed: whether they stand in one row, and nothing is filled up.
        """
        if packed:
            row = torch.from_numpy(self.take(indices)[None])
            return row, torch.ones_like(row, dtype=torch.bool)
        lengths = self.lengths[indices]
        mask = np.arange(lengths.max(initial=0)) < lengths[:, None]
        matrix = np.full(mask.shape, value, dtype=np.int64)
        matrix[mask] = self.take(indices)
        return torch.from_numpy(matrix), torch.from_numpy(mask)


class Chosen(Sequence[Example | None]):
    """Some examples of a split, each looked up where it is asked for.

    Args:
        examples: of the split.
        origins: the places of the chosen ones in it; -1: none is there.
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
        """Between processes go the examples themselves, and not the whole split."""
        return list, (self[:],)


@dataclass(frozen=True, slots=True)
class Lost:
    """What of a split the network will not see.

    Attributes:
        lines: of the split.
        too_long: lines that had to be cut or dropped.
        tokens: of all lines; of a pair of sides, those of the decoder.
        unknown: tokens that the tokenizer does not know.
    """

    lines: int
    too_long: int
    tokens: int
    unknown: int


class EncodedArrays:
    """A split whose examples are texts, laid out (an ``EncodedSet``).

    Args:
        tokens: see ``Encoded``, of all examples; as the next three.
        labels: see there.
        source: see there; None: there is none.
        prefix: see there.
        origins: the place of each in ``examples``; -1: it is of none.
        examples: where they come from.
        lost: of the split.
    """

    def __init__(
        self,
        tokens: Ragged,
        labels: Ragged,
        source: Ragged | None,
        prefix: Int[np.ndarray, " items"],
        origins: Int[np.ndarray, " items"],
        examples: Sequence[Example],
        lost: Lost,
    ) -> None:
        self.tokens, self.labels, self.source, self.prefix = tokens, labels, source, prefix
        self.origins, self.examples, self.lost = origins, examples, lost
        self.sizes: Int[np.ndarray, " items"] = tokens.lengths + (0 if source is None else source.lengths)
        scored = np.append(0, np.cumsum(labels.values != IGNORE))
        self.num_scored: Int[np.ndarray, " items"] = scored[labels.ends] - scored[labels.ends - labels.lengths]

    @classmethod
    def of(cls, items: Sequence[Encoded], examples: Sequence[Example], lost: Lost) -> Self:
        """The arrays of laid out examples.

        Args:
            items: each of an example of the split.
            examples: of the split.
            lost: see the class.
        """
        places = {id(example): place for place, example in enumerate(examples)}
        sources = [item.source for item in items if item.source is not None]
        return cls(
            Ragged.of([item.tokens for item in items]),
            Ragged.of([item.labels for item in items]),
            Ragged.of(sources) if sources else None,
            np.array([item.prefix for item in items], np.int64),
            np.array([places.get(id(item.example), -1) for item in items], np.int64),
            examples,
            lost,
        )

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], examples: Sequence[Example]) -> Self:
        """What ``as_arrays`` gave, with the examples of the same split."""
        tokens, labels, source = (
            Ragged(arrays[name], arrays[f"{name}_ends"]) if name in arrays else None
            for name in ("tokens", "labels", "source")
        )
        assert tokens is not None
        assert labels is not None
        lost = Lost(*arrays["lost"].tolist())
        return cls(tokens, labels, source, arrays["prefix"], arrays["origins"], examples, lost)

    def as_arrays(self) -> dict[str, np.ndarray]:
        """All but the examples, by name."""
        sides = {"tokens": self.tokens, "labels": self.labels, "source": self.source}
        arrays = {name: side.values for name, side in sides.items() if side is not None}
        arrays |= {f"{name}_ends": side.ends for name, side in sides.items() if side is not None}
        return {**arrays, "prefix": self.prefix, "origins": self.origins, "lost": np.array(astuple(self.lost))}

    @property
    def too_long(self) -> int:
        """See ``EncodedSet``."""
        return self.lost.too_long

    def padding(self, batch_size: int | None, batch_tokens: int | None) -> float:
        """Which share of the positions of padded batches would be padding, if all examples were sorted by length.

        Args:
            batch_size: examples of a batch; None: as many as have ``batch_tokens`` tokens.
            batch_tokens: the most tokens of a batch.
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

    def __getitem__(self, index: int) -> Encoded:
        """One example."""
        source = None if self.source is None else self.source[index]
        example = Chosen(self.examples, self.origins)[index]
        return Encoded(self.tokens[index], self.labels[index], source, int(self.prefix[index]), example)

    def collate(self, indices: Int[np.ndarray, " batch"], normalizer: int, *, packed: bool = False) -> Batch:
        """The batch of some examples, as ``triptych.data.collate`` makes it of each by itself.

        Args:
            indices: their numbers; at least one.
            normalizer: scored labels of the whole update.
            packed: whether texts stand in one row, without padding.
        """
        lengths = self.tokens.lengths[indices]
        has_label_each = np.array_equal(self.labels.lengths[indices], lengths)
        labels, _ = self.labels.batch(indices, IGNORE, packed=packed and has_label_each)
        tokens, mask = self.tokens.batch(indices, packed=packed)
        source, source_mask = (None, None) if self.source is None else self.source.batch(indices, packed=packed)
        return Batch(
            tokens=tokens,
            mask=mask,
            labels=labels,
            source=source,
            source_mask=source_mask,
            prefix=torch.from_numpy(self.prefix[indices]),
            normalizer=normalizer,
            examples=Chosen(self.examples, self.origins[indices]),
            num_real=int(self.sizes[indices].sum()),
            lengths=lengths.tolist() if packed else None,
            source_lengths=self.source.lengths[indices].tolist() if packed and self.source is not None else None,
            indices=indices,
        )
