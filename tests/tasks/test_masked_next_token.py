"""Masked next-token training: what is hidden, what a decoder sees, and its loss, against masked language modeling."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from predicting import make_context, predict
from small_models import build, randomize
from triptych.data import IGNORE_INDEX, Batch, Characters, Example, SpecialTokens, Tokenizer, collate
from triptych.nn import LongformerAttention
from triptych.tasks import LanguageModeling, Predictor
from triptych.tasks.masked_next_token import mask_next_tokens, read_from_both_sides

LINES = ["the cat sat", "a", "cats and dogs", "on the mat"]
CHARACTERS = Characters().train(LINES)
MASK, BOS = CHARACTERS.special.mask or 0, CHARACTERS.special.bos
OTHERS = torch.from_numpy(CHARACTERS.text_ids)


def make_task(*, masked_share: float = 0.5, tokenizer: Tokenizer = CHARACTERS, **options: Any) -> LanguageModeling:
    network = options.pop("network", None) or build(
        options.pop("architecture", "decoder_only"), vocab_size=tokenizer.vocab_size, max_length=40,
        position=options.pop("position", "rotary"), **options,
    )  # fmt: skip
    context = make_context(network, tokenizer, 40)
    return LanguageModeling(context, label_smoothing=0.0, max_new_tokens=5, masked_share=masked_share, mask_prob=0.3)


def batch_of(task: LanguageModeling, *, packed: bool = False) -> Batch:
    return collate(task.encode([Example(line) for line in LINES]), packed=packed)


@given(seed=st.integers(0, 2**31 - 1), packed=st.booleans(), probability=st.floats(0.05, 0.95))
def test_what_is_hidden(seed: int, packed: bool, probability: float) -> None:
    """Targets are the chosen tokens, each at the position before it; bos, ends and padding stay."""
    torch.manual_seed(seed)
    batch = batch_of(make_task(), packed=packed)
    masked = mask_next_tokens(batch, probability, MASK, OTHERS)
    labels, tokens = masked.labels.flatten().tolist(), batch.inputs.flatten().tolist()
    assert masked.is_bidirectional
    assert not batch.is_bidirectional
    for place, label in enumerate(labels):
        assert label in (IGNORE_INDEX, tokens[place + 1] if place + 1 < len(tokens) else None)
    changed = (masked.inputs != batch.inputs).flatten()
    chosen = torch.tensor([False, *(label != IGNORE_INDEX for label in labels[:-1])])
    assert not (changed & ~chosen).any()
    assert (masked.inputs.flatten()[torch.tensor(tokens) == BOS] == BOS).all()
    assert not (chosen & (torch.tensor(tokens) == BOS)).any()
    if batch.lengths is None and batch.mask is not None:
        assert not (chosen & ~batch.mask.flatten()).any()
    assert masked.scored.tolist() == [i for i, label in enumerate(labels) if label != IGNORE_INDEX]


def test_shares() -> None:
    """Of the tokens 30 %, of which 80 % are masks and 10 % others, within what binomial distributions have."""
    torch.manual_seed(1)
    batch = collate(make_task().encode([Example("cat and dog " * 3)] * 500))
    masked = mask_next_tokens(batch, 0.3, MASK, OTHERS)
    count, chosen = 500 * 36, len(masked.scored)
    assert abs(chosen - 0.3 * count) < 5 * (count * 0.3 * 0.7) ** 0.5
    assert abs(int((masked.inputs == MASK).sum()) - 0.8 * chosen) < 5 * (chosen * 0.8 * 0.2) ** 0.5
    others = int(((masked.inputs != batch.inputs) & (masked.inputs != MASK)).sum())
    assert abs(others - 0.1 * chosen * (1 - 1 / len(OTHERS))) < 6 * (chosen * 0.1 * 0.9) ** 0.5


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("both_sides", [False, True])
def test_what_each_position_sees(packed: bool, both_sides: bool) -> None:
    """Another token at any place changes the states of its own text alone: all of them, or those from there on."""
    task = make_task(d_model=32)
    randomize(task.network).double()
    batch = batch_of(task, packed=packed)
    batch = read_from_both_sides(batch) if both_sides else batch
    lengths = [len(line) + 1 for line in LINES]
    starts = np.cumsum([0, *lengths[:-1]]) if packed else np.arange(len(LINES)) * batch.inputs.shape[1]
    with torch.no_grad():
        before = task.forward(batch).flatten(0, 1)
        for start, length in zip(starts.tolist(), lengths, strict=True):
            for place in range(length):
                tokens = batch.inputs.flatten().clone()
                tokens[start + place] = MASK
                changed = read_from_both_sides(batch) if both_sides else batch_of(task, packed=packed)
                changed.inputs = tokens.view(batch.inputs.shape)
                differs = ((task.forward(changed).flatten(0, 1) - before).abs() > 1e-12).any(-1)
                first = 0 if both_sides else place
                real = torch.zeros_like(differs)
                for other, size in zip(starts.tolist(), lengths, strict=True):
                    real[other : other + size] = True
                expected = torch.zeros_like(differs)
                expected[start + first : start + length] = True
                assert torch.equal(differs & real, expected & real)


def test_the_loss_is_that_of_a_masked_encoder_with_labels_moved() -> None:
    """Share 1. The same blocks as an encoder, with the same masks, predict each token one position later."""
    task = make_task(masked_share=1.0)
    randomize(task.network).double()
    encoder = build("encoder_only", vocab_size=CHARACTERS.vocab_size, max_length=40, position="rotary").double().eval()
    encoder.load_state_dict({k.replace("decoder.", "encoder."): v for k, v in task.network.state_dict().items()})
    batch = batch_of(task)
    torch.manual_seed(3)
    torch.rand(())  # whether the step is masked
    masked = mask_next_tokens(batch, 0.3, MASK, OTHERS)
    logits = encoder(masked.inputs, batch.mask)
    chosen = (masked.labels != IGNORE_INDEX).roll(1, dims=1)
    expected = F.cross_entropy(logits.roll(1, dims=1)[chosen], batch.inputs[chosen])
    torch.manual_seed(3)
    loss = task.training_loss(batch) / batch.num_labels_in_step
    torch.testing.assert_close(loss, expected)


def test_a_share_of_nothing_is_next_token_training() -> None:
    """Bitwise, and without a draw of a random number."""
    task = make_task(masked_share=0.0)
    plain = LanguageModeling(make_context(task.network, CHARACTERS, 40), label_smoothing=0.0, max_new_tokens=5)
    state = torch.get_rng_state()
    assert torch.equal(task.training_loss(batch_of(task)), plain.training_loss(batch_of(plain)))
    assert torch.equal(torch.get_rng_state(), state)


def test_a_decoder_learns_to_read_both_ways() -> None:
    """It fills in from what follows: after "x" and "y" alike, the first letter is that of the last."""
    lines = [f"{a}{m}{a}" for a in "xyz" for m in "abc"]
    tokenizer = Characters().train(lines)
    torch.manual_seed(0)
    task = make_task(tokenizer=tokenizer, d_model=32)
    batch = collate(task.encode([Example(line) for line in lines]))
    optimizer = torch.optim.AdamW(task.network.parameters(), lr=1e-2)
    for _ in range(250):
        optimizer.zero_grad()
        (task.training_loss(batch) / batch.num_labels_in_step).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    task.network.eval()
    predictor = Predictor(task)
    causal = predictor.score(lines)
    pseudo = predictor.score(lines, method="pseudo_log_likelihood")
    assert np.mean([score.nats[0] for score in causal]) > 1  # ln 3 is 1.10
    assert max(score.nats[0] for score in pseudo) < 0.5
    assert max(score.nats[2] for score in causal) < 0.5
    assert predict(task, ["xa", "yb"]) == ["x", "y"]


def test_scores_from_both_sides_by_hand() -> None:
    """One reading per token, in float64; masked encoders have the same two methods."""
    task = make_task()
    randomize(task.network).double()
    assert task.scoring_methods[1:] == ("pseudo_log_likelihood_l2r", "pseudo_log_likelihood")
    assert make_task(masked_share=0.0).scoring_methods == ("log_likelihood",)
    for score, line in zip(Predictor(task).score(LINES, method="pseudo_log_likelihood"), LINES, strict=True):
        ids = CHARACTERS.encode([line])[0]
        for place, token in enumerate(ids):
            row = torch.tensor([[BOS, *ids]])
            row[0, 1 + place] = MASK
            with torch.no_grad():
                logits = task.network(row, prefix=torch.tensor([len(ids) + 1]))[0, place]
            assert score.nats[place] == pytest.approx(-float(logits.log_softmax(-1)[token]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"masked_share": 1.5}, "task.masked_share=1.5: expected 0 to 1"),
        ({"architecture": "prefix_lm"}, "only model=decoder_only learns to read from both sides; expected 0"),
        ({"position": "alibi"}, "block/position has no bidirectional form in a decoder; expected block/attention="),
        ({"attends": LongformerAttention}, "block/attention has no bidirectional form in a decoder"),
        (
            {"tokenizer": Tokenizer.from_json(CHARACTERS.to_json(), SpecialTokens(mask=None))},
            "task.masked_share=0.5: the tokenizer has no mask token; expected 0",
        ),
    ],
    ids=str,
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_task(**options)
