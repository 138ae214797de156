"""Texts with a class each, in tables."""

import csv
import datetime
import gzip
import io
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from triptych.data import LabelledText

SEPARATORS = "\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"  # of str.splitlines, but for the line feed
HARD = ["", f"all of{SEPARATORS}them", "\rlone", "mid\ufeffdle", ' 5" "x" ""', "'a', \\t \\", "\x00", "null", "NaN"]
NAN = float("nan")
LINES = ["tsv", "csv", "jsonl"]
FORMATS = [*LINES, "parquet"]

any_text = st.text(
    st.sampled_from('\n\r,"\t \ufeff' + SEPARATORS) | st.characters(exclude_categories=["Cs"]), max_size=8
)
one_line = any_text.map(lambda text: text.translate(dict.fromkeys(map(ord, "\n\t"), "_"))).filter(
    lambda text: not text.endswith("\r")  # which would be half of a Windows line end
)


def write(path: Path, content: str | bytes) -> None:
    data = content.encode() if isinstance(content, str) else content
    if path.suffix == ".zst":
        with pa.CompressedOutputStream(path, "zstd") as stream:
            stream.write(data)
    else:
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def corpus(folder: Path, train: str, **options: Any) -> LabelledText:
    given = {"validation": train, "test": train, "text": "text", "label": "label", "columns": None, "split_seed": 1}
    return LabelledText(**{"dir": str(folder), "train": train, **given, **options})


def read(folder: Path, name: str, content: str | bytes, **options: Any) -> list[tuple[str, str | None]]:
    write(folder / name, content)
    return [(e.text, e.label) for e in corpus(folder, name, **options).splits().train]


def parquet(columns: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer, row_group_size=2, write_page_checksum=True)
    return buffer.getvalue()


def table(kind: str, rows: list[tuple[str, str]]) -> str | bytes:
    """The simplest file with these rows."""
    if kind == "parquet":
        texts, labels = zip(*rows, strict=True)
        return parquet({"text": texts, "label": labels})
    if kind == "jsonl":
        return "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows)
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows([("text", "label"), *rows])
    return out.getvalue() if kind == "csv" else "".join(f"{t}\t{label}\n" for t, label in [("text", "label"), *rows])


def tables(fields: st.SearchStrategy[str]) -> st.SearchStrategy[list[tuple[str, str, str]]]:
    return st.lists(st.tuples(fields, fields.filter(bool), fields), min_size=1, max_size=5)


def hard(text: str = "") -> list[tuple[str, str, str]]:
    return [(text + field, "a label", field) for field in HARD]


orders = st.permutations(["text", "label", "more"])
endings = st.sampled_from(["\n", "\r\n"])
suffixes = st.sampled_from(["", ".gz", ".zst"])


