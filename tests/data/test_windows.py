"""A long text in windows: every token is scored once, and both architectures score the same ones."""

from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triptych.data import IGNORE, Encoded, Windows
from triptych.data.tokenizers import SpecialTokens
from triptych.tasks import LanguageModeling

START = 3


def encode_window(architecture: str, window: Any) -> Encoded:
    """The layout of a window depends on nothing of the task but its architecture and what begins a text."""
    task = SimpleNamespace(architecture=architecture, tokenizer=SimpleNamespace(special=SpecialTokens(start=START)))
    return LanguageModeling.encode_window(cast(LanguageModeling, task), window)


def windows_of(
    num_tokens: int, *, length: int, stride: int, architecture: str = "decoder_only", scores_once: bool = False
) -> Windows:
    """Of the tokens 100, 101, ...: each token names its place."""
    return Windows(
        100 + np.arange(num_tokens),
        length=length,
        stride=stride,
        encode=lambda window: encode_window(architecture, window),
        scores_once=scores_once,
    )


def items(windows: Windows) -> list[Encoded]:
    return [windows[i] for i in range(len(windows.sizes))]


def scored(item: Encoded) -> list[int]:
    """The scored labels after the prefix."""
    return [int(label) for label in item.labels[item.prefix :] if label != IGNORE]


texts = {"num_tokens": st.integers(2, 60), "length": st.integers(1, 20)}


@given(**texts)
def test_each_token_but_the_first_is_scored_once(num_tokens: int, length: int) -> None:
    windows = items(windows_of(num_tokens, length=length, stride=length))
    counts = Counter(int(label) for window in windows for label in window.labels)
    assert counts == Counter(range(101, 100 + num_tokens))
    assert [len(window.tokens) for window in windows[:-1]] == [length] * (len(windows) - 1)
    for window in windows:
        assert (window.labels == window.tokens + 1).all()  # each label is the next token


@given(**texts)
def test_stride_one_has_all_windows(num_tokens: int, length: int) -> None:
    windows = items(windows_of(num_tokens, length=length, stride=1))
    assert [window.tokens[0] for window in windows] == [100 + i for i in range(max(num_tokens - length, 1))]
    assert {len(window.tokens) for window in windows} == {min(length, num_tokens - 1)}
    assert windows[-1].labels[-1] == 100 + num_tokens - 1


@given(**texts, stride=st.integers(1, 20))
def test_overlapping_windows_score_each_token_once(num_tokens: int, length: int, stride: int) -> None:
    """With at least length - stride tokens of context, but for the beginning of the text."""
    stride = min(stride, length)
    windows = items(windows_of(num_tokens, length=length, stride=stride, scores_once=True))
    places = [(i, int(label)) for i, window in enumerate(windows) for label in window.labels if label != IGNORE]
    assert sorted(label for _, label in places) == list(range(101, 100 + num_tokens))
    for i, label in places:
        assert windows[i].tokens[0] <= label - 1 - min(length - stride, label - 101)


@given(num_tokens=st.integers(2, 60), half=st.integers(1, 10), stride=st.integers(1, 10))
def test_overlapping_continuations_are_the_same_tokens(num_tokens: int, half: int, stride: int) -> None:
    options = {"length": 2 * half - 1, "stride": min(stride, half), "scores_once": True}
    full, decoder = (
        [label for item in items(windows_of(num_tokens, architecture=name, **options)) for label in scored(item)]
        for name in ("full", "decoder_only")
    )
    assert full == decoder
    assert len(set(full)) == len(full)


@pytest.mark.parametrize("scores_once", [False, True])
@pytest.mark.parametrize("architecture", ["full", "decoder_only"])
@given(**texts, stride=st.integers(1, 20))
def test_sizes_are_those_of_the_windows(
    architecture: str, scores_once: bool, num_tokens: int, length: int, stride: int
) -> None:
    options = {"length": length, "stride": min(stride, length), "scores_once": scores_once}
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
    assert full.tokens.tolist() == [START, *ids[num_tokens // 2 : -1]]
    assert decoder.tokens.tolist() == ids[:-1].tolist()


@pytest.mark.parametrize("num_tokens", [0, 1])
def test_refuses_a_text_without_a_next_token(num_tokens: int) -> None:
    with pytest.raises(ValueError, match=f"a split of {num_tokens} tokens"):
        windows_of(num_tokens, length=4, stride=4)
