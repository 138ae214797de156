"""The confusion matrix on the terminal."""

from types import SimpleNamespace
from typing import Any

import pytest

from triptych.report.console import show_confusion


def test_labels_are_told_apart_and_disturb_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    labels = ("good", "good ", "[red]", "a\nb\x1b[31m", "größe")
    module: Any = SimpleNamespace(
        matrix_metrics={"test/confusion_matrix": [[1] * 5] * 5}, task=SimpleNamespace(labels=labels)
    )
    show_confusion(module)
    printed = capsys.readouterr().out
    names = ["good", "'good '", "[red]", r"'a\nb\x1b[31m'", "größe"]
    assert all(f" {name} " in printed and f" as {name} " in printed for name in names)
    assert "\x1b" not in printed
