"""Published data sets: where their files are, what these must be, and how the experiments want them."""

import gzip
import hashlib
import re
import shlex
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.request import Request, urlopen

from rich.progress import BarColumn, DownloadColumn, TransferSpeedColumn

from triptych.config import ConfigError, RunError
from triptych.storage.atomic import reason_of, replacing
from triptych.storage.progress import show_progress

FOLDER = "data"
"""Where the experiments look for the sets, each in a folder of its name."""
PATIENCE = 30.0
"""Seconds to wait for a server's next bytes."""
PART = 2**18
"""Bytes of a file that are read at once."""


@dataclass(frozen=True, slots=True)
class File:
    """A published file.

    Attributes:
        address: of the file.
        size: in bytes.
        digest: ``sha256 HEX``, or ``git HEX``: the name that git gives its content, SHA-1 of a header and the content.
    """

    address: str
    size: int
    digest: str

    @property
    def name(self) -> str:
        """The last part of the address."""
        return self.address.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class DataSet:
    """A data set.

    Attributes:
        about: what it is.
        licence: what its publishers say.
        experiment: one that reads it.
        files: that are downloaded.
        prepared: the files that the experiments read, and how many lines each has; .gz: it is packed.
        prepare: from the folder of the downloads to the content of each of these; None: file i as it is, unpacked, is
            the content of prepared file i.
    """

    about: str
    licence: str
    experiment: str
    files: Sequence[File]
    prepared: Mapping[str, int]
    prepare: Callable[[Path], Iterator[bytes]] | None = None

    def is_in(self, folder: Path) -> bool:
        """Whether all that the experiments read is in a folder."""
        return all((folder / name).is_file() for name in self.prepared)


def get(data_set: DataSet, folder: Path) -> None:
    """Downloads a data set into ``folder/downloads`` and prepares it in ``folder``; what is there already stays.

    Each file is there as a whole or not at all. What is downloaded is read, never run, and no name in an archive
    becomes a name on the disk.

    Raises:
        RunError: a file that cannot be downloaded, has another digest, or cannot be written.
    """
    if data_set.is_in(folder):
        return
    downloads = folder / "downloads"
    try:
        downloads.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{downloads} cannot be made ({reason_of(error)})") from None
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
    """What there is, and what of it is in the folder."""
    for name, data_set in SETS.items():
        size = sum(file.size for file in data_set.files) / 1e6
        print(f"{name}, {size:.1f} MB{', is there' if data_set.is_in(folder / name) else ''}: {data_set.about}")
        print(f"  licence: {data_set.licence}")
        for place in dict.fromkeys(file.address.rpartition("/")[0] for file in data_set.files):
            print(f"  from {place}")
    place = "" if folder == Path(FOLDER) else f" --output {shlex.quote(str(folder))}"
    print(f"triptych get NAME{place} downloads into {folder}/NAME")


def advice(dir: str) -> str:
    """How to get the files that a folder lacks, if experiments look there for one of the sets; else nothing."""
    parts = Path(dir).parts
    if len(parts) > 1 and parts[0] == FOLDER and parts[1] in SETS:
        return f"; `triptych get {parts[1]}` downloads what belongs there"
    return ""


def _download(files: Sequence[File], folder: Path) -> None:
    columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with show_progress(*columns, transient=False) as progress:
        for i, file in enumerate(files):
            path = folder / file.name
            bar = progress.add_task(file.name, total=file.size)
            try:
                if path.is_file():
                    _check(file, path, f"{path}; delete it, and it is downloaded anew")
                    continue
                with replacing(path) as temporary:
                    with open(temporary, "wb") as out:
                        for part in _received(file):
                            out.write(part)
                            progress.advance(bar, len(part))
                    _check(file, temporary, f"{file.address}; nothing of it is kept")
            except _Unreachable as error:
                rest = [file for file in files[i:] if not (folder / file.name).is_file()]
                lines = [f"{file.address} cannot be downloaded ({error})"]
                lines += ["download what is missing elsewhere, put it in place, and run the same command again:"]
                lines += [f"  {file.address} -> {folder / file.name}" for file in rest]
                raise RunError("\n".join(lines)) from None


class _Unreachable(Exception):
    """No answer, or a refusal, in the words of the server or of the system."""


