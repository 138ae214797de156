"""Image files with captions or classes, in tables."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from triptych.data.corpora.file_rows import FileRows
from triptych.data.corpora.table_of_files import TableOfFiles
from triptych.data.example import Example
from triptych.data.images import MODES, read_image
from triptych.data.readers.columns import content_of
from triptych.data.readers.tables import Row


@dataclass(kw_only=True)
class ImageRows(FileRows):
    """Rows with an image, and a caption or a label; see ``read_image``.

    Attributes:
        image: column of the file paths below ``dir``; in Hugging Face datasets, of the images.
        target: column of the captions; None: no captions.
        label: column of the classes; None: no classes.
        channels: channels of all images: 1 (grey) or 3 (RGB).
        size: height and width to resize to; None: keep the size.
    """

    columns = ("image", "target", "label")
    plural = "images"

    image: str
    target: str | None
    label: str | None
    channels: int
    size: Sequence[int] | None

    def __post_init__(self) -> None:
        if self.channels not in MODES:
            raise ValueError(f"data.channels={self.channels}: expected 1 (grey) or 3 (red, green and blue)")
        if self.size is not None and (len(self.size) != 2 or min(self.size) < 1):
            raise ValueError(f"data.size={[*self.size]}: expected null, or [height, width]")
        super().__post_init__()

    def decode(self, example: Example, row: Row, path: Path) -> tuple[Example, tuple[str, ...]]:
        size = None if self.size is None else (self.size[0], self.size[1])
        image, done = read_image(path, content_of(row[self.image]), channels=self.channels, size=size)
        return replace(example, image=image), done


@dataclass(kw_only=True)
class ImageFiles(ImageRows, TableOfFiles):
    """A table of image files (png, jpeg, and other formats of pillow) with a caption or a label; see ``ImageRows`` and
    ``TableOfFiles``."""
