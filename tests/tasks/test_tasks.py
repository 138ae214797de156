"""The tasks on every architecture: what is read and scored, the exact loss, the metrics, the predictions."""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import sacrebleu
import torch
from lightning.pytorch.loggers.logger import DummyLogger
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.data import DataLoader

from triptych.accounting import shape_of
from triptych.data import (
    IGNORE,
    Batch,
    BytePairs,
    Characters,
    CorpusFacts,
    DataModule,
    Encoded,
    EncodedList,
    Example,
    Tokenizer,
    collate,
)
from triptych.data.prefix import prefix_length
from triptych.data.tokenizers import BOS, EOS, SEP
from triptych.optim import AdamW, Linear
from triptych.tasks import Classification, LanguageModeling, Task, Translation
from triptych.training import CheckpointFacts, Progress, Tally

pytestmark = pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.rank_zero.LightningDeprecationWarning")

Build = Callable[..., Any]

ARCHITECTURES = ("encoder_only", "decoder_only", "full")
TASKS: dict[str, type[Task]] = {
    "translation": Translation,
    "classification": Classification,
    "language_modeling": LanguageModeling,
}
CELLS = [
    ("translation", "full"),
    ("translation", "decoder_only"),
    ("classification", "encoder_only"),
    ("classification", "decoder_only"),
    ("classification", "full"),
    ("language_modeling", "full"),
    ("language_modeling", "decoder_only"),
]
WRITERS = [cell for cell in CELLS if cell[0] != "classification"]
FACTS = CorpusFacts(labels=("zero", "one", "two"))


def cells(which: Sequence[tuple[str, str]] = CELLS) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("name", "architecture"), which, ids=["-".join(cell) for cell in which])


def make_examples() -> list[Example]:
    """Each text begins with a character of its own, so any prefix tells the first eight apart."""
    draw = random.Random(0)
    texts = [start + "".join(draw.choices("abcdé日", k=draw.randint(2, 7))) for start in "stuvwxyzstuvwxyzstuv"]
    return [Example(text, target=" ".join(reversed(text)), label=FACTS.labels[len(text) % 3]) for text in texts]


EXAMPLES = make_examples()
TRAINED = EXAMPLES[:8]
TEXTS = [example.text for example in EXAMPLES]
CHARACTERS = Characters().train([*TEXTS, " "])
BPE = BytePairs(vocab_size=280).train(TEXTS)


def make_task(
    build: Build,
    name: str,
    architecture: str,
    *,
    tokenizer: Tokenizer = CHARACTERS,
    corpus: CorpusFacts = FACTS,
    label_smoothing: float = 0.0,
    seed: int = 0,
    max_new_tokens: int = 30,
    **model: Any,
) -> Task:
    cls: Any = TASKS[name]
    torch.manual_seed(seed)
    network = build(
        architecture,
        vocab_size=tokenizer.vocab_size,
        num_outputs=cls.num_outputs(tokenizer.vocab_size, corpus),
        pool=cls.pools[architecture],
        **({"d_model": 32, "num_layers": 1, "d_ff": 64, "max_length": 40} | model),
    )
    options = {} if name == "classification" else {"max_new_tokens": max_new_tokens}
    task: Task = cls(
        network=network,
        tokenizer=tokenizer,
        corpus=corpus,
        optimizer=AdamW(lr=1e-2, beta1=0.9, beta2=0.98, eps=1e-9, weight_decay=0.01),
        schedule=Linear(warmup_steps=2, max_steps=10, min_factor=0.0),
        seed=seed,
        label_smoothing=label_smoothing,
        **options,
    )
    return task


def make_data(task: Task, **options: Any) -> DataModule:
    split = EncodedList(task.encode(EXAMPLES))
    settings = {"batch_size": 8, "accumulate": 1, "eval_batch_size": 64, "num_workers": 0, "seed": 0} | options
    return DataModule(train=split, validation=split, test=split, **settings)


def make_trainer(**options: Any) -> L.Trainer:
    settings: dict[str, Any] = {
        "accelerator": "cpu",
        "max_epochs": -1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "use_distributed_sampler": False,
    }
    return L.Trainer(**(settings | options))


class Recorder(L.Callback):
    """Keeps the loss and the gradients of the last update, and the weight of the last validation's loss."""

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Any) -> None:
        self.gradients = {n: p.grad.clone() for n, p in pl_module.named_parameters() if p.grad is not None}

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, *_: Any) -> None:
        self.loss = float(outputs["loss"])

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, Task)
        metrics: Any = pl_module.metrics["val"]
        self.num_scored = int(metrics["loss"].weight)


def fit(task: Task, data: Any, *, accumulate: int = 1, max_steps: int = 1, **options: Any) -> Recorder:
    recorder = Recorder()
    callbacks = [*options.pop("callbacks", []), recorder]
    make_trainer(
        max_steps=max_steps, accumulate_grad_batches=accumulate, callbacks=callbacks, limit_val_batches=0, **options
    ).fit(task, data)
    return recorder


def loader(*batches: Batch) -> DataLoader[Any]:
    return DataLoader(list(batches), batch_size=None)  # type: ignore[arg-type]


