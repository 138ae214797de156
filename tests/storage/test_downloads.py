"""Published data sets, from a server on this machine that stands for the places where they are."""

import gzip
import hashlib
import io
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from omegaconf import DictConfig

from cases import by_day
from triptych.cli import main
from triptych.config import ConfigError, RunError, build
from triptych.data import LabelledText, PlainText
from triptych.storage import downloads as published
from triptych.storage.downloads import SETS, DataSet, File, download

CONF = sorted((Path(__file__).parents[2] / "conf/data").glob("*.yaml"))
THEIRS = [file.stem for file in CONF if file.stem.startswith(tuple(SETS))]
REVIEWS = {
    "train": {"pos/0_9": "Good.\x85Very\tgood.<br />", "neg/10_1": "Bad.\n", "neg/0_3": "A pig.", "pos/10_8": "Fine."},
    "test": {"neg/3_4": "Dull.", "pos/2_7": "Ünder the sky."},
}


class Server:
    """Files by their paths.

    Attributes:
        asked: paths of the requests so far.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.asked, asked = folder, list[str](), list[str]()
        self.asked = asked

        class Handler(SimpleHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append(self.path)
                if self.path.startswith("/elsewhere"):
                    self.send_response(302)
                    self.send_header("Location", f"file://{folder}/secret")
                    self.end_headers()
                elif self.path.startswith("/cut"):
                    self.send_response(200)
                    self.send_header("Content-Length", "1000")
                    self.end_headers()
                    self.wfile.write(b"half of ")
                else:
                    with suppress(ConnectionError):  # of who has read enough
                        super().do_GET()

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        self.address = f"http://127.0.0.1:{self._server.server_port}"

    def publish(self, path: str, content: bytes) -> File:
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_bytes(content)
        return File(f"{self.address}/{path}", len(content), f"sha256 {hashlib.sha256(content).hexdigest()}")

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "server").mkdir()
    server = Server(tmp_path / "server")
    yield server
    server.close()


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def data_set(prepared: dict[str, int], *files: File, of: str | None = None) -> DataSet:
    return DataSet("a text", "none", "none", files, prepared, None if of is None else SETS[of].prepare)


def tar(add: Callable[[tarfile.TarFile], None]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        add(archive)
    return content.getvalue()


def add_file(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def add_reviews(archive: tarfile.TarFile) -> None:
    for split, reviews in REVIEWS.items():
        for id, text in reviews.items():
            add_file(archive, f"aclImdb/{split}/{id}.txt", text.encode())


def test_what_was_downloaded_is_prepared_once(server: Server, tmp_path: Path) -> None:
    english, german = b"a dog\na cat\n", b"ein Hund\neine Katze\n"
    files = [server.publish("raw/x.en.gz", gzip.compress(english)), server.publish("tok/x.de", german)]
    for _ in range(2):
        download(data_set({"raw/x.en.gz": 2, "tok/x.de.gz": 2}, *files), tmp_path / "set")
    assert server.asked == ["/raw/x.en.gz", "/tok/x.de"]
    assert gzip.decompress((tmp_path / "set/raw/x.en.gz").read_bytes()) == english
    assert gzip.decompress((tmp_path / "set/tok/x.de.gz").read_bytes()) == german
    assert files_in(tmp_path / "set") == {"raw/x.en.gz", "tok/x.de.gz", "downloads/x.en.gz", "downloads/x.de"}


def test_another_content_is_rejected(server: Server, tmp_path: Path) -> None:
    file = server.publish("x.txt", b"the text\n")
    (server.folder / "x.txt").write_bytes(b"another \n")
    with pytest.raises(RunError) as refusal:
        download(data_set({"x.txt": 1}, file), tmp_path / "set")
    for digest in (file.digest, f"sha256 {hashlib.sha256(b'another ' + bytes([10])).hexdigest()}", file.address):
        assert digest in str(refusal.value)
    assert files_in(tmp_path / "set") == set()
    (tmp_path / "set/downloads/x.txt").write_bytes(b"a third one\n")  # by hand
    with pytest.raises(RunError, match=rf"12 bytes .* expected 9 bytes .*{tmp_path}/set/downloads/x.txt; delete it"):
        download(data_set({"x.txt": 1}, file), tmp_path / "set")
    assert files_in(tmp_path / "set") == {"downloads/x.txt"}


def test_no_more_is_read_than_what_was_published(server: Server, tmp_path: Path) -> None:
    file = server.publish("x.txt", b"the text\n")
    (server.folder / "x.txt").write_bytes(bytes(50_000_000))
    with pytest.raises(RunError, match="expected 9 bytes") as refusal:
        download(data_set({"x.txt": 1}, file), tmp_path / "set")
    assert int(str(refusal.value).split()[0].replace(",", "")) <= 2 * published.PART


@pytest.mark.parametrize("path", ["cut/x.txt", "elsewhere/x.txt", "none/x.txt"])
def test_half_an_answer_and_none(server: Server, tmp_path: Path, path: str) -> None:
    (server.folder / "secret").write_text("a secret")
    file = replace(server.publish("x.txt", b"half of the text\n"), address=f"{server.address}/{path}")
    with pytest.raises(RunError, match=path):
        download(data_set({"x.txt": 1}, file), tmp_path / "set")
    assert files_in(tmp_path / "set") == set()


def test_without_a_network_it_says_what_to_put_where(server: Server, tmp_path: Path) -> None:
    contents = {"a.txt": b"a\n", "b.txt": b"b\n"}
    first, second = (server.publish(name, content) for name, content in contents.items())
    whole = data_set({"one.txt": 1, "two.txt.gz": 1}, first, second)
    server.close()
    with pytest.raises(RunError, match=r"cannot be downloaded .*refused") as refusal:
        download(whole, tmp_path / "set")
    for line, file in zip(str(refusal.value).splitlines()[2:], (first, second), strict=True):
        address, place = line.strip().split(" -> ")
        assert address == file.address
        Path(place).write_bytes(contents[file.name])
    download(whole, tmp_path / "set")
    assert (tmp_path / "set/one.txt").read_bytes() == b"a\n"
    assert gzip.decompress((tmp_path / "set/two.txt.gz").read_bytes()) == b"b\n"


def test_a_set_with_other_lines_is_not_there(server: Server, tmp_path: Path) -> None:
    file = server.publish("x.txt", b"1\n2\n")
    with pytest.raises(RunError, match=r"x.txt would have 2 lines; expected 3"):
        download(data_set({"x.txt": 3}, file), tmp_path / "set")
    assert files_in(tmp_path / "set") == {"downloads/x.txt"}


def test_a_folder_that_cannot_be_written(server: Server, tmp_path: Path) -> None:
    (tmp_path / "set").write_text("a file")
    with pytest.raises(RunError, match=r"set/downloads cannot be created \(Not a directory\)"):
        download(data_set({"x.txt": 1}, server.publish("x.txt", b"1\n")), tmp_path / "set")


def test_the_name_that_git_gives(server: Server, tmp_path: Path) -> None:
    file = server.publish("x.txt", b"a text\n" * 100_000)
    command = ["git", "hash-object", "--no-filters", str(server.folder / "x.txt")]
    name = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    download(data_set({"x.txt": 100_000}, replace(file, digest=f"git {name}")), tmp_path / "set")
    with pytest.raises(RunError, match=f"git {name}, expected 700,000 bytes with git {name[::-1]}"):
        download(data_set({"x.txt": 100_000}, replace(file, digest=f"git {name[::-1]}")), tmp_path / "other")


def test_imdb(server: Server, tmp_path: Path) -> None:
    """The archive's own names go nowhere: one is of a file outside, one is absolute, one a link to a secret."""
    (tmp_path / "secret").write_text("a secret")

    def fill(archive: tarfile.TarFile) -> None:
        add_reviews(archive)
        for name in ("../../escaped.txt", str(tmp_path / "escaped.txt"), "aclImdb/train/pos/../../../../1_1.txt"):
            add_file(archive, name, b"escaped")
        add_file(archive, "aclImdb/train/unsup/5_0.txt", b"without a label")
        for kind, id in ((tarfile.SYMTYPE, "50_9"), (tarfile.LNKTYPE, "51_9"), (tarfile.FIFOTYPE, "52_9")):
            member = tarfile.TarInfo(f"aclImdb/train/pos/{id}.txt")
            member.type, member.linkname = kind, str(tmp_path / "secret")
            archive.addfile(member)

    folder = tmp_path / "set"
    prepared = {"train.tsv.gz": 5, "test.tsv.gz": 3}
    download(data_set(prepared, server.publish("aclImdb_v1.tar.gz", tar(fill)), of="imdb"), folder)
    assert files_in(tmp_path) - files_in(server.folder) == {
        "secret", "server/aclImdb_v1.tar.gz", "set/downloads/aclImdb_v1.tar.gz", "set/train.tsv.gz", "set/test.tsv.gz"
    }  # fmt: skip
    corpus = LabelledText(
        dir=str(folder), train="train.tsv.gz", validation=0.25, test="test.tsv.gz", text="text", text_pair=None,
        label="label", score=None, columns=None, split_seed=1,
    )  # fmt: skip
    splits = corpus.splits()
    assert [(e.label, e.text) for e in splits.test] == [("1", "Ünder the sky."), ("0", "Dull.")]
    rows = gzip.decompress((folder / "train.tsv.gz").read_bytes()).decode().split("\n")
    assert rows[1:] == [
        "0\tneg/0_3\tA pig.", "1\tpos/0_9\tGood.\x85Very good.<br />", "0\tneg/10_1\tBad.", "1\tpos/10_8\tFine.", ""
    ]  # fmt: skip


