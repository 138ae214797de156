"""Whether seeds were added after a verdict was possible, which makes a false winner more probable."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from triptych.report.read_records import RecordedRun
from triptych.report.statistics.significance import MIN_SEEDS

PAUSE = timedelta(hours=1)
"""A longer pause between two seeds is time to judge the first ones. A sweep starts its next run at once."""
UNKNOWN = "0001-01-01T00:00Z", "9999-12-31T00:00Z"
"""Of a run whose record lacks them: began before, and ended after, all others."""


def describe_raised_seeds(variants: Sequence[Sequence[RecordedRun]]) -> str:
    """A sentence for the verdict; empty if the records do not show that seeds were raised.

    Seeds were raised if the runs of all variants up to some seed, at least three of each, ended more than an hour
    before any run of a higher seed began. If equal variants are judged after each seed and the first winner is named,
    7.9 % have a winner among 3 to 5 seeds, and 14.2 % among 3 to 10 (tests/report/statistics/test_raised_seeds.py).

    Args:
        variants: the runs of each.
    """
    runs = [run for variant in variants for run in variant]
    for seed in sorted({run.seed for run in runs})[:-1]:
        counts = [sum(run.seed <= seed for run in variant) for variant in variants]
        ended = max(run.ended or UNKNOWN[1] for run in runs if run.seed <= seed)
        began = min(run.began or UNKNOWN[0] for run in runs if run.seed > seed)
        if min(counts) >= MIN_SEEDS and datetime.fromisoformat(began) - datetime.fromisoformat(ended) > PAUSE:
            most = max(map(len, variants))
            risk = "about 8 %" if most <= 5 else "about 14 %" if most <= 10 else "over 14 %"
            return (
                f" Seeds raised from {min(counts)} to {most}: "
                f"with a verdict after each seed, a false winner has a probability of {risk}."
            )
    return ""
