"""A cache of trained tokenizers, shared by the runs of a sweep and the processes of a run."""

import hashlib
import inspect
import json
import logging
import sys
from collections.abc import Iterable
from importlib.metadata import version

from triptych.data.tokenizers.tokenizer import SpecialTokens, Tokenizer
from triptych.data.tokenizers.trainable import Characters, TrainedTokenizer
from triptych.storage.cache import cache_folder, get_or_make_best_effort, read_entry, write_entry

log = logging.getLogger("triptych")


def train_or_load(
    kind: TrainedTokenizer | Characters, texts: Iterable[str], targets: Iterable[str], sha256: str
) -> Tokenizer:
    """Returns the tokenizer of these texts, cached on disk. One process trains it while others that need it wait.

    The cache key contains the hash of the texts, the settings, the versions of the libraries and the training code.
    Each entry contains its own hash, and a damaged entry is replaced. If the cache is not writable, a warning is
    logged.

    Args:
        kind: kind of tokenizer.
        texts: texts of the training split, without targets.
        targets: targets of the training split.
        sha256: equal for equal texts and targets.

    Raises:
        ValueError: the tokenizer cannot be trained on these texts.
    """
    info = {
        "texts": sha256,
        "kind": type(kind).__qualname__,
        "settings": vars(kind),
        "versions": [version(name) for name in ("tokenizers", "sentencepiece")],
        "code": inspect.getsource(sys.modules[type(kind).__module__]),
    }
    key = hashlib.sha256(json.dumps(info, sort_keys=True).encode()).hexdigest()
    path = cache_folder() / "tokenizers" / f"{key}.json"

    def read() -> Tokenizer | None:
        content = read_entry(path)
        if content is None:
            return None
        log.info("tokenizer loaded from %s", path)
        return Tokenizer.from_json(content["tokenizer"], SpecialTokens.from_dict(content["special_tokens"]))

    def make() -> Tokenizer:
        if path.exists():
            log.warning("%s is damaged: the tokenizer is trained again", path)
        return kind.train(texts, targets)

    def write(tokenizer: Tokenizer) -> None:
        write_entry(path, {"tokenizer": tokenizer.to_json(), "special_tokens": tokenizer.special.to_dict()})
        log.info("tokenizer trained and saved as %s", path)

    return get_or_make_best_effort(path, "the tokenizer is", read, make, write)
