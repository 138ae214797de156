"""Dates in many languages: a synthetic corpus whose best possible scores are known."""

import datetime
import difflib
import random
import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import MAXYEAR, MINYEAR
from functools import cached_property
from itertools import product
from math import log2
from statistics import fmean
from typing import ClassVar, TypeAlias

from babel import Locale
from babel.dates import DateTimeFormat, tokenize_pattern
from babel.localedata import locale_identifiers

from triptych.data.corpora.corpus import CorpusInfo
from triptych.data.example import Example, without_collection
from triptych.data.prefix import prefix_length
from triptych.data.splits import Splits

# Languages whose CLDR default is the Gregorian calendar with the digits 0-9. Others are excluded because Babel formats
# them differently from CLDR: Thai and Persian use other calendars; Bengali, Burmese and Nepali other digits.
# fmt: off
LANGUAGES = (
    "am", "ar", "bg", "cs", "da", "de", "el", "en", "es", "et", "fi", "fr", "he", "hi", "hu", "hy", "id", "it", "ja",
    "ka", "ko", "nl", "pl", "pt", "ro", "ru", "sv", "sw", "ta", "tr", "uk", "vi", "zh",
)
# fmt: on
STYLES = ("short", "medium", "long", "full")
FIELDS = ("day", "month", "year", "weekday", "other")

_DAY, _MONTH, _YEAR, _WEEKDAY, _OTHER = range(len(FIELDS))
# All pattern letters of CLDR that Babel's date formats use. The era (G) is not a separate field, since it is the same
# for every year after 0.
_FIELD_OF_LETTER = {"d": _DAY, "M": _MONTH, "y": _YEAR, "E": _WEEKDAY, "c": _WEEKDAY, "G": _OTHER}

# A pattern is a list of pieces: a field, and the text of each of its values. A date is the tuple of its values, (day,
# month, year, weekday, 0), so that date[field] is the key. Literal text is the field "other", whose value is 0.
_Pattern: TypeAlias = list[tuple[int, dict[int, str]]]
_Date: TypeAlias = tuple[int, int, int, int, int]


