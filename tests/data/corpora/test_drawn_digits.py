"""Drawn digits: what is seen, and what is known of who sees best."""

import math
import re
from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from triptych.data import DrawnDigits, Image
from triptych.data.corpora.drawn_digits import DIGITS_DRAWN, FLAGS_DRAWN, OFFSETS, WORDS

ALL = list(WORDS)


def corpus(**options: Any) -> DrawnDigits:
    settings: dict[str, Any] = {
        "languages": ALL, "min_digits": 1, "max_digits": 3, "noise": 0.5, "levels": 256,
        "num_train": 30, "num_validation": 5, "num_test": 5, "seed": 1,
    }  # fmt: skip
    return DrawnDigits(**settings | options)


def test_what_is_drawn() -> None:
    """Without noise each part of an image is one of those that were drawn, and no two of these are alike."""
    drawn = np.array([*FLAGS_DRAWN.values()])
    assert len({flag.tobytes() for flag in drawn}) == len(WORDS) == 10
    glyphs = DIGITS_DRAWN.reshape(10 * len(OFFSETS), -1)
    assert len({glyph.tobytes() for glyph in glyphs}) == len(glyphs)
    for example in corpus(noise=1e-3, num_train=60).splits().train:
        pixels = np.round(np.asarray(example.image), 1)
        assert pixels.shape == (3, 12, 48)
        flag, *cells = np.split(pixels, 4, axis=2)
        language = ALL[[np.allclose(flag, np.round(one, 1)) for one in drawn].index(True)]
        words = []
        for cell in cells:
            assert np.array_equal(cell[0], cell[1])
            found = np.argwhere((cell[0] == DIGITS_DRAWN).all((2, 3)))
            assert len(found) == 1 or not cell.any()
            words += [WORDS[language].split()[found[0][0]]] if len(found) else []
        assert " ".join(words) == example.target


@pytest.mark.parametrize("levels", [256, 4])
def test_the_probability_of_captions_by_enumeration(levels: int) -> None:
    """By Bayes' rule over languages, digits and places, each byte with the probability of its range, in float64."""
    few = corpus(languages=["en", "it", "sv"], max_digits=2, noise=0.9, levels=levels, num_test=3)
    spread, expected = few.contrast * few.noise, {}
    for example in few.splits().test:
        image = example.image
        assert isinstance(image, Image)
        values = np.frombuffer(image.content, np.uint8).reshape(image.shape)
        most = levels - 1
        assert 0 < values.max() <= most
        low, high = (values - 0.5) / most, (values + 0.5) / most
        low, high = np.where(values == 0, -np.inf, low), np.where(values == most, np.inf, high)

        def log_p(drawn: np.ndarray, place: int, low: Any = low, high: Any = high) -> float:
            mean, part = 0.5 + few.contrast * (drawn - 0.5), np.s_[:, :, 12 * place : 12 * place + 12]
            return float(np.log(norm.cdf(high[part], mean, spread) - norm.cdf(low[part], mean, spread)).sum())

        dark = [log_p(np.zeros((3, 12, 12)), place) for place in (1, 2)]
        of_digits = [
            [np.logaddexp.reduce([log_p(glyph[None], place) for glyph in DIGITS_DRAWN[d]]) for d in range(10)]
            for place in (1, 2)
        ]
        expected = {}
        for language in few.languages:
            seen = log_p(FLAGS_DRAWN[language], 0)
            for count in (1, 2):
                for digits in product(range(10), repeat=count):
                    caption = " ".join(WORDS[language].split()[d] for d in digits)
                    total = seen - count * math.log(10 * len(OFFSETS)) + sum(dark[count:])
                    total += sum(of_digits[i][d] for i, d in enumerate(digits))
                    expected[caption] = np.logaddexp(expected.get(caption, -np.inf), total)
        whole = np.logaddexp.reduce([*expected.values()])
        found = dict(zip(few.captions, few.read(image), strict=True))
        assert found.keys() == expected.keys()
        for caption, total in expected.items():
            assert found[caption] == pytest.approx(math.exp(total - whole), rel=1e-6, abs=1e-12)
            said, count = caption.split(), len(caption.split())
            languages = sum({*said} <= {*WORDS[language].split()} for language in few.languages)
            in_all = total + count * math.log(10) - math.log(languages)  # each language, the digits being given
            assert few.likelihood(image, caption) == pytest.approx(in_all, rel=1e-9)
    assert "zero" in expected  # English and Italian say it so
    assert "tre" in expected


