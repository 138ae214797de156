"""Small files for the corpora that read files, in every format that they read, written by other programs: csv, json,
pyarrow, pillow, scipy, soundfile and datasets."""

import csv
import gzip
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

LINES = 60
WORDS = (
    *("a", "cat", "sat", "on", "the", "mat", "und", "über", "straße", "été", "naïve", "где", "кот", "猫", "在", "はい"),
    *("नमस्ते", "x1", "3.14", "don't", '"so"', "a,b", "#tag", "<b>", "back\\slash", "🙂", "e\u0301", "NA", "01", "-"),
)
CLASSES = ("no", "yes", "NA", "01")
TAGS = ("B-PER", "I-PER", "O")
Row = dict[str, Any]


def phrase(chance: Random, most: int = 8) -> str:
    """One to so many words."""
    return " ".join(chance.choices(WORDS, k=chance.randint(1, most)))


def phrases(chance: Random, count: int = LINES) -> list[str]:
    """Lines of text."""
    return [phrase(chance) for _ in range(count)]


def packed(chance: Random, path: Path, content: bytes) -> str:
    """Writes a file as it is, or as .gz or .zst; returns its name."""
    kind = chance.choice(["", "", "", ".gz", ".zst"])
    target = path.with_name(path.name + kind)
    if kind == ".gz":
        target.write_bytes(gzip.compress(content))
    elif kind == ".zst":
        import pyarrow as pa

        target.write_bytes(pa.compress(content, codec="zstd", asbytes=True))
    else:
        target.write_bytes(content)
    return target.name


def text_file(chance: Random, path: Path, lines: Sequence[str]) -> str:
    """A text a line, with the ends of lines of one system or another; the last line may have none."""
    end = chance.choice(["\n", "\n", "\r\n"])
    return packed(chance, path, (end.join(lines) + chance.choice([end, ""])).encode())


def as_tsv(chance: Random, rows: Sequence[Row]) -> bytes:
    """Fields between tabs, as they stand."""
    lines = ["\t".join(rows[0]), *("\t".join(map(str, row.values())) for row in rows)]
    return ("\n".join(lines) + "\n").encode()


def as_csv(chance: Random, rows: Sequence[Row]) -> bytes:
    """By Python's csv, with the quotes that a field needs, or all."""
    from io import StringIO

    file = StringIO()
    quoting = chance.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
    writer = csv.DictWriter(
        file, [*rows[0]], quoting=quoting, lineterminator=chance.choice(["\n", "\r\n"]), doublequote=True
    )
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue().encode()


def as_jsonl(chance: Random, rows: Sequence[Row]) -> bytes:
    """An object a line."""
    is_ascii = chance.random() < 0.5
    return "".join(json.dumps(row, ensure_ascii=is_ascii) + "\n" for row in rows).encode()


TABLES: Mapping[str, Callable[[Random, Sequence[Row]], bytes]] = {"tsv": as_tsv, "csv": as_csv, "jsonl": as_jsonl}


def table_file(chance: Random, path: Path, rows: Sequence[Row], formats: Sequence[str]) -> str:
    """A table in one of the formats; returns its name."""
    kind = chance.choice(formats)
    if kind == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        target = path.with_suffix(".parquet")
        pq.write_table(pa.Table.from_pylist(list(rows)), target)
        return target.name
    return packed(chance, path.with_suffix(f".{kind}"), TABLES[kind](chance, rows))


def split_files(chance: Random, write: Callable[[str], str]) -> list[str]:
    """Files of training, validation and test, or shares of the training file: the settings of a corpus."""
    found = [f"data.train={quoted(write('train'))}"]
    for name in ("validation", "test"):
        if chance.random() < 0.5:
            found.append(f"data.{name}={quoted(write(name))}")
        else:
            found.append(f"data.{name}=0.2")
    return found


def quoted(value: str) -> str:
    """A value as Hydra reads it; lists stay as they are."""
    return value if value.startswith("[") else f'"{value}"'


