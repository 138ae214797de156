"""A long text in windows: every token is scored once, and both architectures score the same ones."""

from collections import Counter
from functools import cache
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from small_models import random_model
from triptych.data import IGNORE_INDEX, EncodedExample, Example, Windows
from triptych.data.batches.windows import split_into_windows as windows_of_line
from triptych.data.tokenizers.tokenizer import SpecialTokens
from triptych.tasks import LanguageModeling

START = 3


def encode_window(architecture: str, window: Any) -> EncodedExample:
    """The layout of a window depends on nothing of the task but its architecture and what begins a text."""
    special, is_filled_in = SpecialTokens(start=START), architecture == "encoder_only"
    tokenizer = SimpleNamespace(special=special)
    task = SimpleNamespace(architecture=architecture, tokenizer=tokenizer, is_filled_in=is_filled_in)
    return LanguageModeling.encode_window(cast(LanguageModeling, task), window)


def windows_of(num_tokens: int, *, length: int, stride: int, architecture: str = "decoder_only") -> Windows:
    """Of the tokens 100, 101, ...: each token names its place."""
    return Windows(
        [100 + np.arange(num_tokens)],
        length=length,
        stride=stride,
        encode=lambda window: encode_window(architecture, window),
    )


def items(windows: Windows) -> list[EncodedExample]:
    return [windows[i] for i in range(len(windows.sizes))]


def scored(item: EncodedExample) -> list[int]:
    """The scored labels after the prefix."""
    return [int(label) for label in item.labels[item.prefix :] if label != IGNORE_INDEX]


texts = {"num_tokens": st.integers(2, 60), "length": st.integers(1, 20)}


@given(**texts)
def test_each_token_but_the_first_is_scored_once(num_tokens: int, length: int) -> None:
    windows = items(windows_of(num_tokens, length=length, stride=length))
    counts = Counter(int(label) for window in windows for label in window.labels)
    assert counts == Counter(range(101, 100 + num_tokens))
    assert [len(window.inputs) for window in windows[:-1]] == [length] * (len(windows) - 1)
    for window in windows:
        assert (window.labels == window.inputs + 1).all()  # each label is the next token


@given(**texts, stride=st.integers(1, 20))
def test_overlapping_windows_score_each_token_once(num_tokens: int, length: int, stride: int) -> None:
    """With at least length - stride tokens of context, but for the beginning of the text."""
    stride = min(stride, length)
    windows = items(windows_of(num_tokens, length=length, stride=stride))
    places = [(i, int(label)) for i, window in enumerate(windows) for label in window.labels if label != IGNORE_INDEX]
    assert sorted(label for _, label in places) == list(range(101, 100 + num_tokens))
    for i, label in places:
        assert windows[i].inputs[0] <= label - 1 - min(length - stride, label - 101)


@given(num_tokens=st.integers(2, 60), half=st.integers(1, 10), stride=st.integers(1, 10))
def test_overlapping_continuations_are_the_same_tokens(num_tokens: int, half: int, stride: int) -> None:
    options = {"length": 2 * half - 1, "stride": min(stride, half)}
    full, decoder = (
        [label for item in items(windows_of(num_tokens, architecture=name, **options)) for label in scored(item)]
        for name in ("full", "decoder_only")
    )
    assert full == decoder
    assert len(set(full)) == len(full)


@pytest.mark.parametrize("architecture", ["full", "decoder_only", "encoder_only"])
@given(**texts, stride=st.integers(1, 20))
def test_sizes_are_those_of_the_windows(architecture: str, num_tokens: int, length: int, stride: int) -> None:
    options = {"length": length, "stride": min(stride, length)}
    windows = windows_of(num_tokens, architecture=architecture, **options)
    assert windows.sizes.tolist() == [window.size for window in items(windows)]
    assert windows.num_scored.tolist() == [window.num_scored for window in items(windows)]


