"""Pairs of texts, similarity and question answering: what is read, what is scored, what is said; on every architecture.

Against scipy, torchmetrics' SQuAD and loops over float64.
"""

import math
import random
import string
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close
from torchmetrics.functional import pearson_corrcoef
from torchmetrics.functional.text import squad

from cases import by_day
from predicting import evaluating, in_double, learn, make_context, predict
from small_models import build
from triptych.data import (
    BPE,
    AnswerSpan,
    Characters,
    CorpusInfo,
    DataModule,
    EncodedExample,
    EncodedListDataset,
    Example,
    SpecialTokens,
    Tokenizer,
    collate,
)
from triptych.data.batches.batch import empty_batch
from triptych.data.batches.sampler import StepSize
from triptych.nn import Embedding
from triptych.tasks import Classification, ClassPrediction, QuestionAnswering, Similarity, Task
from triptych.tasks.exact_sums import PairStatistic
from triptych.tasks.question_answering import best_spans, exact_match, f1
from triptych.tasks.sequence import cut_pair
from triptych.training import TrainingModule

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
]

ARCHITECTURES = ("encoder_only", "decoder_only", "full")
TASKS: dict[str, type[Task]] = {
    "classification": Classification,
    "similarity": Similarity,
    "question_answering": QuestionAnswering,
}
CELLS = [(name, architecture) for name in TASKS for architecture in ARCHITECTURES]
cells = pytest.mark.parametrize(("name", "architecture"), CELLS, ids=["-".join(cell) for cell in CELLS])
FACTS = CorpusInfo(labels=("no", "yes"), has_pairs=True)


def make_examples() -> list[Example]:
    """Questions of one character: where does it stand? Some have no answer, some have two."""
    draw = random.Random(0)
    examples = []
    for i in range(20):
        text, asked = "".join(draw.choices("abcdé日 ", k=draw.randint(4, 12))), draw.choice("abcdxy")
        starts = [j for j, character in enumerate(text) if character == asked]
        answers = tuple(AnswerSpan(text[j : j + 2], j) for j in starts if text[j : j + 2].strip() == text[j : j + 2])
        label = FACTS.labels[bool(starts)]
        examples.append(Example(f"{asked}{i}", text_pair=text, label=label, score=len(text) / 7 - 1, answers=answers))
    return examples


EXAMPLES = make_examples()
TEXTS = [text for example in EXAMPLES for text in (example.text, example.text_pair or "")]
CHARACTERS = Characters().train(TEXTS)
ROBERTA = SpecialTokens(bos=1, eos=2, sep=2, begin=(1,), end=(2,), between=(2, 2))
T5 = SpecialTokens(eos=2, sep=2, begin=(), end=(2,))
BARE = SpecialTokens(begin=(), end=())
LAYOUTS = {"own": SpecialTokens(), "roberta": ROBERTA, "t5": T5, "bare": BARE}


def make_task(
    name: str, architecture: str, *, tokenizer: Tokenizer = CHARACTERS, max_length: int = 40, **model: Any
) -> Any:
    cls: Any = TASKS[name]
    torch.manual_seed(0)
    network = build(
        architecture,
        vocab_size=tokenizer.vocab_size,
        num_outputs=cls.num_outputs(tokenizer.vocab_size, FACTS),
        pool=cls.pooling[architecture],
        max_length=max_length,
        **({"d_model": 32, "num_layers": 1, "d_ff": 64} | model),
    )
    context = make_context(network, tokenizer, max_length, corpus=FACTS)
    options = {"classification": {"label_smoothing": 0.0}, "question_answering": {"max_answer_tokens": 4}}
    return cls(context, **options.get(name, {}))


def evaluate(task: Task, batch_size: int) -> dict[str, float]:
    split = EncodedListDataset(task.encode(EXAMPLES))
    data = DataModule(
        train=None, validation=split, test=split, step_size=StepSize(8), eval_batch_size=batch_size, num_workers=0,
        seed=0,
    )  # fmt: skip
    trainer = L.Trainer(
        accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False,
    )  # fmt: skip
    values = trainer.test(TrainingModule(task), data, verbose=False)[0]
    return {key.removeprefix("test/"): value for key, value in values.items()}


