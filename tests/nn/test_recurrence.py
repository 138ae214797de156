"""Recurrent networks instead of self-attention, against torch.nn and a loop in float64."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from parts import make_sizes, make_stack
from small_models import pad, random_model, randomize
from triptych.models.flops import TrainingCost, forward_flops
from triptych.nn import AttentionMask, MinGRU, PackedLayout, Recurrence

CELLS: dict[str, Any] = {
    **{name: partial(Recurrence, cell=name) for name in ("tanh", "lstm", "gru")}, "mingru": MinGRU,
    "over_past": partial(Recurrence, over_past=True),
}  # fmt: skip
THEIRS = {"tanh": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
each_cell = pytest.mark.parametrize("name", CELLS)
both_ways = pytest.mark.parametrize("causal", [True, False], ids=["forth", "both_ways"])


def recurrence(name: str, *, causal: bool = True, d_model: int = 6) -> Any:
    return randomize(CELLS[name](make_sizes(d_model=d_model, num_heads=1, causal=causal))).double()


def run(part: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    causal = not getattr(part.cell, "bidirectional", False) if hasattr(part, "cell") else part.causal
    y: Tensor = part(x, attention_mask=AttentionMask(causal=causal, key_mask=mask))
    return y


@pytest.mark.parametrize("name", THEIRS)
@both_ways
def test_stacks_are_those_of_torch(name: str, causal: bool) -> None:
    """Blocks of nothing but the recurrence, two layers deep, with gradients."""
    width = 6 if causal else 3
    theirs = THEIRS[name](6, width, num_layers=2, batch_first=True, bidirectional=not causal).double()
    parts = [recurrence(name, causal=causal) for _ in range(2)]
    for layer, part in enumerate(parts):
        own = {key.replace("_l0", f"_l{layer}"): value for key, value in part.cell.state_dict().items()}
        theirs.load_state_dict(own, strict=False)
    x = torch.randn(3, 7, 6, dtype=torch.float64, requires_grad=True)
    found, (expected, _) = run(parts[1], run(parts[0], x)), theirs(x)
    assert_close(found, expected, rtol=1e-9, atol=1e-9)
    (ours,), (gradient,) = (torch.autograd.grad(y.square().sum(), x) for y in (found, expected))
    assert_close(ours, gradient, rtol=1e-9, atol=1e-9)


@both_ways
def test_mingru_is_a_loop(causal: bool) -> None:
    part, x = recurrence("mingru", causal=causal), torch.randn(2, 9, 6, dtype=torch.float64)
    z, value = torch.sigmoid(part.gate(x)), part.value(x)
    g = torch.where(value >= 0, value + 0.5, torch.sigmoid(value))

    def loop(z: Tensor, g: Tensor) -> Tensor:
        h, found = torch.zeros_like(z[:, 0]), []
        for t in range(z.shape[1]):
            h = (1 - z[:, t]) * h + z[:, t] * g[:, t]
            found.append(h)
        return torch.stack(found, 1)

    if causal:
        expected = loop(z, g)
    else:
        back = loop(z[..., 3:].flip(1), g[..., 3:].flip(1)).flip(1)
        expected = torch.cat((loop(z[..., :3], g[..., :3]), back), -1)
    assert_close(run(part, x), expected, rtol=1e-9, atol=1e-9)
    assert_close(run(part.float(), x.float()), expected.float(), rtol=1e-5, atol=1e-5)


@both_ways
def test_attention_over_the_past(causal: bool) -> None:
    part, x = recurrence("over_past", causal=causal), torch.randn(2, 5, 6, dtype=torch.float64)
    (h, _), rest = part.cell(x), part.past
    scores = rest.q(h) @ rest.k(h).mT / 6**0.5
    weights = (scores.masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf) if causal else scores).softmax(-1)
    found = part(x, attention_mask=AttentionMask(causal=causal))
    assert_close(found, h + rest.o(weights @ rest.v(h)))


@each_cell
@both_ways
@pytest.mark.parametrize("left", [False, True])
def test_padded_and_packed_texts_are_those_alone(name: str, causal: bool, left: bool) -> None:
    part, lengths = recurrence(name, causal=causal), [4, 1, 6]
    texts = [torch.randn(1, length, 6, dtype=torch.float64) for length in lengths]
    alone = [run(part, text)[0] for text in texts]
    packed = torch.cat(texts, 1)
    stack = make_stack(
        num_layers=1, d_model=6, num_heads=1, d_ff=8, causal=causal, position="none", attends=CELLS[name]
    )
    mask = stack.attention_mask(6, packed.device, documents=PackedLayout(lengths, packed.device))
    for found, expected in zip(part(packed, attention_mask=mask)[0].split(lengths), alone, strict=True):
        assert_close(found, expected)
    x, real = torch.randn(3, 6, 6, dtype=torch.float64), torch.zeros(3, 6, dtype=torch.bool)
    for row, text in enumerate(texts):
        place = slice(6 - lengths[row], None) if left else slice(lengths[row])
        x[row, place], real[row, place] = text[0], True
    x.requires_grad_()
    y = run(part, x, real)
    for row, expected in enumerate(alone):
        assert_close(y[row][real[row]], expected)
    (gradient,) = torch.autograd.grad(y[real].square().sum(), x)
    assert gradient.isfinite().all()
    assert not gradient[~real].any()


@each_cell
@pytest.mark.parametrize("architecture", ["decoder_only", "full"])
@torch.no_grad()
def test_decoding_keeps_the_state(name: str, architecture: str) -> None:
    """Texts of unequal length, of which some leave, and beams of one text."""
    network = random_model(architecture, position="learned", attends=CELLS[name])
    texts = [torch.randint(11, (1, length)) for length in (4, 2, 5)]
    given, mask = pad(texts, left=architecture == "decoder_only")
    if architecture == "full":
        next_token, read = network.continuation(given, mask, capacity=12), [torch.ones(1, 1, dtype=torch.long)] * 3
        next_token(torch.cat(read))
    else:
        next_token, read = network.continuation(mask, capacity=12), texts
        next_token(given)
    held = [*zip(texts, read, strict=True)]
    for rows, new in (([0, 1, 2], 1), ([2, 0], 1), ([1, 1, 0], 2), ([0, 2], 1)):
        next_token.select(torch.tensor(rows))
        tokens = torch.randint(11, (len(rows), new))
        held = [(held[i][0], torch.cat((held[i][1], tokens[[row]]), 1)) for row, i in enumerate(rows)]
        for logits, (text, whole) in zip(next_token(tokens), held, strict=True):
            expected = network(text, whole) if architecture == "full" else network(whole)
            assert_close(logits, expected[0, -1], rtol=1e-9, atol=1e-9)
    other = network.continuation(None, capacity=9) if architecture == "decoder_only" else None
    if other is not None:
        (prompt,) = pad([torch.randint(11, (1, 3))])[:1]
        other(prompt)
        next_token.join(other)
        held.append((prompt, prompt))
        tokens = torch.randint(11, (len(held), 1))
        for row, logits in enumerate(next_token(tokens)):
            whole = torch.cat((held[row][1], tokens[[row]]), 1)
            assert_close(logits, network(whole)[0, -1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("options", [{}, {"attends": Recurrence}], ids=["attention", "lstm"])
@torch.no_grad()
def test_a_memory_of_one_vector(options: dict[str, Any]) -> None:
    """Of texts alone, padded, packed and while decoding; a recurrence's is what each direction read last."""
    network = random_model("full", position="learned", **options)
    network.memory = "last"
    texts, targets = ([torch.randint(11, (1, n)) for n in lengths] for lengths in ((4, 1, 5), (2, 3, 1)))
    alone = [network(*pair)[0] for pair in zip(texts, targets, strict=True)]
    (source, real), (tokens, _) = pad(texts), pad(targets)
    for row, found in enumerate(network(source, tokens, real)):
        assert_close(found[: len(alone[row])], alone[row])
    lengths = {"source_lengths": [4, 1, 5], "lengths": [2, 3, 1]}
    packed = network(torch.cat(texts, 1), torch.cat(targets, 1), **lengths)
    assert_close(packed[0], torch.cat(alone))
    decode = network.continuation(source, real, capacity=3)
    assert_close(decode(tokens[:, :1])[1], network(texts[1], targets[1][:, :1])[0, -1])
    states, (memory, mask) = network.encoder(network.embedding(texts[0])), network.encode(texts[0])
    assert memory.shape == (1, 1, 16)
    assert mask is None
    assert_close(memory[0, 0, :8], states[0, -1, :8])
    assert_close(memory[0, 0, 8:], states[0, 0 if options else -1, 8:])


