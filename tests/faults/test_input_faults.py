"""Faults 17 to 20: data that is empty, damaged or does not fit, and mistakes in the configuration."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tokenizers
import torch
import torch.nn.functional as F
from tokenizers import models
from torch import Tensor

from one_process import Answer, answers_to
from small_models import build
from triptych.assembly.encode_splits import check_ids
from triptych.data import IGNORE_INDEX, Batch, Characters, CorpusInfo, EncodedExample, Example, Tokenizer, collate
from triptych.tasks import Classification, Denoising, Tagging, Task, TaskContext, Translation
from triptych.training import TrainingModule

pytestmark = pytest.mark.faults

SMALL = [
    "shape=tiny", "shape.num_layers=1", "tokenizer=bytes", "logger=csv", "trainer.max_steps=2", "batch.global_size=4",
]  # fmt: skip
SMALL += ["trainer.val_check_interval=2", "trainer.accelerator=cpu", "run_dir=run"]
SMALL_DATES = [*SMALL, "data.num_train=40", "data.num_validation=4", "data.num_test=4", "shape.max_length=128"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    lines = [f"line {i}" for i in range(20)]

    def write(name: str, content: str | bytes) -> None:
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    write("a.en", "\n".join(lines) + "\n")
    write("short.de", "\n".join(lines[:-3]) + "\n")
    write("latin.de", "\n".join(lines[:6]).encode() + b"\nGr\xfc\xdfe\n" + "\n".join(lines[7:]).encode() + b"\n")
    write("long.de", "\n".join([*lines[:9], "x" * 300, *lines[10:]]) + "\n")
    write("empty.en", "")
    write("head.tsv", "text\tlabel\n")
    write("table.tsv", "text\tlabel\n" + "".join(f"{line}\t{i % 2}\n" for i, line in enumerate(lines)))
    write("new.tsv", "text\tlabel\na\t0\nb\t1\nc\tmaybe\n")
    write("ragged.tsv", "text\tlabel\na\t0\nb\n")
    write("short.txt", "ab")
    write("tagged.txt", "".join(f"{line.replace(' ', f' A{chr(10)}')} B\n\n" for line in lines))
    write("tagged_new.txt", "line A\n0 B\n\nline A\n1 C\n")
    write("tagged_ragged.txt", "line A\n0 B\n1\n")
    write("tagged_latin.txt", b"line A\nGr\xfc\xdfe B\n")
    for name, rows in (("set", 20), ("empty_set", 0), ("set_of_nulls", 2)):
        labels = [None] * rows if name == "set_of_nulls" else [str(i % 2) for i in range(rows)]
        pq.write_table(pa.table({"text": lines[:rows], "label": pa.array(labels, pa.string())}), folder / "x.parquet")
        (folder / name).mkdir()
        (folder / "x.parquet").rename(folder / name / "train.parquet")
    write("none.json", '{"data": []}')
    asked = [
        json.dumps({"question": "q?", "context": "a b", "answers": {"text": ["b"], "answer_start": [start]}}) + "\n"
        for start in (2, 1)
    ]
    write("elsewhere.jsonl", "".join(asked))
    write("questions.jsonl", asked[0] * 20)
    write("comment.conllu", "# text = \n\n")
    return folder


PAIRS = ["train", "task=translation", "model=full", "data=parallel_text", "data.dir=.", *SMALL]
TABLE = ["train", "task=classification", "model=encoder_only", "data=labelled_text", "data.dir=.", *SMALL]
TEXT = ["train", "task=language_modeling", "model=decoder_only", "data=plain_text", "data.dir=.", *SMALL]
TAGS = ["train", "task=tagging", "model=encoder_only", "data=tagged_text", "data.dir=.", *SMALL]
SETS = ["train", "task=classification", "model=encoder_only", "data=hub", "data.label=label", *SMALL]
SETS += ["data.split_names=[train,0.2,0.2]"]
QUESTIONS = ["train", "task=question_answering", "model=encoder_only", "data=question_answering", "data.dir=.", *SMALL]
DATA_FAULTS = {
    "17 no questions": ([*QUESTIONS, "data.train=none.json"], ["none.json: no rows"]),
    "18 an answer elsewhere": (
        [*QUESTIONS, "data.train=elsewhere.jsonl"],
        ["elsewhere.jsonl, line 2: expected the answer 'b' at character 1 of its text, found ' '"],
    ),
    "17 a set without rows": ([*SETS, "data.name=empty_set"], ["empty_set"]),
    "17 no rows": ([*TABLE, "data.train=empty_set/train.parquet"], ["empty_set/train.parquet: no rows"]),
    "18 a row of a set without its label": (
        [*SETS, "data.name=set_of_nulls"],
        ["set_of_nulls/train, row 1: label is null"],
    ),
    "18 a set without the column": (
        [*SETS, "data.name=set", "data.text=txet"],
        ["no column txet (data.text=txet); the columns are text, label; did you mean text?"],
    ),
    "17 no words": ([*TAGS, "data.train=comment.conllu"], ["comment.conllu", "no rows"]),
    "18 an unknown tag": (
        [*TAGS, "data.train=tagged.txt", "data.test=tagged_new.txt"],
        ["tagged_new.txt, line 4: the tag of '1' is 'C'", "A, B"],
    ),
    "18 a word without its tag": ([*TAGS, "data.train=tagged_ragged.txt"], ["tagged_ragged.txt, line 3"]),
    "18 words that are not UTF-8": ([*TAGS, "data.train=tagged_latin.txt"], ["tagged_latin.txt, line 2", "not UTF-8"]),
    "17 no lines": ([*PAIRS, "data.train=[empty.en,empty.en]"], ["empty.en", "no lines"]),
    "17 a header alone": ([*TABLE, "data.train=head.tsv"], ["head.tsv"]),
    "17 no characters": ([*TEXT, "data.train=empty.en"], ["empty.en", "0 characters"]),
    "17 no examples": (
        ["train", "task=translation", *SMALL_DATES, "data.num_train=0"],
        ["data.num_train", "got 0", "at least 1"],
    ),
    "17 a test file without lines": (
        [*PAIRS, "data.train=[a.en,a.en]", "data.test=[empty.en,empty.en]"],
        ["empty.en", "no lines"],
    ),
    "17 all are too long": (
        [*PAIRS, "data.train=[long.de,long.de]", "batch.too_long=drop", "shape.max_length=4"],
        ["batch.too_long=drop", "18 training examples", "shape.max_length=4"],
    ),
    "17 fewer than an update": (
        ["train", "task=translation", *SMALL_DATES, "batch.global_size=41"],
        ["batch.global_size=41", "larger than the training split; expected at most 40"],
    ),
    "17 an example is more than an update": (
        ["train", "task=translation", *SMALL_DATES, "batch.global_size=null", "batch.max_tokens=12"],
        ["tokens, but batch.max_tokens=12", "expected at least"],
    ),
    "18 unaligned": ([*PAIRS, "data.train=[a.en,short.de]"], ["a.en, line 18", "short.de", "20 and 17 lines"]),
    "18 not UTF-8": ([*PAIRS, "data.train=[a.en,latin.de]"], ["latin.de, line 7", "not UTF-8"]),
    "18 an unknown label": (
        [*TABLE, "data.train=table.tsv", "data.test=new.tsv"],
        ["new.tsv, line 4", "'maybe'", "0, 1"],
    ),
    "18 a row without its label": ([*TABLE, "data.train=ragged.tsv"], ["ragged.tsv, line 3"]),
    "18 no column of that name": (
        [*TABLE, "data.train=table.tsv", "data.label=stars"],
        ["table.tsv, line 1", "data.label=stars", "text, label"],
    ),
    "18 columns are named twice": (
        [*TABLE, "data.train=table.tsv", "data.columns=[text,label]"],
        ["table.tsv, line 1", "data.columns=null"],
    ),
    "18 an over-long line": (
        [*PAIRS, "data.train=[a.en,long.de]"],
        ["line 10: ", "tokens", "shape.max_length", "batch.too_long"],
    ),
}


@pytest.fixture(scope="module")
def data_answers(folder: Path) -> dict[str, Answer]:
    commands = [arguments for arguments, _ in DATA_FAULTS.values()]
    return dict(zip(DATA_FAULTS, answers_to(commands, folder), strict=True))


@pytest.mark.parametrize("case", DATA_FAULTS)
def test_faults_17_and_18_rejected_before_the_first_step(case: str, data_answers: dict[str, Answer]) -> None:
    status, stderr, happened = data_answers[case]
    assert status == 1
    answer = stderr.splitlines()[-1]
    assert answer.startswith("error: ")
    for word in DATA_FAULTS[case][1]:
        assert word in answer
    assert "fit" not in happened


def test_faults_17_and_18_the_same_without_a_fault(folder: Path) -> None:
    """What is refused above is refused for its fault: without it there is training. A line that is too long is dropped
    and counted where that is asked for."""
    commands = [
        [*PAIRS, "data.train=[a.en,a.en]", "run_dir=fine"],
        [*TAGS, "data.train=tagged.txt", "run_dir=tagged"],
        [*SETS, "data.name=set", "run_dir=set_run"],
        [*QUESTIONS, "data.train=questions.jsonl", "run_dir=questions"],
        [*PAIRS, "data.train=[a.en,long.de]", "batch.too_long=drop", "run_dir=dropped"],
        ["train", "task=translation", *SMALL_DATES, "batch.global_size=40", "run_dir=whole"],
    ]
    for status, stderr, happened in answers_to(commands, folder):
        assert status == 0, stderr
        assert happened == ["splits", "fit"]
    assert json.loads((folder / "dropped" / "summary.json").read_text())["too_long"]["train"] == 1


@pytest.mark.fault(18)
class TestIds:
    """Fault 18: an id that the network has no vector for. On a GPU it would be a failed assertion of the device."""

    @pytest.mark.parametrize("side", ["tokens", "source"])
    def test_is_rejected_with_file_and_line(self, side: str) -> None:
        good, bad = np.array([1, 9, 2]), np.array([1, 10, 2])
        place = (Path("text.tsv"), 7)
        fine = EncodedExample(good, good, good, example=Example("a"))
        wrong = EncodedExample(
            bad if side == "tokens" else good,
            good,
            bad if side == "source" else good,
            example=Example("b", place=place),
        )
        check_ids([fine, fine], 10)
        with pytest.raises(ValueError, match=r"text\.tsv, line 7: token id 10, but the vocabulary has 10 tokens"):
            check_ids([fine, wrong], 10)
        check_ids([], 10)

    def test_a_tokenizer_with_a_gap_is_rejected(self) -> None:
        backend = tokenizers.Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, "b": 900}, unk_token="<unk>"))
        with pytest.raises(ValueError, match="token id 900, but the vocabulary has 3 tokens"):
            Tokenizer(backend)

    def test_a_tokenizer_of_another_checkpoint_is_rejected(self, tmp_path: Path) -> None:
        """In evaluate and predict as in training."""
        small = "experiment=dates/classification"
        (answer,) = answers_to([["train", small, *SMALL_DATES, "data.languages=[de,en]"]], tmp_path)
        assert answer[0] == 0, answer[1]
        file = next(iter((tmp_path / "run" / "checkpoints").glob("*.ckpt")))
        checkpoint = torch.load(file, weights_only=True)
        checkpoint["triptych"]["tokenizer"] = Characters().train([chr(i) for i in range(0x4E00, 0x5000)]).to_json()
        torch.save(checkpoint, tmp_path / "mixed.ckpt")
        (tmp_path / "in.txt").write_text("丁\n")
        commands = [["evaluate", "checkpoint=mixed.ckpt"], ["predict", "checkpoint=mixed.ckpt", "input=in.txt"]]
        for status, stderr, _ in answers_to(commands, tmp_path):
            assert status == 1
            assert "shape.vocab_size=262, but the tokenizer has 518 tokens" in stderr.splitlines()[-1]


TASKS: dict[str, tuple[type[Task], dict[str, Any]]] = {
    "classification": (Classification, {}),
    "tagging": (Tagging, {}),
    "denoising": (
        Denoising,
        {"max_new_tokens": 5, "objective": None, "whole_word_masking": False, "mask_prob": 0.4, "mean_span_length": 3},
    ),
    "translation": (
        Translation,
        {"max_new_tokens": 5, "num_beams": 1, "length_penalty": 1.0, "early_stopping": False, "bleu_tokenizer": "13a"},
    ),
}


@pytest.mark.parametrize("rows", ["one of two", "all"])
@pytest.mark.parametrize(
    ("cell", "position"),
    [
        (("classification", "encoder_only"), "sinusoidal"),
        (("tagging", "full"), "alibi"),
        (("denoising", "decoder_only"), "relative_bias"),
        (("translation", "full"), "rotary"),
    ],
    ids=str,
)
def test_fault_19_a_row_of_padding_only(cell: tuple[str, str], position: str, rows: str) -> None:
    """Loss and gradients are finite, in training and in evaluation, and the row changes nothing of the others."""
    task = make_task(*cell, position=position)
    batch = padding_batch(task, rows)
    module = TrainingModule(task)
    module._trainer = _Trainer()  # type: ignore[assignment]
    module.train()
    loss = module.training_step(batch, 0)
    loss.backward()
    assert torch.isfinite(loss)
    for parameter in task.network.parameters():
        assert parameter.grad is None or torch.isfinite(parameter.grad).all()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in task.network.parameters()) == (
        rows == "one of two"
    )
    module.eval()
    with torch.no_grad():
        logits = task.forward(batch)
        assert torch.isfinite(logits).all()
        if rows == "one of two":
            alone = task.forward(padding_batch(task, "none"))
            torch.testing.assert_close(logits[:1], alone)


def make_task(name: str, architecture: str, *, position: str) -> Task:
    cls, options = TASKS[name]
    tokenizer = Characters().train(["abcd "])
    corpus = CorpusInfo(labels=("zero", "one"), tag_labels=("even", "odd"), words_are_characters=True)
    network = build(
        architecture, vocab_size=tokenizer.vocab_size, num_outputs=cls.num_outputs(tokenizer.vocab_size, corpus),
        pool=cls.pooling[architecture], position=position,
    )  # fmt: skip
    context: dict[str, Any] = {
        "network": network, "tokenizer": tokenizer, "corpus": corpus, "seed": 0, "max_length": 24,
    }  # fmt: skip
    return cls(TaskContext(**context), label_smoothing=0.1, **options)


class _Trainer:
    """As much of a Trainer as a training step asks for."""

    accumulate_grad_batches = world_size = 1
    global_step = global_rank = 0
    log_every_n_steps = 1000


def padding_batch(task: Task, rows: str) -> Batch:
    """A row of five tokens, and one of padding only; or one of them alone."""
    text = Example("abcd", target="dcba", label="one", words=tuple("abcd"), tags=("even",) * 4)
    batch = collate(task.encode([text, text]))
    kept = {"one of two": slice(None), "all": slice(1, None), "none": slice(1)}[rows]

    def with_padding(values: Tensor, fill: int) -> Tensor:
        changed = values.clone()
        changed[1] = fill
        return changed[kept]

    assert batch.mask is not None
    labels = with_padding(batch.labels, IGNORE_INDEX)
    return Batch(
        inputs=with_padding(batch.inputs, 0),
        mask=with_padding(batch.mask, False),
        labels=labels,
        source=None if batch.source is None else with_padding(batch.source, 0),
        source_mask=None if batch.source_mask is None else with_padding(batch.source_mask, False),
        prefix=batch.prefix[kept],
        num_labels_in_step=int((labels != IGNORE_INDEX).sum()),
        examples=batch.examples[kept],
        num_nonpadding=batch.num_nonpadding,
    )


def test_fault_19_the_plain_mean_is_not_finite() -> None:
    """What the sum over the number of labels stands against."""
    assert torch.isnan(F.cross_entropy(torch.zeros(3, 2), torch.full((3,), IGNORE_INDEX), ignore_index=IGNORE_INDEX))


MISTAKES = {
    "a word for a truth": (["block.tie_word_embeddings=perhaps"], ["block.tie_word_embeddings", "perhaps"]),
    "heads that do not divide": (["shape.num_heads=5"], ["shape.num_heads=5", "shape.d_model=128", "4"]),
    "lr=nan": (["optimizer.lr=nan"], ["optimizer.lr=nan", "finite"]),
    "lr=inf": (["optimizer.lr=inf"], ["optimizer.lr=inf", "finite"]),
    "lr=0": (["optimizer.lr=0"], ["optimizer.lr=0", "more than 0"]),
    "dropout=nan": (["block.dropout=nan"], ["block.dropout=nan"]),
    "+x=1": (["+x=1"], ["x: there is no such key", "expected one of", "seed"]),
    "+shape.x=1": (["+shape.x=1"], ["shape.x: there is no such key", "expected one of", "d_model"]),
    "+optimizer.lrr=1": (["+optimizer.lrr=1"], ["optimizer.lrr", "did you mean lr?"]),
    # names that are valid for another choice of the groups only
    "a beam for a language model": (
        ["task=language_modeling", "model=decoder_only", "task.num_beams=3"],
        ["task.num_beams: there is no such key", "text_to_text and translation have it"],
    ),
    "a tokenizer without settings": (["tokenizer.vocabsize=9"], ["tokenizer.vocabsize", "mean shape.vocab_size?"]),
    "a tokenizer with settings": (
        ["tokenizer=bpe", "tokenizer.vocabsize=9"],
        ["tokenizer.vocabsize", "did you mean tokenizer.vocab_size?"],
    ),
    "an encoder has no decoder": (
        ["experiment=dates/classification", "model.decoder.num_layers=2"],
        ["model.decoder.num_layers", "did you mean model.encoder.num_layers?"],
    ),
    "a logger that is not there": (["logger=csv", "logger.wandb.offline=false"], ["expected one of logger.csv"]),
    "own files": (["--config-dir=own", "experiment=mine", "task.num_beam=2"], ["did you mean task.num_beams?"]),
    "a mistake in own files": (["--config-dir", "own", "experiment=wrong"], ["shape.d_modl", "shape.d_model?"]),
    "a sweep": (
        ["-m", "task=language_modeling,translation", "model=decoder_only", "task.max_new_token=3"],
        ["tokens?"],
    ),
}


@pytest.fixture(scope="module")
def mistake_answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answer]:
    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "own" / "experiment").mkdir(parents=True)
    (folder / "own" / "experiment" / "mine.yaml").write_text("# @package _global_\nseed: 3\n")
    (folder / "own" / "experiment" / "wrong.yaml").write_text("# @package _global_\nshape:\n  d_modl: 3\n")
    commands = []
    for arguments, _ in MISTAKES.values():
        is_chosen = any(argument.startswith(("experiment=", "task=")) for argument in arguments)
        commands.append(["train", *([] if is_chosen else ["task=translation"]), *arguments, "run_dir=run"])
    return dict(zip(MISTAKES, answers_to(commands, folder), strict=True))


@pytest.mark.parametrize("case", MISTAKES)
def test_fault_20_answered_before_data_is_read(case: str, mistake_answers: dict[str, Answer]) -> None:
    status, stderr, happened = mistake_answers[case]
    assert status == 1
    assert happened == []
    assert len(stderr.splitlines()) <= 2, stderr
    answer = stderr.splitlines()[-1]
    assert answer.startswith("error: ")
    for word in MISTAKES[case][1]:
        assert word in answer
