"""``--help`` is composed once."""

from pathlib import Path

import pytest

from triptych.cli.help import kept_help


def test_help_is_composed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("triptych.cli.help.files", lambda _: tmp_path)
    composed = []

    def print_help() -> None:
        composed.append(1)
        print("what can be set")

    for arguments in (["--help"], ["--help"], ["model=full", "-h"], ["--help"]):
        assert kept_help("train", arguments, print_help) == "what can be set\n"
    assert len(composed) == 2
    for _ in range(2):
        assert kept_help("train", ["--help", "--config-dir=mine"], print_help) == "what can be set\n"
    assert len(composed) == 4
    (tmp_path / "train.yaml").write_text("seed: 1\n")  # a file of conf/ is new
    assert kept_help("train", ["--help"], print_help) == "what can be set\n"
    assert len(composed) == 5
    monkeypatch.setenv("TRIPTYCH_CACHE", "/proc/nowhere")
    assert kept_help("train", ["--help"], print_help) == "what can be set\n"
