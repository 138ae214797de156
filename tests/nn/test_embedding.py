"""Token embedding."""

import pytest
import torch
from torch.testing import assert_close

from triptych.nn import Embedding

TOKENS = torch.tensor([[1, 2, 3], [4, 1, 1]])
TYPES = torch.tensor([[0, 1, 1], [1, 0, 0]])


@pytest.mark.parametrize("scale_embedding", [False, True])
@pytest.mark.parametrize("types", [None, TYPES], ids=["no types", "types"])
def test_is_the_scaled_token_plus_its_type(scale_embedding: bool, types: torch.Tensor | None) -> None:
    embedding = Embedding(vocab_size=5, d_model=16, scale_embedding=scale_embedding, num_token_types=2)
    found = embedding(TOKENS, types)
    for row in range(2):
        for i in range(3):
            token = embedding.tokens.weight[TOKENS[row, i]]
            kind = embedding.token_types.weight[0 if types is None else types[row, i]]
            assert_close(found[row, i], (4.0 if scale_embedding else 1.0) * token + kind)


def test_without_types_a_vector_is_the_tokens_alone() -> None:
    embedding = Embedding(vocab_size=5, d_model=16)
    assert sorted(embedding.state_dict()) == ["tokens.weight"]
    assert_close(embedding(TOKENS), 4 * embedding.tokens.weight[TOKENS])
