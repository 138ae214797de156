"""Images for texts: pixels as tokens, likelihoods against enumeration, what is drawn, refusals."""

import math
from itertools import combinations, permutations, product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cases import by_day
from predicting import check_unfit, evaluating, learn, make_context, predict, words_of
from small_models import build, randomize
from triptych.data import Example, Image, collate
from triptych.data.batches.batch import empty_batch
from triptych.models.generation import Sampling
from triptych.tasks import ImageGeneration

ARCHITECTURES = ("full", "decoder_only", "prefix_lm", "encoder_only")
every_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES)
every_writer = pytest.mark.parametrize("architecture", ARCHITECTURES[:3])
TOKENIZER = words_of(["one two three four"])
WORDS = ["one", "two", "three", "four"]


def make_task(
    architecture: str,
    *,
    image_size: tuple[int, int] = (1, 3),
    num_channels: int = 1,
    levels: int = 2,
    steps: int | None = None,
    max_length: int = 24,
) -> Any:
    torch.manual_seed(0)
    extra = ImageGeneration.num_extra_tokens({"levels": levels, "num_channels": num_channels})
    vocab_size = TOKENIZER.vocab_size + extra
    network = build(architecture, vocab_size=vocab_size, max_length=100, d_model=32, position="learned")
    context = make_context(network, TOKENIZER, max_length)
    task = ImageGeneration(
        context, image_size=image_size, num_channels=num_channels, levels=levels, num_inference_steps=steps
    )
    return evaluating(task)


def test_an_image_may_be_filled_in_pixel_by_pixel_where_it_is_most_of_the_positions() -> None:
    """An image is no text, whose places are at most half of the positions."""
    task = make_task("encoder_only", image_size=(4, 5), steps=20, max_length=24)
    (drawn,) = predict(task, ["one"])
    assert drawn.shape == (1, 4, 5)


def example(pixels: Any, text: str = "one", *, brightest: int = 1) -> Example:
    return Example(f"the {text}", target=text, image=Image.of(np.array(pixels, dtype=float), brightest))


def test_pixels_are_hidden_alike_in_every_type_of_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """bfloat16 has 256 numbers from 0 to 1: too few to put an image's pixels into an order."""
    task = make_task("encoder_only")
    batch = collate(task.encode([example([[[0, 1, 1]]])]))
    drawn: list[tuple[torch.Tensor, ...]] = []
    monkeypatch.setattr(task, "_nats", lambda batch, *numbers: drawn.append(numbers) or torch.zeros(1, 1))
    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(0)
        torch.set_default_dtype(dtype)  # as within a step of bf16-true
        try:
            task.training_loss(batch)
        finally:
            torch.set_default_dtype(torch.float32)
    assert all(map(torch.equal, *drawn))


@given(data=st.data())
def test_pixels_are_tokens_and_back(data: st.DataObject) -> None:
    levels, channels = data.draw(st.integers(2, 6)), data.draw(st.sampled_from([1, 3]))
    height, width = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    task = make_task("full", image_size=(height, width), num_channels=channels, levels=levels)
    digits = np.array(
        [data.draw(st.integers(0, levels - 1)) for _ in range(channels * height * width)]
    ).reshape(channels, height, width)  # fmt: skip
    seen = Example("a", target="one", image=Image.of(digits / (levels - 1), levels - 1))
    codes = task.codes_of(seen)
    names = [int("".join(map(str, pixel)), levels) for pixel in digits.reshape(channels, -1).T]
    assert codes.tolist() == names
    assert (np.asarray(task.image_of(codes)) == np.asarray(Image.of(digits / (levels - 1)))).all()
    assert task.names_of((codes[:1] + task.first).tolist()) == ["/".join(map(str, digits.reshape(channels, -1)[:, 0]))]


