"""Images and what is seen in them: layouts, answers of each architecture, refusals."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sacrebleu.metrics.chrf import CHRF

from predicting import evaluating, predict
from triptych.data import CorpusInfo, DrawnDigits, Example, Image, WordLevel, collate
from triptych.data.batches.batch import empty_batch
from triptych.models import DecoderOnly, EncoderDecoder, PrefixLM
from triptych.models.generation import BeamSearch
from triptych.nn import PatchEmbedding, Targets
from triptych.tasks import Captioning, TaskContext
from triptych.tasks.metric_specs import EXACT_MATCH
from triptych.training import TrainingModule

Build = Callable[..., Any]
every_architecture = pytest.mark.parametrize("architecture", ["full", "decoder_only", "prefix_lm"])
DRAWN = DrawnDigits(
    languages=["en", "de"],
    min_digits=1,
    max_digits=2,
    noise=0.1,
    levels=256,
    num_train=12,
    num_validation=2,
    num_test=4,
    seed=1,
)
CAPTIONS = [example.target or "" for example in DRAWN.splits().train]
TOKENIZER = WordLevel(vocab_size=None, lowercase=False, split_punctuation=False, joint=True).train(CAPTIONS)


def make_task(build: Build, architecture: str, *, max_length: int = 80) -> Any:
    text = build(architecture, vocab_size=TOKENIZER.vocab_size, max_length=max_length, d_model=32, position="rotary")
    patches = PatchEmbedding(image_size=[12, 36], patch_size=[6, 6], num_channels=3, d_model=32, normalized=True)
    stacks = {name: getattr(text, name) for name in ("encoder", "decoder") if hasattr(text, name)}
    kinds: dict[str, Any] = {"full": EncoderDecoder, "decoder_only": DecoderOnly, "prefix_lm": PrefixLM}
    context = TaskContext(
        network=kinds[architecture](embedding=text.embedding, source_embedding=patches, head=text.head, **stacks),
        tokenizer=TOKENIZER,
        corpus=CorpusInfo(),
        seed=0,
        max_length=max_length,
        truncates=True,
    )
    return Captioning(
        context, label_smoothing=0.0, max_new_tokens=4, num_beams=1, length_penalty=1.0, early_stopping=False
    )


@every_architecture
def test_what_is_seen_is_written(architecture: str, build: Build) -> None:
    """Images that are known by heart, each by itself and beside others, by arrays and by what the corpus has."""
    torch.manual_seed(0)
    task, examples = make_task(build, architecture), DRAWN.splits().train[:5]
    batch = collate(task.encode(examples))
    optimizer = torch.optim.AdamW(task.network.parameters(), lr=4e-3)
    for _ in range(400):
        optimizer.zero_grad()
        loss = task.forward(batch, Targets(batch.scored, batch.labels.flatten()[batch.scored], 0.0)) / len(batch.scored)
        loss.backward()
        optimizer.step()
        if float(loss.detach()) < 0.02:
            break
    assert float(loss.detach()) < 0.1
    images, captions = [task.model_input(example) for example in examples], [example.target for example in examples]
    assert predict(task, images) == captions
    assert predict(task, [np.asarray(images[3]).tolist()]) == captions[3:4]
    task.search = BeamSearch(3, 1.0, early_stopping=False)
    assert predict(task, images[:3]) == captions[:3]


@every_architecture
def test_a_batch_is_the_sum_of_its_images(architecture: str, build: Build) -> None:
    task = evaluating(make_task(build, architecture))
    items = task.encode(DRAWN.splits().train[:5])
    losses = [float(task.training_loss(collate([item]))) for item in items]
    assert float(task.training_loss(collate(items))) == pytest.approx(sum(losses), rel=1e-4)


@every_architecture
def test_a_process_without_images_adds_nothing(architecture: str, build: Build) -> None:
    task = make_task(build, architecture)
    loss = task.training_loss(empty_batch(task.encode(DRAWN.splits().train[:1])[0], 7))
    loss.backward()
    assert float(loss) == 0
    assert all((p.grad is not None and not p.grad.any()) for p in task.network.parameters())


@every_architecture
def test_a_caption_that_is_too_long_is_cut(architecture: str, build: Build) -> None:
    task = make_task(build, architecture, max_length=13)
    long = Example("long", target=" ".join(["one"] * 30), image=DRAWN.splits().train[0].image)
    (item,) = task.enforce_max_length(task.encode([long]))
    assert len(item.inputs) == len(item.labels) == 13
    assert item.source.shape == (3, 12, 36)
    assert predict(task, [long.image])


def test_what_cannot_be_read(build: Build) -> None:
    task, good = make_task(build, "full"), DRAWN.splits().train[0].image
    other = Image.of(np.zeros((3, 12, 30)))
    for example, said in (
        (Example("a", target="one"), "'a': there is no image"),
        (
            Example("a", target="one", image=other),
            r"'a': 3x12x30; expected 3x12x36 \(patches: channels, rows, columns\)",
        ),
        (Example("a", image=good), "'a': there is no target"),
        (Example("a", target=" ", image=good), "'a': an empty text; expected what is to be written"),
    ):
        with pytest.raises(ValueError, match=said):
            task.encode([example])


def test_scores(build: Build) -> None:
    task = make_task(build, "full")
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
