"""One row of docs/compatibility.md: a tiny run by its command line, and what must hold of it whatever its parts are."""

import logging
import os
import re
import traceback
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from functools import cached_property
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hydra.core.global_hydra import GlobalHydra
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from omegaconf import DictConfig
from torch import Tensor

from oracle import distance
from triptych.assembly.checks import check_before_data
from triptych.assembly.restore import load, restore
from triptych.config import ConfigError, build
from triptych.config.run_settings import RunSettings
from triptych.data import EncodedExample, Example, LongText, collate
from triptych.evaluate import evaluation
from triptych.interop import load_pretrained, save_pretrained
from triptych.launch.processes import RankInfo
from triptych.models import DualEncoderBase
from triptych.nn import LongformerAttention, NoResidual
from triptych.planning.build_run import build_run
from triptych.planning.prepare import choose, make_plan
from triptych.tasks import GenerativeTask, Task
from triptych.tasks.precision import PRECISIONS, arithmetic
from triptych.train import train
from triptych.training import TrainingModule

NOT_ASKED = "-"
NO_FAMILY = "no published family matches this network"
STEPS = 4
WRITTEN = 6
TINY = [
    *("shape.d_model=32", "shape.num_heads=4", "shape.num_layers=2", "shape.d_ff=48", "shape.max_length=96"),
    *("trainer=cpu", f"trainer.max_steps={STEPS}", f"trainer.val_check_interval={STEPS // 2}"),
    *("scheduler.warmup_steps=1", "batch.global_size=8", "batch.eval_batch_size=8"),
    *("logger=csv", "callbacks.progress.refresh_rate=0"),
]
DATES = [
    *("data.num_train=100", "data.num_validation=12", "data.num_test=12", "data.languages=[de,en,ja]"),
    *("data.first_year=2000", "data.last_year=2009"),  # the best reachable score is counted over all days
]
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 0.01, torch.bfloat16: 0.08}
"""How far logits may be apart, over max(1, the largest), by the type of the products."""

os.environ["TRIPTYCH_ALLOW"] = "recording_callback."
Choose = Callable[..., DictConfig]


def first_sentence(error: Exception) -> str:
    """What a message begins with."""
    return (str(error) or type(error).__name__).splitlines()[0].partition(". ")[0].removesuffix(".")


def refusal(chosen: Choose, arguments: Sequence[str], folder: Path) -> str | None:
    """Why a training is refused before its first update; None: it is not. The steps are those of ``train``."""
    config = chosen(*TINY, *arguments, f"run_dir={folder}/never")
    try:
        picked = choose(config, None)
        check_before_data(config)
        plan = make_plan(picked, None, "dates", LightningEnvironment(), 1)
        build_run(plan, RankInfo(None, 0, 1))
    except ConfigError as error:
        return first_sentence(error)
    return None


