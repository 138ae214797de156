"""Minimal pairs: two sentences, of which only one is grammatical (Warstadt et al. 2020).

Tested by tests/report/test_pair_scores.py.
"""

from collections import Counter
from dataclasses import dataclass

from triptych.data.readers.columns import Columns, MissingColumnError
from triptych.data.readers.files import check_files, resolve_file
from triptych.data.readers.tables import FORMATS, table_rows

COUNTED_AS = {"s-selection": "argument_structure"}
"""Phenomena of BLiMP's files that its tables count as others."""
SETTINGS = {"text": "good", "text_pair": "bad", "label": "paradigm", "target": "phenomenon"}
"""The setting of each field of ``Columns``."""


@dataclass(frozen=True, slots=True)
class MinimalPair:
    """A minimal pair.

    Attributes:
        good: the grammatical sentence.
        bad: the other one.
        paradigm: name of the contrast, such as "wh_island".
        phenomenon: name of the group of paradigms, such as "island_effects".
    """

    good: str
    bad: str
    paradigm: str
    phenomenon: str

    @property
    def prefix(self) -> str:
        """The common first words."""
        words = []
        for one, other in zip(self.good.split(" "), self.bad.split(" "), strict=False):
            if one != other:
                break
            words.append(one)
        return " ".join(words)

    @property
    def is_permutation(self) -> bool:
        """Whether both sentences have the same words, apart from the mark at the end, so that frequencies of words
        cannot tell them apart."""
        one, other = (sorted(text.lower().rstrip(".?!").split()) for text in (self.good, self.bad))
        return one == other


@dataclass(frozen=True, kw_only=True)
class MinimalPairs:
    """A table of minimal pairs, for ``triptych evaluate``.

    Args:
        dir: folder of the table.
        test: name of the table: .jsonl, .tsv, .csv or .parquet, possibly compressed.
        good: column of the grammatical sentences.
        bad: column of the others.
        paradigm: column of the paradigms.
        phenomenon: column of the phenomena.
        pairs_per_paradigm: number of pairs per paradigm, the first ones; None: all.

    Raises:
        ValueError: no such table, or a number less than 1.
    """

    dir: str
    test: str
    good: str
    bad: str
    paradigm: str
    phenomenon: str
    pairs_per_paradigm: int | None

    def __post_init__(self) -> None:
        check_files(self.dir, FORMATS, test=self.test)
        if self.pairs_per_paradigm is not None and self.pairs_per_paradigm < 1:
            raise ValueError(f"data.pairs_per_paradigm={self.pairs_per_paradigm}: expected at least 1, or null")

    def read(self) -> list[MinimalPair]:
        """Returns the pairs.

        Raises:
            ValueError: a row that cannot be read, with its place, or no rows.
        """
        path = resolve_file(self.dir, "data.test", self.test)
        columns = Columns(text=self.good, text_pair=self.bad, label=self.paradigm, target=self.phenomenon)
        pairs, counts = list[MinimalPair](), Counter[str]()
        try:
            for place, row in table_rows(path, columns):
                read = columns.example(row, place)
                paradigm, phenomenon = read.label or "", read.target or ""
                counts[paradigm] += 1
                if self.pairs_per_paradigm is None or counts[paradigm] <= self.pairs_per_paradigm:
                    counted_as = COUNTED_AS.get(phenomenon, phenomenon)
                    pairs.append(MinimalPair(read.text, read.text_pair or "", paradigm, counted_as))
        except MissingColumnError as error:
            key = SETTINGS[error.field]
            raise ValueError(str(error).replace(f"data.{error.field}=", f"data.{key}=")) from None
        if not pairs:
            raise ValueError(f"{path}: no rows; expected minimal pairs")
        return pairs