def logits_of(task: Task, item: EncodedExample) -> Tensor:
    """Of an example by itself, in float64: no padding, no mask."""
    inputs = [torch.from_numpy(ids)[None] for ids in (item.source, item.inputs) if ids is not None]
    with torch.no_grad():
        logits: Tensor = task.network(*inputs)[0]
    return logits.double()


def losses_of(task: Task, item: EncodedExample) -> list[float]:
    """Of the labels of an example by itself, by the definitions."""
    logits, example = logits_of(task, item), item.example
    assert example is not None
    if task.name == "similarity":
        return [(float(logits[0]) - (example.score or 0)) ** 2]
    if task.name == "classification":
        return [float(torch.logsumexp(logits, 0) - logits[int(item.labels[0])])]
    end = len(item.inputs) - len(task.tokenizer.special.end)
    places = [0, *range(item.prefix, end)]
    return [
        math.log(sum(math.exp(logits[i, side]) for i in places)) - float(logits[int(item.labels[side]), side])
        for side in (0, 1)
    ]


@pytest.fixture(scope="module")
def trained() -> Callable[..., Any]:
    """A task that knows eight examples by heart; the rest it has never seen."""

    @cache
    def train(name: str, architecture: str) -> Any:
        task = make_task(name, architecture)
        learn(task, task.encode(EXAMPLES[:8]), steps=120, lr=5e-3)
        return evaluating(task)

    return train


class TestLayout:
    @pytest.mark.parametrize("layout", LAYOUTS)
    @cells
    def test_two_texts_are_read_as_one(self, name: str, architecture: str, layout: str) -> None:
        special = LAYOUTS[layout]
        tokenizer = Tokenizer.from_json(CHARACTERS.to_json(), special)
        between = {"own": (3,), "roberta": (2, 2), "t5": (2,), "bare": (3,)}[layout]
        for example, item in zip(
            EXAMPLES, make_task(name, architecture, tokenizer=tokenizer).encode(EXAMPLES), strict=True
        ):
            first, second = tokenizer.encode([example.text, example.text_pair or ""])
            whole = [*special.begin, *first, *between, *second, *special.end]
            read = item.inputs if item.source is None else item.source
            assert read.tolist() == whole
            assert item.prefix == len(special.begin) + len(first) + len(between)
            assert (item.source is not None) == (architecture == "full")
            if architecture == "full":  # a decoder by tokens reads the same, one with a last state is behind its start
                shifted = [special.start, *whole[:-1]]
                assert item.inputs.tolist() == (whole if name == "question_answering" else shifted)

    def test_token_types_tell_the_texts_apart(self) -> None:
        task = make_task("classification", "encoder_only")
        task.network.embedding = Embedding(vocab_size=CHARACTERS.vocab_size, d_model=32, num_token_types=2)
        items = task.encode([EXAMPLES[0], EXAMPLES[1]])
        found = task.forward(collate(items))
        for row, item in zip(found, items, strict=True):
            types = torch.arange(len(item.inputs))[None] >= item.prefix
            tokens = torch.from_numpy(item.inputs)[None]
            assert_close(row, task.network(tokens, token_types=types.long())[0])
            assert not torch.allclose(row, task.network(tokens)[0])

    def test_one_text_is_rejected_where_pairs_are_read(self) -> None:
        task = make_task("similarity", "encoder_only")
        with pytest.raises(ValueError, match=r"'a': one text; expected a pair"):
            task.encode([Example("a", score=1.0)])
        with pytest.raises(ValueError, match=r"t\.tsv, line 3: there is no score"):
            task.encode([Example("a", text_pair="b", place=(Path("t.tsv"), 3))])
        with pytest.raises(TypeError, match=r"similarity of this model reads pairs of texts"):
            predict(task, ["a"])


