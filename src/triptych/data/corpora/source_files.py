"""Source code: the files of a folder, or Python's standard library."""

import fnmatch
import hashlib
import logging
import platform
import re
import sysconfig
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from triptych.config import counted
from triptych.data.corpora.corpus import CorpusInfo, RealCorpus
from triptych.data.example import Example
from triptych.data.readers.files import check_split_shares, lines_of, read_text
from triptych.data.splits import Splits
from triptych.storage.downloads import check_folder

log = logging.getLogger("triptych")

ANY_FOLDERS = re.compile(r"(?<![^/])(?:\*\*/)+")


class SourceFiles(RealCorpus):
    """Source files, split into pieces of whole lines. All pieces of a file are in one split, and duplicate files are
    skipped.

    Args:
        dir: folder that is searched recursively; None: the standard library of this Python.
        include: patterns of paths in the folder, where * matches anything, including folders, and **/ matches zero or
            more folders; each must match a file.
        exclude: patterns of paths to skip.
        piece: maximum number of characters per piece; a longer line is a separate piece.
        validation: fraction of the files for validation.
        test: fraction of the files for the test.
        split_seed: seed that draws the splits.

    Raises:
        ValueError: no such folder, a pattern without a match, fractions that leave no training data, or a number out of
            range.
    """

    columns = ("text",)

    def __init__(
        self,
        *,
        dir: str | None,
        include: Sequence[str],
        exclude: Sequence[str],
        piece: int,
        validation: float,
        test: float,
        split_seed: int,
    ) -> None:
        check_split_shares(validation=validation, test=test)
        if piece < 1:
            raise ValueError(f"data.piece={piece}: expected at least 1 character")
        if split_seed < 0:
            raise ValueError(f"data.split_seed={split_seed}: expected 0 or more")
        if dir is not None:
            check_folder(dir)
        self.folder, self.is_library = Path(sysconfig.get_path("stdlib") if dir is None else dir), dir is None
        self.include, self.exclude, self.piece = tuple(include), tuple(exclude), piece
        self.validation, self.test, self.split_seed = validation, test, split_seed
        if useless := [pattern for pattern, count in self._found.included.items() if not count]:
            raise ValueError(f"data.include: no file in {self.folder} matches {' or '.join(useless)}")
        if not self._found.paths:
            raise ValueError(f"data.exclude: no file of data.include={[*include]} is left in {self.folder}")

    @property
    def info(self) -> CorpusInfo:
        """The version of Python, if the files are its standard library."""
        return CorpusInfo(version=f"Python {platform.python_version()}" if self.is_library else "")

    def splits(self) -> Splits:
        """Returns the pieces.

        Raises:
            ValueError: a file that is not UTF-8, with the line, or too few files for three splits.
        """
        return self._splits

    @cached_property
    def _found(self) -> "_Found":
        """The files, sorted by path."""
        found = _Found([], dict.fromkeys(self.include, 0), dict.fromkeys(self.exclude, 0))
        for path in sorted(self.folder.rglob("*")):
            name = path.relative_to(self.folder).as_posix()
            including = [pattern for pattern in self.include if _matches(name, pattern)]
            if not including or not path.is_file():
                continue
            excluding = [pattern for pattern in self.exclude if _matches(name, pattern)]
            for counts, patterns in ((found.included, including), (found.excluded, excluding)):
                for pattern in patterns:
                    counts[pattern] += 1
            if not excluding:
                found.paths.append(path)
        return found

    @cached_property
    def _splits(self) -> Splits:
        texts, seen = list[tuple[Path, str]](), set[bytes]()
        found = self._found.paths
        for key, counts in (("include", self._found.included), ("exclude", self._found.excluded)):
            if counts:
                shown = ", ".join(f"{pattern} {counted(count, 'file')}" for pattern, count in counts.items())
                log.info("data.%s: %s", key, shown)
        useless = [pattern for pattern, count in self._found.excluded.items() if not count]
        if useless and not self.is_library:  # its files depend on the distribution of Python
            log.warning("data.exclude: no file in %s matches %s", self.folder, " or ".join(useless))
        for path in found:
            try:
                text = read_text(path)
            except ValueError as error:
                raise ValueError(f"{error}; to skip files, set data.exclude") from None
            digest = hashlib.sha256(text.encode()).digest()
            if text.strip() and digest not in seen:
                seen.add(digest)
                texts.append((path, text))
        log.info("%s, %s skipped because blank or duplicate", counted(len(found), "file"),
                 f"{len(found) - len(texts):,}")  # fmt: skip
        order = np.random.default_rng(self.split_seed).permutation(len(texts))
        num_test, num_validation = (round(share * len(texts)) for share in (self.test, self.validation))
        if not (num_test and num_validation and num_test + num_validation < len(texts)):
            raise ValueError(f"{self.folder}: {counted(len(texts), 'file')} cannot fill three splits")
        parts = np.split(order, [num_test, num_test + num_validation])
        test, validation, train = (
            [piece for i in np.sort(part) for piece in self._pieces(*texts[i])] for part in parts
        )  # fmt: skip
        return Splits(train, validation, test)

    def _pieces(self, path: Path, text: str) -> Iterator[Example]:
        """Yields pieces of whole lines that are not blank."""
        lines, start = list[str](), 1
        for number, line in enumerate([*lines_of(text), None], 1):
            if lines and (line is None or sum(map(len, lines)) + len(lines) + len(line) > self.piece):
                if (piece := "\n".join(lines)).strip():
                    yield Example(piece, place=(path, start))
                lines, start = [], number
            if line is not None:
                lines.append(line)


class _Found(NamedTuple):
    """Files, and the number of matches per pattern; excluded patterns count only files that were included."""

    paths: list[Path]
    included: dict[str, int]
    excluded: dict[str, int]


def _matches(name: str, pattern: str) -> bool:
    """Returns whether a path matches a pattern, where ``*`` matches anything, including folders, and ``**/`` matches
    zero or more folders."""
    parts = ANY_FOLDERS.split(pattern)
    spellings = product(("", "**/"), repeat=len(parts) - 1)
    return any(
        fnmatch.fnmatchcase(name, parts[0] + "".join(map("".join, zip(folders, parts[1:], strict=True))))
        for folders in spellings
    )
