"""Pairs of dates, and questions about dates."""

import random
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from statistics import fmean

from triptych.data.corpora.corpus import CorpusInfo
from triptych.data.corpora.dates import Dates, certainty
from triptych.data.example import AnswerSpan, Example

SAME = ("different", "same")
ASKED = ("day", "month", "year", "weekday")


class DatePairs(Dates):
    """Two dates of ``Dates``, each in its own language and style: ``text`` and ``text_pair``.

    With probability one half both are the same date; otherwise the second is drawn independently. ``label`` is "same"
    or "different", and ``score`` is 1 - (days between them) / (days of the whole range - 1).
    """

    columns = ("text", "text_pair", "label", "score")
    info = CorpusInfo(labels=SAME, has_pairs=True)

    def optimum(self, task: str, architecture: str, examples: Sequence[Example]) -> dict[str, float]:
        """Returns the best possible scores on these examples for a model that knows the distribution of the corpus. For
        classification it is ``accuracy``, the mean of max_label p(label | text, text_pair). For similarity it is
        ``mean_squared_error``, the mean variance of p(score | text, text_pair). The dates are drawn from the whole
        range."""
        if task not in ("classification", "similarity"):
            return {}
        sources = self._sources(text for example in examples for text in (example.text, example.text_pair or ""))
        numbers = {text: Counter(number for _, _, number in found) for text, found in sources.items()}
        accuracies, variances = [], []
        for example in examples:
            first, second = numbers[example.text], numbers[example.text_pair or ""]
            weights = {(a, b): first[a] * second[b] * ((a == b) + 1 / len(self._dates)) for a in first for b in second}
            whole = sum(weights.values())
            same = sum(weight for (a, b), weight in weights.items() if a == b) / whole
            mean = sum(weight * self._score(a, b) for (a, b), weight in weights.items()) / whole
            squares = sum(weight * self._score(a, b) ** 2 for (a, b), weight in weights.items()) / whole
            accuracies.append(max(same, 1 - same))
            variances.append(max(squares - mean**2, 0))
        if task == "classification":
            return {"accuracy": fmean(accuracies)}
        return {"mean_squared_error": fmean(variances)}

    def _draw(self, generator: random.Random, size: int, numbers: Sequence[int]) -> list[Example]:
        cells, examples = list(self._patterns), []
        for _ in range(size):
            first = generator.choice(numbers)
            second = first if generator.random() < 0.5 else generator.choice(numbers)
            text, pair = (self._write(*generator.choice(cells), number)[0] for number in (first, second))
            score = self._score(first, second)
            examples.append(Example(text, text_pair=pair, label=SAME[first == second], score=score))
        return examples

    def _score(self, first: int, second: int) -> float:
        return 1 - abs(first - second) / max(len(self._dates) - 1, 1)


class DateQuestions(Dates):
    """A question about a date of ``Dates``. ``text`` names a field: "day", "month", "year" or "weekday", with equal
    probability. ``text_pair`` is the formatted date, and ``answers`` the part with the field. In styles without the
    weekday, that question has no answer."""

    columns = ("text", "text_pair", "answers")

    def optimum(self, task: str, architecture: str, examples: Sequence[Example]) -> dict[str, float]:
        """Returns the best possible score on these examples for a model that knows the distribution of the corpus:
        ``exact_match``, the mean of max_answer p(answer | question, text)."""
        if task != "question_answering":
            return {}
        sources = self._sources(example.text_pair or "" for example in examples)

        def answers(field: str, source: tuple[str, str, int]) -> tuple[str, ...]:
            return tuple(answer.text for answer in self._answers(field, *self._write(*source)))

        best = [certainty(answers(e.text, source) for source in sources[e.text_pair or ""]) for e in examples]
        return {"exact_match": fmean(best)}

    def _draw(self, generator: random.Random, size: int, numbers: Sequence[int]) -> list[Example]:
        cells, examples = list(self._patterns), []
        for _ in range(size):
            field = generator.choice(ASKED)
            text, tags = self._write(*generator.choice(cells), generator.choice(numbers))
            examples.append(Example(field, text_pair=text, answers=self._answers(field, text, tags)))
        return examples

    @staticmethod
    def _answers(field: str, text: str, tags: Sequence[str]) -> tuple[AnswerSpan, ...]:
        """Returns the parts of the text with this tag."""
        found, start = [], 0
        for tag, group in groupby(tags):
            end = start + len(list(group))
            if tag == field:
                found.append(AnswerSpan(text[start:end], start))
            start = end
        return tuple(found)