def parallel_text(chance: Random, folder: Path, task: str) -> list[str]:
    """Two files, line by line."""

    def write(split: str) -> str:
        names = [text_file(chance, folder / f"{split}.{side}", phrases(chance)) for side in ("en", "de")]
        return f"[{','.join(names)}]"

    return split_files(chance, write)


def text_lines(chance: Random, folder: Path, task: str) -> list[str]:
    """A text a line; blank lines between them."""

    def write(split: str) -> str:
        blank = [""] * chance.choice([0, 3])
        return text_file(chance, folder / f"{split}.txt", [*phrases(chance), *blank])

    return split_files(chance, write)


def plain_text(chance: Random, folder: Path, task: str) -> list[str]:
    """Running text, several files of it, a mixture, or documents in a table."""
    kind = chance.choice(["text", "files", "mixture", "table"])
    column = "body" if kind == "table" and chance.random() < 0.5 else "text"

    def write(split: str) -> str:
        if kind == "table":
            rows = [{column: text} for text in phrases(chance)]
            return table_file(chance, folder / f"{split}_documents", rows, ("tsv", "csv", "jsonl", "parquet"))
        return text_file(chance, folder / f"{split}.txt", phrases(chance))

    if kind in ("text", "table"):
        return [*split_files(chance, write), f"data.text={column}"]
    names = [write(name) for name in ("one", "two")]
    train = f"[{','.join(names)}]" if kind == "files" else f"{{{names[0]}:2,{names[1]}:1}}"
    return [f"data.train={train}", "data.validation=0.2", "data.test=0.2"]


def source_files(chance: Random, folder: Path, task: str) -> list[str]:
    """Programs in folders."""
    for number in range(chance.randint(12, 20)):
        place = folder / "sources" / chance.choice(["", "inner", "inner/deep"])
        place.mkdir(parents=True, exist_ok=True)
        lines = [f"def f{number}(x):", *(f"    return x + {k}  # {WORDS[k]}" for k in range(chance.randint(1, 6)))]
        (place / f"f{number}.py").write_text("\n".join(lines) + "\n")
    pattern = chance.choice(["['*.py']", "['**/*.py']", "['*/*.py','*.py']"])
    return [f"data.dir={folder}/sources", f"data.include={pattern}", "data.validation=0.2", "data.test=0.2",
            f"data.piece={chance.choice([20, 60, 512])}"]  # fmt: skip


def labelled_text(chance: Random, folder: Path, task: str) -> list[str]:
    """Texts, or pairs of texts, with a class or a score each."""
    has_pair = task == "similarity" or chance.random() < 0.3
    is_score = task == "similarity"
    if not has_pair and chance.random() < 0.2:
        return split_files(chance, lambda split: files_of_classes(chance, folder, split))

    def write(split: str) -> str:
        rows = []
        for number in range(LINES):
            row: Row = {"sentence": phrase(chance)}
            if has_pair:
                row["second"] = phrase(chance)
            row["answer"] = round(chance.random() * 5, 2) if is_score else CLASSES[number % len(CLASSES)]
            rows.append(row)
        return table_file(chance, folder / split, rows, ("tsv", "csv", "jsonl", "parquet"))

    columns = ["data.text=sentence", f"data.text_pair={'second' if has_pair else 'null'}"]
    columns += ["data.label=null", "data.score=answer"] if is_score else ["data.label=answer"]
    return [*split_files(chance, write), *columns]


def files_of_classes(chance: Random, folder: Path, split: str) -> str:
    """A file for each class."""
    names = {label: text_file(chance, folder / f"{split}_{label}.txt", phrases(chance, 20)) for label in ("no", "yes")}
    return f"[{','.join(names)}]" if not names else "{" + ",".join(f"{k}:{v}" for k, v in names.items()) + "}"


