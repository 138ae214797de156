"""Recorded states against passes written out, gradients against finite differences."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import triptych
from parts import dual_encoder
from small_models import build, random_model
from triptych.inspection import record
from triptych.models import DecoderOnly
from triptych.nn import Embedding, Head, NoFeedForward, NoNorm, NoResidual, Position, Stack

ARCHITECTURES = ["encoder_only", "decoder_only", "full", "prefix_lm"]


def run(network: Any, tokens: Tensor) -> Tensor:
    if network.architecture == "full":
        return network(tokens.flip(1), tokens)
    if network.architecture == "prefix_lm":
        return network(tokens, prefix=torch.full((len(tokens),), 3))
    return network(tokens)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("residual", ["pre_norm", "post_norm", "parallel"])
def test_the_stream_is_the_sum_of_what_the_sublayers_add(architecture: str, residual: str) -> None:
    network, tokens = random_model(architecture, residual=residual), torch.randint(11, (3, 7))
    with record(network) as recording:
        logits = run(network, tokens)
    name = network.stack_names[-1]
    stack, stream = network.get_submodule(name), recording.stream(name)
    assert stream.shape == (3, 3, 7, 16)
    assert not stream.requires_grad
    assert_close(stream[0], stack.position.add(network.embedding(tokens), 0, None).detach())
    assert_close(network.head(recording[f"{name}.final_norm"]), logits)
    if residual == "post_norm":
        return
    for layer, (before, after) in enumerate(itertools.pairwise(stream)):
        parts = (f"{name}.layers.{layer}.{part}" for part in ("self_attention", "cross_attention", "feed_forward"))
        assert_close(after - before, sum(recording[part] for part in parts if part in recording))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_gradients_are_those_of_finite_differences(architecture: str) -> None:
    network, tokens = random_model(architecture), torch.randint(11, (2, 5))
    place = torch.randint(5, ())
    with record(network, gradients=True) as recording:
        run(network, tokens)[0, place].square().sum().backward()
    # the embedding of a full model embeds both texts
    parts = ["embedding"] * (architecture != "full")
    for name in (f"{network.stack_names[-1]}.layers.0", *parts):
        step = torch.randn_like(recording[name])
        moved = []
        for h in (1e-5, -1e-5):
            with network.get_submodule(name).register_forward_hook(lambda part, given, y, h=h * step: y + h):
                moved.append(run(network, tokens)[0, place].square().sum())
        slope = (moved[0] - moved[1]) / 2e-5
        assert_close((recording.gradient(name) * step).sum(), slope.detach(), rtol=1e-6, atol=1e-8)


def test_gradient_times_input_sums_to_the_output_of_a_linear_network() -> None:
    decoder = Stack(
        num_layers=2, d_model=8, num_heads=2, d_ff=8, causal=True, bias=False, position=Position,
        residual=NoResidual, norm=NoNorm, feed_forward=NoFeedForward,
    )  # fmt: skip
    head = Head(d_model=8, num_outputs=11)
    network = DecoderOnly(embedding=Embedding(vocab_size=11, d_model=8), decoder=decoder, head=head).double()
    with record(network, gradients=True) as recording:
        y = network(torch.arange(11)[:, None])[:, 0, 3]  # single tokens attend only to themselves
        y.sum().backward()
    assert_close(recording.gradient_times_input("embedding")[:, 0], y.detach())
    with record(network.requires_grad_(False), gradients=True) as frozen:
        network(torch.arange(11)[:, None])[:, 0, 3].sum().backward()
    assert_close(frozen.gradient("embedding"), recording.gradient("embedding"))


def test_written_positions_follow_those_of_the_prompt() -> None:
    network = random_model("decoder_only").float()
    tokens = torch.randint(11, (2, 6))
    with record(network) as whole:
        network(tokens)
    with record(network) as recording, torch.inference_mode():
        step = network.continuation(None, capacity=6)
        step(tokens[:, :4])
        step(tokens[:, 4:5])
        step(tokens[:, 5:])
    for name in whole:
        assert_close(recording[name], whole[name])


def test_towers_and_recomputed_blocks_are_recorded_once() -> None:
    network = dual_encoder("encoder_only").eval()
    with record(network) as recording:
        network(torch.randint(11, (2, 5)), source=torch.rand(2, 2, 4, 6))
    assert recording.stream("encoder").shape[1:3] == (2, 5)
    assert recording.stream("source_encoder").shape[3] == 8
    network = build("decoder_only", activation_checkpointing=True)
    with record(network, gradients=True) as recording:
        network(torch.randint(11, (2, 5))).sum().backward()
    assert recording.stream_gradient("decoder").shape == (3, 2, 5, 16)
    assert network.decoder.activation_checkpointing


def test_recording_changes_nothing_and_ends() -> None:
    network, tokens = random_model("full"), torch.randint(11, (2, 5))
    before = network(tokens, tokens)
    with triptych.record(network, gradients=True) as recording:
        assert torch.equal(network(tokens, tokens), before)
    names = list(recording)
    network(tokens, tokens)
    assert list(recording) == names
    assert len(recording["decoder.final_norm"]) == 2
    assert not any(module._forward_hooks for module in network.modules())


def test_errors() -> None:
    network = build("decoder_only").eval()
    with record(network) as recording:
        pass
    with pytest.raises(KeyError, match=r"nothing was recorded of decoder.final_norm; the network was not called"):
        recording["decoder.final_norm"]
    with record(network) as recording:
        network(torch.zeros(2, 3, dtype=torch.long))
    with pytest.raises(KeyError, match=r"nothing was recorded of decoder.layers.2; did you mean decoder.layers.[01]\?"):
        recording["decoder.layers.2"]
    with pytest.raises(ValueError, match=r"embedding has no gradient; expected record\(network, gradients=True\)"):
        recording.gradient("embedding")
    with record(network) as recording:
        network(torch.zeros(2, 3, dtype=torch.long))
        network(torch.zeros(3, 3, dtype=torch.long))
    with pytest.raises(ValueError, match=r"embedding was called with batches of \[2, 3\] rows"):
        recording["embedding"]
    with record(network, gradients=True) as recording:
        sum(network(torch.zeros(2, 3, dtype=torch.long)).sum() for _ in range(2)).backward()
    with pytest.raises(ValueError, match="embedding was called 2 times; record only one"):
        recording.gradient("embedding")
    full, tokens = build("full").eval(), torch.zeros(2, 3, dtype=torch.long)
    with record(full, gradients=True) as recording:
        full(tokens, tokens).sum().backward()
    with pytest.raises(
        ValueError, match=r"embedding was called 2 times; expected encoder.embedded or decoder.embedded"
    ):
        recording.gradient_times_input("embedding")
    assert recording.gradient_times_input("encoder.embedded").shape == (2, 3)
    network.compile_parts(dynamic=True)
    with pytest.raises(ValueError, match="expected compile=false"), record(network):
        pass
