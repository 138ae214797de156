"""Random configurations: each is refused before its data are read, in a line or two, or it trains, resumes, predicts,
evaluates and exports as docs/ promises. What is drawn is what the groups of the configuration, the signatures of the
classes and the typed root offer, so that a new part or option is drawn without a change here.

Run by `make fuzz N=100 SEED=1`: the draws 1 to 100. A draw that fails prints the command that repeats it.
"""

import argparse
import inspect
import json
import logging
import math
import os
import re
import shlex
import signal
import sys
import tempfile
import textwrap
import time
import traceback
import typing
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from copy import copy
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache, cached_property
from importlib.resources import files
from io import StringIO
from pathlib import Path
from random import Random
from types import NoneType, UnionType
from typing import Any, Literal, Union

import lightning as L
import torch
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from command_line import command_lines, composed, with_parts
from covering_rows import (
    NO_FAMILY,
    TINY,
    TOLERANCE,
    Choose,
    LeftOut,
    Trained,
    check_cache,
    check_export,
    check_packing,
    check_past,
)
from fuzz_files import WRITERS
from oracle import distance
from predicting import predict
from triptych.assembly.checks import check_before_data
from triptych.assembly.early_checks import OURS, check_training
from triptych.assembly.restore import load, restore
from triptych.config import ALLOWED, PARTS, ConfigError, RunError, class_at, hints_of
from triptych.config.build import spell_choices
from triptych.config.diagnose import choices_of, explain
from triptych.config.errors import ConfigErrors, messages_of
from triptych.config.run_settings import RunSettings
from triptych.config.schema import HeadsConfig
from triptych.data import Image
from triptych.evaluate import evaluation
from triptych.launch import signals
from triptych.models.generation import Sampling
from triptych.tasks import ClassPrediction, GenerativeTask, ImageGeneration, ImageTextMatching, Prediction, Task
from triptych.tasks.precision import PRECISIONS
from triptych.train import train
from triptych.training import TrainingModule
from triptych.training.nonfinite import NonFiniteError

CONF = Path(str(files("triptych.conf")))
STEPS = 4
"""Of each training; one of the first three is the last before the stop."""
NETWORK = [
    *TINY,
    *("shape.d_model=16", "shape.num_heads=2", "shape.num_layers=1", "shape.d_ff=32", "shape.head_dim=null"),
    *("shape.vocab_size=null", "trainer.log_every_n_steps=1"),
]
SMALL = {"num_train": 60, "num_validation": 12, "num_test": 12, "last_year": 1972, "max_new_tokens": 6}
"""Keys that cost time, wherever they are."""
SETTINGS = {
    "drawn_digits": ["data.max_digits=1", "image_embedding.image_size=[12,24]", "image_embedding.patch_size=[12,6]",
                     "image_embedding.num_channels=3"],
    "tone_digits": ["audio_embedding.rate=8000", "audio_embedding.num_mels=16"],
    "date_instructions": ["data.turns=1"],
    "python_library": [],
}  # fmt: skip
"""What corpora that are made on the spot need besides."""
NEEDS = {"infilling": ["tokenizer.num_sentinels=3"], "denoising": ["tokenizer.num_sentinels=3"]}
"""What a task mostly wants."""
DRAWN_GROUPS = {
    *("task", "data", "model", "tokenizer", "optimizer", "scheduler", "callbacks", "head"),
    *(f"block/{part}" for part in PARTS),
}
NOT_DRAWN_GROUPS = {
    "debug": "sets what is set here",
    "experiment": "a test composes each",
    "hydra/launcher": "other processes",
    "hydra/sweeper": "several runs",
    "logger": "a server, or a library's own format",
    "shape": "sizes are tiny here",
    "trainer": "other processes and devices",
}
"""With the reason."""
NOT_DRAWN = (
    *("trainer.accelerator", "trainer.devices", "trainer.num_nodes", "trainer.strategy", "trainer.max_steps"),
    *("trainer.logger", "trainer.callbacks", "trainer.plugins", "trainer.enable_progress_bar", "trainer.profiler"),
    *("trainer.max_time", "trainer.barebones", "trainer.fast_dev_run", "batch.num_workers"),
    *("callbacks.progress", "callbacks.checkpoints.every_n_minutes", "shape"),
    *(f"data.{key}" for key in SMALL),
)
"""Options that cost time or need another machine."""
ROOT = ("batch", "block", "heads", "task", "tokenizer", "optimizer", "scheduler", "callbacks", "trainer", "frames",
        "patches", "data")  # fmt: skip