def _received(file: File) -> Iterator[bytes]:
    """The bytes of a file, no more than one part beyond its size."""
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
        digest = hashlib.new("sha1" if kind == "git" else kind, b"blob %d\0" % size if kind == "git" else b"")
        while part := content.read(PART):
            digest.update(part)
    if digest.hexdigest() != expected:
        found = f"{size:,} bytes with {kind} {digest.hexdigest()}"
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
    """GLUE's phrases and sentences; of the sentences with five classes those that test, without the neutral ones."""
    with zipfile.ZipFile(downloads / "SST-2.zip") as archive:
        for split in ("train", "dev"):
            _, *lines = archive.read(f"SST-2/{split}.tsv").decode().removesuffix("\n").split("\n")
            rows = [line.split("\t") for line in lines]
            yield _table(("label", "text"), ((label.strip(), text.strip()) for text, label in rows))
    lines = (downloads / "sst_test.txt").read_text(encoding="utf-8").removesuffix("\n").split("\n")
    classes = {"__label__1": "0", "__label__2": "0", "__label__4": "1", "__label__5": "1"}
    rows = [line.split("\t") for line in lines]
    yield _table(("label", "text"), ((classes[name], text) for name, text in rows if name in classes))


def _files(folder: str, *rows: tuple[str, int, str]) -> list[File]:
    """Files of one folder: the name of each, its size, and its SHA-256."""
    return [File(f"{folder}/{name}", size, f"sha256 {digest}") for name, size, digest in rows]


_MULTI30K = "https://raw.githubusercontent.com/multi30k/dataset/a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1"
_UD = "https://raw.githubusercontent.com/UniversalDependencies/UD_English-EWT/15d613d8447b3478787d4c278730a1e48a945efb"
_WIKITEXT2 = (
    "https://raw.githubusercontent.com/pytorch/examples/77f55b912142e11fcfdf5b530231fb9c52f181e8/word_language_model/"
    "data/wikitext-2"
)
_SHAKESPEARE = (
    "https://raw.githubusercontent.com/karpathy/char-rnn/6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e/data/tinyshakespeare"
)
_SST5 = (
    "https://raw.githubusercontent.com/prrao87/fine-grained-sentiment/a4401669eecbe9dda494faf36afe1e6a0b065a38/data/sst"
)

