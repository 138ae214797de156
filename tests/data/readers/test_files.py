"""Lines of files, and the splits that are made of them."""

import gzip
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from triptych.data import Example, Splits
from triptych.data.readers import files
from triptych.data.readers.files import check_split_shares, decoded, lines_of, read_lines, read_text, resolve_file
from triptych.data.splits import make_splits

SEPARATORS = "\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"  # of str.splitlines, but for the line feed
HARD = [
    "",
    f"all of{SEPARATORS}them",
    "\rlone\r\rones",
    "mid\ufeffdle",
    "\ufeff",
    "\x00",
    " \t ",
    "",
    "\U0001f469\u200d",
]
BOM = "\ufeff"

any_line = st.text(
    st.sampled_from(SEPARATORS + BOM) | st.characters(exclude_categories=["Cs"], exclude_characters="\n"), max_size=12
).filter(lambda line: not line.endswith("\r"))  # which would be half of a Windows line end


def encode(lines: list[str], *, end: str, bom: bool, final: bool, packed: bool) -> bytes:
    text = end.join(lines) + (end if lines and (final or not lines[-1]) else "")
    content = ((BOM if bom or text.startswith(BOM) else "") + text).encode()
    return gzip.compress(content) if packed else content


@pytest.mark.parametrize("packed", [False, True])
@settings(max_examples=100)
@given(
    lines=st.lists(any_line, max_size=6), end=st.sampled_from(["\n", "\r\n"]), bom=st.booleans(), final=st.booleans()
)
@example(lines=HARD, end="\r\n", bom=False, final=False)
@example(lines=[BOM, BOM], end="\n", bom=True, final=True)
@example(lines=["one\r\rtwo"], end="\r\n", bom=False, final=True)
@example(lines=[], end="\n", bom=False, final=False)
@example(lines=["", "", ""], end="\r\n", bom=True, final=True)
def test_lines_are_read_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], end: str, bom: bool, final: bool, packed: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / ("lines.txt.gz" if packed else "lines.txt")
    path.write_bytes(encode(lines, end=end, bom=bom, final=final, packed=packed))
    assert read_lines(path) == lines


@given(
    lines=st.lists(any_line, max_size=6), end=st.sampled_from(["\n", "\r\n"]), bom=st.booleans(), part=st.integers(1, 9)
)
@example(lines=HARD, end="\r\n", bom=True, part=1)
def test_a_stream_is_the_whole(lines: list[str], end: str, bom: bool, part: int) -> None:
    """Wherever it is cut: within a character, a byte-order mark, a line end."""
    content = encode(lines, end=end, bom=bom, final=True, packed=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "PART", part)
        assert decoded(content, "it") == decoded_whole(content)
        broken = content + b"\n" + "\xe4".encode("latin-1") + b"x"
        line = broken.count(b"\n") + 1
        with pytest.raises(ValueError, match=rf"^it, line {line}: not UTF-8 \(byte {len(content) + 1}: "):
            decoded(broken, "it")


def decoded_whole(content: bytes) -> str:
    return content.decode().removeprefix(BOM).replace("\r\n", "\n")


@pytest.mark.parametrize("content", [b"", b"no zstd", pa.compress(b"x" * 1000, "zstd", asbytes=True)[:-5]])
def test_a_zst_file_is_read_or_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "text.zst"
    path.write_bytes(pa.compress("\ufeffä\r\nb".encode(), "zstd", asbytes=True))
    assert read_text(path) == "ä\nb"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"^{path}: not a complete zstd file"):
        read_text(path)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", []),
        ("\n", [""]),
        ("\n\n", ["", ""]),
        ("a", ["a"]),
        ("a\n", ["a"]),
        ("a\n\n", ["a", ""]),
        ("\na", ["", "a"]),
    ],
)
def test_a_line_feed_ends_a_line(text: str, lines: list[str]) -> None:
    """It does not begin one."""
    assert lines_of(text) == lines


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("\ufeff\ufeffa\ufeff\n\ufeffb", "\ufeffa\ufeff\n\ufeffb"),
        ("a\ufeff", "a\ufeff"),
        ("\ufeff", ""),
        ("a\r\nb\nc\r\r\n\n\rd\r", "a\nb\nc\r\n\n\rd\r"),
    ],
)
def test_only_the_first_byte_order_mark_and_windows_line_ends_change(content: str, text: str) -> None:
    assert decoded(content.encode(), "x") == text


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("content", "line", "byte"),
    [
        (b"first\nsecond: \xe4\nthird: \xe4", 2, 14),
        (b"\xef\xbb\xbffirst\r\n\r\nthird \xff", 3, 18),
        (b"\xff\xfea\x00", 1, 0),  # UTF-16
        (b"\xed\xa0\x80", 1, 0),  # half of a surrogate pair
        (b"a\n\xf0\x9f\x91", 2, 2),  # cut off
        (b"a\xc2\x85b\rc\xe2\x80\xa8\n\xc0\x80", 2, 10),
    ],
)
def test_what_is_not_utf8_is_named_by_file_and_line(
    tmp_path: Path, content: bytes, line: int, byte: int, packed: bool
) -> None:
    path = tmp_path / ("text.gz" if packed else "text")
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(ValueError, match=rf"{re.escape(str(path))}, line {line}: not UTF-8 \(byte {byte}: "):
        read_text(path)