class TestAnyTable:
    """Written by somebody else's code."""

    @settings(max_examples=100)
    @given(
        rows=tables(one_line), order=orders, end=endings, suffix=suffixes,
        bom=st.booleans(), final=st.booleans(), header=st.booleans(),
    )  # fmt: skip
    @example(rows=hard(), order=["text", "label", "more"], end="\r\n", suffix="", bom=True, final=False, header=True)
    @example(rows=hard(), order=["more", "text", "label"], end="\n", suffix=".gz", bom=False, final=True, header=False)
    def test_of_tabs(
        self, tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str, str]], order: list[str], end: str,
        suffix: str, bom: bool, final: bool, header: bool,
    ) -> None:  # fmt: skip
        folder, name = tmp_path_factory.getbasetemp(), f"table.tsv{suffix}"
        named = [dict(zip(("text", "label", "more"), row, strict=True)) for row in rows]
        lines = ["\t".join(order)] * header + ["\t".join(row[column] for column in order) for row in named]
        content = end.join(lines) + end * final
        write(folder / name, content.encode("utf-8-sig" if bom or content.startswith("\ufeff") else "utf-8"))
        data = corpus(folder, name, columns=None if header else order)
        assert [(e.text, e.label) for e in data.splits().train] == [row[:2] for row in rows]
        assert [e.place for e in data.splits().test] == [(folder / name, i + 1 + header) for i in range(len(rows))]

    @settings(max_examples=100)
    @given(
        rows=tables(any_text), order=orders, suffix=suffixes, bom=st.booleans(), header=st.booleans(),
        style=st.sampled_from([("\r\n", csv.QUOTE_MINIMAL), ("\r\n", csv.QUOTE_ALL), ("\n", csv.QUOTE_ALL)]),
    )  # fmt: skip
    @example(
        rows=hard('1,\n\n"2"'), order=["text", "more", "label"], suffix=".zst", bom=True, header=True,
        style=("\r\n", csv.QUOTE_MINIMAL),
    )  # fmt: skip
    def test_of_commas(
        self, tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str, str]], order: list[str],
        suffix: str, bom: bool, header: bool, style: tuple[str, int],
    ) -> None:  # fmt: skip
        """Windows line ends become line feeds within quotes, too."""
        folder, name = tmp_path_factory.getbasetemp(), f"table.csv{suffix}"
        out = io.StringIO(newline="")
        writer = csv.writer(out, lineterminator=style[0], quoting=style[1])
        if header:
            writer.writerow(order)
        places = []
        for row in rows:
            places.append((folder / name, out.getvalue().count("\n") + 1))
            named = dict(zip(("text", "label", "more"), row, strict=True))
            writer.writerow([named[column] for column in order])
        content = out.getvalue()
        write(folder / name, content.encode("utf-8-sig" if bom or content.startswith("\ufeff") else "utf-8"))
        data = corpus(folder, name, columns=None if header else order)
        read = [(e.text, e.label) for e in data.splits().train]
        assert read == [tuple(field.replace("\r\n", "\n") for field in row[:2]) for row in rows]
        assert [e.place for e in data.splits().test] == places

    @settings(max_examples=100)
    @given(
        rows=tables(any_text), order=orders, end=endings, suffix=suffixes, bom=st.booleans(), final=st.booleans(),
        escaped=st.booleans(),
    )  # fmt: skip
    @example(
        rows=hard("\r\n\t\U0001f469"), order=["text", "more", "label"], end="\r\n", suffix="", bom=True, final=False,
        escaped=False,
    )  # fmt: skip
    def test_of_json(
        self, tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str, str]], order: list[str], end: str,
        suffix: str, bom: bool, final: bool, escaped: bool,
    ) -> None:  # fmt: skip
        folder, name = tmp_path_factory.getbasetemp(), f"table.jsonl{suffix}"
        named = [dict(zip(("text", "label", "more"), row, strict=True)) for row in rows]
        lines = [json.dumps({column: row[column] for column in order}, ensure_ascii=escaped) for row in named]
        write(folder / name, (end.join(lines) + end * final).encode("utf-8-sig" if bom else "utf-8"))
        examples = corpus(folder, name).splits().train
        assert [(e.text, e.label) for e in examples] == [row[:2] for row in rows]
        assert [e.place for e in examples] == [(folder / name, i + 1) for i in range(len(rows))]

    @settings(max_examples=30)
    @given(rows=tables(any_text), order=orders, suffix=suffixes)
    @example(rows=hard("\r\n\t\U0001f469"), order=["text", "more", "label"], suffix="")
    def test_of_parquet(
        self, tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str, str]], order: list[str], suffix: str
    ) -> None:
        """Which has no lines, but rows."""
        folder, name = tmp_path_factory.getbasetemp(), f"table.parquet{suffix}"
        columns = dict(zip(("text", "label", "more"), zip(*rows, strict=True), strict=True))
        write(folder / name, parquet({column: columns[column] for column in order}))
        examples = corpus(folder, name).splits().train
        assert [(e.text, e.label) for e in examples] == [row[:2] for row in rows]
        assert [e.where for e in examples] == [f"{folder / name}, row {i + 1}" for i in range(len(rows))]


class TestTsv:
    @pytest.mark.parametrize("field", ['"', '"quoted"', 'in"side', '"open', "a,b", "\\t\\n", "'", '""'])
    def test_fields_are_kept_as_they_stand(self, tmp_path: Path, field: str) -> None:
        assert read(tmp_path, "x.tsv", f"text\tlabel\n{field}\t{field}\n") == [(field, field)]