SETS = {
    "imdb": DataSet(
        about="50,000 film reviews, negative or positive (Maas et al. 2011)",
        licence="none stated; its authors ask to cite Maas et al., ACL 2011",
        experiment="imdb/encoder_only",
        files=[
            File(
                "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
                84_125_825,
                "sha256 c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
            )
        ],
        prepared={"train.tsv.gz": 25_001, "test.tsv.gz": 25_001},
        prepare=_imdb,
    ),
    "multi30k": DataSet(
        about="31,014 English captions of photographs and their German translations (Elliott et al. 2016)",
        licence="for research and teaching, not for commerce (of Flickr30k)",
        experiment="multi30k/full",
        files=_files(
            _MULTI30K,
            ("raw/train.en.gz", 568_929, "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f"),
            ("raw/train.de.gz", 637_044, "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6"),
            ("raw/val.en.gz", 21_650, "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28"),
            ("raw/val.de.gz", 24_681, "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a"),
            ("raw/test_2016_flickr.en.gz", 21_077, "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9"),
            ("raw/test_2016_flickr.de.gz", 22_890, "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8"),
            ("tok/train.lc.norm.tok.en", 1_837_696, "08925f8e0572bcd5a006702fc5fe20e2d77c6917d4eebd576fc20de6693c2119"),
            ("tok/train.lc.norm.tok.de", 2_150_008, "cb5a23529b65ec2061f1dc446192a9c37382b63cc75f81a0be59d34894b3a505"),
            ("tok/val.lc.norm.tok.en", 64_608, "46573ce391ae227f1c72f873392436a20ef18e0a6d518098cfbd70b77c8572ec"),
            ("tok/val.lc.norm.tok.de", 77_273, "97232bd273eceb7207f689527386a97e4be2616b18ada47576bdaf96c8ae1f00"),
            (
                "tok/test_2016_flickr.lc.norm.tok.en",
                63_307,
                "5b7f32627cf99eced828311b955dae9800bb52bc8b91cf8b6526829e605b29d2",
            ),
            (
                "tok/test_2016_flickr.lc.norm.tok.de",
                71_917,
                "c6a33d39d48f9f510de147651316cd9d918e09ad0219df734a2f16b6baccacc4",
            ),
        ),
        prepared={
            f"{kind}/{split}{ending}.{language}.gz": num_lines
            for kind, ending in (("raw", ""), ("tok", ".lc.norm.tok"))
            for split, num_lines in (("train", 29_000), ("val", 1_014), ("test_2016_flickr", 1_000))
            for language in ("en", "de")
        },
    ),
    "shakespeare": DataSet(
        about="tiny Shakespeare, 1.1 million characters of his plays (Karpathy 2015)",
        licence="public domain; the repository MIT",
        experiment="shakespeare/decoder_only",
        files=[
            File(
                f"{_SHAKESPEARE}/input.txt",
                1_115_394,
                "sha256 86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
            )
        ],
        prepared={"input.txt": 40_000},
    ),
    "sst2": DataSet(
        about="sentences of film reviews and their phrases, negative or positive (Socher et al. 2013)",
        licence="none stated; its authors ask to cite Socher et al., EMNLP 2013",
        experiment="sst2/encoder_only",
        files=[
            File(
                "https://dl.fbaipublicfiles.com/glue/data/SST-2.zip",
                7_439_277,
                "sha256 d67e16fb55739c1b32cdce9877596db1c127dc322d93c082281f64057c16deaa",
            ),
            File(
                f"{_SST5}/sst_test.txt",
                252_816,
                "sha256 ae78588874d7653eb416992014ccc9ead5d3540e3f83158186202c9a5bf9461b",
            ),
        ],
        prepared={"sst2-glue/train.tsv.gz": 67_350, "sst2-glue/dev.tsv": 873, "sst2/test.tsv": 1_822},
        prepare=_sst2,
    ),
    "ud_english_ewt": DataSet(
        about="16,622 sentences of the web with parts of speech (Silveira et al. 2014)",
        licence="CC BY-SA 4.0 (the annotations)",
        experiment="ud_english_ewt/encoder_only",
        files=_files(
            _UD,
            ("en_ewt-ud-train.conllu", 14_203_025, "3fb78e2b55482c8ee00caa653af436c88c9e5bc9a73ce26e4ae3ddc79d2b7e7b"),
            ("en_ewt-ud-dev.conllu", 1_805_545, "531a54ff90d6ab12201c5a50c3e78e6ddac4de69abc4bce5d275d3cd29efe2b6"),
            ("en_ewt-ud-test.conllu", 1_804_515, "e266e515a0a7547657ed3d90d9ba46487d6bd251f27ad4269d4e8a427c8555cd"),
        ),
        prepared={
            f"en_ewt-ud-{split}.conllu.gz": num_lines
            for split, num_lines in (("train", 247_862), ("dev", 32_581), ("test", 32_851))
        },
    ),
    "wikitext2": DataSet(
        about="WikiText-2, two million words of Wikipedia (Merity et al. 2017)",
        licence="CC BY-SA 3.0 and GFDL",
        experiment="wikitext2/decoder_only",
        files=[
            File(f"{_WIKITEXT2}/{split}.txt", size, digest)
            for split, size, digest in (
                ("train", 10_797_148, "git 2d84b35af79e411d73ea7cae83c73964c6ac83b4"),
                ("valid", 1_121_681, "sha256 f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8"),
                ("test", 1_256_449, "sha256 d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0"),
            )
        ],
        prepared={"train.txt.gz": 36_718, "valid.txt.gz": 3_760, "test.txt.gz": 4_358},
    ),
}
"""The sets that the experiments read, by their names. Addresses are pinned to a commit where they are of GitHub."""


def check_folder(folder: str) -> None:
    """The folder of the data.

    Raises:
        ConfigError: there is no such folder.
    """
    if not Path(folder).is_dir():
        from triptych.storage.downloads import advice  # which needs rich

        raise ConfigError(f"data.dir={folder}: no such folder ({Path(folder).resolve()}){advice(folder)}")