def test_sst2(server: Server, tmp_path: Path) -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("SST-2/train.tsv", "sentence\tlabel\na charming journey \t1\nbleak \t0\n\"`` it 's '' \t1\n")
        archive.writestr("SST-2/dev.tsv", "sentence\tlabel\ndull . \t0\n")
        archive.writestr("../../escaped.tsv", "escaped")
    sentences = (
        "__label__3\tNeutral\n__label__5\tVery good .\n__label__1\tVery bad .\n__label__4\tGood\n__label__2\tBad\n"
    )
    files = [server.publish("SST-2.zip", content.getvalue()), server.publish("sst_test.txt", sentences.encode())]
    prepared = dict(zip(SETS["sst2"].prepared, (4, 2, 5), strict=True))
    download(data_set(prepared, *files, of="sst2"), tmp_path / "set")
    rows = {}
    for name in prepared:
        read = (tmp_path / "set" / name).read_bytes()
        rows[name] = (gzip.decompress(read) if name.endswith(".gz") else read).decode()
    assert rows == {
        "sst2-glue/train.tsv.gz": "label\ttext\n1\ta charming journey\n0\tbleak\n1\t\"`` it 's ''\n",
        "sst2-glue/dev.tsv": "label\ttext\n0\tdull .\n",
        "sst2/test.tsv": "label\ttext\n1\tVery good .\n0\tVery bad .\n1\tGood\n0\tBad\n",
    }
    assert not list(tmp_path.rglob("escaped*"))