CONTENT = b"one\ntwo\nthree three three\n"
PACKED = {"gz": gzip.compress(CONTENT, mtime=0), "zst": pa.Codec("zstd").compress(CONTENT, asbytes=True)}
SAID = {"gz": "gzip", "zst": "zstd"}


def unpack(folder: Path, kind: str, packed: bytes) -> str:
    (folder / f"text.txt.{kind}").write_bytes(packed)
    return read_text(folder / f"text.txt.{kind}")


@pytest.mark.parametrize("kind", ["gz", "zst"])
class TestPacked:
    def test_cut_anywhere_is_rejected(self, tmp_path: Path, kind: str) -> None:
        for size in range(len(PACKED[kind])):
            with pytest.raises(ValueError, match=rf"text\.txt\.{kind}: not a complete {SAID[kind]} file \("):
                unpack(tmp_path, kind, PACKED[kind][:size])

    @pytest.mark.parametrize("what", ["plain text", "more behind it", "cut behind it", "its first byte"])
    def test_what_is_something_else_is_rejected(self, tmp_path: Path, kind: str, what: str) -> None:
        packed = PACKED[kind]
        content = {
            "plain text": CONTENT,
            "more behind it": packed + b"more",
            "cut behind it": packed + packed[:-1],
            "its first byte": packed[:1],
        }[what]
        with pytest.raises(ValueError, match=rf"text\.txt\.{kind}: not a complete {SAID[kind]} file \("):
            unpack(tmp_path, kind, content)

    def test_several_members_are_one_file(self, tmp_path: Path, kind: str) -> None:
        assert unpack(tmp_path, kind, 2 * PACKED[kind]).encode() == 2 * CONTENT

    def test_the_name_says_whether_it_is_packed(self, tmp_path: Path, kind: str) -> None:
        (tmp_path / "text.txt").write_bytes(PACKED[kind])
        with pytest.raises(ValueError, match=r"text\.txt, line 1: not UTF-8"):
            read_text(tmp_path / "text.txt")


def test_any_wrong_bit_of_gzip_is_rejected_or_harmless(tmp_path: Path) -> None:
    """Harmless are the time and the like in the header."""
    packed, refused = PACKED["gz"], 0
    for bit in range(8 * len(packed)):
        damaged = bytearray(packed)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            read = unpack(tmp_path, "gz", bytes(damaged))
        except ValueError:
            refused += 1
        else:
            assert read.encode() == CONTENT, bit
    assert refused >= 8 * (len(packed) - 10)


class TestFind:
    def test_in_the_folder_or_below(self, tmp_path: Path) -> None:
        (tmp_path / "sub").mkdir()
        for name in ("a.txt", "sub/b.txt"):
            (tmp_path / name).write_text("x")
            assert resolve_file(str(tmp_path), "data.train", name) == tmp_path / name

    def test_names_the_missing_folder(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=rf"data\.dir={tmp_path}/no: no such folder \({tmp_path}/no\)"):
            resolve_file(f"{tmp_path}/no", "data.train", "a.txt")

    @pytest.mark.parametrize(
        ("name", "message"), [("trian.txt", r"; did you mean train\.txt\?$"), ("xyz", "$"), ("sub", ""), ("", "")]
    )
    def test_names_the_missing_file_and_the_likeliest(self, tmp_path: Path, name: str, message: str) -> None:
        (tmp_path / "sub").mkdir()
        (tmp_path / "train.txt").write_text("x")
        with pytest.raises(ValueError, match=rf"^data\.test={name}: no such file in data\.dir=\S+{message}"):
            resolve_file(str(tmp_path), "data.test", name)


