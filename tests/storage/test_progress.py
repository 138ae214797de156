"""Progress bars: seen on a terminal, and nowhere else."""

import sys

import pytest

from triptych.storage.progress import show_progress


def run_one(**settings: bool) -> None:
    with show_progress("{task.description}", **settings) as progress:
        progress.advance(progress.add_task("counting", total=1))


@pytest.mark.parametrize("stderr", [True, False])
def test_silent_without_a_terminal(capsys: pytest.CaptureFixture[str], stderr: bool) -> None:
    run_one(stderr=stderr)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("stderr", [True, False])
def test_shown_on_the_terminal_that_was_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, stderr: bool
) -> None:
    monkeypatch.setattr(sys.stderr if stderr else sys.stdout, "isatty", lambda: True)
    run_one(stderr=stderr, transient=False)
    out, err = capsys.readouterr()
    assert ("counting" in out, "counting" in err) == (not stderr, stderr)
    run_one(stderr=stderr, disable=True)
    assert capsys.readouterr() == ("", "")
