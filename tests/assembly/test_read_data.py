"""Columns that a table lacks."""

from pathlib import Path

import pytest

from command_line import composed
from triptych.assembly.read_data import read_corpus

HEADER = " (no header line? Use data=labelled_text with data.columns)"


@pytest.mark.parametrize(
    ("task", "data", "settings", "hint"),
    [
        ("classification", "audio_files", ["label=label"], "; set data.target=null to ignore it"),
        ("classification", "image_files", ["label=label"], "; set data.target=null to ignore it"),
        ("classification", "audio_files", ["label=x", "target=null"], ""),
        ("transcription", "audio_files", [], ""),
        ("transcription", "audio_files", ["audio=x"], ""),
        (
            "classification",
            "labelled_text",
            ["text=file", "text_pair=x"],
            f"{HEADER}; set data.text_pair=null to ignore it",
        ),
        ("classification", "labelled_text", [], HEADER),
    ],
)
def test_a_table_without_a_column(task: str, data: str, settings: list[str], hint: str, tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text("file\tlabel\na\t0\n")
    overrides = [f"data.{setting}" for setting in [f"dir={tmp_path}", "train=t.tsv", *settings]]
    config = composed(f"task={task}", "model=encoder_only", f"data={data}", *overrides)
    with pytest.raises(ValueError, match="no column") as caught:
        read_corpus(config, data)
    assert str(caught.value).endswith(f"; the columns are file, label{hint}")
