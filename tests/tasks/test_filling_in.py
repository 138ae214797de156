"""Encoders that generate: their layout, their bound, and the texts that they fill in."""

import json
import math
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tiny
import triptych
from commands import run
from predicting import GREEDY, evaluating, make_context, predict
from small_models import build
from triptych.data import (
    BPE,
    IGNORE_INDEX,
    Bytes,
    Characters,
    CorpusInfo,
    Example,
    SpecialTokens,
    Tokenizer,
    WordLevel,
    collate,
)
from triptych.data.batches.windows import Windows
from triptych.models.generation import BeamSearch, Sampling
from triptych.tasks import LanguageModeling, Translation
from triptych.tasks.exact_sums import ExactMean
from triptych.tasks.masked_diffusion import draw_by_index, hide, propose_tokens

CHARACTERS = Characters().train(["abcdé 日"])
END, MASK = CHARACTERS.special.eos, CHARACTERS.special.mask
assert MASK is not None
EXAMPLES = [Example(text, target=text[::-1]) for text in ("abc", "日b", "cabd", "a", "éd")]


def make_task(*, tokenizer: Tokenizer = CHARACTERS, max_new_tokens: int = 8, **options: Any) -> Translation:
    network = build("encoder_only", vocab_size=tokenizer.vocab_size, d_model=32, d_ff=64, max_length=40)
    context = make_context(network, tokenizer, 40)
    settings: dict[str, Any] = {**GREEDY, "label_smoothing": 0.0, "bleu_tokenizer": "13a"} | options
    return Translation(context, max_new_tokens=max_new_tokens, **settings)


@pytest.fixture(scope="module")
def trained() -> Translation:
    """Has memorized ``EXAMPLES``."""
    torch.manual_seed(0)
    task = make_task()
    batch, optimizer = collate(task.encode(EXAMPLES)), torch.optim.AdamW(task.network.parameters(), lr=4e-3)
    for _ in range(400):
        optimizer.zero_grad()
        (task.training_loss(batch) / batch.num_labels_in_step).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    task.network.eval()
    return task


def test_layout() -> None:
    """Begin, source, separator; then the target and end tokens in all places, each a target."""
    (item,) = make_task().encode([Example("abc", target="日b")])
    special, (source, target) = CHARACTERS.special, CHARACTERS.encode(["abc", "日b"])
    places = [*target, *[END] * 6]
    assert item.inputs.tolist() == [*special.begin, *source, special.sep, *places]
    assert item.labels.tolist() == [IGNORE_INDEX] * 5 + places
    assert item.prefix == 5


@given(source=st.integers(0, 60), target=st.integers(0, 12))
def test_truncated_examples_fit_and_keep_their_separator(source: int, target: int) -> None:
    task = make_task()
    task.truncates = True
    (whole,) = task.encode([Example("a" * source, target="b" * target)])
    (item,) = task.enforce_max_length([whole])
    special = CHARACTERS.special
    assert len(item.inputs) == len(item.labels) <= 40
    assert item.inputs[item.prefix - 1] == special.sep
    assert (item.labels[: item.prefix] == IGNORE_INDEX).all()
    assert CHARACTERS.decode(item.labels[item.prefix :].tolist()) == "b" * (target if whole is item else min(target, 7))