class LeftOut(logging.Handler):
    """Notes what the record of a run has not, which is a warning for users and a mistake here."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """See ``logging.Handler``."""
        if (message := record.getMessage()).startswith("left out of the record"):
            self.said.append(message)


def pieces_of(text: LongText) -> list[Example]:
    """Four pieces of different lengths of a long text, or fewer."""
    whole = " ".join(document.text for document in islice(text, 12))
    found = [whole[start : start + length] for start, length in ((0, 40), (40, 25), (65, 31), (96, 12))]
    return [Example(piece) for piece in found if piece.strip()]


class Trained:
    """A training that has ended.

    Args:
        chosen: makes a configuration of arguments.
        arguments: besides ``TINY``.
        folder: an empty one.
    """

    def __init__(self, chosen: Choose, arguments: Sequence[str], folder: Path) -> None:
        self.chosen, self.arguments, self.folder = chosen, arguments, folder
        self.summary = self.train("run")

    def train(self, name: str, *more: str) -> dict[str, Any]:
        """The record of such a training, in a folder of that name."""
        run_dir, noted = self.folder / name, LeftOut()
        run_dir.mkdir()
        recording = [
            "+callbacks.recording._target_=recording_callback.RecordingCallback",
            f"+callbacks.recording.folder={run_dir}",
        ]
        config = self.chosen(*TINY, *self.arguments, *recording, *more, f"run_dir={run_dir}")
        if "max_new_tokens" in config.task:
            config.task.max_new_tokens = WRITTEN
        logging.getLogger("triptych").addHandler(noted)
        try:
            result = train(config)
        finally:
            logging.getLogger("triptych").removeHandler(noted)
        assert not noted.said, noted.said[0]
        assert result is not None
        return dict(result.record)

    @cached_property
    def task(self) -> Task:
        """As it was tested."""
        return load(self.folder / "run").task

    @cached_property
    def items(self) -> list[EncodedExample]:
        """Examples of the test split, of different lengths."""
        splits = build(restore(self.folder / "run")[0], "data").splits()
        examples = splits.test[:4] if not isinstance(splits.test, LongText) else pieces_of(splits.test)
        items = self.task.encode(examples)
        return items if self.task.audio is not None else self.task.enforce_max_length(items)

    @property
    def tolerance(self) -> float:
        """Of the precision of the training."""
        return TOLERANCE[PRECISIONS[self.task.precision].products]

    def logits(
        self, items: Sequence[EncodedExample], *, packed: bool = False, task: Task | None = None
    ) -> list[Tensor]:
        """Of each example those of its positions, or where the head pools its only ones."""
        task, sizes = task or self.task, [len(item.inputs) for item in items]
        with torch.inference_mode(), arithmetic(task.precision, task.device).forward_context():
            batch, network = collate(items, packed=packed), task.network
            if isinstance(network, DualEncoderBase) and network.head.pooling == "none":  # of the text
                logits = network.read_text(batch.inputs, batch.mask).double()
            else:
                logits = task.forward(batch).double()
        if task.network.head.pooling != "none":
            return list(logits.split(1))
        if packed:
            return list(logits[0].split(sizes))
        return [row[:size] for row, size in zip(logits, sizes, strict=True)]


def check_training(run: Trained) -> None:
    """The loss is finite, and every weight has a gradient in the first update. It is zero for one of the two groups of
    projections of a Longformer whose global token reads nothing (the first of a decoder) or is not read (or it alone
    is, in the last layer), and for the recurrent weights of the last layer where only the first position is read."""
    losses, gradient = (torch.load(run.folder / "run" / f"{name}-0.pt") for name in ("losses", "gradient"))
    assert len(losses) == STEPS
    assert losses.isfinite().all(), f"losses {losses.tolist()}"
    trained = {name for name, parameter in run.task.network.named_parameters() if parameter.requires_grad}
    assert gradient.keys() == trained
    assert all(values.isfinite().all() for values in gradient.values())
    projections = {
        f"{name}.{inner}"
        for name, module in run.task.network.named_modules()
        if isinstance(module, LongformerAttention)
        for inner, _ in module.named_parameters()
        if not inner.startswith("o.")
    }
    if run.task.network.heads[0].pooling == "first":  # where a recurrence has no earlier state
        projections |= {name for name in gradient if re.search(r"encoder\.layers\.1\..*\.weight_hh_l0$", name)}
    zero = {name for name, values in gradient.items() if not values.any()} - projections
    assert not zero, f"no gradient of {', '.join(sorted(zero))}"


def check_resuming(run: Trained) -> None:
    """From the checkpoint after half of the updates on, it ends with bitwise the same weights and metrics."""
    half = run.folder / "run" / "checkpoints" / f"step-{STEPS // 2:08}.ckpt"
    again = run.train("again", f"resume={half}")
    assert len(torch.load(run.folder / "again" / "losses-0.pt")) == STEPS // 2
    for name in ("weights_sha256", "metrics"):
        assert again[name] == run.summary[name], f"{name}: {again[name]}, {run.summary[name]} unbroken"


def check_evaluation(run: Trained) -> None:
    """The checkpoint has the metrics of the run."""
    config, task = restore(run.folder / "run")
    metrics = evaluation(RunSettings.of(config), TrainingModule(task), is_same_data=True, accelerator="cpu")
    in_run = run.summary["metrics"]
    others = [f"{name} {value}, {in_run[name]} in the run" for name, value in metrics.items() if value != in_run[name]]
    assert metrics.keys() == in_run.keys()
    assert not others, "; ".join(others)


def check_packing(run: Trained) -> str | None:
    """The logits of a packed row are those of a padded batch. Images and sounds are not packed."""
    if run.task.image_shape is not None or run.task.audio is not None:
        return NOT_ASKED
    pairs = zip(run.logits(run.items, packed=True), run.logits(run.items), strict=True)
    assert (apart := max(distance(*pair, None) for pair in pairs)) < run.tolerance, f"{apart:.1e} apart"
    return None


def check_past(run: Trained) -> str | None:
    """The last token changes no logits before it, and its own. An encoder sees both sides; frames are no tokens."""
    if run.task.architecture == "encoder_only" or run.items[0].inputs.ndim > 1:
        return NOT_ASKED
    head, vocab_size = run.task.network.head, run.task.tokenizer.vocab_size
    pool, head.pooling = head.pooling, "none"  # of each position
    try:
        # a prefix decoder sees its prefix from both sides, which may be all of a short text
        in_prefix = run.task.architecture == "prefix_lm"
        # without them, four steps may make every text look the same
        has_no_residual = any(isinstance(part, NoResidual) for part in run.task.network.modules())
        items = [x for x in run.items if not (in_prefix and x.prefix + 1 >= len(x.inputs))]
        changed = [replace(x, inputs=np.append(x.inputs[:-1], (x.inputs[-1] + 1) % vocab_size)) for x in items]
        if not items:
            return NOT_ASKED
        for before, after in zip(run.logits(items), run.logits(changed), strict=True):
            if len(before) > 1:
                assert (apart := distance(after[:-1], before[:-1], None)) < run.tolerance, f"{apart:.1e} apart"
            if not has_no_residual:
                assert not torch.equal(after[-1], before[-1]), "the last token changes nothing"
    finally:
        head.pooling = pool
    return None


def check_cache(run: Trained) -> str | None:
    """Written greedily with a cache, each token has the logits that the whole text gives it at once. Others write no
    text."""
    task, item, network = run.task, run.items[0], run.task.network
    if not isinstance(task, GenerativeTask) or task.architecture == "encoder_only":
        return NOT_ASKED
    start = 1
    if task.architecture != "full":  # a prompt that leaves room
        start = max(1, min(item.prefix + 1, len(item.inputs), task.max_length - WRITTEN))
        item = replace(item, prefix=start - 1)
    batch, options = collate([item]), {"capacity": start + WRITTEN}
    tokens, logits = torch.from_numpy(item.inputs[None, :start]), list[Tensor]()
    with torch.inference_mode(), arithmetic(task.precision, task.device).forward_context():
        if task.architecture == "full":
            next_token = network.continuation(batch.source, None, **options)
        else:
            given = {
                "source": batch.source,
                "source_mask": batch.source_mask,
                "num_global_tokens": task.num_global_tokens(batch),
            }
            next_token = network.continuation(None, **given, **options)
        new = tokens
        for _ in range(WRITTEN):
            logits.append(next_token(new).double())
            new = logits[-1].argmax(-1, keepdim=True)
            tokens = torch.cat([tokens, new], dim=1)
    written = tokens[0, :-1].numpy()
    (whole,) = run.logits([replace(item, inputs=written, labels=np.zeros_like(written))])
    assert (apart := distance(torch.cat(logits), whole[start - 1 :], None)) < run.tolerance, f"{apart:.1e} apart"
    return None


def check_export(run: Trained) -> str:
    """The logits of what is read again from a Hugging Face folder; the name of its class, or why no family has it."""
    GlobalHydra.instance().clear()  # as in a command of its own
    try:
        name = save_pretrained(run.folder / "run", run.folder / "exported")
    except ConfigError as error:
        if not str(error).startswith(NO_FAMILY):
            raise
        return first_sentence(error)
    single, read = load(run.folder / "run", "32-true").task, load_pretrained(run.folder / "exported").task
    single.network.load_state_dict(run.task.network.state_dict())  # as it was tested; a moving average has more digits
    items = run.items
    if read.is_dual_encoder:  # an export of CLIP gives the last token another number
        items = read.encode([item.example for item in items if item.example is not None])
    pairs = zip(run.logits(items, task=read), run.logits(run.items, task=single), strict=True)
    assert (apart := max(distance(*pair, None) for pair in pairs)) < 1e-5, f"{apart:.1e} apart"
    return name


CHECKS: dict[str, Callable[[Trained], str | None]] = {
    "trains": check_training, "resumes": check_resuming, "evaluates": check_evaluation, "packs": check_packing,
    "is causal": check_past, "decodes with a cache": check_cache, "exports": check_export,
}  # fmt: skip
"""What is looked at, by the name on the page. They raise where something does not hold."""


def look(chosen: Choose, arguments: Sequence[str], folder: Path) -> dict[str, str]:
    """What became of each check: ok, what it says, or ``failed: WHAT``."""
    folder.mkdir()
    found = dict.fromkeys(CHECKS, NOT_ASKED)
    with redirect_stdout(StringIO()):
        try:
            run = Trained(chosen, arguments, folder)
        except Exception as error:
            return found | {"trains": failure(error)}
        for name, check in CHECKS.items():
            try:
                found[name] = check(run) or "ok"
            except Exception as error:
                found[name] = failure(error)
    return found


def failure(error: Exception) -> str:
    """An error of the product, or a check that does not hold."""
    traceback.print_exception(error)
    kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
    return f"failed: {kind}{first_sentence(error)}"
