"""Text files as people have them, and what of them trains, validates and tests."""

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
"""Bytes of a file that are read at once."""
PACKINGS = {".gz": "gzip", ".zst": "zstd"}
"""Ends of the names of packed files, and what packs them."""
Source = TypeVar("Source")


def find(dir: str, key: str, name: str) -> Path:
    """The file of this name in a folder.

    Args:
        key: of the name in the configuration.
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
    """The name of a file without the ending of its packing."""
    path = Path(name)
    return str(path.with_suffix("")) if path.suffix in PACKINGS else name


def format_of(name: str) -> str:
    """The ending of a file's name in lower case, without that of its packing: ``.jsonl`` of ``a.JSONL.gz``."""
    return Path(unpacked(name)).suffix.lower()


def find_all(dir: str, key: str, name: str) -> list[Path]:
    """The files of this name in a folder, in their order; * and ? stand for anything, ** for any folders."""
    if not any(character in name for character in "*?["):
        return [find(dir, key, name)]
    found = sorted(path for path in Path(dir).glob(name) if path.is_file())
    return found or [find(dir, key, name)]


def open_packed(path: Path) -> BinaryIO:
    """The content of a file as a stream of bytes, unpacked if its name ends in .gz or .zst."""
    if path.suffix == ".gz":
        return cast(BinaryIO, gzip.open(path))
    if path.suffix == ".zst":
        import pyarrow  # type: ignore[import-untyped]  # takes a quarter of a second

        return io.BufferedReader(pyarrow.input_stream(path, compression="zstd"))
    return open(path, "rb")


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Like ``open_packed``, for as long as the stream is needed.

    Raises:
        ValueError: a damaged .gz or .zst file, wherever the damage is met.
    """
    try:
        if path.suffix in PACKINGS and path.stat().st_size == 0:  # the libraries take this for an empty file
            raise EOFError("0 bytes")
        with open_packed(path) as file:
            yield file
    except (OSError, EOFError, zlib.error) as error:
        if path.suffix not in PACKINGS:
            raise
        raise ValueError(f"{path}: not a whole {PACKINGS[path.suffix]} file ({error})") from None


def read_parts(path: Path) -> Iterator[str]:
    """The content of a UTF-8 file, part by part: see ``read_text``.

    Raises:
        ValueError: bytes that are not UTF-8 (with the line), or a damaged .gz or .zst file.
    """
    with opened(path) as file:
        yield from decoded_parts(file, str(path))


def read_text(path: Path) -> str:
    """The content of a UTF-8 file, unpacked if its name ends in .gz or .zst, without a byte-order mark at its
    beginning, and with Windows line ends as line feeds. Nothing else is changed.

    Raises:
        ValueError: bytes that are not UTF-8 (with the line), or a damaged .gz or .zst file.
    """
    return "".join(read_parts(path))


def decoded(content: bytes, name: str) -> str:
    """UTF-8 bytes as text, without a byte-order mark, and with Windows line ends as line feeds.

    Args:
        name: of where they come from.

    Raises:
        ValueError: bytes that are not UTF-8 (with the line).
    """
    return "".join(decoded_parts(io.BytesIO(content), name))


def decoded_parts(file: BinaryIO, name: str) -> Iterator[str]:
    """Like ``decoded``, of a stream, part by part.

    Args:
        name: of where it comes from.

    Raises:
        ValueError: bytes that are not UTF-8 (with the line).
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    num_bytes, line, is_first, held = 0, 1, True, ""
    is_last = False
    while not is_last:
        content = file.read(PART)
        is_last = not content
        pending, _ = decoder.getstate()  # a character that the part before has cut
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
        held = "\r" if text.endswith("\r") and not is_last else ""  # half of a line end, perhaps
        yield text.removesuffix(held).replace("\r\n", "\n")


def read_lines(path: Path) -> list[str]:
    """The lines of a file."""
    return list(stream_lines(path))


def stream_lines(path: Path) -> Iterator[str]:
    """The lines of a file, one after the other."""
    rest = ""
    for part in read_parts(path):
        *lines, rest = (rest + part).split("\n")
        yield from lines
    if rest:
        yield rest


def lines_of(text: str) -> list[str]:
    """The lines of a text: only a line feed ends a line (not U+0085, U+2028 or the others of ``str.splitlines``)."""
    lines = text.split("\n")
    return lines if lines[-1] else lines[:-1]


def check_shares(**sources: object) -> None:
    """Refuses shares of the training data that leave nothing.

    Args:
        sources: ``train``, ``validation`` and ``test``; those that are numbers are shares.

    Raises:
        ValueError: such a share, or one of training data that are not given.
    """
    shares = {name: source for name, source in sources.items() if isinstance(source, int | float)}
    if shares and "train" in sources and sources["train"] is None:
        name, share = next(iter(shares.items()))
        raise ValueError(f"data.{name}={share}: a share of data.train, which is not given")
    if any(not 0 < share < 1 for share in shares.values()) or sum(shares.values()) >= 1:
        given = " and ".join(f"data.{name}={share}" for name, share in shares.items())
        raise ValueError(f"{given}: expected shares above 0 that leave some to train")


def check_files(dir: str, endings: Sequence[str], **sources: object) -> None:
    """Refuses files that are not there, and shares of the training data that leave nothing.

    Args:
        endings: that a file's name may have, its packing apart; none: any.
        sources: ``train``, ``validation`` and ``test``: those that are texts are names of files; None: not needed.
    """
    check_shares(**sources)
    for name, file in sources.items():
        if isinstance(file, str):
            if endings and format_of(file) not in endings:
                packed = " or ".join(PACKINGS)
                raise ValueError(f"data.{name}={file}: expected a name that ends in {', '.join(endings)}, or {packed}")
            find(dir, f"data.{name}", file)
