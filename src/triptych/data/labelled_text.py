"""Texts with a class each, in tables: TSV, CSV or JSON lines."""

import csv
import io
import json
import math
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from triptych.data.corpus import CorpusFacts
from triptych.data.example import Example, Splits
from triptych.data.files import check_shares, find, make_splits, read_lines, read_text

FORMATS = (".tsv", ".csv", ".jsonl")
HALF_A_PAIR = re.compile("[\ud800-\udfff]")  # JSON can spell such surrogates, UTF-8 cannot


class LabelledText:
    """A table whose rows have a text and a label. The name of the file says what it is:

    - .tsv: fields between tabs, as they stand: no quotes, no escapes, a row a line;
    - .csv: fields between commas; a field in double quotes may hold commas and line breaks (RFC 4180);
    - .jsonl: an object a line; a label may be a string, a number or a boolean.

    Each may be packed (.gz). The classes are the labels of the training examples, in order (as numbers, if they are).

    Args:
        dir: folder of the files.
        train: name of the file of the training examples.
        validation: name of a file, or a share of the training examples.
        test: name of a file, or a share of the training examples.
        text: column of the texts.
        label: column of the labels.
        columns: names of the columns of a TSV or CSV file without a header line; None: the first line names them.
        split_seed: of the draws of the shares.

    Raises:
        ValueError: no such file, a name of no known format, columns of the same name, or shares that leave nothing to
            train on.
    """

    tasks = ("classification", "language_modeling", "denoising")
    has_images = False

    def __init__(
        self,
        *,
        dir: str,
        train: str,
        validation: str | float,
        test: str | float,
        text: str,
        label: str,
        columns: list[str] | None,
        split_seed: int,
    ) -> None:
        check_shares(validation=validation, test=test)
        for name, file in (("train", train), ("validation", validation), ("test", test)):
            if isinstance(file, str):
                if not file.removesuffix(".gz").endswith(FORMATS):
                    raise ValueError(f"data.{name}={file}: expected a name that ends in {', '.join(FORMATS)}, or .gz")
                if columns is not None and file.removesuffix(".gz").endswith(".jsonl"):
                    raise ValueError(f"data.columns={columns}: the rows of data.{name}={file} name their columns")
                find(dir, f"data.{name}", file)
        if columns is not None and len(set(columns)) < len(columns):
            raise ValueError(f"data.columns={columns}: expected different names")
        self.dir, self.train, self.validation, self.test = dir, train, validation, test
        self.text, self.label, self.columns, self.split_seed = text, label, columns, split_seed

    @cached_property
    def facts(self) -> CorpusFacts:
        """The classes, which are read from the training examples."""
        ordered = sorted({example.label for example in self._splits.train if example.label is not None})
        with suppress(ValueError):  # of equal numbers, such as 1 and 01, the order of the texts remains
            ordered = sorted(ordered, key=float)
        return CorpusFacts(labels=tuple(ordered))

    def splits(self) -> Splits:
        """The texts with their labels.

        Raises:
            ValueError: a row that cannot be read, with its file and line.
        """
        return self._splits

    def optimum(self, task: str, architecture: str, examples: object) -> dict[str, float]:
        """The best reachable values: not known of real text."""
        return {}

    @cached_property
    def _splits(self) -> Splits:
        return make_splits(self._read, self.train, self.validation, self.test, self.split_seed)

    def _read(self, file: str) -> list[Example]:
        path = find(self.dir, "data", file)
        rows = _json_rows(path) if file.removesuffix(".gz").endswith(".jsonl") else _table_rows(path, self.columns)
        examples = []
        for line, row in rows:
            for key, column in (("text", self.text), ("label", self.label)):
                if column not in row:
                    hint = "" if ".jsonl" in file else " (no header line? name them by data.columns)"
                    there = f"there are {', '.join(row)}{hint}"
                    raise ValueError(f"{path}, line {line}: no column {column} (data.{key}={column}); {there}")
            text, label = row[self.text], row[self.label]
            if not isinstance(text, str) or HALF_A_PAIR.search(text):
                raise ValueError(f"{path}, line {line}: {self.text} is {json.dumps(text)}; expected a text")
            is_number = isinstance(label, int) or (isinstance(label, float) and math.isfinite(label))
            if not (is_number or (isinstance(label, str) and not HALF_A_PAIR.search(label))):
                raise ValueError(f"{path}, line {line}: {self.label} is {json.dumps(label)}; expected a label")
            if label == "":
                raise ValueError(f"{path}, line {line}: the label ({self.label}) is empty")
            name = label if isinstance(label, str) else json.dumps(label)  # true, not Python's True
            examples.append(Example(text, label=name, place=(path, line)))
        if not examples:
            raise ValueError(f"{path}: no rows")
        return examples


def _table_rows(path: Path, columns: list[str] | None) -> Iterator[tuple[int, dict[str, object]]]:
    """The rows of a TSV or CSV file with the numbers of the lines in which they begin."""
    fields = _csv_fields(path) if path.name.removesuffix(".gz").endswith(".csv") else _tsv_fields(path)
    names = columns
    for line, row in fields:
        if names is None:
            names = row
            if len(set(names)) < len(names):
                raise ValueError(f"{path}, line {line}: the columns {', '.join(names)}; expected different names")
        elif row == columns:
            raise ValueError(f"{path}, line {line}: these are the names of the columns; leave data.columns=null")
        elif len(row) != len(names):
            raise ValueError(
                f"{path}, line {line}: {len(row)} fields; expected {len(names)}, {', '.join(names)} "
                f"({'data.columns' if columns else 'line 1'})"
            )
        else:
            yield line, dict(zip(names, row, strict=True))


def _tsv_fields(path: Path) -> Iterator[tuple[int, list[str]]]:
    for line, text in enumerate(read_lines(path), 1):
        yield line, text.split("\t")


def _csv_fields(path: Path) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(io.StringIO(read_text(path), newline="\n"), strict=True)
    line = 1
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise ValueError(f"{path}, line {line}: not CSV ({error})") from None
        yield line, row
        line = reader.line_num + 1


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    row: dict[str, object] = {}
    for name, value in pairs:
        if name in row:
            raise ValueError(f"{name} twice in an object")
        row[name] = value
    return row


def _json_rows(path: Path) -> Iterator[tuple[int, dict[str, object]]]:
    decoder = json.JSONDecoder(object_pairs_hook=_object)
    for line, text in enumerate(read_lines(path), 1):
        try:
            row = decoder.decode(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}, line {line}: not JSON ({error})") from None
        if not isinstance(row, dict):
            raise ValueError(f"{path}, line {line}: expected a JSON object")
        yield line, row
