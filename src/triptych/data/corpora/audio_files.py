"""Files of sound, with what is said in them or their classes, in tables."""

from triptych.data.corpora.table_of_files import TableOfFiles
from triptych.data.example import Example, Place
from triptych.data.readers.audio import AudioReader
from triptych.data.readers.columns import Columns
from triptych.data.readers.tables import Row


class AudioFiles(TableOfFiles):
    """A table whose rows have the path of a file of sound (wav, flac, mp3 or ogg), and a text or a label; see
    ``TableOfFiles``.

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
        self.audio = AudioReader()
        columns = Columns(sound=sound, target=target, label=label, speaker=speaker)
        super().__init__(dir, columns, train, validation, test, split_seed)

    def example(self, row: Row, place: Place) -> Example:
        """See ``RowCorpus``."""
        example = super().example(row, place)
        return self.audio.with_audio(example, self.reader, row, self.file_of(example))

    def _read(self, source: str) -> list[Example]:
        examples = super()._read(source)
        self.audio.report_changes(source)
        return examples
