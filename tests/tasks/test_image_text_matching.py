"""Images and texts that find each other: layouts, answers, zero-shot classes, refusals."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from parts import dual_encoder
from predicting import check_empty_batch, check_unfit, evaluating, learn, make_context, predict, words_of
from triptych.data import CorpusInfo, DrawnDigits, Example, Image, collate
from triptych.data.corpora.drawn_digits import WORDS
from triptych.tasks import ImageTextMatching
from triptych.tasks.contrastive import contrastive_loss
from triptych.training import TrainingModule

every_architecture = pytest.mark.parametrize("architecture", ["encoder_only", "decoder_only"])
DRAWN = DrawnDigits(
    languages=["en", "de"], min_digits=1, max_digits=1, noise=0.1, levels=256, num_train=40, num_validation=2,
    num_test=4, seed=1,
)  # fmt: skip
EXAMPLES = DRAWN.splits().train
TOKENIZER = words_of(["a small digit", *(example.target or "" for example in EXAMPLES)])
LABELS = tuple(map(str, range(10)))


def make_task(
    architecture: str,
    *,
    prompts: Sequence[str] = ("{}",),
    classes: Sequence[str] | None = None,
    labels: tuple[str, ...] = (),
) -> Any:
    torch.manual_seed(0)
    network = dual_encoder(
        architecture, vocab_size=TOKENIZER.vocab_size, image_size=[12, 24], patch_size=[6, 6], num_channels=3,
        outputs=16, pool="mean",
    )  # fmt: skip
    context = make_context(network, TOKENIZER, 6, corpus=CorpusInfo(labels=labels))
    return ImageTextMatching(context, prompts=prompts, classes=classes)


@every_architecture
def test_images_find_the_texts_that_they_were_trained_with(architecture: str) -> None:
    """Each by itself and beside others, by arrays and by what the corpus has; several have equal texts."""
    examples = EXAMPLES[:8]
    texts = [example.target or "" for example in examples]
    task = make_task(architecture, classes=list(dict.fromkeys(texts)))
    losses = learn(task, task.encode(examples), steps=150)
    assert losses[-1] < 0.5 * losses[0]
    images = [task.model_input(example) for example in examples]
    found = predict(task, images)
    assert [one.label for one in found] == texts
    assert all(sum(one.probabilities.values()) == pytest.approx(1) for one in found)
    assert [one.label for one in predict(task, [np.asarray(images[3]).tolist()])] == texts[3:4]
    assert task.reference(examples[0]) == texts[0]


@every_architecture
def test_the_loss_is_that_of_the_vectors(architecture: str) -> None:
    task = evaluating(make_task(architecture))
    batch = collate(task.encode(EXAMPLES[:9]))
    texts = [example.target for example in EXAMPLES[:9]]
    assert len({*batch.labels[:, 0].tolist()}) == len({*texts}) < 9
    keys = torch.tensor([texts.index(text) for text in texts])
    with torch.no_grad():
        assert float(task.training_loss(batch)) == pytest.approx(float(contrastive_loss(task.forward(batch), keys)))
    assert batch.num_labels_in_step == 9


@every_architecture
def test_a_process_without_images_adds_nothing(architecture: str) -> None:
    task = make_task(architecture)
    check_empty_batch(task, task.encode(EXAMPLES[:1])[0])


def test_a_class_is_the_mean_of_its_prompts() -> None:
    """Of unit vectors; the scale is that of all."""
    task = evaluating(make_task("decoder_only", prompts=["{}", "a small {} digit"]))
    found = task.vectors_of(["one", "zwei"])
    for name, vector in zip(["one", "zwei"], found, strict=True):
        single = evaluating(make_task("decoder_only"))
        parts = [F.normalize(single.vectors_of([text])[0], dim=0) for text in (name, f"a small {name} digit")]
        expected = F.normalize(parts[0] + parts[1], dim=0) * 5**0.5
        torch.testing.assert_close(vector, expected)


def test_a_text_that_is_too_long_keeps_its_end() -> None:
    task = make_task("decoder_only")
    long = Example("long", target=" ".join(["one"] * 30), image=EXAMPLES[0].image)
    (item,) = task.enforce_max_length(task.encode([long]))
    (whole,) = task.encode([long])
    assert len(item.inputs) == 6
    assert item.inputs[-1] == whole.inputs[-1]
    other = Example("other", target=" ".join(["one"] * 31), image=EXAMPLES[0].image)
    (cut,) = task.enforce_max_length(task.encode([other]))
    assert cut.labels == item.labels != whole.labels
    assert item.source.shape == (3, 12, 24)


def test_what_predict_chooses_from() -> None:
    assert make_task("encoder_only", labels=LABELS).labels == LABELS
    words = WORDS["en"].split()
    assert make_task("encoder_only", labels=LABELS, classes=words).labels == tuple(words)
    with pytest.raises(
        ValueError, match=r"task\.classes=.*: the data have 10 classes; expected a word for each of 0, 1"
    ):
        make_task("encoder_only", labels=LABELS, classes=["one", "two"])
    assert "zero_shot_accuracy" in TrainingModule(make_task("encoder_only", labels=LABELS)).metric_names("val")
    task = make_task("encoder_only")
    assert TrainingModule(task).metric_names("test") == [
        "loss",
        *(f"{way}_recall_{k}" for way in ("image_to_text", "text_to_image") for k in (1, 5, 10)),
    ]
    with pytest.raises(ValueError, match=r"classes=null: expected at least two texts to choose from, all different"):
        predict(task, [EXAMPLES[0].image])


def test_what_cannot_be() -> None:
    task, good = make_task("encoder_only"), EXAMPLES[0].image
    other = Image.of(np.zeros((3, 12, 30)))
    check_unfit(
        task,
        (Example("a", target="one"), "'a': there is no image"),
        (Example("a", target="one", image=other), r"'a': 3x12x30; expected 3x12x24"),
        (Example("a", image=good), "'a': there is no target; expected what belongs to the image"),
        (Example("a", target=" ", image=good), "'a': an empty text; expected what belongs to the image"),
    )
    for options, said in (
        ({"prompts": []}, r"task\.prompts=\[\]: expected texts with one {} in each"),
        ({"prompts": ["a photo"]}, r"task\.prompts=\['a photo'\]"),
        ({"classes": ["one"]}, r"classes=\['one'\]: expected at least two texts to choose from, all different"),
        ({"classes": ["one", "one"]}, r"classes=\['one', 'one'\]"),
    ):
        with pytest.raises(ValueError, match=said):
            make_task("encoder_only", **options)  # type: ignore[arg-type]
