"""The copy of a network that decodes on CPUs, against the network. (The other tests of decoding use it, too.)"""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.testing import assert_close

from small_models import random_model, randomize
from triptych.models.generation import Sampling, generate
from triptych.models.generation.decoding_copy import FEW_ROWS, DecodingCopies, DecodingParts, copied
from triptych.nn import LongformerAttention, PerformerAttention, ReformerAttention

BLOCKS: list[dict[str, Any]] = [
    {},
    {"residual": "post_norm", "norm": "rms_norm", "position": "learned", "qkv_bias": False},
    {"residual": "sandwich_norm", "gated": True, "position": "rotary", "num_kv_heads": 2},
    {"residual": "parallel", "position": "relative_bias", "sliding_windows": [4, None]},
    {"qk_norm": "all", "position": "alibi", "k_bias": False},
    {"attends": LongformerAttention},
    {"attends": PerformerAttention},
    {"attends": ReformerAttention},
]


def written(network: Any, *, rows: int = 3, new: int = 6) -> list[Any]:
    prompt = torch.arange(4 * rows).view(rows, 4) % 11
    next_token = network.continuation(None, capacity=4 + new)
    return generate(next_token, prompt, end=-1, max_new_tokens=new, sampling=Sampling())


def copies_of(network: Any) -> dict[bool, DecodingParts]:
    return network.decoding_copies._kept


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: "-".join(block) or "default")
@pytest.mark.parametrize("rows", [1, FEW_ROWS + 1])
@torch.no_grad()
def test_computes_the_same_logits(block: dict[str, Any], rows: int) -> None:
    network, tokens = random_model("decoder_only", **block), torch.randint(11, (rows, 9))
    next_token = network.continuation(None, capacity=9)
    next_token(tokens[:, :4])
    for end in range(5, 10):
        assert_close(next_token(tokens[:, end - 1 : end]), network(tokens[:, :end])[:, -1], rtol=1e-9, atol=1e-9)
    assert [*copies_of(network)] == [rows <= FEW_ROWS]


def test_shares_all_parameters_but_has_columns_of_linear_layers() -> None:
    layer = random_model("full").decoder.layers[0]
    of_prompts = [f"self_attention.{x}" for x in "qkv"] + ["cross_attention.k", "cross_attention.v"]
    for is_few in (True, False):
        made = copied(layer, is_few)
        assert {x.data_ptr() for x in made.parameters()} == {x.data_ptr() for x in layer.parameters()}
        for name, part in layer.named_modules():
            other = made.get_submodule(name)
            if name in of_prompts:
                assert other is part
            elif type(part) is nn.Linear:
                assert torch.equal(part.weight, other.weight)
                assert other.weight.is_contiguous() == (is_few and part.out_features < part.in_features)


class TestIsDropped:
    def test_when_weights_change(self) -> None:
        network = random_model("decoder_only", tie_word_embeddings=True)
        before, (first,) = written(network), copies_of(network).values()
        assert written(network) == before
        assert [*copies_of(network).values()] == [first]
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.mul_(-1.5)  # as an optimizer does, in place
        changed = copy.deepcopy(network)
        assert written(network) == written(changed) != before
        assert [*copies_of(network).values()] != [first]
        network.load_state_dict(randomize(changed).state_dict())
        assert written(network) == written(changed)

    def test_when_training_starts(self) -> None:
        network = random_model("decoder_only")
        written(network)
        network.train()
        assert not copies_of(network)
        written(network)
        assert not copies_of(network), "dropout may be on"

    def test_from_a_copy_or_a_file(self) -> None:
        network = random_model("decoder_only")
        before = written(network)
        assert not copies_of(copy.deepcopy(network))
        loaded = pickle.loads(pickle.dumps(network))
        assert not copies_of(loaded)
        assert written(loaded) == before


class TestServes:
    def test_no_other_types_devices_or_hooks(self) -> None:
        copies, network = DecodingCopies(), random_model("decoder_only")
        assert copies.serve(network)
        assert copies.serve(network.float())
        with torch.autocast("cpu"):
            assert not copies.serve(network)
        assert not copies.serve(copy.deepcopy(network).bfloat16())
        assert not copies.serve(copy.deepcopy(network).to("meta"))
        with torch.inference_mode():
            assert not copies.serve(random_model("decoder_only"))
        network.decoder.layers[0].register_forward_hook(lambda *_: None)
        assert not copies.serve(network)

    def test_weights_that_are_computed(self) -> None:
        """As of adapters."""

        class Doubled(nn.Module):
            def forward(self, weight: Tensor) -> Tensor:
                return 2 * weight

        network, other = random_model("decoder_only"), random_model("decoder_only")
        other.load_state_dict(network.state_dict())
        with torch.no_grad():
            for name in ("up", "down"):
                getattr(other.decoder.layers[0].feed_forward, name).weight.mul_(2)
                parametrize.register_parametrization(
                    getattr(network.decoder.layers[0].feed_forward, name), "weight", Doubled()
                )
        assert written(network) == written(other)
        assert copies_of(network)

    @torch.no_grad()
    def test_layers_of_ones_own(self) -> None:
        """As adapters replace linear layers by them."""

        class Shifted(nn.Linear):
            def forward(self, input: Tensor) -> Tensor:
                return super().forward(input) + 1.0

        network, tokens = random_model("decoder_only"), torch.randint(11, (3, 5))
        for attention in (layer.self_attention for layer in network.decoder.layers):
            attention.v.__class__ = Shifted
        next_token = network.continuation(None, capacity=5)
        next_token(tokens[:, :4])
        assert_close(next_token(tokens[:, 4:]), network(tokens)[:, -1], rtol=1e-9, atol=1e-9)
        assert copies_of(network)

    @torch.no_grad()
    def test_parts_that_read_weights(self) -> None:
        class Own(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.up, self.scales = nn.Linear(16, 16), nn.ParameterList([nn.Parameter(torch.rand(16))])
                self.parts = nn.ModuleDict({"first": nn.Linear(16, 16)})

            def forward(self, x: Tensor) -> Tensor:
                y: Tensor = self.parts["first"](x @ self.up.weight.T) * self.scales[0]
                return y

        own = Own()
        for is_few in (True, False):
            for rows in (1, 3):
                x = torch.randn(rows, 1, 16)
                assert_close(copied(own, is_few)(x), own(x))
