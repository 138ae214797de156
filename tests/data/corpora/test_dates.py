"""The corpus of dates: against Babel itself, and its optima against brute force over the whole distribution."""

import datetime
import hashlib
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable
from fractions import Fraction
from itertools import product
from math import log2
from typing import Any, NamedTuple
from zlib import crc32

import pytest
from babel import Locale
from babel.dates import DateTimeFormat, format_date, get_date_format, parse_pattern
from babel.localedata import locale_identifiers
from hypothesis import given
from hypothesis import strategies as st

from triptych.data.corpora.corpus import CorpusInfo
from triptych.data.corpora.dates import FIELDS, LANGUAGES, STYLES, Dates
from triptych.data.example import Example
from triptych.data.prefix import prefix_length

TASKS = ("classification", "translation", "tagging", "language_modeling")
BASE: dict[str, Any] = {
    "languages": ["de", "en"], "styles": ["short", "full"], "first_year": 1999, "last_year": 2000, "num_train": 300,
    "num_validation": 60, "num_test": 60, "target": "iso", "seed": 3,
}  # fmt: skip


def corpus(**changes: Any) -> Dates:
    return Dates(**(BASE | changes))


# Each is ambiguous in its own way: day and month swapped, the same month names, the same ideographs, an infix weekday.
TINY = {
    "swapped": {"languages": ["en", "es"], "styles": ["short", "full"]},
    "same names": {"languages": ["fr", "sv", "da"], "styles": ["medium", "long"], "last_year": 1999, "target": "de"},
    "ideographs": {"languages": ["ja", "zh"], "styles": ["medium", "full"], "last_year": 1999, "target": "en"},
    "two styles to one": {"languages": ["fi", "he"], "styles": ["short", "medium"], "last_year": 1999},
    "weekday last": {"languages": ["tr", "hu"], "styles": ["full"], "last_year": 1999},
}


class Case(NamedTuple):
    """One outcome of the distribution."""

    probability: Fraction
    text: str
    language: str
    target: str
    tags: tuple[str, ...]


class Marked(DateTimeFormat):
    """Babel's formatter, with each field between marks that say which it is."""

    MARKS = "\ue000\ue001\ue002\ue003"  # private use: in no date

    def __getitem__(self, name: str) -> str:
        field = {"d": "day", "M": "month", "y": "year", "E": "weekday", "c": "weekday"}.get(name[0], "other")
        mark = "" if field == "other" else self.MARKS[FIELDS.index(field)]
        return mark + super().__getitem__(name) + mark


def tags_by_babel(date: datetime.date, style: Any, locale: str) -> tuple[str, ...]:
    tags, tag = [], "other"
    for char in parse_pattern(get_date_format(style, locale)) % Marked(date, locale):
        if char in Marked.MARKS:
            tag = FIELDS[Marked.MARKS.index(char)] if tag == "other" else "other"
        else:
            tags.append(tag)
    return tuple(tags)


class Misdated(datetime.date):
    """A date that claims another weekday."""

    claimed: int

    def weekday(self) -> int:
        return self.claimed


def distribution(arguments: dict[str, Any], *, calendar: bool) -> list[Case]:
    """Every outcome with its probability, by ``format_date``; without the calendar, each date on the seven weekdays."""
    first, last = datetime.date(arguments["first_year"], 1, 1), datetime.date(arguments["last_year"], 12, 31)
    days = [first + datetime.timedelta(n) for n in range((last - first).days + 1)]
    cells = list(product(arguments["languages"], arguments["styles"]))
    target = arguments["target"]
    cases = []
    for day in days:
        answer = day.isoformat() if target == "iso" else format_date(day, "long", target)
        for language, style in cells:
            for weekday in [day.weekday()] if calendar else range(7):
                date = Misdated(day.year, day.month, day.day)
                date.claimed = weekday
                probability = Fraction(1, len(days) * len(cells) * (1 if calendar else 7))
                tags = tags_by_babel(date, style, language)
                cases.append(Case(probability, format_date(date, style, language), language, answer, tags))
    return cases


def total(cases: Iterable[Case], holds: Callable[[Case], bool]) -> Fraction:
    return sum((case.probability for case in cases if holds(case)), Fraction(0))


