"""Files of sound, with what is said in them or their classes, in tables."""

from collections.abc import Iterator
from pathlib import Path

from triptych.data.corpora.table import RowCorpus
from triptych.data.example import Example, Place
from triptych.data.readers.columns import Columns, with_sound
from triptych.data.readers.files import check_files, find
from triptych.data.readers.tables import FORMATS, Row, table_rows


class AudioFiles(RowCorpus[str]):
    """A table whose rows have the path of a file of sound (wav, flac, mp3 or ogg), and a text or a label. Its name says
    what it is: .tsv, .csv, .jsonl or .parquet, as of ``LabelledText``; the first line of .tsv and .csv names the
    columns.

    Args:
        dir: folder of the tables, and of the files that they name.
        train: name of the table of the training examples; None: only the test is read.
        validation: likewise, or a share of the training examples; None: there are none.
        test: likewise, or a share of the training examples.
        sound: column of the paths, below ``dir``.
        target: column of what is said; None: there is none.
        label: column of the classes; None: there is none.
        speaker: column of who speaks, whose mean frame is taken from all that he says (see ``Task.hear``); None: nobody
            says.
        split_seed: of the draws of the shares.

    Raises:
        ValueError: no such table, or shares that leave nothing to train on.
    """

    columns = ("sound", "target", "label")

    def __init__(
        self,
        *,
        dir: str,
        train: str | None,
        validation: str | float | None,
        test: str | float,
        sound: str,
        target: str | None,
        label: str | None,
        speaker: str | None,
        split_seed: int,
    ) -> None:
        check_files(dir, FORMATS, train=train, validation=validation, test=test)
        used = Columns(sound=sound, target=target, label=label, speaker=speaker)
        super().__init__(dir, used, train, validation, test, split_seed)

    def rows(self, source: str) -> Iterator[tuple[Place, Row]]:
        """See ``RowCorpus``."""
        yield from table_rows(find(self.dir, "data", source), self.reader, None)

    def example(self, row: Row, place: Place) -> Example:
        """See ``RowCorpus``."""
        example = super().example(row, place)
        path = Path(self.dir, example.text)
        if not path.is_file():
            raise ValueError(f"{example.where}: {path}: no such file")
        return with_sound(example, self.reader, row, path)
