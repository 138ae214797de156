"""Running text as a corpus for language models."""

from pathlib import Path

from triptych.data.corpus import CorpusFacts
from triptych.data.example import Example, Splits
from triptych.data.files import check_shares, find, read_text


class PlainText:
    """Text files that are read as one long text each. Shares are cut from the end of the training text: first the
    training text, then the validation text, then the test text.

    Args:
        dir: folder of the files.
        train: name of the file of the training text, plain or .gz.
        validation: name of a file, or a share of the training text.
        test: name of a file, or a share of the training text.

    Raises:
        ValueError: no such file, or shares that leave nothing to train on.
    """

    tasks = ("language_modeling",)
    has_images = False
    facts = CorpusFacts(is_stream=True)

    def __init__(self, *, dir: str, train: str, validation: str | float, test: str | float) -> None:
        check_shares(validation=validation, test=test)
        for name, file in (("train", train), ("validation", validation), ("test", test)):
            if isinstance(file, str):
                find(dir, f"data.{name}", file)
        self.dir, self.train, self.validation, self.test = dir, train, validation, test

    def splits(self) -> Splits:
        """Each split is one example: the whole of its text.

        Raises:
            ValueError: text that is not UTF-8, or too short.
        """
        train = self._read(self.train)
        length = len(train)
        texts = {}
        for name, source in (("test", self.test), ("validation", self.validation)):
            if isinstance(source, str):
                texts[name] = self._read(source)
            else:
                end = len(train) - round(length * source)
                train, texts[name] = train[:end], train[end:]
        for name, text in (("train", train), *texts.items()):
            if len(text) < 2:
                source = getattr(self, name)
                path = Path(self.dir) / (source if isinstance(source, str) else self.train)
                raise ValueError(f"{path}: {len(text)} characters are too few for the {name} split")
        return Splits([Example(train)], [Example(texts["validation"])], [Example(texts["test"])])

    def optimum(self, task: str, architecture: str, examples: object) -> dict[str, float]:
        """The best reachable values: not known of real text."""
        return {}

    def _read(self, file: str) -> str:
        return read_text(find(self.dir, "data", file))
