"""A decoder whose prefix sees itself from both sides: who sees whom, against a dense mask, packed, cached."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from small_models import build, pad, random_model
from triptych.models.flops import TrainingCost
from triptych.models.generation import BeamSearch, beam_search
from triptych.nn.masks import AttentionMask

VOCAB, LENGTH = 11, 7
every_position = pytest.mark.parametrize("position", ["none", "learned", "sinusoidal", "rotary", "relative_bias"])
blocks = st.fixed_dictionaries(
    {
        "norm": st.sampled_from(["layer_norm", "rms_norm"]),
        "residual": st.sampled_from(["pre_norm", "post_norm"]),
        "num_kv_heads": st.sampled_from([None, 2]),
        "sliding_windows": st.sampled_from([None, [3, None]]),
    }
)


def other_token(tokens: Tensor, place: int) -> Tensor:
    changed = tokens.clone()
    changed[:, place] = (changed[:, place] + 1) % VOCAB
    return changed


@settings(max_examples=40)
@given(
    num_keys=st.integers(1, 9),
    num_queries=st.integers(1, 9),
    window=st.sampled_from([None, 1, 3, 50]),
    prefixes=st.lists(st.integers(1, 9), min_size=2, max_size=2),
)
def test_the_mask_is_its_definition(num_keys: int, num_queries: int, window: int | None, prefixes: list[int]) -> None:
    num_queries, key_mask = min(num_queries, num_keys), torch.rand(2, num_keys) < 0.7
    attention_mask = AttentionMask.of(
        num_queries=num_queries, num_keys=num_keys, causal=False, key_mask=key_mask, device=torch.device("cpu"),
        window=window, prefix=torch.tensor(prefixes),
    )  # fmt: skip
    assert attention_mask.mask is not None
    for row in range(2):
        for i in range(num_queries):
            for j in range(num_keys):
                p = i + num_keys - num_queries
                is_near = window is None or abs(p - j) < window
                expected = bool(key_mask[row, j]) and (j <= p or j < prefixes[row]) and is_near
                assert attention_mask.mask[row, 0, i, j] == expected


@every_position
@settings(max_examples=4)
@given(block=blocks, prefix=st.integers(2, LENGTH - 2), data=st.data())
def test_a_later_token_of_the_prefix_is_seen_and_one_of_the_continuation_only_later(
    position: str, block: dict[str, Any], prefix: int, data: st.DataObject
) -> None:
    model = random_model("prefix_lm", position=position, **block)
    tokens, sizes = torch.randint(VOCAB, (2, LENGTH)), torch.tensor([prefix, prefix])
    before = model(tokens, prefix=sizes)
    in_prefix = model(other_token(tokens, prefix - 1), prefix=sizes)
    assert (before != in_prefix).any(-1).all()  # in two layers, one of them without a window
    place = data.draw(st.integers(prefix, LENGTH - 1))
    after = model(other_token(tokens, place), prefix=sizes)
    assert_close(after[:, :place], before[:, :place], rtol=1e-9, atol=1e-9)
    assert (before != after)[:, place:].any(-1).all()


@every_position
def test_its_limits_are_the_other_architectures(position: str) -> None:
    """A prefix of one token is causality, a prefix of all tokens none: with the weights of a decoder and an encoder."""
    model, encoder = (random_model(name, position=position) for name in ("prefix_lm", "encoder_only"))
    encoder.load_state_dict({k.replace("decoder.", "encoder."): v for k, v in model.state_dict().items()})
    tokens = torch.randint(VOCAB, (2, LENGTH))
    for whole in (model(tokens), model(tokens, prefix=torch.tensor([LENGTH, LENGTH]))):
        assert_close(whole, encoder(tokens), rtol=1e-9, atol=1e-9)
    if position != "relative_bias":  # whose buckets know both directions
        causal = random_model("decoder_only", position=position)
        causal.load_state_dict(model.state_dict())
        assert_close(model(tokens, prefix=torch.tensor([1, 1])), causal(tokens), rtol=1e-9, atol=1e-9)


@every_position
@settings(max_examples=3)
@given(block=blocks, sizes=st.lists(st.tuples(st.integers(1, 7), st.integers(1, 7)), min_size=1, max_size=4))
def test_packed_padded_and_alone_say_the_same(
    position: str, block: dict[str, Any], sizes: list[tuple[int, int]]
) -> None:
    model = random_model("prefix_lm", position=position, **block)
    texts = [torch.randint(VOCAB, (1, length)) for length, _ in sizes]
    prefix = torch.tensor([min(size) for size in sizes])
    alone = [model(text, prefix=prefix[i : i + 1])[0] for i, text in enumerate(texts)]
    tokens, mask = pad(texts)
    padded = model(tokens, prefix=prefix)
    packed = model(torch.cat(texts, dim=1), prefix=prefix, lengths=[text.shape[1] for text in texts])
    assert_close(padded[mask], torch.cat(alone), rtol=1e-9, atol=1e-9)
    assert_close(packed[0], torch.cat(alone), rtol=1e-9, atol=1e-9)


@every_position
@settings(max_examples=3)
@given(block=blocks, sizes=st.lists(st.integers(1, 5), min_size=1, max_size=3), new=st.integers(1, 4))
def test_cached_decoding_sees_the_prompt_from_both_sides(
    position: str, block: dict[str, Any], sizes: list[int], new: int
) -> None:
    model = random_model("prefix_lm", position=position, **block)
    prompts, written = [torch.randint(VOCAB, (1, n)) for n in sizes], torch.randint(VOCAB, (len(sizes), new))
    tokens, mask = pad(prompts, left=True)
    step = model.continuation(mask, capacity=max(sizes) + new)
    logits = [step(tokens), *(step(written[:, i : i + 1]) for i in range(new))]
    for row, prompt in enumerate(prompts):
        text = torch.cat((prompt, written[row : row + 1]), dim=1)
        expected = model(text, prefix=torch.tensor([sizes[row]]))[0, sizes[row] - 1 :]
        assert_close(torch.stack([of_step[row] for of_step in logits]), expected, rtol=1e-6, atol=1e-6)


def test_beam_search_finds_the_likeliest() -> None:
    """With beams enough for all texts of two tokens, the best is that of trying each out."""
    model = random_model("prefix_lm", vocab_size=5).requires_grad_(False)
    prompt, size = torch.randint(5, (1, 4)), torch.tensor([4])
    first = model(prompt, prefix=size)[0, -1].log_softmax(-1)
    best = (first[4], [])  # 4 ends
    for a in range(4):
        second = model(torch.cat((prompt, torch.tensor([[a]])), 1), prefix=size)[0, -1].log_softmax(-1)
        for b in range(5):
            best = max(best, (first[a] + second[b], [a] if b == 4 else [a, b]), key=lambda pair: float(pair[0]))
    search = BeamSearch(num_beams=20, length_penalty=0.0)
    step = model.continuation(None, capacity=6)
    (found,) = beam_search(step, prompt, end=4, max_new_tokens=2, search=search)
    assert found[0].tokens == best[1]
    assert found[0].score == pytest.approx(float(best[0]))


def test_a_causal_stack_is_rejected() -> None:
    causal, other = build("decoder_only"), build("prefix_lm")
    for network, decoder, message in (
        (
            type(other),
            causal.decoder,
            "model.decoder.causal=true: attention within the prefix is bidirectional; DecoderOnly",
        ),
        (type(causal), other.decoder, "model.decoder.causal=false: a decoder must be causal; PrefixLM"),
    ):
        with pytest.raises(ValueError, match=message):
            network(embedding=other.embedding, decoder=decoder, head=other.head)


def test_operations_of_windows_are_those_of_all_pairs() -> None:
    """A prefix takes a mask of all pairs, so blocks of windows save nothing."""
    model = build("prefix_lm", sliding_windows=[8], max_length=400, position="rotary").to("meta")
    tokens = torch.zeros(1, 300, dtype=torch.long, device="meta")
    with FlopCounterMode(display=False) as counter:
        model(tokens, prefix=torch.ones(1, dtype=torch.long, device="meta")).sum().backward()
    assert TrainingCost(model).of_batch((1, 300)) == counter.get_total_flops()