class TestCsv:
    @pytest.mark.parametrize(
        ("field", "text"),
        [
            ('"a,b"', "a,b"),
            ('"a\r\nb\n\nc"', "a\nb\n\nc"),
            ('"say ""hi"""', 'say "hi"'),
            ('5" disk', '5" disk'),
            ('"\rlone\r"', "\rlone\r"),
            ('""', ""),
            ("", ""),
            (" a ", " a "),
            ("a\tb'c\\n", "a\tb'c\\n"),
            pytest.param("x" * 131072, "x" * 131072, id="long"),
        ],
    )
    def test_fields(self, tmp_path: Path, field: str, text: str) -> None:
        assert read(tmp_path, "x.csv", f"text,label\n{field},a\n") == [(text, "a")]

    @pytest.mark.parametrize(
        ("row", "message"),
        [
            ('"open,a\nmore,b\n', "not CSV"),
            ('"a"b,c\n', "not CSV"),
            ("a\rb,c\n", "not CSV"),
            ("a\n", "1 field; expected 2, text, label"),
            ("a,b,c\n", "3 fields; expected 2, text, label"),
            ("a,b,\n", "3 fields; expected 2, text, label"),
            ("\na,b\n", "0 fields; expected 2, text, label"),
            (" \na,b\n", "1 field; expected 2, text, label"),
            ('a,""\n', 'label is ""; expected a label'),
        ],
    )
    @pytest.mark.parametrize("end", ["\n", "\r\n"])
    def test_a_bad_row_is_named_by_its_first_line(self, tmp_path: Path, row: str, message: str, end: str) -> None:
        """Which is counted in lines of the file, of which the rows before have several."""
        content = f'text,label\n"one\n\u2028\x85\x0btwo\rthree\n",a\n"4 ""\n",b\n{row}'.replace("\n", end)
        with pytest.raises(ValueError, match=rf"/x\.csv, line 7: {message}"):
            read(tmp_path, "x.csv", content)


class TestJson:
    @pytest.mark.parametrize(
        ("label", "name"),
        [
            (1, "1"),
            (-7, "-7"),
            (0, "0"),
            (1.5, "1.5"),
            (2.0, "2.0"),
            pytest.param(10**400, f"{10**400}", id="huge"),
            (True, "true"),
            (False, "false"),
            ("x", "x"),
        ],
    )
    def test_labels(self, tmp_path: Path, label: object, name: str) -> None:
        assert read(tmp_path, "x.jsonl", json.dumps({"text": "a", "label": label})) == [("a", name)]

    @pytest.mark.parametrize("more", [None, [1, {"a": None}], {"text": 1}, float("nan"), "x"])
    def test_other_columns_are_ignored(self, tmp_path: Path, more: object) -> None:
        assert read(tmp_path, "x.jsonl", json.dumps({"more": more, "text": "a", "label": "b"})) == [("a", "b")]

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ('{"text": "a", "label": }', "not JSON"),
            ('{"text": "a", "label": "b"', "not JSON"),
            ('{"text": "a", "label": "b"} {}', "not JSON"),
            ("{'text': 'a', 'label': 'b'}", "not JSON"),
            ('{"text": "a\tb", "label": "b"}', "not JSON"),
            ('{"text": "a", "label": 1, "text": "b"}', r"not JSON \(duplicate key text\)"),
            ('{"text": "a", "label": ' + "1" * 5000 + "}", "not JSON"),
            ('{"text": ' + "[" * 100_000, "not JSON"),
            ('\ufeff{"text": "a", "label": "b"}', "not JSON"),
            ("", "not JSON"),
            (" \t ", "not JSON"),
            ("[1, 2]", "expected a JSON object"),
            ('"text"', "expected a JSON object"),
            ("null", "expected a JSON object"),
            ('{"text": null, "label": "b"}', "text is null; expected a string"),
            ('{"text": 5, "label": "b"}', "text is 5; expected a string"),
            ('{"text": ["a"], "label": "b"}', r'text is \["a"\]; expected a string'),
            ('{"text": "a", "label": null}', "label is null; expected a label"),
            ('{"text": "a", "label": NaN}', "label is NaN; expected a label"),
            ('{"text": "a", "label": -1e999}', "label is -Infinity; expected a label"),
            ('{"text": "a", "label": ["b"]}', r'label is \["b"\]; expected a label'),
            ('{"text": "a", "label": {}}', r"label is \{\}; expected a label"),
            ('{"text": "a", "label": ""}', 'label is ""; expected a label'),
            ('{"text": "a", "Label": "b"}', r"no column label \(data\.label=label\); the columns are text, Label"),
            ('{"label": "b"}', r"no column text \(data\.text=text\); the columns are label"),
            (r'{"text": "\ud83d", "label": "b"}', r"text is \"\\ud83d\"; expected a string"),
            (r'{"text": "a", "label": "b\udc00"}', r"label is \"b\\udc00\"; expected a label"),
        ],
    )
    def test_a_bad_row_is_named_by_its_line(self, tmp_path: Path, line: str, message: str) -> None:
        content = '{"text": "\u2028\x85", "label": "a"}\r\n{"text": "", "label": "b"}\r\n' + line + "\r\n"
        with pytest.raises(ValueError, match=rf"/x\.jsonl, line 3: {message}"):
            read(tmp_path, "x.jsonl", content)


