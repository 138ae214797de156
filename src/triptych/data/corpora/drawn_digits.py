"""Images of a flag and digits with captions: synthetic data whose best possible scores are known."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np
from jaxtyping import Float, Int

from triptych.data.corpora.digit_strings import DigitStrings
from triptych.data.example import Example
from triptych.data.images import WHITE, Image

CELL = 12
"""Width and height in pixels of the flag, and of the cell of each digit."""
MOST_DIGITS = 3
"""Maximum number of digits next to a flag."""
INK = {"w": (1, 1, 1), "#": (0, 0, 0), "r": (0.9, 0.1, 0.2), "b": (0.1, 0.2, 0.7),
       "g": (0.1, 0.6, 0.3), "y": (1, 0.8, 0.1)}  # fmt: skip
"""RGB value of each letter in ``FLAGS``."""
FLAGS = {
    "en": ("wwrrww", "wwrrww", "rrrrrr", "rrrrrr", "wwrrww", "wwrrww"),
    "de": ("######", "######", "rrrrrr", "rrrrrr", "yyyyyy", "yyyyyy"),
    "fr": ("bbwwrr",) * 6,
    "it": ("ggwwrr",) * 6,
    "es": ("rrrrrr", "yyyyyy", "yyyyyy", "yyyyyy", "yyyyyy", "rrrrrr"),
    "nl": ("rrrrrr", "rrrrrr", "wwwwww", "wwwwww", "bbbbbb", "bbbbbb"),
    "pl": ("wwwwww", "wwwwww", "wwwwww", "rrrrrr", "rrrrrr", "rrrrrr"),
    "sv": ("bbybbb", "bbybbb", "yyyyyy", "yyyyyy", "bbybbb", "bbybbb"),
    "da": ("rrwrrr", "rrwrrr", "wwwwww", "wwwwww", "rrwrrr", "rrwrrr"),
    "fi": ("wwbwww", "wwbwww", "bbbbbb", "bbbbbb", "wwbwww", "wwbwww"),
}
"""Simplified flag of each language; a letter is 2x2 pixels."""
WORDS = {
    "en": "zero one two three four five six seven eight nine",
    "de": "null eins zwei drei vier fünf sechs sieben acht neun",
    "fr": "zéro un deux trois quatre cinq six sept huit neuf",
    "it": "zero uno due tre quattro cinque sei sette otto nove",
    "es": "cero uno dos tres cuatro cinco seis siete ocho nueve",
    "nl": "nul een twee drie vier vijf zes zeven acht negen",
    "pl": "zero jeden dwa trzy cztery pięć sześć siedem osiem dziewięć",
    "sv": "noll ett två tre fyra fem sex sju åtta nio",
    "da": "nul en to tre fire fem seks syv otte ni",
    "fi": "nolla yksi kaksi kolme neljä viisi kuusi seitsemän kahdeksan yhdeksän",
}
"""Names of 0 to 9."""
SEGMENTS = ("abcdef", "bc", "abged", "abgcd", "fgbc", "afgcd", "afgedc", "abc", "abcdefg", "abcdfg")
"""Segments of 0 to 9 on a seven-segment display."""
PLACES: dict[str, tuple[int | slice, int | slice]] = {
    "a": (0, slice(0, 5)), "g": (4, slice(0, 5)), "d": (8, slice(0, 5)), "f": (slice(0, 5), 0),
    "b": (slice(0, 5), 4), "e": (slice(4, 9), 0), "c": (slice(4, 9), 4),
}  # fmt: skip
"""Rows and columns of each segment, in 9 by 5 pixels."""
ALMOST_SURE = 1 - 1e-12
"""Maximum probability, so that the logarithm of its complement is finite."""
OFFSETS = tuple(product(range(CELL - 9 + 1), range(CELL - 5 + 1)))
"""Possible positions of a digit in its cell."""


@dataclass(kw_only=True)
class DrawnDigits(DigitStrings):
    """A flag and one to three digits to the right of it, white on black, in Gaussian noise. The caption names the
    digits in the language of the flag ("drei sieben").

    The language, the number of digits, the digits, and the position of each in its cell are drawn independently and
    uniformly. The noise is independent for each pixel and channel. ``image`` has three channels (RGB), 12 rows, and 12
    columns for the flag and for each of ``max_digits``. ``target`` is the caption. ``label`` is the digit if each image
    has one.

    Attributes:
        languages: distinct codes from ``WORDS``.
        max_digits: maximum number of digits, 1 to 3; images with fewer digits are dark on the right.
        noise: standard deviation of the noise; white is 1, black 0.
        levels: number of values to which pixels are rounded, including black and white.

    Raises:
        ValueError: a number out of range, or an unknown language.
    """

    columns = ("image", "target", "label")

    languages: Sequence[str]
    levels: int

    def __post_init__(self) -> None:
        if not self.languages or len({*self.languages} & WORDS.keys()) < len(self.languages):
            raise ValueError(f"data.languages={list(self.languages)}: expected distinct codes from {', '.join(WORDS)}")
        if self.max_digits > MOST_DIGITS:
            raise ValueError(f"data.max_digits={self.max_digits}: expected at most {MOST_DIGITS}")
        if not 2 <= self.levels <= WHITE + 1:
            raise ValueError(f"data.levels={self.levels}: expected 2 to {WHITE + 1}")
        super().__post_init__()

    @property
    def contrast(self) -> float:
        """Difference between white and black, chosen so that little noise is clipped."""
        return 1 / (1 + 4 * self.noise)

    def optimum(self, task: str, architecture: str, examples: Sequence[Example]) -> dict[str, float]:
        """Returns the best possible scores on these examples, given how they are generated:

        - classification: ``accuracy``, the mean of max_digit p(digit | image)
        - captioning: ``exact_match``, the mean of max_caption p(caption | image)
        - image_generation: ``bits_per_dimension``, the mean of -log2 p(image | caption) per pixel and channel
        - image_text_matching: ``image_to_text_recall_1``, the mean of max_caption p(caption | image, it is one of the
          examples'); ``text_to_image_recall_1``, the mean of max_image p(caption | image, one of the images has it)

        Args:
            task: other tasks have no known scores.
            architecture: not used.
            examples: at least one example of this corpus.
        """
        images = [example.image for example in examples if example.image is not None]
        if task == "captioning":
            return {"exact_match": float(np.mean([self.read(image).max() for image in images]))}
        if task == "image_generation":
            nats = [self.likelihood(e.image, e.target) for e in examples if e.image and e.target]
            return {"bits_per_dimension": -float(np.mean(nats)) / math.log(2) / math.prod(images[0].shape)}
        if task == "image_text_matching":
            given, of_examples = np.unique([example.target for example in examples], return_inverse=True)
            places = [self.captions.index(caption) for caption in given]
            found = np.stack([self.read(image)[places] for image in images])
            of_one = 1 - np.exp(np.log1p(-np.minimum(found, ALMOST_SURE)).sum(0))  # p(any image has it)
            return {
                "image_to_text_recall_1": float((found.max(1) / found.sum(1)).mean()),
                "text_to_image_recall_1": float((found.max(0) / of_one)[of_examples].mean()),
            }
        if task == "classification" and self.counts.stop == 2:
            return {"accuracy": float(np.mean([_normalized(self._of_digits(image)[0]).max() for image in images]))}
        return {}

    def read(self, image: Image) -> Float[np.ndarray, " captions"]:
        """Computes p(caption | image) for each of ``captions``, summed over the languages that share a caption.

        Args:
            image: image of this corpus.
        """
        of_digits = self._of_digits(image)
        of_strings = [of_digits[range(len(digits)), digits].sum() for digits in self._strings]
        joint = np.outer(_normalized(self._of_languages(image)), _normalized(np.array(of_strings)))
        return np.asarray(np.bincount(self._numbers.ravel(), joint.ravel()))

    def likelihood(self, image: Image, caption: str) -> float:
        """Computes log p(image | caption), where the languages that share the caption are equally likely.

        Args:
            image: image of this corpus.
            caption: one of ``captions``.
        """
        of_languages, of_digits = self._of_languages(image), self._of_digits(image) + math.log(10)
        dark = self._log_likelihood[np.searchsorted(DRAWN, 0)][_bytes_of(image)[:, :, CELL:]].sum()
        said = caption.split()
        found = [
            of_language + sum(of_digit[words.index(word)] for of_digit, word in zip(of_digits, said, strict=False))
            for of_language, words in zip(of_languages, (WORDS[code].split() for code in self.languages), strict=True)
            if {*said} <= {*words}
        ]
        return float(np.logaddexp.reduce(found) - math.log(len(found)) + dark)

    @cached_property
    def captions(self) -> tuple[str, ...]:
        """All possible captions."""
        return tuple(dict.fromkeys(self._caption(code, digits) for code in self.languages for digits in self._strings))

    @staticmethod
    def _caption(language: str, digits: Sequence[int]) -> str:
        words = WORDS[language].split()
        return " ".join(words[digit] for digit in digits)

    @cached_property
    def _strings(self) -> list[tuple[int, ...]]:
        """All possible strings of digits."""
        return [digits for count in self.counts for digits in product(range(10), repeat=count)]

    @cached_property
    def _numbers(self) -> Int[np.ndarray, "languages strings"]:
        """Index into ``captions`` for each string in each language."""
        number = {caption: i for i, caption in enumerate(self.captions)}
        return np.array([[number[self._caption(code, digits)] for digits in self._strings] for code in self.languages])

    def draw(self, split: str) -> Iterator[Example]:
        random = np.random.default_rng([self.seed, *split.encode()])
        for number in range(self.sizes[split]):
            language = self.languages[int(random.integers(len(self.languages)))]
            digits = random.integers(10, size=random.choice(self.counts))
            clean = np.zeros((3, CELL, CELL * self.counts.stop))
            clean[:, :, :CELL] = FLAGS_DRAWN[language]
            for place, digit in enumerate(digits, 1):
                clean[:, :, place * CELL : (place + 1) * CELL] = DIGITS_DRAWN[digit, random.integers(len(OFFSETS))]
            seen = clean + self.noise * random.standard_normal(clean.shape)
            label = str(digits[0]) if self.counts.stop == 2 else None
            target = self._caption(language, digits.tolist())
            image = Image.of(self._shown(seen), self.levels - 1)
            yield Example(f"{split} {number + 1}", target=target, label=label, image=image)

    def _shown(self, values: Float[np.ndarray, "*size"]) -> Float[np.ndarray, "*size"]:
        """Reduces the contrast around grey, so that noise is visible on both sides."""
        return np.asarray(0.5 + self.contrast * (values - 0.5))

    def _of_languages(self, image: Image) -> Float[np.ndarray, " languages"]:
        """Computes log p(flag | language), up to a constant."""
        levels = np.searchsorted(DRAWN, np.stack([FLAGS_DRAWN[code] for code in self.languages]))
        return np.asarray(self._log_likelihood[levels, _bytes_of(image)[:, :, :CELL]].sum((1, 2, 3)))

    def _of_digits(self, image: Image) -> Float[np.ndarray, "places 10"]:
        """Computes log p(cell, digit) - log p(cell | dark) for each cell to the right of the flag."""
        black, white = self._log_likelihood[np.searchsorted(DRAWN, (0, 1))]
        of_pixels = (white - black)[_bytes_of(image)[:, :, CELL:]].sum(0)
        cells = of_pixels.reshape(CELL, -1, CELL).swapaxes(0, 1)
        of_places = np.einsum("pyx,doyx->pdo", cells, DIGITS_DRAWN)
        return np.asarray(np.logaddexp.reduce(of_places, axis=2) - math.log(10 * len(OFFSETS)))

    @cached_property
    def _log_likelihood(self) -> Float[np.ndarray, "levels bytes"]:
        """log p(byte | value without noise) for each of ``DRAWN``. Byte i stands for values that round to i; the first
        and the last also for all values outside the range."""
        from scipy.special import log_ndtr  # type: ignore[import-untyped]  # slow import

        limits = np.array([-np.inf, *(np.arange(self.levels - 1) + 0.5), np.inf]) / (self.levels - 1)
        z = (limits - self._shown(np.array(DRAWN)[:, None])) / (self.contrast * self.noise)
        # above the middle, subtract upper tails instead, which are not close to 1
        low, high = z[:, :-1], z[:, 1:]
        low, high = np.where(low > 0, -high, low), np.where(low > 0, -low, high)
        return np.asarray(log_ndtr(high) + np.log1p(-np.exp(log_ndtr(low) - log_ndtr(high))))


def _bytes_of(image: Image) -> Int[np.ndarray, "3 rows columns"]:
    return np.frombuffer(image.content, np.uint8).reshape(image.shape)


def _normalized(logs: Float[np.ndarray, " choices"]) -> Float[np.ndarray, " choices"]:
    return np.asarray(np.exp(logs - np.logaddexp.reduce(logs)))


def _draw_flag(rows: Sequence[str]) -> Float[np.ndarray, "3 12 12"]:
    small = np.array([[INK[letter] for letter in row] for row in rows]).transpose(2, 0, 1)
    return small.repeat(2, axis=1).repeat(2, axis=2)


def _draw_digit(segments: str, offset: tuple[int, int]) -> Float[np.ndarray, "12 12"]:
    glyph, cell = np.zeros((9, 5)), np.zeros((CELL, CELL))
    for segment in segments:
        glyph[PLACES[segment]] = 1
    cell[offset[0] : offset[0] + 9, offset[1] : offset[1] + 5] = glyph
    return cell


FLAGS_DRAWN = {language: _draw_flag(rows) for language, rows in FLAGS.items()}
DRAWN = sorted({float(level) for flag in FLAGS_DRAWN.values() for level in flag.ravel()} | {0.0, 1.0})
"""All values that are drawn."""
DIGITS_DRAWN = np.array([[_draw_digit(segments, offset) for offset in OFFSETS] for segments in SEGMENTS])
"""Each digit at each offset."""
