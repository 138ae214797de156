"""Finds, opens and reads text files, which may be compressed."""

import codecs
import difflib
import gzip
import io
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

from triptych.storage.downloads import advice, check_folder

BYTE_ORDER_MARK = "\ufeff"
PART = 2**18
"""Number of bytes to read at once."""
PACKINGS = {".gz": "gzip", ".zst": "zstd"}
"""Compression formats by suffix."""
Source = TypeVar("Source")


def resolve_file(dir: str, key: str, name: str) -> Path:
    """Returns the path of a file in a folder.

    Args:
        dir: the folder.
        key: configuration key of the name.
        name: name of the file.

    Raises:
        ValueError: no such file.
    """
    check_folder(dir)
    folder = Path(dir)
    path = folder / name
    if not path.is_file():
        beside = path.parent if path.parent.is_dir() else folder
        there = sorted(os.path.relpath(file, folder) for file in beside.iterdir() if file.is_file())
        like = difflib.get_close_matches(name, there, n=1)
        hint = f"; did you mean {like[0]}?" if like else advice(dir)
        raise ValueError(f"{key}={name}: no such file in data.dir={dir}{hint}")
    return path


def unpacked(name: str) -> str:
    """Removes the suffix of the compression from a file name."""
    path = Path(name)
    return str(path.with_suffix("")) if path.suffix in PACKINGS else name


def format_of(name: str) -> str:
    """Returns the suffix of a file name in lower case, without that of the compression: ``.jsonl`` for
    ``a.JSONL.gz``."""
    return Path(unpacked(name)).suffix.lower()


def find_all(dir: str, key: str, name: str) -> list[Path]:
    """Returns the files in a folder that match a name, sorted. ``*`` and ``?`` are wildcards, and ``**`` matches any
    folders."""
    if not any(character in name for character in "*?["):
        return [resolve_file(dir, key, name)]
    found = sorted(path for path in Path(dir).glob(name) if path.is_file())
    return found or [resolve_file(dir, key, name)]


def open_packed(path: Path) -> BinaryIO:
    """Opens a file as a byte stream, decompressed if its name ends in .gz or .zst."""
    if path.suffix == ".gz":
        return cast(BinaryIO, gzip.open(path))
    if path.suffix == ".zst":
        import pyarrow  # type: ignore[import-untyped]  # takes a quarter of a second

        return io.BufferedReader(pyarrow.input_stream(path, compression="zstd"))
    return open(path, "rb")


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Like ``open_packed``, as a context manager.

    Raises:
        ValueError: a damaged .gz or .zst file, at whatever point the damage is found.
    """
    try:
        if path.suffix in PACKINGS and path.stat().st_size == 0:  # the libraries would read an empty file
            raise EOFError("0 bytes")
        with open_packed(path) as file:
            yield file
    except (OSError, EOFError, zlib.error) as error:
        if path.suffix not in PACKINGS:
            raise
        raise ValueError(f"{path}: not a complete {PACKINGS[path.suffix]} file ({error})") from None


def read_parts(path: Path) -> Iterator[str]:
    """Like ``read_text``, in parts."""
    with opened(path) as file:
        yield from decoded_parts(file, str(path))


def read_text(path: Path) -> str:
    """Reads a UTF-8 file, decompressed if its name ends in .gz or .zst. A byte-order mark is removed, and Windows line
    ends become line feeds.

    Raises:
        ValueError: bytes that are not UTF-8 (with the line), or a damaged .gz or .zst file.
    """
    return "".join(read_parts(path))


def decoded(content: bytes, name: str) -> str:
    """Decodes UTF-8 without a byte-order mark; Windows line ends become line feeds.

    Args:
        content: the bytes.
        name: of their source, for messages.

    Raises:
        ValueError: bytes that are not UTF-8 (with the line).
    """
    return "".join(decoded_parts(io.BytesIO(content), name))


def decoded_parts(file: BinaryIO, name: str) -> Iterator[str]:
    """Like ``decoded``, for a stream, in parts."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    num_bytes, line, is_first, held = 0, 1, True, ""
    is_last = False
    while not is_last:
        content = file.read(PART)
        is_last = not content
        pending, _ = decoder.getstate()  # an incomplete character of the previous part
        try:
            text = decoder.decode(content, final=is_last)
        except UnicodeDecodeError as error:
            line += (pending + content).count(b"\n", 0, error.start)
            place = num_bytes - len(pending) + error.start
            raise ValueError(f"{name}, line {line}: not UTF-8 (byte {place}: {error.reason})") from None
        num_bytes += len(content)
        line += content.count(b"\n")
        if is_first and text:
            text, is_first = text.removeprefix(BYTE_ORDER_MARK), False
        text = held + text
        held = "\r" if text.endswith("\r") and not is_last else ""  # may be half of a line end
        yield text.removesuffix(held).replace("\r\n", "\n")


def source_files(dir: str, *sources: object) -> list[Path]:
    """The files of sources: names, lists of names, or names by class; fractions and None have none."""
    names = list[str]()
    for source in sources:
        names += [source] if isinstance(source, str) else []
        names += [*source.values()] if isinstance(source, dict) else source if isinstance(source, list) else []
    return [Path(dir, name) for name in names]


def read_lines(path: Path) -> list[str]:
    return list(stream_lines(path))


def stream_lines(path: Path) -> Iterator[str]:
    """Yields the lines of a file; the time is linear in the length of a line."""
    begun: list[str] = []
    for part in read_parts(path):
        first, *others = part.split("\n")
        begun.append(first)
        if others:
            yield "".join(begun)
            yield from others[:-1]
            begun = others[-1:]
    if rest := "".join(begun):
        yield rest


def lines_of(text: str) -> list[str]:
    """Splits a text into lines. Only a line feed ends a line, not U+0085, U+2028 or the others of
    ``str.splitlines``."""
    lines = text.split("\n")
    return lines if lines[-1] else lines[:-1]


def check_split_shares(**sources: object) -> None:
    """Checks the fractions of the training data.

    Args:
        sources: ``train``, ``validation`` and ``test``; numbers are fractions.

    Raises:
        ValueError: a fraction without training data, or fractions that leave a split empty.
    """
    shares = {name: source for name, source in sources.items() if isinstance(source, int | float)}
    if shares and "train" in sources and sources["train"] is None:
        name, share = next(iter(shares.items()))
        raise ValueError(f"data.{name}={share}: a fraction of data.train, which is not set")
    if any(not 0 < share < 1 for share in shares.values()) or sum(shares.values()) >= 1:
        given = " and ".join(f"data.{name}={share}" for name, share in shares.items())
        raise ValueError(f"{given}: expected fractions above 0 that leave some training data")


def check_files(dir: str, endings: Sequence[str], **sources: object) -> None:
    """Checks that files exist, and the fractions of the training data.

    Args:
        dir: folder of the files.
        endings: allowed suffixes, without compression; empty: any.
        sources: ``train``, ``validation`` and ``test``; strings are file names, numbers are fractions, None is not
            needed.
    """
    check_split_shares(**sources)
    for name, file in sources.items():
        if isinstance(file, str):
            if endings and format_of(file) not in endings:
                packed = " or ".join(PACKINGS)
                raise ValueError(f"data.{name}={file}: expected a name that ends in {', '.join(endings)}, or {packed}")
            resolve_file(dir, f"data.{name}", file)
