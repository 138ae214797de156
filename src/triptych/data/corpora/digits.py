"""The images of handwritten digits that are part of scikit-learn, so that no download is needed."""

import random
from functools import cached_property
from importlib.util import find_spec

from triptych.data.corpora.corpus import CorpusInfo, RealCorpus
from triptych.data.example import Example
from triptych.data.images import Image
from triptych.data.readers.files import check_split_shares
from triptych.data.splits import Splits


class Digits(RealCorpus):
    """1,797 digits of 8x8 pixels, each 0, 1/16, ..., 1: the test set of Alpaydin and Kaynak 1998 (UCI repository). The
    splits are stratified by class.

    Args:
        validation: fraction of the images for validation.
        test: fraction of the images for the test.
        split_seed: seed that draws the splits.

    Raises:
        ValueError: scikit-learn is not installed, or fractions that leave no training data.
    """

    columns = ("image", "label")
    info = CorpusInfo(labels=tuple("0123456789"))

    def __init__(self, *, validation: float, test: float, split_seed: int) -> None:
        check_split_shares(validation=validation, test=test)
        if find_spec("sklearn") is None:
            raise ValueError(
                "data=digits: scikit-learn is not installed; type pip install scikit-learn, or pip install '.[images]'"
            )
        self.validation, self.test, self.split_seed = validation, test, split_seed

    def splits(self) -> Splits:
        """Returns the images with their classes, in the order of scikit-learn."""
        return self._splits

    @cached_property
    def _splits(self) -> Splits:
        from sklearn.datasets import load_digits  # type: ignore[import-untyped]  # slow import (1 s)

        digits = load_digits()
        examples = [
            Example(f"digit {i}", label=str(label), image=Image.of(pixels[None] / 16, brightest=16))
            for i, (pixels, label) in enumerate(zip(digits.images, digits.target, strict=True))
        ]
        parts: dict[str, list[int]] = {"train": [], "validation": [], "test": []}
        for label in self.info.labels:
            numbers = [i for i, example in enumerate(examples) if example.label == label]
            random.Random(f"{self.split_seed} {label}").shuffle(numbers)
            num_test, num_validation = round(self.test * len(numbers)), round(self.validation * len(numbers))
            parts["test"] += numbers[:num_test]
            parts["validation"] += numbers[num_test : num_test + num_validation]
            parts["train"] += numbers[num_test + num_validation :]
        return Splits(**{name: [examples[i] for i in sorted(numbers)] for name, numbers in parts.items()})
