"""Seeds that were added after a verdict was possible: by synthetic records, and how often a false winner is named."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from triptych.report.read_records import find_runs
from triptych.report.statistics.groups import group_runs
from triptych.report.statistics.significance import Welch
from triptych.report.statistics.verdicts import judge

START = datetime(2026, 3, 1, 23, 30, tzinfo=UTC)
ALL_AT_ONCE = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]
LATER = [0.0, 0.1, 0.2, 9.0, 9.1, 9.2]


@pytest.fixture
def verdict_of(write_run, tmp_path: Path):
    """The text of the verdict on two architectures whose seeds began at these hours; a run takes half an hour."""

    def verdict_of(full: Sequence[float | None], decoder_only: Sequence[float | None]) -> str:
        for architecture, hours, level in (("full", full, 0.9), ("decoder_only", decoder_only, 0.5)):
            for seed, hour in enumerate(hours, start=1):
                times = {}
                if hour is not None:
                    began = START + timedelta(hours=hour)
                    ended = began + timedelta(minutes=30)
                    times = {"began": began.isoformat(), "ended": ended.isoformat()}
                metrics = {"test/exact_match": level + seed / 100}
                write_run(architecture, "translation", metrics, seed=seed, changes=times)
        (group,) = group_runs(find_runs([tmp_path], tmp_path).runs)
        return judge(group).text

    return verdict_of


@pytest.mark.parametrize(
    ("full", "decoder_only", "said"),
    [
        (LATER, LATER, "Seeds raised from 3 to 6: with a verdict after each seed, a false winner has a probability of "
         "about 14 %."),
        (LATER[:5], LATER[:4], "Seeds raised from 3 to 5: with a verdict after each seed, a false winner has a "
         "probability of about 8 %."),
        (LATER, LATER[:3], "Seeds raised from 3 to 6"),
        ([*LATER[:3], *range(9, 17)], LATER, "Seeds raised from 3 to 11: with a verdict after each seed, a false "
         "winner has a probability of over 14 %."),
        ([0.0, 0.1, 0.2, 1.71], LATER[:3], "Seeds raised from 3 to 4"),
        ([0.0, 0.1, 0.2, 1.69], LATER[:3], ""),
        (ALL_AT_ONCE, ALL_AT_ONCE, ""),
        (LATER, [hour + 9 for hour in LATER], ""),  # the fourth seed of one began with the first of the other
        (LATER[1:], LATER[1:], ""),  # after two seeds, no verdict was possible
        (LATER, LATER[:2], ""),
        ([None, *LATER[1:]], LATER, ""),
        (LATER, [*LATER[:4], None], ""),
    ],
)  # fmt: skip
def test_a_verdict_says_whether_seeds_were_raised(
    verdict_of, full: list[float | None], decoder_only: list[float | None], said: str
) -> None:
    text = verdict_of(full, decoder_only)
    assert said in text
    assert ("Seeds raised" in text) == bool(said)


@pytest.mark.nightly
@pytest.mark.parametrize(("most", "expected"), [(5, 0.079), (10, 0.142)])
def test_a_verdict_after_each_seed_names_more_false_winners(most: int, expected: float) -> None:
    random = np.random.default_rng(0)
    draws = random.normal(size=(4000, 2, most)).tolist()
    found = [any(Welch.of(a[:n], b[:n]).p < 0.05 for n in range(3, most + 1)) for a, b in draws]
    assert np.mean(found) == pytest.approx(expected, abs=3 * (expected * (1 - expected) / 4000) ** 0.5)
