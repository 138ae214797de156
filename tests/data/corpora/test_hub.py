"""Data sets of the Hugging Face hub, from folders in its form; there is no network here."""

import json
import re
import time
from io import BytesIO
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest
import soundfile
from datasets import Audio as Sounds
from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Translation, Value
from datasets import Image as Pictures
from PIL import Image as Pillow
from scipy.io import wavfile  # type: ignore[import-untyped]

from triptych.data import AnswerSpan, Audio, Example, Hub, HubAudio, HubImages, read_audio, read_image
from triptych.data.audio import audio_to_wav

SPLITS = ("train", "validation", "test")


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.getbasetemp() / "datasets")


def corpus(folder: Path | str, **options: Any) -> Hub:
    columns = dict.fromkeys(("text", "target", "label", "text_pair", "score", "words", "tags", "answers"))
    given = {"config": None, "split_names": list(SPLITS), "streaming": False, "limit": None, "split_seed": 1}
    return Hub(**{"name": str(folder)} | columns | given | options)


def saved(folder: Path, columns: dict[str, list[Any]], features: Features | None = None) -> Path:
    """A folder that ``save_to_disk`` has written, with the same rows in each split."""
    DatasetDict({s: Dataset.from_dict(columns, features=features) for s in SPLITS}).save_to_disk(folder / "saved")
    return folder / "saved"


def files(folder: Path, kind: str, rows: list[dict[str, Any]]) -> Path:
    """A folder with a file for each split, of i + 1 times the rows."""
    folder.mkdir(exist_ok=True)
    for i, split in enumerate(SPLITS):
        data = Dataset.from_list(rows * (i + 1))
        path = folder / f"{split}.{kind}"
        if kind == "parquet":
            data.to_parquet(path)
        elif kind == "csv":
            data.to_csv(path)
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in rows * (i + 1)))
    return folder