@every_writer
def test_all_images_together_have_the_probability_1(architecture: str) -> None:
    """The loss of each is -log p, the product over the pixels that is computed here by hand."""
    task = make_task(architecture)
    randomize(task.network)
    images = [np.array(bits).reshape(1, 1, 3) for bits in product((0, 1), repeat=3)]
    total = 0.0
    with torch.no_grad():
        for image in images:
            (item,) = task.encode([example(image)])
            batch = collate([item])
            loss = float(task.training_loss(batch))
            logits = task.forward(batch)[0].double()[-3:, task.first : task.first + 2].log_softmax(-1)
            codes = torch.from_numpy(item.labels[-3:]) - task.first
            assert loss == pytest.approx(-float(logits.gather(1, codes[:, None]).sum()), rel=1e-5)
            total += math.exp(-loss)
    assert total == pytest.approx(1, abs=1e-5)


def test_of_an_encoder_it_is_the_mean_over_all_orders() -> None:
    """By hand: each pixel in turn, the others of its order still hidden."""
    task = make_task("encoder_only")
    randomize(task.network)
    (item,) = task.encode([example([[[1, 0, 1]]], "two")])
    batch = collate([item])
    pixels, mask = item.inputs[-3:].copy(), task.first + task.num_codes
    orders = []
    with torch.no_grad():
        for order in permutations(range(3)):
            nats, seen = 0.0, np.full(3, mask)
            for place in order:
                tokens = torch.from_numpy(np.append(item.inputs[:-3], seen))[None]
                logits = task.network(tokens, torch.ones_like(tokens, dtype=torch.bool))[0, -3:]
                codes = logits[:, task.first : task.first + 2].double().log_softmax(-1)
                nats -= float(codes[place, pixels[place] - task.first])
                seen[place] = pixels[place]
            orders.append(nats)
        found = []
        for count in (1, 2, 3):
            subsets = list(combinations(range(3), count))
            each = []
            for subset in subsets:
                ranks = torch.ones(batch.labels.shape)
                ranks[0, [len(item.labels) - 3 + place for place in subset]] = 0.5
                nats, _ = task._nats(batch, torch.tensor([(count - 0.5) / 3]), ranks)
                assert (nats > 0).sum() == count
                each.append(float(nats.sum()))
            found.append(np.mean(each))
    assert np.mean(found) == pytest.approx(np.mean(orders), rel=1e-5)


@pytest.mark.parametrize("architecture", by_day(ARCHITECTURES, ("full", "encoder_only")))
def test_what_was_learned_by_heart_is_drawn(architecture: str) -> None:
    """Each text has its image, in three colours; drawn by itself and beside others."""
    task = make_task(architecture, image_size=(2, 3), num_channels=3, levels=3, steps=6)
    random = np.random.default_rng(0)
    examples = [example(random.integers(3, size=(3, 2, 3)) / 2, word, brightest=2) for word in WORDS]
    items = task.encode(examples)
    task.network.train()
    learn(task, items, steps=250, lr=1e-2)
    assert collate(items).num_labels_in_step == 4 * 6
    task.sampling = Sampling()
    for asked in (WORDS, WORDS[2:3]):
        drawn = predict(task, asked)
        for image, word in zip(drawn, asked, strict=True):
            right = examples[WORDS.index(word)].image
            assert right is not None
            np.testing.assert_allclose(image, right, atol=0.5 / 255)


@every_architecture
def test_what_is_drawn_is_as_likely_as_the_loss_says(architecture: str) -> None:
    """Frequencies of all images of three pixels; an encoder that fills in one pixel at a time has no order."""
    task = make_task(architecture)
    randomize(task.network)
    drawn = predict(task, ["three"] * 3000, batch_size=1000)
    counts = np.zeros(8)
    for image in drawn:
        counts[int("".join(str(round(float(x))) for x in np.asarray(image).ravel()), 2)] += 1
    expected = []
    for bits in product((0, 1), repeat=3):
        (item,) = task.encode([example(np.array(bits).reshape(1, 1, 3), "three")])
        batch = collate([item])
        with torch.no_grad():
            if architecture != "encoder_only":
                expected.append(math.exp(-float(task.training_loss(batch))))
            else:
                expected.append(np.mean([by_order(task, item, order) for order in permutations(range(3))]))
    assert sum(expected) == pytest.approx(1, abs=1e-5)
    np.testing.assert_allclose(counts / 3000, expected, atol=0.04)  # 4 standard deviations


