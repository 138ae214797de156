"""Texts without labels, one per line."""

from collections.abc import Sequence

from triptych.data.corpora.corpus import CorpusInfo, TextFileCorpus
from triptych.data.example import Example
from triptych.data.example_columns import ExampleColumns
from triptych.data.readers.files import check_files, resolve_file, stream_lines
from triptych.data.readers.tables import check_is_text, reader_of_texts
from triptych.data.splits import Splits, make_splits


class TextLines(TextFileCorpus):
    """Files in which each line is a separate text, such as a sentence or a paragraph; blank lines are skipped. It
    serves denoising and language models without context across lines. ``PlainText`` reads each file as one text.

    Args:
        dir: folder of the files.
        train: name of the training file, plain, .gz or .zst; None: only the test split is read.
        validation: name of the validation file, or a fraction of the training texts; None: no validation split.
        test: name of the test file, or a fraction of the training texts.
        split_seed: seed that draws the fractions.

    Raises:
        ValueError: no such file, or fractions that leave no training data.
    """

    columns = ("text",)
    info = CorpusInfo()

    def __init__(
        self, *, dir: str, train: str | None, validation: str | float | None, test: str | float, split_seed: int
    ) -> None:
        check_files(dir, (), train=train, validation=validation, test=test)
        for name, source in (("train", train), ("validation", validation), ("test", test)):
            if isinstance(source, str):
                check_is_text(f"data.{name}", source, "one text per line", reader_of_texts(dir, source))
        self.dir, self.train, self.validation, self.test, self.split_seed = dir, train, validation, test, split_seed

    def splits(self) -> Splits:
        """Returns the texts.

        Raises:
            ValueError: a file that is not UTF-8, or contains only blank lines.
        """
        return make_splits(self._read, self.train, self.validation, self.test, self.split_seed)

    def _read(self, file: str) -> Sequence[Example]:
        path = resolve_file(self.dir, "data", file)
        lines = enumerate(stream_lines(path), 1)
        found = ExampleColumns.of(Example(text, place=(path, n)) for n, text in lines if text.strip())
        if not found:
            raise ValueError(f"{path}: only blank lines; expected one text per line")
        return found