"""Nodes whose options are drawn."""
HEADS = [*HeadsConfig.__dataclass_fields__]
BATCHES = ([], [], ["batch.packing=true"], ["batch.packing=false"], ["batch.global_size=null", "batch.max_tokens=200"],
           ["batch.global_size=null", "batch.max_tokens=200", "batch.packing=true"],
           ["trainer.accumulate_grad_batches=2"],
           ["trainer.accumulate_grad_batches=2", "batch.packing=true"])  # fmt: skip
"""Types of batches."""
STOPS = ("checkpoint", "SIGTERM", "SIGINT", "SIGUSR1")
KILLED = 1 / 20
"""Share of the draws that are stopped by SIGKILL, in a process of their own."""


@cache
def class_of(group: str, choice: str) -> type:
    """The class that a choice builds: its own ``_target_``, or that of the file that it begins with."""
    file = CONF / group / f"{choice}.yaml"
    node = OmegaConf.load(file)
    assert isinstance(node, DictConfig)
    if "_target_" in node:
        return typing.cast(type, class_at(f"{group}._target_", node["_target_"], ALLOWED))
    for default in node.get("defaults", []):
        if isinstance(default, str) and default != "_self_":
            path = default.partition("@")[0]
            base = CONF / path.lstrip("/") if path.startswith("/") else file.parent / path
            return class_of(group, base.relative_to(CONF / group).as_posix())
    raise AssertionError(f"{file}: no class")


def needs_files(choice: str) -> bool:
    """Whether a corpus reads files of its user's."""
    return choice in WRITERS or "???" in (CONF / "data" / f"{choice}.yaml").read_text()


@cache
def corpora() -> tuple[str, ...]:
    """The choices of data that are drawn: not those that name downloads."""

    def is_download(choice: str) -> bool:
        node = OmegaConf.load(CONF / "data" / f"{choice}.yaml")
        return "dir" in node and choice not in WRITERS

    return tuple(choice for choice in choices_of("data", []) if not is_download(choice))


def serves(task: type[Task], corpus: Any) -> bool:
    """Whether a corpus has what a task reads, as far as the classes say."""
    signals_in = {"audio", "image"} & {*corpus.columns}
    return not task.missing(corpus.columns) and signals_in <= {*task.reads, *task.columns}


@cache
def settings_of(task: str) -> DictConfig:
    """Of a task, as its file has them."""
    return typing.cast(DictConfig, composed(f"task={task}").task)


def does(model: Any, task: type[Task]) -> bool:
    """Whether an architecture can do a task, as far as the classes say."""
    try:
        task.check_architecture(model.architecture, settings_of(task.name))
    except ValueError:
        return False
    return ("Dual" in model.__name__) == task.is_dual_encoder