NAN = float("nan")


@pytest.mark.parametrize(
    ("validation", "test"),
    [(0, 0.1), (0.1, 0), (-0.1, 0.1), (0.5, 0.5), (1, 0.1), (0.1, 1.5), (True, 0.1), ("file", 1), (NAN, 0.1)],
)
def test_rejects_shares_that_leave_nothing(validation: float | str, test: float) -> None:
    given = "" if isinstance(validation, str) else rf"data\.validation={validation} and "
    with pytest.raises(ValueError, match=rf"^{given}data\.test={test}: expected fractions above 0"):
        check_split_shares(validation=validation, test=test)


def test_takes_shares_and_files() -> None:
    check_split_shares(validation=0.5, test=0.49)
    check_split_shares(validation="file", test=0.99)
    check_split_shares(validation=["a", "b"], test="file")


def reader(size: int) -> Callable[[str], list[Example]]:
    return lambda name: [Example(f"{name} {i:03}") for i in range(size)]


def split(size: int, validation: float | str, test: float | str, seed: int = 1) -> Splits:
    return make_splits(reader(size), "train", validation, test, seed)


sizes = st.integers(20, 200)
shares = st.floats(0.05, 0.45)
seeds = st.integers(0, 2**40)


class TestSplits:
    @settings(max_examples=100)
    @given(size=sizes, validation=shares, test=shares, seed=seeds)
    def test_share_out_the_examples(self, size: int, validation: float, test: float, seed: int) -> None:
        """Each once, in order, as many as were asked for."""
        made = split(size, validation, test, seed)
        parts = [list(part) for part in (made.train, made.validation, made.test)]
        assert sorted(e.text for part in parts for e in part) == [e.text for e in reader(size)("train")]
        assert all(part == sorted(part, key=lambda e: e.text) for part in parts)
        assert [len(part) for part in parts[1:]] == [round(size * validation), round(size * test)]

    @given(size=st.integers(60, 200), validation=shares, test=shares, two=st.lists(seeds, min_size=2, unique=True))
    def test_are_a_function_of_the_seed(self, size: int, validation: float, test: float, two: list[int]) -> None:
        first, again, other = (split(size, validation, test, seed) for seed in (two[0], two[0], two[1]))
        assert first == again
        assert first.test != other.test
        assert first.validation != other.validation

    @given(size=sizes, validation=shares, other=shares, test=shares, seed=seeds)
    def test_the_test_is_the_same_whatever_validates(
        self, size: int, validation: float, other: float, test: float, seed: int
    ) -> None:
        tests = [split(size, source, test, seed).test for source in (validation, other, "file")]
        assert tests[0] == tests[1] == tests[2]

    def test_every_place_can_be_drawn(self) -> None:
        drawn = {e.text for seed in range(100) for e in split(10, 0.3, 0.3, seed).test}
        assert len(drawn) == 10

    def test_may_be_files(self) -> None:
        made = split(9, "other", "third")
        assert (made.train, made.validation, made.test) == tuple(reader(9)(n) for n in ("train", "other", "third"))
        made = split(9, "other", 1 / 3)
        assert [len(part) for part in (made.train, made.validation, made.test)] == [6, 9, 3]
        assert made.validation == reader(9)("other")

    @pytest.mark.parametrize(
        ("size", "validation", "test", "key"),
        [(4, 0.1, 0.5, "validation=0.1"), (4, 0.5, 0.1, "test=0.1"), (3, 0.47, 0.52, "validation=0.47")],
    )
    def test_of_nothing_are_rejected(self, size: int, validation: float, test: float, key: str) -> None:
        with pytest.raises(ValueError, match=rf"^data\.{key}: of {size} examples, this leaves a split empty"):
            split(size, validation, test)

    def test_a_seed_below_zero_is_rejected(self) -> None:
        with pytest.raises(ValueError, match=r"^data\.split_seed=-1: expected 0 or more"):
            split(9, 0.3, 0.3, -1)
