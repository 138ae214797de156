"""Duplicates: validation and test examples that also occur in the training split."""

from collections.abc import Hashable, Iterable, Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Int

from triptych.data.example import Example
from triptych.data.example_columns import TEXTS, ExampleColumns, texts_of
from triptych.data.file_examples import outlines_of
from triptych.data.readers.long_text import LongText
from triptych.data.splits import Splits
from triptych.storage.array_files import cache_key
from triptych.storage.cache import cache_folder, get_or_make_best_effort, read_entry, write_entry

Overlap = dict[str, dict[str, float]]
"""For ``validation`` and ``test``: the fraction of examples whose input occurs in the training split (``inputs``), and
of those whose input and target occur together (``targets``)."""


def read_overlap(splits: Splits, digest: str) -> Overlap | None:
    """Returns the overlap of these splits (see ``find_overlap``), cached on disk; None for long texts.

    Args:
        digest: equal for equal examples.
    """
    path = cache_folder() / "overlaps" / f"{cache_key(digest)}.json"

    def read() -> Overlap | None:
        content = read_entry(path)
        return content and content["overlap"]

    train, validation, test = splits.train, splits.validation, splits.test
    if isinstance(train, LongText) or isinstance(validation, LongText) or isinstance(test, LongText):
        return None
    return get_or_make_best_effort(
        path,
        "the overlap of the splits is",
        read,
        lambda: find_overlap(train, {"validation": validation, "test": test}),
        lambda found: write_entry(path, {"overlap": found}),
    )


def find_overlap(train: Sequence[Example], others: Mapping[str, Sequence[Example]]) -> Overlap:
    """Computes the overlap by 64-bit hashes. Texts that differ only in whitespace are equal; images and audio are equal
    if their content is. For 10^6 x 10^5 pairs, the probability of a hash collision is 10^-8.

    Args:
        train: the training split.
        others: splits by name; empty ones are skipped.
    """
    known = _hashes(train)
    found = {}
    for name, examples in others.items():
        if len(examples):
            hashes = _hashes(examples)
            shares = [float(_is_in(hashes[i], known[i]).mean()) for i in range(2)]
            found[name] = dict(zip(("inputs", "targets"), shares, strict=True))
    return found


def _is_in(values: Int[np.ndarray, " values"], known: Int[np.ndarray, " known"]) -> Bool[np.ndarray, " values"]:
    """``np.isin``, which sorts ``known``; here only ``values`` are sorted."""
    different, numbers = np.unique(values, return_inverse=True)
    places = np.searchsorted(different, known)
    is_known = np.zeros(len(different) + 1, bool)
    is_known[places[np.append(different, 0)[places] == known]] = True
    return np.asarray(is_known[numbers])


def describe_overlap(overlap: Overlap) -> str:
    """Describes the overlap in a sentence; empty if there is none."""
    parts = []
    for name, shares in overlap.items():
        if shares["inputs"]:
            same = shares["targets"] / shares["inputs"]
            inputs = f"{_percent(shares['inputs'])} of the {name} inputs"
            parts.append(f"{inputs} ({_percent(same)} of these with the same target)")
    return f"{' and '.join(parts)} are training inputs too" if parts else ""


def _percent(share: float) -> str:
    return f"{100 * share:.{2 if 0 < share < 0.001 else 1}f} %"


def _hashes(examples: Sequence[Example]) -> Int[np.ndarray, "2 examples"]:
    """Hashes the input of each example (row 0), and its input and target (row 1). Python's hashes have 64 bits."""
    keys: Iterable[tuple[Hashable, Hashable]]
    if isinstance(examples, ExampleColumns) and examples.has_only_texts:
        rows = texts_of(examples, *TEXTS)
        keys = ((_key_of(text, pair), (_spaced(target), label, None, None, None)) for text, target, label, pair in rows)
    else:
        keys = ((_input_of(example), _target_of(example)) for example in outlines_of(examples))
    hashes = (value for given, target in keys for value in (hash(given), hash((given, target))))
    return np.fromiter(hashes, np.int64).reshape(-1, 2).T


def _input_of(example: Example) -> Hashable:
    """The text of an image or audio example is only its name, so the content is hashed instead."""
    if example.image is not None:
        return example.image.shape, example.image.sha256
    if example.audio is not None:
        return example.audio.sha256
    return _key_of(example.text if example.words is None else " ".join(example.words), example.text_pair)


def _target_of(example: Example) -> Hashable:
    answers = None if example.answers is None else frozenset(answer.text for answer in example.answers)
    return _spaced(example.target), example.label, example.tags, example.score, answers


def _key_of(text: str | None, pair: str | None) -> Hashable:
    return _spaced(text) if pair is None else (_spaced(text), _spaced(pair))


def _spaced(text: str | None) -> str | None:
    """A text with one space between two words."""
    return None if text is None else " ".join(text.split())
