"""Encoded splits of images and audio in files.

Tested by tests/assembly/test_files_on_demand.py.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from triptych.data.batches.arrays import EncodingStats
from triptych.data.batches.batch import EncodedExample
from triptych.data.example import Example


class EncodedOnDemand:
    """An encoded split (an ``EncodedDataset``) whose items are encoded whenever they are read.

    Args:
        parts: the items of successive examples, these examples, and what was left out. They are only measured.
        encode: encodes an example, given its index, as in ``parts``.
    """

    def __init__(
        self,
        parts: Iterable[tuple[Sequence[EncodedExample], Sequence[Example], EncodingStats]],
        encode: Callable[[int], EncodedExample],
    ) -> None:
        self._encode = encode
        origins, sizes, num_scored, losses, begin = list[int](), list[int](), list[int](), list[EncodingStats](), 0
        for items, examples, lost in parts:
            places = {id(example): place for place, example in enumerate(examples, begin)}
            origins += [places[id(item.example)] for item in items]
            sizes += [item.size for item in items]
            num_scored += [item.num_scored for item in items]
            losses.append(lost)
            begin += len(examples)
        self._origins, self.sizes, self.num_scored = origins, np.array(sizes), np.array(num_scored)
        self.lost = EncodingStats.total(losses)

    @property
    def too_long(self) -> int:
        """Number of examples that were truncated or dropped."""
        return self.lost.too_long

    def __getitem__(self, index: int) -> EncodedExample:
        return self._encode(self._origins[index])