@pytest.mark.parametrize("architecture", ["full", "decoder_only"])
def test_a_text_shorter_than_the_window(architecture: str) -> None:
    (window,) = items(windows_of(5, length=100, stride=100, architecture=architecture))
    assert window.size == (4 if architecture == "decoder_only" else 5)
    assert scored(window) == [102, 103, 104]


@given(num_tokens=st.integers(2, 20))
def test_both_architectures_score_the_same_continuation(num_tokens: int) -> None:
    ids = 100 + np.arange(num_tokens)
    full, decoder = encode_window("full", ids), encode_window("decoder_only", ids)
    assert scored(full) == scored(decoder) == ids[num_tokens // 2 :].tolist()
    assert full.source is not None
    assert full.source.tolist() == ids[: num_tokens // 2].tolist()
    assert full.inputs.tolist() == [START, *ids[num_tokens // 2 : -1]]
    assert decoder.inputs.tolist() == ids[:-1].tolist()


@pytest.mark.parametrize("num_tokens", [0, 1])
def test_rejects_a_text_without_a_next_token(num_tokens: int) -> None:
    with pytest.raises(ValueError, match=f"a split of {num_tokens} tokens"):
        windows_of(num_tokens, length=4, stride=4)


@given(
    sizes=st.lists(st.lists(st.integers(1, 25), min_size=1, max_size=4), min_size=1, max_size=3),
    length=st.integers(1, 12),
    stride=st.integers(1, 12),
)
def test_documents_are_scored_whole_and_never_together(sizes: list[list[int]], length: int, stride: int) -> None:
    """The log-likelihood is that of each token by itself, in float64: after the tokens of its own document that its
    window has, which are at least length - stride."""
    stride, eos = min(stride, length), 2
    model, generator = decoder(), np.random.default_rng(len(sizes))
    texts, ends, expected, num_labels = [], [], 0.0, 0
    for documents in sizes:
        ids = [eos]
        for size in documents:
            document = [ids[-1], *generator.integers(3, 11, size - 1), eos]
            ids += document[1:]
            for i in range(1, size + 1):
                start = max(-(-(i - length) // stride), 0) * stride
                expected -= float(log_probs(model, document[start:i])[-1, document[i]])
                num_labels += 1
        texts.append(np.array(ids, dtype=np.uint16))
        ends.append(np.flatnonzero(texts[-1] == eos))
    windows = Windows(
        texts, length=length, stride=stride, encode=lambda window: encode_window("decoder_only", window), ends=ends
    )
    found = 0.0
    for item in items(windows):
        assert eos not in item.inputs[1:]
        rows = log_probs(model, item.inputs.tolist())
        found -= sum(float(rows[i, label]) for i, label in enumerate(item.labels) if label != IGNORE_INDEX)
    assert windows.num_scored.sum() == num_labels
    assert found == pytest.approx(expected, rel=1e-9)
    assert windows.sizes.tolist() == [item.size for item in items(windows)]
    assert windows.num_scored.tolist() == [item.num_scored for item in items(windows)]


@given(size=st.integers(1, 40), prefix=st.integers(0, 40), length=st.integers(1, 12), stride=st.integers(1, 12))
def test_a_line_is_scored_whole(size: int, prefix: int, length: int, stride: int) -> None:
    """Its continuation, too: what comes after the prefix."""
    line = EncodedExample(100 + np.arange(size), 101 + np.arange(size), prefix=min(prefix, size), example=Example("it"))
    windows = windows_of_line(line, length, min(stride, length))
    assert [label for window in windows for label in window.labels if label != IGNORE_INDEX] == line.labels.tolist()
    assert [label for window in windows for label in scored(window)] == line.labels[line.prefix :].tolist()
    assert all(len(window.inputs) <= length and window.example is line.example for window in windows)
    assert all((w.labels == w.inputs + 1)[w.labels != IGNORE_INDEX].all() for w in windows)


@cache
def decoder() -> Any:
    torch.manual_seed(0)
    return random_model("decoder_only")


def log_probs(model: Any, tokens: list[int]) -> Any:
    with torch.no_grad():
        return model(torch.tensor([tokens]))[0].log_softmax(-1)
