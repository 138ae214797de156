"""Texts or text pairs with a class or score each: tables, or one file of texts per class."""

from collections.abc import Iterator

from triptych.data.corpora.corpus import TextFileCorpus
from triptych.data.corpora.row_corpus import RowCorpus
from triptych.data.example import SourceLocation
from triptych.data.readers.files import check_files, format_of, resolve_file, stream_lines
from triptych.data.readers.tables import FORMATS, NAMES_ITS_COLUMNS, Row, check_is_text, check_names, table_rows

Files = str | list[str] | dict[str, str]
"""A table, or one file per class; a list is an error."""


class LabelledText(RowCorpus[Files], TextFileCorpus):
    """A table whose rows have a text, optionally a second one, and a label or a score. The suffix determines the
    format:

    - .tsv: tab-separated, one row per line, without quotes or escapes;
    - .csv: comma-separated; a field in double quotes may contain commas and line breaks (RFC 4180);
    - .jsonl: one object per line; a label may be a string, a number or a boolean;
    - .parquet: labels as in .jsonl.

    Each file may be compressed (.gz, .zst). Instead of a table there may be one file per class, ``{CLASS: FILE}``, with
    any name, in which each non-blank line is a text.

    Args:
        dir: folder of the files.
        train: name of the training table, or one file per class; None: only the test split is read.
        validation: name of the validation table, one file per class, or a fraction of the training examples; None: no
            validation split.
        test: name of the test table, one file per class, or a fraction of the training examples.
        text: column of the texts.
        label: column of the labels; None: no labels.
        columns: column names of a TSV or CSV file without a header line; None: the first line contains them.
        split_seed: seed that draws the fractions.
        text_pair: column of the second texts; None: no second texts.
        score: column of the scores, instead of labels; None: no scores.

    Raises:
        ValueError: no such file, an unknown format, duplicate columns, both labels and scores, a list of files, one
            file per class with other columns, or fractions that leave no training data.
    """

    columns = ("text", "label", "text_pair", "score")

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
        text_pair: str | None = None,
        score: str | None = None,
    ) -> None:
        check_files(dir, FORMATS, train=train, validation=validation, test=test)
        for name, files in (("train", train), ("validation", validation), ("test", test)):
            if isinstance(files, list):
                raise ValueError(
                    f"data.{name}=[{','.join(files)}]: expected one file name, or one file per class, such as "
                    f"'data.{name}={{A: {files[0] if files else 'FILE'}, B: FILE}}'"
                )
            if isinstance(files, dict):
                if label is None or text_pair is not None:
                    raise ValueError(
                        f"data.{name}: one file per class requires data.label=label and data.text_pair=null"
                    )
                for of_class in files.values():
                    resolve_file(dir, f"data.{name}", of_class)
                    check_is_text(f"data.{name}", of_class, "one text per line in the file of a class",
                                  f"data=hub data.name={dir} data.text=COLUMN data.label=COLUMN")  # fmt: skip
        if columns is not None:
            check_names(columns, "data.columns")
            for name, file in (("train", train), ("validation", validation), ("test", test)):
                if isinstance(file, str) and format_of(file) in NAMES_ITS_COLUMNS:
                    raise ValueError(f"data.{name}={file} contains its column names; set data.columns=null")
        if label is not None and score is not None:
            raise ValueError(f"data.score={score} replaces data.label={label}; set data.label=null")
        self.dir, self.train, self.validation, self.test, self.split_seed = dir, train, validation, test, split_seed
        self.text, self.label, self.text_pair, self.score, self.names = text, label, text_pair, score, columns

    def rows(self, source: Files) -> Iterator[tuple[SourceLocation, Row]]:
        if isinstance(source, str):
            yield from table_rows(resolve_file(self.dir, "data", source), self.reader, self.names)
            return
        assert isinstance(source, dict)
        assert self.label is not None
        for label, file in source.items():
            path, number = resolve_file(self.dir, "data", file), 0
            texts = ((number, line) for number, line in enumerate(stream_lines(path), 1) if line.strip())
            for number, line in texts:
                yield (path, number), {self.text: line, self.label: label}
            if not number:
                raise ValueError(f"{path}: only blank lines; expected one text per line")
