"""How many examples of the test and of the validation split are in the training split, too."""

import json
from collections.abc import Hashable, Mapping, Sequence

import numpy as np
from jaxtyping import Int

from triptych.data.example import Example
from triptych.data.readers.long_text import LongText
from triptych.data.splits import Splits
from triptych.storage.arrays import key_of
from triptych.storage.atomic import write_text
from triptych.storage.cache import cache_folder, kept, read_json

Overlap = dict[str, dict[str, float]]
"""Of ``validation`` and ``test``: the share of examples whose input equals that of a training example (``inputs``), and
of those whose input and target equal those of one (``targets``)."""


def read_overlap(splits: Splits, digest: str) -> Overlap | None:
    """The overlap of these splits, which is kept; see ``find_overlap``.

    Args:
        digest: equal for equal examples.
    """
    path = cache_folder() / "overlaps" / f"{key_of(digest)}.json"

    def read() -> Overlap | None:
        content = read_json(path)
        return content and content["overlap"]

    train, validation, test = splits.train, splits.validation, splits.test
    if isinstance(train, LongText) or isinstance(validation, LongText) or isinstance(test, LongText):
        return None
    return kept(
        path,
        "the overlap of the splits is",
        read,
        lambda: find_overlap(train, {"validation": validation, "test": test}),
        lambda found: write_text(path, json.dumps({"overlap": found})),
    )


def find_overlap(train: Sequence[Example], others: Mapping[str, Sequence[Example]]) -> Overlap:
    """The shares of examples of other splits that are in the training split, by hashes of 64 bits. Texts that
    differ in blanks alone are equal; images and sounds are if their content is. (Of 10^6 x 10^5 pairs, two have equal
    hashes by chance in one case of 10^8.)

    Args:
        train: the training split.
        others: by name; empty ones are left out.
    """
    known = _hashes(train)
    found = {}
    for name, examples in others.items():
        if len(examples):
            hashes = _hashes(examples)
            shares = [float(np.isin(hashes[i], known[i]).mean()) for i in range(2)]
            found[name] = dict(zip(("inputs", "targets"), shares, strict=True))
    return found


def describe_overlap(overlap: Overlap) -> str:
    """The overlap in words; empty: there is none."""
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
    """Of the input of each example, and of its input and target. Python's hashes have 64 bits."""
    hashes = np.empty((2, len(examples)), np.int64)
    for i, example in enumerate(examples):
        given = _input_of(example)
        hashes[:, i] = hash(given), hash((given, _target_of(example)))
    return hashes


def _input_of(example: Example) -> Hashable:
    """The text of an image or a sound is its name."""
    if example.image is not None:
        return example.image.shape, example.image.content
    if example.sound is not None:
        return example.sound.content
    text = " ".join((example.text if example.words is None else " ".join(example.words)).split())
    return text if example.pair is None else (text, " ".join(example.pair.split()))


def _target_of(example: Example) -> Hashable:
    target = None if example.target is None else " ".join(example.target.split())
    answers = None if example.answers is None else frozenset(answer.text for answer in example.answers)
    return target, example.label, example.tags, example.score, answers
