"""Sentence pairs in two files, as is common for translation."""

from collections.abc import Sequence

from triptych.data.corpora.corpus import CorpusInfo, TextFileCorpus
from triptych.data.example import Example
from triptych.data.example_columns import ExampleColumns
from triptych.data.readers.files import check_split_shares, read_lines, resolve_file
from triptych.data.readers.tables import check_is_text
from triptych.data.splits import Splits, make_splits


class ParallelText(TextFileCorpus):
    """Pairs of files in which line i of one translates line i of the other. An empty line is an empty text. Language
    modeling and denoising use the source sentences.

    Args:
        dir: folder of the files.
        train: names of the source and target files, plain, .gz or .zst; None: only the test split is read.
        validation: names of two files, or a fraction of the training pairs; None: no validation split.
        test: names of two files, or a fraction of the training pairs.
        split_seed: seed that draws the fractions.

    Raises:
        ValueError: no such file, not two names, or fractions that leave no training data.
    """

    columns = ("text", "target")
    info = CorpusInfo()

    def __init__(
        self,
        *,
        dir: str,
        train: list[str] | str | None,
        validation: list[str] | str | float | None,
        test: list[str] | str | float,
        split_seed: int,
    ) -> None:
        check_split_shares(train=train, validation=validation, test=test)
        self.dir, self.split_seed = dir, split_seed
        self.train = None if train is None else self._two("train", train)
        self.validation = (
            validation if validation is None or isinstance(validation, float) else self._two("validation", validation)
        )
        self.test = test if isinstance(test, float) else self._two("test", test)

    def splits(self) -> Splits:
        """Returns the pairs.

        Raises:
            ValueError: files of unequal length, or that are empty or not UTF-8.
        """
        return make_splits(self._read, self.train, self.validation, self.test, self.split_seed)

    def _two(self, name: str, files: Sequence[str] | str) -> list[str]:
        if isinstance(files, str) or len(files) != 2:
            given = files if isinstance(files, str) else f"[{','.join(files)}]"
            source = next(iter([files] if isinstance(files, str) else files), "SOURCE")
            raise ValueError(f"data.{name}={given}: expected two files, such as 'data.{name}=[{source},TARGET]'")
        for file in files:
            resolve_file(self.dir, f"data.{name}", file)
            check_is_text(f"data.{name}", file, "one sentence per line",
                          f"data=hub data.name={self.dir} data.text=COLUMN data.target=COLUMN")  # fmt: skip
        return list(files)

    def _read(self, files: Sequence[str]) -> Sequence[Example]:
        paths = [resolve_file(self.dir, "data", file) for file in files]
        sources, targets = (read_lines(path) for path in paths)
        if len(sources) != len(targets):
            longer, shorter = paths if len(sources) > len(targets) else paths[::-1]
            fewer, more = sorted((len(sources), len(targets)))
            raise ValueError(
                f"{longer}, line {fewer + 1}: no such line in {shorter} ({more:,} and {fewer:,} lines); "
                "expected files of aligned lines"
            )
        if not sources:
            raise ValueError(f"{paths[0]}: no lines")
        lines = enumerate(zip(sources, targets, strict=True), 1)
        return ExampleColumns.of(Example(text, target=target, place=(paths[0], n)) for n, (text, target) in lines)