class TestTooLong:
    @given(
        lengths=st.tuples(st.integers(0, 30), st.integers(0, 30)),
        max_length=st.integers(6, 30),
        layout=st.sampled_from(list(LAYOUTS)),
    )
    def test_tokens_are_taken_from_the_longer_text(
        self, lengths: tuple[int, int], max_length: int, layout: str
    ) -> None:
        """One by one, from its end; the first gives way where they are equal, as in BERT's code."""
        special = LAYOUTS[layout]
        first, second = list(range(100, 100 + lengths[0])), list(range(200, 200 + lengths[1]))
        whole, prefix = special.pair(first, second)
        found, start = cut_pair(np.array(whole), prefix, max_length, special)
        while len(special.pair(first, second)[0]) > max_length:
            (first if len(first) > len(second) else second).pop()
        assert (found.tolist(), start) == special.pair(first, second)

    def test_both_keep_a_part_or_it_is_rejected(self) -> None:
        whole, prefix = SpecialTokens().pair([7, 8, 9], [7, 8, 9])
        assert cut_pair(np.array(whole), prefix, 5, SpecialTokens())[0].tolist() == [1, 7, 3, 7, 2]
        with pytest.raises(ValueError, match=r"shape\.max_length=4: a pair .* 3 tokens .*; expected at least 5"):
            cut_pair(np.array(whole), prefix, 4, SpecialTokens())

    @cells
    def test_a_network_that_has_diverged_is_still_asked(self, name: str, architecture: str) -> None:
        """The run ends by its loss, not by an answer that cannot be."""
        task = make_task(name, architecture, max_length=11)
        with torch.no_grad():
            for parameter in task.network.parameters():
                parameter.fill_(torch.nan)
        (answer,) = predict(task, [("ab", "cd")])
        assert name != "question_answering" or answer == ""

    @cells
    def test_what_predict_reads_is_what_training_reads(self, name: str, architecture: str) -> None:
        task = make_task(name, architecture, max_length=11)
        long = Example("ab" * 5, text_pair="cd" * 10, label="yes", score=0.5, answers=(AnswerSpan("cd", 0),))
        (item,) = task.enforce_max_length(task.encode([long]))
        assert item.longest == 11
        assert torch.isfinite(task.forward(collate([item]))).all()
        prediction = predict(task, [(long.text, long.text_pair)])
        assert len(prediction) == 1
        if name != "question_answering":
            assert prediction == predict(task, [("abab", "cdcd")])  # 11 tokens with the three around them

    @pytest.mark.parametrize("architecture", ARCHITECTURES)
    def test_an_answer_that_is_cut_away_is_none(self, architecture: str) -> None:
        task = make_task("question_answering", architecture, max_length=11)
        text = "cd" * 10
        examples = [
            Example("a" * n, text_pair=text, answers=(AnswerSpan(text[j : j + 2], j),)) for n in (4, 9) for j in (2, 3)
        ]
        items = task.enforce_max_length(task.encode(examples))
        assert [item.labels.tolist() for item in items] == [[8, 9], [0, 0], [8, 9], [0, 0]]


