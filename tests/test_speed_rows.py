"""The contenders of benchmarks/speed.py train with the current code."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.nightly
def test_the_training_loop_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours, the bare one and Lightning's, for a few steps."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import speed_loop

    monkeypatch.setattr(speed_loop, "STEPS", 8)
    monkeypatch.setattr(speed_loop, "WARM_UP", 2)
    row = speed_loop.loop(8)
    rounds = {name: work() for name, work in row.rounds.items()}
    for name in ("speed_loop", "speed_rows", "peers"):
        sys.modules.pop(name, None)
    assert len(rounds) == 3
    for result in rounds.values():
        assert result.amount == 5
        assert result.seconds > 0