def tagged_text(chance: Random, folder: Path, task: str) -> list[str]:
    """CoNLL-U, or a word a line."""
    is_conllu, between = chance.random() < 0.5, chance.choice(["\t", " "])

    def write(split: str) -> str:
        lines = []
        for number in range(LINES):
            words = chance.choices([word for word in WORDS if not word.startswith("#")], k=chance.randint(1, 6))
            if is_conllu:
                lines += [f"# sent_id = {number}", f"# text = {' '.join(words)}"]
                lines += ["\t".join([str(i), word, "_", chance.choice(["NOUN", "VERB", "X"]), *"______"])
                          for i, word in enumerate(words, 1)]  # fmt: skip
            else:
                lines += [between.join([word, chance.choice(TAGS)]) for word in words]
            lines.append("")
        name = f"{split}.conllu" if is_conllu else f"{split}.txt"
        return packed(chance, folder / name, ("\n".join(lines) + "\n").encode())

    return split_files(chance, write)


def question_answering(chance: Random, folder: Path, task: str) -> list[str]:
    """SQuAD's files, or the hub's columns; some questions have no answer."""

    def write(split: str) -> str:
        rows = []
        for number in range(LINES):
            context = phrase(chance, 12)
            answer = chance.choice(context.split())
            found = [] if chance.random() < 0.1 else [{"text": answer, "answer_start": context.index(answer)}]
            rows.append((number, phrase(chance, 4), context, found))
        if chance.random() < 0.4:
            paragraphs = [
                {"context": c, "qas": [{"id": str(n), "question": q, "answers": a, "is_impossible": not a}]}
                for n, q, c, a in rows
            ]
            content = {"version": "v2.0", "data": [{"title": "t", "paragraphs": paragraphs}]}
            return packed(chance, folder / f"{split}.json", json.dumps(content).encode())
        table = [{"question": q, "context": c,
                  "answers": {"text": [x["text"] for x in a], "answer_start": [x["answer_start"] for x in a]}}
                 for _, q, c, a in rows]  # fmt: skip
        return table_file(chance, folder / split, table, ("jsonl", "parquet"))

    return split_files(chance, write)


def conversation(chance: Random) -> list[dict[str, str]]:
    """One to three turns, perhaps behind what the system says."""
    system = [{"role": "system", "content": phrase(chance, 3)}] if chance.random() < 0.3 else []
    turns = [{"role": role, "content": phrase(chance, 4)}
             for _ in range(chance.randint(1, 3)) for role in ("user", "assistant")]  # fmt: skip
    return system + turns


def conversations(chance: Random, folder: Path, task: str) -> list[str]:
    """A list of messages in each row."""

    def write(split: str) -> str:
        rows = [{"messages": conversation(chance)} for _ in range(LINES)]
        return table_file(chance, folder / split, rows, ("jsonl", "parquet"))

    return split_files(chance, write)


IMAGE_MODES = ("L", "RGB", "RGBA", "P", "1", "LA")


def image(chance: Random, height: int, width: int) -> Any:
    """A picture of pillow in one of its modes: a light bar on a dark ground, with noise."""
    from PIL import Image as Pillow

    values = np.random.default_rng(chance.getrandbits(32)).integers(0, 80, (height, width, 3)).astype(np.uint8)
    row = chance.randrange(height)
    values[row] = 255
    return Pillow.fromarray(values).convert(chance.choice(IMAGE_MODES)), row


def image_settings(chance: Random) -> tuple[int, int, list[str]]:
    """Height and width of images, and the settings of the network that reads them."""
    height, width, channels = chance.choice([4, 8]), chance.choice([4, 8]), chance.choice([1, 3])
    return height, width, [f"image_embedding.image_size=[{height},{width}]", "image_embedding.patch_size=[2,2]",
                           f"image_embedding.num_channels={channels}"]  # fmt: skip


def drawn_settings(task: str, height: int, width: int) -> list[str]:
    """What ``image_generation`` needs of the images."""
    if task != "image_generation":
        return []
    return [f"task.image_size=[{height},{width}]", "task.num_channels=1", "task.levels=2", "task.num_inference_steps=4",
            f"data.size=[{height},{width}]"]  # fmt: skip


def columns_of(task: str) -> list[str]:
    """Which columns a task reads of files with captions and classes."""
    return ["data.target=null", "data.label=class"] if task == "classification" else ["data.target=target"]


