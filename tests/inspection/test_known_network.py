"""A network with weights made by hand: what its states hold, its heads do, and its layers would predict is known."""

import pytest
import torch
from torch.testing import assert_close

from triptych.inspection import LinearProbe, ablate_heads, attention_entropy, logit_lens, record
from triptych.models import DecoderOnly
from triptych.nn import Embedding, Head, NoFeedForward, NoNorm, Position, Stack
from triptych.report.attention_maps import record_attention


@pytest.fixture
def network() -> DecoderOnly:
    """Predicts the next of four tokens, i + 1 modulo 4. Units 0 to 3 of the state are the token; head 0 of one layer
    attends to equal tokens, and writes the next one into units 4 to 7, which the output layer reads. Head 1 attends to
    all tokens alike, and writes nothing."""
    decoder = Stack(
        num_layers=1, d_model=8, num_heads=2, d_ff=8, causal=True, bias=False, position=Position,
        norm=NoNorm, feed_forward=NoFeedForward,
    )  # fmt: skip
    network = DecoderOnly(
        embedding=Embedding(vocab_size=4, d_model=8), decoder=decoder, head=Head(d_model=8, num_outputs=4)
    )
    attention, identity = decoder.layers[0].self_attention, torch.eye(4)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        network.embedding.tokens.weight[:, :4] = identity
        attention.q.weight[:4, :4] = 100 * identity
        attention.k.weight[:4, :4] = 100 * identity
        attention.v.weight[:, :4] = identity.repeat(2, 1)
        attention.o.weight[4:, :4] = identity.roll(1, 0)
        network.head.output.weight[:, 4:] = 10 * identity
    return network.eval()


def test_lens_heads_and_probes(network: DecoderOnly) -> None:
    tokens = torch.randint(4, (32, 9))
    with record(network) as recording:
        logits = network(tokens)
    assert torch.equal(logits.argmax(-1), (tokens + 1) % 4)

    lens = logit_lens(network, recording)
    assert_close(lens[0], torch.zeros(32, 9, 4))  # nothing is predicted before the layer
    assert_close(lens[1], logits)

    name = "decoder.layers.0.self_attention"
    with ablate_heads(network, {name: [0]}):
        assert_close(network(tokens), torch.zeros(32, 9, 4))
    with ablate_heads(network, {name: [1]}):
        assert_close(network(tokens), logits)

    states = recording.stream("decoder").flatten(1, 2)
    following, before = ((tokens + 1) % 4).flatten(), tokens.roll(1, 1).flatten()
    train, test = slice(200), slice(200, None)
    for state in states:  # the token decides the next one, so both can be read
        assert LinearProbe(state[train], following[train]).accuracy(state[test], following[test]) == 1.0
    # the token before is in no state
    assert LinearProbe(states[1][train], before[train]).accuracy(states[1][test], before[test]) < 0.6


def test_entropies(network: DecoderOnly) -> None:
    tokens = torch.tensor([[0, 1, 0, 2, 0, 1]])
    with record_attention(network) as weights:
        network(tokens)
    entropy = attention_entropy(weights[network.decoder.layers[0].self_attention])[0]
    assert_close(entropy[0], torch.tensor([1.0, 1, 2, 1, 3, 2]).log())  # equal tokens up to each position
    assert_close(entropy[1], torch.arange(1.0, 7).log())


def test_gradient_times_input_is_on_what_the_prediction_reads(network: DecoderOnly) -> None:
    """The logit of the next token comes from the equal tokens alone."""
    tokens = torch.tensor([[2, 1, 3, 1]])
    with record(network, gradients=True) as recording:
        logit = network(tokens)[0, -1, 2]
        logit.backward()
    through_values = recording.gradient_times_input("decoder.layers.0.self_attention")
    assert_close(through_values, torch.tensor([[0.0, 0, 0, float(logit.detach())]]))
    share = recording.gradient_times_input("embedding")[0]
    assert share[1] > 1
    assert share[3] > 1
    assert share[[0, 2]].abs().max() < 1e-3
