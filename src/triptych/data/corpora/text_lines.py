"""Texts without labels, a line each."""

from triptych.data.corpora.corpus import CorpusFacts, RealCorpus
from triptych.data.example import Example
from triptych.data.readers.files import check_shares, find, read_lines
from triptych.data.readers.tables import check_is_text, reader_of_texts
from triptych.data.splits import Splits, make_splits


class TextLines(RealCorpus):
    """Files in which each line is a text of its own, such as a sentence or a paragraph; blank lines are left out. For
    denoising, and for language models that read no line's neighbours (``PlainText`` reads files as one text).

    Args:
        dir: folder of the files.
        train: name of the file that is trained on, plain, .gz or .zst; None: only the test is read.
        validation: name of a file, or a share of the training texts; None: there are none.
        test: name of a file, or a share of the training texts.
        split_seed: of the draws of the shares.

    Raises:
        ValueError: no such file, or shares that leave nothing to train on.
    """

    columns = ("text",)
    facts = CorpusFacts()

    def __init__(
        self, *, dir: str, train: str | None, validation: str | float | None, test: str | float, split_seed: int
    ) -> None:
        check_shares(train=train, validation=validation, test=test)
        for name, source in (("train", train), ("validation", validation), ("test", test)):
            if isinstance(source, str):
                find(dir, f"data.{name}", source)
                check_is_text(f"data.{name}", source, "a text a line", reader_of_texts(dir, source))
        self.dir, self.train, self.validation, self.test, self.split_seed = dir, train, validation, test, split_seed

    def splits(self) -> Splits:
        """The texts.

        Raises:
            ValueError: a file that is not UTF-8, or has blank lines alone.
        """
        return make_splits(self._read, self.train, self.validation, self.test, self.split_seed)

    def _read(self, file: str) -> list[Example]:
        path = find(self.dir, "data", file)
        found = [Example(text, place=(path, n)) for n, text in enumerate(read_lines(path), 1) if text.strip()]
        if not found:
            raise ValueError(f"{path}: blank lines alone; expected a text a line")
        return found