def test_starts_as_stated() -> None:
    part = Recurrence(make_sizes(d_model=8, causal=True), cell="lstm")
    forget = part.cell.bias_ih_l0.view(4, 8)
    assert forget[1].eq(1).all()
    assert not forget[[0, 2, 3]].any()
    for gate in part.cell.weight_hh_l0.view(4, 8, 8):
        assert_close(gate @ gate.T, torch.eye(8), rtol=1e-5, atol=1e-5)


class TestRefuses:
    def test_positions_within_attention(self) -> None:
        for position, said in (
            ("rotary", "rotates queries and keys, but block/attention=lstm"),
            ("alibi", "adds a bias"),
        ):
            with pytest.raises(ValueError, match=f"block/position={position} {said}"):
                make_stack(
                    num_layers=1, d_model=8, num_heads=1, d_ff=8, causal=True, position=position, attends=Recurrence
                )

    def test_an_odd_width_of_an_encoder(self) -> None:
        with pytest.raises(ValueError, match=r"shape.d_model=7: a recurrence in two directions needs an even width"):
            Recurrence(make_sizes(d_model=7, num_heads=1))


@pytest.mark.parametrize("name", THEIRS)
@both_ways
def test_operations_are_those_of_a_loop_of_linear_layers(name: str, causal: bool) -> None:
    """On the meta device, where all costs are counted. (On CPUs, torch's counter says 0 for an LSTM.)"""
    network = random_model("decoder_only" if causal else "encoder_only", position="none", attends=CELLS[name])
    network.to("meta")
    gates, directions, width = {"tanh": 1, "lstm": 4, "gru": 3}[name], 1 if causal else 2, 16 if causal else 8
    a_position = 2 * directions * gates * width * (16 + width) + 2 * 2 * 16 * 24
    rows = {rows: forward_flops(network, (rows, length, 0)) for rows, length in ((2, 7), (3, 40))}
    stack = "decoder" if causal else "encoder"
    assert (rows[2][stack], rows[3][stack]) == (2 * 2 * 7 * a_position, 2 * 3 * 40 * a_position)
    assert TrainingCost(network).by_part({(3, 40, 0): 1})[stack] == 3 * rows[3][stack]
