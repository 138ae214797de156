"""Files of sound as a corpus."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from scipy.io import wavfile  # type: ignore[import-untyped]

from triptych import predict
from triptych.data import Audio, AudioFiles
from triptych.report.playground import Playground


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "clips").mkdir()
    for i in range(6):
        soundfile.write(tmp_path / "clips" / f"{i}.wav", 0.5 * np.sin(np.arange(4000) * (i + 1) / 20), 8000)
    rows = [f"clips/{i}.wav\t{['one', 'two', 'three'][i % 3]}\t{'ab'[i % 2]}" for i in range(6)]
    (tmp_path / "table.tsv").write_text("\n".join(["file\ttext\tspeaker", *rows]) + "\n")
    return tmp_path


def corpus(folder: Path, **options: Any) -> AudioFiles:
    settings: dict[str, Any] = {
        "train": "table.tsv", "validation": None, "test": 0.34, "audio": "file", "target": "text", "label": "speaker",
        "speaker": None,
        "split_seed": 1,
    }  # fmt: skip
    return AudioFiles(dir=str(folder), **settings | options)


def test_sounds_with_texts_and_classes(folder: Path) -> None:
    splits = corpus(folder).splits()
    assert (len(splits.train), len(splits.test)) == (4, 2)
    assert corpus(folder).info.labels == ("a", "b")
    for example in (*splits.train, *splits.test):
        number = int(Path(example.text).stem)
        assert example.target == ["one", "two", "three"][number % 3]
        assert example.label == "ab"[number % 2]
        assert example.audio is not None
        samples, rate = soundfile.read(folder / example.text)
        assert example.audio.rate == rate
        np.testing.assert_allclose(example.audio.samples, samples, atol=1e-4)


def test_mistakes(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"no column said \(data.target=said\); the columns are file, text, speaker"):
        corpus(folder, target="said").splits()
    (folder / "clips" / "2.wav").write_text("no sound")
    with pytest.raises(ValueError, match=r"table.tsv, line 4: .*2.wav: not a readable audio file"):
        corpus(folder).splits()
    (folder / "clips" / "2.wav").unlink()
    with pytest.raises(ValueError, match=r"table.tsv, line 4: .*2.wav: no such file"):
        corpus(folder).splits()


def test_who_speaks(folder: Path) -> None:
    splits = corpus(folder, speaker="speaker", label=None).splits()
    for example in (*splits.train, *splits.test):
        assert example.audio is not None
        assert example.audio.speaker == "ab"[int(Path(example.text).stem) % 2]
        assert example.audio.resampled(4000).speaker == example.audio.speaker
    assert corpus(folder).splits().train[0].audio != corpus(folder, speaker="speaker").splits().train[0].audio
    with pytest.raises(ValueError, match=r"no column who \(data\.speaker=who\)"):
        corpus(folder, speaker="who").splits()


def test_what_was_done_to_float_files_is_said_once(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The same sounds as 16-bit integers, and as floats in their range, are the same examples; FileChanges counts."""
    expected = corpus(folder).splits()
    caplog.clear()
    for i in range(5):
        rate, samples = wavfile.read(folder / "clips" / f"{i}.wav")
        wavfile.write(folder / "clips" / f"{i}.wav", rate, samples.astype(np.float32))
    found = corpus(folder).splits()
    assert (found.train, found.test) == (expected.train, expected.test)
    said = "5 of 6 audio clips of table.tsv were rescaled (floats in the range of 16-bit integers)"
    assert [record.getMessage() for record in caplog.records] == [said]
    wavfile.write(folder / "clips" / "2.wav", 8000, np.array([1e6, 0.0]))
    with pytest.raises(ValueError, match=r"table.tsv, line 4: .*2.wav: the peak is 1e\+06; expected at most 1"):
        corpus(folder).splits()


def test_predict_and_the_playground_read_float_files_too(folder: Path) -> None:
    path, samples = folder / "float.wav", np.array([0, 12_000, -30_000], np.int16)
    wavfile.write(path, 8000, samples.astype(np.float32))
    playground = Playground([], folder)
    for sound in (
        predict.sounds([str(path)], "-", have_speakers=False)[0],
        playground.files[playground.keep_audio(path.read_bytes())],
    ):
        assert sound == Audio(8000, samples.astype("<i2").tobytes())
