"""Training, validation and test examples."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from triptych.data.example import Example, each_answer, without_collection
from triptych.data.readers.files import Source
from triptych.data.readers.long_text import LongText


@dataclass(frozen=True, slots=True)
class Splits:
    """The three parts of a corpus, in memory or, if they are long texts, read as streams. Selection looks at
    ``validation`` only; ``test`` is read once, at the end. The others are empty where only the test is read."""

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
    """Three splits, each from files of its own or a share of the training examples.

    The examples of a share are drawn without replacement by ``split_seed`` and keep their order. Of conversations, each
    answer of the validation and of the test split is an example of its own (see ``each_answer``).

    Args:
        read: files to examples.
        train: files of the training examples; None: there are none, nor shares of them.
        validation: files, or a share of the training examples; None: there are none.
        test: files, or a share of the training examples.

    Raises:
        ValueError: a share of less than one example, or a seed below 0.
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
                raise ValueError(f"data.{name}={source}: a share of {len(examples)} examples that leaves none")
            parts[name] = [examples[i] for i in np.sort(left[:count])]
            left = left[count:]
        else:
            parts[name] = [] if source is None else read(source)
    asked = {name: [answer for example in part for answer in each_answer(example)] for name, part in parts.items()}
    return Splits([examples[i] for i in np.sort(left)], asked["validation"], asked["test"])
