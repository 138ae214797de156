"""Precision, recall and F1 of entities, against the rules of the CoNLL evaluation written another way."""

import logging
import random
from collections.abc import Iterator
from itertools import accumulate, product

import pytest
import torch
from seqeval.metrics import f1_score as seqeval_f1
from seqeval.metrics.sequence_labeling import get_entities
from seqeval.scheme import BILOU, IOB2, IOBES

from predicting import make_context
from small_models import build
from triptych.data import Characters, CorpusInfo, Example, collate
from triptych.tasks import Tagging
from triptych.tasks.tagging import entities, scheme_of
from triptych.training import TrainingModule

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
    [
        ("O B-X I-X", "BIO"), ("I-a-b O", "IO"), ("O B-X I-X E-X S-X", "BIOES"), ("O I-X E-X", "BIOES"),
        ("O B-X I-X L-X U-X", "BILOU"), ("O U-X B-Y L-Y", "BILOU"), ("B-X M-X E-X S-X", "BMES"),
        ("O B I", "BIO, untyped"),
        ("B M E S", "BMES, untyped"), ("O B I L U", "BILOU, untyped"), ("O B I E S", "BIOES, untyped"),
        ("I O", "IO, untyped"),
        ("NOUN O", ""), ("O", ""), ("B- O", ""), ("B-X NOUN", ""), ("B-X I O", ""), ("B-X M-X L-X", ""), ("A B", ""),
        ("S O", ""), ("0 1", ""), ("X-B O", ""), ("", ""),
    ],
)  # fmt: skip
def test_which_scheme_tags_have(tags: str, expected: str) -> None:
    assert scheme_of(tags.split()) == expected


SCHEMES = {"BIO": IOB2, "BIOES": IOBES, "BILOU": BILOU, "BMES": IOBES}
"""seqeval's of each; it has no BMES, in which BIOES has another letter."""
LETTERS = {"BIO": "BIIB", "BIOES": "BIES", "BILOU": "BILU", "BMES": "BMES"}  # first, inner, last, only


Sentence = tuple[int, set[tuple[str, int, int]]]


def sentences() -> Iterator[Sentence]:
    """How many words, and the entities among them: all rows of three parts of one to three words, entities or none."""
    for parts in product(product(["", "X", "Y-Z"], [1, 2, 3]), repeat=3):
        ends = list(accumulate(size for _, size in parts))
        yield ends[-1], {(kind, end - size, end) for (kind, size), end in zip(parts, ends, strict=True) if kind}


def written(sentence: Sentence, letters: str, is_typed: bool = True) -> list[str]:
    """The tags of such a sentence."""
    tags = ["O"] * sentence[0]
    for kind, start, end in sentence[1]:
        first, inner, last, only = (f"{letter}-{kind}" if is_typed else letter for letter in letters)
        tags[start:end] = [only] if end - start == 1 else [first, *[inner] * (end - start - 2), last]
    return tags


@pytest.mark.parametrize("is_typed", [True, False])
@pytest.mark.parametrize("scheme", LETTERS)
def test_entities_of_each_scheme_are_those_that_were_written(scheme: str, is_typed: bool) -> None:
    for sentence in sentences():
        expected = {(kind if is_typed else "", start, end) for kind, start, end in sentence[1]}
        assert entities(written(sentence, LETTERS[scheme], is_typed)) == expected


@pytest.mark.parametrize("scheme", LETTERS)
def test_f1_is_seqevals(scheme: str) -> None:
    """Of sentences by the scheme's rules; seqeval's strict mode reads no others."""
    by_length: dict[int, list[list[str]]] = {}
    for sentence in sentences():
        by_length.setdefault(sentence[0], []).append(written(sentence, LETTERS[scheme]))
    for truths in by_length.values():
        guesses = random.Random(0).sample(truths, len(truths))
        both = sum(len(entities(truth) & entities(guess)) for truth, guess in zip(truths, guesses, strict=True))
        found, true = (sum(len(entities(tags)) for tags in side) for side in (guesses, truths))
        theirs = [[[tag.replace("M-", "I-") for tag in tags] for tags in side] for side in (truths, guesses)]
        expected = seqeval_f1(*theirs, mode="strict", scheme=SCHEMES[scheme])
        assert 0 < expected < 1
        assert 2 * both / (found + true) == pytest.approx(expected)