def image_files(chance: Random, folder: Path, task: str) -> list[str]:
    """Files of images beside a table."""
    height, width, settings = image_settings(chance)
    settings += drawn_settings(task, height, width)
    if chance.random() < 0.3 and task != "image_generation":
        settings.append(f"data.size=[{height},{width}]")

    def write(split: str) -> str:
        rows = []
        for number in range(LINES):
            kind = chance.choice(["png", "png", "bmp", "jpg"])
            picture, row = image(chance, height, width)
            picture = picture.convert("RGB") if kind in ("jpg", "bmp") else picture
            picture.save(folder / f"{split}{number}.{kind}")
            rows.append({"file": f"{split}{number}.{kind}", "target": f"row {row}", "class": f"r{row}"})
        return table_file(chance, folder / split, rows, ("tsv", "csv", "jsonl", "parquet"))

    return [*split_files(chance, write), *settings, *columns_of(task)]


def sound(chance: Random, rate: int) -> tuple[np.ndarray, int]:
    """A tone of one of three heights in noise, -1 to 1, and which one it is."""
    number = chance.randrange(3)
    seconds = chance.choice([0.1, 0.2, 0.3, 1.5])  # sums over a long one go beyond float16
    times = np.arange(int(rate * seconds)) / rate
    noise = np.random.default_rng(chance.getrandbits(32)).standard_normal(len(times))
    return 0.5 * np.sin(2 * np.pi * (300 + 300 * number) * times) + 0.05 * noise, number


def audio_files(chance: Random, folder: Path, task: str) -> list[str]:
    """Files of sounds beside a table: integers and floats of several widths, one or two channels."""
    import soundfile
    from scipy.io import wavfile

    rate = chance.choice([8000, 16000])
    has_speaker = chance.random() < 0.3

    def write(split: str) -> str:
        rows = []
        for number in range(LINES):
            values, tone = sound(chance, rate)
            kind = chance.choice(["int16", "int32", "uint8", "float32", "float64", "flac"])
            values = np.stack([values, values], axis=1) if chance.random() < 0.2 else values
            name = f"{split}{number}.{'flac' if kind == 'flac' else 'wav'}"
            if kind == "flac":
                soundfile.write(folder / name, values, rate)
            elif kind.startswith("float"):
                wavfile.write(folder / name, rate, values.astype(kind))
            elif kind == "uint8":
                wavfile.write(folder / name, rate, np.clip(128 + 127 * values, 0, 255).astype(kind))
            else:
                wavfile.write(folder / name, rate, (values * 0.9 * np.iinfo(kind).max).astype(kind))
            row = {"file": name, "target": f"tone {tone}", "class": f"t{tone}"}
            rows.append(row | ({"who": chance.choice("ab")} if has_speaker else {}))
        return table_file(chance, folder / split, rows, ("tsv", "csv", "jsonl", "parquet"))

    settings = [
        f"audio_embedding.rate={rate}",
        f"audio_embedding.num_mels={chance.choice([16, 80])}",
        f"data.speaker={'who' if has_speaker else 'null'}",
    ]
    return [*split_files(chance, write), *settings, *columns_of(task)]


def hub(chance: Random, folder: Path, task: str) -> list[str]:
    """A folder in the form of the hub: tables, or what save_to_disk writes."""
    columns, make = HUB_ROWS.get(task, HUB_ROWS["text_to_text"])
    rows = {split: [make(chance) for _ in range(LINES)] for split in ("train", "validation", "test")}
    nested = any(isinstance(value, list | dict) for value in rows["train"][0].values())
    kind = chance.choice(["jsonl", "parquet", "disk", *([] if nested else ["csv"])])
    return [*on_the_hub(rows, folder, kind, chance), *(f"data.{name}={column}" for name, column in columns.items())]


def on_the_hub(rows: Mapping[str, Sequence[Row]], folder: Path, kind: str, chance: Random) -> list[str]:
    """Writes splits in the form of the hub."""
    import datasets

    place = folder / "hub"
    place.mkdir()
    sets = {split: datasets.Dataset.from_list(list(found)) for split, found in rows.items()}
    if kind == "disk":
        datasets.DatasetDict(sets).save_to_disk(str(place))
    for split, found in rows.items():
        if kind in TABLES:
            (place / f"{split}.{kind}").write_bytes(TABLES[kind](chance, found))
        elif kind == "parquet":
            sets[split].to_parquet(str(place / f"{split}.parquet"))
    return [f"data.name={place}"]