def certainty(cases: Iterable[Case], answer: Callable[[Case], Hashable]) -> Fraction:
    """max over answers of the posterior probability."""
    mass: dict[Hashable, Fraction] = defaultdict(Fraction)
    for case in cases:
        mass[answer(case)] += case.probability
    return max(mass.values()) / sum(mass.values())


def cases_by_text(cases: Iterable[Case]) -> dict[str, list[Case]]:
    found = defaultdict(list)
    for case in cases:
        found[case.text].append(case)
    return found


@pytest.fixture(scope="module", params=TINY)
def tiny(request: pytest.FixtureRequest) -> tuple[dict[str, Any], Dates, list[Case], list[Case], list[Example]]:
    arguments = BASE | TINY[request.param]
    dates = Dates(**arguments)
    with_calendar, without = distribution(arguments, calendar=True), distribution(arguments, calendar=False)
    return arguments, dates, with_calendar, without, list(dates.splits().test)


@pytest.mark.parametrize("style", STYLES)
def test_text_is_babels(style: Any) -> None:
    dates = corpus(languages=LANGUAGES, styles=[style], first_year=1931, last_year=2030, num_train=3000)
    for example in dates.splits().train:
        date = datetime.date.fromisoformat(example.target)
        assert example.text == format_date(date, style, example.label)
        assert example.words == tuple(example.text)
        assert example.tags == tags_by_babel(date, style, example.label)


@given(date=st.dates(), language=st.sampled_from(LANGUAGES), style=st.sampled_from(STYLES))
def test_text_is_babels_in_any_year(date: datetime.date, language: str, style: Any) -> None:
    dates = corpus(languages=[language], styles=[style], first_year=date.year, last_year=date.year, num_train=5)
    for example in dates.splits().train:
        assert example.text == format_date(datetime.date.fromisoformat(example.target), style, language)


def test_target_is_the_long_style_of_a_locale() -> None:
    iso = corpus().splits().train  # the same draws
    for locale in ("ka", "pt_PT", "th"):  # th writes the era
        for example, twin in zip(corpus(target=locale).splits().train, iso, strict=True):
            assert example.text == twin.text
            assert example.target == format_date(datetime.date.fromisoformat(twin.target), "long", locale)


def test_every_locale_can_be_the_target_and_tells_all_dates_apart() -> None:
    months = [datetime.date(1999, month, 1) for month in range(1, 13)]
    for locale in locale_identifiers():
        assert {"day", "month", "year"} <= set(tags_by_babel(months[0], "long", locale))
        assert len({format_date(month, "long", locale) for month in months}) == 12
        corpus(languages=["en"], styles=["short"], target=locale)


def test_languages_have_latin_digits() -> None:
    assert {Locale.parse(language).default_numbering_system for language in LANGUAGES} == {"latn"}
    assert len(set(LANGUAGES)) == len(LANGUAGES)


def test_tags_cut_out_the_fields() -> None:
    for example in corpus(languages=["de"], styles=["full"]).splits().train:
        date = datetime.date.fromisoformat(example.target)
        part = {
            field: "".join(word for word, tag in zip(example.words, example.tags, strict=True) if tag == field)
            for field in corpus().tag_labels
        }
        assert (int(part["day"]), int(part["year"]), part["other"]) == (date.day, date.year, ", .  ")
        assert part["month"] == format_date(date, "MMMM", "de")
        assert part["weekday"] == format_date(date, "EEEE", "de")


def test_labels_keep_the_order() -> None:
    dates = corpus(languages=["zh", "de", "en"])
    assert dates.labels == ["zh", "de", "en"]
    assert dates.tag_labels == ["day", "month", "year", "weekday", "other"]
    expected = CorpusInfo(labels=("zh", "de", "en"), tag_labels=tuple(dates.tag_labels), words_are_characters=True)
    assert dates.info == expected


def test_splits_deal_all_dates_once() -> None:
    splits = corpus(num_train=20_000, num_validation=3000, num_test=3000).splits()
    train, validation, test = (
        {example.target for example in part} for part in (splits.train, splits.validation, splits.test)
    )
    assert (len(train), len(validation), len(test)) == (585, 73, 73)  # of 731
    assert len(train | validation | test) == 731
    assert min(train | validation | test) == "1999-01-01"
    assert max(train | validation | test) == "2000-12-31"