def validate(task: Task, data: Any, **options: Any) -> dict[str, float]:
    return dict(make_trainer(**options).validate(task, data, verbose=False)[0])


def first_update(data: DataModule) -> list[Encoded]:
    (batch,) = islice(data.train_dataloader().sampler, 1)
    return [data.train[i] for i in batch.indices]


def logits_of(task: Task, item: Encoded) -> Tensor:
    """Of an example by itself: no batch, no padding, no mask."""
    inputs = [torch.from_numpy(ids)[None] for ids in (item.source, item.tokens) if ids is not None]
    logits: Tensor = task.network(*inputs)[0]
    return logits if logits.ndim == 2 else logits[None]


@pytest.fixture(scope="module")
def trained(build: Build) -> Callable[[str, str], Task]:
    """A task that knows ``TRAINED`` by heart, by plain steps of AdamW on one batch; the rest it has never seen."""

    @cache
    def train(name: str, architecture: str) -> Task:
        task = make_task(build, name, architecture)
        batch = collate(task.encode(TRAINED))
        optimizer = torch.optim.AdamW(task.parameters(), lr=5e-3)
        for _ in range(150):
            optimizer.zero_grad()
            nn.functional.cross_entropy(task(batch).flatten(0, -2), batch.labels.flatten()).backward()
            optimizer.step()
        return task.eval()

    return train


class TestGrid:
    def test_is_what_the_refusals_leave(self) -> None:
        grid = {(name, architecture) for name in TASKS for architecture in ARCHITECTURES}
        refused = {(name, architecture) for name, task in TASKS.items() for architecture in task.refusals}
        assert grid - refused == set(CELLS)

    def test_refusals_say_why_and_what_else(self) -> None:
        assert "cannot write one token after the other" in Translation.refusals["encoder_only"]
        assert "sees the token that it should predict" in LanguageModeling.refusals["encoder_only"]
        for task in (Translation, LanguageModeling):
            assert "model=decoder_only" in task.refusals["encoder_only"]
            assert "model=full" in task.refusals["encoder_only"]

    @cells()
    def test_each_cell_can_learn_a_batch_by_heart(
        self, trained: Callable[..., Task], name: str, architecture: str
    ) -> None:
        task = trained(name, architecture)
        items = task.encode(TRAINED)
        batch = collate(items)
        loss = nn.CrossEntropyLoss()(task(batch).flatten(0, -2), batch.labels.flatten())
        least = 0.0
        if (name, architecture) == ("language_modeling", "decoder_only"):  # which of the eight lines cannot be known
            least = 8 * math.log(8) / sum(item.num_scored for item in items)
        assert least - 1e-6 < loss < least + 0.05

        cuts = [prefix_length(example.text) for example in TRAINED]
        inputs, outputs = {
            "translation": (TEXTS[:8], [example.target for example in TRAINED]),
            "classification": (TEXTS[:8], [example.label for example in TRAINED]),
            "language_modeling": (
                [text[:cut] for text, cut in zip(TEXTS, cuts, strict=False)],
                [text[cut:] for text, cut in zip(TEXTS, cuts, strict=False)],
            ),
        }[name]
        predictions = task.predict(inputs)
        assert [p if isinstance(p, str) else p.label for p in predictions] == outputs


@pytest.mark.parametrize("tokenizer", [CHARACTERS, BPE], ids=["characters", "bpe"])
class TestLayout:
    """What is read, and what is scored."""

    @staticmethod
    def layouts(build: Build, name: str, architecture: str, tokenizer: Tokenizer) -> Iterator[tuple[Example, Encoded]]:
        task = make_task(build, name, architecture, tokenizer=tokenizer)
        for example, item in zip(EXAMPLES, task.encode(EXAMPLES), strict=True):
            assert item.example is example
            yield example, item

    def test_translation_full(self, build: Build, tokenizer: Tokenizer) -> None:
        for example, item in self.layouts(build, "translation", "full", tokenizer):
            source, target = tokenizer.encode([example.text, example.target or ""])
            assert item.source is not None
            assert item.source.tolist() == [BOS, *source, EOS]
            assert item.tokens.tolist() == [BOS, *target]
            assert item.labels.tolist() == [*target, EOS]

    def test_translation_decoder_only(self, build: Build, tokenizer: Tokenizer) -> None:
        """Scored are the target and the end alone, each at the place before it."""
        for example, item in self.layouts(build, "translation", "decoder_only", tokenizer):
            source, target = tokenizer.encode([example.text, example.target or ""])
            assert item.source is None
            assert item.tokens.tolist() == [BOS, *source, SEP, *target]
            assert item.labels.tolist() == [IGNORE] * (1 + len(source)) + [*target, EOS]

    @pytest.mark.parametrize("architecture", ARCHITECTURES)
    def test_classification(self, build: Build, tokenizer: Tokenizer, architecture: str) -> None:
        for example, item in self.layouts(build, "classification", architecture, tokenizer):
            (text,) = tokenizer.encode([example.text])
            assert item.tokens.tolist() == [BOS, *text, EOS]
            assert item.labels.tolist() == [FACTS.labels.index(example.label or "")]
            if architecture == "full":
                assert item.source is not None
                assert item.source.tolist() == item.tokens.tolist()
            else:
                assert item.source is None

    def test_language_modeling(self, build: Build, tokenizer: Tokenizer) -> None:
        """Both architectures are scored on the same continuations, token by token."""
        pairs = [self.layouts(build, "language_modeling", a, tokenizer) for a in ("full", "decoder_only")]
        for (example, full), (_, decoder) in zip(*pairs, strict=True):
            cut = prefix_length(example.text)
            prefix, rest = tokenizer.encode([example.text[:cut], example.text[cut:]])
            assert full.source is not None
            assert full.source.tolist() == [BOS, *prefix]
            assert full.tokens.tolist() == [BOS, *rest]
            assert full.labels.tolist() == [*rest, EOS]
            assert decoder.source is None
            assert decoder.tokens.tolist() == [BOS, *prefix, *rest]
            assert decoder.labels.tolist() == [*prefix, *rest, EOS]
            assert decoder.labels[decoder.prefix :].tolist() == full.labels.tolist()

    @pytest.mark.parametrize("text", ["", "a"])
    @pytest.mark.parametrize("architecture", ["full", "decoder_only"])
    def test_a_line_too_short_for_a_prefix(
        self, build: Build, tokenizer: Tokenizer, text: str, architecture: str
    ) -> None:
        task = make_task(build, "language_modeling", architecture, tokenizer=tokenizer)
        (item,) = task.encode([Example(text)])
        assert item.prefix == 0
        assert item.labels.tolist() == [*tokenizer.encode([text])[0], EOS]
        assert item.source is None or item.source.tolist() == [BOS]


