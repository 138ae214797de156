"""Precision, recall and F1 of entities, against the rules of the CoNLL evaluation written another way."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch

from triptych.data import Characters, CorpusFacts, Example, collate
from triptych.tasks import Setup, Tagging
from triptych.tasks.tagging import entities, mark_entities
from triptych.training.optimizers import AdamW
from triptych.training.schedules import Linear

TAGS = ("O", *(f"{prefix}-{kind}" for kind in ("X", "YZ") for prefix in "BIES"))


def begins(before: str, after: str) -> bool:
    """Whether an entity begins at the second of two tags."""
    if after == "O":
        return False
    if after[0] in "BS" or before == "O" or before[0] in "ES":
        return True
    return before.partition("-")[2] != after.partition("-")[2]


def brute_force(tags: list[str]) -> set[tuple[str, int, int]]:
    """All spans that begin as an entity does, and go on as one does, as far as they can."""
    spans = set()
    for start in range(len(tags)):
        if begins(tags[start - 1] if start else "O", tags[start]):
            end = start + 1
            while end < len(tags) and tags[end] != "O" and not begins(tags[end - 1], tags[end]):
                end += 1
            spans.add((tags[start].partition("-")[2], start, end))
    return spans


def test_entities_are_those_of_the_conll_evaluation() -> None:
    """Of all sentences of up to four words with such tags: BIO, IOB1 and BIOES are among them, and much else."""
    for length in range(5):
        for tags in map(list, product(TAGS, repeat=length)):
            assert entities(tags) == brute_force(tags)


@pytest.mark.parametrize(
    ("tags", "expected"),
    [("O B-X I-X", True), ("I-a-b O", True), ("NOUN O", False), ("O", False), ("B- O", False), ("B-X NOUN", False)],
)
def test_which_tags_mark_entities(tags: str, expected: bool) -> None:
    assert mark_entities(tags.split()) == expected


LABELS = ("O", "B-X", "I-X", "B-Y", "I-Y")
SENTENCES = [  # the words, their tags, and the tags that are guessed
    ("abcd", "B-X I-X O B-Y", "B-X I-X O B-X"),
    ("ab", "O B-Y", "O B-Y"),
    ("abcdefgh", "B-X I-X O O O B-Y I-Y O", "B-X O O O O B-Y I-Y O"),  # has room for five
]


def measured(build: Callable[..., Any], size: int, guesses: list[str]) -> dict[str, float]:
    """The metrics of these sentences, so many at a time."""
    words = [text for text, *_ in SENTENCES]
    tokenizer = Characters().train(words)
    setup = Setup(
        network=build("encoder_only", vocab_size=tokenizer.vocab_size, num_outputs=5),
        tokenizer=tokenizer,
        corpus=CorpusFacts(tag_labels=LABELS),
        optimizer=AdamW(lr=1e-2, beta1=0.9, beta2=0.98, eps=1e-9, weight_decay=0.0),
        schedule=Linear(warmup_steps=2, max_steps=10, min_factor=0.0),
        seed=0,
        max_length=6,
        truncates=True,
    )
    task = Tagging(setup, label_smoothing=0.0)
    examples = [Example(text, words=tuple(text), tags=tuple(tags.split())) for text, tags, _ in SENTENCES]
    items = task.fit(task.encode(examples))
    assert [item.num_scored for item in items] == [4, 2, 5]
    metrics = task.metrics_of("val")
    for i in range(0, len(items), size):
        batch = collate(items[i : i + size])
        logits = torch.zeros(*batch.tokens.shape, len(LABELS))
        for row, guess in enumerate(guesses[i : i + size]):
            for place, tag in enumerate(guess.split(), 1):
                if place < batch.tokens.shape[1]:
                    logits[row, place, LABELS.index(tag)] = 1
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(task, "forward", lambda batch, logits=logits: logits)
            task.update_metrics(metrics, batch)
    return task.derived_metrics({name: float(metric.compute()) for name, metric in metrics.items()})


def test_micro_averages_over_all_sentences_and_what_was_cut_is_missed(build: Callable[..., Any]) -> None:
    """Right are 3 of 4, 2 of 2, and 4 of 8 words, of which three are cut away; found are 2 + 1 + 1 entities, of which
    1 + 1 + 0 are right; there are 2 + 1 + 2, of which one is cut away."""
    for size in (1, 2, 3):
        found = measured(build, size, [guess for *_, guess in SENTENCES])
        assert found["accuracy"] == 9 / 14
        assert found["entity_precision"] == 2 / 4
        assert found["entity_recall"] == 2 / 5
        assert found["entity_f1"] == pytest.approx(2 * (2 / 4) * (2 / 5) / (2 / 4 + 2 / 5))


def test_of_no_entities_found_the_shares_are_zero(build: Callable[..., Any]) -> None:
    found = measured(build, 3, ["O " * 8] * 3)
    assert [found[f"entity_{name}"] for name in ("precision", "recall", "f1")] == [0, 0, 0]
