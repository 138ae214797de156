"""Tables whose rows name files."""

from dataclasses import dataclass
from pathlib import Path

from triptych.data.corpora.table import TableCorpus
from triptych.data.example import Example
from triptych.data.readers.tables import FORMATS


@dataclass(kw_only=True)
class TableOfFiles(TableCorpus):
    """A table whose rows have the path of a file. Its name says what it is: .tsv, .csv, .jsonl or .parquet, as of
    ``LabelledText``; the first line of .tsv and .csv names the columns."""

    formats = FORMATS

    def file_of(self, example: Example) -> Path:
        """The file that a row names.

        Raises:
            ValueError: there is no such file.
        """
        path = Path(self.dir, example.text)
        if not path.is_file():
            raise ValueError(f"{example.where}: {path}: no such file")
        return path