class TestLoss:
    @cells()
    @pytest.mark.parametrize("label_smoothing", [0.0, 0.2])
    def test_is_the_mean_over_the_scored_labels_however_they_are_split(
        self, build: Build, name: str, architecture: str, label_smoothing: float
    ) -> None:
        """Of an update: gradients of one, two and four accumulated batches, against each example by itself."""
        recorders = {}
        for accumulate in (1, 2, 4):
            task = make_task(build, name, architecture, label_smoothing=label_smoothing).double()
            data = make_data(task, accumulate=accumulate)
            recorders[accumulate] = fit(task, data, accumulate=accumulate)

        task = make_task(build, name, architecture, label_smoothing=label_smoothing).double()
        update = first_update(make_data(task))
        criterion = nn.CrossEntropyLoss(label_smoothing=label_smoothing, ignore_index=IGNORE, reduction="sum")
        losses = [criterion(logits_of(task, item), torch.from_numpy(item.labels)) for item in update]
        loss = torch.stack(losses).sum() / sum(int((item.labels != IGNORE).sum()) for item in update)
        loss.backward()

        assert recorders[1].loss == pytest.approx(float(loss), rel=1e-6)
        for n, p in task.named_parameters():
            assert p.grad is not None
            assert_close(recorders[1].gradients[n], p.grad, atol=1e-6, rtol=1e-5)
            for accumulate in (2, 4):
                assert_close(recorders[accumulate].gradients[n], recorders[1].gradients[n], atol=1e-12, rtol=0)

    @cells()
    def test_what_is_not_scored_adds_nothing(self, build: Build, name: str, architecture: str) -> None:
        """A row that is padding alone, or has no label: beside others, or in a batch of such rows."""
        some = make_task(build, name, architecture).encode(TRAINED[:2])
        nothing = np.array([], dtype=np.int64)
        ignored = np.full_like(some[0].labels, IGNORE)
        source = None if some[0].source is None else nothing
        unscored = [
            Encoded(nothing, ignored, source, example=Example("")),
            Encoded(some[0].tokens, ignored, some[0].source, example=TRAINED[0]),
        ]
        losses = []
        for items in (unscored, [*unscored, *some], some):
            recorder = fit(make_task(build, name, architecture), loader(collate(items)))
            assert all(gradient.isfinite().all() for gradient in recorder.gradients.values())
            losses.append(recorder.loss)
        assert losses == pytest.approx([0, losses[2], losses[2]], rel=1e-5)

    @cells(WRITERS)
    def test_of_a_validation_too(self, build: Build, name: str, architecture: str) -> None:
        task = make_task(build, name, architecture)
        some = task.encode(TRAINED[:2])
        unscored = Encoded(some[0].tokens, np.full_like(some[0].labels, IGNORE), some[0].source, example=TRAINED[0])
        batches = [[unscored, unscored], [unscored, *some]]
        mixed, plain = (validate(task, loader(*map(collate, items)))["val/loss"] for items in (batches, [some]))
        assert mixed == pytest.approx(plain, rel=1e-6)

    @pytest.mark.parametrize("label_smoothing", [-0.1, 1.0, math.nan])
    def test_refuses_a_smoothing_that_is_no_share(self, build: Build, label_smoothing: float) -> None:
        with pytest.raises(ValueError, match=rf"task\.label_smoothing={label_smoothing}: expected"):
            make_task(build, "classification", "full", label_smoothing=label_smoothing)
