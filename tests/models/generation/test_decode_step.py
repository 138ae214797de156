"""Decoding by steps, whose tensors keep their shapes and their memory, as CUDA graphs need it: here without graphs, and
with graphs of aten's operators in their place."""

import copy
import pickle
from collections.abc import Callable
from itertools import cycle, product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing import assert_close

from cases import by_day, values_by_day
from interop import test_decoder_families, test_full_families
from oracle import Case, decoded_alike, name_of, one_a_class
from small_models import pad, random_model
from triptych.models.generation import BeamSearch, LogitsProcessors, Sampling, beam_search, decode_step, generate
from triptych.models.generation.decode_step import DecodeStepPool, DecodeStepSize

VOCAB = 11
BLOCKS = [
    {"position": "none"}, {"position": "learned", "first": 2}, {"position": "sinusoidal"}, {"position": "rotary"},
    {"position": "relative_bias"}, {"position": "rotary", "sliding_windows": [3, None], "num_kv_heads": 2},
    {"position": "relative_bias", "sliding_windows": [4]},
]  # fmt: skip
every_block = pytest.mark.parametrize(
    ("block", "architecture"),
    values_by_day(BLOCKS, ["decoder_only", "full"]),
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value.values())),
)
few_examples = settings(max_examples=4)


@pytest.fixture(scope="session")
def writer() -> Callable[..., Any]:
    """A random network that is computed by steps."""

    def make(architecture: str, **options: Any) -> Any:
        network = random_model(architecture, **options).eval()
        network.decode_steps = DecodeStepPool(captures=False)
        return network

    return make


def some(lengths: list[int]) -> list[Tensor]:
    return [torch.randint(VOCAB, (1, length)) for length in lengths]


def begin(network: Any, tokens: Tensor, mask: Tensor, *, capacity: int) -> tuple[Any, Tensor]:
    """A continuation, and what it is given first: the prompts, or for each text a start token."""
    if network.architecture == "full":
        return network.continuation(tokens, mask, capacity=capacity), torch.ones(len(tokens), 1, dtype=torch.long)
    return network.continuation(mask, capacity=capacity + tokens.shape[1] - 1), tokens


def decoded(network: Any, given: tuple[Tensor, Tensor], **options: Any) -> list[Any]:
    """What is written greedily, sampled, and by beam search, with the scores."""
    found: list[Any] = []
    for sampling in (Sampling(), Sampling(temperature=1.0, seed=3)):
        next_token, prompt = begin(network, *given, capacity=8)
        found.append(generate(next_token, prompt, sampling=sampling, **options))
    next_token, prompt = begin(network, *given, capacity=8)
    rows = beam_search(next_token, prompt, search=BeamSearch(3, num_return_sequences=2), **options)
    found.append([[hypothesis.tokens for hypothesis in row] for row in rows])
    found.append([[round(hypothesis.score, 6) for hypothesis in row] for row in rows])
    return found


decodings = st.fixed_dictionaries(
    {
        "end": st.integers(0, VOCAB - 1),
        "max_new_tokens": st.integers(1, 8),
        "logits_processors": st.sampled_from([None, LogitsProcessors(no_repeat_ngram_size=2)]),
    }
)
lengths = st.lists(st.integers(1, 5), min_size=1, max_size=6)


@every_block
class TestSteps:
    @few_examples
    @given(lengths=lengths, options=decodings)
    def test_give_the_same_tokens(
        self, writer: Callable[..., Any], architecture: str, block: dict[str, Any],
        lengths: list[int], options: dict[str, Any],
    ) -> None:  # fmt: skip
        """Rows end at different times."""
        network = writer(architecture, **block)
        given = pad(some(lengths), left=architecture == "decoder_only")
        by_steps = decoded(network, given, **options)
        network.decode_steps = DecodeStepPool()
        assert by_steps == decoded(network, given, **options)

    @few_examples
    @given(data=st.data())
    @torch.no_grad()
    def test_follow_rows_that_come_and_go(
        self, writer: Callable[..., Any], architecture: str, block: dict[str, Any],
        data: st.DataObject,
    ) -> None:  # fmt: skip
        """Against the network without a cache; one token or two at a time."""
        network = writer(architecture, **block)
        texts = some(data.draw(lengths))
        next_token, prompt = begin(network, *pad(texts, left=architecture == "decoder_only"), capacity=12)
        next_token(prompt)
        # what each row holds: its text, and what the decoder has read
        held = [(text, torch.tensor([[1]]) if architecture == "full" else text) for text in texts]
        for _ in range(5):
            rows = data.draw(st.lists(st.integers(0, len(held) - 1), min_size=1, max_size=6))
            next_token.select(torch.tensor(rows))
            new = torch.randint(VOCAB, (len(rows), data.draw(st.sampled_from([1, 1, 1, 2]))))
            grown = [torch.cat([held[row][1], one], dim=1) for row, one in zip(rows, new.split(1), strict=True)]
            held = [(held[row][0], read) for row, read in zip(rows, grown, strict=True)]
            for logits, (text, read) in zip(next_token(new), held, strict=True):
                whole = network(text, read) if architecture == "full" else network(read)
                assert_close(logits, whole[0, -1], rtol=1e-6, atol=1e-6)