class TestColumns:
    @pytest.mark.parametrize("kind", FORMATS)
    def test_have_the_names_that_are_given(self, tmp_path: Path, kind: str) -> None:
        content = table(kind, [("a", "b"), ("c", "d")])
        assert read(tmp_path, f"x.{kind}", content, text="label", label="text") == [("b", "a"), ("d", "c")]

    @pytest.mark.parametrize("kind", ["tsv", "csv"])
    def test_may_be_named_by_the_configuration(self, tmp_path: Path, kind: str) -> None:
        """The first line is then an example."""
        content = table(kind, [("a", "b")])
        assert read(tmp_path, f"x.{kind}", content, columns=["label", "text"]) == [("label", "text"), ("b", "a")]
        with pytest.raises(ValueError, match=rf"/x\.{kind}, line 1: this line contains the column names"):
            read(tmp_path, f"x.{kind}", content, columns=["text", "label"])

    @pytest.mark.parametrize("kind", FORMATS)
    def test_that_are_missing_are_named_with_those_that_exist(self, tmp_path: Path, kind: str) -> None:
        """And the one that may have been meant."""
        content, line = table(kind, [("a", "b")]), "" if kind == "parquet" else ", line 1"
        said = (
            rf"/x\.{kind}{line}: no column txet \(data\.text=txet\); the columns are text, label; did you mean text\?"
        )
        with pytest.raises(ValueError, match=said):
            read(tmp_path, f"x.{kind}", content, text="txet")

    @pytest.mark.parametrize(("kind", "separator"), [("tsv", "\t"), ("csv", ",")])
    def test_are_all_needed_in_each_row(self, tmp_path: Path, kind: str, separator: str) -> None:
        content = f"a{separator}b\n\na{separator}b\n"
        for columns, message in [
            (
                ["text", "label"],
                rf"line 2: {'1 field' if kind == 'tsv' else '0 fields'}; expected 2, text, label \(data\.columns\)",
            ),
            (["text", "label", "more"], r"line 1: 2 fields; expected 3, text, label, more \(data\.columns\)"),
            (["text"], r"line 1: 2 fields; expected 1, text \(data\.columns\)"),
        ]:
            with pytest.raises(ValueError, match=rf"/x\.{kind}, {message}$"):
                read(tmp_path, f"x.{kind}", content, columns=columns)
        with pytest.raises(ValueError, match=rf"/x\.{kind}, line 2: \d fields?; expected 2, a, b \(line 1\)$"):
            read(tmp_path, f"x.{kind}", content, text="a", label="b")

    @pytest.mark.parametrize(("kind", "separator"), [("tsv", "\t"), ("csv", ",")])
    def test_with_the_same_name_are_rejected(self, tmp_path: Path, kind: str, separator: str) -> None:
        names = ["text", "label", "text"]
        row = separator.join(["a", "b", "c"]) + "\n"
        with pytest.raises(ValueError, match=rf"/x\.{kind}, line 1: the columns text, label, text; expected different"):
            read(tmp_path, f"x.{kind}", separator.join(names) + "\n" + row)
        with pytest.raises(
            ValueError, match=r"^data\.columns: the columns text, label, text; expected different names"
        ):
            read(tmp_path, f"x.{kind}", row, columns=names)