def values_of(hint: Any, now: object) -> list[object]:
    """Some values of a type, sensible and not: to draw from.

    Args:
        hint: annotation.
        now: the present value.
    """
    origin = typing.get_origin(hint)
    if origin in (Union, UnionType):
        return [value for part in typing.get_args(hint) for value in values_of(part, now)]
    if origin is Literal:
        return [*typing.get_args(hint)]
    if hint in (None, NoneType):
        return [None]
    if hint is bool:
        return [True, False]
    if hint is int:
        near = [2 * now, max(now // 2, 1)] if type(now) is int and 0 < now < 1000 else []
        return [1, 2, 3, 4, *near]
    if hint is float:
        near = [2.0 * now, now / 2] if isinstance(now, int | float) and not isinstance(now, bool) and now else []
        return [0.0, 0.1, 0.5, 1.0, *near]
    if origin in (list, Sequence):
        first = now[0] if isinstance(now, list) and now else None
        inner = values_of(typing.get_args(hint)[0], first)
        return [[value] for value in inner[:6]] + ([[inner[0], inner[1]]] if len(inner) > 1 else [])
    return []


def options_in(key: str, node: DictConfig) -> Iterator[tuple[str, Any, object]]:
    """Keys of a node and of those within it, with their types and values."""
    typed = OmegaConf.get_type(node)
    kind = class_at(key, node["_target_"], ALLOWED) if "_target_" in node else typed
    hints = hints_of(kind) if kind is not None and kind is not dict else {}
    choices = {f.name: f.metadata.get("choices") for f in fields(kind)} if is_dataclass(kind) else {}
    for name in node:
        if str(name).startswith("_") or OmegaConf.is_missing(node, name):
            continue
        value = node[name]
        if isinstance(value, DictConfig):
            yield from options_in(f"{key}.{name}", value)
        elif name in hints:
            plain = OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
            yield f"{key}.{name}", Literal[choices[name]] if choices.get(name) else hints[name], plain


def options_of(config: DictConfig) -> list[tuple[str, Any, object]]:
    """All options of a configuration that may be drawn; those of Lightning's trainer that it does not have begin with
    a plus."""
    found = [option for name in ROOT for option in options_in(name, config[name])]
    for name, parameter in inspect.signature(L.Trainer).parameters.items():
        if name not in config.trainer and name not in OURS:
            found.append((f"+trainer.{name}", hints_of(L.Trainer).get(name, Any), parameter.default))
    return [(key, hint, now) for key, hint, now in found
            if not f"{key.lstrip('+')}.".startswith(tuple(f"{other}." for other in NOT_DRAWN))]  # fmt: skip


@dataclass(frozen=True)
class Draw:
    """A random configuration.

    Attributes:
        overrides: of its command line.
        stop: what ends the training before its time: a signal, or nothing, and another run resumes its checkpoint.
        after: the step.
        precision: another one to predict in.
    """

    seed: int
    overrides: tuple[str, ...]
    stop: str
    after: int
    precision: str


def draw(seed: int, chosen: Choose, folder: Path) -> Draw:
    """The configuration of a seed; its files are written into the folder.

    Raises:
        ConfigError: parts that cannot be composed, or files that the corpus cannot have.
    """
    chance = Random(seed)
    task, data, model = draw_question(chance)
    overrides = [f"task={task}", f"data={data}", f"model={model}", *draw_parts(chance, model)]
    overrides += draw_training(chance)
    if chance.random() < 0.9:
        overrides += NEEDS.get(task, [])
    if data in WRITERS:
        overrides += [] if data.startswith("hub") else [f"data.dir={folder}"]
        overrides += WRITERS[data](chance, folder, task)
    elif task == "image_generation":
        overrides += ["task.image_size=[12,24]", "task.num_channels=3", "task.levels=2", "data.levels=2"]
    overrides += SETTINGS.get(data, [])
    overrides += draw_options(chance, chosen(*NETWORK, *overrides), overrides)
    stop = "SIGKILL" if chance.random() < KILLED else chance.choice(STOPS)
    return Draw(seed, tuple(overrides), stop, chance.randint(1, STEPS - 1), chance.choice([*PRECISIONS]))


def draw_question(chance: Random) -> tuple[str, str, str]:
    """A task, data and a model, which mostly go together."""
    task = chance.choice(choices_of("task", []))
    kind = class_of("task", task)
    fitting = [name for name in corpora() if serves(kind, class_of("data", name))]
    with_files = [name for name in fitting if name in WRITERS]  # the others are many
    if chance.random() < 0.03:
        fitting = with_files = [*corpora()]
    data = chance.choice(with_files if with_files and chance.random() < 0.6 else fitting)
    models = [name for name in choices_of("model", []) if does(class_of("model", name), kind)]
    if chance.random() < 0.03:
        models = choices_of("model", [])
    of_families = [name for name in models if "/" in name]
    plain = [name for name in models if "/" not in name]
    return task, data, chance.choice(of_families if of_families and chance.random() < 0.35 else plain or of_families)


def draw_parts(chance: Random, model: str) -> list[str]:
    """Parts of the blocks and heads; of one of a family's models mostly its own."""
    share = 0.1 if "/" in model else 0.35
    found = [f"block/{part}={chance.choice(choices_of(f'block/{part}', []))}" for part in PARTS
             if chance.random() < share]  # fmt: skip
    if chance.random() < share:
        found.append(f"head@heads.{chance.choice(HEADS)}={chance.choice(choices_of('head', []))}")
    if chance.random() < 0.1:
        found.append(f"shape.num_layers={chance.choice([2, 3])}")
    return found


def draw_training(chance: Random) -> list[str]:
    """Tokenizer, optimizer, scheduler, callbacks, precision and the type of the batches."""
    found = list[str]()
    if chance.random() < 0.6:
        made = [name for name in choices_of("tokenizer", []) if "???" not in text_of("tokenizer", name)]
        found.append(f"tokenizer={chance.choice(made)}")
        if "vocab_size: 8000" in text_of("tokenizer", found[-1].partition("=")[2]):
            found.append(f"tokenizer.vocab_size={chance.choice([90, 150, 300])}")
    optimizer = chance.choice(choices_of("optimizer", [])) if chance.random() < 0.5 else "adamw"
    found.append(f"optimizer={optimizer}")
    if optimizer != "schedule_free_adamw" and chance.random() < 0.3:
        found.append(f"scheduler={chance.choice(choices_of('scheduler', []))}")
    found.append("scheduler.warmup_steps=1")
    callbacks = [name for name in choices_of("callbacks", []) if name != "default" and chance.random() < 0.2]
    found.append(f"callbacks=[{','.join(['default', *callbacks])}]")
    # on CPUs Lightning makes 16-mixed bf16-mixed
    trained = [name for name in PRECISIONS if name != "16-mixed"]
    precision = chance.choice(trained) if chance.random() < 0.5 else "32-true"
    found.append(f"trainer.precision={precision}")
    if precision == "16-true" and "eps:" in text_of("optimizer", optimizer) and chance.random() < 0.9:
        found.append("optimizer.eps=1.0e-4")  # as the refusal says
    found += [] if chance.random() < 0.1 else ["batch.too_long=truncate"]
    return found + chance.choice(BATCHES)


def text_of(group: str, choice: str) -> str:
    """The file of a choice."""
    return (CONF / group / f"{choice}.yaml").read_text()


def draw_options(chance: Random, config: DictConfig, given: Sequence[str]) -> list[str]:
    """A few options of what was chosen, and what keeps it small."""
    found = [
        f"{node}.{key}={value}" for key, value in SMALL.items() for node in ("data", "task") if key in config[node]
    ]
    options = options_of(config)
    taken = {text.partition("=")[0] for text in given}
    for _ in range(chance.choice([0, 0, 1, 1, 2, 3, 4])):
        key, hint, now = chance.choice(options)
        values = [value for value in values_of(hint, now) if value != now]
        if values and key not in taken:
            taken.add(key)
            found.append(f"{key}={spell_choices(chance.choice(values))}")
    return found


class Broken(AssertionError):
    """What does not hold."""


@dataclass
class Outcome:
    """What became of a draw.

    Attributes:
        kind: refused, refused with the data, not finite, trained, or failed.
        said: of a refusal its beginning.
        faults: by kind, with what happened.
        ties: texts that differ in a batch and alone because of rounding.
    """

    kind: str
    said: str = ""
    faults: dict[str, str] = field(default_factory=dict)
    ties: int = 0
    family: str = ""


class Fuzzed(Trained):
    """The run of a draw.

    Args:
        config: as it was composed.
        made: the draw.
        folder: an empty one.
    """

    def __init__(self, config: DictConfig, made: Draw, folder: Path) -> None:
        self.config, self.made, self.folder, self.ties = config, made, folder, 0
        self.has_stopped.touch()
        self.summary = self.train("run")

    @property
    def has_stopped(self) -> Path:
        """The file that says so; where it is, no signal is sent."""
        return self.folder / "stopped"

    def train(self, name: str, *more: str) -> dict[str, Any]:
        """The record of this training, in a folder of that name.

        Args:
            more: what it resumes, if it is another run.
        """
        run_dir, config = self.folder / name, self.config.copy()
        run_dir.mkdir(exist_ok=True)
        config.run_dir = str(run_dir)
        config.resume = more[0] if more else "auto"
        noted = LeftOut()
        logging.getLogger("triptych").addHandler(noted)
        try:
            train(config)
        finally:
            logging.getLogger("triptych").removeHandler(noted)
        if noted.said:
            raise Broken(noted.said[0])
        summary: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
        return summary

    @cached_property
    def tested(self) -> Path:
        """The checkpoint whose weights were tested."""
        folder = self.folder / "run" / "checkpoints"
        best = OmegaConf.load(self.folder / "run" / "config.yaml").test_weights == "best"
        return folder / f"{'best' if best else 'last'}.ckpt"

    @cached_property
    def task(self) -> Task:
        """As it was tested."""
        return load(self.tested).task

    @cached_property
    def exact(self) -> "Fuzzed":
        """The same in float64, where what does not hold is no rounding."""
        exact = copy(self)
        exact.__dict__["task"] = load(self.tested, "64-true").task
        return exact

    def rounding(self, precision: str) -> float:
        """How far logits may be apart in a precision: ``TOLERANCE``; or ten times what it changes, in float64, to
        multiply each weight by 1 + its machine epsilon * N(0, 1), if that is more."""
        products = PRECISIONS[precision].products
        changed, noise = load(self.tested, "64-true").task, torch.Generator().manual_seed(1)
        with torch.no_grad():
            for weight in changed.network.parameters():
                weight *= 1 + torch.finfo(products).eps * torch.randn(weight.shape, generator=noise, dtype=weight.dtype)
        pairs = zip(self.exact.logits(self.items, task=changed), self.exact.logits(self.items), strict=True)
        return max(TOLERANCE[products], 10 * max(distance(*pair, None) for pair in pairs))


def in_float64(check: Callable[[Any], object]) -> Callable[["Fuzzed"], object]:
    """The same check of the weights in float64."""
    return lambda run: check(run.exact)


def witnesses(made: Draw, folder: Path) -> list[str]:
    """Callbacks that note the losses, and that stop the training once."""
    return ["+callbacks.recording._target_=recording_callback.RecordingCallback",
            "+callbacks.recording.folder=${run_dir}",
            "+callbacks.stop._target_=recording_callback.Stop", f"+callbacks.stop.step={made.after}",
            f"+callbacks.stop.signum={'SIGTERM' if made.stop == 'checkpoint' else made.stop}",
            f"+callbacks.stop.once={folder}/stopped"]  # fmt: skip


def check_loss(run: Fuzzed) -> None:
    """The losses are finite, unless steps that are not are left out."""
    losses = torch.load(run.folder / "run" / "losses-0.pt")
    if not len(losses):
        raise Broken("no step was trained")
    if not losses.isfinite().all() and not run.summary.get("skipped_steps"):
        raise Broken(f"losses {losses.tolist()}")


def check_stopping(run: Fuzzed) -> None:
    """Stopped after a step and resumed, it ends with bitwise the same weights and metrics."""
    stop, name = run.made.stop, "again"
    if stop == "checkpoint":
        again = run.train(name, str(min((run.folder / "run" / "checkpoints").glob("step-*.ckpt"))))
    else:
        run.has_stopped.unlink()
        if stop == "SIGKILL":
            in_child(lambda: run.train(name))
        else:
            try:
                run.train(name)
            except signals.Interruption:
                signals._noted.clear()  # as in a process of its own
        if not run.has_stopped.exists():
            return  # early stopping came first
        again = run.train(name)
    for key in ("weights_sha256", "metrics"):
        if repr(again[key]) != repr(run.summary[key]):
            raise Broken(f"{key} after {stop}: {again[key]}, {run.summary[key]} without")


def in_child(work: Callable[[], object]) -> None:
    """Does it in a process that is expected to be killed."""
    child = os.fork()
    if child == 0:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
            try:
                work()
            finally:
                os._exit(0)
    for _ in range(1200):
        if os.waitpid(child, os.WNOHANG)[0]:
            return
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise Broken("the training in a forked process hangs")


def check_metrics(run: Fuzzed) -> None:
    """Evaluated again, the checkpoint has the metrics of the run."""
    in_run = run.summary["metrics"]
    config, task = restore(run.tested)
    metrics = evaluation(RunSettings.of(config), TrainingModule(task), is_same_data=True, accelerator="cpu")
    others = [f"{name} {metrics.get(name)}, {value} in the run" for name, value in in_run.items()
              if repr(metrics.get(name)) != repr(value)]  # fmt: skip
    if others:
        raise Broken("; ".join(others))


def check_alone(run: Fuzzed) -> None:
    """A prediction in a batch is that of the input alone. (An encoder fills in an image in random order.)"""
    task = run.task
    if isinstance(task, ImageGeneration) and task.architecture == "encoder_only":
        return
    examples = [item.example for item in run.items if item.example is not None]
    asked = [task.model_input(example) for example in examples]
    classes = tuple({example.target: None for example in examples if example.target})

    def ready(task: Task) -> Task:
        if isinstance(task, ImageTextMatching):
            task.classes = task.classes or classes
        if isinstance(task, GenerativeTask):
            task.sampling = Sampling()
        return task

    task = ready(task)
    if not asked or disagreement(task, asked, run.tolerance) is None:
        return
    exact = ready(run.exact.task)
    if (found := disagreement(exact, asked, TOLERANCE[torch.float64])) is not None:
        raise Broken(f"in float64: {found}")
    if (found := disagreement(task, asked, run.rounding(task.precision), texts=False)) is not None:
        raise Broken(found)
    run.ties += 1


def disagreement(task: Task, asked: Sequence[Any], tolerance: float, *, texts: bool = True) -> str | None:
    """How predictions in a batch differ from those of each input alone; None: they do not.

    Args:
        texts: whether those are compared, too.
    """
    together = predict(task, asked, batch_size=len(asked))
    for given, one in zip(asked, together, strict=True):
        (alone,) = predict(task, [given])
        if not alike(one, alone, tolerance, texts=texts):
            return f"{one} in a batch, {alone} alone"
    return None


def alike(one: Prediction, other: Prediction, tolerance: float, *, texts: bool) -> bool:
    """Whether two predictions are the same but for rounding."""
    if isinstance(one, ClassPrediction) and isinstance(other, ClassPrediction):
        pairs = [(value, other.probabilities[name]) for name, value in one.probabilities.items()]
        return all(math.isclose(*pair, rel_tol=tolerance, abs_tol=tolerance) for pair in pairs)
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance)
    if isinstance(one, Image) and isinstance(other, Image):
        return not texts or one.content == other.content
    if isinstance(one, list) and isinstance(other, list):
        scores = zip((c.score for c in one), (c.score for c in other), strict=True)
        same = not texts or [c.text for c in one] == [c.text for c in other]
        return same and all(math.isclose(*pair, rel_tol=tolerance, abs_tol=tolerance) for pair in scores)
    return not texts or one == other


def check_precision(run: Fuzzed) -> None:
    """The logits in any precision are those in float64, within its tolerance."""
    precision = run.made.precision
    pairs = zip(run.logits(run.items, task=load(run.tested, precision).task), run.exact.logits(run.items), strict=True)
    apart = max(distance(*pair, None) for pair in pairs)
    if not apart < TOLERANCE[PRECISIONS[precision].products] and not apart < run.rounding(precision):
        raise Broken(f"{precision}: {apart:.1e} apart")


def check_exporting(run: Fuzzed) -> str:
    """What is exported and read again has the same logits; or a line says why it cannot be exported.

    Returns:
        the class of the export; empty: there is none.
    """
    try:
        found = check_export(run)
    except ConfigError as error:
        if str(error).count("\n") > 1:
            raise Broken(f"a refusal of more than two lines: {error}") from None
        return ""
    return "" if found.startswith(NO_FAMILY) else found


CHECKS: Mapping[str, Callable[[Any], object]] = {
    "trains": check_loss, "resumes": check_stopping, "evaluates": check_metrics, "predicts alone": check_alone,
    "packs": in_float64(check_packing), "is causal": in_float64(check_past),
    "decodes with a cache": in_float64(check_cache), "predicts in another precision": check_precision,
    "exports": check_exporting,
}  # fmt: skip


def look(chosen: Choose, seed: int, folder: Path) -> tuple[Draw | None, Outcome]:
    """Makes a draw, and says what became of it."""
    made, is_read = None, False
    try:
        made = draw(seed, chosen, folder)
        config = chosen(*NETWORK, *made.overrides, *witnesses(made, folder), f"run_dir={folder}/never")
        check_training(config)
        check_before_data(with_parts(config))
        is_read = True
        run = Fuzzed(config, made, folder)
    except Exception as error:
        return made, refused(error, () if made is None else made.overrides, is_read=is_read)
    outcome = Outcome("trained")
    for name, check in CHECKS.items():
        try:
            said = check(run)
        except Exception as error:
            outcome.faults[f"{name}: {place_of(error)}"] = traced(error)
        else:
            outcome.family = str(said) if name == "exports" else ""
    outcome.ties = run.ties
    return made, outcome


def refused(error: Exception, overrides: Sequence[str], *, is_read: bool) -> Outcome:
    """What an error says before the first check."""
    if isinstance(error, RunError) and isinstance(error.__cause__, NonFiniteError):
        return Outcome("not finite")
    said = explain(error, "train", overrides)
    each = [said] if not isinstance(error, ConfigErrors) else messages_of(error)
    if said is None or isinstance(error, RunError):
        return Outcome("failed", faults={f"trains: {place_of(error)}": traced(error)})
    if any(message is not None and message.count("\n") > 1 for message in each):
        return Outcome("failed", faults={"a refusal of more than two lines": said})
    return Outcome("refused with the data" if is_read else "refused", said)


def place_of(error: Exception) -> str:
    """The class of an error and the innermost function of ours: faults of one kind have one."""
    if isinstance(error, AssertionError):
        return re.sub(r"[\d.]+(e[-+]\d+)?|[0-9a-f]{12,}", "N", str(error).splitlines()[0] if str(error) else "assert")[
            :80
        ]
    ours = [frame for frame in traceback.extract_tb(error.__traceback__) if "/triptych/" in frame.filename]
    where = f"{ours[-1].filename.partition('/triptych/')[2]}:{ours[-1].name}" if ours else "elsewhere"
    return f"{type(error).__name__} in {where}"


def traced(error: Exception) -> str:
    """The end of a traceback."""
    return "".join(traceback.format_exception(error))[-3000:]


@dataclass
class Count:
    """What became of all draws.

    Attributes:
        kinds: how many had each outcome.
        faults: by kind, the seeds.
        refusals: how often each was said; of those with the data alone.
        families: how many were exported as each class.
        ties: how many had texts that rounding decides.
    """

    kinds: Counter[str] = field(default_factory=Counter)
    faults: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    refusals: Counter[str] = field(default_factory=Counter)
    families: Counter[str] = field(default_factory=Counter)
    ties: int = 0

    def add(self, seed: int, outcome: Outcome) -> None:
        """Takes in another draw."""
        self.kinds["failed" if outcome.faults else outcome.kind] += 1
        self.ties += outcome.ties
        for kind in outcome.faults:
            self.faults[kind].append(seed)
        if outcome.kind == "refused with the data":
            self.unsupported[re.sub(r"\d+", "N", outcome.said.partition(": ")[2] or outcome.said)[:90]] += 1
        if outcome.family:
            self.families[outcome.family] += 1

    def tables(self, seconds: float) -> Iterator[Table]:
        """The counts, and the faults by kind."""
        total = sum(self.kinds.values())
        table = Table("outcome", "draws")
        for kind in OUTCOMES:
            table.add_row(kind, str(self.kinds[kind]))
        table.add_row("all", str(total))
        table.add_row("exported", str(sum(self.families.values())))
        table.add_row("texts that rounding decides", str(self.ties))
        table.add_row("draws per hour", f"{3600 * total / seconds:.0f}")
        yield table
        if self.unsupported:
            table = Table("refused with the data", "draws")
            for said, count in self.unsupported.most_common(12):
                table.add_row(said, str(count))
            yield table
        if self.faults:
            table = Table("fault", "draws", "seeds")
            for kind, seeds in sorted(self.faults.items(), key=lambda item: -len(item[1])):
                table.add_row(kind, str(len(seeds)), " ".join(map(str, seeds[:6])))
            yield table


OUTCOMES = ("trained", "refused", "refused with the data", "not finite", "failed")


@contextmanager
def alone() -> Iterator[Choose]:
    """Composes configurations as the command line does, prints nothing, and keeps the caches of the user out of it."""
    names = ("TRIPTYCH_CACHE", "HF_HOME", "HF_DATASETS_CACHE", "HF_HUB_OFFLINE", "TOKENIZERS_PARALLELISM")
    before = {name: os.environ.get(name) for name in names}
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), command_lines() as chosen:
        os.environ |= {"TRIPTYCH_CACHE": folder, "HF_HOME": folder, "HF_DATASETS_CACHE": folder}
        os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
                yield chosen
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
            os.environ.update({name: value for name, value in before.items() if value is not None})
            for name in (name for name, value in before.items() if value is None):
                os.environ.pop(name, None)


