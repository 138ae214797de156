"""Image files with captions or classes, in tables."""

from collections.abc import Sequence
from dataclasses import dataclass

from triptych.data.corpora.file_rows import FileRows
from triptych.data.corpora.table_of_files import TableOfFiles
from triptych.data.example import Example, SourceLocation
from triptych.data.readers.image_reader import ImageReader
from triptych.data.readers.tables import Row


@dataclass(kw_only=True)
class ImageRows(FileRows):
    """Rows with an image, and a caption or a label; ``ImageReader`` converts the images.

    Attributes:
        image: column of the file paths below ``dir``; in Hugging Face datasets, of the images.
        target: column of the captions; None: no captions.
        label: column of the classes; None: no classes.
        channels: channels of all images: 1 (grey) or 3 (RGB).
        size: height and width to resize to; None: keep the size.
    """

    columns = ("image", "target", "label")

    image: str
    target: str | None
    label: str | None
    channels: int
    size: Sequence[int] | None

    def __post_init__(self) -> None:
        self.images = ImageReader(self.channels, self.size)
        super().__post_init__()

    def example(self, row: Row, place: SourceLocation) -> Example:
        example = super().example(row, place)
        return self.images.with_image(example, self.reader, row, self.file_of(example))

    def report_changes(self, source: str) -> None:
        self.images.report_changes(source)


@dataclass(kw_only=True)
class ImageFiles(ImageRows, TableOfFiles):
    """A table of image files (png, jpeg, and other formats of pillow) with a caption or a label; see ``ImageRows`` and
    ``TableOfFiles``."""
