"""Images and what is seen in them: layouts, answers of each architecture, refusals."""

from typing import Any

import numpy as np
import pytest
import torch
from sacrebleu.metrics.chrf import CHRF

from predicting import (
    GREEDY,
    check_empty_batch,
    check_unfit,
    evaluating,
    learn,
    make_context,
    predict,
    reading,
    words_of,
)
from triptych.data import DrawnDigits, Example, Image, collate
from triptych.models.generation import BeamSearch
from triptych.nn import PatchEmbedding
from triptych.tasks import Captioning
from triptych.tasks.metric_specs import EXACT_MATCH
from triptych.training import TrainingModule

every_architecture = pytest.mark.parametrize("architecture", ["full", "decoder_only", "prefix_lm"])
DRAWN = DrawnDigits(
    languages=["en", "de"], min_digits=1, max_digits=2, noise=0.1, levels=256, num_train=12, num_validation=2,
    num_test=4, seed=1,
)  # fmt: skip
CAPTIONS = [example.target or "" for example in DRAWN.splits().train]
TOKENIZER = words_of(CAPTIONS)


def make_task(architecture: str, *, max_length: int = 80) -> Any:
    patches = PatchEmbedding(image_size=[12, 36], patch_size=[6, 6], num_channels=3, d_model=32, normalized=True)
    network = reading(architecture, patches, TOKENIZER.vocab_size, max_length)
    context = make_context(network, TOKENIZER, max_length)
    return Captioning(context, label_smoothing=0.0, max_new_tokens=4, **GREEDY)


@every_architecture
def test_what_is_seen_is_written(architecture: str) -> None:
    """Images that are known by heart, each by itself and beside others, by arrays and by what the corpus has."""
    torch.manual_seed(0)
    task, examples = make_task(architecture), DRAWN.splits().train[:5]
    assert learn(task, task.encode(examples), steps=400, until=0.02)[-1] < 0.1
    images, captions = [task.model_input(example) for example in examples], [example.target for example in examples]
    assert predict(task, images) == captions
    assert predict(task, [np.asarray(images[3]).tolist()]) == captions[3:4]
    task.search = BeamSearch(3, 1.0, early_stopping=False)
    assert predict(task, images[:3]) == captions[:3]


@every_architecture
def test_a_batch_is_the_sum_of_its_images(architecture: str) -> None:
    task = evaluating(make_task(architecture))
    items = task.encode(DRAWN.splits().train[:5])
    losses = [float(task.training_loss(collate([item]))) for item in items]
    assert float(task.training_loss(collate(items))) == pytest.approx(sum(losses), rel=1e-4)


@every_architecture
def test_a_process_without_images_adds_nothing(architecture: str) -> None:
    task = make_task(architecture)
    check_empty_batch(task, task.encode(DRAWN.splits().train[:1])[0])


@every_architecture
def test_a_caption_that_is_too_long_is_cut(architecture: str) -> None:
    task = make_task(architecture, max_length=13)
    long = Example("long", target=" ".join(["one"] * 30), image=DRAWN.splits().train[0].image)
    (item,) = task.enforce_max_length(task.encode([long]))
    assert len(item.inputs) == len(item.labels) == 13
    assert item.source.shape == (3, 12, 36)
    assert predict(task, [long.image])


def test_what_cannot_be_read() -> None:
    task, good = make_task("full"), DRAWN.splits().train[0].image
    other = Image.of(np.zeros((3, 12, 30)))
    check_unfit(
        task,
        (Example("a", target="one"), "'a': there is no image"),
        (
            Example("a", target="one", image=other),
            r"'a': 3x12x30; expected 3x12x36 \(patches: channels, rows, columns\)",
        ),
        (Example("a", image=good), "'a': there is no target; expected what is to be written"),
        (Example("a", target=" ", image=good), "'a': an empty text; expected what is to be written"),
    )


def test_scores() -> None:
    task = make_task("full")
    metrics = TrainingModule(task).metrics_of("test")
    outputs, references = ["one two", "eins"], ["one three", "eins"]
    assert task.score(metrics, outputs, references) == {
        "chrf": [CHRF().sentence_score(a, [b]).score for a, b in zip(outputs, references, strict=True)]
    }
    assert float(metrics["chrf"].compute()) == pytest.approx(CHRF().corpus_score(outputs, [references]).score)
    assert [score.name for score in task.comparison_metrics("full", {}, {EXACT_MATCH.key: 1.0})] == [
        "exact_match",
        "chrf",
    ]
    assert [score.name for score in task.comparison_metrics("full", {}, {})] == ["chrf"]