@dataclass(kw_only=True)
class Dates:
    """Dates of the Gregorian calendar as Babel's CLDR data format them.

    An example is a language, a style and a date, drawn independently and uniformly. ``text`` is
    ``babel.dates.format_date(date, style, language)``, ``label`` the language, and ``target`` the date in one fixed
    format. ``words`` are the characters of the text (code points), and ``tags`` the field of each character. The dates
    of the range are divided among the splits (80 %, 10 % and 10 %), so the splits share no date. The examples of a
    split are drawn with replacement from its dates.

    Attributes:
        columns: see ``Corpus``.
        tag_labels: classes of tagging.
        languages: distinct codes from ``LANGUAGES``.
        styles: distinct styles from ``STYLES``.
        first_year: the range starts on January 1 of this year.
        last_year: the range ends on December 31 of this year; at most 100 years in total, so that two-digit years are
            unique.
        num_train: number of training examples.
        num_validation: number of validation examples.
        num_test: number of test examples.
        target: "iso" (1998-03-05), or a Babel locale for its long style.
        seed: seed that divides the dates and draws the examples.

    Raises:
        ValueError: an argument is out of range; the message contains the key, the value, the expected and the nearest
            valid value.
    """

    columns: ClassVar[tuple[str, ...]] = ("text", "target", "label", "words", "tags")
    tag_labels: ClassVar[list[str]] = list(FIELDS)
    is_made = True

    languages: Sequence[str]
    styles: Sequence[str]
    first_year: int
    last_year: int
    num_train: int
    num_validation: int
    num_test: int
    target: str
    seed: int

    def __post_init__(self) -> None:
        first = self.first_year
        _check_names("languages", self.languages, LANGUAGES)
        _check_names("styles", self.styles, STYLES)
        _check_range("first_year", first, MINYEAR, MAXYEAR, f"{MINYEAR} to {MAXYEAR}")
        latest = min(first + 99, MAXYEAR)
        allowed = f"{first} (data.first_year) to {latest} (100 years, as a two-digit year must be unique)"
        _check_range("last_year", self.last_year, first, latest, allowed)
        for split, size in self._sizes.items():
            _check_range(f"num_{split}", size, 1, sys.maxsize, "at least 1")
        if self.target not in (targets := ["iso", *locale_identifiers()]):
            _refuse("target", self.target, "'iso' or a locale of Babel", _nearest(self.target, targets))

    @property
    def labels(self) -> list[str]:
        """The classes of classification: the languages in the given order."""
        return list(self.languages)

    @property
    def _sizes(self) -> dict[str, int]:
        return {"train": self.num_train, "validation": self.num_validation, "test": self.num_test}

    @property
    def _years(self) -> range:
        return range(self.first_year, self.last_year + 1)

    # Tables are computed on demand, since cached examples do not need them.
    @cached_property
    def _dates(self) -> list[_Date]:
        """All days of the range."""
        return [(day.day, day.month, day.year, day.weekday(), 0) for day in self._days()]

    @cached_property
    def _patterns(self) -> dict[tuple[str, str], _Pattern]:
        """The format of each language and style."""
        cells = product(self.labels, self.styles)
        return {(language, style): _pattern(language, style, self._years) for language, style in cells}

    @cached_property
    def _targets(self) -> list[str]:
        """The target text of each date."""
        if self.target == "iso":
            return [day.isoformat() for day in self._days()]
        return list(_render(_pattern(self.target, "long", self._years), self._dates))

    def _days(self) -> Iterator[datetime.date]:
        first, last = datetime.date(self._years[0], 1, 1), datetime.date(self._years[-1], 12, 31)
        return map(datetime.date.fromordinal, range(first.toordinal(), last.toordinal() + 1))

    @property
    def info(self) -> CorpusInfo:
        return CorpusInfo(labels=tuple(self.labels), tag_labels=FIELDS, words_are_characters=True)

    @without_collection()
    def splits(self) -> Splits:
        """Divides the dates and draws the examples. They are the same in every process, and each split is independent
        of the sizes of the others."""
        numbers = list(range(len(self._dates)))
        random.Random(f"{self.seed} deal").shuffle(numbers)
        tenth = len(numbers) // 10
        parts = {"validation": numbers[:tenth], "test": numbers[tenth : 2 * tenth], "train": numbers[2 * tenth :]}
        drawn = {}
        for split, part in parts.items():
            # String seeds use SHA-512 and not PYTHONHASHSEED. One generator per split keeps the splits independent.
            generator = random.Random(f"{self.seed} {split}")
            drawn[split] = self._draw(generator, self._sizes[split], part)
        return Splits(**drawn)

    def optimum(self, task: str, architecture: str, examples: Sequence[Example]) -> dict[str, float]:
        """Returns the best possible scores on these examples for a model that knows only the distribution of the
        corpus.

        Language, style and date are independent and uniform, with the date over the whole range. All sums are over
        every combination that is formatted as the text, by enumeration.

        - classification: ``accuracy``, the mean of max_language p(language | text).
        - translation: ``exact_match``, the mean of max_target p(target | text).
        - tagging: ``accuracy``, the mean over all characters of max_tag p(tag of the character | text).
        - language_modeling: ``bits_per_byte``, - sum log2 p'(text) / sum of UTF-8 bytes. Here p'(text) is the
          probability of the line, including its end, if the weekday were uniform and independent of the date, since a
          small model does not learn the calendar. ``bits_per_byte_with_calendar`` uses the true p. Prefix models (all
          but "decoder_only") are given the first ``prefix_length(text)`` characters: p'(text) becomes p'(text) /
          p'(line starts with the prefix), and the bytes are those of the continuation. The length of the prefix also
          hints at the length of the line; this is ignored (some 0.2 %). "decoder_only" also has this score as
          ``continuation_bits_per_byte``, and "encoder_only" has no score.

        Args:
            task: other tasks have no known scores.
            architecture: only used for language modeling.
            examples: at least one example of this corpus.

        Returns:
            Scores by metric; empty if none are known.

        Raises:
            ValueError: no examples, or a text that the corpus cannot contain.
        """
        texts = [example.text for example in examples]
        if task == "language_modeling":
            return self._language_modeling_optimum(architecture, texts)
        if task not in ("classification", "translation", "tagging"):
            return {}
        sources = self._sources(texts)
        if task == "classification":
            return {"accuracy": fmean(certainty(name for name, _, _ in sources[text]) for text in texts)}
        if task == "translation":
            return {"exact_match": fmean(certainty(self._targets[n] for _, _, n in sources[text]) for text in texts)}
        certainties = {
            text: [certainty(tags) for tags in zip(*(self._write(*source)[1] for source in found), strict=True)]
            for text, found in sources.items()
        }
        return {"accuracy": fmean(certainty for text in texts for certainty in certainties[text])}

    def _draw(self, generator: random.Random, size: int, numbers: Sequence[int]) -> list[Example]:
        """Draws the examples of a split from the dates with these numbers."""
        cells = generator.choices(list(self._patterns), k=size)
        drawn = generator.choices(numbers, k=size)
        examples = []
        for (language, style), number in zip(cells, drawn, strict=True):
            text, tags = self._write(language, style, number)
            words = tuple(map(sys.intern, text))  # saves memory: characters outside Latin-1 would be new objects
            examples.append(Example(text=text, target=self._targets[number], label=language, words=words, tags=tags))
        return examples

    def _write(self, language: str, style: str, number: int) -> tuple[str, tuple[str, ...]]:
        """Returns the text of a date and the tags of its characters."""
        date = self._dates[number]
        text = ""
        tags: list[str] = []
        for field, table in self._patterns[language, style]:
            part = table[date[field]]
            text += part
            tags += [FIELDS[field]] * len(part)
        return text, tuple(tags)

    def _sources(self, texts: Iterable[str]) -> dict[str, list[tuple[str, str, int]]]:
        """Returns every (language, style, number of the date) that is formatted as each text; all are equally
        likely."""
        sources: dict[str, list[tuple[str, str, int]]] = {text: [] for text in texts}
        for (language, style), pattern in self._patterns.items():
            for number, line in enumerate(_render(pattern, self._dates)):
                if line in sources:
                    sources[line].append((language, style, number))
        return sources

    def _language_modeling_optimum(self, architecture: str, texts: Sequence[str]) -> dict[str, float]:
        if architecture == "encoder_only":
            return {}
        prefixes = {text: text[: prefix_length(text)] for text in texts}
        line_bytes = sum(len(text.encode()) for text in texts)
        continuation_bytes = line_bytes - sum(len(prefixes[text].encode()) for text in texts)

        def bits(calendar: bool) -> tuple[float, float]:
            """Bits per byte of the lines, and of their continuations."""
            line = self._line_probabilities(texts, calendar=calendar)
            prefix = self._prefix_probabilities(prefixes.values(), calendar=calendar)
            line_bits = -sum(log2(line[text]) for text in texts)
            prefix_bits = -sum(log2(prefix[prefixes[text]]) for text in texts)
            return line_bits / line_bytes, (line_bits - prefix_bits) / continuation_bytes

        line, continuation = bits(calendar=False)
        line_with_calendar, continuation_with_calendar = bits(calendar=True)
        if architecture != "decoder_only":
            return {"bits_per_byte": continuation, "bits_per_byte_with_calendar": continuation_with_calendar}
        found = {"bits_per_byte": line, "bits_per_byte_with_calendar": line_with_calendar}
        return {**found, "continuation_bits_per_byte": continuation}

    def _line_probabilities(self, texts: Iterable[str], *, calendar: bool) -> dict[str, float]:
        """Computes p(text) of each text, or p'(text) without the calendar."""
        probabilities = dict.fromkeys(texts, 0.0)
        for lines in self._cells(calendar):
            share = 1 / len(self._patterns) / len(lines)
            for line in lines:
                if line in probabilities:
                    probabilities[line] += share
        return probabilities

    def _prefix_probabilities(self, prefixes: Iterable[str], *, calendar: bool) -> dict[str, float]:
        """Computes the probability, under p or p', that a line starts with each prefix."""
        probabilities = dict.fromkeys(prefixes, 0.0)
        for lines in self._cells(calendar):
            lines.sort()
            share = 1 / len(self._patterns) / len(lines)
            for prefix in probabilities:
                # The last code point is not a character, so every line with the prefix sorts before it.
                begin, end = bisect_left(lines, prefix), bisect_left(lines, prefix + "\U0010ffff")
                probabilities[prefix] += share * (end - begin)
        return probabilities

    def _cells(self, calendar: bool) -> Iterator[list[str]]:
        """Yields the lines of each language and style, equally likely; without the calendar, each date on all
        weekdays."""
        for pattern in self._patterns.values():
            if calendar or all(field != _WEEKDAY for field, _ in pattern):
                yield list(_render(pattern, self._dates))
            else:
                dates = [(d, m, y, weekday, 0) for d, m, y, _, _ in self._dates for weekday in range(7)]
                yield list(_render(pattern, dates))


