"""Conversations of instructions about dates."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from statistics import fmean

from babel import Locale

from triptych.data.corpora.corpus import CorpusInfo
from triptych.data.corpora.dates import Dates, certainty
from triptych.data.example import ANSWERING, Example, Message, conversation, each_answer
from triptych.data.splits import Splits

GIVEN, ANSWERED = "full", "long"
"""CLDR's styles of the given date, with the weekday, and of answers, without it."""
SORT, WEEKDAY = "sort", "which weekday is it"


@dataclass(kw_only=True)
class DateInstructions(Dates):
    """Conversations of one to ``turns`` instructions with answers, of two equally frequent kinds:

    - One date, given in the first instruction in CLDR's full style and any language. The instruction is "say it in
      French", answered in CLDR's long style, or "which weekday is it", answered in English, with equal probability.
      Later instructions do not repeat the date: "say it in German".
    - Several dates: "sort: 1998-03-05, 1971-12-24" with two to four of them in ISO format, then "say the first in
      French" or "say the last in French".

    Languages and dates are drawn independently and uniformly, and ``Dates`` divides the dates among the splits. In the
    validation and test splits, each answer is a separate example.

    Attributes:
        turns: maximum number of instructions in a conversation.
    """

    columns = ("messages", "text", "target")
    info = CorpusInfo()

    styles: Sequence[str] = field(default=(GIVEN, ANSWERED), init=False)
    target: str = field(default="iso", init=False)
    turns: int

    def __post_init__(self) -> None:
        if self.turns < 1:
            raise ValueError(f"data.turns={self.turns}: expected at least 1")
        super().__post_init__()

    def splits(self) -> Splits:
        found = super().splits()
        validation, test = ([*chain(*map(each_answer, part))] for part in (found.validation, found.test))
        return Splits(found.train, validation, test)

    def optimum(self, task: str, architecture: str, examples: Sequence[Example]) -> dict[str, float]:
        """Returns the best possible score on these examples for a model that knows the distribution of the corpus. For
        chat and text_to_text it is ``exact_match``, the mean of max_answer p(answer | previous messages)."""
        if task not in ("chat", "text_to_text"):
            return {}
        talks = [example.messages or () for example in examples]
        of_one = [messages for messages in talks if not _sorts(messages)]
        sources = self._sources(messages[0].content.partition(": ")[2] for messages in of_one)
        best = [1.0] * (len(talks) - len(of_one))
        for messages in of_one:
            asked, text = messages[-2].content.partition(": ")[0], messages[0].content.partition(": ")[2]
            best.append(certainty(self._answer(asked, number) for _, style, number in sources[text] if style == GIVEN))
        return {"exact_match": fmean(best)}

    def _draw(self, generator: random.Random, size: int, numbers: Sequence[int]) -> list[Example]:
        draw = (self._talk_of_one, self._talk_of_several)
        return [generator.choice(draw)(generator, numbers) for _ in range(size)]

    def _talk_of_one(self, generator: random.Random, numbers: Sequence[int]) -> Example:
        number = generator.choice(numbers)
        text, _ = self._write(generator.choice(self.labels), GIVEN, number)
        said = list[tuple[str, str]]()
        for turn in range(generator.randint(1, self.turns)):
            asked = WEEKDAY if generator.random() < 0.5 else f"say it in {generator.choice(self._names)}"
            said.append((asked if turn else f"{asked}: {text}", self._answer(asked, number)))
        return _talk(said)

    def _talk_of_several(self, generator: random.Random, numbers: Sequence[int]) -> Example:
        drawn = [generator.choice(numbers) for _ in range(generator.randint(2, 4))]
        in_order = sorted(drawn)  # numbers follow the calendar
        said = [(f"{SORT}: {self._listed(drawn)}", self._listed(in_order))]
        for _ in range(generator.randint(1, self.turns) - 1):
            which, place = generator.choice((("first", 0), ("last", -1)))
            language = generator.choice(self._names)
            said.append((f"say the {which} in {language}", self._answer(f"say it in {language}", in_order[place])))
        return _talk(said)

    def _listed(self, numbers: Sequence[int]) -> str:
        return ", ".join(self._targets[number] for number in numbers)

    def _answer(self, asked: str, number: int) -> str:
        """Returns the correct answer to an instruction about one date."""
        if asked == WEEKDAY:
            return self._weekdays[self._dates[number][3]]
        return self._write(self._codes[asked.removeprefix("say it in ")], ANSWERED, number)[0]

    @cached_property
    def _codes(self) -> dict[str, str]:
        """The languages by English name."""
        names = Locale.parse("en").languages
        return {names[code]: code for code in self.labels}

    @cached_property
    def _names(self) -> list[str]:
        return list(self._codes)

    @cached_property
    def _weekdays(self) -> dict[int, str]:
        return dict(Locale.parse("en").days["format"]["wide"])


def _talk(said: Sequence[tuple[str, str]]) -> Example:
    return conversation([m for asked, answer in said for m in (Message("user", asked), Message(ANSWERING, answer))])


def _sorts(messages: Sequence[Message]) -> bool:
    return messages[0].content.startswith(f"{SORT}: ")
