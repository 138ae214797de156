"""What a run hears of the signals that ask it to end."""

import os
import signal

import pytest

from triptych.launch import signals


@pytest.mark.parametrize("by_nohup", [True, False])
def test_with_nohup_the_loss_of_the_terminal_does_not_matter(by_nohup: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "_noted", [])
    before = {number: signal.getsignal(number) for number in signals.STOPS}
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN if by_nohup else signal.SIG_DFL)
        signals.catch(*signals.STOPS)
        os.kill(os.getpid(), signal.SIGHUP)
        assert signals.received() == (None if by_nohup else signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.received() == (signal.SIGTERM if by_nohup else signal.SIGHUP)
        signals.release(*signals.STOPS)
        assert signal.getsignal(signal.SIGHUP) == (signal.SIG_IGN if by_nohup else signal.SIG_DFL)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
