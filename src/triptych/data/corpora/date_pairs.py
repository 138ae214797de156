"""Pairs of dates, and questions about dates: what else the corpus of dates can serve."""

import random
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from statistics import fmean

from triptych.data.corpora.corpus import CorpusFacts
from triptych.data.corpora.dates import Dates, certainty
from triptych.data.example import Answer, Example

SAME = ("different", "same")
ASKED = ("day", "month", "year", "weekday")


class DatePairs(Dates):
    """Two dates of ``Dates``, each in a language and style of its own: ``text`` and ``pair``.

    With probability one half both are the same date; else the second is drawn again, independently. ``label`` says
    whether the dates are the same, and ``score`` is 1 - (days between them) / (days of the whole range, less one).
    """

    columns = ("text", "pair", "label", "score")

    @property
    def facts(self) -> CorpusFacts:
        """The two classes."""
        return CorpusFacts(labels=SAME, has_pairs=True)

    def optimum(self, task: str, architecture: str, examples: Sequence[Example]) -> dict[str, float]:
        """The best values reachable on these examples, for a model that knows the corpus's distribution: of
        classification ``accuracy``, the mean of max_label p(label | text, pair); of similarity ``mean_squared_error``,
        the mean of the variance of p(score | text, pair). The date is drawn from the whole range.

        Args:
            architecture: does not matter.
            examples: at least one example of this corpus.
        """
        if task not in ("classification", "similarity"):
            return {}
        sources = self._sources(text for example in examples for text in (example.text, example.pair or ""))
        numbers = {text: Counter(number for _, _, number in found) for text, found in sources.items()}
        accuracies, variances = [], []
        for example in examples:
            first, second = numbers[example.text], numbers[example.pair or ""]
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

    def _draw(self, split: str, numbers: Sequence[int]) -> list[Example]:
        generator = random.Random(f"{self.seed} {split}")
        cells, examples = list(self._patterns), []
        for _ in range(self._sizes[split]):
            first = generator.choice(numbers)
            second = first if generator.random() < 0.5 else generator.choice(numbers)
            text, pair = (self._write(*generator.choice(cells), number)[0] for number in (first, second))
            score = self._score(first, second)
            examples.append(Example(text, pair=pair, label=SAME[first == second], score=score))
        return examples

    def _score(self, first: int, second: int) -> float:
        return 1 - abs(first - second) / max(len(self._dates) - 1, 1)


class DateQuestions(Dates):
    """A question about a date of ``Dates``: ``text`` asks for a field ("day", "month", "year" or "weekday", with equal
    probability), ``pair`` is the date as it is written, and ``answers`` the part that writes the field. Not every style
    writes the weekday: such a question has no answer.
    """

    columns = ("text", "pair", "answers")

    def optimum(self, task: str, architecture: str, examples: Sequence[Example]) -> dict[str, float]:
        """The best value reachable on these examples, for a model that knows the corpus's distribution:
        ``exact_match``, the mean of max_answer p(answer | question, text).

        Args:
            architecture: does not matter.
            examples: at least one example of this corpus.
        """
        if task != "question_answering":
            return {}
        sources = self._sources(example.pair or "" for example in examples)
        return {
            "exact_match": fmean(
                certainty(
                    tuple(answer.text for answer in self._answers(example.text, *self._write(*source)))
                    for source in sources[example.pair or ""]
                )
                for example in examples
            )
        }

    def _draw(self, split: str, numbers: Sequence[int]) -> list[Example]:
        generator = random.Random(f"{self.seed} {split}")
        cells, examples = list(self._patterns), []
        for _ in range(self._sizes[split]):
            field = generator.choice(ASKED)
            text, tags = self._write(*generator.choice(cells), generator.choice(numbers))
            examples.append(Example(field, pair=text, answers=self._answers(field, text, tags)))
        return examples

    @staticmethod
    def _answers(field: str, text: str, tags: Sequence[str]) -> tuple[Answer, ...]:
        """The parts of the text with this tag."""
        found, start = [], 0
        for tag, group in groupby(tags):
            end = start + len(list(group))
            if tag == field:
                found.append(Answer(text[start:end], start))
            start = end
        return tuple(found)
