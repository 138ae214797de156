"""The scores of a language model, against the text itself and log-softmax in float64."""

import math
from dataclasses import replace
from functools import cache
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers
from torch.utils.data import DataLoader

from predicting import evaluating, make_context
from small_models import build
from triptych.data import (
    BPE,
    IGNORE_INDEX,
    Batch,
    Bytes,
    Characters,
    CorpusInfo,
    EncodedExample,
    Example,
    SpecialTokens,
    Tokenizer,
    Unigram,
    WordLevel,
    collate,
)
from triptych.data.batches.windows import Windows
from triptych.data.prefix import prefix_length
from triptych.tasks import LanguageModeling
from triptych.tasks.exact_sums import ExactMean
from triptych.training import TrainingModule

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec"),  # of torch, about Lightning
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
]

TEXT = "\tOne of the  lines \n \n= é Öl 日本 =\r\n\n and of the other, no end of the " + "of the\n" * 3
LINES = ["of the line", " é  日本\t", "", "a", "two\nin one \n", "other of the lines"]
SEEN = [TEXT, *LINES, "\x1f"]


def gpt2() -> Tokenizer:
    """As GPT-2's: one special token, the last."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=280, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(SEEN, trainer)
    backend.add_special_tokens(["<|endoftext|>"])
    end = backend.get_vocab_size() - 1
    layout = dict.fromkeys(("bos", "eos", "sep", "start", "pad"), end)
    return Tokenizer(backend, SpecialTokens(**layout, unk=None, mask=None, begin=(), end=()))


TOKENIZERS: dict[str, Tokenizer] = {
    "bytes": Bytes().train(SEEN),
    "characters": Characters().train(SEEN),
    "bpe": BPE(vocab_size=290).train(SEEN),
    "unigram": Unigram(vocab_size=320).train(SEEN),
    "token 0 is text": gpt2(),
}
ARCHITECTURES = ("decoder_only", "full")
every_tokenizer = pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS.keys())
every_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES)


def num_words(text: str) -> int:
    """As Penn Treebank and WikiText count: each end of a line is a word too."""
    return len(text.split()) + text.count("\n")


@cache
def make_task(architecture: str, tokenizer: Tokenizer, *, is_stream: bool) -> LanguageModeling:
    torch.manual_seed(0)
    network = build(architecture, vocab_size=tokenizer.vocab_size, max_length=64)
    context = make_context(network, tokenizer, 64, corpus=CorpusInfo(is_stream=is_stream), truncates=False)
    return evaluating(LanguageModeling(context, label_smoothing=0.0, max_new_tokens=5))


def windows(task: LanguageModeling, text: str, length: int) -> list[EncodedExample]:
    """As an evaluation reads a long text."""
    (ids,) = task.tokenizer.encode([text])
    split = Windows([np.array(ids)], length=length, stride=length, encode=task.encode_window)
    return [split[i] for i in range(len(split.sizes))]


def batches(items: list[EncodedExample], size: int) -> list[Batch]:
    return [collate(items[i : i + size]) for i in range(0, len(items), size)]


def nats_of(task: LanguageModeling, items: list[EncodedExample]) -> float:
    """The negative log-likelihood of all labels, each row by itself."""
    total = 0.0
    with torch.no_grad():
        for item in items:
            inputs = [torch.from_numpy(ids)[None] for ids in (item.source, item.inputs) if ids is not None]
            log_probs = task.network(*inputs)[0].double().log_softmax(-1)
            total -= sum(float(row[label]) for row, label in zip(log_probs, item.labels, strict=True))
    return total


def validate(task: LanguageModeling, items: list[EncodedExample], batch_size: int) -> dict[str, float]:
    trainer = L.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, use_distributed_sampler=False,
    )  # fmt: skip
    loader: DataLoader[Any] = DataLoader(batches(items, batch_size), batch_size=None)  # type: ignore[arg-type]
    return dict(trainer.validate(TrainingModule(task), loader, verbose=False)[0])


def sums(task: LanguageModeling, items: list[EncodedExample], batch_size: int = 64) -> dict[str, float]:
    """What the metrics add up, whatever the network says: here that every token is as likely."""
    nats = math.log(task.tokenizer.vocab_size)
    metrics = {"loss": ExactMean(), **task.make_metrics("test")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task, "forward", lambda batch, targets: torch.full((2, len(targets.labels)), nats))
        for batch in batches(items, batch_size):
            task.evaluate(batch, metrics, "test")
    return {n: float(metric.compute()) for n, metric in metrics.items() if n not in ("loss", "token_accuracy")}


class TestLines:
    @every_tokenizer
    @pytest.mark.parametrize("batch_size", [1, 4, 64])
    def test_of_the_decoder_only_model(self, tokenizer: Tokenizer, batch_size: int) -> None:
        """The end of each line is a word, and no character."""
        task = make_task("decoder_only", tokenizer, is_stream=False)
        items = task.encode([Example(line) for line in LINES])
        nats = nats_of(task, items)
        metrics = validate(task, items, batch_size)
        words = sum(num_words(line) + 1 for line in LINES)
        assert metrics["val/word_perplexity"] == pytest.approx(math.exp(nats / words), rel=1e-5)
        assert metrics["val/nats_per_character"] == pytest.approx(nats / len("".join(LINES)), rel=1e-6)

    @every_tokenizer
    @pytest.mark.parametrize("batch_size", [1, 4, 64])
    def test_of_the_full_model(self, tokenizer: Tokenizer, batch_size: int) -> None:
        """The characters of the continuations; whether these begin with a word, their decoder does not read."""
        task = make_task("full", tokenizer, is_stream=False)
        items = task.encode([Example(line) for line in LINES])
        metrics = validate(task, items, batch_size)
        characters = sum(len(line) - prefix_length(line) for line in LINES)
        assert metrics["val/nats_per_character"] == pytest.approx(nats_of(task, items) / characters, rel=1e-6)
        assert "val/word_perplexity" not in metrics

    def test_an_unknown_character_is_one(self) -> None:
        task = make_task("decoder_only", TOKENIZERS["characters"], is_stream=False)
        counts = sums(task, task.encode([Example("ŵŵ of ŵ")]))
        assert (counts["characters"], counts["words"], counts["bytes"]) == (7, 3 + 1, 4)


class TestWords:
    """Of a model whose tokens are words: perplexity a word is perplexity a token."""

    TOKENIZER = WordLevel().train(SEEN)

    @pytest.mark.parametrize("length", [3, 64])
    def test_of_a_stream(self, length: int) -> None:
        """The first word is not scored; blanks count where they stand between two words of a line."""
        task = make_task("decoder_only", self.TOKENIZER, is_stream=True)
        items = windows(task, TEXT, length)
        nats, metrics, scored = nats_of(task, items), validate(task, items, 4), num_words(TEXT) - 1
        assert metrics["val/word_perplexity"] == pytest.approx(math.exp(nats / scored), rel=1e-5)
        assert metrics["val/perplexity"] == pytest.approx(metrics["val/word_perplexity"], rel=1e-5)
        written = "\n".join(" ".join(line.split()) for line in TEXT.split("\n")).removeprefix("One")
        assert metrics["val/bits_per_byte"] == pytest.approx(nats / math.log(2) / len(written.encode()), rel=1e-6)

    @every_architecture
    def test_of_lines(self, architecture: str) -> None:
        """A line is cut between words, wherever its prefix ends."""
        task = make_task(architecture, self.TOKENIZER, is_stream=False)
        items = task.encode([Example(line) for line in LINES])
        assert not any((item.inputs == self.TOKENIZER.special.unk).any() for item in items)
        if architecture == "decoder_only":
            assert sums(task, items)["words"] == sum(num_words(line) + 1 for line in LINES)
            for item, line in zip(items, LINES, strict=True):
                assert item.prefix >= num_words(line[: prefix_length(line)])


class TestStream:
    @every_tokenizer
    @pytest.mark.parametrize("length", [1, 3, 16, 64])
    def test_of_the_decoder_only_model(self, tokenizer: Tokenizer, length: int) -> None:
        """All but the first token is scored: the tab that the text begins with, neither a word nor a part of one."""
        task = make_task("decoder_only", tokenizer, is_stream=True)
        items = windows(task, TEXT, length)
        assert tokenizer.decode(items[0].inputs[:1].tolist()) == "\t"
        nats = nats_of(task, items)
        metrics = validate(task, items, 4)
        assert metrics["val/word_perplexity"] == pytest.approx(math.exp(nats / num_words(TEXT)), rel=1e-5)
        assert metrics["val/nats_per_character"] == pytest.approx(nats / (len(TEXT) - 1), rel=1e-6)

    @settings(max_examples=100)
    @given(
        text=st.lists(st.sampled_from([*TEXT, "of the\n", " \n", "\r\n"]), min_size=1, max_size=60).map("".join),
        length=st.integers(1, 20),
        batch_size=st.integers(1, 5),
    )
    @every_tokenizer
    def test_counts_do_not_depend_on_tokenizer_window_and_batch(
        self, tokenizer: Tokenizer, text: str, length: int, batch_size: int
    ) -> None:
        text = "\x1f" + text  # a blank that is a token by itself, which is not scored
        task = make_task("decoder_only", tokenizer, is_stream=True)
        counts = sums(task, windows(task, text, length), batch_size)
        assert counts["words"] == num_words(text)
        assert counts["characters"] == len(text) - 1
        assert counts["bytes"] == len(text.encode()) - 1

    @every_tokenizer
    def test_of_the_full_model(self, tokenizer: Tokenizer) -> None:
        """Characters that begin in the second halves of the windows."""
        task = make_task("full", tokenizer, is_stream=True)
        items = windows(task, TEXT, 15)
        metrics = validate(task, items, 4)
        (ids,) = tokenizer.encode([TEXT])
        characters = 0
        for i, item in enumerate(items):
            assert item.source is not None
            start = 15 * i + len(item.source)
            end = start + len(item.labels)  # a character that was only begun is one of decode's, too
            characters += len(tokenizer.decode(ids[:end])) - len(tokenizer.decode(ids[:start]))
        assert metrics["val/nats_per_character"] == pytest.approx(nats_of(task, items) / characters, rel=1e-6)
        assert "val/word_perplexity" not in metrics


def wordpiece() -> Tokenizer:
    """As BERT's."""
    pieces = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "of", "the", "other", "line", "##s", "##r", "o", "##f", "=", "l"]
    backend = Backend(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece(cleanup=False)
    layout = SpecialTokens(bos=1, eos=2, sep=2, start=1, pad=3, unk=0, mask=None, begin=(1,), end=(2,))
    return Tokenizer(backend, layout)


READ_AS_WORDS = {"words": WordLevel().train(["of the other lines =", "l"]), "wordpiece": wordpiece()}
CONTINUED = {**TOKENIZERS, **READ_AS_WORDS}


@pytest.mark.parametrize("is_stream", [False, True], ids=["lines", "stream"])
@pytest.mark.parametrize("tokenizer", CONTINUED.values(), ids=CONTINUED.keys())
@settings(max_examples=25)
@given(texts=st.lists(st.text("of the\n=", min_size=2, max_size=40), min_size=1, max_size=4))
def test_both_architectures_are_scored_on_the_same_bytes(
    tokenizer: Tokenizer, is_stream: bool, texts: list[str]
) -> None:
    """The continuation's, the blank before it included."""
    counts = {}
    for architecture in ARCHITECTURES:
        task = make_task(architecture, tokenizer, is_stream=is_stream)
        if not is_stream:
            items = task.encode([Example(text) for text in texts])
        elif len(tokenizer.encode(["= ".join(texts)])[0]) < 2:
            return
        else:
            items = windows(task, "= ".join(texts), 5)
        counts[architecture] = sums(task, items)
    assert counts["full"]["bytes"] == counts["decoder_only"]["continuation_bytes"]
    assert counts["full"]["continuation_bytes"] == counts["full"]["bytes"]


def test_words_of_a_continuation_are_counted_with_the_blank_before_them() -> None:
    task = make_task("full", READ_AS_WORDS["words"], is_stream=False)
    lines = ["of the other lines", "the", "  the   other = lines of the  "]
    rests = [" ".join(line[task._prefix_length(line) :].split()) for line in lines]
    written = [" " + rest if rest else "" for rest in rests]
    assert sum(map(bool, rests)) == 2
    assert sums(task, task.encode([Example(line) for line in lines]))["bytes"] == len("".join(written).encode())


@pytest.mark.parametrize("text", ["a" * 5, "\t" * 5 + "x" * 3000], ids=["no word", "a word of many letters"])
def test_a_text_without_words_has_no_perplexity_a_word(text: str) -> None:
    """That it begins with a word is not scored."""
    task = make_task("decoder_only", TOKENIZERS["bytes"], is_stream=True)
    counts = sums(task, windows(task, text, 64))
    assert counts["words"] == text.startswith("\t")
    scores = task.derived_metrics({"loss": math.log(262), "token_accuracy": 0.0, **counts})
    assert "word_perplexity" not in scores
    assert math.isfinite(scores["nats_per_character"])


@every_architecture
@every_tokenizer
def test_padding_and_what_is_ignored_stand_for_nothing(architecture: str, tokenizer: Tokenizer) -> None:
    task = make_task(architecture, tokenizer, is_stream=False)
    items = task.encode([Example(line) for line in LINES])
    alone = [sums(task, [item]) for item in items]
    for name in ("nats", "bytes", "characters", "words"):
        assert sums(task, items)[name] == pytest.approx(sum(counts[name] for counts in alone), rel=1e-12)
    parts = [
        [
            replace(item, labels=np.where(np.arange(len(item.labels)) % 2 == part, item.labels, IGNORE_INDEX))
            for item in items
        ]
        for part in (0, 1)
    ]
    for name in ("nats", "bytes", "characters", "words"):
        assert sum(sums(task, part)[name] for part in parts) == pytest.approx(sums(task, items)[name], rel=1e-12)
