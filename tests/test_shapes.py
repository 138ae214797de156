"""The shapes in the annotations are checked while testing."""

import pytest
import torch
from jaxtyping import TypeCheckError

from triptych.nn import AttentionMask, Head, attend


@pytest.mark.parametrize(
    ("q", "k", "v"),
    [
        ((5, 8), (1, 2, 5, 8), (1, 2, 5, 8)),  # rank
        ((1, 2, 5, 8), (1, 2, 6, 8), (1, 2, 5, 8)),  # as many keys as values
        ((3, 2, 5, 8), (1, 2, 5, 8), (1, 2, 5, 8)),  # one batch size
    ],
)
def test_a_wrong_shape_raises(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...]) -> None:
    with pytest.raises(TypeCheckError):
        attend(torch.zeros(q), torch.zeros(k), torch.zeros(v), AttentionMask())


def test_a_wrong_dtype_raises() -> None:
    with pytest.raises(TypeCheckError):
        AttentionMask(mask=torch.zeros(1, 1, 2, 2))


def test_a_misspelled_option_raises() -> None:
    with pytest.raises(TypeCheckError):
        Head(d_model=4, num_outputs=2, pooling="max")
