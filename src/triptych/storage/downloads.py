"""Downloads published datasets, verifies their files and prepares them for the experiments."""

import gzip
import hashlib
import re
import shlex
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from importlib import resources
from pathlib import Path
from urllib.request import Request, urlopen

import yaml  # type: ignore[import-untyped]
from rich.progress import BarColumn, DownloadColumn, TransferSpeedColumn

from triptych.config import ConfigError, RunError
from triptych.storage.atomic import reason_of, replacing
from triptych.storage.progress import show_progress

FOLDER = "data"
"""The folder where experiments expect the datasets, each in a subfolder of its name."""
PATIENCE = 30.0
"""Timeout for a server in seconds."""
PART = 2**18
"""Bytes per read."""


@dataclass(frozen=True, slots=True)
class File:
    """A published file.

    Attributes:
        address: URL.
        size: size in bytes.
        digest: ``sha256 HEX``, or ``git HEX``: git's blob ID, the SHA-1 of a header and the content.
    """

    address: str
    size: int
    digest: str

    @property
    def name(self) -> str:
        """The last part of the URL."""
        return self.address.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class DataSet:
    """A published dataset.

    Attributes:
        about: description.
        licence: licence according to the publisher.
        experiment: an experiment that uses it.
        files: files to download.
        prepared: number of lines of each prepared file; .gz files are compressed.
        prepare: makes the contents of the prepared files from the download folder; None: they are the downloaded
            files, decompressed.
    """

    about: str
    licence: str
    experiment: str
    files: Sequence[File]
    prepared: Mapping[str, int]
    prepare: Callable[[Path], Iterator[bytes]] | None = None

    def is_in(self, folder: Path) -> bool:
        """Whether all prepared files are in a folder."""
        return all((folder / name).is_file() for name in self.prepared)


def download(data_set: DataSet, folder: Path) -> None:
    """Downloads a dataset to ``folder/downloads`` and prepares it in ``folder``; existing files are kept.

    Files are written atomically. Downloaded code is never run, and names in archives are not used as paths."""
    if data_set.is_in(folder):
        return
    downloads = folder / "downloads"
    try:
        downloads.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{downloads} cannot be created ({reason_of(error)})") from None
    _download(data_set.files, downloads)
    contents = _unpacked(downloads, data_set.files) if data_set.prepare is None else data_set.prepare(downloads)
    for (name, num_lines), content in zip(data_set.prepared.items(), contents, strict=True):
        found = content.count(b"\n")
        if found != num_lines:
            raise RunError(f"{folder / name} would have {found:,} lines; expected {num_lines:,}")
        (folder / name).parent.mkdir(exist_ok=True)
        with replacing(folder / name) as temporary:
            temporary.write_bytes(gzip.compress(content, mtime=0) if name.endswith(".gz") else content)


def print_sets(folder: Path) -> None:
    """Prints the datasets, and which of them are in the folder."""
    for name, data_set in SETS.items():
        size = sum(file.size for file in data_set.files) / 1e6
        print(f"{name}, {size:.1f} MB{', downloaded' if data_set.is_in(folder / name) else ''}: {data_set.about}")
        print(f"  licence: {data_set.licence}")
        for place in dict.fromkeys(file.address.rpartition("/")[0] for file in data_set.files):
            print(f"  from {place}")
    place = "" if folder == Path(FOLDER) else f" --output {shlex.quote(str(folder))}"
    print(f"triptych download NAME{place} downloads a dataset to {folder}/NAME")


def advice(dir: str) -> str:
    """The command that downloads the dataset of a folder, as the end of an error message; empty: none."""
    parts = Path(dir).parts
    if len(parts) > 1 and parts[0] == FOLDER and parts[1] in SETS:
        return f". To download it, run `triptych download {parts[1]}`"
    return ""


def _download(files: Sequence[File], folder: Path) -> None:
    columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with show_progress(*columns, transient=False) as progress:
        for i, file in enumerate(files):
            path = folder / file.name
            bar = progress.add_task(file.name, total=file.size)
            try:
                if path.is_file():
                    _check(file, path, f"{path}; delete it to download it again")
                    continue
                with replacing(path) as temporary:
                    with open(temporary, "wb") as out:
                        for part in _received(file):
                            out.write(part)
                            progress.advance(bar, len(part))
                    _check(file, temporary, f"{file.address}; the download was discarded")
            except _Unreachable as error:
                rest = [file for file in files[i:] if not (folder / file.name).is_file()]
                lines = [f"{file.address} cannot be downloaded ({error})"]
                lines += ["download these files on another computer, copy them, and run the same command again:"]
                lines += [f"  {file.address} -> {folder / file.name}" for file in rest]
                raise RunError("\n".join(lines)) from None