ANSWERS = {"text": ["b", "b c"], "answer_start": [2, 2]}
READ: dict[str, tuple[dict[str, list[Any]], Features | None, dict[str, str], Example]] = {
    "text": ({"text": ["a b"], "more": [1]}, None, {"text": "text"}, Example("a b")),
    "classes by name": (
        {"sentence": ["a"], "label": [1]},
        Features({"sentence": Value("string"), "label": ClassLabel(names=["neg", "pos"])}),
        {"text": "sentence", "label": "label"},
        Example("a", label="pos"),
    ),
    "a pair and its score": (
        {"s1": ["a"], "s2": ["b"], "label": [3.5]},
        None,
        {"text": "s1", "text_pair": "s2", "score": "label"},
        Example("a", text_pair="b", score=3.5),
    ),
    "two columns of translation": (
        {"en": ["a"], "de": ["b"]}, None, {"text": "en", "target": "de"}, Example("a", target="b"),
    ),
    "translation within a column": (
        {"id": ["1"], "translation": [{"en": "a", "de": "b"}]},
        Features({"id": Value("string"), "translation": Translation(languages=["en", "de"])}),
        {"text": "translation.de", "target": "translation.en"},
        Example("b", target="a"),
    ),
    "tags by name": (
        {"tokens": [["New", "York", "."]], "ner_tags": [[1, 2, 0]]},
        Features({"tokens": List(Value("string")), "ner_tags": List(ClassLabel(names=["O", "B-LOC", "I-LOC"]))}),
        {"text": "text", "words": "tokens", "tags": "ner_tags"},
        Example("New York .", words=("New", "York", "."), tags=("B-LOC", "I-LOC", "O")),
    ),
    "answers": (
        {"question": ["q?"], "context": ["a b c"], "answers": [ANSWERS]},
        None,
        {"text": "question", "text_pair": "context", "answers": "answers"},
        Example("q?", text_pair="a b c", answers=(AnswerSpan("b", 2), AnswerSpan("b c", 2))),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", READ)
def test_columns_of_every_task_are_read(tmp_path: Path, case: str) -> None:
    columns, features, names, example = READ[case]
    data = corpus(saved(tmp_path, columns, features), **names)
    assert (*data.splits().train, *data.splits().test) == (example, example)
    assert data.splits().test[0].where == f"{tmp_path}/saved/test, row 1"
    assert data.info.labels == ((example.label,) if example.label else ())
    assert data.info.tag_labels == tuple(sorted(set(example.tags or ())))


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("kind", ["parquet", "jsonl", "csv"])
def test_folders_of_files_are_read(tmp_path: Path, kind: str, streaming: bool) -> None:
    rows = [{"text": f"text {i}", "label": i % 2} for i in range(10)]
    folder = files(tmp_path, kind, rows)
    expected = [(row["text"], str(row["label"])) for row in rows]
    whole = corpus(folder, text="text", label="label", streaming=streaming)
    assert [[(e.text, e.label) for e in split] for split in (whole.splits().train, whole.splits().test)] == [
        expected,
        expected * 3,
    ]
    options: dict[str, Any] = {"text": "text", "label": "label", "streaming": streaming, "limit": 4}
    assert [(e.text, e.label) for e in corpus(folder, **options).splits().test] == expected[:4]
    shares = corpus(folder, **options, split_names=["train", 0.25, "validation"]).splits()
    assert sorted((e.text, e.label) for e in (*shares.train, *shares.validation)) == expected[:4]
    assert (len(shares.validation), len(shares.test)) == (1, 4)


AS_WRITTEN = ["01", "1", "1.0", "NA", "null", "nan", "None", "True", "1e5", " x ", "0x1F", "2020-01-01", "inf", "-",
              "#N/A", "a, 'b'\n\"c\"", "1_000", "9007199254740993", "+1", "00"]  # fmt: skip


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("kind", ["csv", "tsv"])
def test_columns_of_csv_are_texts_as_they_stand(tmp_path: Path, kind: str, streaming: bool) -> None:
    """What pandas wrote from a frame of texts is read as these texts. It guesses types when it reads."""
    texts = AS_WRITTEN if kind == "csv" else [text for text in AS_WRITTEN if "\n" not in text]
    numbers = range(len(texts))
    frame = pd.DataFrame({"text": texts, "label": texts[::-1], "score": [f"{i}.50" for i in numbers]})
    frame["other"] = [*numbers[1:], None]
    for split in SPLITS:
        frame.to_csv(tmp_path / f"{split}.{kind}", index=False, sep="\t" if kind == "tsv" else ",")
    found = corpus(tmp_path, text="text", label="label", streaming=streaming).splits()
    assert [(example.text, example.label) for example in found.test] == list(zip(texts, texts[::-1], strict=True))
    scores = corpus(tmp_path, text="text", score="score", streaming=streaming, limit=2).splits().train
    assert [example.score for example in scores] == [0.5, 1.5]
    with pytest.raises(
        ValueError, match=r"no column txet .*; the columns are text, label, score, other; did you mean text"
    ):
        corpus(tmp_path, text="txet", streaming=streaming).splits()


def test_declared_types_of_csv_and_types_of_json_stay(tmp_path: Path) -> None:
    for split in SPLITS:
        (tmp_path / f"{split}.csv").write_text("text,label\na,1\n")
    declared = {"features": [
        {"name": "text", "dtype": "string"},
        {"name": "label", "dtype": {"class_label": {"names": {"0": "neg", "1": "pos"}}}},
    ]}  # fmt: skip
    (tmp_path / "README.md").write_text(f"---\ndataset_info: {json.dumps(declared)}\n---\n")
    assert corpus(tmp_path, text="text", label="label").splits().train[0].label == "pos"
    folder = files(tmp_path / "json", "jsonl", [{"text": "a", "label": True}])
    assert corpus(folder, text="text", label="label").splits().train[0].label == "true"


def test_one_saved_set_is_the_training_split(tmp_path: Path) -> None:
    Dataset.from_dict({"text": [f"{i}" for i in range(10)]}).save_to_disk(tmp_path / "one")
    data = corpus(tmp_path / "one", text="text", split_names=["train", 0.2, 0.3]).splits()
    assert [len(split) for split in (data.train, data.validation, data.test)] == [5, 2, 3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"text": "txet"},
            r"saved/train: no column txet \(data\.text=txet\); the columns are text, label; did you mean text\?",
        ),
        (
            {"text": "label"},
            r'saved/train, row 1: label is "pos"|saved/train, row 2: class -1; expected 0 to 1, neg, pos',
        ),
        ({"label": "label"}, r"saved/train, row 2: class -1; expected 0 to 1, neg, pos"),
        (
            {"split_names": ["train", "dev", "test"]},
            r"data\.split_names: dev is not a split of .*; expected one of train, validation, test "
            r"\(or a number, a fraction of train: data\.split_names=\[train,0\.1,test\]\)$",
        ),
        (
            {"split_names": ["train", "test", "tset"]},
            r"data\.split_names: tset is not a split of .*; did you mean test\?",
        ),
    ],
)
def test_what_is_not_there_is_named(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    features = Features({"text": Value("string"), "label": ClassLabel(names=["neg", "pos"])})
    folder = saved(tmp_path, {"text": ["a", "b"], "label": [1, -1]}, features)
    with pytest.raises(ValueError, match=message):
        corpus(folder, **{"text": "text"} | options).splits()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split_names": ["train", "test"]}, r"data\.split_names=\['train', 'test'\]: expected \[TRAIN,"),
        ({"split_names": [0.1, "a", "b"]}, r"data\.split_names=\[0\.1, 'a', 'b'\]: expected \[TRAIN,"),
        ({"split_names": ["a", 0.5, 0.5]}, r"data\.split_names=\['a', 0\.5, 0\.5\]: expected fractions above 0"),
        ({"limit": 0}, r"data\.limit=0: expected at least 1"),
        ({"name": "./nowhere"}, r"data\.name=\./nowhere: no such folder \(/.*/nowhere\)"),
    ],
)
def test_settings_are_checked_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=rf"^{message}"):
        corpus("a/b", **options)


