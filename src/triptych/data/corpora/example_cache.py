"""A cache of examples that were generated, or read from text files, shared by the runs of a sweep."""

import json
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, overload

import numpy as np

from triptych.data.corpora.corpus import Corpus, CorpusInfo, sha256
from triptych.data.example import AnswerSpan, Example, Message
from triptych.data.readers.long_text import LongText
from triptych.data.splits import Splits
from triptych.storage.array_files import cache_key, read_arrays, write_arrays
from triptych.storage.atomic import write_text
from triptych.storage.cache import cache_folder, get_or_make_best_effort, read_json_if_valid

log = logging.getLogger("triptych")

NAMES = ("train", "validation", "test")
TEXTS = ("text", "target", "label", "text_pair")
"""Fields with a separate column."""
OTHERS = ("words", "tags", "score", "answers", "messages", "difficulty")
"""The others that are cached. Examples with images or audio are not cached."""
AT_ONCE = 10_000
"""Examples that an iteration reads at once."""
LEAST_BYTES = 2**20
"""Each run reads smaller files itself."""


Arrays = Mapping[str, np.ndarray]
"""The columns of a split: ``NAME`` and ``NAME_ends`` are the concatenated texts of a field, and their ends. Where some
examples lack it, ``NAME_known`` tells which have it. Columns without any text are left out."""


class CachedExamples(Sequence[Example]):
    """The examples of a split as columns of text, which are mapped into memory.

    Args:
        columns: the columns of ``TEXTS``; ``more`` is a JSON object of the other fields; ``file`` and ``line`` are the
            places of examples that have a line number.
        length: number of examples.
        key: see ``InMemoryExamples``.
        files: the files that the examples were read from.
    """

    def __init__(self, columns: Arrays, length: int, key: str, files: Sequence[Path] = ()) -> None:
        self._columns, self._length, self.key, self._files = columns, length, key, files
        self._names = [name for name in (*TEXTS, "more") if name in columns]

    @classmethod
    def write(cls, examples: Sequence[Example], files: Sequence[Path] = ()) -> Arrays:
        """Returns the columns of these examples."""
        numbers = {file: number for number, file in enumerate(files)}
        columns = dict[str, np.ndarray]()
        for name in TEXTS:
            columns |= _column(name, [getattr(example, name) for example in examples])
        columns |= _column("more", [_write_others(example, numbers) for example in examples])
        places = [example.place for example in examples if example.place is not None]
        if numbers and len(places) == len(examples) and all(isinstance(line, int) for _, line in places):
            columns["file"] = np.array([numbers[file] for file, _ in places], np.int16)
            columns["line"] = np.array([line for _, line in places], np.int64)
        return columns

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Example: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Example]: ...

    def __getitem__(self, index: int | slice) -> Example | Sequence[Example]:
        if isinstance(index, slice):
            return self._read(range(*index.indices(len(self))))
        index = range(len(self))[index]  # resolves negative indices; IndexError ends an iteration
        return self._read(range(index, index + 1))[0]

    def __iter__(self) -> Iterator[Example]:
        for start in range(0, len(self), AT_ONCE):
            yield from self[start : start + AT_ONCE]

    def _read(self, indices: range) -> list[Example]:
        if indices.step != 1:
            return [self[i] for i in indices]
        examples = []
        for place, *texts in zip(self._places(indices), *(self._texts(x, indices) for x in self._names), strict=True):
            values: dict[str, Any] = {"place": place, **dict(zip(self._names, texts, strict=True))}
            more = values.pop("more", None)
            examples.append(Example(**values | ({} if more is None else _read_others(json.loads(more), self._files))))
        return examples

    def _places(self, indices: range) -> list[tuple[Path, int]] | list[None]:
        if "line" not in self._columns:
            return [None] * len(indices)
        files, lines = (self._columns[name][indices.start : indices.stop].tolist() for name in ("file", "line"))
        return [(self._files[file], line) for file, line in zip(files, lines, strict=True)]

    def _texts(self, name: str, indices: range) -> list[str | None]:
        begin = int(self._columns[f"{name}_ends"][indices.start - 1]) if indices.start else 0
        ends = (self._columns[f"{name}_ends"][indices.start : indices.stop] - begin).tolist()
        whole = self._columns[name][begin : begin + (ends[-1] if ends else 0)].tobytes()
        texts: list[str | None] = [whole[a:b].decode() for a, b in zip([0, *ends], ends, strict=False)]
        if f"{name}_known" in self._columns:
            known = self._columns[f"{name}_known"][indices.start : indices.stop].tolist()
            return [text if is_known else None for text, is_known in zip(texts, known, strict=True)]
        return texts


def _column(name: str, texts: Sequence[str | None]) -> dict[str, np.ndarray]:
    known = [text is not None for text in texts]
    if not any(known):
        return {}
    encoded = [b"" if text is None else text.encode() for text in texts]
    ends = np.cumsum([len(text) for text in encoded], dtype=np.int64)
    column: dict[str, np.ndarray] = {name: np.frombuffer(b"".join(encoded), np.uint8), f"{name}_ends": ends}
    return column if all(known) else {**column, f"{name}_known": np.array(known)}


class InMemoryExamples(list[Example]):
    """The examples of a split in memory.

    Args:
        examples: examples of the split.
        key: equal for equal examples in equal order.
    """

    def __init__(self, examples: Sequence[Example], key: str) -> None:
        super().__init__(examples)
        self.key = key


