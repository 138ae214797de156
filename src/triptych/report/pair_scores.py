"""Accuracy on minimal pairs: the share of pairs whose grammatical sentence is more likely; ties count half.

Tested by tests/report/test_pair_scores.py.
"""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
from jaxtyping import Bool, Float, Int
from rich.console import Console
from rich.table import Table

from triptych.data import MinimalPair
from triptych.storage.atomic import replacing
from triptych.tasks import TextScore

AGREEMENT = "agreement"
"""Phenomena with this word in their name are summarized together: word frequencies do not help there."""
COLUMNS = ("paradigm", "phenomenon", "is_permutation", "good_nats", "bad_nats", "good_tokens", "bad_tokens")
MOST_TIES = 0.01
"""Share of ties above which a warning is logged: equal scores mean that the network cannot tell the sentences apart."""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """A mean over paradigms, in percent.

    Attributes:
        value: accuracy.
        error: standard error, given the paradigms: pairs are drawn.
        spread: standard error if the paradigms are drawn, too; NaN for one paradigm.
        num_paradigms: number of paradigms.
    """

    value: float
    error: float
    spread: float
    num_paradigms: int


@dataclass(frozen=True, eq=False)
class PairScores:
    """The scores of minimal pairs by one network and method.

    Attributes:
        paradigm: name of the paradigm of each pair.
        phenomenon: name of its phenomenon.
        is_permutation: whether both sentences have the same words.
        nats: -ln p of the grammatical sentence and of the other one; NaN: left out.
        tokens: numbers of tokens of both.
    """

    paradigm: Sequence[str]
    phenomenon: Sequence[str]
    is_permutation: Bool[np.ndarray, " pairs"]
    nats: Float[np.ndarray, "2 pairs"]
    tokens: Int[np.ndarray, "2 pairs"]

    @classmethod
    def of(cls, pairs: Sequence[MinimalPair], good: Sequence[TextScore], bad: Sequence[TextScore]) -> Self:
        """Makes the record of pairs and scores; pairs with an unknown token or an empty sentence are left out."""
        nats = np.array([[score.total for score in side] for side in (good, bad)])
        tokens = np.array([[len(score.tokens) for score in side] for side in (good, bad)])
        unknown = np.array([[score.num_unknown for score in side] for side in (good, bad)])
        empty = np.array([not pair.good.strip() or not pair.bad.strip() for pair in pairs])
        nats[:, unknown.any(0) | empty] = np.nan
        names = [pair.paradigm for pair in pairs], [pair.phenomenon for pair in pairs]
        return cls(*names, np.array([pair.is_permutation for pair in pairs]), nats, tokens)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads a file of ``write``.

        Raises:
            ValueError: the file is damaged, with the line.
        """
        with path.open(encoding="utf-8", newline="") as file:
            rows = csv.reader(file, delimiter="\t")
            if (heads := tuple(next(rows, ()))) != COLUMNS:
                raise ValueError(f"{path}, line 1: {', '.join(heads)}; expected {', '.join(COLUMNS)}")
            found = []
            for line, row in enumerate(rows, 2):
                try:
                    paradigm, phenomenon, permutation, *numbers = row
                    good, bad, of_good, of_bad = map(float, numbers)
                except ValueError:
                    raise ValueError(f"{path}, line {line}: damaged; expected {', '.join(COLUMNS)}") from None
                found.append((paradigm, phenomenon, permutation == "1", good, bad, int(of_good), int(of_bad)))
        if not found:
            raise ValueError(f"{path}: no pairs; expected a row per pair")
        names, phenomena, permutations, *counts = zip(*found, strict=True)
        return cls(names, phenomena, np.array(permutations), np.array(counts[:2]), np.array(counts[2:]))

    def write(self, path: Path) -> None:
        """Writes a row per pair."""
        path.parent.mkdir(exist_ok=True)
        with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
            rows = csv.writer(file, delimiter="\t", lineterminator="\n")
            rows.writerow(COLUMNS)
            permutations = self.is_permutation.astype(int).tolist()
            rows.writerows(
                zip(
                    self.paradigm,
                    self.phenomenon,
                    permutations,
                    *self.nats.tolist(),
                    *self.tokens.tolist(),
                    strict=True,
                )
            )

    @cached_property
    def points(self) -> Float[np.ndarray, " pairs"]:
        """1 if the grammatical sentence is more likely, 1/2 for a tie, 0, or NaN: left out."""
        return _points(self.nats)

    @cached_property
    def points_per_token(self) -> Float[np.ndarray, " pairs"]:
        """The same by the mean nats per token."""
        return _points(self.nats / np.maximum(self.tokens, 1))

    @property
    def ties(self) -> float:
        """Share of ties among the pairs that are not left out."""
        kept = self.points[~np.isnan(self.points)]
        return float((kept == 0.5).mean()) if len(kept) else 0.0

    @cached_property
    def paradigms(self) -> Mapping[str, Int[np.ndarray, " pairs"]]:
        """The pairs of each paradigm that are not left out."""
        kept = np.flatnonzero(~np.isnan(self.points))
        names, numbers = np.unique(np.array(self.paradigm, object)[kept].astype(str), return_inverse=True)
        return {str(name): kept[numbers == i] for i, name in enumerate(names)}

    def groups(self) -> dict[str, list[str]]:
        """Paradigms by group: overall, agreement, permutations, then each phenomenon."""
        phenomenon_of = dict(zip(self.paradigm, self.phenomenon, strict=True))
        of_name: dict[str, list[str]] = {}
        for name in self.paradigms:
            of_name.setdefault(phenomenon_of[name], []).append(name)
        agreement = [x for phenomenon, names in of_name.items() if AGREEMENT in phenomenon for x in names]
        permutations = [name for name, pairs in self.paradigms.items() if self.is_permutation[pairs].mean() > 0.99]
        groups = {"overall": [*self.paradigms], "agreement": agreement, "permutations": permutations}
        return {**groups, **dict(sorted(of_name.items()))}

    def accuracy(self, paradigms: Sequence[str], points: Float[np.ndarray, " pairs"] | None = None) -> Accuracy:
        """Returns the mean accuracy of some paradigms.

        Args:
            paradigms: names of the paradigms.
            points: ``points_per_token``; None: ``points``.
        """
        points = self.points if points is None else points
        found = [points[self.paradigms[name]] for name in paradigms]
        if not found:
            return Accuracy(math.nan, math.nan, math.nan, 0)
        shares = np.array([part.mean() for part in found])
        error = math.sqrt(sum(part.var() / len(part) for part in found)) / len(found)
        spread = shares.std(ddof=1) / math.sqrt(len(found)) if len(found) > 1 else math.nan
        return Accuracy(100 * float(shares.mean()), 100 * error, 100 * float(spread), len(found))


def _points(nats: Float[np.ndarray, "2 pairs"]) -> Float[np.ndarray, " pairs"]:
    good, bad = nats
    points: Float[np.ndarray, " pairs"] = np.where(np.isnan(good + bad), np.nan, (good < bad) + 0.5 * (good == bad))
    return points


def show_pair_scores(title: str, scores: PairScores) -> None:
    """Prints the accuracy of each group (with its number of paradigms) and of each paradigm: by the sum of the nats,
    with its standard errors (see ``Accuracy``), and by their mean per token."""
    table = Table(title=title, title_justify="left")
    table.add_column("minimal pairs", overflow="fold")
    for column in ("%", "± pairs", "± paradigms", "% by mean"):
        table.add_column(column, justify="right", no_wrap=True)
    groups = scores.groups()
    for name, paradigms in {**groups, **{name: [name] for name in scores.paradigms}}.items():
        found, by_mean = scores.accuracy(paradigms), scores.accuracy(paradigms, scores.points_per_token)
        numbers = [found.value, found.error, found.spread, by_mean.value]
        count = f" ({found.num_paradigms})" if name in groups else ""
        table.add_row(name + count, *("" if math.isnan(number) else f"{number:.1f}" for number in numbers))
        if name == [*groups][-1]:
            table.add_section()
    Console().print(table)
