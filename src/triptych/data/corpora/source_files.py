"""The files of programs: a folder of sources as people have it, or Python's own standard library."""

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
from triptych.data.corpora.corpus import CorpusFacts, RealCorpus
from triptych.data.example import Example
from triptych.data.readers.files import check_shares, lines_of, read_text
from triptych.data.splits import Splits
from triptych.storage.downloads import check_folder

log = logging.getLogger("triptych")

ANY_FOLDERS = re.compile(r"(?<![^/])(?:\*\*/)+")


class SourceFiles(RealCorpus):
    """Source files, each cut into pieces of whole lines. A file is in one split alone, and of files with the same
    content only the first counts.

    Args:
        dir: folder that is searched, with all within; None: the standard library of this Python.
        include: patterns of the files' paths in it, in which * stands for anything, folders too, and **/ for any
            folders or none; each has to match a file.
        exclude: patterns of those that are left out.
        piece: the most characters of a piece; a line that is longer is a piece of its own.
        validation: share of the files.
        test: share of the files.
        split_seed: of the draw of the files.

    Raises:
        ValueError: no such folder, a pattern that matches none, shares that leave nothing to train on, or a number that
            cannot be.
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
        check_shares(validation=validation, test=test)
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
            raise ValueError(f"data.exclude: leaves no file of data.include={[*include]} in {self.folder}")

    @property
    def facts(self) -> CorpusFacts:
        """The version of Python, where it is its library."""
        return CorpusFacts(version=f"Python {platform.python_version()}" if self.is_library else "")

    def splits(self) -> Splits:
        """The pieces.

        Raises:
            ValueError: a file that is not UTF-8, with the line, or too few files for three splits.
        """
        return self._splits

    @cached_property
    def _found(self) -> "_Found":
        """The files, in the order of their paths."""
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
        if useless and not self.is_library:  # whose parts depend on who packaged it
            log.warning("data.exclude: no file in %s matches %s", self.folder, " or ".join(useless))
        for path in found:
            try:
                text = read_text(path)
            except ValueError as error:
                raise ValueError(f"{error}; data.exclude leaves files out") from None
            digest = hashlib.sha256(text.encode()).digest()
            if text.strip() and digest not in seen:
                seen.add(digest)
                texts.append((path, text))
        log.info("%s, %s left out: blank, or with the content of another", counted(len(found), "file"),
                 f"{len(found) - len(texts):,}")  # fmt: skip
        order = np.random.default_rng(self.split_seed).permutation(len(texts))
        num_test, num_validation = (round(share * len(texts)) for share in (self.test, self.validation))
        if not (num_test and num_validation and num_test + num_validation < len(texts)):
            raise ValueError(f"{self.folder}: {counted(len(texts), 'file')} do not make three splits")
        parts = np.split(order, [num_test, num_test + num_validation])
        test, validation, train = (
            [piece for i in np.sort(part) for piece in self._pieces(*texts[i])] for part in parts
        )  # fmt: skip
        return Splits(train, validation, test)

    def _pieces(self, path: Path, text: str) -> Iterator[Example]:
        """Pieces of whole lines that are not blank."""
        lines, start = list[str](), 1
        for number, line in enumerate([*lines_of(text), None], 1):
            if lines and (line is None or sum(map(len, lines)) + len(lines) + len(line) > self.piece):
                if (piece := "\n".join(lines)).strip():
                    yield Example(piece, place=(path, start))
                lines, start = [], number
            if line is not None:
                lines.append(line)


class _Found(NamedTuple):
    """Files, and how many each pattern matches; of the files that are excluded, if they were included."""

    paths: list[Path]
    included: dict[str, int]
    excluded: dict[str, int]


def _matches(name: str, pattern: str) -> bool:
    """Whether a path is of this pattern: ``*`` stands for anything, folders too; ``**/`` for any folders, or none."""
    parts = ANY_FOLDERS.split(pattern)
    spellings = product(("", "**/"), repeat=len(parts) - 1)
    return any(
        fnmatch.fnmatchcase(name, parts[0] + "".join(map("".join, zip(folders, parts[1:], strict=True))))
        for folders in spellings
    )
