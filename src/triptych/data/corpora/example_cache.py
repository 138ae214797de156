"""A cache of examples that were generated, or read from text files, shared by the runs of a sweep."""

import json
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from triptych.data.corpora.corpus import Corpus, CorpusInfo, sha256
from triptych.data.example import Example
from triptych.data.example_columns import ExampleColumns
from triptych.data.file_examples import FileExamples
from triptych.data.readers.long_text import LongText
from triptych.data.splits import Splits
from triptych.storage.array_files import cache_key, read_arrays, write_arrays
from triptych.storage.cache import cache_folder, get_or_make_best_effort, read_entry, write_entry

log = logging.getLogger("triptych")

NAMES = ("train", "validation", "test")
LEAST_BYTES = 2**20
"""Each run reads smaller files itself."""


class InMemoryExamples(list[Example]):
    """The examples of a split in memory.

    Args:
        examples: examples of the split.
        key: equal for equal examples in equal order.
    """

    def __init__(self, examples: Sequence[Example], key: str) -> None:
        super().__init__(examples)
        self.key = key


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
        for name, places in found["files"].items():
            own = {key.removeprefix(f"{name}."): x for key, x in arrays.items() if key.startswith(f"{name}.")}
            parts[name] = ExampleColumns(own, [*map(Path, places)], f"{info.sha256} {name}")
        return Splits(**parts), info

    def write(made: tuple[Splits, CorpusInfo]) -> None:
        splits, info = made
        listed = {name: getattr(splits, name) for name in NAMES}
        parts = {name: x if isinstance(x, ExampleColumns) else ExampleColumns.of(x) for name, x in listed.items()}
        places = {name: [str(file) for file in part.files] for name, part in parts.items()}
        about = json.dumps({"info": info.to_dict(), "warnings": warnings, "files": places}).encode()
        arrays = {f"{name}.{key}": column for name, part in parts.items() for key, column in part.columns.items()}
        write_arrays(path, {"info": np.frombuffer(about, np.uint8), **arrays})

    with recorded_warnings() as warnings:
        made = get_or_make_best_effort(path, "the examples are", read, lambda: _with_keys(corpus), write)
    vars(corpus).pop("_splits", None)  # what was written does not need memory
    is_mapped = isinstance(made[0].train, ExampleColumns) and isinstance(made[0].train.columns["file"], np.memmap)
    return made if is_mapped else read() or made


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

    if not is_ours(corpus) or not isinstance(examples, ExampleColumns | InMemoryExamples):
        return find()
    path = cache_folder() / "optima" / f"{cache_key(settings, task, architecture, examples.key, cache_versions())}.json"
    write = partial(write_entry, path)
    return get_or_make_best_effort(path, "the best score is", lambda: read_entry(path), find, write)


def _with_keys(corpus: Corpus) -> tuple[Splits, CorpusInfo]:
    splits = corpus.splits()
    digest = sha256(splits)
    parts = {name: getattr(splits, name) for name in NAMES}
    for name, part in parts.items():
        if isinstance(part, ExampleColumns | FileExamples):
            part.key = f"{digest} {name}"
        elif not isinstance(part, LongText):
            parts[name] = InMemoryExamples(part, f"{digest} {name}")
    return Splits(**parts), replace(corpus.info, sha256=digest)