def test_draws_are_uniform_and_independent() -> None:
    dates = corpus(languages=["de", "zh"], styles=["long", "full"], last_year=1999, num_train=12_000)
    # The language, the style (full is the one with a weekday), and the third of the year.
    counts = Counter(
        (example.label, "weekday" in example.tags, (int(example.target[5:7]) - 1) // 4)
        for example in dates.splits().train
    )
    assert len(counts) == 12
    assert all(800 < count < 1200 for count in counts.values())


def test_sizes_of_the_splits_do_not_touch_each_other() -> None:
    base, other = corpus().splits(), corpus(num_train=1234).splits()
    assert len(other.train) == 1234
    assert (len(base.train), len(base.validation), len(base.test)) == (300, 60, 60)
    assert (base.validation, base.test) == (other.validation, other.test)
    assert base.train == corpus(num_validation=7, num_test=8).splits().train


def test_seed_decides() -> None:
    assert corpus().splits() == corpus().splits()
    one, other = corpus(num_test=3000).splits().test, corpus(num_test=3000, seed=4).splits().test
    assert [example.label for example in one] != [example.label for example in other]
    assert {example.target for example in one} != {example.target for example in other}  # dealt otherwise


def test_same_in_every_process() -> None:
    program = (
        "import hashlib; from triptych.data.corpora.dates import Dates\n"
        f"dates = Dates(**{BASE!r}); splits = dates.splits()\n"
        f"figures = [dates.optimum(task, 'full', splits.test) for task in {TASKS}]\n"
        "print(hashlib.sha256(repr((splits, figures)).encode()).hexdigest())"
    )
    dates = corpus()
    splits = dates.splits()
    here = repr((splits, [dates.optimum(task, "full", splits.test) for task in TASKS]))
    digests = {
        subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True,
            text=True, check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }  # fmt: skip
    assert digests == {hashlib.sha256(here.encode()).hexdigest()}


def test_optima_of_the_posteriors(tiny: Any) -> None:
    arguments, dates, cases, _, examples = tiny
    sources = cases_by_text(cases)
    best_label = [certainty(sources[example.text], lambda case: case.language) for example in examples]
    best_target = [certainty(sources[example.text], lambda case: case.target) for example in examples]
    best_tag = [
        certainty(sources[example.text], lambda case, at=at: case.tags[at])
        for example in examples
        for at in range(len(example.text))
    ]
    for architecture in ("full", "encoder_only", "decoder_only"):
        for task, metric, best in (
            ("classification", "accuracy", best_label),
            ("translation", "exact_match", best_target),
            ("tagging", "accuracy", best_tag),
        ):
            expected = {metric: pytest.approx(float(sum(best) / len(best)), rel=1e-12)}
            assert dates.optimum(task, architecture, examples) == expected, (arguments, task)


def test_optima_of_language_modeling(tiny: Any) -> None:
    _, dates, with_calendar, without, examples = tiny
    texts = [example.text for example in examples]

    def figures(cases: list[Case]) -> tuple[float, float]:
        """Bits per byte of the whole lines, and of the continuations."""
        line_bits = continuation_bits = 0.0
        for text in texts:
            prefix = text[: prefix_length(text)]
            line = total(cases, lambda case, text=text: case.text == text)
            given_prefix = line / total(cases, lambda case, prefix=prefix: case.text.startswith(prefix))
            line_bits -= log2(line)
            continuation_bits -= log2(given_prefix)
        line_bytes = sum(len(text.encode()) for text in texts)
        continuation_bytes = sum(len(text[prefix_length(text) :].encode()) for text in texts)
        return line_bits / line_bytes, continuation_bits / continuation_bytes

    (line, continuation), (line_calendar, continuation_calendar) = figures(without), figures(with_calendar)
    assert dates.optimum("language_modeling", "decoder_only", examples) == {
        "bits_per_byte": pytest.approx(line, rel=1e-12),
        "bits_per_byte_with_calendar": pytest.approx(line_calendar, rel=1e-12),
        "continuation_bits_per_byte": pytest.approx(continuation, rel=1e-12),
    }
    assert dates.optimum("language_modeling", "full", examples) == {
        "bits_per_byte": pytest.approx(continuation, rel=1e-12),
        "bits_per_byte_with_calendar": pytest.approx(continuation_calendar, rel=1e-12),
    }


@pytest.mark.parametrize("calendar", [True, False])
def test_probabilities_sum_to_one(calendar: bool) -> None:
    dates = corpus()
    lines = {case.text for case in distribution(BASE, calendar=calendar)}
    assert sum(dates._line_probabilities(lines, calendar=calendar).values()) == pytest.approx(1, rel=1e-12)
    for length in (0, 1, 5):  # no line is shorter
        prefixes = {line[:length] for line in lines}
        assert sum(dates._prefix_probabilities(prefixes, calendar=calendar).values()) == pytest.approx(1, rel=1e-12)


def test_what_has_no_optimum() -> None:
    dates = corpus()
    test = dates.splits().test
    assert dates.optimum("parsing", "full", test) == {}
    assert dates.optimum("language_modeling", "encoder_only", test) == {}
    assert dates.optimum("denoising", "full", test) == {}
    for task in TASKS:
        with pytest.raises(ValueError, match=r".+"):
            dates.optimum(task, "decoder_only", [Example("yesterday")])
    with pytest.raises(ValueError, match=r".+"):
        dates.optimum("classification", "full", [])


NAMES = ", ".join(LANGUAGES)
YEARS = "1999 (data.first_year) to 2098 (100 years, as a two-digit year must be unique)"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"languages": []}, f"data.languages: got [], expected at least one of {NAMES}; nearest is ['am']"),
        ({"languages": ["de", "eng"]}, f"data.languages: got 'eng', expected one of {NAMES}; nearest is 'en'"),
        ({"languages": ["de", "de"]}, "data.languages: got ['de', 'de'], expected each name once; nearest is ['de']"),
        ({"styles": ["ful"]}, "data.styles: got 'ful', expected one of short, medium, long, full; nearest is 'full'"),
        (
            {"styles": []},
            "data.styles: got [], expected at least one of short, medium, long, full; nearest is ['short']",
        ),
        ({"first_year": 0}, "data.first_year: got 0, expected 1 to 9999; nearest is 1"),
        ({"first_year": 10_000}, "data.first_year: got 10000, expected 1 to 9999; nearest is 9999"),
        ({"last_year": 1998}, f"data.last_year: got 1998, expected {YEARS}; nearest is 1999"),
        ({"last_year": 2099}, f"data.last_year: got 2099, expected {YEARS}; nearest is 2098"),
        ({"num_train": -1}, "data.num_train: got -1, expected at least 1; nearest is 1"),
        ({"num_validation": 0}, "data.num_validation: got 0, expected at least 1; nearest is 1"),
        ({"num_test": -5}, "data.num_test: got -5, expected at least 1; nearest is 1"),
        ({"target": "en-GB"}, "data.target: got 'en-GB', expected 'iso' or a locale of Babel; nearest is 'en_GB'"),
        ({"target": "isso"}, "data.target: got 'isso', expected 'iso' or a locale of Babel; nearest is 'iso'"),
    ],
)
def test_bad_arguments_name_the_key_and_the_nearest(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=r"^data\.") as error:
        corpus(**changes)
    assert str(error.value) == message


def test_a_hundred_years_are_allowed() -> None:
    corpus(first_year=1950, last_year=2049)


@given(st.text())
def test_prefix_length(text: str) -> None:
    length = prefix_length(text)
    if len(text) < 2:
        assert length == 0
    else:
        assert 1 <= length <= len(text) - 1
        assert length == 1 + crc32(text.encode()) % (len(text) - 1)


def test_prefix_length_takes_every_value() -> None:
    counts = Counter(prefix_length(f"{number:05d}") for number in range(4000))
    assert set(counts) == {1, 2, 3, 4}
    assert min(counts.values()) > 800
    assert prefix_length("Donnerstag, 5. März 1998") == 5