def test_of_any_tags_they_are_seqevals() -> None:
    """Also where the tags break the rules of their scheme."""
    for tags in map(list, product(["O", "B", "I", "E", "S"], repeat=4)):
        assert entities(tags) == {("", start, end + 1) for _, start, end in get_entities(tags)}
    for tags in map(list, product(TAGS, repeat=3)):
        assert entities(tags) == {(kind, start, end + 1) for kind, start, end in get_entities(tags)}


LABELS = ("O", "B-X", "I-X", "B-Y", "I-Y")
SENTENCES = [  # the words, their tags, and the tags that are guessed
    ("abcd", "B-X I-X O B-Y", "B-X I-X O B-X"),
    ("ab", "O B-Y", "O B-Y"),
    ("abcdefgh", "B-X I-X O O O B-Y I-Y O", "B-X O O O O B-Y I-Y O"),  # has room for five
]


def make_task(tags: tuple[str, ...]) -> Tagging:
    """Of networks that know the words of the sentences."""
    tokenizer = Characters().train([text for text, *_ in SENTENCES])
    network = build("encoder_only", vocab_size=tokenizer.vocab_size, num_outputs=5)
    context = make_context(network, tokenizer, 6, corpus=CorpusInfo(tag_labels=tags))
    return Tagging(context, label_smoothing=0.0)


def test_record_and_log_say_how_tags_are_scored(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for tags, metrics, signature in (
        (("O", "B-X", "L-X"), {"accuracy", "entity_precision", "entity_recall", "entity_f1"},
         ("entity_f1", "tags:BILOU|match:words and type|CoNLL-2003")),
        (("O", "B", "L"), {"accuracy", "entity_precision", "entity_recall", "entity_f1"},
         ("entity_f1", "tags:BILOU, untyped|match:words")),
        (("NOUN", "X"), {"accuracy"}, ("accuracy", "each tag by itself: the tags are not IO, BIO, BIOES, BILOU, BMES")),
    ):  # fmt: skip
        task = make_task(tags)
        assert {*task.make_metrics("test")} == metrics
        assert task.signatures == dict([signature])
        task.on_train_start()
        assert ": ".join(signature) in caplog.messages


def measured(size: int, guesses: list[str]) -> dict[str, float]:
    """The metrics of these sentences, so many at a time."""
    task = make_task(LABELS)
    examples = [Example(text, words=tuple(text), tags=tuple(tags.split())) for text, tags, _ in SENTENCES]
    items = task.enforce_max_length(task.encode(examples))
    assert [item.num_scored for item in items] == [4, 2, 5]
    metrics = TrainingModule(task).metrics_of("val")
    for i in range(0, len(items), size):
        batch = collate(items[i : i + size])
        logits = torch.zeros(*batch.inputs.shape, len(LABELS))
        for row, guess in enumerate(guesses[i : i + size]):
            for place, tag in enumerate(guess.split(), 1):
                if place < batch.inputs.shape[1]:
                    logits[row, place, LABELS.index(tag)] = 1
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(task, "forward", lambda batch, logits=logits: logits)
            task.evaluate(batch, metrics, "val")
    return task.derived_metrics({name: float(metric.compute()) for name, metric in metrics.items()})


def test_micro_averages_over_all_sentences_and_what_was_cut_is_missed() -> None:
    """Right are 3 of 4, 2 of 2, and 4 of 8 words, of which three are cut away; found are 2 + 1 + 1 entities, of which
    1 + 1 + 0 are right; there are 2 + 1 + 2, of which one is cut away."""
    for size in (1, 2, 3):
        found = measured(size, [guess for *_, guess in SENTENCES])
        assert found["accuracy"] == 9 / 14
        assert found["entity_precision"] == 2 / 4
        assert found["entity_recall"] == 2 / 5
        assert found["entity_f1"] == pytest.approx(2 * (2 / 4) * (2 / 5) / (2 / 4 + 2 / 5))


def test_of_no_entities_found_the_shares_are_zero() -> None:
    found = measured(3, ["O " * 8] * 3)
    assert [found[f"entity_{name}"] for name in ("precision", "recall", "f1")] == [0, 0, 0]
