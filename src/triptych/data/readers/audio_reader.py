"""Reads the audio files of a corpus, all with samples from -1 to 1.

Tested by tests/data/corpora/test_audio_files.py.
"""

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from triptych.config import counted, error_prefix
from triptych.data.audio import Audio, read_audio
from triptych.data.example import Example
from triptych.data.readers.columns import Columns, content_of, speaker_of

log = logging.getLogger(__name__)


class AudioReader:
    """Reads audio and counts the changes that ``read_audio`` makes."""

    def __init__(self) -> None:
        self._done, self._count = Counter[str](), 0

    def read(self, path: Path, content: bytes | None = None) -> Audio:
        """Like ``read_audio``, without the changes."""
        sound, done = read_audio(path, content)
        self._done.update(done)
        self._count += 1
        return sound

    def with_audio(self, example: Example, columns: Columns, row: Mapping[str, object], path: Path) -> Example:
        """Returns the example of a row with its audio and speaker.

        Args:
            row: values by column; the audio is a path, or bytes with a path.
            path: audio file, for rows without bytes.
        """
        assert columns.audio is not None
        with error_prefix(f"{example.where}: "):
            sound = self.read(path, content_of(row[columns.audio]))
        return replace(example, audio=replace(sound, speaker=speaker_of(columns, row)))

    def report_changes(self, source: str) -> None:
        """Logs the changes to the audio of a source, if any, and resets the counts."""
        if self._done:
            log.warning(
                "%s of %s: %s rescaled (floats in the range of 16-bit integers), %s clipped (above 1)",
                counted(self._count, "audio clip"), source, f"{self._done['rescaled']:,}", f"{self._done['clipped']:,}",
            )  # fmt: skip
        self._done, self._count = Counter(), 0