class OnCPU:
    """In place of a CUDA graph: repeats the operators that were called, on the same tensors."""

    def __init__(self, compute: Callable[[], Tensor]) -> None:
        self.operators, self.result = make_fx(compute)(), compute()

    def replay(self) -> None:
        self.result.copy_(self.operators())


@every_block
def test_every_token_is_the_same_program(
    writer: Callable[..., Any], architecture: str, block: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Nothing in it is a number that changes: what was noted of the first token serves the others, and other texts."""
    captured = list[OnCPU]()

    def capture(compute: Callable[[], Tensor]) -> tuple[OnCPU, Tensor]:
        captured.append(OnCPU(compute))
        return captured[-1], captured[-1].result

    monkeypatch.setattr(decode_step, "captured", capture)
    monkeypatch.setattr(DecodeStepPool, "serve", lambda steps, network: True)
    network, left = writer(architecture, **block), architecture == "decoder_only"
    without, graphs = network.decode_steps, DecodeStepPool()
    for lengths in ([4, 2, 5], [1, 3, 2]):
        given, found = pad(some(lengths), left=left), []
        for network.decode_steps in (without, graphs):
            next_token, prompt = begin(network, *given, capacity=5)
            found.append(generate(next_token, prompt, end=-1, max_new_tokens=5, sampling=Sampling()))
            del next_token
        assert found[0] == found[1]
    assert len(captured) == 1


GENERATING = [case for case in (*test_decoder_families.CASES, *test_full_families.CASES) if case.generates]


@pytest.mark.parametrize(
    ("case", "num_beams"),
    by_day(product(GENERATING, [1, 4]), [*zip(one_a_class(GENERATING), cycle([1, 4]), strict=False)]),
    ids=name_of,
)
def test_give_the_tokens_of_transformers(case: Case, num_beams: int) -> None:
    assert decoded_alike(case, num_beams=num_beams, steps=DecodeStepPool(captures=False))


@given(size=st.builds(DecodeStepSize, *[st.integers(1, 40)] * 2, st.just(64), st.just(64)), groups=st.integers(1, 40))
def test_a_smaller_step_holds_what_is_left(size: DecodeStepSize, groups: int) -> None:
    wanted = DecodeStepSize(groups, size.rows_of_each, 64, 64)
    assert size.holds(wanted) == (groups <= size.groups)
    if size.holds(wanted):
        smaller = size.smaller(wanted)
        assert groups <= smaller.groups <= max(groups, 2 * groups + 1)
        assert smaller.groups in {size.groups >> n for n in range(7)}


class TestKept:
    @torch.no_grad()
    def test_a_step_serves_one_text_after_the_other(self, writer: Callable[..., Any]) -> None:
        network, tokens = writer("decoder_only"), torch.randint(VOCAB, (2, 3))
        options = {"end": -1, "max_new_tokens": 3, "sampling": Sampling()}
        first = generate(network.continuation(None, capacity=6), tokens, **options)
        (kept,) = network.decode_steps._idle
        assert generate(network.continuation(None, capacity=7), tokens, **options) == first
        assert network.decode_steps._idle == [kept]
        one, other = (network.continuation(None, capacity=6) for _ in range(2))
        for read in (tokens, tokens[:, :1]):
            one(read)
            other(read)
        assert one._step is kept
        assert other._step is not kept
        del one, other
        assert len(network.decode_steps._idle) == 2

    def test_no_step_survives_a_training_or_other_weights(self, writer: Callable[..., Any]) -> None:
        network = writer("decoder_only")
        options = {"end": -1, "max_new_tokens": 3, "sampling": Sampling()}

        def generated() -> list[Any]:
            generate(network.continuation(None, capacity=6), torch.zeros(1, 3, dtype=torch.long), **options)
            return network.decode_steps._idle

        (first,) = generated()
        assert copy.deepcopy(network).decode_steps._idle == []
        assert pickle.loads(pickle.dumps(network.decode_steps))._idle == []
        network.float()
        assert generated() == [first, network.decode_steps._idle[1]]
        assert network.decode_steps._idle[1] is not first
        network.train()
        assert network.decode_steps._idle == []
        assert generated() == []  # dropout may be on

    def test_what_has_hooks_is_called(self, writer: Callable[..., Any]) -> None:
        network = writer("decoder_only")
        assert network.decode_steps.serve(network)
        network.decoder.layers[0].register_forward_hook(lambda *_: None)
        assert not network.decode_steps.serve(network)
        assert not DecodeStepPool().serve(writer("decoder_only"))  # a CPU needs no graph


def test_where_nothing_can_be_captured_tokens_are_computed_as_ever(
    writer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A part that waits for the device has no graph: said once, and no text is lost."""
    model, prompt = writer("decoder_only"), torch.randint(VOCAB, (2, 4))
    options: dict[str, Any] = {"end": -1, "max_new_tokens": 6, "sampling": Sampling()}
    expected = generate(model.continuation(None, capacity=10), prompt, **options)

    def refuse(compute: Callable[[], Tensor]) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    model.decode_steps = DecodeStepPool()
    monkeypatch.setattr(decode_step, "captured", refuse)
    monkeypatch.setattr(DecodeStepPool, "serve", lambda self, network: self.can_capture)
    for _ in range(2):
        assert generate(model.continuation(None, capacity=10), prompt, **options) == expected
    (said,) = caplog.messages
    assert "no CUDA graph can be made of it" in said
