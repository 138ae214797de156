"""Writes the files at the end of a run: weights and metrics first, then everything derived from them."""

import json
import logging
import shutil
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from safetensors.torch import save_model

from triptych.config import RunError
from triptych.data import read_optimum
from triptych.launch.command import Command
from triptych.launch.signals import Interruption
from triptych.planning.build_run import TrainingRun
from triptych.planning.matching import RECORDED
from triptych.report.console import show_confusion, signature
from triptych.report.record import RunRecord
from triptych.report.samples import (
    attention_record,
    gather_test_predictions,
    prediction_latency,
    samples,
    write_predictions,
)
from triptych.report.summary import decoding_cost, make_summary
from triptych.storage.atomic import replacing, write_text
from triptych.storage.run_directory import RunDirectory
from triptych.training import FSDP, WandbLogger

log = logging.getLogger("triptych")

LATE, WORSE = 0.7, 0.02
"""A run overfits if its best validation is before this share of its steps, and better by more than this share."""


def write_record(run: TrainingRun, metrics: Mapping[str, float], command: Command, *, tests: bool) -> dict[str, Any]:
    """Writes weights.safetensors, summary.json, attention.json and predictions.jsonl, and prints the metrics. All ranks
    must call it.

    Args:
        tests: whether the weights were tested; if not, no test examples are predicted.

    Returns:
        The content of summary.json on rank 0; empty on other ranks.
    """
    task, plan = run.task, run.plan
    gather_weights(run)
    cost_log, tested = run.cost_log.of_all_ranks(), gather_test_predictions(run.module)
    if run.rank:
        return {}
    # Lightning has moved it to the CPU, and the record is for the device
    run.module.to(run.trainer.strategy.root_device)
    if skipped := run.module.on_nonfinite.skipped:
        log.warning(
            "%s of %s steps were skipped: the loss or its gradient was not finite", skipped, run.trainer.global_step
        )
    files = RunDirectory(run.run_dir)
    with replacing(files.weights) as temporary:
        save_model(task.network, str(temporary))
        shutil.copymode(files.config, temporary)  # safetensors restricts the file to its owner
    record = make_summary(run, cost_log, dict(metrics), command)
    if plan.match is not None:
        match = plan.match.record(getattr(record, RECORDED[plan.match.quantity]))
        plan.match.warn_of(match)
        record = replace(record, match=plan.redact(match))
    record = replace(record, command=plan.redact(record.command), init_from=plan.redact(record.init_from))
    with not_fatal("the cost of decoding"):
        record = replace(record, decoding=decoding_cost(cost_log.cost.network, cost_log))
    looks: dict[str, Any] = {"samples": []}
    splits = plan.data.splits
    if tests:
        with not_fatal("the Bayes-optimal score"):
            best = read_optimum(plan.corpus, plan.plain["data"], task.name, task.architecture, splits.test)
            optimum = {f"test/{name}": value for name, value in best.items()}
            task_info = task.info(task.architecture, metrics, optimum)
            record = replace(record, optimum=optimum, task_info=task_info)
        if hasattr(plan.corpus, "floor"):
            with not_fatal("the score of a simple rule"):
                floor = plan.corpus.floor(task.name, splits.test)
                record = replace(record, floor={f"test/{name}": value for name, value in floor.items()})
        with not_fatal("samples"):
            record = replace(record, samples=samples(task, splits))
        with not_fatal("the prediction latency"):
            record = replace(record, prediction_latency_s=prediction_latency(task, splits))
        with not_fatal(files.attention.name):
            looks = attention_record(task, splits)
            write_text(files.attention, json.dumps(looks, ensure_ascii=False, separators=(",", ":")) + "\n")
        with not_fatal(files.predictions.name):
            write_predictions(files.predictions, task, splits.test, tested)
    content = asdict(record)
    write_text(files.record, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    with not_fatal("the record in W&B"):
        send_record(run, content, looks["samples"])
    with not_fatal("the printed metrics"):
        print_metrics(run, metrics, record.optimum)
    if not run.trainer.should_stop and (note := describe_overfitting(record, run.checkpoints.monitor)):
        log.info(note)
    return content


def describe_overfitting(record: RunRecord, monitor: str) -> str:
    """Says that the best validation was long before the end, and what helps; empty if it was not.

    Args:
        record: of a run that trained to its last step.
        monitor: the metric of ``best_value``; its last value is that of the tested weights.
    """
    best, last = record.best_value, record.metrics.get(monitor)
    if best is None or last is None or (record.best_step or 0) >= LATE * record.steps:
        return ""
    worse = abs(last - best) / max(abs(best), 1e-9)
    if worse <= WORSE:
        return ""
    return (
        f"overfitting: {monitor} was best after {record.best_step:,} of {record.steps:,} steps ({best:.4g}), and is "
        f"{100 * worse:.0f} % worse at the end ({last:.4g}). What helps: test_weights=best, block.dropout=0.2, fewer "
        "steps, a smaller shape, init_from=RUN (docs/small_data.md)"
    )


def gather_weights(run: TrainingRun) -> None:
    """Under FSDP, gathers the whole network on rank 0, which writes the record. All ranks must call it."""
    if isinstance(run.trainer.strategy, FSDP):
        weights = run.trainer.strategy.lightning_module_state_dict()
        if run.rank == 0:
            run.module.network = run.task.network = run.settings.build("model").to(dtype=run.module.dtype)
            run.module.load_state_dict(weights)


def send_record(run: TrainingRun, record: dict[str, Any], looks: list[Any]) -> None:
    """Logs the record to W&B."""
    from triptych.report.page.attention_charts import attention_pictures  # only needed here

    for logger in run.loggers:
        if isinstance(logger, WandbLogger):
            pictures = attention_pictures(run.task.architecture, looks)
            logger.log_record(record, RunDirectory(run.run_dir).checkpoints, pictures)


def print_metrics(run: TrainingRun, metrics: Mapping[str, float], optimum: Mapping[str, float]) -> None:
    """Logs each metric with the best possible value, and prints the confusion matrix."""
    for name, value in metrics.items():
        best = f" (Bayes-optimal predictor: {optimum[name]:.4f} expected)" if name in optimum else ""
        how = signature(run.task, name)
        log.info("%s = %.4f%s%s", name, value, best, f" ({how})" if how else "")
    show_confusion(run.module)


@contextmanager
def not_fatal(what: str) -> Iterator[None]:
    """Logs an error instead of raising it: the training is done, and its record must be kept.

    Args:
        what: is left out after an error.
    """
    try:
        yield
    except (RunError, Interruption):  # such as a full disk: rerun the same command when there is room
        raise
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        log.warning(
            "left out of the record: %s (%s: %s, %s line %s)",
            what, type(error).__name__, error, Path(place.filename).name, place.lineno,
        )  # fmt: skip