class _Unreachable(Exception):
    """A failed request, with the message of the server or the system."""


def _received(file: File) -> Iterator[bytes]:
    """The bytes of a file, at most one part more than its size."""
    try:
        with urlopen(Request(file.address, headers={"User-Agent": "triptych"}), timeout=PATIENCE) as answer:
            size = 0
            while size <= file.size and (part := answer.read(PART)):
                size += len(part)
                yield part
    except (OSError, HTTPException) as error:
        raise _Unreachable(str(getattr(error, "reason", "")) or reason_of(error)) from None


def _check(file: File, path: Path, which: str) -> None:
    kind, expected = file.digest.split()
    size = path.stat().st_size
    with open(path, "rb") as content:
        new, begin = ("sha1", b"blob %d\0" % size) if kind == "git" else (kind, b"")
        digest = hashlib.file_digest(content, lambda: hashlib.new(new, begin)).hexdigest()
    if digest != expected:
        found = f"{size:,} bytes with {kind} {digest}"
        raise RunError(f"{found}, expected {file.size:,} bytes with {kind} {expected}: {which}")


def _unpacked(folder: Path, files: Iterable[File]) -> Iterator[bytes]:
    for file in files:
        content = (folder / file.name).read_bytes()
        yield gzip.decompress(content) if file.name.endswith(".gz") else content


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> bytes:
    """TSV without quotes."""
    return "".join("\t".join(row) + "\n" for row in (columns, *rows)).encode()


def _imdb(downloads: Path) -> Iterator[bytes]:
    """The reviews by their numbers, negative before positive; tabs and ends of lines become blanks."""
    reviews: dict[str, list[tuple[int, str, str]]] = {"train": [], "test": []}
    with tarfile.open(downloads / "aclImdb_v1.tar.gz", "r|gz") as archive:
        for member in archive:
            found = re.fullmatch(r"aclImdb/(train|test)/((?:neg|pos)/(\d+)_\d+)\.txt", member.name)
            if found is None or not member.isreg():
                continue
            content = archive.extractfile(member)
            assert content is not None, "a regular file has content"
            text = re.sub(r"[\t\r\n]", " ", content.read().decode().rstrip("\r\n"))
            reviews[found[1]].append((int(found[3]), found[2], text))
    for rows in reviews.values():
        yield _table(("label", "id", "text"), ((str(int(id[:3] == "pos")), id, text) for _, id, text in sorted(rows)))


def _sst2(downloads: Path) -> Iterator[bytes]:
    """GLUE's phrases and sentences, and the test sentences of SST-5 without the neutral ones."""
    with zipfile.ZipFile(downloads / "SST-2.zip") as archive:
        for split in ("train", "dev"):
            _, *lines = archive.read(f"SST-2/{split}.tsv").decode().removesuffix("\n").split("\n")
            rows = [line.split("\t") for line in lines]
            yield _table(("label", "text"), ((label.strip(), text.strip()) for text, label in rows))
    lines = (downloads / "sst_test.txt").read_text(encoding="utf-8").removesuffix("\n").split("\n")
    classes = {"__label__1": "0", "__label__2": "0", "__label__4": "1", "__label__5": "1"}
    rows = [line.split("\t") for line in lines]
    yield _table(("label", "text"), ((classes[name], text) for name, text in rows if name in classes))


def _read_sets() -> dict[str, DataSet]:
    text = (resources.files("triptych.storage") / "published.yaml").read_text(encoding="utf-8")
    sets = yaml.load(text, Loader=yaml.CSafeLoader)
    for name, content in sets.items():
        content["files"] = [
            File(f"{folder}/{file}", size, digest)
            for folder, files in content["files"].items()
            for file, size, digest in files
        ]
        content["prepare"] = {"imdb": _imdb, "sst2": _sst2}.get(name)
    return {name: DataSet(**content) for name, content in sets.items()}


SETS = _read_sets()
"""The datasets of the experiments, by name."""


def check_folder(folder: str) -> None:
    """Checks that the data folder exists."""
    if not Path(folder).is_dir():
        raise ConfigError(f"data.dir={folder}: no such folder ({Path(folder).resolve()}){advice(folder)}")