def describe(seed: int, made: Draw | None, outcome: Outcome) -> str:
    """A draw that failed: the command that repeats it, its configuration, and what is wrong."""
    lines = [f"make fuzz N=1 SEED={seed}"]
    if made is not None:
        lines += [f"  {' '.join(shlex.quote(text) for text in made.overrides)}",
                  f"  stopped by {made.stop} after step {made.after}; predicts in {made.precision}"]  # fmt: skip
    return "\n".join([*lines, *(f"  {kind}\n{textwrap.indent(said, '    ')}" for kind, said in outcome.faults.items())])


def main(number: int, seed: int) -> int:
    """Makes the draws, prints those that fail at once and the counts at the end.

    Returns:
        the exit status.
    """
    console, count, start = Console(file=sys.stdout), Count(), time.perf_counter()
    columns = (
        BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
        TextColumn("{task.fields[said]}"),
    )  # fmt: skip
    bar = Progress(*columns, console=console, disable=not console.is_terminal)
    with bar, alone() as chosen:
        task = bar.add_task("draws", total=number, said="")
        try:
            for one in range(seed, seed + number):
                with tempfile.TemporaryDirectory() as folder:
                    made, outcome = look(chosen, one, Path(folder))
                count.add(one, outcome)
                if outcome.faults:
                    console.print(describe(one, made, outcome), markup=False, highlight=False, soft_wrap=True)
                bar.update(task, advance=1, said=f"{count.kinds['failed']} failed")
        except KeyboardInterrupt:
            pass
    for table in count.tables(time.perf_counter() - start):
        console.print(table)
    return int(bool(count.faults))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("number", type=int, nargs="?", default=100)
    parser.add_argument("seed", type=int, nargs="?", default=1)
    given = parser.parse_args()
    torch.set_num_threads(1)
    sys.exit(main(given.number, given.seed))
