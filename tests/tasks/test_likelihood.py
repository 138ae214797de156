"""Scores of texts, against a chain whose probabilities are known, loops over single readings, and transformers."""

import math
import re
from collections.abc import Callable, Iterator
from itertools import pairwise, permutations, product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from oracle import Case, reference
from predicting import make_context
from small_models import build, randomize
from triptych.data import BPE, IGNORE_INDEX, Batch, Bytes, Characters, TokenizedWords, Tokenizer
from triptych.models import EncoderOnly
from triptych.nn import Targets
from triptych.tasks import Classification, Denoising, LanguageModeling, Predictor, Task, TextScore

LINES = [
    "the cat sat on the mat.",
    "cats, dogs; and the unbelievable bird",
    "a",
    "",
    "no cat sat",
    "the cat sat on the mat.",
]
BPE_OF_LINES = BPE(vocab_size=290, num_sentinels=3).train(LINES)
BYTES, CHARACTERS = Bytes().train([]), Characters().train(["ab .\t\n,"])
AB = Characters().train(["ab"])
A, B = AB.encode(["ab"])[0]
P = np.array([[0.9, 0.1], [0.4, 0.6]])
START = np.array([0.8, 0.2])


def language_model(architecture: str, tokenizer: Tokenizer = BPE_OF_LINES, max_length: int = 64) -> LanguageModeling:
    network = randomize(build(architecture, vocab_size=tokenizer.vocab_size, max_length=64))
    context = make_context(network, tokenizer, max_length)
    return LanguageModeling(context, label_smoothing=0.0, max_new_tokens=20)


def denoising(architecture: str, objective: str | None = None, tokenizer: Tokenizer = BPE_OF_LINES) -> Denoising:
    network = randomize(build(architecture, vocab_size=tokenizer.vocab_size, max_length=64))
    hidden: dict[str, Any] = {"whole_word_masking": False, "mask_prob": 0.3, "mean_span_length": 3}
    context = make_context(network, tokenizer, 64)
    return Denoising(context, label_smoothing=0.0, max_new_tokens=20, objective=objective, **hidden)  # type: ignore[arg-type]


def probability(text: str) -> float:
    """Of a text of the chain."""
    numbers = ["ab".index(character) for character in text]
    return START[numbers[0]] * math.prod(P[before, after] for before, after in pairwise(numbers)) if text else 1.0


def texts_of(length: int) -> Iterator[str]:
    return map("".join, product("ab", repeat=length))


def with_true_conditionals(task: Task, monkeypatch: pytest.MonkeyPatch) -> Task:
    """A task whose network knows the chain: its losses are computed by summing over all texts."""

    def forward(batch: Batch, targets: Targets) -> Tensor:
        found = []
        for row, labels in zip(batch.inputs.tolist(), batch.labels.tolist(), strict=True):
            for place, label in enumerate(labels):
                if label != IGNORE_INDEX:
                    found.append(loss_of(task, row, place, label))
        return torch.tensor([found, found], dtype=torch.float64)

    monkeypatch.setattr(task, "forward", forward)
    return task


def loss_of(task: Task, row: list[int], place: int, label: int) -> float:
    if task.architecture == "encoder_only":  # p(token | the tokens that are not masked)
        begin, num_ends = len(task.tokenizer.special.begin), isinstance(task, Denoising)
        seen = [i if i in (A, B) else None for i in row[begin : len(row) - num_ends]]
        fits = [
            text
            for text in texts_of(len(seen))
            if all(i in (None, AB.encode([character])[0][0]) for i, character in zip(seen, text, strict=True))
        ]
        right = [text for text in fits if AB.encode([text])[0][place - begin] == label]
        return -math.log(math.fsum(map(probability, right)) / math.fsum(map(probability, fits)))
    before = "".join("ab"[i == B] for i in row[1 : place + 1])
    return -math.log(probability(before + "ab"[label == B]) / probability(before))


def cut_into(*sizes: int) -> Callable[[list[str]], list[TokenizedWords]]:
    """Words of so many characters each."""

    def encode_words(texts: list[str]) -> list[TokenizedWords]:
        word_of = np.repeat(np.arange(len(sizes)), sizes).tolist()
        ends = np.cumsum([0, *sizes])
        return [TokenizedWords(AB.encode([x])[0], word_of, [x[a:b] for a, b in pairwise(ends)]) for x in texts]

    return encode_words


