"""Images and audio that are decoded when a batch needs them are those that stay in memory."""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from datasets import Dataset, Features, Value
from datasets import Image as HubImage
from omegaconf import DictConfig
from PIL import Image as Pillow

from command_line import complete
from triptych.assembly.loaders import make_data_module
from triptych.assembly.make_task import make_task
from triptych.assembly.read_data import read_corpus, train_tokenizer
from triptych.config import ConfigError
from triptych.config.run_settings import RunSettings
from triptych.data import DataModule, EncodedExample, Splits
from triptych.data.corpora import file_rows
from triptych.data.file_examples import FileExamples
from triptych.data.overlap import find_overlap

SMALL = ["shape.d_model=8", "shape.num_heads=2", "shape.num_layers=1", "shape.d_ff=16", "batch.global_size=4"]
PARTS = ["data.validation=0.2", "data.test=0.2"]
IMAGES = ["data.image=file", "data.channels=1", "data.size=[8,8]", "image_embedding.image_size=[8,8]",
          "image_embedding.patch_size=[4,4]"]  # fmt: skip
FILES = ["data=image_files", "data.train=images.tsv", *PARTS, *IMAGES]
SOUNDS = ["~data.min_digits", "~data.max_digits", "data=audio_files", "data.train=sounds.tsv", *PARTS,
          "data.target=said", "audio_embedding.rate=4000"]  # fmt: skip
RUNS = {
    "classes": ["experiment=digits/encoder_only", *FILES, "data.target=null", "data.label=kind"],
    "captions": ["experiment=captions/drawn", "image_embedding.num_channels=1", *FILES, "data.target=said"],
    "hub": ["experiment=digits/encoder_only", "data=hub_images", "data.split_names=[train,0.2,0.2]", *IMAGES,
            "data.target=null", "data.label=kind"],
    "speakers": ["experiment=tones/transcription", "model=full", *SOUNDS, "data.speaker=kind"],
    "dropped": ["experiment=tones/transcription", "model=encoder_only", *SOUNDS, "shape.max_length=30",
                "batch.too_long=drop"],
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path / "cache"))
    generator, rows = np.random.default_rng(0), []
    for i in range(20):
        Pillow.fromarray(generator.integers(0, 255, (6 + i % 3, 8), np.uint8)).save(tmp_path / f"{i}.png")
        soundfile.write(tmp_path / f"{i}.wav", 0.1 * generator.standard_normal(3000 + 200 * i), 8000)
        rows.append(f"{i}.FORM\t{'one two'[: 3 + i % 5]}\t{'ab'[i % 2]}")
    table = "\n".join(["file\tsaid\tkind", *rows]) + "\n"
    (tmp_path / "images.tsv").write_text(table.replace("FORM", "png"))
    (tmp_path / "sounds.tsv").write_text(table.replace("FORM", "wav"))
    return tmp_path


@pytest.fixture
def hub(folder: Path) -> Path:
    """The images of the folder as a dataset."""
    files = sorted(folder.glob("*.png"), key=lambda file: int(file.stem))
    columns = {"file": [str(file) for file in files], "kind": ["ab"[i % 2] for i in range(len(files))]}
    Dataset.from_dict(columns, Features({"file": HubImage(), "kind": Value("string")})).save_to_disk(folder / "saved")
    return folder / "saved"


def read(config: DictConfig) -> tuple[Splits, DataModule]:
    """The splits and the batches of a training."""
    _, splits, info = read_corpus(config, "data")
    tokenizer = train_tokenizer(config, splits)
    complete(config, tokenizer, info)
    return splits, make_data_module(RunSettings.of(config), make_task(RunSettings.of(config), tokenizer, info), splits)


def plain(item: EncodedExample) -> list[Any]:
    """The values of an item; its example last."""
    return [getattr(item, field.name) for field in fields(item)]


@pytest.mark.parametrize("name", RUNS)
def test_they_are_encoded_like_those_in_memory(
    name: str, hub: Path, chosen: Callable[..., DictConfig], monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    place = f"data.name={hub}" if name == "hub" else f"data.dir={hub.parent}"
    runs, said = [], []
    for most in (file_rows.MOST_BYTES, 0):
        monkeypatch.setattr(file_rows, "MOST_BYTES", most)
        caplog.clear()
        runs.append(read(chosen(*RUNS[name], *SMALL, place)))
        said.append(caplog.messages)
    (in_memory, kept), (on_demand, decoded) = runs
    assert said[0] == said[1]
    assert find_overlap(in_memory.train, {"test": in_memory.test}) == find_overlap(
        on_demand.train, {"test": on_demand.test}
    )
    for split in ("train", "validation", "test"):
        found, examples = getattr(on_demand, split), getattr(in_memory, split)
        assert isinstance(found, FileExamples)
        assert not isinstance(examples, FileExamples)
        assert (found.key, [*found], found[1:]) == (examples.key, [*examples], examples[1:])
        own, expected = getattr(decoded, split), getattr(kept, split)
        for sizes in ("sizes", "num_scored"):
            assert getattr(own, sizes).tolist() == getattr(expected, sizes).tolist()
        assert own.too_long == expected.too_long
        for index in range(len(own.sizes)):
            for one, other in zip(plain(own[index]), plain(expected[index]), strict=True):
                assert np.array_equal(one, other) if isinstance(other, np.ndarray) else one == other
    assert (kept.train is not None and kept.train.too_long > 0) == (name == "dropped")


def test_a_file_that_changes_meanwhile(
    folder: Path, chosen: Callable[..., DictConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_rows, "MOST_BYTES", 0)
    splits, _ = read(chosen(*RUNS["classes"], *SMALL, f"data.dir={folder}"))
    example = splits.test[0]
    Pillow.new("L", (8, 8)).save(folder / example.text)
    with pytest.raises(ConfigError, match=rf"images.tsv, line \d+: {example.text}: the file has changed since"):
        splits.test[0]
