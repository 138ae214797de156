"""Audio files with transcripts or classes, in tables."""

from dataclasses import dataclass
from functools import cached_property

from triptych.data.corpora.file_rows import FileRows
from triptych.data.corpora.table_of_files import TableOfFiles
from triptych.data.example import Example, SourceLocation
from triptych.data.readers.audio_reader import AudioReader
from triptych.data.readers.tables import Row


@dataclass(kw_only=True)
class AudioRows(FileRows):
    """Rows with an audio clip, and a text or a label.

    Attributes:
        audio: column of the file paths below ``dir``; in Hugging Face datasets, of the audio.
        target: column of the transcripts; None: no transcripts.
        label: column of the classes; None: no classes.
        speaker: column of the speakers, whose mean frames are subtracted (see ``AudioInputs``); None: unknown speakers.
    """

    columns = ("audio", "target", "label")

    audio: str
    target: str | None
    label: str | None
    speaker: str | None

    @cached_property
    def audio_reader(self) -> AudioReader:
        return AudioReader()

    def example(self, row: Row, place: SourceLocation) -> Example:
        example = super().example(row, place)
        return self.audio_reader.with_audio(example, self.reader, row, self.file_of(example))

    def report_changes(self, source: str) -> None:
        self.audio_reader.report_changes(source)


@dataclass(kw_only=True)
class AudioFiles(AudioRows, TableOfFiles):
    """A table of audio files (wav, flac, mp3 or ogg) with a text or a label; see ``AudioRows`` and ``TableOfFiles``."""