class TestAnswers:
    @pytest.mark.parametrize("tokenizer", [CHARACTERS, BPE(vocab_size=300).train(TEXTS)], ids=["char", "bpe"])
    def test_the_span_covers_the_answer(self, tokenizer: Tokenizer) -> None:
        """No more than the tokens that have a part of it; and back from there to the text."""
        task = make_task("question_answering", "encoder_only", tokenizer=tokenizer, max_length=80)
        for example, item in zip(EXAMPLES, task.encode(EXAMPLES), strict=True):
            first, last = (int(i) for i in item.labels)
            if not example.answers:
                assert (first, last) == (0, 0)
                continue
            assert item.prefix <= first <= last
            answer, read = example.answers[0], tokenizer.decode(item.inputs[first : last + 1])
            assert answer.text in read
            assert (
                tokenizer.decode(item.inputs[item.prefix : first])
                == (example.text_pair or "")[: answer.start][: len(tokenizer.decode(item.inputs[item.prefix : first]))]
            )
            if tokenizer is CHARACTERS:
                assert read == answer.text
            logits = torch.full((1, len(item.inputs), 2), -1.0)
            logits[0, first, 0] = logits[0, last, 1] = 9.0
            (said,) = task._answers(collate([item]), logits)
            assert answer.text in said
            assert said in (example.text_pair or "")

    def test_mistakes_are_named(self) -> None:
        task = make_task("question_answering", "encoder_only")
        for example, message in (
            (
                Example("a", text_pair="bc", answers=(AnswerSpan("c", 0),)),
                "the answer 'c' should stand at character 0.*is 'b'",
            ),
            (Example("a", answers=()), "there is no text that answers it"),
            (Example("a", text_pair="b"), "there is no list of answers"),
        ):
            with pytest.raises(ValueError, match=message):
                task.encode([replace(example, place=(Path("qa.jsonl"), 1))])
        with pytest.raises(ValueError, match=r"task\.max_answer_tokens=0: expected at least 1"):
            QuestionAnswering(None, max_answer_tokens=0)  # type: ignore[arg-type]

    @given(
        scores=st.lists(st.tuples(st.integers(-5, 5), st.integers(-5, 5)), min_size=1, max_size=9),
        longest=st.integers(1, 12),
    )
    def test_the_best_span_is_the_best_of_all(self, scores: list[tuple[int, int]], longest: int) -> None:
        start, end = torch.tensor(scores).float().T
        firsts, lasts, found = best_spans(start[None], end[None], longest)
        spans = [(i, j) for i in range(len(scores)) for j in range(i, min(i + longest, len(scores)))]
        assert (int(firsts), int(lasts)) in spans
        assert float(found) == float(start[firsts] + end[lasts]) == max(scores[i][0] + scores[j][1] for i, j in spans)

    @settings(max_examples=60)
    @given(
        texts=st.tuples(
            *[
                st.lists(
                    st.sampled_from(["The", "a", "an", "cat", "Cat", "mat.", "U.S.", "--", "x-y", "Ä", "theory", "\t"]),
                    min_size=1,
                    max_size=5,
                ).map(" ".join)
            ]
            * 3
        )
    )
    def test_exact_match_and_f1_are_those_of_squad(self, texts: tuple[str, str, str]) -> None:
        guess, *rights = texts
        expected = squad(
            {"prediction_text": guess, "id": "1"}, {"answers": {"answer_start": [0, 0], "text": rights}, "id": "1"}
        )
        assert 100 * max(exact_match(guess, right) for right in rights) == float(expected["exact_match"])
        if any(set(right.lower().split()) - {"the", "a", "an"} - set(string.punctuation) for right in rights):
            # (of answers without a word SQuAD 1.1, which torchmetrics has, says 0, SQuAD 2 whether both have none)
            found = 100 * max(f1(guess, right) for right in rights)
            assert found == pytest.approx(float(expected["f1"]), rel=1e-6) or not any(map(has_words, (guess, *rights)))

    def test_of_no_answer(self) -> None:
        """SQuAD 2."""
        assert [score("", "") for score in (exact_match, f1)] == [1, 1]
        assert [score("cat", "") for score in (exact_match, f1)] == [0, 0]
        assert [score("", "cat") for score in (exact_match, f1)] == [0, 0]


def has_words(text: str) -> bool:
    return exact_match(text, "") == 0


class TestLoss:
    @cells
    def test_is_the_mean_over_the_labels_whatever_stands_beside_them(self, name: str, architecture: str) -> None:
        task = in_double(make_task(name, architecture))
        items = task.encode(EXAMPLES)
        expected = [loss for item in items for loss in losses_of(task, item)]
        batch = collate(items)
        assert batch.num_labels_in_step == len(expected)
        assert task.summed_loss(task.forward(batch), batch).item() == pytest.approx(math.fsum(expected), rel=1e-9)
        packed = collate(items, packed=True)
        assert task.summed_loss(task.forward(packed), packed).item() == pytest.approx(math.fsum(expected), rel=1e-9)
        # a process without examples, and rows that are padding alone, add nothing, not even to a gradient
        empty = np.array([], dtype=np.int64)
        unscored = EncodedExample(
            empty, np.full_like(items[0].labels, -100), None if items[0].source is None else empty
        )
        beside = (collate([unscored, items[0]]), sum(losses_of(task, items[0])))
        for rows, scored in ((empty_batch(items[0], 3), 0.0), beside):
            task.network.zero_grad()
            loss = task.summed_loss(task.forward(rows), rows)
            loss.backward()
            assert loss.item() == pytest.approx(scored, rel=1e-9)
            assert all(p.grad is not None and p.grad.isfinite().all() for p in task.network.parameters())