def by_order(task: Any, item: Any, order: tuple[int, ...]) -> float:
    """The probability of an image whose pixels come in this order."""
    probability, seen = 1.0, np.full(3, task.first + task.num_codes)
    for place in order:
        tokens = torch.from_numpy(np.append(item.inputs[:-3], seen))[None]
        logits = task.network(tokens, torch.ones_like(tokens, dtype=torch.bool))[0, -3:]
        codes = logits[:, task.first : task.first + 2].double().softmax(-1)
        probability *= float(codes[place, item.inputs[-3:][place] - task.first])
        seen[place] = item.inputs[-3:][place]
    return probability


@every_writer
def test_a_batch_is_the_sum_of_its_images(architecture: str) -> None:
    task = make_task(architecture)
    items = task.encode([example([[[0, 1, 1]]], text) for text in ("one two", "four", "three three one")])
    with torch.no_grad():
        losses = [float(task.training_loss(collate([item]))) for item in items]
        assert float(task.training_loss(collate(items))) == pytest.approx(sum(losses), rel=1e-4)


@every_architecture
def test_a_process_without_images_adds_nothing(architecture: str) -> None:
    task = make_task(architecture)
    loss = task.training_loss(empty_batch(task.encode([example([[[0, 1, 1]]])])[0], 7))
    loss.backward()
    assert float(loss.detach()) == 0
    assert all((p.grad is not None and not p.grad.any()) for p in task.network.parameters())


@every_architecture
def test_a_text_that_is_too_long_is_cut(architecture: str) -> None:
    task = make_task(architecture, max_length=9)
    (item,) = task.enforce_max_length(task.encode([example([[[0, 1, 1]]], " ".join(["one"] * 30))]))
    assert item.longest == 9
    assert (item.labels[-3:] - task.first).tolist() == [0, 1, 1]
    assert isinstance(predict(task, [" ".join(["one"] * 30)])[0], Image)


def test_numbers() -> None:
    task = make_task("full", num_channels=3)
    derived = task.derived_metrics({"loss": 3 * math.log(2), "token_accuracy": 0.5})
    assert derived["bits_per_dimension"] == pytest.approx(1)
    (score,) = task.comparison_metrics("full", {}, {})
    assert score.show(0.01234) == "0.0123 bits/dim"
    assert not score.higher_is_better


def test_what_cannot_be() -> None:
    for options, said in (
        ({"image_size": (0, 3)}, r"task\.image_size=\[0, 3\]: expected \[height, width\]"),
        ({"num_channels": 2}, r"task\.num_channels=2: expected 1 or 3"),
        ({"levels": 1}, r"task\.levels=1: expected 2 to 256"),
        ({"steps": 4}, r"task\.num_inference_steps=4: expected 1 to 3, the pixels of an image, or null"),
        ({"max_length": 5}, r"shape\.max_length=5: an image has 3 pixels, each of them a token; expected at least 6"),
    ):
        with pytest.raises(ValueError, match=said):
            make_task("decoder_only", **options)  # type: ignore[arg-type]
    task = make_task("decoder_only")
    good, other = Image.of(np.zeros((1, 1, 3))), Image.of(np.zeros((1, 2, 3)))
    check_unfit(
        task,
        (Example("a", target="one"), "'a': there is no image"),
        (
            Example("a", target="one", image=other),
            r"'a': 1x2x3; expected 1x3 or 1x1x3 \(task\.num_channels, task\.image_size: ch",
        ),
        (Example("a", image=good), "'a': there is no target; expected what is to be drawn"),
        (Example("a", target=" ", image=good), "'a': an empty text; expected what is to be drawn"),
    )