@pytest.mark.parametrize(
    ("name", "content"),
    [(f"x.{kind}", content) for kind in LINES for content in ("", "\ufeff")]
    + [("x.tsv", "text\tlabel\n"), ("x.csv", "\ufefftext,label"), ("x.parquet", parquet({"text": [], "label": []}))],
    ids=str,
)
def test_a_table_without_rows_is_rejected(tmp_path: Path, name: str, content: str | bytes) -> None:
    with pytest.raises(ValueError, match=rf"/{re.escape(name)}: no rows"):
        read(tmp_path, name, content)


@pytest.mark.parametrize(
    ("row", "message"),
    [("", "1 field; expected 2, text, label"), ("a", "1 field; expected 2"), ("a\tb\tc", "3 fields; expected 2"),
     ("a\tb\t", "3 fields"), ("a\t", 'label is ""; expected a label')],
)  # fmt: skip
def test_a_bad_row_of_tabs_is_named_by_its_line(tmp_path: Path, row: str, message: str) -> None:
    with pytest.raises(ValueError, match=rf"/x\.tsv, line 3: {message}"):
        read(tmp_path, "x.tsv", f"text\tlabel\r\n\u2028\x85\r\x0b\ta\r\n{row}\r\n")


@pytest.mark.parametrize("kind", LINES)
@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_what_is_not_utf8_is_named_by_file_and_line(tmp_path: Path, kind: str, suffix: str) -> None:
    rows = table(kind, [("a", "b")])
    assert isinstance(rows, str)
    content = rows.encode() + b'{"text": "\xe4"}\n'
    name, line = f"x.{kind}{suffix}", 2 if kind == "jsonl" else 3
    with pytest.raises(ValueError, match=rf"/{re.escape(name)}, line {line}: not UTF-8"):
        read(tmp_path, name, content)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(("suffix", "said"), [(".gz", "gzip"), (".zst", "zstd")])
def test_a_damaged_packed_file_is_named(tmp_path: Path, kind: str, suffix: str, said: str) -> None:
    path = tmp_path / f"x.{kind}{suffix}"
    write(path, table(kind, [("a", "b")]))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=rf"/x\.{kind}{suffix}: not a complete {said} file"):
        corpus(tmp_path, path.name).splits()


class TestParquet:
    def test_nulls_and_other_types_are_named_by_their_row(self, tmp_path: Path) -> None:
        for columns, message in [
            ({"text": ["a", "b", None], "label": [1, 2, 3]}, "row 3: text is null; expected a string"),
            ({"text": ["a", "b", "c"], "label": [1.0, 2.0, NAN]}, "row 3: label is NaN; expected a label"),
            ({"text": [b"a"], "label": ["b"]}, r"row 1: text is \"b'a'\" \(bytes\); expected a string"),
            (
                {"text": ["a"], "label": [datetime.date(2020, 1, 2)]},
                r'row 1: label is "2020-01-02" \(date\); expected a label',
            ),
            (
                {"text": [[["a"] * 99]], "label": ["b"]},
                r"row 1: text is \[\[(\"a\", ){11}\"a\"\.\.\.; expected a string",
            ),
        ]:
            with pytest.raises(ValueError, match=rf"/x\.parquet, {message}$"):
                read(tmp_path, "x.parquet", parquet(columns))

    def test_text_that_is_not_utf8_is_named_by_its_row(self, tmp_path: Path) -> None:
        text = pa.array([b"a", b"b", b"Gr\xfc\xdfe"]).cast(pa.binary()).view(pa.string())
        with pytest.raises(ValueError, match=r"/x\.parquet, row 3: not UTF-8 \(byte 2: invalid"):
            read(tmp_path, "x.parquet", parquet({"text": text, "label": ["a", "b", "c"]}))

    def test_a_damaged_file_is_rejected_or_read_right(self, tmp_path: Path) -> None:
        """Cut anywhere, and with any wrong byte."""
        content = table("parquet", [("one", "a"), ("two", "b")])
        assert isinstance(content, bytes)
        damaged = [content[:size] for size in range(0, len(content), 7)]
        damaged += [content[:i] + bytes([content[i] ^ 64]) + content[i + 1 :] for i in range(0, len(content), 7)]
        refused = 0
        for packed in damaged:
            try:
                rows, said = read(tmp_path, "x.parquet", packed), ""
            except ValueError as error:
                rows, said = [], str(error)
            assert rows == [("one", "a"), ("two", "b")] or re.match(rf"{tmp_path}/x\.parquet(: |, row )", said), said
            refused += not rows
        assert refused > len(damaged) // 2

    def test_two_columns_of_the_same_name_are_rejected(self, tmp_path: Path) -> None:
        buffer = io.BytesIO()
        pq.write_table(pa.Table.from_arrays([pa.array(["a"])] * 2, names=["text", "text"]), buffer)
        with pytest.raises(ValueError, match=r"/x\.parquet: the columns text, text; expected different names"):
            read(tmp_path, "x.parquet", buffer.getvalue())