def _pattern(locale: str, style: str, years: Iterable[int]) -> _Pattern:
    """Returns the pieces of a locale's date format, with each value as Babel formats it."""
    # For each value of a field, a date that has it: Babel formats dates, not fields.
    dates = {
        _DAY: {day: datetime.date(2000, 1, day) for day in range(1, 32)},
        _MONTH: {month: datetime.date(2000, month, 1) for month in range(1, 13)},
        _YEAR: {year: datetime.date(year, 1, 1) for year in years},
        _WEEKDAY: {day: datetime.date(2001, 1, 1 + day) for day in range(7)},  # 2001 started on a Monday
        _OTHER: {0: datetime.date(2000, 1, 1)},
    }
    pattern = []
    for _, token in tokenize_pattern(Locale.parse(locale).date_formats[style].pattern):
        if isinstance(token, str):
            pattern.append((_OTHER, {0: token}))
        else:
            letter, width = token
            field = _FIELD_OF_LETTER[letter]
            table = {value: DateTimeFormat(date, locale)[letter * width] for value, date in dates[field].items()}
            pattern.append((field, table))
    return pattern


def _render(pattern: _Pattern, dates: Sequence[_Date]) -> Iterator[str]:
    """Formats the dates, one piece of all dates at a time for speed."""
    values = list(zip(*dates, strict=True))
    return map("".join, zip(*(map(table.__getitem__, values[field]) for field, table in pattern), strict=True))


def certainty(answers: Iterable[Hashable]) -> float:
    """Returns the fraction of the most frequent answer: the accuracy of the best guess among equally likely cases."""
    counts = Counter(answers)
    return max(counts.values()) / counts.total()


def _check_names(key: str, names: Sequence[str], valid: Sequence[str]) -> None:
    if not names:
        _refuse(key, list(names), f"at least one of {', '.join(valid)}", [valid[0]])
    for name in names:
        if name not in valid:
            _refuse(key, name, f"one of {', '.join(valid)}", _nearest(name, valid))
    if len(set(names)) < len(names):
        _refuse(key, list(names), "each name once", list(dict.fromkeys(names)))


def _check_range(key: str, value: int, low: int, high: int, expected: str) -> None:
    if not low <= value <= high:
        _refuse(key, value, expected, min(max(value, low), high))


def _nearest(name: str, valid: Sequence[str]) -> str:
    return difflib.get_close_matches(name, valid, n=1, cutoff=0)[0]


def _refuse(key: str, value: object, expected: str, nearest: object) -> None:
    raise ValueError(f"data.{key}: got {value!r}, expected {expected}; nearest is {nearest!r}")
