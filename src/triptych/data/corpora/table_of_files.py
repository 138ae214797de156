"""Tables whose rows name files."""

from collections.abc import Iterator
from pathlib import Path

from triptych.data.corpora.table import RowCorpus
from triptych.data.example import Example, Place
from triptych.data.readers.columns import Columns
from triptych.data.readers.files import check_files, find
from triptych.data.readers.tables import FORMATS, Row, table_rows


class TableOfFiles(RowCorpus[str]):
    """A table whose rows have the path of a file. Its name says what it is: .tsv, .csv, .jsonl or .parquet, as of
    ``LabelledText``; the first line of .tsv and .csv names the columns.

    Args:
        dir: folder of the tables, and of the files that they name.
        columns: which column holds which field of an example.
        train: name of the table of the training examples; None: only the test is read.
        validation: likewise, or a share of the training examples; None: there are none.
        test: likewise, or a share of the training examples.
        split_seed: of the draws of the shares.

    Raises:
        ValueError: no such table, or shares that leave nothing to train on.
    """

    def __init__(
        self,
        dir: str,
        columns: Columns,
        train: str | None,
        validation: str | float | None,
        test: str | float,
        split_seed: int,
    ) -> None:
        check_files(dir, FORMATS, train=train, validation=validation, test=test)
        super().__init__(dir, columns, train, validation, test, split_seed)

    def rows(self, source: str) -> Iterator[tuple[Place, Row]]:
        """See ``RowCorpus``."""
        yield from table_rows(find(self.dir, "data", source), self.reader, None)

    def file_of(self, example: Example) -> Path:
        """The file that a row names.

        Raises:
            ValueError: there is no such file.
        """
        path = Path(self.dir, example.text)
        if not path.is_file():
            raise ValueError(f"{example.where}: {path}: no such file")
        return path
