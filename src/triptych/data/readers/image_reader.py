"""Reads the image files of a corpus, converted to the same channels and size.

Tested by tests/data/corpora/test_image_files.py.
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from triptych.config import error_prefix
from triptych.data.example import Example
from triptych.data.images import MODES, read_image
from triptych.data.readers.columns import Columns, content_of

log = logging.getLogger(__name__)


class ImageReader:
    """Reads images, converts them, and counts the changes.

    Args:
        channels: channels of all images: 1 (grey) or 3 (RGB).
        size: height and width to resize to; None: keep the size.
    """

    def __init__(self, channels: int, size: Sequence[int] | None) -> None:
        if channels not in MODES:
            raise ValueError(f"data.channels={channels}: expected 1 (grey) or 3 (red, green and blue)")
        if size is not None and (len(size) != 2 or min(size) < 1):
            raise ValueError(f"data.size={list(size)}: expected null, or [height, width]")
        self.channels, self.size = channels, None if size is None else (size[0], size[1])
        self._done, self._count = Counter[str](), 0

    def with_image(self, example: Example, columns: Columns, row: Mapping[str, object], path: Path) -> Example:
        """Returns the example of a row with its image.

        Args:
            row: values by column; the image is a path, or bytes with a path.
            path: image file, for rows without bytes.
        """
        assert columns.image is not None
        with error_prefix(f"{example.where}: "):
            content = content_of(row[columns.image])
            image, done = read_image(path, content, channels=self.channels, size=self.size)
        self._done.update(done)
        self._count += 1
        return replace(example, image=image)

    def report_changes(self, source: str) -> None:
        """Logs the changes to the images of a source and resets the counts."""
        for what, count in self._done.items():
            log.warning("%s of %s images of %s were %s", f"{count:,}", f"{self._count:,}", source, what)
        self._done, self._count = Counter(), 0
