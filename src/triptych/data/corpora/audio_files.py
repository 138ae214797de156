"""Audio files with transcripts or classes, in tables."""

from dataclasses import dataclass, replace
from pathlib import Path

from triptych.data.audio import read_audio
from triptych.data.corpora.file_rows import FileRows
from triptych.data.corpora.table_of_files import TableOfFiles
from triptych.data.example import Example
from triptych.data.readers.columns import content_of, speaker_of
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
    plural = "audio clips"

    audio: str
    target: str | None
    label: str | None
    speaker: str | None

    def decode(self, example: Example, row: Row, path: Path) -> tuple[Example, tuple[str, ...]]:
        sound, done = read_audio(path, content_of(row[self.audio]))
        return replace(example, audio=replace(sound, speaker=speaker_of(self.reader, row))), done


@dataclass(kw_only=True)
class AudioFiles(AudioRows, TableOfFiles):
    """A table of audio files (wav, flac, mp3 or ogg) with a text or a label; see ``AudioRows`` and ``TableOfFiles``."""
