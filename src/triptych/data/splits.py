"""Training, validation and test examples.

Tested by tests/data/readers/test_files.py and tests/data/corpora/test_corpus.py.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress, islice

import numpy as np
from jaxtyping import Int

from triptych.data.example import Example, each_answer, without_collection
from triptych.data.example_columns import ExampleColumns
from triptych.data.file_examples import FileExamples, outlines_of
from triptych.data.readers.files import Source
from triptych.data.readers.long_text import LongText


@dataclass(frozen=True, slots=True)
class Splits:
    """The three splits of a corpus: examples, or long texts that are read as streams. Model selection uses
    ``validation`` only; ``test`` is evaluated once, at the end. If only the test split is read, the others are
    empty."""

    train: "Sequence[Example] | LongText"
    validation: "Sequence[Example] | LongText"
    test: "Sequence[Example] | LongText"


@without_collection()
def make_splits(
    read: Callable[[Source], Sequence[Example]],
    train: Source | None,
    validation: Source | float | None,
    test: Source | float,
    split_seed: int,
) -> Splits:
    """Makes the three splits, each from its own files or as a fraction of the training examples.

    Fractions are drawn without replacement and keep the order of the examples. In the validation and test splits, each
    assistant message of a conversation becomes a separate example (see ``each_answer``).

    Args:
        read: reads the examples of a source.
        train: source of the training examples; None: no training split, and no fractions of it.
        validation: a source, or a fraction of the training examples; None: no validation split.
        test: a source, or a fraction of the training examples.
        split_seed: seed of the draws.

    Raises:
        ValueError: a fraction that leaves a split empty, or a negative seed.
    """
    if split_seed < 0:
        raise ValueError(f"data.split_seed={split_seed}: expected 0 or more")
    examples = [] if train is None else read(train)
    left = np.random.default_rng(split_seed).permutation(len(examples))
    parts: dict[str, Sequence[Example]] = {}
    for name, source in (("test", test), ("validation", validation)):
        if isinstance(source, int | float):
            count = round(len(examples) * source)
            if count == 0 or count >= len(left):
                raise ValueError(f"data.{name}={source}: of {len(examples)} examples, this leaves a split empty")
            parts[name] = _choose(examples, left[:count])
            left = left[count:]
        else:
            parts[name] = [] if source is None else read(source)
        if any(example.messages is not None for example in islice(outlines_of(parts[name]), 1)):
            parts[name] = [answer for example in parts[name] for answer in each_answer(example)]
    return Splits(_choose(examples, left), parts["validation"], parts["test"])


def _choose(examples: Sequence[Example], indices: Int[np.ndarray, " chosen"]) -> Sequence[Example]:
    """The examples with these indices, in their order."""
    if len(indices) == len(examples):
        return examples
    if isinstance(examples, FileExamples):
        return examples.choose(np.sort(indices).tolist())
    kept = np.isin(np.arange(len(examples)), indices)
    return examples.keep(kept) if isinstance(examples, ExampleColumns) else [*compress(examples, kept)]
