"""Pairs of dates and questions about dates: against Babel, and their optima against sums over the distribution."""

import datetime
import re
from collections import Counter, defaultdict
from fractions import Fraction
from itertools import product
from statistics import fmean
from typing import Any

import pytest
from babel.dates import format_date

from triptych.data import DatePairs, DateQuestions

SETTINGS: dict[str, Any] = {
    "languages": ["en", "es", "ja"], "styles": ["short", "full"], "first_year": 1999, "last_year": 1999,
    "num_train": 300, "num_validation": 20, "num_test": 60, "target": "iso", "seed": 3,
}  # fmt: skip
DAYS = [datetime.date(1999, 1, 1) + datetime.timedelta(days=i) for i in range(365)]
CELLS = list(product(SETTINGS["languages"], SETTINGS["styles"]))


def dates_by_text() -> dict[str, list[int]]:
    """The numbers of the days that are written as each text, once for each way."""
    found = defaultdict(list)
    for (language, style), (number, day) in product(CELLS, enumerate(DAYS)):
        found[format_date(day, style, language)].append(number)
    return found


class TestPairs:
    def test_label_and_score_are_those_of_the_dates(self) -> None:
        written, corpus = dates_by_text(), DatePairs(**SETTINGS)
        examples = [*corpus.splits().train, *corpus.splits().test]
        for example in examples:
            pairs = list(product(written[example.text], written[example.text_pair or ""]))
            assert example.score in [1 - abs(a - b) / 364 for a, b in pairs]
            assert example.label in [("different", "same")[a == b] for a, b in pairs]
            assert (example.score == 1) == (example.label == "same")
        share = fmean(example.label == "same" for example in examples)
        assert 0.42 < share < 0.58  # 360 draws, one half each
        assert corpus.splits() == DatePairs(**SETTINGS).splits()
        assert corpus.info.labels == ("different", "same")

    def test_the_optimum(self) -> None:
        written, corpus = dates_by_text(), DatePairs(**SETTINGS)
        examples = corpus.splits().test
        accuracies, variances = [], []
        for example in examples:
            probabilities: Counter[tuple[int, int]] = Counter()
            for a, b in product(written[example.text], written[example.text_pair or ""]):
                probabilities[a, b] += Fraction(1, 2 * 365 * 365) + (Fraction(1, 2 * 365) if a == b else 0)  # type: ignore[assignment]
            whole = sum(probabilities.values())
            same = sum(p for (a, b), p in probabilities.items() if a == b) / whole
            scores = [(1 - Fraction(abs(a - b), 364), p / whole) for (a, b), p in probabilities.items()]
            mean = sum(score * p for score, p in scores)
            accuracies.append(float(max(same, 1 - same)))
            variances.append(float(sum((score - mean) ** 2 * p for score, p in scores)))
        assert 0.9 < fmean(accuracies) < 1  # day and month may be swapped
        assert corpus.optimum("classification", "full", examples) == pytest.approx({"accuracy": fmean(accuracies)})
        expected = {"mean_squared_error": pytest.approx(fmean(variances), rel=1e-9)}
        assert corpus.optimum("similarity", "full", examples) == expected
        assert fmean(variances) > 0


PATTERNS = {
    ("en", "short"): r"(?P<month>\d+)/(?P<day>\d+)/(?P<year>\d+)",
    ("es", "short"): r"(?P<day>\d+)/(?P<month>\d+)/(?P<year>\d+)",
    ("ja", "short"): r"(?P<year>\d+)/(?P<month>\d+)/(?P<day>\d+)",
    ("en", "full"): r"(?P<weekday>\w+), (?P<month>\w+) (?P<day>\d+), (?P<year>\d+)",
    ("es", "full"): r"(?P<weekday>\w+), (?P<day>\d+) de (?P<month>\w+) de (?P<year>\d+)",
    ("ja", "full"): r"(?P<year>\d+)年(?P<month>\d+)月(?P<day>\d+)日(?P<weekday>\w+)",
}


class TestQuestions:
    def test_answers_and_optimum(self) -> None:
        """Of each text, all the ways in which a date is written so, with the places of the fields."""
        ways: dict[str, list[dict[str, tuple[int, int]]]] = defaultdict(list)
        for (language, style), day in product(CELLS, DAYS):
            text = format_date(day, style, language)
            match = re.fullmatch(PATTERNS[language, style], text)
            assert match is not None
            ways[text].append({field: match.span(field) for field in match.groupdict()})
        corpus = DateQuestions(**SETTINGS)
        shares, seen = [], Counter[int]()
        for example in corpus.splits().test:
            text = example.text_pair or ""
            answers = {(answer.start, answer.start + len(answer.text)) for answer in example.answers or ()}
            possible = [way.get(example.text) for way in ways[text]]
            assert answers in [set() if place is None else {place} for place in possible]
            assert all(text[i:j] == answer.text for (i, j), answer in zip(answers, example.answers or (), strict=True))
            seen[len(answers)] += 1
            counts = Counter(None if place is None else text[slice(*place)] for place in possible)
            shares.append(max(counts.values()) / counts.total())
        assert min(seen[0], seen[1]) > 5  # short styles have no weekday
        assert 0.9 < fmean(shares) < 1
        found = corpus.optimum("question_answering", "full", corpus.splits().test)
        assert found == {"exact_match": pytest.approx(fmean(shares))}