def total(task: Task, text: str, method: str | None = None) -> float:
    return -Predictor(task).score([text], method=method)[0].total


class TestChain:
    """The probabilities of section 9 of the specification, which can be checked by hand: aab is 0.8 * 0.9 * 0.1."""

    @pytest.mark.parametrize(
        ("text", "exact", "pseudo", "by_word"),
        [
            ("aaa", -0.433865, -0.258923, -0.316082),
            ("aab", -2.631089, -2.918771, -3.324236),
            ("aba", -3.442019, -4.888938, -4.135167),
            ("abb", -3.036554, -2.343407, -1.937942),
        ],
    )
    def test_known_values(
        self, text: str, exact: float, pseudo: float, by_word: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Masking whole words, in place of the rest of a word, would give -3.729701 for aab."""
        decoder = with_true_conditionals(language_model("decoder_only", AB), monkeypatch)
        encoder = with_true_conditionals(denoising("encoder_only", tokenizer=AB), monkeypatch)
        monkeypatch.setattr(AB, "encode_words", cut_into(2, 1))
        assert total(decoder, text) == pytest.approx(exact, abs=1e-6)
        assert total(encoder, text, "pseudo_log_likelihood") == pytest.approx(pseudo, abs=1e-6)
        assert total(encoder, text) == pytest.approx(by_word, abs=1e-6)

    def test_one_word_left_to_right_is_exact(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The chain rule; and words of one token have the pseudo-log-likelihood."""
        encoder = with_true_conditionals(denoising("encoder_only", tokenizer=AB), monkeypatch)
        for text in texts_of(4):
            monkeypatch.setattr(AB, "encode_words", cut_into(4))
            assert total(encoder, text) == pytest.approx(math.log(probability(text)), abs=1e-12)
            monkeypatch.setattr(AB, "encode_words", cut_into(1, 1, 1, 1))
            assert total(encoder, text) == pytest.approx(total(encoder, text, "pseudo_log_likelihood"), abs=1e-12)

    def test_an_encoder_that_fills_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """In each order, the likelihood is exact, and so is the bound: the mean over all orders."""
        task = with_true_conditionals(language_model("encoder_only", AB, max_length=4), monkeypatch)
        orders = [*map(np.array, permutations(range(3)))]
        monkeypatch.setattr("triptych.tasks.views.NUM_ORDERS", len(orders))

        def each_order(seed: int) -> SimpleNamespace:
            left = iter(orders)
            return SimpleNamespace(permutation=lambda length: next(left))

        monkeypatch.setattr("triptych.tasks.views.np.random.default_rng", each_order)
        for text in texts_of(3):
            for method in ("left_to_right", "diffusion_bound"):
                assert total(task, text, method) == pytest.approx(math.log(probability(text)), abs=1e-12)
        assert total(task, "aab", "pseudo_log_likelihood") == pytest.approx(-2.918771, abs=1e-6)

    def test_only_the_likelihood_is_a_distribution(self, monkeypatch: pytest.MonkeyPatch) -> None:
        decoder = with_true_conditionals(language_model("decoder_only", AB), monkeypatch)
        encoder = with_true_conditionals(denoising("encoder_only", tokenizer=AB), monkeypatch)
        assert sum(math.exp(total(decoder, text)) for text in texts_of(3)) == pytest.approx(1, abs=1e-12)
        pseudo = sum(math.exp(total(encoder, text, "pseudo_log_likelihood")) for text in texts_of(3))
        assert pseudo == pytest.approx(1.404412, abs=1e-6)


@torch.no_grad()
def log_p(network: Any, *inputs: list[int], **options: Any) -> Tensor:
    """log softmax in float64, of one text without padding."""
    rows = [torch.tensor([row]) for row in inputs]
    return network.double()(*rows, **options)[0].log_softmax(-1)


def by_hand(task: Any, context: str, text: str, method: str) -> list[float]:
    """-ln p of each token, by one reading for each."""
    special, network = task.tokenizer.special, task.network
    before, ids = task.tokenizer.encode([context, text])
    whole, count = [*before, *ids], len(before)
    words = [[*group] for group in np.split(np.arange(len(ids)), np.flatnonzero(task.tokenizer.begins_word(ids))[1:])]
    found = np.zeros(len(ids))
    if method == "log_likelihood":
        rows = log_p(network, [special.bos, *whole])
        return [-float(rows[count + i, token]) for i, token in enumerate(ids)]
    if method == "prefix_log_likelihood" and task.architecture == "full":
        rows = log_p(network, [special.bos, *before, special.eos], [special.start, *ids])
        return [-float(rows[i, token]) for i, token in enumerate(ids)]
    if method == "prefix_log_likelihood":
        rows = log_p(network, [special.bos, *whole], prefix=torch.tensor([count + 1]))
        return [-float(rows[count + i, token]) for i, token in enumerate(ids)]
    for word in words if ids else []:
        for place in word:
            if method.startswith("pseudo"):
                hidden = [i for i in word if i >= place] if method.endswith("l2r") else [place]
                row = [special.mask if i - count in hidden else token for i, token in enumerate(whole)]
                found[place] -= float(log_p(network, [special.bos, *row, special.eos])[1 + count + place, ids[place]])
        if method.endswith("by_word"):
            is_infilling = method == "infilling_by_word"
            mark, closing = (special.mask, None) if is_infilling else special.sentinels[:2]
            source = [*before, *ids[: word[0]], mark, *ids[word[-1] + 1 :]]
            target = whole if is_infilling else [mark, *ids[word[0] : word[-1] + 1], closing]
            first = count + word[0] if is_infilling else 1
            if task.architecture == "full":
                rows = log_p(network, [special.bos, *source, special.eos], [special.start, *target])
            else:
                given = [special.bos, *source, special.sep]
                rows = log_p(network, [*given, *target], prefix=torch.tensor([len(given)]))[len(given) - 1 :]
            for place in word:
                found[place] -= float(rows[first + place - word[0], ids[place]])
            if closing is not None:
                found[word[-1]] -= float(rows[first + len(word), closing])
    return found.tolist()


TASKS: dict[str, Callable[[], Any]] = {
    "decoder": lambda: language_model("decoder_only"),
    "decoder, denoising": lambda: denoising("decoder_only"),
    "full": lambda: language_model("full"),
    "prefix": lambda: language_model("prefix_lm"),
    "masked": lambda: denoising("encoder_only"),
    "infilling": lambda: denoising("full"),
    "infilling, prefix": lambda: denoising("prefix_lm"),
    "spans": lambda: denoising("full", "span_corruption"),
    "spans, prefix": lambda: denoising("prefix_lm", "span_corruption"),
}


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("batch_tokens", [1, 90, 10_000])
def test_each_token_by_hand(name: str, batch_tokens: int) -> None:
    """Any batches, with and without a context. The tokens of words are the same by both definitions of a word here."""
    task = TASKS[name]()
    task.network.double()
    lines = [line.replace(".", "").replace(",", "").replace(";", "") for line in LINES]
    for contexts in (None, ["the", "", "no cat", "a", "", "cats"]):
        texts = lines if contexts is None else [f" {line}" if line else "" for line in lines]
        for method in task.scoring_methods:
            scores = Predictor(task).score(texts, contexts, method, batch_tokens=batch_tokens)
            for score, text, context in zip(scores, texts, contexts or [""] * len(texts), strict=True):
                assert score.method == method
                assert score.nats == pytest.approx(by_hand(task, context, text, method), abs=1e-10)
                assert sum(score.word_nats) == pytest.approx(score.total)
                assert score.words == text.split()


@given(cut=st.integers(0, 22))
def test_a_causal_decoder_needs_no_context(cut: int) -> None:
    """Two continuations differ by as much as the whole texts, if these have the same tokens."""
    task = language_model("decoder_only", Characters().train(LINES))
    predictor, one, other = Predictor(task), "the cat sat on the mat.", "the cat sat on the bird"
    cut = min(cut, 19)
    whole = [score.total for score in predictor.score([one, other])]
    rest = [score.total for score in predictor.score([one[cut:], other[cut:]], [one[:cut]] * 2)]
    assert whole[0] - whole[1] == pytest.approx(rest[0] - rest[1], abs=1e-3)


def test_unknown_tokens_are_counted() -> None:
    task = language_model("decoder_only", Characters().train(["abc"]))
    assert [score.num_unknown for score in Predictor(task).score(["abc", "axbx"])] == [0, 2]


def test_what_cannot_be_scored() -> None:
    classifier = Classification(
        make_context(build("encoder_only", vocab_size=300, pool="first"), BPE_OF_LINES, 64), label_smoothing=0.0
    )  # type: ignore[call-arg]
    with pytest.raises(ValueError, match=r"classification on encoder_only has no likelihood of a text; expected"):
        Predictor(classifier).score(["a"])
    decoder = Predictor(language_model("decoder_only", max_length=6))
    with pytest.raises(ValueError, match=r"text 2: [0-9]+ tokens; the network reads at most 6"):
        decoder.score(["a", LINES[1]])
    with pytest.raises(
        ValueError, match=re.escape("method=log_likelyhood: language_modeling on decoder_only supports")
    ):
        decoder.score(["a"], method="log_likelyhood")


SMALL = {"vocab_size": 301, "layer_norm_eps": 1e-2, "type_vocab_size": 1, "pad_token_id": 0}
SIZES = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 96, "num_hidden_layers": 2}
GPT2 = Case("gpt2", lambda: hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=301, n_embd=32, n_layer=2, n_head=4)))
ROBERTA = Case("roberta", lambda: hf.RobertaForMaskedLM(hf.RobertaConfig(**SMALL, **SIZES, max_position_embeddings=80)))


