"""The digits of scikit-learn: what they are, and how they are split."""

import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from triptych.data import Digits, Splits, as_image, sha256

SETTINGS: dict[str, Any] = {"validation": 0.1, "test": 0.2, "split_seed": 1}


def splits(**settings: Any) -> Splits:
    return Digits(**(SETTINGS | settings)).splits()


def names(examples: Any) -> list[str]:
    return [example.text for example in examples]


def test_are_scikit_learns_images_scaled_to_one() -> None:
    found, digits = splits(), load_digits()
    for example in [*found.train, *found.validation, *found.test]:
        number = int(example.text.removeprefix("digit "))
        assert example.label == str(digits.target[number])
        assert np.array_equal(16 * np.array(example.image), digits.images[number][None])
    pixels = np.array([example.image for example in found.train])
    assert (pixels.min(), pixels.max()) == (0, 1)


def test_every_image_is_in_one_split() -> None:
    found = splits()
    everywhere = names(found.train) + names(found.validation) + names(found.test)
    assert len(everywhere) == len(set(everywhere)) == 1797
    assert sorted(everywhere, key=lambda name: int(name.split()[1])) == [f"digit {i}" for i in range(1797)]


def test_every_class_is_dealt_in_the_same_shares() -> None:
    found = splits()
    everything = Counter(str(label) for label in load_digits().target)
    for split, share in ((found.train, 0.7), (found.validation, 0.1), (found.test, 0.2)):
        counts = Counter(example.label for example in split)
        assert set(counts) == set("0123456789")
        assert all(abs(count - share * everything[label]) <= 1 for label, count in counts.items())


def test_the_split_is_a_function_of_its_seed() -> None:
    first, again, other = splits(), splits(), splits(split_seed=2)
    assert first == again
    assert sha256(first) == sha256(again)
    assert sha256(first) != sha256(other)
    assert names(first.test) != names(other.test)


def test_the_hash_sees_every_pixel() -> None:
    found = splits()
    example = found.test[-1]
    pixels = np.array(example.image)
    pixels[0, 7, 7] += 1 / 16
    changed = type(example)(example.text, label=example.label, image=tuple(tuple(map(tuple, rows)) for rows in pixels))
    assert sha256(found) != sha256(Splits(found.train, found.validation, [*found.test[:-1], changed]))


def test_shares_that_leave_nothing() -> None:
    with pytest.raises(ValueError, match=r"data\.validation=0\.5 and data\.test=0\.5: expected fractions"):
        Digits(validation=0.5, test=0.5, split_seed=1)


def test_without_scikit_learn_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ValueError, match=r"data=digits: scikit-learn is not installed; .*'\.\[images\]'"):
        Digits(**SETTINGS)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([[0.0] * 7] * 8, r"8x7; expected 8x8 or 1x8x8 \(patches: channels, rows, columns\)"),
        ([[[0.0] * 8] * 8] * 2, "2x8x8; expected 8x8 or 1x8x8"),
        ([[0.0] * 8] * 7 + [[0.0]], "not an array of numbers; expected"),
        ("a text", "not an array of numbers; expected"),
        ({"pixels": 1}, "not an array of numbers; expected"),
        (5, "a number; expected"),
        ([[10**400] * 8] * 8, "not an array of numbers"),
        ([[float("nan")] * 8] * 8, "a pixel is not a finite number"),
        ([[None] * 8] * 8, "a pixel is not a finite number"),
    ],
    ids=["columns", "channels", "ragged", "text", "object", "number", "large", "nan", "null"],
)
def test_what_is_no_image(values: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        as_image(values, (1, 8, 8))


def test_an_image_with_and_without_its_only_channel() -> None:
    pixels = np.random.default_rng(0).random((4, 6))
    for values in (pixels, pixels.tolist(), pixels[None], [pixels.tolist()]):
        assert np.array_equal(as_image(values, (1, 4, 6)), pixels.astype(np.float32)[None])
    with pytest.raises(ValueError, match=r"4x6; expected 2x4x6 \(patches"):
        as_image(pixels, (2, 4, 6))