@pytest.mark.parametrize("name", sorted(SETS))
def test_what_is_published(name: str) -> None:
    for file in SETS[name].files:
        kind, digest = file.digest.split()
        assert file.address.startswith("https://")
        assert len(bytes.fromhex(digest)) == {"git": 20, "sha256": 32}[kind]
    assert len({file.name for file in SETS[name].files}) == len(SETS[name].files)


@pytest.mark.parametrize("data", by_day(THEIRS, THEIRS[:1]))
def test_experiments_look_where_it_is_prepared(
    data: str, chosen: Callable[..., DictConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = chosen(f"data={data}")
    name = max((name for name in SETS if data.startswith(name)), key=len)
    says = rf"data.dir=data/{name}.*: no such folder .*\. To download it, run `triptych download {name}`"
    with pytest.raises(ConfigError, match=says):
        build(config, "data")
    for file in SETS[name].prepared:
        path = tmp_path / "data" / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    build(config, "data")


def test_the_command(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["triptych", "download", *arguments])
        status = main()
        return (status, *capsys.readouterr())

    monkeypatch.chdir(tmp_path)
    status, out, _ = call()
    assert status == 0
    for name, one in SETS.items():
        assert f"{name}, " in out
        assert one.licence in out
        assert all(file.address.rpartition("/")[0] in out for file in one.files)
    assert call("idmb")[::2] == (1, "error: triptych download idmb: no such dataset; did you mean imdb?\n")

    text = "".join(f"line {i} of a play\n" for i in range(400)).encode()
    fake_gpu = replace(SETS["shakespeare"], files=[server.publish("input.txt", text)], prepared={"input.txt": 400})
    monkeypatch.setitem(SETS, "shakespeare", fake_gpu)
    status, out, error = call("shakespeare")
    assert (status, error) == (0, "")
    assert "public domain" in out
    assert "triptych train experiment=shakespeare/decoder_only" in out
    corpus = PlainText(dir="data/shakespeare", train="input.txt", validation=0.01, test=0.1)
    assert text.decode().endswith("".join(example.text for example in corpus.splits().test))
    assert "shakespeare, 0.0 MB, downloaded: " in call()[1]

    (server.folder / "input.txt").write_bytes(b"another play\n")
    status, _, error = call("shakespeare", "--output", "other")
    assert status == 1
    assert error.startswith("error: 13 bytes with sha256 ")
    assert "Traceback" not in error
