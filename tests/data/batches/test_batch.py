"""Rows of unequal length side by side."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from triptych.data import IGNORE_INDEX, EncodedExample, EncodedListDataset, Example, collate, pad
from triptych.data.batches.batch import empty_batch
from triptych.data.tokenizers.tokenizer import PAD

rows = st.lists(st.lists(st.integers(6, 99), max_size=7), min_size=1, max_size=5)


def encoded(tokens: list[int], labels: list[int], source: list[int] | None = None, **options: Any) -> EncodedExample:
    return EncodedExample(np.array(tokens), np.array(labels), None if source is None else np.array(source), **options)


PAIRS = [
    encoded([1, 7, 8], [IGNORE_INDEX, 8, 2], [1, 9, 2], example=Example("a")),
    encoded([1, 7], [7, 2], [1, 9, 9, 9, 2], prefix=1),
]


@pytest.mark.parametrize("left", [False, True])
@given(rows=rows, value=st.sampled_from([PAD, IGNORE_INDEX]))
def test_pad(rows: list[list[int]], value: int, left: bool) -> None:
    matrix, mask = pad(rows, value, left=left)
    longest = max(map(len, rows))
    for row, padded, real in zip(rows, matrix.tolist(), mask.tolist(), strict=True):
        fill, no = [value] * (longest - len(row)), [False] * (longest - len(row))
        assert padded == (fill + row if left else row + fill)
        assert real == (no + [True] * len(row) if left else [True] * len(row) + no)
    assert (matrix.dtype, mask.dtype) == (torch.int64, torch.bool)


def test_collate() -> None:
    batch = collate(PAIRS)
    assert batch.inputs.tolist() == [[1, 7, 8], [1, 7, PAD]]
    assert batch.mask.tolist() == [[True, True, True], [True, True, False]]
    assert batch.labels.tolist() == [[IGNORE_INDEX, 8, 2], [7, 2, IGNORE_INDEX]]
    assert batch.scored.tolist() == [1, 2, 3, 4]
    assert batch.source is not None
    assert batch.source_mask is not None
    assert batch.source.tolist() == [[1, 9, 2, PAD, PAD], [1, 9, 9, 9, 2]]
    assert batch.source_mask.tolist() == [[True, True, True, False, False], [True] * 5]
    assert batch.prefix.tolist() == [0, 1]
    assert batch.examples == [Example("a"), None]


def test_a_batch_counts() -> None:
    batch = collate(PAIRS)
    assert batch.num_nonpadding == 3 + 3 + 2 + 5
    assert batch.num_with_padding == 2 * 3 + 2 * 5
    assert batch.num_labels_in_step == 2 + 2
    assert collate(PAIRS, num_labels_in_step=17).num_labels_in_step == 17


def test_without_a_source() -> None:
    """And with one label for the whole text."""
    batch = collate([encoded([1, 7, 8, 2], [3]), encoded([1, 2], [0])])
    assert batch.source is batch.source_mask is None
    assert batch.labels.tolist() == [[3], [0]]
    assert (batch.num_nonpadding, batch.num_with_padding, batch.num_labels_in_step) == (6, 8, 2)


def test_packed() -> None:
    batch = collate(PAIRS, packed=True)
    assert batch.inputs.tolist() == [[1, 7, 8, 1, 7]]
    assert batch.labels.tolist() == [[IGNORE_INDEX, 8, 2, 7, 2]]
    assert batch.source is not None
    assert batch.source.tolist() == [[1, 9, 2, 1, 9, 9, 9, 2]]
    assert (batch.lengths, batch.source_lengths) == ([3, 2], [3, 5])
    assert batch.num_nonpadding == batch.num_with_padding == 13
    of_texts = collate([encoded([1, 7, 8, 2], [3]), encoded([1, 2], [0])], packed=True)
    assert of_texts.inputs.tolist() == [[1, 7, 8, 2, 1, 2]]
    assert of_texts.labels.tolist() == [[3], [0]]
    assert (of_texts.lengths, of_texts.source_lengths) == ([4, 2], None)


def test_images_are_not_packed() -> None:
    images = [EncodedExample(np.zeros((1, 2, 2), dtype=np.float32), np.array([n])) for n in range(3)]
    batch = collate(images, packed=True)
    assert batch.lengths is None
    assert (batch.inputs.shape, batch.num_with_padding) == ((3, 1, 2, 2), 3)


def test_a_batch_of_nothing_is_read_and_not_scored() -> None:
    batch = empty_batch(PAIRS[0], 17)
    assert (batch.inputs.tolist(), batch.labels.tolist()) == ([[1, 7, 8]], [[IGNORE_INDEX] * 3])
    assert (batch.examples, batch.num_nonpadding, batch.num_labels_in_step) == ([], 0, 17)


def test_an_encoded_list_knows_its_sizes() -> None:
    items = EncodedListDataset(PAIRS)
    assert items.sizes.tolist() == [6, 7]
    assert items.num_scored.tolist() == [2, 2]
    assert items[1] is PAIRS[1]


@pytest.mark.parametrize("with_source", [True, False])
def test_to_moves_every_tensor(with_source: bool) -> None:
    batch = collate(PAIRS if with_source else [encoded([1, 2], [3])])
    moved = batch.to(torch.device("meta"))
    assert moved.source is not None if with_source else moved.source is None
    for name in ("inputs", "mask", "labels", "prefix", *(("source", "source_mask") if with_source else ())):
        before, after = getattr(batch, name), getattr(moved, name)
        assert after.is_meta
        assert (after.shape, after.dtype) == (before.shape, before.dtype)
    for name in ("num_labels_in_step", "examples", "num_nonpadding", "num_with_padding"):
        assert getattr(moved, name) == getattr(batch, name)