def test_the_loss_of_a_step_is_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand from the logits of the batch whose places are hidden, in float64; the evaluation has the same terms."""
    task = make_task()
    task.network.double()
    batch = collate(task.encode(EXAMPLES), indices=np.arange(len(EXAMPLES)))
    shares, orders = draw_by_index(batch, task.seed)
    monkeypatch.setattr("triptych.tasks.generative.draw", lambda batch: (shares, orders))
    hidden, weights = hide(batch, MASK or 0, shares, orders)
    assert ((hidden.inputs == MASK).sum(1) == (shares * 8).floor() + 1).all()
    losses = -task.network(hidden.inputs, hidden.mask).log_softmax(-1)
    expected = (losses.gather(2, batch.labels.clamp(min=0)[..., None])[..., 0] * weights).sum()
    torch.testing.assert_close(task.training_loss(batch), expected)
    metrics = task.make_metrics("val") | {"loss": task.make_metrics("val")["token_accuracy"]}
    with torch.no_grad():
        nats, _ = task.scored_tokens(metrics, batch)
    torch.testing.assert_close(nats.sum(), expected)
    assert float(metrics["loss"].compute()) == pytest.approx(
        expected.item() / sum(len(x.target or "") + 1 for x in EXAMPLES)
    )


FILLINGS: list[dict[str, Any]] = [
    {}, {"num_inference_steps": 1}, {"num_inference_steps": 3}, {"filling_order": "random"},
    {"filling_order": "left_to_right"},
]  # fmt: skip


@pytest.mark.parametrize("options", FILLINGS, ids=str)
def test_it_generates_what_it_learned(trained: Translation, options: dict[str, Any]) -> None:
    task = make_task(**options)
    task.network = trained.network
    assert predict(task, [x.text for x in EXAMPLES]) == [x.target for x in EXAMPLES]


def test_batched_texts_equal_single_ones(trained: Translation) -> None:
    texts = ["abc", "日b", "cabd", "dddd", "", "éa"]
    assert predict(trained, texts, batch_size=4) == [predict(trained, [text])[0] for text in texts]


def test_samples_depend_on_the_seed_alone(trained: Translation) -> None:
    task = make_task()
    task.network = trained.network

    def sample(seed: int) -> list[str]:
        task.sampling = Sampling(temperature=3.0, seed=seed)
        return predict(task, ["abc"] * 6)

    assert sample(1) == sample(1) != sample(2)
    assert len(set(sample(1))) > 1


@given(data=st.data())
def test_no_text_ends_before_open_places_that_go_on(data: st.DataObject) -> None:
    """Brute force over the places of a row."""
    count = data.draw(st.integers(1, 7))
    is_open = torch.tensor([data.draw(st.lists(st.booleans(), min_size=count, max_size=count))])
    likeliest = torch.tensor([data.draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))])
    logits = torch.nn.functional.one_hot(likeliest, 4).float() + torch.tensor([0.0, 0.0, 0.0, 0.5])
    chosen = propose_tokens(logits, is_open, 2, lambda rows: rows.argmax(-1))[0].tolist()
    for place, token in enumerate(chosen):
        later = [not is_open[0, i] or likeliest[0, i] == 2 for i in range(place + 1, count)]
        may_end = likeliest[0, place] == 2 and all(later)
        assert (token == 2) == may_end
        assert token == (likeliest[0, place] if may_end or likeliest[0, place] != 2 else 3)


LINES = ["of the line", " é  日本\t", "", "a", "other of the lines of the text"]
TOKENIZERS = {
    "bytes": Bytes().train(LINES),
    "characters": Characters().train(LINES),
    "bpe": BPE(vocab_size=280).train(LINES),
    "words": WordLevel().train(LINES),
}


def language_model(architecture: str, tokenizer: Tokenizer, *, is_stream: bool) -> LanguageModeling:
    torch.manual_seed(0)
    network = build(architecture, vocab_size=tokenizer.vocab_size, max_length=40)
    context = make_context(network, tokenizer, 40, corpus=CorpusInfo(is_stream=is_stream))
    return evaluating(LanguageModeling(context, label_smoothing=0.0, max_new_tokens=6))


def evaluate(task: LanguageModeling, items: Any) -> dict[str, float]:
    metrics = {"loss": ExactMean(), **task.make_metrics("val")}
    with torch.no_grad():
        for start in range(0, len(items), 2):
            task.evaluate(collate(items[start : start + 2], indices=np.arange(start, len(items))[:2]), metrics, "val")
    return {name: float(metric.compute()) for name, metric in metrics.items()}


@pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS.keys())
class TestLanguageModeling:
    """An encoder has an upper bound on the bits per byte of a decoder's targets."""

    def test_lines_have_the_targets_of_a_decoder(self, tokenizer: Tokenizer) -> None:
        encoder, decoder = (language_model(x, tokenizer, is_stream=False) for x in ("encoder_only", "decoder_only"))
        texts = [Example(line) for line in LINES]
        items, found = encoder.encode(texts), evaluate(encoder, encoder.encode(texts))
        assert {len(item.inputs) for item in items} == {40}
        assert {name: found[name] for name in ("bytes", "characters")} == {
            name: value
            for name, value in evaluate(decoder, decoder.encode(texts)).items()
            if name in ("bytes", "characters")
        }
        num_tokens = sum(len(ids) + 1 for ids in tokenizer.encode(LINES))
        assert found["loss"] == pytest.approx(found["nats"] / num_tokens)

    def test_windows_have_the_targets_of_a_decoder(self, tokenizer: Tokenizer) -> None:
        (ids,) = tokenizer.encode([" ".join(LINES * 3)])
        encoder, decoder = (language_model(x, tokenizer, is_stream=True) for x in ("encoder_only", "decoder_only"))
        found = []
        for task in (encoder, decoder):
            length = task.window_length
            split = Windows([np.array(ids)], length=length, stride=length, encode=task.encode_window)
            items = [split[i] for i in range(len(split.sizes))]
            assert max(len(item.inputs) for item in items) <= 40
            found.append(evaluate(task, items))
        assert [found[0][x] for x in ("bytes", "characters")] == [found[1][x] for x in ("bytes", "characters")]
        assert sum(len(item.labels[item.labels != IGNORE_INDEX]) for item in items) == len(ids) - 1

    def test_the_loss_is_the_bound(self, tokenizer: Tokenizer) -> None:
        """By hand: the logits of the batch whose places are hidden, in float64; the last end tokens count, too."""
        task = language_model("encoder_only", tokenizer, is_stream=False)
        task.network.double()
        batch = collate(task.encode([Example(line) for line in LINES]), indices=np.arange(len(LINES)))
        mask = tokenizer.special.mask
        assert mask is not None
        hidden, weights = hide(batch, mask, *draw_by_index(batch, task.seed))
        assert ((hidden.inputs == mask) == (weights > 0)).all()
        assert not (hidden.inputs == mask)[:, 0].any()
        with torch.no_grad():
            losses = -task.network(hidden.inputs, hidden.mask).log_softmax(-1)
        expected = (losses.gather(2, batch.labels.clamp(min=0)[..., None])[..., 0] * weights).sum()
        metrics = {"loss": ExactMean(), **task.make_metrics("val")}
        with torch.no_grad():
            task.evaluate(batch, metrics, "val")
        assert float(metrics["nats"].compute()) == pytest.approx(expected.item())

    def test_it_continues_a_text(self, tokenizer: Tokenizer) -> None:
        task = language_model("encoder_only", tokenizer, is_stream=False)
        texts = predict(task, ["of the", "", "a " * 60])
        assert len(texts) == 3
        assert texts[0] == predict(task, ["of the"])[0]


