"""Tables whose rows name files.

Tested by tests/data/corpora/test_audio_files.py and tests/data/corpora/test_image_files.py.
"""

from dataclasses import dataclass
from pathlib import Path

from triptych.data.corpora.row_corpus import TableCorpus
from triptych.data.example import Example
from triptych.data.readers.tables import FORMATS


@dataclass(kw_only=True)
class TableOfFiles(TableCorpus):
    """A table whose rows contain the path of a file. The formats are .tsv, .csv, .jsonl and .parquet, as in
    ``LabelledText``; the first line of .tsv and .csv contains the column names."""

    formats = FORMATS

    @property
    def files(self) -> list[Path]:
        """None: the files that rows name may change, too."""
        return []

    def file_of(self, example: Example) -> Path:
        """Returns the file that a row names.

        Raises:
            ValueError: no such file.
        """
        path = Path(self.dir, example.text)
        if not path.is_file():
            raise ValueError(f"{example.where}: {path}: no such file")
        return path