class TestPairsAndScores:
    @pytest.mark.parametrize("kind", FORMATS)
    def test_are_read(self, tmp_path: Path, kind: str) -> None:
        write(tmp_path / f"x.{kind}", table(kind, [("a b", "3.8"), ("c", "-1e-1")]))
        data = corpus(tmp_path, f"x.{kind}", text_pair="label", label=None, score="label")
        examples = data.splits().train
        assert [(e.text, e.text_pair, e.score, e.label) for e in examples] == [
            ("a b", "3.8", 3.8, None),
            ("c", "-1e-1", -0.1, None),
        ]
        assert data.info.labels == ()

    @pytest.mark.parametrize("score", ["", "x", "nan", "inf", "1,5"])
    def test_what_is_no_number_is_rejected(self, tmp_path: Path, score: str) -> None:
        said = rf'/x\.tsv, line 3: label is "{score}"; expected a finite number'
        write(tmp_path / "x.tsv", table("tsv", [("a", "1"), ("b", score)]))
        with pytest.raises(ValueError, match=said):
            corpus(tmp_path, "x.tsv", label=None, score="label").splits()
        for value in (True, None, [1], 10**400):
            write(tmp_path / "x.jsonl", json.dumps({"text": "a", "label": value}))
            with pytest.raises(ValueError, match=r"/x\.jsonl, line 1: label is .*; expected a finite number"):
                corpus(tmp_path, "x.jsonl", label=None, score="label").splits()

    def test_labels_beside_scores_are_rejected(self, tmp_path: Path) -> None:
        write(tmp_path / "x.tsv", table("tsv", [("a", "1")]))
        with pytest.raises(ValueError, match=r"data\.score=s replaces data\.label=label; set data\.label=n"):
            corpus(tmp_path, "x.tsv", score="s")


@pytest.mark.parametrize(
    ("labels", "order"),
    [
        (["b", "a", "B", "b"], ["B", "a", "b"]),
        (["10", "9", "-1", "0"], ["-1", "0", "9", "10"]),
        (["10", "9", "x"], ["10", "9", "x"]),
        (["10.0", "2.5", "9"], ["2.5", "9", "10.0"]),
        (["1", "001", "+1", "01", " 1", "1 ", "0001", "0"], ["0", " 1", "+1", "0001", "001", "01", "1", "1 "]),
        (["nan", "1", "inf", "0", "nano"], ["0", "1", "inf", "nan", "nano"]),
    ],
)
def test_the_classes_are_in_order(tmp_path: Path, labels: list[str], order: list[str]) -> None:
    """As numbers, if they are; where these are equal, as texts."""
    write(tmp_path / "x.tsv", table("tsv", [("a", label) for label in labels]))
    assert corpus(tmp_path, "x.tsv").info.labels == tuple(order)


def test_the_classes_are_those_of_training(tmp_path: Path) -> None:
    """It is the task that refuses others: it knows the classes of a trained model."""
    write(tmp_path / "x.tsv", table("tsv", [("a", "2"), ("b", "1")]))
    write(tmp_path / "y.csv", table("csv", [("c", "3")]))
    write(tmp_path / "z.jsonl.zst", table("jsonl", [("d", "0")]))
    data = corpus(tmp_path, "x.tsv", validation="y.csv", test="z.jsonl.zst")
    assert data.info.labels == ("1", "2")
    assert [(e.text, e.label) for e in (*data.splits().validation, *data.splits().test)] == [("c", "3"), ("d", "0")]
    assert data.splits().test[0].where == f"{tmp_path / 'z.jsonl.zst'}, line 1"


