"""Reads rows of TSV, CSV, JSON Lines and Parquet files."""

import csv
import json
import logging
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from triptych.config import counted
from triptych.data.example import SourceLocation
from triptych.data.readers.columns import Columns, outermost
from triptych.data.readers.files import format_of, opened, stream_lines, unpacked

log = logging.getLogger("triptych")

Row = dict[str, object]
FORMATS = (".tsv", ".csv", ".jsonl", ".parquet")
NAMES_ITS_COLUMNS = (".jsonl", ".parquet")
"""Formats that name the columns in each row and can hold lists and objects."""
NO_TEXT = (*FORMATS, ".json", ".ndjson")
"""Formats that are not plain text for a language model."""
LABELLED = {"text", "label", "text_pair", "score"}
"""Fields that labelled_text reads, also from tables without a header line."""
QUOTED = re.compile(r'"(?:[^"]|"")*"')
"""A quoted CSV field; quotes inside it are doubled."""

csv.field_size_limit(2**31 - 1)  # documents may exceed the default of 131,072 characters


def table_rows(path: Path, columns: Columns, names: list[str] | None = None) -> Iterator[tuple[SourceLocation, Row]]:
    """Yields the rows of a file, each with its first line, or with its row number in Parquet.

    Args:
        path: file in one of ``FORMATS``, possibly compressed.
        columns: required columns; others may be omitted.
        names: column names of a TSV or CSV file; None: the first line contains them.

    Raises:
        ValueError: a row that cannot be read, or a missing column.
    """
    kind = format_of(path.name)
    if kind == ".parquet":
        return _parquet_rows(path, columns)
    if kind == ".jsonl":
        return _json_rows(path)
    return _named_rows(path, _csv_fields(path) if kind == ".csv" else _tsv_fields(path), columns, names)


def check_is_text(key: str, name: str, expected: str, instead: str, tables: Collection[str] = NO_TEXT) -> None:
    """Checks that a file is not a table.

    Args:
        key: configuration key of the file.
        name: name of the file.
        expected: description of the expected file.
        instead: settings that read such a table.
        tables: formats that are errors.

    Raises:
        ValueError: the file has such a format.
    """
    if (kind := format_of(name)) in tables:
        raise ValueError(f"{key}={name}: expected {expected}; for {kind}, use {instead}")


def reader_of_texts(dir: str, name: str) -> str:
    """Returns the settings that read each text of such a table as an example."""
    if format_of(name) in FORMATS:
        return "data=labelled_text data.text=COLUMN data.label=null"
    return f"data=hub data.name={dir} data.text=COLUMN"


def check_names(names: list[str], where: str) -> None:
    """Checks that column names are unique."""
    if len(set(names)) < len(names):
        raise ValueError(f"{where}: the columns {', '.join(names)}; expected different names")


def _named_rows(
    path: Path, fields: Iterator[tuple[int, list[str]]], columns: Columns, given: list[str] | None
) -> Iterator[tuple[SourceLocation, Row]]:
    names = given
    for line, row in fields:
        if names is None:
            names = row
            check_names(names, f"{path}, line {line}")
            is_text = {field for field, _ in columns.items} <= LABELLED
            advice = " (no header line? Use data=labelled_text with data.columns)" if is_text else ""
            columns.check(names, f"{path}, line {line}", advice)
        elif row == given:
            raise ValueError(f"{path}, line {line}: this line contains the column names; set data.columns=null")
        elif len(row) != len(names):
            raise ValueError(
                f"{path}, line {line}: {counted(len(row), 'field')}; expected {len(names)}, {', '.join(names)} "
                f"({'data.columns' if given else 'line 1'})"
            )
        else:
            yield (path, line), dict(zip(names, row, strict=True))


def _tsv_fields(path: Path) -> Iterator[tuple[int, list[str]]]:
    quoted = list[int]()
    for line, text in enumerate(stream_lines(path), 1):
        row = text.split("\t")
        quoted += [line for field in row if '""' in field and QUOTED.fullmatch(field)]
        yield line, row
    if quoted:
        log.warning(
            "%s: %s quoted as in CSV, first in line %s; the quotes are kept. Expected a table without quotes, or .csv "
            "with commas",
            path, "1 field is" if len(quoted) == 1 else f"{len(quoted):,} fields are", quoted[0],
        )  # fmt: skip


def _csv_fields(path: Path) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader((f"{line}\n" for line in stream_lines(path)), strict=True)
    line = 1
    try:
        for row in reader:
            yield line, row
            line = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(f"{path}, line {line}: not CSV ({error})") from None


def _object(pairs: list[tuple[str, object]]) -> Row:
    row: Row = {}
    for name, value in pairs:
        if name in row:
            raise ValueError(f"duplicate key {name}")
        row[name] = value
    return row


def _json_rows(path: Path) -> Iterator[tuple[SourceLocation, Row]]:
    decoder = json.JSONDecoder(object_pairs_hook=_object)
    for line, text in enumerate(stream_lines(path), 1):
        try:
            row = decoder.decode(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}, line {line}: not JSON ({error})") from None
        if not isinstance(row, dict):
            raise ValueError(f"{path}, line {line}: expected a JSON object")
        yield (path, line), row


def _parquet_rows(path: Path, columns: Columns) -> Iterator[tuple[SourceLocation, Row]]:
    import pyarrow as pa  # type: ignore[import-untyped]  # takes a quarter of a second
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    with opened(path) as packed:  # an uncompressed file is read on demand
        source = path if unpacked(path.name) == path.name else pa.BufferReader(packed.read())
    number = 0
    try:
        file = pq.ParquetFile(source, page_checksum_verification=True)
        names = list(file.schema_arrow.names)
        check_names(names, str(path))
        columns.check(names, str(path))
        needed = list({outermost(column, names) for _, column in columns.items})
        for batch in file.iter_batches(columns=needed, batch_size=1024):
            for row in _batch_rows(batch):
                number += 1
                yield (path, f"row {number}"), row
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}, row {number + 1}: not UTF-8 (byte {error.start}: {error.reason})") from None
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path}: not a complete Parquet file ({str(error).splitlines()[0]})") from None


def _batch_rows(batch: Any) -> Iterator[Row]:
    """The rows of an Arrow batch, also those before one that is not UTF-8."""
    try:
        yield from batch.to_pylist()  # ten times as fast as row by row
    except UnicodeDecodeError:
        yield from (batch.slice(i, 1).to_pylist()[0] for i in range(len(batch)))
