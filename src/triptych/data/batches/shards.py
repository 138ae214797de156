"""Texts as token ids on the disk: tokenised once, read by memory map."""

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

from triptych.data.readers.long_text import Source
from triptych.data.tokenizers.tokenizer import Tokenizer
from triptych.storage.atomic import replacing, write_text
from triptych.storage.cache import cache_folder, cached, read_json, remembered
from triptych.storage.progress import show_progress

log = logging.getLogger("triptych")

BATCH = 2**19
"""Characters that are tokenised at once, by all threads together."""


@dataclass(frozen=True, slots=True)
class Shard:
    """The tokens of a source.

    Attributes:
        ids: uint16, or uint32 where the vocabulary needs it. Documents end with eos, and eos stands before the first.
        eos: the token that ends documents; None: it is running text.
        num_unknown: tokens that stand for what the tokenizer does not know.
    """

    ids: Integer[np.ndarray, " tokens"]
    eos: int | None
    num_unknown: int

    @property
    def ends(self) -> Int[np.ndarray, " documents_and_one"]:
        """Document d is predicted by ``ids[ends[d] : ends[d + 1]]``, and its labels are the tokens after these; running
        text is one document."""
        return np.array([0, len(self.ids) - 1]) if self.eos is None else np.flatnonzero(self.ids == self.eos)


def shard_of(source: Source, tokenizer: Tokenizer, name: str) -> Shard:
    """The tokens of a source, from the cache if they are there.

    A shard is known by the SHA-256 of the content of its files, the tokenizer, and what of the files it is. It is used
    only if its size and its SHA-256 are those that it was written with; the latter is computed anew only if the time of
    its last change is another one.

    Args:
        name: of the split, for messages.

    Raises:
        RunError: the shard cannot be written.
        ValueError: an id beyond the vocabulary.
    """
    key = hashlib.sha256(json.dumps([source.sha256, tokenizer.sha256]).encode()).hexdigest()
    path = cache_folder() / "tokens" / f"{key}.bin"
    about = path.with_suffix(".json")
    dtype = np.dtype(np.uint16 if tokenizer.vocab_size <= 2**16 else np.uint32)
    eos = None if source.column is None else tokenizer.special.eos

    def read() -> Shard | None:
        facts = read_json(about)
        if facts is None or not path.is_file() or path.stat().st_size != facts["num_tokens"] * dtype.itemsize:
            return None
        if remembered(path, "sha256", lambda: {"sha256": _sha256(path)})["sha256"] != facts["sha256"]:
            return None
        ids = np.memmap(path, dtype, mode="r") if facts["num_tokens"] else np.empty(0, dtype)
        return Shard(ids, eos, facts["num_unknown"])

    def make() -> Shard:
        facts = _write(path, source, tokenizer, dtype, name)
        write_text(about, json.dumps(facts))
        shard = read()
        assert shard is not None, f"{path} is not what was written"
        return shard

    return cached(path, read, make)


def _write(path: Path, source: Source, tokenizer: Tokenizer, dtype: np.dtype[Any], name: str) -> dict[str, Any]:
    special, size = tokenizer.special, tokenizer.vocab_size
    end = [] if source.column is None else [special.eos]
    digest, num_tokens, num_unknown, begin = hashlib.sha256(), 0, 0, time.monotonic()
    with replacing(path) as temporary, open(temporary, "wb") as file, show_progress() as progress:
        bar = progress.add_task(f"tokenising {name}", total=len(source))
        for texts in chain([[]], _batches(source.pieces())):
            encoded = tokenizer.encode(texts) if texts else [[]]  # before all else, what ends a document
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
    log.info("tokenised %s: %s tokens in %.0f s, %s", name, f"{num_tokens:,}", time.monotonic() - begin, path)
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


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
