"""Reports of how files were changed when they were read.

Tested by tests/data/corpora/test_audio_files.py.
"""

import logging
from collections import Counter
from collections.abc import Iterable

log = logging.getLogger("triptych")


class FileChanges:
    """Counts the changes to the files of a source.

    Args:
        plural: what the files are, such as "images".
    """

    def __init__(self, plural: str) -> None:
        self._plural, self._done, self._count = plural, Counter[str](), 0

    def add(self, done: Iterable[str]) -> None:
        """Counts a file and its changes."""
        self._done.update(done)
        self._count += 1

    def report(self, source: str) -> None:
        """Logs the changes and resets the counts."""
        for what, count in self._done.items():
            log.warning("%s of %s %s of %s were %s", f"{count:,}", f"{self._count:,}", self._plural, source, what)
        self._done, self._count = Counter(), 0