def _write_others(example: Example, numbers: Mapping[Path, int]) -> str | None:
    """The fields without a column, as JSON; None: the example has none."""
    values = {name: getattr(example, name) for name in OTHERS}
    if example.answers is not None:
        values["answers"] = [[answer.text, answer.start] for answer in example.answers]
    if example.messages is not None:
        values["messages"] = [[message.role, message.content] for message in example.messages]
    if example.place is not None and numbers and not isinstance(example.place[1], int):
        values["place"] = [numbers[example.place[0]], example.place[1]]
    known = {name: value for name, value in values.items() if value is not None}
    return json.dumps(known, ensure_ascii=False, separators=(",", ":")) if known else None


def _read_others(plain: dict[str, Any], files: Sequence[Path]) -> dict[str, Any]:
    """Inverse of ``_write_others``."""
    if "place" in plain:
        number, place = plain["place"]
        plain["place"] = files[number], place
    for name in ("words", "tags"):
        if name in plain:
            plain[name] = tuple(plain[name])
    if "answers" in plain:
        plain["answers"] = tuple(AnswerSpan(text, start) for text, start in plain["answers"])
    if "messages" in plain:
        plain["messages"] = tuple(Message(role, content) for role, content in plain["messages"])
    return plain


def cache_versions() -> list[Any]:
    """Returns the versions of Python and the libraries that determine the examples."""
    return [sys.version_info[:2], version("babel"), version("numpy")]


def is_ours(corpus: Corpus) -> bool:
    """Returns whether Triptych generates the corpus, so that equal settings give equal examples."""
    return getattr(corpus, "is_made", False) and type(corpus).__module__.startswith("triptych.")


def read_splits(corpus: Corpus, settings: Mapping[str, Any]) -> tuple[Splits, CorpusInfo]:
    """Returns the examples of a corpus, and its metadata with their fingerprint. Generated corpora (``is_made``) are
    cached, and corpora that are read from text files, until a file changes.

    Args:
        corpus: the corpus.
        settings: configuration of the corpus.

    Raises:
        ValueError: the corpus cannot be read.
    """
    files: Sequence[Path] = getattr(corpus, "files", ())
    states = [(str(file.resolve()), (status := file.stat()).st_size, status.st_mtime_ns) for file in files]
    if not is_ours(corpus) and sum(size for _, size, _ in states) < LEAST_BYTES:
        return _with_keys(corpus)
    path = cache_folder() / "examples" / f"{cache_key(settings, cache_versions(), *states)}.npz"

    def read() -> tuple[Splits, CorpusInfo] | None:
        arrays = read_arrays(path)
        if arrays is None:
            return None
        found = json.loads(arrays["info"].tobytes())
        for message in [] if warnings else found["warnings"]:
            log.warning("%s", message)
        info = CorpusInfo.from_dict(found["info"])
        parts = {}
        for name, length in found["lengths"].items():
            own = {key.removeprefix(f"{name}."): x for key, x in arrays.items() if key.startswith(f"{name}.")}
            parts[name] = CachedExamples(own, length, f"{info.sha256} {name}", files)
        return Splits(**parts), info

    def write(made: tuple[Splits, CorpusInfo]) -> None:
        splits, info = made
        parts = {name: getattr(splits, name) for name in NAMES}
        lengths = {name: len(part) for name, part in parts.items()}
        about = json.dumps({"info": info.to_dict(), "warnings": warnings, "lengths": lengths}).encode()
        arrays = {"info": np.frombuffer(about, np.uint8)}
        for name, part in parts.items():
            arrays |= {f"{name}.{key}": column for key, column in CachedExamples.write(part, files).items()}
        write_arrays(path, arrays)

    with recorded_warnings() as warnings:
        made = get_or_make_best_effort(path, "the examples are", read, lambda: _with_keys(corpus), write)
    if isinstance(made[0].train, CachedExamples):
        return made
    vars(corpus).pop("_splits", None)  # what was written does not need memory
    return read() or made


@contextmanager
def recorded_warnings() -> Iterator[list[str]]:
    """The warnings that are logged within the context."""
    messages = list[str]()

    class Recorder(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    handler = Recorder(logging.WARNING)
    log.addHandler(handler)
    try:
        yield messages
    finally:
        log.removeHandler(handler)


def read_optimum(
    corpus: Corpus, settings: Mapping[str, Any], task: str, architecture: str, examples: Sequence[Example] | LongText
) -> dict[str, float]:
    """Returns ``corpus.optimum`` of these examples, cached for generated corpora.

    Args:
        corpus: the corpus.
        settings: configuration of the corpus.

    Raises:
        ValueError: the corpus cannot contain the examples.
    """

    def find() -> dict[str, float]:
        return corpus.optimum(task, architecture, examples)

    def write(found: dict[str, float]) -> None:
        write_text(path, json.dumps(found))

    if not is_ours(corpus) or not isinstance(examples, CachedExamples | InMemoryExamples):
        return find()
    path = cache_folder() / "optima" / f"{cache_key(settings, task, architecture, examples.key, cache_versions())}.json"
    return get_or_make_best_effort(path, "the best score is", lambda: read_json_if_valid(path), find, write)


def _with_keys(corpus: Corpus) -> tuple[Splits, CorpusInfo]:
    splits = corpus.splits()
    digest = sha256(splits)
    parts = {name: getattr(splits, name) for name in NAMES}
    listed = {
        name: part if isinstance(part, LongText) else InMemoryExamples(part, f"{digest} {name}")
        for name, part in parts.items()
    }
    return Splits(**listed), replace(corpus.info, sha256=digest)