@pytest.mark.parametrize("kind", FORMATS)
def test_shares_keep_text_and_label_together(tmp_path: Path, kind: str) -> None:
    rows = [(f"text {i:02}", str(i)) for i in range(50)]
    write(tmp_path / f"x.{kind}", table(kind, rows))
    data = corpus(tmp_path, f"x.{kind}", validation=0.2, test=0.3)
    parts = [data.splits().train, data.splits().validation, data.splits().test]
    assert [len(part) for part in parts] == [25, 10, 15]
    assert sorted((e.text, e.label) for part in parts for e in part) == rows
    assert data.info.labels == tuple(e.label for e in parts[0])
    assert data.splits() == corpus(tmp_path, f"x.{kind}", validation=0.2, test=0.3).splits()
    assert data.splits() != corpus(tmp_path, f"x.{kind}", validation=0.2, test=0.3, split_seed=2).splits()


@pytest.mark.parametrize("key", ["train", "validation", "test"])
def test_names_of_files_are_checked_at_once(tmp_path: Path, key: str) -> None:
    for name in ("x.tsv", "x.txt", "x.tsv.zip", "tsv"):
        write(tmp_path / name, table("tsv", [("a", "b")]))
    given = {"train": "x.tsv", "validation": "x.tsv", "test": "x.tsv"}
    for name in ("x.txt", "x.tsv.zip", "tsv"):
        with pytest.raises(ValueError, match=rf"^data\.{key}={name}: expected a name that ends in \.tsv, \.csv, \.jso"):
            corpus(tmp_path, **{**given, key: name})
    with pytest.raises(ValueError, match=rf"^data\.{key}=y\.tsv: no such file .*did you mean x\.tsv"):
        corpus(tmp_path, **{**given, key: "y.tsv"})


def test_rejects_shares_that_leave_nothing(tmp_path: Path) -> None:
    write(tmp_path / "x.tsv", table("tsv", [("a", "b")]))
    with pytest.raises(ValueError, match=r"data\.validation=0\.5 and data\.test=0\.5"):
        corpus(tmp_path, "x.tsv", validation=0.5, test=0.5)


def test_has_the_columns_of_tables(tmp_path: Path) -> None:
    write(tmp_path / "x.tsv", table("tsv", [("a", "b")]))
    data = corpus(tmp_path, "x.tsv")
    assert data.columns == ("text", "label", "text_pair", "score")
    assert not data.info.is_stream
    assert data.optimum("classification", "full", []) == {}


def test_a_file_for_each_class(tmp_path: Path) -> None:
    write(tmp_path / "good.txt", "fine\n\nnice, too\n")
    write(tmp_path / "bad.gz", "awful\nworse\tthan bad")
    files = {"good": "good.txt", "bad": "bad.gz"}
    found = corpus(tmp_path, files, validation=0.25, test=0.25)  # type: ignore[arg-type]
    splits = found.splits()
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (2, 1, 1)
    everything = [*splits.train, *splits.validation, *splits.test]
    assert {(e.text, e.label, e.place and e.place[1]) for e in everything} == {
        ("fine", "good", 1), ("nice, too", "good", 3), ("awful", "bad", 1), ("worse\tthan bad", "bad", 2),
    }  # fmt: skip
    write(tmp_path / "none.txt", "\n \n")
    for bad, answer in {
        "bed.gz": "data.train=bed.gz: no such file in .*; did you mean bad.gz",
        "none.txt": r"none\.txt: only blank lines; expected one text per line",
    }.items():
        with pytest.raises(ValueError, match=answer):
            corpus(tmp_path, files | {"bad": bad}, validation=0.25, test=0.25).splits()  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match=r"data.train=\[a,b\]: expected one file name, or one file per class, such as "
    ):
        corpus(tmp_path, ["a", "b"], validation=0.1, test=0.1)  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match=r"data.train: one file per class requires data.label=label and data.text_pair=null"
    ):
        corpus(tmp_path, files, validation=0.25, test=0.25, text_pair="other")  # type: ignore[arg-type]