class TestTransformers:
    """Random weights of transformers, and its log-probabilities."""

    def test_gpt2(self) -> None:
        case = reference(GPT2)
        task = LanguageModeling(
            make_context(case.read.network, BPE_OF_LINES, 64), label_smoothing=0.0, max_new_tokens=9
        )
        for score, text in zip(Predictor(task).score(LINES), LINES, strict=True):
            ids = torch.tensor([[BPE_OF_LINES.special.bos, *BPE_OF_LINES.encode([text])[0]]])
            labels = ids.masked_fill(ids == BPE_OF_LINES.special.bos, -100)
            if text:
                with torch.no_grad():
                    mean = float(case.model(ids, labels=labels).loss)
                assert score.total == pytest.approx(mean * (ids.shape[1] - 1), rel=1e-5)

    def test_roberta(self) -> None:
        case = reference(ROBERTA)
        assert isinstance(case.read.network, EncoderOnly)
        hidden: dict[str, Any] = {"whole_word_masking": False, "mask_prob": 0.3, "mean_span_length": 3}
        context = make_context(case.read.network, BPE_OF_LINES, 64)
        task = Denoising(context, label_smoothing=0.0, max_new_tokens=9, objective=None, **hidden)
        special = BPE_OF_LINES.special
        scores = Predictor(task).score(LINES, method="pseudo_log_likelihood")
        for score, text in zip(scores, LINES, strict=True):
            ids = BPE_OF_LINES.encode([text])[0]
            rows = torch.tensor([special.single(ids)]).repeat(len(ids), 1)
            places = torch.arange(len(ids))
            rows[places, 1 + places] = special.mask or 0
            with torch.no_grad():
                logits = case.model(rows).logits[places, 1 + places] if ids else torch.zeros(0, 301)
            wanted = -logits.log_softmax(-1)[places, torch.tensor(ids, dtype=torch.long)]
            assert score.nats == pytest.approx(wanted.tolist(), rel=1e-4)


@given(text=st.text("ab .\t\n,", max_size=12), kind=st.sampled_from(["bytes", "bpe", "characters"]))
def test_words_hold_all_tokens_and_none_is_blank(text: str, kind: str) -> None:
    """But that of a text of whitespace alone. In their order, they are the text without its whitespace."""
    tokenizer = {"bytes": BYTES, "bpe": BPE_OF_LINES, "characters": CHARACTERS}[kind]
    (found,) = tokenizer.encode_words([text])
    assert found.ids == tokenizer.encode([text])[0]
    assert len(found.word_of) == len(found.ids)
    assert [*dict.fromkeys(found.word_of)] == [*range(len(found.words))]
    assert found.word_of == sorted(found.word_of)
    assert "".join(found.words).split() == ["".join(text.split())] * bool(text.strip())
    assert all(found.words) or not text.strip()


def test_attributes() -> None:
    (score,) = Predictor(language_model("decoder_only")).score(["cats, dogs"])
    assert isinstance(score, TextScore)
    assert score.words == ["cats", ",", "dogs"]
    assert "".join(score.tokens).replace("Ġ", " ").strip() == "cats, dogs"
    assert len(score.nats) == len(score.tokens)
