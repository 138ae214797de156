"""A cache of generated examples, shared by the runs of a sweep."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from importlib.metadata import version
from typing import Any, overload

import numpy as np
from jaxtyping import Int, UInt8

from triptych.data.corpora.corpus import Corpus, sha256
from triptych.data.example import AnswerSpan, Example, Message
from triptych.data.readers.long_text import LongText
from triptych.data.splits import Splits
from triptych.storage.array_files import cache_key, read_arrays, write_arrays
from triptych.storage.atomic import write_text
from triptych.storage.cache import cache_folder, get_or_make_best_effort, read_json_if_valid

NAMES = ("train", "validation", "test")
FIELDS = [field.name for field in fields(Example) if field.name not in ("image", "audio", "place")]
"""Fields of a generated example. Images and audio are not cached, and only examples that were read have a place."""


class CachedExamples(Sequence[Example]):
    """The examples of a split as lines of text, each parsed on access.

    Args:
        text: concatenated JSON values, one per example.
        ends: end of each example in the text.
        key: see ``InMemoryExamples``.
    """

    def __init__(self, text: UInt8[np.ndarray, " bytes"], ends: Int[np.ndarray, " examples"], key: str) -> None:
        self._text, self._ends, self.key = text.tobytes(), ends, key

    @classmethod
    def write(cls, examples: Sequence[Example]) -> tuple[UInt8[np.ndarray, " bytes"], Int[np.ndarray, " examples"]]:
        """Returns the first two arguments of the constructor for these examples."""
        rows = map(_plain, examples)
        lines = [json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode() for row in rows]
        ends = np.cumsum([len(line) for line in lines], dtype=np.int64)
        return np.frombuffer(b"".join(lines), np.uint8), ends

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> Example: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Example]: ...

    def __getitem__(self, index: int | slice) -> Example | Sequence[Example]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]  # resolves negative indices; IndexError ends an iteration
        begin = self._ends[index - 1] if index else 0
        return _example(json.loads(self._text[begin : self._ends[index]]))


class InMemoryExamples(list[Example]):
    """The examples of a split in memory.

    Args:
        examples: examples of the split.
        key: equal for equal examples in equal order.
    """

    def __init__(self, examples: Sequence[Example], key: str) -> None:
        super().__init__(examples)
        self.key = key


def _plain(example: Example) -> dict[str, Any]:
    values = {name: getattr(example, name) for name in FIELDS}
    if example.answers is not None:
        values["answers"] = [[answer.text, answer.start] for answer in example.answers]
    if example.messages is not None:
        values["messages"] = [[message.role, message.content] for message in example.messages]
    return {name: value for name, value in values.items() if value is not None}


def _example(plain: dict[str, Any]) -> Example:
    for name in ("words", "tags"):
        if name in plain:
            plain[name] = tuple(plain[name])
    if "answers" in plain:
        plain["answers"] = tuple(AnswerSpan(text, start) for text, start in plain["answers"])
    if "messages" in plain:
        plain["messages"] = tuple(Message(role, content) for role, content in plain["messages"])
    return Example(**plain)


def cache_versions() -> list[Any]:
    """Returns the versions of Python and the libraries that determine the examples."""
    return [sys.version_info[:2], version("babel"), version("numpy")]


def is_ours(corpus: Corpus) -> bool:
    """Returns whether Triptych generates the corpus, so that equal settings give equal examples."""
    return getattr(corpus, "is_made", False) and type(corpus).__module__.startswith("triptych.")


def read_splits(corpus: Corpus, settings: Mapping[str, Any]) -> tuple[Splits, str]:
    """Returns the examples of a corpus and their fingerprint; generated corpora (``is_made``) are cached.

    Args:
        corpus: the corpus.
        settings: configuration of the corpus.

    Raises:
        ValueError: the corpus cannot be read.
    """
    if not is_ours(corpus):
        return _with_keys(corpus.splits())
    path = cache_folder() / "examples" / f"{cache_key(settings, cache_versions())}.npz"

    def read() -> tuple[Splits, str] | None:
        arrays = read_arrays(path)
        if arrays is None:
            return None
        digest = arrays["sha256"].tobytes().decode()
        parts = {name: CachedExamples(arrays[name], arrays[f"{name}_ends"], f"{digest} {name}") for name in NAMES}
        return Splits(**parts), digest

    def write(made: tuple[Splits, str]) -> None:
        splits, digest = made
        arrays = {"sha256": np.frombuffer(digest.encode(), np.uint8)}
        for name in NAMES:
            arrays[name], arrays[f"{name}_ends"] = CachedExamples.write(getattr(splits, name))
        write_arrays(path, arrays)

    return get_or_make_best_effort(path, "the examples are", read, lambda: _with_keys(corpus.splits()), write)


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


def _with_keys(splits: Splits) -> tuple[Splits, str]:
    digest = sha256(splits)
    parts = {name: getattr(splits, name) for name in NAMES}
    listed = {
        name: part if isinstance(part, LongText) else InMemoryExamples(part, f"{digest} {name}")
        for name, part in parts.items()
    }
    return Splits(**listed), digest
