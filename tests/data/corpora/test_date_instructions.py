"""Conversations about dates, against Babel and the calendar."""

import calendar
import datetime
import re
from collections import Counter, defaultdict
from typing import Any

import pytest
from babel import Locale
from babel.dates import format_date

from triptych.data import DateInstructions, Example
from triptych.data.example import each_answer

SETTINGS: dict[str, Any] = {
    "languages": ["en", "fr", "ja"], "first_year": 1999, "last_year": 2000, "num_train": 300, "num_validation": 20,
    "num_test": 60, "turns": 3, "seed": 3,
}  # fmt: skip
DAYS = [datetime.date(1999, 1, 1) + datetime.timedelta(days=i) for i in range(365 + 366)]
NAMES = {str(Locale(code).get_language_name("en")): code for code in ("en", "es", "fr", "ja")}
GIVEN = {format_date(day, "full", code): day for code in SETTINGS["languages"] for day in DAYS}


def answered(example: Example) -> list[str]:
    """The right answers of a conversation, one after the other."""
    asked = [message.content for message in example.messages or () if message.role == "user"]
    kind, _, given = asked[0].partition(": ")
    if kind == "sort":
        dates = sorted(map(datetime.date.fromisoformat, given.split(", ")))
        answers = [", ".join(map(str, dates))]
        rest = asked[1:]
    else:
        dates, answers, rest = [GIVEN[given]], [], [kind, *asked[1:]]
    for instruction in rest:
        if instruction == "which weekday is it":
            answers.append(calendar.day_name[dates[0].weekday()])
        else:
            which, language = re.fullmatch("say (it|the first|the last) in (.*)", instruction).groups()  # type: ignore[union-attr]
            answers.append(format_date(dates[-1 if which == "the last" else 0], "long", NAMES[language]))
    return answers


def test_answers_are_right() -> None:
    splits = DateInstructions(**SETTINGS).splits()
    for example in splits.train:
        said = [message.content for message in example.messages or () if message.role == "assistant"]
        assert said == answered(example)
        assert example.target == said[-1]
    turns = Counter(len(example.messages or ()) // 2 for example in splits.train)
    assert set(turns) == {1, 2, 3}
    assert splits.test == [answer for example in splits.test for answer in each_answer(example)[-1:]]
    assert {(example.difficulty or {})["turn"] for example in splits.test} == {1, 2, 3}
    assert 0.35 < sum(e.text.startswith("sort: ") for e in splits.train) / 300 < 0.65
    assert splits == DateInstructions(**SETTINGS).splits()


def test_the_optimum_is_that_of_all_dates() -> None:
    """Of a date that may be written in one way in two languages, an answer is the same; so all can be right."""
    corpus = DateInstructions(**SETTINGS)
    test = corpus.splits().test
    assert corpus.optimum("chat", "decoder_only", test) == {"exact_match": 1.0}
    assert corpus.optimum("language_modeling", "decoder_only", test) == {}


def test_the_optimum_where_a_text_is_several_dates(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the short style were given, whose days and months may be swapped."""
    monkeypatch.setattr("triptych.data.corpora.date_instructions.GIVEN", "short")
    monkeypatch.setattr(DateInstructions, "styles", ("short", "long"))
    corpus = DateInstructions(**SETTINGS | {"languages": ["en", "es"]})
    days, answers = defaultdict(list), list[float]()
    for code in ("en", "es"):
        for day in DAYS:
            days[format_date(day, "short", code)].append(day)
    test = corpus.splits().test
    for example in test:
        asked = [message.content for message in example.messages or () if message.role == "user"]
        kind, _, given = asked[0].partition(": ")
        instruction = kind if len(asked) == 1 else asked[-1]
        if kind == "sort":
            answers.append(1.0)
            continue
        code = NAMES.get(instruction.removeprefix("say it in "))
        found = Counter(
            format_date(day, "long", code) if code else calendar.day_name[day.weekday()] for day in days[given]
        )
        answers.append(max(found.values()) / found.total())
    best = corpus.optimum("chat", "full", test)["exact_match"]
    assert best == pytest.approx(sum(answers) / len(answers))
    assert best < 0.98


def test_mistakes() -> None:
    with pytest.raises(ValueError, match=r"data\.turns=0: expected at least 1"):
        DateInstructions(**SETTINGS | {"turns": 0})
    with pytest.raises(ValueError, match=r"data\.languages: got 'eng'"):
        DateInstructions(**SETTINGS | {"languages": ["eng"]})
