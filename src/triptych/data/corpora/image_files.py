"""Files of images, with captions or their classes, in tables."""

from collections.abc import Sequence

from triptych.data.corpora.table_of_files import TableOfFiles
from triptych.data.example import Example, Place
from triptych.data.readers.columns import Columns
from triptych.data.readers.images import ImageReader
from triptych.data.readers.tables import Row


class ImageFiles(TableOfFiles):
    """A table whose rows have the path of a file of an image (png, jpeg, and what else pillow reads), and a caption or
    a label; see ``TableOfFiles``, and ``ImageReader`` for what becomes of them.

    Args:
        dir: folder of the tables, and of the files that they name.
        train: name of the table of the training examples; None: only the test is read.
        validation: likewise, or a share of the training examples; None: there are none.
        test: likewise, or a share of the training examples.
        image: column of the paths, below ``dir``.
        target: column of the captions; None: there is none.
        label: column of the classes; None: there is none.
        channels: 1, grey; or 3, red, green and blue: all images become so.
        size: height and width to which others are stretched; None: they keep theirs.
        split_seed: of the draws of the shares.

    Raises:
        ValueError: no such table, shares that leave nothing to train on, or a number that cannot be.
    """

    columns = ("image", "target", "label")

    def __init__(
        self,
        *,
        dir: str,
        train: str | None,
        validation: str | float | None,
        test: str | float,
        image: str,
        target: str | None,
        label: str | None,
        channels: int,
        size: Sequence[int] | None,
        split_seed: int,
    ) -> None:
        self.images = ImageReader(channels, size)
        columns = Columns(image=image, target=target, label=label)
        super().__init__(dir, columns, train, validation, test, split_seed)

    def example(self, row: Row, place: Place) -> Example:
        """See ``RowCorpus``."""
        example = super().example(row, place)
        return self.images.with_image(example, self.reader, row, self.file_of(example))

    def _read(self, source: str) -> list[Example]:
        examples = super()._read(source)
        self.images.tell(source)
        return examples