@pytest.mark.parametrize("streaming", [False, True])
def test_a_damaged_file_is_named(tmp_path: Path, streaming: bool) -> None:
    folder = files(tmp_path, "jsonl", [{"text": "a"}])
    (folder / "train.jsonl").write_text('{"text": "a"}\n{"text": \n')
    with pytest.raises(ValueError, match=rf"{re.escape(str(folder))}(/train, row \d)?: .*JSON"):
        corpus(folder, text="text", streaming=streaming).splits()


def test_code_of_a_set_is_not_run(tmp_path: Path) -> None:
    (tmp_path / f"{tmp_path.name}.py").write_text(f"open('{tmp_path}/ran', 'w')")
    with pytest.raises(ValueError, match=r"scripts are no longer supported"):
        corpus(tmp_path, text="text").splits()
    assert not (tmp_path / "ran").exists()


def test_without_a_network_it_says_so_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listens at this address."""
    from huggingface_hub import constants

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    with pytest.raises(ValueError, match=r"^data\.name=nobody/nothing: .* the Hub cannot be reached \("):
        corpus("nobody/nothing", text="text").splits()
    assert sum(slept) < 1  # datasets would try five times, for 23 seconds


class TestSounds:
    @pytest.fixture
    def clips(self, tmp_path: Path) -> Dataset:
        """As the hub has them: sounds, and what is known of them."""
        files = [str(tmp_path / f"{i}.flac") for i in range(4)]
        for i, file in enumerate(files):
            soundfile.write(file, 0.3 * np.sin(np.arange(2000) * 0.1 * (i + 1)), 8000)
        columns = {"audio": files, "said": [f"word {i}" for i in range(4)], "kind": [*"abab"]}
        return Dataset.from_dict(columns).cast_column("audio", Sounds())

    def corpus(self, name: Path, **options: Any) -> HubAudio:
        settings: dict[str, Any] = {
            "config": None, "split_names": ["train", 0.25, 0.25], "streaming": False, "limit": None, "audio": "audio",
            "target": "said", "label": "kind", "speaker": None, "split_seed": 1,
        }  # fmt: skip
        return HubAudio(name=str(name), **settings | options)

    def test_files_beside_their_table_are_read_by_another_corpus(self, tmp_path: Path) -> None:
        """datasets would ask for a library that this one does not need."""
        (tmp_path / "train").mkdir()
        (tmp_path / "train" / "a.wav").write_bytes(audio_to_wav(Audio.of([0.0, 0.5], 8000)))
        (tmp_path / "train" / "metadata.csv").write_text("file_name,said\na.wav,word\n")
        with pytest.raises(ValueError, match="audio files are only supported in Parquet; use data=audio_files"):
            self.corpus(tmp_path, label=None).splits()

    def test_what_was_saved_and_tables(self, clips: Dataset, tmp_path: Path) -> None:
        DatasetDict(train=clips).save_to_disk(str(tmp_path / "saved"))
        (tmp_path / "paths").mkdir()
        paths = clips.cast_column("audio", Sounds(decode=False))
        rows = [{**row, "audio": row["audio"]["path"]} for row in paths]
        (tmp_path / "paths" / "train.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        for name in ("saved", "paths"):
            found = self.corpus(tmp_path / name)
            splits = found.splits()
            assert found.info.labels == ("a", "b")
            assert (len(splits.train), len(splits.validation), len(splits.test)) == (2, 1, 1)
            for example in (*splits.train, *splits.validation, *splits.test):
                number = int(Path(example.text).stem)
                assert (example.target, example.label) == (f"word {number}", "abab"[number])
                assert example.audio == read_audio(tmp_path / f"{number}.flac")[0]

    def test_floats_in_the_range_of_integers(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        """Whose bytes stand in the table."""
        samples = np.array([0, 12_000, -30_000], np.int16)
        columns: dict[str, list[Any]] = {"audio": [], "said": ["a", "b"], "kind": ["x", "y"]}
        for kind in (np.int16, np.float32):
            file = BytesIO()
            wavfile.write(file, 8000, samples.astype(kind))
            columns["audio"].append({"bytes": file.getvalue(), "path": None})
        DatasetDict(train=Dataset.from_dict(columns)).save_to_disk(str(tmp_path / "saved"))
        first, second = self.corpus(tmp_path / "saved", split_names=["train", "train", "train"]).splits().train
        assert first.audio == second.audio == Audio(8000, samples.astype("<i2").tobytes())
        assert "1 of 2 audio clips of train were rescaled" in caplog.records[0].getMessage()

    def test_mistakes(self, clips: Dataset, tmp_path: Path) -> None:
        DatasetDict(train=clips).save_to_disk(str(tmp_path / "saved"))
        with pytest.raises(
            ValueError, match=r"no column sounds \(data\.audio=sounds\); the columns are audio, said, kind"
        ):
            self.corpus(tmp_path / "saved", audio="sounds").splits()
        with pytest.raises(ValueError, match=r"saved/train, row 1: a: not a readable audio file"):
            self.corpus(tmp_path / "saved", audio="kind", label=None).splits()
        broken = Dataset.from_dict({"audio": [{"bytes": b"no sound", "path": "2.flac"}], "said": ["a"], "kind": ["b"]})
        DatasetDict(train=broken).save_to_disk(str(tmp_path / "broken"))
        with pytest.raises(ValueError, match=r"train, row 1: 2\.flac: not a readable audio file"):
            self.corpus(tmp_path / "broken", split_names=["train", "train", "train"]).splits()


class TestImages:
    def corpus(self, name: Path, **options: Any) -> HubImages:
        settings: dict[str, Any] = {
            "config": None, "split_names": ["train", 0.25, 0.25], "streaming": False, "limit": None, "image": "image",
            "target": "said", "label": "kind", "channels": 1, "size": None, "split_seed": 1,
        }  # fmt: skip
        return HubImages(name=str(name), **settings | options)

    def test_what_was_saved(self, tmp_path: Path) -> None:
        files = [tmp_path / f"{i}.png" for i in range(4)]
        for i, file in enumerate(files):
            Pillow.new("L", (4, 4), 50 * i).save(file)
        columns = {"image": [*map(str, files)], "said": [f"word {i}" for i in range(4)], "kind": [*"abab"]}
        pictures = Dataset.from_dict(columns).cast_column("image", Pictures())
        DatasetDict(train=pictures).save_to_disk(str(tmp_path / "saved"))
        splits = self.corpus(tmp_path / "saved").splits()
        assert (len(splits.train), len(splits.validation), len(splits.test)) == (2, 1, 1)
        for example in (*splits.train, *splits.validation, *splits.test):
            number = int(Path(example.text).stem)
            assert (example.target, example.label) == (f"word {number}", "abab"[number])
            assert example.image == read_image(files[number], channels=1)[0]
        coloured = self.corpus(tmp_path / "saved", channels=3, size=[2, 2]).splits().test[0]
        assert coloured.image is not None
        assert coloured.image.shape == (3, 2, 2)
        broken = Dataset.from_dict({"image": [{"bytes": b"no", "path": "2.png"}], "said": ["a"], "kind": ["b"]})
        DatasetDict(train=broken).save_to_disk(str(tmp_path / "broken"))
        with pytest.raises(ValueError, match=r"train, row 1: 2\.png: not a readable image"):
            self.corpus(tmp_path / "broken", split_names=["train", "train", "train"]).splits()

    @pytest.mark.parametrize("streaming", [False, True])
    def test_files_beside_their_table(self, tmp_path: Path, streaming: bool) -> None:
        """An image folder of the hub; its table is CSV, and the label 01 is not 1."""
        (tmp_path / "train").mkdir()
        for i in range(4):
            Pillow.new("L", (4, 4), 50 * i).save(tmp_path / "train" / f"{i}.png")
        table = pd.DataFrame(
            {"file_name": [f"{i}.png" for i in range(4)], "said": ["007", "8", "a", "b"], "kind": "01"}
        )
        table.to_csv(tmp_path / "train" / "metadata.csv", index=False)
        data = self.corpus(tmp_path, split_names=["train", "train", "train"], streaming=streaming)
        assert [(e.target, e.label) for e in data.splits().test] == [
            ("007", "01"),
            ("8", "01"),
            ("a", "01"),
            ("b", "01"),
        ]
