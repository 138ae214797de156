"""Texts, or pairs of texts, with a class or a score each, in tables; or texts, a file for each class."""

from collections.abc import Iterator
from functools import cached_property

from triptych.data.corpora.table import RowCorpus
from triptych.data.example import Place
from triptych.data.readers.columns import Columns
from triptych.data.readers.files import check_files, find, format_of, stream_lines
from triptych.data.readers.tables import FORMATS, NAMES_ITS_COLUMNS, Row, check_is_text, check_names, table_rows

Files = str | list[str] | dict[str, str]
"""A table, or a file for each class; a list is refused."""


class LabelledText(RowCorpus[Files]):
    """A table whose rows have a text, perhaps a second one, and a label or a score. The name of the file says what it
    is:

    - .tsv: fields between tabs, as they stand: no quotes, no escapes, a row a line;
    - .csv: fields between commas; a field in double quotes may hold commas and line breaks (RFC 4180);
    - .jsonl: an object a line; a label may be a string, a number or a boolean;
    - .parquet: likewise.

    Each may be packed (.gz, .zst). In place of a table there may be a file for each class, ``{CLASS: FILE}``, of any
    name, in which each line that is not blank is a text.

    Args:
        dir: folder of the files.
        train: name of the file of the training examples, or of a file for each class; None: only the test is read.
        validation: likewise, or a share of the training examples; None: there are none.
        test: likewise, or a share of the training examples.
        text: column of the texts.
        label: column of the labels; None: there are none.
        columns: names of the columns of a TSV or CSV file without a header line; None: the first line names them.
        split_seed: of the draws of the shares.
        pair: column of the second texts; None: there are none.
        score: column of the scores, in place of labels; None: there are none.

    Raises:
        ValueError: no such file, a name of no known format, columns of the same name, labels beside scores, a list of
            files, files of classes beside other columns, or shares that leave nothing to train on.
    """

    columns = ("text", "label", "pair", "score")

    def __init__(
        self,
        *,
        dir: str,
        train: Files | None,
        validation: Files | float | None,
        test: Files | float,
        text: str,
        label: str | None,
        columns: list[str] | None,
        split_seed: int,
        pair: str | None = None,
        score: str | None = None,
    ) -> None:
        check_files(dir, FORMATS, train=train, validation=validation, test=test)
        for name, files in (("train", train), ("validation", validation), ("test", test)):
            if isinstance(files, list):
                raise ValueError(
                    f"data.{name}=[{','.join(files)}]: expected one file name, or a file for each class, such as "
                    f"'data.{name}={{A: {files[0] if files else 'FILE'}, B: FILE}}'"
                )
            if isinstance(files, dict):
                if label is None or pair is not None:
                    raise ValueError(f"data.{name}: a file for each class has texts and labels, no other columns")
                for of_class in files.values():
                    find(dir, f"data.{name}", of_class)
                    check_is_text(f"data.{name}", of_class, "a text a line in the file of a class",
                                  f"data=hub data.name={dir} data.text=COLUMN data.label=COLUMN")  # fmt: skip
        if columns is not None:
            check_names(columns, "data.columns")
            for name, file in (("train", train), ("validation", validation), ("test", test)):
                if isinstance(file, str) and format_of(file) in NAMES_ITS_COLUMNS:
                    raise ValueError(f"data.columns={columns}: the rows of data.{name}={file} name their columns")
        if label is not None and score is not None:
            raise ValueError(f"data.score={score} stands in place of data.label={label}: give data.label=null")
        self.dir, self.train, self.validation, self.test, self.split_seed = dir, train, validation, test, split_seed
        self.text, self.label, self.pair, self.score, self.names = text, label, pair, score, columns

    @cached_property
    def reader(self) -> Columns:
        return Columns(text=self.text, pair=self.pair, label=self.label, score=self.score)

    def rows(self, source: Files) -> Iterator[tuple[Place, Row]]:
        """See ``RowCorpus``.

        Raises:
            ValueError: a file of a class has no text.
        """
        if isinstance(source, str):
            yield from table_rows(find(self.dir, "data", source), self.reader, self.names)
            return
        assert isinstance(source, dict)
        assert self.label is not None
        for label, file in source.items():
            path, number = find(self.dir, "data", file), 0
            texts = ((number, line) for number, line in enumerate(stream_lines(path), 1) if line.strip())
            for number, line in texts:
                yield (path, number), {self.text: line, self.label: label}
            if not number:
                raise ValueError(f"{path}: blank lines alone; expected a text a line")