@pytest.mark.parametrize(("options", "task"), [({"max_digits": 1}, "classification"), ({}, "captioning")])
def test_who_sees_best_is_right_as_often_as_it_says(options: dict[str, int], task: str) -> None:
    noisy = corpus(noise=1.0, num_test=400, **options)
    test = noisy.splits().test
    found = [noisy.read(example.image) for example in test if example.image is not None]
    if task == "classification":
        digits = [noisy._of_digits(example.image)[0].argmax() for example in test if example.image is not None]
        right = [str(digit) == example.label for digit, example in zip(digits, test, strict=True)]
    else:
        right = [noisy.captions[p.argmax()] == example.target for p, example in zip(found, test, strict=True)]
    [(name, best)] = noisy.optimum(task, "", test).items()
    assert name == ("accuracy" if task == "classification" else "exact_match")
    assert abs(np.mean(right) - best) < 3 * math.sqrt(best * (1 - best) / len(test))
    assert 0.3 < best < 0.99


def test_who_matches_best_is_right_as_often_as_it_says() -> None:
    """The likeliest caption of the examples' for each image, and the likeliest image for each caption."""
    noisy = corpus(noise=1.3, max_digits=2, num_test=300)
    test = noisy.splits().test
    captions = sorted({example.target or "" for example in test})
    found = np.array([noisy.read(example.image) for example in test if example.image is not None])
    found = found[:, [noisy.captions.index(caption) for caption in captions]]
    of_images = [captions[p.argmax()] == example.target for p, example in zip(found, test, strict=True)]
    best_images = found.argmax(0)
    of_texts = [test[best_images[captions.index(e.target or "")]].target == e.target for e in test]
    best = noisy.optimum("image_text_matching", "", test)
    assert [*best] == ["image_to_text_recall_1", "text_to_image_recall_1"]
    for right, expected in zip((of_images, of_texts), best.values(), strict=True):
        assert 0.3 < expected < 0.99
        assert abs(np.mean(right) - expected) < 0.1


def test_the_entropy_of_clean_images() -> None:
    """32 places for each digit, and the languages that say it so, are all that a caption leaves open."""
    clean = corpus(noise=0.005, levels=4, max_digits=2, num_test=40)
    test = clean.splits().test
    said = [(example.target or "").split() for example in test]
    languages = [sum({*words} <= {*WORDS[code].split()} for code in ALL) for words in said]
    bits = [5 * len(words) + math.log2(count) for words, count in zip(said, languages, strict=True)]
    best = clean.optimum("image_generation", "", test)
    assert best == {"bits_per_dimension": pytest.approx(np.mean(bits) / (3 * 12 * 36), rel=1e-9)}
    seen = {value for example in test if example.image is not None for value in example.image.content}
    assert seen == {0, 1, 2, 3}


def test_splits() -> None:
    splits = corpus().splits()
    assert {len((example.target or "").split()) for example in splits.train} == {1, 2, 3}
    assert all(example.label is None for example in splits.train)
    assert corpus(num_train=7).splits().train == splits.train[:7]
    assert corpus(seed=2).splits().train != splits.train
    single = corpus(max_digits=1)
    assert single.info.labels == tuple("0123456789")
    for example in single.splits().train:
        assert any(WORDS[code].split()[int(example.label or "")] == example.target for code in WORDS)
    assert corpus().optimum("tagging", "", splits.test) == corpus().optimum("classification", "", splits.test) == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"languages": ["en", "xx"]}, "data.languages=['en', 'xx']: expected distinct codes from en, de"),
        ({"languages": ["en", "en"]}, "data.languages=['en', 'en']: expected distinct codes from en, de"),
        ({"languages": []}, "data.languages=[]: expected distinct codes from en, de"),
        ({"max_digits": 4}, "data.max_digits=4: expected at most 3"),
        ({"noise": 0.0}, "data.noise=0.0: expected more than 0"),
        ({"levels": 1}, "data.levels=1: expected 2 to 256"),
        ({"num_test": 0}, "data.num_test=0: expected at least 1"),
        ({"seed": -1}, "data.seed=-1: expected 0 or more"),
    ],
)
def test_mistakes(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        corpus(**options)