Made = Callable[[Random], Row]
HUB_ROWS: Mapping[str, tuple[dict[str, str], Made]] = {
    "text_to_text": ({"target": "target"}, lambda c: {"text": phrase(c), "target": phrase(c)}),
    "classification": ({"label": "label"}, lambda c: {"text": phrase(c), "label": c.choice(CLASSES)}),
    "similarity": (
        {"text_pair": "second", "score": "score"},
        lambda c: {"text": phrase(c), "second": phrase(c), "score": round(c.random(), 3)},
    ),
    "tagging": ({"words": "words", "tags": "tags"}, lambda c: tagged(c)),
    "question_answering": ({"text_pair": "context", "answers": "answers"}, lambda c: asked(c)),
    "chat": ({"messages": "messages"}, lambda c: {"messages": conversation(c)}),
}
"""By task: the settings of the columns, and how a row is made."""


def tagged(chance: Random) -> Row:
    """Words with a tag each."""
    words = phrase(chance).split()
    return {"words": words, "tags": [chance.choice(TAGS) for _ in words]}


def asked(chance: Random) -> Row:
    """A question about a text, and its answer."""
    context = phrase(chance, 12)
    answer = chance.choice(context.split())
    return {"text": phrase(chance, 4), "context": context,
            "answers": {"text": [answer], "answer_start": [context.index(answer)]}}  # fmt: skip


def hub_images(chance: Random, folder: Path, task: str) -> list[str]:
    """Images within Parquet files."""
    import datasets

    height, width, settings = image_settings(chance)

    def rows() -> Iterator[Row]:
        for _ in range(LINES):
            picture, row = image(chance, height, width)
            yield {"image": picture.convert("RGB"), "target": f"row {row}", "class": f"r{row}"}

    place = folder / "hub"
    place.mkdir()
    for split in ("train", "validation", "test"):
        found = datasets.Dataset.from_list(list(rows())).cast_column("image", datasets.Image())
        found.to_parquet(str(place / f"{split}.parquet"))
    return [f"data.name={place}", *settings, *drawn_settings(task, height, width), *columns_of(task)]


def hub_audio(chance: Random, folder: Path, task: str) -> list[str]:
    """Sounds within Parquet files."""
    from io import BytesIO

    import datasets
    import soundfile

    rate = chance.choice([8000, 16000])

    def rows() -> Iterator[Row]:
        for _ in range(LINES):
            values, tone = sound(chance, rate)
            file = BytesIO()
            soundfile.write(file, values, rate, format=chance.choice(["WAV", "FLAC"]))
            yield {"audio": {"bytes": file.getvalue(), "path": None}, "target": f"tone {tone}", "class": f"t{tone}"}

    place = folder / "hub"
    place.mkdir()
    features = datasets.Features({"audio": datasets.Audio(), "target": datasets.Value("string"),
                                  "class": datasets.Value("string")})  # fmt: skip
    for split in ("train", "validation", "test"):
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pa.Table.from_pylist(list(rows()), schema=features.arrow_schema)
        pq.write_table(table, place / f"{split}.parquet")
    return [
        f"data.name={place}",
        f"audio_embedding.rate={rate}",
        f"audio_embedding.num_mels={chance.choice([16, 80])}",
        *columns_of(task),
    ]


WRITERS: Mapping[str, Callable[[Random, Path, str], list[str]]] = {
    "audio_files": audio_files, "conversations": conversations, "hub": hub, "hub_audio": hub_audio,
    "hub_images": hub_images, "image_files": image_files, "labelled_text": labelled_text,
    "parallel_text": parallel_text, "plain_text": plain_text, "question_answering": question_answering,
    "source_files": source_files, "tagged_text": tagged_text, "text_lines": text_lines,
}  # fmt: skip
"""By the choice of data: writes its files, and returns the settings that read them. Choices without files need none."""
