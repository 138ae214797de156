"""What a process hears of the signals that ask it to end."""

import os
import signal
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import triptych
from triptych.launch import signals
from triptych.launch.command import Command
from triptych.train import ending_in_order


@pytest.fixture(autouse=True)
def handlers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(signals, "_noted", [])
    before = {number: signal.getsignal(number) for number in signals.STOPS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("by_nohup", [True, False])
def test_with_nohup_the_loss_of_the_terminal_does_not_matter(by_nohup: bool) -> None:
    first = signal.SIG_IGN if by_nohup else signal.SIG_DFL
    signal.signal(signal.SIGHUP, first)
    before = signals.catch_signals(*signals.STOPS)
    os.kill(os.getpid(), signal.SIGHUP)
    assert signals.received() == (None if by_nohup else signal.SIGHUP)
    os.kill(os.getpid(), signal.SIGTERM)
    assert signals.received() == (signal.SIGTERM if by_nohup else signal.SIGHUP)
    signals.restore_handlers(before)
    assert signal.getsignal(signal.SIGHUP) == first
    with signals.record_signals(*signals.STOPS) as recorded:
        for number in signals.STOPS:
            os.kill(os.getpid(), number)
    assert recorded == [number for number in signals.STOPS if number != signal.SIGHUP or not by_nohup]
    assert signal.getsignal(signal.SIGHUP) == first


def test_a_second_ctrl_c_does_not_wait() -> None:
    signals.catch_signals(*signals.STOPS)
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
    assert signals.received() == signal.SIGINT


def test_a_run_that_stops_still_catches_signals() -> None:
    """A terminal that closes signals all processes, and a sweep forwards the signal: the second one of a run must not
    end it before its last message."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    run: Any = SimpleNamespace(loggers=[])
    command = Command([], [], "run", "dates", "local", is_job=False)
    for ending in (None, signals.Interruption(signal.SIGHUP, 3)):
        with nullcontext() if ending is None else pytest.raises(signals.Interruption), ending_in_order(run, command):
            if ending is not None:
                raise ending
        assert (signal.getsignal(signal.SIGHUP) == signal.SIG_DFL) == (ending is None)
    os.kill(os.getpid(), signal.SIGHUP)
    assert signals.received() == signal.SIGHUP


def test_handlers_that_were_replaced_come_back() -> None:
    before = {number: signal.getsignal(number) for number in signals.STOPS}
    replaced = signals.ignore_signals(*signals.STOPS)
    for number in signals.STOPS:
        os.kill(os.getpid(), number)
    with signals.record_signals(*signals.STOPS) as recorded:
        pass
    assert recorded == []
    assert {signal.getsignal(number) for number in signals.STOPS} == {signal.SIG_IGN}
    signals.restore_handlers(replaced)
    assert {number: signal.getsignal(number) for number in signals.STOPS} == before


def test_no_other_module_sets_a_handler() -> None:
    src = Path(triptych.__file__).parent
    setters = [file.relative_to(src) for file in src.rglob("*.py") if "signal.signal(" in file.read_text()]
    assert setters == [Path("launch/signals.py")]
    assert not [file for file in src.rglob("*.py") if "from signal import" in file.read_text()]
