"""Calls commands in this process."""

import sys
from typing import Any

import pytest

from triptych.cli import main


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Calls ``triptych`` in this process: its exit status, and what it has printed."""
    monkeypatch.setenv("COLUMNS", "250")

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["triptych", *arguments])
        status = main()
        return status, *capsys.readouterr()

    return call