@pytest.mark.nightly
def test_the_bound_is_tight_after_training() -> None:
    """A chain of two letters, 8 places. The gap between the bound, by enumeration of all texts and all sets of hidden
    places, and the entropy is at most 1 % of the entropy."""
    torch.manual_seed(0)
    tokenizer = Characters().train(["ab"])
    bos, mask = tokenizer.special.bos, tokenizer.special.mask
    assert mask is not None
    texts = np.array([tokenizer.encode(["".join(text)])[0] for text in product("ab", repeat=8)])
    is_b = texts == tokenizer.encode(["b"])[0][0]
    steps = np.array([[0.9, 0.1], [0.4, 0.6]])[is_b[:, :-1].astype(int), is_b[:, 1:].astype(int)]
    p = np.where(is_b[:, 0], 0.2, 0.8) * steps.prod(1)
    entropy = -(p * np.log(p)).sum()

    network = build("encoder_only", vocab_size=tokenizer.vocab_size, d_model=32, d_ff=64, max_length=40)
    context = make_context(network, tokenizer, 40, corpus=CorpusInfo(is_stream=True))
    task = LanguageModeling(context, label_smoothing=0.0, max_new_tokens=6)
    items = [task.encode_window(np.append(bos, text)) for text in texts]
    optimizer = torch.optim.AdamW(network.parameters(), lr=4e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4000)
    random = np.random.default_rng(0)
    for _ in range(4000):
        optimizer.zero_grad()
        batch = collate([items[i] for i in random.choice(256, 128, p=p)])
        (task.training_loss(batch) / batch.num_labels_in_step).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()

    network.eval()
    gap = -entropy
    for hidden in map(list, product([False, True], repeat=8)):
        if count := sum(hidden):
            inputs, labels = np.where(hidden, mask, texts), torch.from_numpy(texts)
            whole = torch.from_numpy(np.insert(inputs, 0, bos, axis=1))
            with torch.no_grad():
                log_p = network(whole)[:, 1:].double().log_softmax(-1).gather(2, labels[..., None])[..., 0]
            nats = -log_p[:, hidden].sum(1).numpy()
            gap += (p * nats).sum() / count / math.comb(8, count)
    assert 0 <= gap <= 0.01 * entropy


