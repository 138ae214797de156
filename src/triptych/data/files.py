"""Text files as people have them, and what of them trains, validates and tests."""

import difflib
import gzip
import os
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from triptych.data.example import Example, Splits

BYTE_ORDER_MARK = "\ufeff"
Source = TypeVar("Source")


def find(dir: str, key: str, name: str) -> Path:
    """The file of this name in a folder.

    Args:
        dir: the folder.
        key: of the name in the configuration.
        name: of the file.

    Raises:
        ValueError: no such folder or file.
    """
    folder = Path(dir)
    if not folder.is_dir():
        raise ValueError(f"data.dir={dir}: no such folder ({folder.resolve()})")
    path = folder / name
    if not path.is_file():
        beside = path.parent if path.parent.is_dir() else folder
        there = sorted(os.path.relpath(file, folder) for file in beside.iterdir() if file.is_file())
        like = difflib.get_close_matches(name, there, n=1)
        raise ValueError(f"{key}={name}: no such file in data.dir={dir}{f'; did you mean {like[0]}?' if like else ''}")
    return path


def read_text(path: Path) -> str:
    """The content of a UTF-8 file, unpacked if its name ends in .gz, without a byte-order mark at its beginning, and
    with Windows line ends as line feeds. Nothing else is changed.

    Raises:
        ValueError: bytes that are not UTF-8 (with the line), or a damaged .gz file.
    """
    content = path.read_bytes()
    if path.suffix == ".gz":
        try:
            if not content:  # gzip itself takes this for a file of no members
                raise EOFError("0 bytes")
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{path}: not a whole gzip file ({error})") from None
    return decoded(content, str(path))


def decoded(content: bytes, name: str) -> str:
    """UTF-8 bytes as text, without a byte-order mark, and with Windows line ends as line feeds.

    Args:
        content: the bytes.
        name: of where they come from.

    Raises:
        ValueError: bytes that are not UTF-8 (with the line).
    """
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{name}, line {line}: not UTF-8 (byte {error.start}: {error.reason})") from None
    return text.removeprefix(BYTE_ORDER_MARK).replace("\r\n", "\n")


def read_lines(path: Path) -> list[str]:
    """The lines of a file.

    Raises:
        ValueError: see ``read_text``.
    """
    return lines_of(read_text(path))


def lines_of(text: str) -> list[str]:
    """The lines of a text: only a line feed ends a line (not U+0085, U+2028 or the others of ``str.splitlines``)."""
    lines = text.split("\n")
    return lines if lines[-1] else lines[:-1]


def check_shares(**sources: object) -> None:
    """Refuses shares of the training data that leave nothing.

    Args:
        sources: ``validation`` and ``test``; those that are numbers are shares.

    Raises:
        ValueError: such a share.
    """
    shares = {name: source for name, source in sources.items() if isinstance(source, int | float)}
    if any(not 0 < share < 1 for share in shares.values()) or sum(shares.values()) >= 1:
        given = " and ".join(f"data.{name}={share}" for name, share in shares.items())
        raise ValueError(f"{given}: expected shares above 0 that leave some to train")


def make_splits(
    read: Callable[[Source], Sequence[Example]],
    train: Source,
    validation: Source | float,
    test: Source | float,
    split_seed: int,
) -> Splits:
    """Three splits, each from files of its own or a share of the training examples.

    The examples of a share are drawn without replacement by ``split_seed`` and keep their order.

    Args:
        read: files to examples.
        train: files of the training examples.
        validation: files, or a share of the training examples.
        test: files, or a share of the training examples.
        split_seed: of the draws.

    Raises:
        ValueError: a share of less than one example, or a seed below 0.
    """
    if split_seed < 0:
        raise ValueError(f"data.split_seed={split_seed}: expected 0 or more")
    examples = read(train)
    left = np.random.default_rng(split_seed).permutation(len(examples))
    parts: dict[str, Sequence[Example]] = {}
    for name, source in (("test", test), ("validation", validation)):
        if isinstance(source, int | float):
            count = round(len(examples) * source)
            if count == 0 or count >= len(left):
                raise ValueError(f"data.{name}={source}: a share of {len(examples)} examples that leaves none")
            parts[name] = [examples[i] for i in np.sort(left[:count])]
            left = left[count:]
        else:
            parts[name] = read(source)
    return Splits([examples[i] for i in np.sort(left)], parts["validation"], parts["test"])