class TestMetrics:
    @pytest.mark.parametrize(
        ("name", "architecture"), by_day(CELLS, CELLS[::4]), ids=["-".join(cell) for cell in CELLS]
    )
    def test_against_independent_ones_whatever_the_batch(
        self, trained: Callable[..., Any], name: str, architecture: str
    ) -> None:
        task = trained(name, architecture)
        items = task.encode(EXAMPLES)
        losses = [loss for item in items for loss in losses_of(task, item)]
        expected = {"loss": sum(losses) / len(losses)}
        inputs = [(example.text, example.text_pair or "") for example in EXAMPLES]
        said = predict(task, inputs)
        if name == "similarity":
            scores = [example.score for example in EXAMPLES]
            expected |= {
                "mean_squared_error": expected["loss"],
                "pearson": scipy.stats.pearsonr(said, scores).statistic,
                "spearman": scipy.stats.spearmanr(said, scores).statistic,
            }
            assert max(abs(a - (b or 0)) for a, b in zip(said[:8], scores, strict=False)) < 0.1
        elif name == "classification":
            expected["accuracy"] = np.mean([p.label == e.label for p, e in zip(said, EXAMPLES, strict=True)])
            assert [p.label for p in said[:8]] == [example.label for example in EXAMPLES[:8]]
        else:
            rights = [[answer.text for answer in example.answers or ()] or ["none"] for example in EXAMPLES]
            values = squad(
                [{"prediction_text": text, "id": str(i)} for i, text in enumerate(said)],
                [{"answers": {"answer_start": [0], "text": r}, "id": str(i)} for i, r in enumerate(rights)],
            )
            unanswered = sum(not e.answers and not text for e, text in zip(EXAMPLES, said, strict=True))
            expected |= {key: float(value) / 100 + unanswered / len(said) for key, value in values.items()}
            assert said[:8] == [e.answers[0].text if e.answers else "" for e in EXAMPLES[:8]]
        found = [evaluate(task, batch_size) for batch_size in (1, 7, 64)]
        for values in found:
            assert {key: values[key] for key in expected} == pytest.approx(expected, rel=1e-6)
            for key in ("accuracy", "exact_match", "f1"):  # counts: to the last digit
                assert values.get(key) == found[0].get(key)
        for size in (1, 3):
            for one, other in zip(predict(task, inputs, batch_size=size), said, strict=True):
                if isinstance(one, ClassPrediction):
                    assert one.probabilities == pytest.approx(other.probabilities, abs=1e-5)
                else:
                    assert one == pytest.approx(other, abs=1e-5) if isinstance(one, float) else one == other

    def test_correlations_do_not_depend_on_the_order(self) -> None:
        """Not even in the last digit, however the pairs are dealt."""
        x, y = torch.randn(2, 101, generator=torch.Generator().manual_seed(0))
        values = set()
        for seed in range(10):
            order = torch.randperm(101, generator=torch.Generator().manual_seed(seed))
            metric = PairStatistic(pearson_corrcoef)
            for part in order.split(seed + 1):
                metric.update(x[part], y[part])
            values.add(float(metric.compute()))
        (value,) = values
        assert value == pytest.approx(scipy.stats.pearsonr(x.double(), y.double()).statistic, rel=1e-12)


def test_the_best_of_several_answers_counts() -> None:
    task = make_task("question_answering", "encoder_only")
    (item,) = task.encode([Example("a", text_pair="bc bd", answers=(AnswerSpan("bc", 0), AnswerSpan("bd", 3)))])
    logits = torch.full((1, len(item.inputs), 2), -1.0)
    logits[0, item.prefix + 3, 0] = logits[0, item.prefix + 4, 1] = 9.0
    metrics = TrainingModule(task).metrics_of("test")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task, "forward", lambda batch: logits)
        task.evaluate(collate([item]), metrics, "test")
    assert float(metrics["exact_match"].compute()) == float(metrics["f1"].compute()) == 1
