"""Ablated heads against weights set to zero, entropies against scipy."""

from typing import Any

import pytest
import torch
from scipy.stats import entropy
from torch.testing import assert_close

from small_models import random_model
from triptych.inspection import ablate_heads, attention_entropy
from triptych.nn import Recurrence


@pytest.mark.parametrize("options", [{}, {"num_kv_heads": 2, "head_dim": 8}], ids=["all", "grouped"])
def test_an_ablated_head_is_one_whose_rows_of_the_output_matrix_are_zero(options: dict[str, Any]) -> None:
    network, tokens = random_model("full", **options), torch.randint(11, (2, 6))
    name = "decoder.layers.1.cross_attention"
    before = network(tokens, tokens)
    with ablate_heads(network, {name: [1, 3], "encoder.layers.0.self_attention": [0]}), torch.no_grad():
        ablated = network(tokens, tokens)
        written = network.continuation(tokens, None, capacity=6)(tokens)
    assert torch.equal(network(tokens, tokens), before)
    with torch.no_grad():
        for path, heads in ((name, [1, 3]), ("encoder.layers.0.self_attention", [0])):
            attention = network.get_submodule(path)
            for head in heads:
                attention.o.weight[:, head * attention.head_dim : (head + 1) * attention.head_dim] = 0.0
        assert_close(ablated, network(tokens, tokens))
        assert_close(written, ablated[:, -1])
    assert not torch.allclose(ablated, before)


def test_entropy() -> None:
    weights = torch.rand(2, 3, 4, 5, dtype=torch.float64)
    weights[..., 2] = 0.0
    weights /= weights.sum(-1, keepdim=True)
    assert_close(attention_entropy(weights), torch.tensor(entropy(weights.numpy(), axis=-1)))


def test_errors() -> None:
    recurrent = random_model("decoder_only", attends=Recurrence)
    with pytest.raises(ValueError, match=r"decoder.layers.0.self_attention is a recurrence, which has no heads"):
        ablate_heads(recurrent, {"decoder.layers.0.self_attention": [0]}).__enter__()
    network = random_model("decoder_only")
    with pytest.raises(ValueError, match=r"decoder.layers.2.self_attention is no attention .*decoder.layers.0.self_at"):
        ablate_heads(network, {"decoder.layers.2.self_attention": [0]}).__enter__()
    with pytest.raises(ValueError, match=r"decoder.layers.0.self_attention has the heads 0 to 3, not 4"):
        ablate_heads(network, {"decoder.layers.0.self_attention": [1, 4]}).__enter__()
