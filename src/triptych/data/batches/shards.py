"""Token ids of texts on disk: tokenized once, read by memory map.

Tested by tests/data/readers/test_long_text.py.
"""

import hashlib
import json
import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int, Integer

from triptych.data.readers.long_text import Source, file_sha256
from triptych.data.tokenizers.tokenizer import Tokenizer
from triptych.storage.atomic import replacing
from triptych.storage.cache import cache_folder, get_file_property, get_or_make, read_entry, write_entry
from triptych.storage.progress import show_progress

log = logging.getLogger("triptych")

BATCH = 2**19
"""Number of characters that are tokenized together by all threads."""


@dataclass(frozen=True, slots=True)
class Shard:
    """The tokens of a source.

    Attributes:
        ids: uint16, or uint32 if the vocabulary requires it. Documents end with eos, and eos precedes the first.
        eos: the token at the end of each document; None: plain text.
        num_unknown: number of unknown tokens.
    """

    ids: Integer[np.ndarray, " tokens"]
    eos: int | None
    num_unknown: int

    @property
    def ends(self) -> Int[np.ndarray, " documents_and_one"]:
        """Document boundaries. The inputs of document d are ``ids[ends[d] : ends[d + 1]]``, and its labels are the
        tokens that follow these. Plain text is one document."""
        return np.array([0, len(self.ids) - 1]) if self.eos is None else np.flatnonzero(self.ids == self.eos)


def shard_of(source: Source, tokenizer: Tokenizer, name: str) -> Shard:
    """Returns the tokens of a source, cached on disk.

    The cache key contains the SHA-256 of the files, the range within them, and the tokenizer. A shard is valid if its
    size and SHA-256 are unchanged; the SHA-256 is recomputed only if the modification time changed.

    Args:
        source: the source.
        tokenizer: the tokenizer.
        name: name of the split, for messages.

    Raises:
        RunError: the shard cannot be written.
        ValueError: an id outside the vocabulary.
    """
    key = hashlib.sha256(json.dumps([source.sha256, tokenizer.sha256]).encode()).hexdigest()
    path = cache_folder() / "tokens" / f"{key}.bin"
    about = path.with_suffix(".json")
    dtype = np.dtype(np.uint16 if tokenizer.vocab_size <= 2**16 else np.uint32)
    eos = None if source.column is None else tokenizer.special.eos

    def read() -> Shard | None:
        info = read_entry(about)
        if info is None or not path.is_file() or path.stat().st_size != info["num_tokens"] * dtype.itemsize:
            return None
        if get_file_property(path, "sha256", lambda: {"sha256": file_sha256(path)})["sha256"] != info["sha256"]:
            return None
        ids = np.memmap(path, dtype, mode="r") if info["num_tokens"] else np.empty(0, dtype)
        return Shard(ids, eos, info["num_unknown"])

    def make() -> Shard:
        info = _write(path, source, tokenizer, dtype, name)
        write_entry(about, info)
        shard = read()
        assert shard is not None, f"{path} is not what was written"
        return shard

    return get_or_make(path, read, make)


def _write(path: Path, source: Source, tokenizer: Tokenizer, dtype: np.dtype[Any], name: str) -> dict[str, Any]:
    special, size = tokenizer.special, tokenizer.vocab_size
    end = [] if source.column is None else [special.eos]
    digest, num_tokens, num_unknown, begin = hashlib.sha256(), 0, 0, time.monotonic()
    with replacing(path) as temporary, open(temporary, "wb") as file, show_progress() as progress:
        bar = progress.add_task(f"tokenizing {name}", total=len(source))
        for texts in chain([[]], _batches(source.pieces())):
            encoded = tokenizer.encode(texts) if texts else [[]]  # the shard starts with an eos
            ids = np.fromiter(chain.from_iterable([*text, *end] for text in encoded), np.int64)
            if ids.max(initial=0) >= size:
                where = ", ".join(map(str, source.files))
                raise ValueError(f"{where}: token id {ids.max()}, but the vocabulary has {size} tokens")
            content = ids.astype(dtype).tobytes()
            file.write(content)
            digest.update(content)
            num_tokens += len(ids)
            num_unknown += 0 if special.unk is None else int((ids == special.unk).sum())
            progress.advance(bar, len(texts) if end else sum(map(len, texts)))
    log.info("tokenized %s: %s tokens in %.0f s, %s", name, f"{num_tokens:,}", time.monotonic() - begin, path)
    return {"sha256": digest.hexdigest(), "num_tokens": num_tokens, "num_unknown": num_unknown}


def _batches(pieces: Iterable[str]) -> Iterator[list[str]]:
    batch, size = [], 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece)
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
