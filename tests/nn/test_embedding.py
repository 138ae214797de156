"""Token embedding with positions."""

import pytest
import torch
from torch.testing import assert_close

from triptych.nn import Embedding, sinusoids

TOKENS = torch.tensor([[1, 2, 3], [4, 1, 1]])


@pytest.mark.parametrize("scale_by_width", [False, True])
@pytest.mark.parametrize("position", ["none", "rotary", "relative", "sinusoidal", "learned"])
def test_is_the_scaled_token_plus_the_position(position: str, scale_by_width: bool) -> None:
    embedding = Embedding(vocab_size=5, d_model=16, max_length=9, position=position, scale_by_width=scale_by_width)
    absolute = {"sinusoidal": sinusoids(9, 16), "learned": embedding.positions}.get(position, torch.zeros(9, 16))
    scale = 4.0 if scale_by_width else 1.0
    given_places = torch.tensor([[3, 0, 8], [1, 1, 2]])
    for options, places in (
        ({}, torch.arange(3).expand(2, 3)),
        ({"start": 4}, torch.arange(4, 7).expand(2, 3)),
        ({"positions": given_places}, given_places),
    ):
        found = embedding(TOKENS, **options)
        for row in range(2):
            for i in range(3):
                token = embedding.tokens.weight[TOKENS[row, i]]
                assert_close(found[row, i], scale * token + absolute[places[row, i]])


@pytest.mark.parametrize("position", ["sinusoidal", "learned"])
def test_beyond_the_table_raises(position: str) -> None:
    embedding = Embedding(vocab_size=5, d_model=16, max_length=4, position=position)
    embedding(TOKENS, start=1)
    with pytest.raises(ValueError, match=r"5 positions, but shape\.max_length=4"):
        embedding(TOKENS, start=2)


def test_only_a_learned_table_is_trained_or_saved() -> None:
    for position in ("none", "rotary", "relative", "sinusoidal", "learned"):
        embedding = Embedding(vocab_size=5, d_model=16, max_length=4, position=position)
        learned = ["positions"] if position == "learned" else []
        assert sorted(embedding.state_dict()) == [*learned, "tokens.weight"]


def test_dropout_acts_in_training_only() -> None:
    embedding = Embedding(vocab_size=5, d_model=16, max_length=4, dropout=0.5)
    assert (embedding(TOKENS) == 0).any()
    assert not (embedding.eval()(TOKENS) == 0).any()
