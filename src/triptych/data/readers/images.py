"""Images of one kind out of files of many kinds."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from triptych.config import refusing
from triptych.data.example import Example
from triptych.data.images import MODES, read_image
from triptych.data.readers.columns import Columns, content_of

log = logging.getLogger(__name__)


class ImageReader:
    """Reads images, makes them alike, and counts what it did to them.

    Args:
        channels: 1, grey; or 3, red, green and blue: all images become so.
        size: height and width to which others are stretched; None: they keep theirs.
    """

    def __init__(self, channels: int, size: Sequence[int] | None) -> None:
        if channels not in MODES:
            raise ValueError(f"data.channels={channels}: expected 1 (grey) or 3 (red, green and blue)")
        if size is not None and (len(size) != 2 or min(size) < 1):
            raise ValueError(f"data.size={list(size)}: expected null, or [height, width]")
        self.channels, self.size = channels, None if size is None else (size[0], size[1])
        self._done, self._count = Counter[str](), 0

    def with_image(self, example: Example, columns: Columns, row: Mapping[str, object], path: Path) -> Example:
        """The example of a row with its image.

        Args:
            row: the columns with their values; the image is a path, or has its bytes beside it.
            path: of the file, if the row has no bytes.

        Raises:
            ValueError: no image that can be read.
        """
        assert columns.image is not None
        with refusing(f"{example.where}: "):
            content = content_of(row[columns.image])
            image, done = read_image(path, content, channels=self.channels, size=self.size)
        self._done.update(done)
        self._count += 1
        return replace(example, image=image)

    def tell(self, source: str) -> None:
        """Says what was done to the images of a source, and begins to count anew."""
        for what, count in self._done.items():
            log.warning("%s of %s images of %s were %s", f"{count:,}", f"{self._count:,}", source, what)
        self._done, self._count = Counter(), 0
