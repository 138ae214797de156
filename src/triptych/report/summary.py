"""Builds the record of a run, summary.json.

Tested by tests/report/test_write_record.py and tests/cli/test_runs.py.
"""

import re
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from triptych.data import CorpusInfo, DataModule, Example, LongText, Windows
from triptych.launch.command import Command
from triptych.models import DecoderOnly, EncoderDecoder
from triptych.models.flops import COUNTED, active_parameters, count_parameters, decoding_flops, parameters_by_part
from triptych.nn import Network
from triptych.nn.network import weights_sha256
from triptych.planning.build_run import TrainingRun
from triptych.report.record import RunRecord
from triptych.training import TrainingModule
from triptych.training.callbacks.cost_tracker import CostTracker
from triptych.training.hardware import hardware, peak_memory


def make_summary(run: TrainingRun, cost_log: CostTracker, metrics: dict[str, float], command: Command) -> RunRecord:
    """The record of a run, without the predictions for test examples. docs/run_directory.md documents the keys.

    Args:
        cost_log: of all ranks.
    """
    settings, task, trainer = run.settings, run.task, run.trainer
    parameters, non_embedding = count_parameters(task.network)
    flops = cost_log.flops_by_part(trainer.global_step)
    named = zip(task.network.stack_names, task.network.stacks, strict=True)
    return RunRecord(
        experiment=command.experiment,
        architecture=task.architecture,
        task=task.name,
        data=command.data,
        seed=settings.seed,
        params=parameters,
        non_embedding_params=non_embedding,
        active_params=active_parameters(task.network),
        params_by_part=parameters_by_part(task.network),
        num_layers={name: len(stack.layers) for name, stack in named},
        init_from=settings.init_from,
        train_flops=sum(flops.values()),
        train_flops_by_part=flops,
        train_flops_of=COUNTED,
        train_tokens=cost_log.tokens,
        non_padding_fraction=cost_log.non_padding_fraction,
        tokens_per_step=cost_log.tokens / max(trainer.global_step, 1),
        steps=trainer.global_step,
        skipped_steps=run.module.on_nonfinite.skipped,
        best_step=run.checkpoints.best_step or None,
        best_value=run.checkpoints.best if run.checkpoints.best_step else None,
        began=cost_log.began,
        ended=datetime.now(UTC).isoformat(timespec="seconds"),
        wall_time_s=cost_log.wall_time,
        tokens_per_second=cost_log.tokens / cost_log.seconds if cost_log.seconds else 0.0,
        peak_memory_bytes=peak_memory(task.device),
        metrics=metrics,
        optimum={},
        task_info=task.info(task.architecture, metrics, {}),
        signatures=task.signatures,
        confusion_matrix=confusion_matrix(run.module),
        too_long={"policy": settings.encoding.too_long, **run.data.too_long},
        packed=run.data.packed,
        eval_windows=eval_windows(run.data),
        train_difficulty_range=train_difficulty_range(run.plan.data.splits.train),
        tested_weights=settings.test_weights,
        samples=[],
        weights_sha256=weights_sha256(task.network),
        overlap=run.plan.overlap,
        data_sha256=task.corpus.sha256,
        tokenizer_sha256=task.tokenizer.sha256,
        git_commit=git_commit(),
        versions=library_versions(task.corpus),
        hardware=hardware(task.device),
        precision=trainer.precision,
        command=str(command),
    )


def library_versions(corpus: CorpusInfo) -> dict[str, str]:
    """Versions of the packages that a run depends on, and of its data if they have one."""
    packages = {name: version(name) for name in ("triptych", "torch", "lightning", "hydra-core", "tokenizers")}
    return packages | ({"data": corpus.version} if corpus.version else {})


def labels(run: TrainingRun, command: Command) -> dict[str, str]:
    """Labels of a run for dashboards. A job of a sweep is identified by the name of its directory."""
    found = {
        "experiment": command.experiment,
        "architecture": run.task.architecture,
        "task": run.task.name,
        "data": command.data,
    }
    if run.settings.match is not None:
        found["match"] = run.settings.match
    if re.search("-[0-9a-f]{8}$", run.run_dir.name):
        found["sweep"] = run.run_dir.absolute().parent.name
    return found


def decoding_cost(network: Network, cost_log: CostTracker) -> dict[str, int] | None:
    """The FLOPs per generated token of a generative model, after as many tokens as the mean of the training batches;
    None for other models."""
    if not isinstance(network, DecoderOnly | EncoderDecoder) or network.head.pooling != "none" or not cost_log.shapes:
        return None
    length, source = cost_log.mean_lengths
    return {"flops": decoding_flops(network, length, source), "length": length, "source": source}


def eval_windows(data: DataModule) -> dict[str, int] | None:
    """The evaluation of long texts: tokens of a window, tokens from one window to the next, and number of windows."""
    if not (isinstance(data.validation, Windows) and isinstance(data.test, Windows)):
        return None
    counts = {"validation": len(data.validation.sizes), "test": len(data.test.sizes)}
    return {"length": data.test.length, "stride": data.test.stride, **counts}


def train_difficulty_range(examples: Sequence[Example] | LongText) -> dict[str, list[int]]:
    """The training range of each measure of difficulty; empty if the first example has none."""
    if isinstance(examples, LongText) or not examples or examples[0].difficulty is None:
        return {}
    known = [x.difficulty for x in examples if x.difficulty is not None]
    return {name: [limit(of_one[name] for of_one in known) for limit in (min, max)] for name in known[0]}


def confusion_matrix(module: TrainingModule) -> dict[str, Any] | None:
    """The confusion matrix of the test split: a row per true class, a column per predicted one."""
    counts = module.matrix_metrics.get("test/confusion_matrix")
    return None if counts is None else {"labels": list(module.task.labels), "counts": counts}


def git_commit() -> str | None:
    """The commit of the checkout that this package runs from; None if it is installed otherwise."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        # an installed copy may be inside another project's checkout
        subprocess.run([*git, "ls-files", "--error-unmatch", Path(__file__).name], capture_output=True, check=True)
        return subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
