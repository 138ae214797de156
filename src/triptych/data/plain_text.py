"""One text file as a corpus for language models."""

from pathlib import Path

from triptych.data.corpus import CorpusFacts
from triptych.data.example import Example, Splits


class PlainText:
    """A UTF-8 text file, cut into training, validation and test text at two places.

    Args:
        dir: folder of the file.
        file: its name.
        validation: share of the text that validates; it stands before the test text.
        test: share of the text that tests; it is the end of the file.

    Raises:
        ValueError: no such file, text that is not UTF-8, or shares that leave nothing to train on.
    """

    tasks = ("language_modeling",)
    facts = CorpusFacts(is_stream=True)

    def __init__(self, *, dir: str, file: str, validation: float, test: float) -> None:
        if not (0 < validation < 1 and 0 < test < 1 and validation + test < 1):
            raise ValueError(
                f"data.validation={validation} and data.test={test}: expected shares above 0 that leave some to train"
            )
        self.path = Path(dir) / file
        if not self.path.is_file():
            raise ValueError(f"data.dir={dir} data.file={file}: no such file ({self.path.resolve()})")
        self.validation, self.test = validation, test

    def splits(self) -> Splits:
        """Each split is one example: the whole of its text."""
        content = self.path.read_bytes()
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            raise ValueError(f"{self.path}, line {line}: not UTF-8 (byte {error.start}: {error.reason})") from None
        end = len(text) - round(len(text) * self.test)
        middle = end - round(len(text) * self.validation)
        if min(middle, end - middle, len(text) - end) < 2:
            raise ValueError(f"{self.path}: {len(text)} characters are too few for three splits")
        train, validation, test = text[:middle], text[middle:end], text[end:]
        return Splits([Example(train)], [Example(validation)], [Example(test)])

    def optimum(self, task: str, architecture: str, examples: object) -> dict[str, float]:
        """The best reachable values: not known of real text."""
        return {}