def without_a_mask() -> Tokenizer:
    return Tokenizer.from_json(CHARACTERS.to_json(), SpecialTokens(mask=None))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"filling_order": "random_order"}, "task.filling_order=random_order: expected one of .*did you mean random"),
        ({"num_inference_steps": 9}, "task.num_inference_steps=9: expected 1 to 8, the places of a target, or null"),
        ({"label_smoothing": 0.1}, "task.label_smoothing: not supported by an encoder that fills in; expected 0.0"),
        ({"z_loss": 1e-4}, "task.z_loss: not supported by an encoder that fills in; expected 0.0"),
        ({"num_beams": 4}, "task.num_beams=4: an encoder fills in its text; expected 1"),
        ({"tokenizer": without_a_mask()}, "model=encoder_only fills in masks, and the tokenizer has no mask token"),
    ],
    ids=str,
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_task(**options)


def test_beams_are_refused_later_too(trained: Translation) -> None:
    task = make_task()
    task.network, task.search = trained.network, BeamSearch(num_beams=3)
    with pytest.raises(ValueError, match="beam search: an encoder fills in its text; expected num_beams=1"):
        predict(task, ["abc"])


STEPS = [
    "trainer.max_steps=8",
    "trainer.val_check_interval=4",
    "scheduler.warmup_steps=2",
    "logger=csv",
    "callbacks.checkpoints.keep_latest=3",
]


def test_through_the_commands(tmp_path: Path) -> None:
    """A run that resumes ends with the same weights and scores; the model evaluates and predicts."""
    settings = ["experiment=dates/translation", "model=encoder_only", *tiny.TINY, "task.max_new_tokens=16", *STEPS]
    summaries = []
    for more in (["run_dir=whole"], ["resume=whole/checkpoints/step-00000004.ckpt", "run_dir=resumed"]):
        finished = run("train", *settings, *more, cwd=tmp_path)
        assert finished.returncode == 0, finished.stderr
        assert "Traceback" not in finished.stderr
        summaries.append(json.loads((tmp_path / more[-1][8:] / "summary.json").read_text()))
    assert summaries[0]["weights_sha256"] == summaries[1]["weights_sha256"]
    assert summaries[0]["metrics"] == summaries[1]["metrics"]
    rows = [json.loads(line) for line in (tmp_path / "whole/predictions.jsonl").read_text().splitlines()]
    answers = triptych.load(tmp_path / "whole").predict([row["input"] for row in rows])
    assert answers == [row["output"] for row in rows]
