"""Tokenizers that are learned once."""

import logging
import multiprocessing
import os
import pickle
import resource
from collections.abc import Callable
from hashlib import sha256
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest
from omegaconf import DictConfig

from triptych.assembly.read_data import train_tokenizer
from triptych.data import BPE, Example, Splits, Tokenizer, TrainedTokenizer, Unigram, WordLevel, WordPiece
from triptych.data.tokenizers import tokenizer_cache as kept

TEXTS, TARGETS = ["the cat sat on the mat\n", "<unk> été 日本"] * 3, ["die Katze"] * 3
KINDS: dict[str, TrainedTokenizer] = {
    "words": WordLevel(num_sentinels=2),
    "bpe": BPE(vocab_size=280),
    "wordpiece": WordPiece(vocab_size=90),
    "two sides": Unigram(vocab_size=290, joint=False),
}
forks = multiprocessing.get_context("fork")


def learned(kind: TrainedTokenizer, texts: list[str], targets: list[str]) -> Tokenizer:
    return kept.train_or_load(kind, texts, targets, sha256(repr((texts, targets)).encode()).hexdigest())


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Path:
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path / "cache"))
    caplog.set_level(logging.INFO, "triptych")
    return tmp_path / "cache"


def entry(cache: Path) -> Path:
    (path,) = cache.glob("tokenizers/*.json")
    return path


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What each line is about, since the last time."""
    known = ("tokenizer trained", "tokenizer loaded", "is damaged", "is not cached")
    lines = [next(words for words in known if words in record.getMessage()) for record in caplog.records]
    caplog.clear()
    return lines


def same(one: Tokenizer, other: Tokenizer) -> bool:
    return (one.sha256, one.special) == (other.sha256, other.special)


@pytest.mark.parametrize("kind", KINDS)
def test_the_second_time_it_is_taken(kind: str, cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    expected = KINDS[kind].train(TEXTS, TARGETS)
    assert same(learned(KINDS[kind], TEXTS, TARGETS), expected)
    assert same(learned(KINDS[kind], TEXTS, TARGETS), expected)
    assert said(caplog) == ["tokenizer trained", "tokenizer loaded"]


@pytest.mark.parametrize(
    ("kind", "texts", "targets"),
    [
        (WordLevel(min_frequency=2), TEXTS, TARGETS),
        (WordLevel(lowercase=True), TEXTS, TARGETS),
        (WordPiece(vocab_size=90), TEXTS, TARGETS),
        (WordLevel(), [*TEXTS, "x"], TARGETS),
        (WordLevel(), [*TEXTS, TARGETS[0]], TARGETS[1:]),
        (WordLevel(), [TEXTS[0] + TEXTS[1][0], TEXTS[1][1:], *TEXTS[2:]], TARGETS),
    ],
    ids=["settings", "case", "kind", "texts", "sides", "borders"],
)
def test_another_is_learned(
    kind: TrainedTokenizer, texts: list[str], targets: list[str], cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    learned(WordLevel(), TEXTS, TARGETS)
    learned(kind, texts, targets)
    assert said(caplog) == ["tokenizer trained", "tokenizer trained"]


def _learn(barrier: Barrier, results: "Queue[tuple[str, list[str]]]") -> None:
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("triptych").addHandler(handler)
    logging.getLogger("triptych").setLevel(logging.INFO)
    barrier.wait()
    tokenizer = learned(WordLevel(), [f"word{i} word{i * i}" for i in range(20_000)], [])
    results.put((tokenizer.sha256, records))


@pytest.mark.filterwarnings("ignore:.*fork")
def test_four_processes_learn_it_once(cache: Path) -> None:
    barrier, results = forks.Barrier(4), forks.Queue()
    processes = [forks.Process(target=_learn, args=(barrier, results)) for _ in range(4)]
    for process in processes:
        process.start()
    answers = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    assert len({sha256 for sha256, _ in answers}) == 1
    messages = [message for _, records in answers for message in records]
    assert sum("tokenizer trained" in message for message in messages) == 1
    assert sum("tokenizer loaded" in message for message in messages) == 3
    assert not list(cache.glob("tokenizers/.*.tmp"))


class Trap:
    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, ("trapped",)


def flipped(content: bytes) -> bytes:
    place = len(content) // 2
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def with_another_token(content: bytes) -> bytes:
    return content.replace(b"cat", b"dog")


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "half": lambda content: content[: len(content) // 2],
    "a bit": flipped,
    "another token": with_another_token,
    "not UTF-8": lambda content: b"\xff" + content,
    "a list": lambda content: b"[1, 2]",
    "a pickle": lambda content: pickle.dumps(Trap()),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_trained_again(
    damage: str, cache: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    expected = learned(WordLevel(), TEXTS, TARGETS)
    whole = entry(cache).read_bytes()
    entry(cache).write_bytes(DAMAGES[damage](whole))
    caplog.clear()
    assert same(learned(WordLevel(), TEXTS, TARGETS), expected)
    assert said(caplog) == ["is damaged", "tokenizer trained"]
    assert entry(cache).read_bytes() == whole
    assert not (tmp_path / "trapped").exists()


def test_the_entry_of_another_is_damage(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    learned(WordLevel(), TEXTS, TARGETS)
    one = entry(cache)
    whole = one.read_bytes()
    one.unlink()
    learned(WordLevel(), TEXTS, [])
    entry(cache).write_bytes(whole)
    caplog.clear()
    assert same(learned(WordLevel(), TEXTS, []), WordLevel().train(TEXTS))
    assert said(caplog) == ["is damaged", "tokenizer trained"]


def test_a_folder_that_cannot_be(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache.write_text("a file")
    assert same(learned(WordLevel(), TEXTS, TARGETS), WordLevel().train(TEXTS, TARGETS))
    assert "TRIPTYCH_CACHE=FOLDER" in caplog.text
    assert said(caplog) == ["is not cached"]


def _learn_on_a_full_disk(barrier: Barrier, results: "Queue[tuple[str, list[str]]]") -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
    _learn(barrier, results)


@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_full_disk(cache: Path) -> None:
    barrier, results = forks.Barrier(1), forks.Queue()
    process = forks.Process(target=_learn_on_a_full_disk, args=(barrier, results))
    process.start()
    _, records = results.get(timeout=60)
    process.join()
    (record,) = records
    assert "the tokenizer is not cached" in record
    assert "bytes are free" in record
    assert not [path for path in cache.glob("tokenizers/*") if path.suffix != ".lock"]


def test_by_default_it_is_in_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRIPTYCH_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    learned(WordLevel(), TEXTS, TARGETS)
    assert entry(tmp_path / ".cache" / "triptych").is_file()


def test_it_is_learned_from_the_training_split_alone(chosen: Callable[..., DictConfig], cache: Path) -> None:
    config = chosen("tokenizer=words", "tokenizer.joint=false")
    splits = Splits(
        train=[Example("read", target="gelesen", text_pair="paired")],
        validation=[Example("validated", target="geprüft", text_pair="other")],
        test=[Example("tested", target="getestet", text_pair="another")],
    )
    for _ in range(2):
        tokenizer = train_tokenizer(config, splits)
        tokens = tokenizer.encode(["read paired validated other tested another gelesen"])[0]
        assert tokenizer.decode(tokens) == "read paired"
        assert tokenizer.decode(tokenizer.encode(["gelesen geprüft read"], as_target=True)[0]) == "gelesen"
