"""The tasks on every architecture: what is read and scored, the exact loss, the metrics, the predictions."""

import logging
import math
import multiprocessing
import os
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cache
from itertools import islice, pairwise, product
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import sacrebleu
import torch
from lightning.fabric.plugins.environments.lightning import find_free_network_port
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.plugins.precision import MixedPrecision
from sacrebleu.metrics.bleu import BLEU
from tokenizers import Tokenizer as Backend
from tokenizers import normalizers
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.data import DataLoader

from cases import by_day, values_by_day
from predicting import GREEDY, evaluating, in_double, learn, make_context, predict
from small_models import build
from triptych.data import (
    BPE,
    IGNORE_INDEX,
    Batch,
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
from triptych.data.batches.sampler import StepSize
from triptych.data.prefix import prefix_length
from triptych.data.tokenizers.tokenizer import BOS, EOS, MASK, SEP, SPECIAL_TOKENS
from triptych.models.flops import forward_flops
from triptych.models.generation import BeamSearch
from triptych.tasks import (
    Captioning,
    Classification,
    ClassPrediction,
    Denoising,
    LanguageModeling,
    Tagging,
    Task,
    Translation,
)
from triptych.tasks.classification import calibration_error
from triptych.training import CheckpointMetadata, ProgressBar, TrainingModule
from triptych.training.callbacks import progress_bar
from triptych.training.callbacks.cost_tracker import CostTracker
from triptych.training.nonfinite import NonFiniteError
from triptych.training.optimizers import AdamW
from triptych.training.schedules import Linear

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec"),  # of torch, about Lightning
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`"),
]

ARCHITECTURES = ("encoder_only", "decoder_only", "full")
ALL = (*ARCHITECTURES, "prefix_lm")
TASKS: dict[str, type[Task]] = {
    "translation": Translation, "classification": Classification, "language_modeling": LanguageModeling,
    "tagging": Tagging, "denoising": Denoising,
}  # fmt: skip
CELLS = [
    ("translation", "full"),
    ("translation", "decoder_only"),
    ("translation", "prefix_lm"),
    ("classification", "encoder_only"),
    ("classification", "decoder_only"),
    ("classification", "full"),
    ("language_modeling", "full"),
    ("language_modeling", "decoder_only"),
    ("language_modeling", "prefix_lm"),
    *(("tagging", architecture) for architecture in ARCHITECTURES),
    *(("denoising", architecture) for architecture in ALL),
]
PRIMARY = {
    "translation": "exact_match", "classification": "accuracy", "language_modeling": "bits_per_byte",
    "tagging": "accuracy", "denoising": "loss",
}  # fmt: skip
WRITERS = [(n, a) for n, a in CELLS if n not in ("classification", "tagging") and a != "encoder_only"]
OPTIMIZER = AdamW(lr=1e-2, beta1=0.9, beta2=0.98, eps=1e-9, weight_decay=0.01)
SCHEDULE = Linear(warmup_steps=2, max_steps=10, min_lr_factor=0.0)
FACTS = CorpusInfo(labels=("zero", "one", "two"), tag_labels=("even", "odd"), words_are_characters=True)


def cells(which: Sequence[tuple[str, str]] = CELLS) -> pytest.MarkDecorator:
    """Of tasks and architectures; every other one is nightly."""
    return pytest.mark.parametrize(
        ("name", "architecture"), by_day(which, which[::2]), ids=["-".join(cell) for cell in which]
    )


def make_examples() -> list[Example]:
    """Each text begins with a character of its own, so any prefix tells the first eight apart."""
    draw = random.Random(0)
    texts = [start + "".join(draw.choices("abcdé日", k=draw.randint(2, 7))) for start in "stuvwxyzstuvwxyzstuv"]
    return [
        Example(
            text,
            target=" ".join(reversed(text)),
            label=FACTS.labels[len(text) % 3],
            words=tuple(text),
            tags=tuple(FACTS.tag_labels[i * len(text) // 3 % 2] for i in range(len(text))),
        )
        for text in texts
    ]


EXAMPLES = make_examples()
TRAINED = EXAMPLES[:8]
TEXTS = [example.text for example in EXAMPLES]
CHARACTERS = Characters().train([*TEXTS, " "])
BPE = BPE(vocab_size=280).train(TEXTS)


def with_specials(**special: Any) -> Tokenizer:
    """CHARACTERS, with special tokens as another family has them: other ids, and others around a text."""
    return Tokenizer.from_json(CHARACTERS.to_json(), SpecialTokens(**special))


LAYOUTS = {
    "characters": CHARACTERS,
    "bpe": BPE,
    "bart": with_specials(bos=3, eos=1, sep=1, start=1, begin=(3,), end=(1,), target_begin=(3,), mask=2, pad=5),
    "t5": with_specials(bos=5, eos=3, sep=3, start=5, begin=(), end=(3,), mask=2),
    "gpt2": with_specials(bos=2, eos=2, sep=3, start=2, begin=(), end=(), mask=1, pad=2),
}


def make_cost_log(task: Task) -> CostTracker:
    return CostTracker(deepcopy(task.network).to("meta"), OPTIMIZER)


def make_task(
    name: str,
    architecture: str,
    *,
    tokenizer: Tokenizer = CHARACTERS,
    corpus: CorpusInfo = FACTS,
    label_smoothing: float = 0.0,
    seed: int = 0,
    max_new_tokens: int = 30,
    num_beams: int = 1,
    bleu_tokenizer: str = "13a",
    max_length: int = 40,
    truncates: bool = False,
    z_loss: float = 0.0,
    **model: Any,
) -> Task:
    cls: Any = TASKS[name]
    torch.manual_seed(seed)
    network = build(
        architecture,
        vocab_size=tokenizer.vocab_size,
        num_outputs=cls.num_outputs(tokenizer.vocab_size, corpus),
        pool=cls.pooling[architecture],
        max_length=max_length,
        **({"d_model": 32, "num_layers": 1, "d_ff": 64} | model),
    )
    options: dict[str, Any] = {}
    if name not in ("classification", "tagging"):
        options = {"max_new_tokens": max_new_tokens, "z_loss": z_loss}
    if name == "denoising":
        options |= {"objective": None, "whole_word_masking": False, "mask_prob": 0.4, "mean_span_length": 3}
    if name == "translation":
        options |= {**GREEDY, "num_beams": num_beams, "bleu_tokenizer": bleu_tokenizer}
    context = make_context(network, tokenizer, max_length, corpus=corpus, seed=seed, truncates=truncates)
    task: Task = cls(context, label_smoothing=label_smoothing, **options)
    return task


def make_module(task: Task, **options: Any) -> TrainingModule:
    return TrainingModule(task, **({"optimizer": OPTIMIZER, "schedule": SCHEDULE} | options))


def make_data(task: Task, **options: Any) -> DataModule:
    split = EncodedListDataset(task.encode(EXAMPLES))
    settings = {"step_size": StepSize(8), "eval_batch_size": 64, "num_workers": 0, "seed": 0} | options
    return DataModule(train=split, validation=split, test=split, **settings)


def make_trainer(**options: Any) -> L.Trainer:
    settings: dict[str, Any] = {
        "accelerator": "cpu", "max_epochs": -1, "logger": False, "enable_checkpointing": False,
        "enable_progress_bar": False, "enable_model_summary": False, "use_distributed_sampler": False,
    }  # fmt: skip
    return L.Trainer(**(settings | options))


class Recorder(L.Callback):
    """Keeps the loss and the gradients of the last update, and the weight of the last validation's loss."""

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Any) -> None:
        assert isinstance(pl_module, TrainingModule)
        self.gradients = {n: p.grad.clone() for n, p in pl_module.task.network.named_parameters() if p.grad is not None}

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, *_: Any) -> None:
        self.loss = float(outputs["loss"])

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, TrainingModule)
        metrics: Any = pl_module.metrics["val"]
        self.num_scored = int(metrics["loss"].count)


def fit(
    trained: Task | TrainingModule, data: Any, *, accumulate: int = 1, max_steps: int = 1, **options: Any
) -> Recorder:
    recorder = Recorder()
    callbacks = [*options.pop("callbacks", []), recorder]
    make_trainer(
        max_steps=max_steps, accumulate_grad_batches=accumulate, callbacks=callbacks, limit_val_batches=0, **options
    ).fit(make_module(trained) if isinstance(trained, Task) else trained, data)
    return recorder


def loader(*batches: Batch) -> DataLoader[Any]:
    return DataLoader(list(batches), batch_size=None)  # type: ignore[arg-type]


def validate(task: Task, data: Any, **options: Any) -> dict[str, float]:
    return dict(make_trainer(**options).validate(make_module(task), data, verbose=False)[0])


def given(task: Task, item: EncodedExample) -> str:
    """What ``predict`` is given: the text, the prefix of it, or what of it is not hidden."""
    assert item.example is not None
    text = item.example.text
    if task.name == "language_modeling" or (task.name, task.architecture) == ("denoising", "decoder_only"):
        return text[: prefix_length(text)]
    if task.name == "denoising":
        ids = item.inputs if item.source is None else item.source
        if task.architecture == "prefix_lm":
            ids = item.inputs[: item.prefix]
        return "".join(SPECIAL_TOKENS[MASK] if i == MASK else CHARACTERS.decode([i]) for i in ids.tolist())
    return text


def answer(task: Task, item: EncodedExample) -> str:
    """What ``predict`` should say."""
    example = item.example
    assert example is not None
    if task.name == "translation":
        return example.target or ""
    if task.name == "classification":
        return example.label or ""
    if task.name == "tagging":
        return " ".join(example.tags or ())
    if task.name == "language_modeling" or task.architecture == "decoder_only":
        return example.text[prefix_length(example.text) :]
    if task.architecture in ("full", "prefix_lm"):
        return example.text
    return CHARACTERS.decode(np.where(item.inputs == MASK, item.labels, item.inputs).tolist())


def inner(ids: list[int], special: SpecialTokens) -> list[int]:
    """A whole text without what stands around it."""
    return ids[len(special.begin) : len(ids) - len(special.end)]


def logits_of(task: Task, item: EncodedExample) -> Tensor:
    """Of an example by itself: no batch, no padding, no mask."""
    inputs = [torch.from_numpy(ids)[None] for ids in (item.source, item.inputs) if ids is not None]
    options = {"prefix": torch.tensor([item.prefix + 1])} if task.architecture == "prefix_lm" else {}
    logits: Tensor = task.network(*inputs, **options)[0]
    return logits if logits.ndim == 2 else logits[None]


@pytest.fixture(scope="module")
def trained() -> Callable[..., Task]:
    """A task that knows ``TRAINED`` by heart, by plain steps of AdamW on one batch; the rest it has never seen."""

    @cache
    def train(name: str, architecture: str, layout: str = "characters") -> Task:
        task = make_task(name, architecture, tokenizer=LAYOUTS[layout])
        learn(task, task.encode(TRAINED), steps=150, lr=5e-3)
        return evaluating(task)

    return train


class TestGrid:
    def test_is_what_the_refusals_leave(self) -> None:
        grid = {(name, architecture) for name in TASKS for architecture in ALL}
        refused = {(name, architecture) for name, task in TASKS.items() for architecture in task.unsupported}
        filled_in = {(name, "encoder_only") for name in ("translation", "language_modeling")}  # see test_filling_in.py
        assert grid - refused == {*CELLS, *filled_in}

    @pytest.mark.parametrize("architecture", ALL)
    def test_a_source_is_read_backwards(self, architecture: str) -> None:
        """In training as in predictions; the target is not reversed."""
        tokenizer = Characters().train(["abc xyz"])
        context = make_context(build(architecture, vocab_size=tokenizer.vocab_size, max_length=64), tokenizer, 64)
        options: dict[str, Any] = {"label_smoothing": 0.0, "max_new_tokens": 5, "bleu_tokenizer": "13a", **GREEDY}
        plain, backwards = (Translation(context, **options, reverse_source=reverse) for reverse in (False, True))
        (expected,), (found,) = (
            task.encode([Example(text, target="xyz")]) for task, text in ((plain, "cba"), (backwards, "abc"))
        )
        assert [found.inputs.tolist(), found.labels.tolist()] == [expected.inputs.tolist(), expected.labels.tolist()]
        if expected.source is not None:
            assert found.source is not None
            assert found.source.tolist() == expected.source.tolist()
        assert predict(plain, ["cba"]) == predict(backwards, ["abc"])

    def test_refusals_say_why_and_what_else(self) -> None:
        assert "does not fill in texts after a signal" in Captioning.unsupported["encoder_only"]
        assert "model=full or decoder_only" in Captioning.unsupported["encoder_only"]
        for task in (Classification, Tagging):
            assert "model=encoder_only" in task.unsupported["prefix_lm"]

    @cells()
    def test_each_cell_can_learn_a_batch_by_heart(
        self, trained: Callable[..., Task], name: str, architecture: str
    ) -> None:
        task = trained(name, architecture)
        items = task.encode(TRAINED)
        batch = collate(items)
        loss = nn.CrossEntropyLoss()(task.forward(batch).flatten(0, -2), batch.labels.flatten())
        least = 0.0
        if architecture == "decoder_only" and name in ("language_modeling", "denoising"):
            least = 8 * math.log(8) / sum(item.num_scored for item in items)  # which of the lines cannot be known
        assert least - 1e-6 < loss < least + 0.05

        predictions = predict(task, [given(task, item) for item in items])
        outputs = [p.label if isinstance(p, ClassPrediction) else p for p in predictions]
        assert outputs == [answer(task, item) for item in items]

    @pytest.mark.parametrize("layout", ["bart", "t5", "gpt2"])
    @pytest.mark.parametrize(("num_beams", "architecture"), [(1, "full"), (3, "full"), (1, "decoder_only")])
    def test_answers_begin_and_end_as_the_family_says(
        self, trained: Callable[..., Task], layout: str, architecture: str, num_beams: int
    ) -> None:
        task: Any = trained("translation", architecture, layout)
        task.search = BeamSearch(num_beams=num_beams)
        assert predict(task, TEXTS[:8]) == [example.target for example in TRAINED]


@pytest.mark.parametrize("tokenizer", LAYOUTS.values(), ids=LAYOUTS.keys())
class TestLayout:
    """What is read, and what is scored."""

    @staticmethod
    def layouts(name: str, architecture: str, tokenizer: Tokenizer) -> Iterator[tuple[Example, EncodedExample]]:
        task = make_task(name, architecture, tokenizer=tokenizer)
        for example, item in zip(EXAMPLES, task.encode(EXAMPLES), strict=True):
            assert item.example is example
            yield example, item

    def test_translation_full(self, tokenizer: Tokenizer) -> None:
        s = tokenizer.special
        for example, item in self.layouts("translation", "full", tokenizer):
            source, target = tokenizer.encode([example.text, example.target or ""])
            assert item.source is not None
            assert item.source.tolist() == [*s.begin, *source, *s.end]
            assert item.inputs.tolist() == [s.start, *s.target_begin, *target]
            assert item.labels.tolist() == [*s.target_begin, *target, s.eos]

    def test_translation_decoder_only(self, tokenizer: Tokenizer) -> None:
        """Scored are the target and the end alone, each at the place before it."""
        s = tokenizer.special
        for example, item in self.layouts("translation", "decoder_only", tokenizer):
            source, target = tokenizer.encode([example.text, example.target or ""])
            assert item.source is None
            assert item.inputs.tolist() == [*s.begin, *source, s.sep, *target]
            assert item.labels.tolist() == [IGNORE_INDEX] * (len(s.begin) + len(source)) + [*target, s.eos]

    @pytest.mark.parametrize("architecture", ARCHITECTURES)
    def test_classification(self, tokenizer: Tokenizer, architecture: str) -> None:
        s = tokenizer.special
        for example, item in self.layouts("classification", architecture, tokenizer):
            (text,) = tokenizer.encode([example.text])
            whole = [*s.begin, *text, *s.end]
            assert item.labels.tolist() == [FACTS.labels.index(example.label or "")]
            if architecture == "full":  # the decoder's last state has the whole text behind it
                assert item.source is not None
                assert item.source.tolist() == whole
                assert item.inputs.tolist() == [s.start, *whole[:-1]]
            else:
                assert item.source is None
                assert item.inputs.tolist() == whole

    def test_language_modeling(self, tokenizer: Tokenizer) -> None:
        """Both architectures are scored on the same continuations, token by token."""
        s = tokenizer.special
        pairs = [self.layouts("language_modeling", a, tokenizer) for a in ("full", "decoder_only")]
        for (example, full), (_, decoder) in zip(*pairs, strict=True):
            cut = prefix_length(example.text)
            prefix, rest = tokenizer.encode([example.text[:cut], example.text[cut:]])
            assert full.source is not None
            assert full.source.tolist() == [*s.begin, *prefix, *s.end]
            assert full.inputs.tolist() == [s.start, *s.target_begin, *rest]
            assert full.labels.tolist() == [*s.target_begin, *rest, s.eos]
            assert decoder.source is None
            assert decoder.inputs.tolist() == [s.bos, *prefix, *rest]
            assert decoder.labels.tolist() == [*prefix, *rest, s.eos]
            assert [*s.target_begin, *decoder.labels[decoder.prefix :]] == full.labels.tolist()

    @pytest.mark.parametrize("architecture", ARCHITECTURES)
    def test_tagging(self, tokenizer: Tokenizer, architecture: str) -> None:
        """Each word's tag stands at its first token."""
        s = tokenizer.special
        for example, item in self.layouts("tagging", architecture, tokenizer):
            tokens, labels = [*s.begin], [IGNORE_INDEX] * len(s.begin)
            for word, tag in zip(example.words or (), example.tags or (), strict=True):
                (piece,) = tokenizer.encode([word])
                tokens += piece
                labels += [FACTS.tag_labels.index(tag)] + [IGNORE_INDEX] * (len(piece) - 1)
            assert item.inputs.tolist() == [*tokens, *s.end]
            assert item.labels.tolist() == [*labels, *(IGNORE_INDEX for _ in s.end)]
            assert (item.source is not None) == (architecture == "full")

    def test_denoising_encoder_only(self, tokenizer: Tokenizer) -> None:
        """Four of ten tokens are scored; others are as they were."""
        s = tokenizer.special
        hidden = 0
        for example, item in self.layouts("denoising", "encoder_only", tokenizer):
            (text,) = tokenizer.encode([example.text])
            expected = np.array([*s.begin, *text, *s.end])
            scored = item.labels != IGNORE_INDEX
            assert scored.sum() == max(1, round(0.4 * len(text)))
            assert (item.labels[scored] == expected[scored]).all()
            assert (item.inputs[~scored] == expected[~scored]).all()
            hidden += (item.inputs[scored] == s.mask).sum()
        assert hidden > 0

    def test_denoising_full(self, tokenizer: Tokenizer) -> None:
        """The source is the text with spans of it, four of ten tokens in all, replaced by one mask each; between two
        tokens a mask may hide nothing."""
        s = tokenizer.special
        for example, item in self.layouts("denoising", "full", tokenizer):
            (text,) = tokenizer.encode([example.text])
            assert item.inputs.tolist() == [s.start, *s.target_begin, *text]
            assert item.labels.tolist() == [*s.target_begin, *text, s.eos]
            assert item.source is not None
            source = inner(item.source.tolist(), s)
            assert item.source.tolist() == [*s.begin, *source, *s.end]
            assert sum(i != s.mask for i in source) == len(text) - round(0.4 * len(text))
            pattern = "".join(".*" if i == s.mask else re.escape(chr(i)) for i in source)
            assert re.fullmatch(pattern, "".join(map(chr, text)), re.DOTALL)
            assert (s.mask, s.mask) not in set(pairwise(source))

    def test_denoising_decoder_only(self, tokenizer: Tokenizer) -> None:
        s = tokenizer.special
        for example, item in self.layouts("denoising", "decoder_only", tokenizer):
            (text,) = tokenizer.encode([example.text])
            assert (item.inputs.tolist(), item.labels.tolist()) == ([s.bos, *text], [*text, s.eos])
            assert item.source is None

    @pytest.mark.parametrize("text", ["", "a"])
    @pytest.mark.parametrize("architecture", ["full", "decoder_only"])
    def test_a_line_too_short_for_a_prefix(self, tokenizer: Tokenizer, text: str, architecture: str) -> None:
        task = make_task("language_modeling", architecture, tokenizer=tokenizer)
        s = tokenizer.special
        (item,) = task.encode([Example(text)])
        target_begin = s.target_begin if architecture == "full" else ()
        assert item.prefix == 0
        assert item.labels.tolist() == [*target_begin, *tokenizer.encode([text])[0], s.eos]
        assert item.source is None or item.source.tolist() == ([*s.begin, *s.end] or [s.bos])


@pytest.mark.parametrize("words", [("\x07", "a"), ("a", "\x07"), ("\x07",)], ids=["first", "last", "only"])
def test_a_word_of_which_the_tokenizer_reads_nothing_is_unknown(words: tuple[str, ...]) -> None:
    """BERT's drops control characters; the word keeps its tag."""
    backend = Backend.from_str(CHARACTERS.to_json())
    backend.num_labels_in_step = normalizers.Replace("\x07", "")
    tokenizer = Tokenizer(backend, LAYOUTS["gpt2"].special)
    (item,) = make_task("tagging", "encoder_only", tokenizer=tokenizer).encode(
        [Example("", words=words, tags=("odd",) * len(words))]
    )
    (a,) = tokenizer.encode(["a"])[0]
    assert item.inputs.tolist() == [a if word == "a" else tokenizer.special.unk for word in words]
    assert item.labels.tolist() == [1] * len(words)


class TestLoss:
    @pytest.mark.parametrize(("cell", "label_smoothing"), values_by_day(CELLS, [0.0, 0.2]), ids=str)
    def test_is_the_mean_over_the_scored_labels_however_they_are_split(
        self, cell: tuple[str, str], label_smoothing: float
    ) -> None:
        """Of an update: gradients of one, two and four accumulated batches, against each example by itself."""
        name, architecture = cell
        recorders = {}
        for parts in (1, 2, 4):
            task = in_double(make_task(name, architecture, label_smoothing=label_smoothing))
            items = task.encode(EXAMPLES[:8])
            num_scored = sum(int((item.labels != IGNORE_INDEX).sum()) for item in items)
            batches = [collate(items[i::parts], num_labels_in_step=num_scored) for i in range(parts)]
            recorders[parts] = fit(task, loader(*batches), accumulate=parts)

        task = in_double(make_task(name, architecture, label_smoothing=label_smoothing))
        criterion = nn.CrossEntropyLoss(label_smoothing=label_smoothing, ignore_index=IGNORE_INDEX, reduction="sum")
        losses = [criterion(logits_of(task, item), torch.from_numpy(item.labels)) for item in items]
        loss = torch.stack(losses).sum() / num_scored
        loss.backward()

        assert recorders[1].loss == pytest.approx(loss.item(), rel=1e-6)
        for n, p in task.network.named_parameters():
            assert p.grad is not None
            assert_close(recorders[1].gradients[n], p.grad, atol=1e-6, rtol=1e-5)
            for parts in (2, 4):
                assert_close(recorders[parts].gradients[n], recorders[1].gradients[n], atol=1e-12, rtol=0)

    @cells()
    def test_the_loaders_split_a_step_exactly(self, name: str, architecture: str) -> None:
        gradients = []
        for accumulate in (1, 4):
            task = in_double(make_task(name, architecture))
            data = make_data(task, step_size=StepSize(8, accumulate=accumulate))
            gradients.append(fit(task, data, accumulate=accumulate).gradients)
        for n in gradients[0]:
            assert_close(gradients[0][n], gradients[1][n], atol=1e-12, rtol=0)

    @cells()
    def test_what_is_not_scored_adds_nothing(self, name: str, architecture: str) -> None:
        """A row that is padding alone, or has no label: beside others, or in a batch of such rows."""
        some = make_task(name, architecture).encode(TRAINED[:2])
        nothing = np.array([], dtype=np.int64)
        ignored = np.full_like(some[0].labels, IGNORE_INDEX)
        source = None if some[0].source is None else nothing
        unscored = [
            EncodedExample(nothing, ignored, source, example=Example("")),
            EncodedExample(some[0].inputs, ignored, some[0].source, example=TRAINED[0]),
        ]
        losses = []
        for items in (unscored, [*unscored, *some], some):
            recorder = fit(make_task(name, architecture), loader(collate(items)))
            assert all(gradient.isfinite().all() for gradient in recorder.gradients.values())
            losses.append(recorder.loss)
        assert losses == pytest.approx([0, losses[2], losses[2]], rel=1e-5)

    @cells([cell for cell in CELLS if cell[0] != "classification"])
    def test_of_a_validation_too(self, name: str, architecture: str) -> None:
        task = make_task(name, architecture)
        some = task.encode(TRAINED[:2])
        unscored = EncodedExample(
            some[0].inputs, np.full_like(some[0].labels, IGNORE_INDEX), some[0].source, example=TRAINED[0]
        )
        batches = [[unscored, unscored], [unscored, *some]]
        mixed, plain = (validate(task, loader(*map(collate, items)))["val/loss"] for items in (batches, [some]))
        assert mixed == pytest.approx(plain, rel=1e-6)

    @pytest.mark.parametrize(
        ("name", "architecture"),
        [("translation", "full"), ("language_modeling", "decoder_only"), ("denoising", "encoder_only")],
    )
    def test_z_loss_is_added_in_training_alone(self, name: str, architecture: str) -> None:
        """0.3 times the mean of (log sum of exp(logit))^2 over the scored labels."""
        task = in_double(make_task(name, architecture, z_loss=0.3))
        items = task.encode(EXAMPLES[:4])
        places = [torch.from_numpy(item.labels) != IGNORE_INDEX for item in items]
        logits = [logits_of(task, item)[place] for item, place in zip(items, places, strict=True)]
        penalty = torch.cat(logits).logsumexp(-1).square().mean().item()
        plain = fit(in_double(make_task(name, architecture)), loader(collate(items))).loss
        assert fit(task, loader(collate(items))).loss == pytest.approx(plain + 0.3 * penalty, rel=1e-6)
        losses = [
            validate(make_task(name, architecture, z_loss=z_loss), loader(collate(items)))["val/loss"]
            for z_loss in (0.0, 0.3)
        ]
        assert losses[0] == losses[1]

    @pytest.mark.parametrize("z_loss", [-0.1, math.inf, math.nan])
    def test_rejects_a_z_loss_that_is_no_weight(self, z_loss: float) -> None:
        with pytest.raises(ValueError, match=rf"task\.z_loss={z_loss}: expected at least 0"):
            make_task("translation", "full", z_loss=z_loss)

    @pytest.mark.parametrize("label_smoothing", [-0.1, 1.0, math.nan])
    def test_rejects_a_smoothing_that_is_no_share(self, label_smoothing: float) -> None:
        with pytest.raises(ValueError, match=rf"task\.label_smoothing={label_smoothing}: expected"):
            make_task("classification", "full", label_smoothing=label_smoothing)


@pytest.mark.parametrize("prefix", [3, 20, 30])
def test_a_line_that_is_too_long_keeps_what_a_prefix_decoder_is_scored_on(prefix: int) -> None:
    """The beginning of its prefix goes, but for the first token; then the end of the continuation."""
    task = make_task("language_modeling", "prefix_lm", max_length=16, max_new_tokens=6, truncates=True)
    tokens, labels = np.arange(40), np.append(np.full(prefix, IGNORE_INDEX), np.arange(prefix + 1, 41))
    cut = task.truncate(EncodedExample(tokens, labels, prefix=prefix))
    assert len(cut.inputs) == len(cut.labels) == 16
    assert cut.inputs[0] == 0
    assert cut.prefix == min(prefix, 9)  # 16 less 6 new tokens, one of them before the first that is scored
    assert (cut.labels[: cut.prefix] == IGNORE_INDEX).all()
    assert cut.labels[cut.prefix :].tolist() == list(range(prefix + 1, prefix + 1 + 16 - cut.prefix))
    assert cut.inputs[cut.prefix] == prefix


def plain_metrics(task: Task) -> dict[str, float]:
    """Of ``EXAMPLES``, each by itself: the definitions, in loops over float64."""
    nats, hits, bytes_, exact, pairs, confidences = [], [], [], [], [], []
    continuation_nats, continuation_bytes, characters, words = 0.0, 0, 0, 0
    with torch.no_grad():
        for example, item in zip(EXAMPLES, task.encode(EXAMPLES), strict=True):
            right = []
            for i, (row, label) in enumerate(zip(logits_of(task, item).double(), item.labels.tolist(), strict=True)):
                if label == IGNORE_INDEX:
                    continue
                nats.append(math.log(sum(math.exp(x) for x in row.tolist())) - float(row[label]))
                right.append(int(row.argmax()) == label)
                pairs.append((label, int(row.argmax())))
                confidences.append(float(row.softmax(-1).max()))
                if i >= item.prefix:
                    continuation_nats += nats[-1]
            hits += right
            exact.append(all(right))
            scored = example.text[prefix_length(example.text) :]
            continuation_bytes += len(scored.encode())
            read = example.text if task.architecture == "decoder_only" else scored
            bytes_.append(len(read.encode()))
            characters += len(read)
            words += len(read.split()) + 1  # the end of the line is one
    loss, accuracy = sum(nats) / len(nats), sum(hits) / len(hits)
    if task.name == "translation":
        return {"loss": loss, "token_accuracy": accuracy, "exact_match": sum(exact) / len(exact)}
    if task.name == "denoising":
        return {"loss": loss, "token_accuracy": accuracy}
    if task.name == "tagging":
        return {"loss": loss, "accuracy": accuracy}
    if task.name == "classification":
        f1 = []
        for c in range(len(FACTS.labels)):
            right_c = sum(label == guess == c for label, guess in pairs)
            f1.append(2 * right_c / (sum(label == c for label, _ in pairs) + sum(guess == c for _, guess in pairs)))
        gaps = [0.0] * 15  # (sum of hits - sum of confidences) of each bin
        for hit, confidence in zip(hits, confidences, strict=True):
            gaps[min(int(15 * confidence), 14)] += hit - confidence
        calibration_error = sum(map(abs, gaps)) / len(hits)
        return {
            "loss": loss, "accuracy": accuracy, "macro_f1": sum(f1) / len(f1), "calibration_error": calibration_error,
        }  # fmt: skip
    values = {
        "loss": loss, "perplexity": math.exp(loss), "token_accuracy": accuracy,
        "bits_per_byte": sum(nats) / math.log(2) / sum(bytes_), "nats_per_character": sum(nats) / characters,
    }  # fmt: skip
    if task.architecture == "decoder_only":
        values["word_perplexity"] = math.exp(sum(nats) / words)
        values["continuation_bits_per_byte"] = continuation_nats / math.log(2) / continuation_bytes
    return values


@pytest.mark.parametrize(
    ("confidences", "hits"),
    [
        ([1.0, 0.95], [0, 1]),  # one bin, the last: |accuracy 1/2 - confidence 0.975|
        ([1.0, 1.0, 0.5], [1, 0, 1]),
        ([0.0, 1 / 15, 2 / 15, 14 / 15, 0.9333], [0, 1, 0, 1, 0]),
    ],
)
def test_calibration_error_has_fifteen_bins(confidences: list[float], hits: list[int]) -> None:
    """Guo et al. 2017, equation 3, with numpy's histogram, whose last bin is closed on both sides."""
    edges = np.arange(16) / 15
    of_bin = [np.histogram(confidences, edges, weights=of)[0] for of in (None, hits, confidences)]
    expected = sum(n / len(hits) * abs(h / n - c / n) for n, h, c in zip(*of_bin, strict=True) if n)
    found = calibration_error(torch.tensor(confidences, dtype=torch.float64), torch.tensor(hits))
    assert_close(float(found), expected)


def test_calibration_error_of_weights_that_have_diverged_is_no_number() -> None:
    found = calibration_error(torch.tensor([0.5, math.nan]).double(), torch.tensor([1, 0]))
    assert math.isnan(found)


class TestMetrics:
    @cells()
    def test_of_a_validation(self, trained: Callable[..., Task], name: str, architecture: str) -> None:
        """Against the definitions, whatever the size of a batch."""
        task = trained(name, architecture)
        expected = {f"val/{key}": value for key, value in plain_metrics(task).items()}
        num_scored = sum(item.num_scored for item in task.encode(EXAMPLES))
        for eval_batch_size in (1, 7, 64):
            recorder = Recorder()
            metrics = validate(task, make_data(task, eval_batch_size=eval_batch_size), callbacks=[recorder])
            assert metrics == pytest.approx(expected, rel=1e-6)
            assert recorder.num_scored == num_scored
        assert 0 < metrics[f"val/{PRIMARY[name]}"] != 1  # the examples are neither too easy nor too hard

    @cells([cell for cell in CELLS if cell[0] == "translation"])
    def test_of_a_test_of_translation(self, trained: Callable[..., Task], name: str, architecture: str) -> None:
        """Teacher forcing finds the exact matches of greedy decoding; BLEU is sacrebleu's."""
        task = trained(name, architecture)
        outputs = predict(task, TEXTS)
        references = [example.target or "" for example in EXAMPLES]
        hits = [output == reference for output, reference in zip(outputs, references, strict=True)]
        expected = {"exact_match": sum(hits) / len(hits), "bleu": sacrebleu.corpus_bleu(outputs, [references]).score}
        for eval_batch_size in (1, 7, 64):
            data = make_data(task, eval_batch_size=eval_batch_size)
            metrics = make_trainer().test(make_module(task), data, verbose=False)[0]
            assert {key: metrics[f"test/{key}"] for key in expected} == pytest.approx(expected, rel=1e-6)
            validated = validate(task, data)
            assert validated["val/exact_match"] == pytest.approx(expected["exact_match"])
            assert {"val/bleu", "val/chrf", "val/ter"}.isdisjoint(validated)

    @cells([cell for cell in CELLS if cell[0] == "translation"])
    def test_chrf_and_ter_are_sacrebleus(self, trained: Callable[..., Task], name: str, architecture: str) -> None:
        task = trained(name, architecture)
        metrics = make_trainer().test(make_module(task), make_data(task, eval_batch_size=7), verbose=False)[0]
        references = [example.target or "" for example in EXAMPLES]
        outputs = predict(task, TEXTS)
        for name, score in (("chrf", sacrebleu.corpus_chrf), ("ter", sacrebleu.corpus_ter)):
            assert metrics[f"test/{name}"] == pytest.approx(score(outputs, [references]).score, rel=1e-6)
        assert task.signatures["ter"].startswith("nrefs:1|case:lc|tok:tercom|")

    @cells([cell for cell in CELLS if cell[0] == "classification"])
    def test_confusion_matrix(self, trained: Callable[..., Task], name: str, architecture: str) -> None:
        """A row for each true class, a column for each predicted one."""
        task = trained(name, architecture)
        module = make_module(task)
        make_trainer().test(module, make_data(task, eval_batch_size=7), verbose=False)
        predicted = [prediction.label for prediction in predict(task, TEXTS)]
        expected = Counter(zip([example.label for example in EXAMPLES], predicted, strict=True))
        counts = module.matrix_metrics["test/confusion_matrix"]
        assert counts == [[expected[true, guess] for guess in FACTS.labels] for true in FACTS.labels]

    @cells([cell for cell in CELLS if cell[0] == "translation"])
    def test_beam_search(self, trained: Callable[..., Task], name: str, architecture: str) -> None:
        """The scores are those of what ``predict`` says, tokenised as asked for, with sacrebleu's own signature."""
        task: Any = make_task(name, architecture, num_beams=4, bleu_tokenizer="char")
        task.network.load_state_dict(trained(name, architecture).network.state_dict())
        metrics = make_trainer().test(make_module(task), make_data(task, eval_batch_size=7), verbose=False)[0]
        references = [example.target or "" for example in EXAMPLES]
        bleu = BLEU(tokenize="char")
        assert metrics["test/bleu"] == pytest.approx(bleu.corpus_score(predict(task, TEXTS), [references]).score)
        assert task.signatures["bleu"] == str(bleu.get_signature())
        task.ranks, task.search = True, BeamSearch(num_beams=4, num_return_sequences=3)
        for candidates in predict(task, TEXTS):
            assert len(candidates) == 3
            assert 0 > candidates[0].score >= candidates[1].score >= candidates[2].score
        task.search = BeamSearch(num_beams=4)
        assert [c[0].text for c in predict(task, TEXTS[:8])] == references[:8]  # it knows them by heart

    @cells()
    def test_the_primary_metric_is_logged(self, trained: Callable[..., Task], name: str, architecture: str) -> None:
        task = trained(name, architecture)
        for stage, run in (("val", L.Trainer.validate), ("test", L.Trainer.test)):
            metrics = run(make_trainer(), make_module(task), make_data(task), verbose=False)[0]
            assert f"{stage}/{PRIMARY[name]}" in metrics


class TestPredictions:
    @cells()
    def test_are_in_the_order_of_the_texts_whatever_the_batch(
        self, trained: Callable[..., Task], name: str, architecture: str
    ) -> None:
        task = trained(name, architecture)
        texts = [*TEXTS, "", TEXTS[0]]
        alone = [predict(task, [text])[0] for text in texts]
        for batch_size in (1, 3, 64):
            for one, other in zip(predict(task, texts, batch_size=batch_size), alone, strict=True):
                if isinstance(one, str) or isinstance(other, str):
                    assert one == other
                else:
                    assert one.label == other.label
                    assert one.probabilities == pytest.approx(other.probabilities, abs=1e-5)
        assert predict(task, []) == []

    def test_each_text_has_the_room_that_its_length_leaves(self, trained: Callable[..., Task]) -> None:
        task = trained("translation", "decoder_only")
        long = "s" * 36  # with <bos> and <sep> all but two of the forty positions
        assert predict(task, [TEXTS[0], long])[0] == EXAMPLES[0].target

    @cells([("language_modeling", "full"), ("language_modeling", "decoder_only")])
    def test_of_a_stream_begin_anywhere(self, name: str, architecture: str) -> None:
        """Windows of a long text have no <bos>, so a prompt has none either; without a prompt it is all there is."""
        task: Any = make_task(name, architecture, corpus=CorpusInfo(is_stream=True))
        given: list[list[int]] = []
        task.decode = lambda ids: given.extend(ids) or [""] * len(ids)
        predict(task, ["abc", ""])
        assert given == [*CHARACTERS.encode(["abc"]), [BOS]]

    def test_of_a_class_are_its_probabilities(self, trained: Callable[..., Task]) -> None:
        task = trained("classification", "encoder_only")
        for item, prediction in zip(task.encode(EXAMPLES), predict(task, TEXTS), strict=True):
            assert not isinstance(prediction, str)
            expected = logits_of(task, item).double().softmax(-1)[0]
            assert prediction.label == FACTS.labels[int(expected.argmax())]
            assert list(prediction.probabilities) == list(FACTS.labels)
            assert list(prediction.probabilities.values()) == pytest.approx(expected.tolist(), abs=1e-5)

    @cells(WRITERS)
    def test_end_after_max_new_tokens(self, name: str, architecture: str) -> None:
        task = make_task(name, architecture, max_new_tokens=3)
        task.network.head.output.weight.data[EOS] = 0  # untrained: it would hardly ever end
        assert all(len(str(text)) <= 3 for text in predict(task, TEXTS))
        with pytest.raises(ValueError, match=r"task\.max_new_tokens=0: expected at least 1"):
            make_task(name, architecture, max_new_tokens=0)

    def test_a_prompt_that_fills_the_table_is_rejected(self) -> None:
        task = make_task("translation", "decoder_only")
        with pytest.raises(ValueError, match=r"40 tokens leaves no room: shape\.max_length=40"):
            predict(task, ["s" * 38])

    def test_an_unknown_class_is_rejected(self) -> None:
        task = make_task("classification", "full")
        with pytest.raises(ValueError, match=r"text\.tsv, line 7: label 'three'; expected one of zero, one"):
            task.encode([Example("a", label="three", place=(Path("text.tsv"), 7))])


class TestTooLong:
    """Texts of more tokens than the network reads at once."""

    @staticmethod
    def example(text: str) -> Example:
        return Example(text, " ".join(text), "one", tuple(text), ("even",) * len(text))

    @cells()
    def test_is_rejected_or_truncated(self, name: str, architecture: str) -> None:
        short, long = (self.example(text) for text in ("ab", "abcdabcdabcd"))
        task = make_task(name, architecture, max_length=8, max_new_tokens=3, truncates=True)
        items = task.encode([short, long])
        fitted = task.enforce_max_length(items)
        assert fitted[0] is items[0]
        assert items[1].longest > 8
        assert fitted[1].longest == 8
        if name != "classification":
            assert len(fitted[1].labels) == len(fitted[1].inputs)
        assert fitted[1].num_scored > 0
        assert all(torch.isfinite(logits_of(task, item)).all() for item in fitted)
        if task.truncates_input:
            assert len(predict(task, [short.text, long.text])) == 2
        task.truncates = False
        with pytest.raises(ValueError, match=r"'abcdabcdabcd': \d+ tokens, but shape\.max_length=8; raise it"):
            task.enforce_max_length(items)

    @pytest.mark.parametrize("architecture", ARCHITECTURES)
    def test_classification_reads_the_beginning(self, architecture: str) -> None:
        task = make_task("classification", architecture, max_length=8, truncates=True)
        (item,) = task.enforce_max_length(task.encode([self.example("abcdabcdabcd")]))
        kept = [BOS, *CHARACTERS.encode(["abcdab"])[0], EOS]
        if architecture == "full":
            assert item.source is not None
            assert item.source.tolist() == kept
            assert item.inputs.tolist() == [BOS, *kept[:-1]]
        else:
            assert item.inputs.tolist() == kept
        long, cut = predict(task, ["abcdabcdabcd", "abcdab"])
        assert long.label == cut.label
        assert long.probabilities == pytest.approx(cut.probabilities, rel=1e-6)  # two rows of a product round apart

    @pytest.mark.parametrize("architecture", ["full", "decoder_only"])
    def test_translation_of_a_source_that_is_cut(self, architecture: str) -> None:
        """A decoder alone keeps room for the target; what predict reads is what the test read."""
        a, b = (CHARACTERS.encode([text])[0] for text in ("abcdabcdabcd", "st"))
        kept = [BOS, *a[:6], EOS] if architecture == "full" else [BOS, *a[:3], SEP]
        task: Any = make_task("translation", architecture, max_length=8, max_new_tokens=3, truncates=True)
        (item,) = task.enforce_max_length(task.encode([Example("abcdabcdabcd", target="st")]))
        assert (item.source if architecture == "full" else item.inputs[: len(kept)]).tolist() == kept
        assert [label for label in item.labels.tolist() if label != IGNORE_INDEX] == [*b, EOS]
        seen: list[list[int]] = []
        task.decode = lambda ids, rows=None: seen.extend(ids) or [""] * len(ids)
        predict(task, ["abcdabcdabcd"])
        loader = DataLoader([collate([item])], batch_size=None, collate_fn=lambda batch: batch)
        make_trainer().test(make_module(task), loader, verbose=False)
        assert seen == [kept, kept]

    def test_translations_of_many_batches_find_their_batch(self) -> None:
        """Of which some are answered together, as many rows at a time as the largest has."""
        task: Any = make_task("translation", "full", max_length=8, max_new_tokens=3)
        words = map("".join, islice(product("abcd", repeat=3), 18))
        texts = [[word] * (1 + i % 2) for i, word in enumerate(words)]
        batches = [collate(task.encode([Example(text, target=text) for text in some])) for some in texts]
        rows_at_once: list[int] = []

        def decode(ids: list[list[int]], rows: int) -> list[str]:
            rows_at_once.append(rows)
            return [task.tokenizer.decode(source[1:-1]) for source in ids]

        task.decode = decode
        (result,) = make_trainer().test(make_module(task), DataLoader(batches, batch_size=None), verbose=False)
        assert result["test/exact_match"] == 1
        assert rows_at_once == [2, 2]

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_what_ends_a_whole_text_stays_its_end(self, layout: str) -> None:
        """Be it one token, or none."""
        tokenizer = LAYOUTS[layout]
        (ids,) = tokenizer.encode(["abcdabcdabcd"])
        for name, architecture in (("classification", "encoder_only"), ("translation", "full")):
            task = make_task(name, architecture, tokenizer=tokenizer, max_length=6, truncates=True)
            (item,) = task.enforce_max_length(task.encode([self.example("abcdabcdabcd")]))
            read = item.inputs if item.source is None else item.source
            special = tokenizer.special
            room = 6 - len(special.begin) - len(special.end)
            assert read.tolist() == [*special.begin, *ids[:room], *special.end]

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_predict_cuts_a_source_as_the_training_does(self, layout: str) -> None:
        task: Any = make_task("translation", "full", tokenizer=LAYOUTS[layout], max_length=6, truncates=True)
        (item,) = task.enforce_max_length(task.encode([self.example("abcdabcdabcd")]))
        seen: list[list[int]] = []
        task.decode = lambda ids, rows=None: seen.extend(ids) or [""] * len(ids)
        predict(task, ["abcdabcdabcd"])
        assert seen == [item.source.tolist()]


class TestSeed:
    @staticmethod
    def weights(name: str, architecture: str, **seeds: int) -> list[Tensor]:
        """After five updates, with dropout."""
        seeds = {"weights": 0, "order": 0} | seeds
        task = make_task(name, architecture, seed=seeds["weights"], dropout=0.2)
        task.seed = seeds.get("dropout", seeds["weights"])
        torch.manual_seed(random.randrange(10**6))  # whatever happened before
        fit(task, make_data(task, seed=seeds["order"]), max_steps=5)
        return [parameter.detach().clone() for parameter in task.network.parameters()]

    @cells()
    def test_decides_the_weights_bit_by_bit(self, name: str, architecture: str) -> None:
        first, second = (self.weights(name, architecture) for _ in range(2))
        assert all(map(torch.equal, first, second))

    @pytest.mark.parametrize("seed", ["weights", "order", "dropout"])
    def test_another_one_gives_others(self, seed: str) -> None:
        first = self.weights("translation", "full")
        second = self.weights("translation", "full", **{seed: 1})
        assert not all(map(torch.equal, first, second))


class Memory(DummyLogger):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[dict[str, float]] = []

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:  # type: ignore[override]
        self.rows.append(metrics | {"step": step})


def train_rank(module: TrainingModule, rank: int, port: str, outcomes: SimpleQueue) -> None:
    """One of two processes that train in float16; the loss of the second is infinite at update 2. On CPUs Lightning
    takes bf16 for float16, unless it is given float16 as a plugin."""
    os.environ.update(LOCAL_RANK=str(rank), NODE_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    task = module.task
    forward = task.forward

    def spoilt(batch: Batch, targets: Any = None) -> Tensor:
        loss = forward(batch, targets)
        return loss * float("inf") if (rank, module.trainer.global_step) == (1, 1) else loss

    task.forward = spoilt  # type: ignore[method-assign]
    place: dict[str, Any] = {"strategy": "ddp", "devices": 2, "plugins": [MixedPrecision("16-mixed", "cpu")]}
    try:
        fit(module, make_data(task), max_steps=4, **place)
        assert module.trainer.precision == "16-mixed"
        outcomes.put((rank, f"{module.on_nonfinite.skipped} skipped"))
    except NonFiniteError as error:
        outcomes.put((rank, f"not finite at step {error.step}"))
    except BaseException as error:
        outcomes.put((rank, repr(error)))
    finally:
        os._exit(0)


PRECISIONS = ["32-true", "bf16-mixed", "bf16-true", "64-true"]


class TestTrainer:
    @pytest.mark.parametrize(("cell", "precision"), values_by_day(CELLS, PRECISIONS), ids=str)
    def test_trains_and_validates_in_any_precision(self, cell: tuple[str, str], precision: str) -> None:
        task = make_task(*cell)
        fit(task, make_data(task), precision=precision)
        assert math.isfinite(validate(task, make_data(task), precision=precision)["val/loss"])

    def test_steps_as_the_schedule_says(self) -> None:
        task = make_task("classification", "encoder_only")
        trainer = make_trainer(max_steps=4, limit_val_batches=0)
        trainer.fit(make_module(task), make_data(task))
        (optimizer,) = trainer.optimizers
        assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([1e-2 * SCHEDULE(4)] * 2)

    @pytest.mark.parametrize("accumulate", [1, 2])
    def test_the_cost_log_counts(self, accumulate: int) -> None:
        task = make_task("translation", "full")
        cost_log, logger = make_cost_log(task), Memory()
        cost_log.flops_of_step = 1000  # of AdamW there are none
        items = task.encode(EXAMPLES)
        batches = [collate(items[i : i + 3]) for i in range(3 * accumulate)]
        callbacks: list[L.Callback] = [cost_log]
        options = {"logger": logger, "callbacks": callbacks, "log_every_n_steps": 3}
        fit(task, loader(*batches), accumulate=accumulate, max_steps=3, **options)
        slots = sum(batch.inputs.numel() + batch.source.numel() for batch in batches if batch.source is not None)
        real = sum(
            len(item.inputs) + len(item.source)
            for i in range(3 * accumulate)
            for item in items[i : i + 3]
            if item.source is not None
        )
        assert real < slots
        assert cost_log.tokens == real
        assert sum(rows * (length + source) * n for (rows, length, source), n in cost_log.shapes.items()) == slots
        assert cost_log.shapes.total() == 3 * accumulate
        (row,) = logger.rows
        assert row["train/non_padding_fraction"] == pytest.approx(real / slots)
        assert row["train/tokens_per_second"] == pytest.approx(real / cost_log.seconds)
        assert row["tokens"] == real
        counted = sum(
            n * sum(forward_flops(cost_log.cost.network, shape).values()) for shape, n in cost_log.shapes.items()
        )
        outputs = 2 * 32 * CHARACTERS.vocab_size  # operations of one answer
        assert row["train_flops"] == 3 * (counted - cost_log.unanswered * outputs) + 3 * cost_log.flops_of_step
        assert 0 < cost_log.seconds < row["elapsed_s"] < cost_log.wall_time

    def test_the_cost_log_logs_the_norm_of_the_gradient_before_it_is_clipped(self) -> None:
        task, logger = make_task("translation", "full"), Memory()
        options = {
            "logger": logger, "callbacks": [make_cost_log(task)], "log_every_n_steps": 1, "gradient_clip_val": 1e-3,
        }  # fmt: skip
        recorder = fit(task, make_data(task), **options)
        expected = math.sqrt(sum(float(gradient.double().square().sum()) for gradient in recorder.gradients.values()))
        (row,) = logger.rows
        assert row["train/grad_norm"] == pytest.approx(expected, rel=1e-5)
        assert row["train/loss"] == pytest.approx(recorder.loss)

    def test_a_limit_of_zero_clips_nothing(self) -> None:
        """As in Lightning."""
        weights = []
        for limit in (None, 0):
            task = make_task("translation", "full")
            fit(task, make_data(task), max_steps=2, gradient_clip_val=limit)
            weights.append(list(task.network.parameters()))
        assert all(map(torch.equal, *weights))

    def test_the_cost_log_logs_the_learning_rate_of_each_step(self) -> None:
        task, logger = make_task("translation", "full"), Memory()
        fit(task, make_data(task), max_steps=4, logger=logger, callbacks=[make_cost_log(task)], log_every_n_steps=1)
        assert [row["lr"] for row in logger.rows] == pytest.approx([1e-2 * SCHEDULE(step) for step in range(4)])

    def test_a_checkpoint_says_what_it_is(self, tmp_path: Path) -> None:
        tokenizer = LAYOUTS["bart"]
        task = make_task("classification", "full", tokenizer=tokenizer)
        trainer = make_trainer(max_steps=1, callbacks=[CheckpointMetadata({"a": {"b": 1}}, task)], limit_val_batches=0)
        trainer.fit(make_module(task), make_data(task))
        trainer.save_checkpoint(tmp_path / "it.ckpt")
        checkpoint = torch.load(tmp_path / "it.ckpt", weights_only=True)
        info = checkpoint["triptych"]
        assert Tokenizer.from_json(info["tokenizer"]).sha256 == tokenizer.sha256
        assert SpecialTokens.from_dict(info["special_tokens"]) == tokenizer.special != SpecialTokens()
        assert info["config"] == {"a": {"b": 1}}
        assert CorpusInfo.from_dict(info["corpus"]) == FACTS
        again = make_task("classification", "full", seed=1)
        make_module(again).load_state_dict(checkpoint["state_dict"])
        assert all(map(torch.equal, again.network.parameters(), task.network.parameters()))

    @pytest.mark.filterwarnings("ignore:.*fork")
    @pytest.mark.parametrize("skips", [False, True])
    def test_ranks_agree_in_float16_that_a_loss_of_one_is_not_finite(self, skips: bool) -> None:
        task = make_task("translation", "full")
        module = make_module(task, optimizer=replace(OPTIMIZER, fused=False), skips_not_finite=skips)
        forks, port = multiprocessing.get_context("fork"), str(find_free_network_port())
        outcomes = forks.SimpleQueue()
        ranks = [forks.Process(target=train_rank, args=(module, rank, port, outcomes)) for rank in (0, 1)]
        for process in ranks:
            process.start()
        found = dict(outcomes.get() for _ in ranks)
        for process in ranks:
            process.join()
        expected = "1 skipped" if skips else "not finite at step 2"
        assert found == {0: expected, 1: expected}

    def test_progress_counts_steps(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        task = make_task("classification", "full")
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        fit(task, make_data(task), max_steps=2, callbacks=[ProgressBar(refresh_rate=1)], enable_progress_bar=True)
        shown = capsys.readouterr().out
        assert "Training" in shown
        assert "Epoch" not in shown
        assert "v_num" not in shown

    def test_progress_without_a_terminal_is_a_line_at_times(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A minute without one is over at each step here."""
        task = make_task("classification", "full")
        monkeypatch.setattr(progress_bar, "SILENT_S", 0.0)
        with caplog.at_level(logging.INFO, "triptych"):
            fit(
                task, make_data(task), max_steps=3, callbacks=[ProgressBar()], enable_progress_bar=True,
                log_every_n_steps=1,
            )  # fmt: skip
        lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("step ")]
        assert [line.split(": ")[0] for line in lines[:2]] == ["step 1 of 3", "step 2 of 3"]
        assert re.search(r": loss \d\.\d{3}; 1 left, about (less than a second|\d+ s)$", lines[1])
        assert "left" not in lines[-1]
