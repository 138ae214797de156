"""Writes grammar.md and grammar.json from the finished runs of grammar.py: tables, floors, and the predictions."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from triptych.data import MinimalPair, MinimalPairs
from triptych.report.pair_scores import PairScores
from triptych.report.statistics.pair_bootstrap import compare_pair_scores
from triptych.report.statistics.significance import adjust_by_holm

if TYPE_CHECKING:
    from grammar import Run, Study

HERE = Path(__file__).parent
GROUPS = ("agreement", "overall", "permutations")
START, END = "<!-- results -->\n", "<!-- end of the results -->\n"


@dataclass(frozen=True)
class Arm:
    """The networks of an arm with one budget, scored by one method.

    Attributes:
        name: of the arm, or of a floor.
        method: of the scores.
        flops: of each run.
    """

    name: str
    method: str
    flops: float = 0.0

    def __str__(self) -> str:
        return f"{self.name} ({self.method}, {self.flops / 1e12:g} TFLOP)" if self.flops else self.name


SMALL, LARGE = 2.5e13, 1e14
L2R = "pseudo_log_likelihood_l2r"
DECODER, ENCODER = Arm("decoder", "log_likelihood", LARGE), Arm("encoder", L2R, LARGE)
SMALL_DECODER, SMALL_ENCODER = Arm("decoder", "log_likelihood", SMALL), Arm("encoder", L2R, SMALL)
PREDICTIONS = (
    ("The decoder knows more agreement than a 5-gram model of the same text", DECODER, Arm("5-gram", "")),
    ("At 25 TFLOP, the decoder knows more agreement than the encoder", SMALL_DECODER, SMALL_ENCODER),
    ("At 100 TFLOP, the decoder knows more agreement than the encoder", DECODER, ENCODER),
    (
        "The full model, by words, knows more agreement than the encoder, by words",
        Arm("full", "infilling_by_word", LARGE),
        ENCODER,
    ),
    (
        "The encoder trained on 15 % of the tokens knows more agreement than the one trained by masked diffusion",
        ENCODER,
        Arm("diffusion", L2R, LARGE),
    ),
    (
        "The hybrid read by masks knows more agreement than the encoder",
        Arm("hybrid", L2R, LARGE),
        ENCODER,
    ),
    (
        "The decoder knows more agreement than the hybrid read causally",
        DECODER,
        Arm("hybrid", "log_likelihood", LARGE),
    ),
)
"""Written before the first run: which arm is better, on the paradigms of agreement."""


class NGrams:
    """An n-gram model with interpolated Witten-Bell smoothing, of lower-cased words and marks:

        p(w | h) = (c(h w) + t(h) p(w | h')) / (c(h) + t(h))

    with t(h) the number of different words after h, h' the history without its first word, and 1 / (V + 1) at the end.
    """

    def __init__(self, lines: Iterable[str], order: int) -> None:
        self.order = order
        self._counts: list[dict[tuple[str, ...], Counter[str]]] = [defaultdict(Counter) for _ in range(order)]
        for line in lines:
            words = [*["<s>"] * (order - 1), *split_words(line)]
            for place in range(order - 1, len(words)):
                for length in range(order):
                    self._counts[length][tuple(words[place - length : place])][words[place]] += 1
        self._floor = 1 / (len(self._counts[0][()]) + 1)

    def nats(self, line: str) -> float:
        """-ln p of a sentence."""
        words = [*["<s>"] * (self.order - 1), *split_words(line)]
        return -sum(math.log(self._p(words, place)) for place in range(self.order - 1, len(words)))

    def _p(self, words: Sequence[str], place: int) -> float:
        p = self._floor
        for length in range(self.order):
            found = self._counts[length].get(tuple(words[place - length : place]))
            if found:
                total = found.total()
                p = (found[words[place]] + len(found) * p) / (total + len(found))
        return p


def split_words(line: str) -> list[str]:
    words = line.lower().split()
    return [part for word in words for part in (_cut(word))]


def _cut(word: str) -> list[str]:
    stem = word.rstrip(".,!?;:\"')")
    return [*([stem] if stem else []), *word[len(stem) :]]


def score_floor(pairs: Sequence[MinimalPair], nats: Callable[[str], float]) -> PairScores:
    found = np.array([[nats(pair.good) for pair in pairs], [nats(pair.bad) for pair in pairs]])
    names = [pair.paradigm for pair in pairs], [pair.phenomenon for pair in pairs]
    permutations = np.array([pair.is_permutation for pair in pairs])
    return PairScores(*names, permutations, found, np.ones((2, len(pairs)), int))


def read_scores(study: Study) -> dict[Arm, list[tuple[Run, PairScores]]]:
    """The scores of all runs that have them, by arm."""
    from grammar import METHODS, SEEDS

    found = defaultdict(list)
    for run in study.runs():
        for method in METHODS[run.arm] if run.seed in SEEDS else ():
            if (path := study.scores(run, method)).exists():
                found[Arm(run.arm, method, run.flops)].append((run, PairScores.read(path)))
    return dict(found)


def floors(study: Study, num_pairs: int) -> dict[Arm, list[PairScores]]:
    pairs = MinimalPairs(
        dir=str(study.work), test="blimp.jsonl", good="sentence_good", bad="sentence_bad", paradigm="UID",
        phenomenon="linguistics_term", pairs_per_paradigm=num_pairs,
    ).read()  # fmt: skip
    lines = (study.work / "text" / "train.txt").read_text(encoding="utf-8").splitlines()
    return {
        Arm(f"{'uni' if order == 1 else f'{order}-'}gram", ""): [score_floor(pairs, NGrams(lines, order).nats)]
        for order in (1, 5)
    }


def judge(scores: Mapping[Arm, Sequence[PairScores]]) -> list[dict[str, object]]:
    """The paired bootstrap of each prediction whose arms are scored, with Holm's correction for all of them."""
    found = []
    for text, better, other in PREDICTIONS:
        if better in scores and other in scores:
            paradigms = scores[better][0].groups()["agreement"]
            result = compare_pair_scores(scores[better], scores[other], paradigms)
            assert result is not None
            found.append((text, better, other, result))
    corrected = adjust_by_holm([result.p for *_, result in found] + [1.0] * (len(PREDICTIONS) - len(found)))
    return [
        {
            "prediction": text,
            "arms": [str(better), str(other)],
            "seeds": [len(scores[better]), len(scores[other])],
            "points": round(result.difference, 2),
            "low": round(result.low, 2),
            "high": round(result.high, 2),
            "p": p,
            "outcome": "inconclusive" if p >= 0.05 else "as predicted" if result.difference > 0 else "not as predicted",
        }
        for (text, better, other, result), p in zip(found, corrected, strict=False)
    ]


def write_report(study: Study) -> None:
    """Writes the results of the runs that are finished."""
    from grammar import ARMS, PAIRS

    scored = read_scores(study)
    scores: dict[Arm, list[PairScores]] = {arm: [x for _, x in found] for arm, found in scored.items()}
    scores |= floors(study, PAIRS)
    names = [*next(iter(scores.values()))[0].groups()]
    record = {
        "trials": {
            arm: [
                {"rate": run.rate, "val_loss": found["metrics"]["val/loss"], "steps": found["steps"]}
                for run in study.trials(arm)
                if (found := study.summary(run)) is not None
            ]
            for arm in ARMS
        },
        "runs": [
            {
                "arm": run.arm, "tflop": run.flops / 1e12, "rate": run.rate, "seed": run.seed, "method": arm.method,
                **{
                    key: (study.summary(run) or {}).get(key)
                    for key in ("began", "ended", "steps", "train_tokens", "wall_time_s", "params")
                },
                "val_loss": (study.summary(run) or {})["metrics"]["val/loss"],
                "paradigms": {name: round(one.accuracy([name]).value, 2) for name in one.paradigms},
            }
            for arm, found in scored.items()
            for run, one in found
        ],
        "floors": {
            arm.name: {name: round(one.accuracy([name]).value, 2) for name in one.paradigms}
            for arm, (one, *_) in scores.items()
            if not arm.flops
        },
        "predictions": judge(scores),
    }  # fmt: skip
    (HERE / "grammar.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    page = HERE / "grammar.md"
    before, _, rest = page.read_text(encoding="utf-8").partition(START)
    after = rest.partition(END)[2]
    page.write_text(before + START + _tables(scores, names, record) + END + after, encoding="utf-8")


def _tables(scores: Mapping[Arm, Sequence[PairScores]], names: Sequence[str], record: Mapping[str, object]) -> str:
    rows = ["| arm, way of scoring, budget | seeds | " + " | ".join(GROUPS) + " |", "|---|---|---|---|---|"]
    for arm, found in sorted(scores.items(), key=lambda item: (item[0].flops, item[0].name)):
        values = [[one.accuracy(one.groups()[group]).value for one in found] for group in GROUPS]
        cells = [f"{fmean(x):.1f}" + (f" ({min(x):.1f} to {max(x):.1f})" if len(x) > 1 else "") for x in values]
        rows.append(f"| {arm} | {len(found) if arm.flops else ''} | {' | '.join(cells)} |")
    largest = max((arm.flops for arm in scores), default=0.0)
    shown = [arm for arm in scores if arm.flops in (0.0, largest)]
    more = ["", "| phenomenon | " + " | ".join(map(str, shown)) + " |", "|---|" + "---|" * len(shown)]
    for name in names[3:]:
        values = [fmean(one.accuracy(one.groups()[name]).value for one in scores[arm]) for arm in shown]
        more.append(f"| {name} | " + " | ".join(f"{value:.1f}" for value in values) + " |")
    judged = ["", "| prediction | points | 95 % interval | p (Holm) | outcome |", "|---|---|---|---|---|"]
    for one in record["predictions"]:  # type: ignore[attr-defined]
        interval = f"{one['low']} to {one['high']}"
        judged.append(f"| {one['prediction']} | {one['points']} | {interval} | {one['p']:.3g} | **{one['outcome']}** |")
    return "\n".join([*rows, *more, *judged, ""])
