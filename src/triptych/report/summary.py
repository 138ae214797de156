"""The record of a run, summary.json."""

import re
import subprocess
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from triptych.data import CorpusFacts, DataModule, Example, LongText, Windows
from triptych.launch.command import Command
from triptych.models import DecoderOnly, EncoderDecoder
from triptych.models.flops import (
    COUNTED,
    active_parameters,
    count_parameters,
    decoding_flops,
    parameters_by_part,
)
from triptych.nn import Network
from triptych.nn.network import weights_sha256
from triptych.planning.build_run import Run
from triptych.report.record import RunRecord
from triptych.training import TrainingModule
from triptych.training.callbacks.cost_log import CostLog
from triptych.training.hardware import hardware, peak_memory


def summary(run: Run, cost_log: CostLog, metrics: dict[str, float], command: Command) -> RunRecord:
    """The record of a run, but for what the network makes of the test examples; the keys are documented in
    docs/run_directory.md.

    Args:
        cost_log: of all ranks.
    """
    settings, task, trainer = run.settings, run.task, run.trainer
    parameters, non_embedding = count_parameters(task.network)
    flops = cost_log.flops_by_part(trainer.global_step)
    named = zip(task.network.stack_names, task.network.stacks, strict=True)
    stacks = {name: len(stack.layers) for name, stack in named}
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
        num_layers=stacks,
        init_from=settings.init_from,
        train_flops=sum(flops.values()),
        train_flops_by_part=flops,
        train_flops_of=COUNTED,
        train_tokens=cost_log.tokens,
        real_tokens=cost_log.real_tokens,
        tokens_per_update=cost_log.tokens / max(trainer.global_step, 1),
        updates=trainer.global_step,
        skipped_updates=run.module.not_finite.skipped,
        wall_time_s=cost_log.wall_time,
        tokens_per_s=cost_log.tokens / cost_log.seconds if cost_log.seconds else 0.0,
        peak_memory_bytes=peak_memory(task.device),
        metrics=metrics,
        optimum={},
        task_facts=task.facts(task.architecture, metrics, {}),
        signatures=task.signatures,
        confusion_matrix=confusion_matrix(run.module),
        too_long={"policy": settings.encoding.too_long, **run.data.too_long},
        packed=run.data.packed,
        eval_windows=eval_windows(run.data),
        training_range=training_range(run.plan.data.splits.train),
        tested_weights=settings.test_weights,
        samples=[],
        weights_sha256=weights_sha256(task.network),
        overlap=run.plan.overlap,
        data_sha256=task.corpus.sha256,
        tokenizer_sha256=task.tokenizer.sha256,
        git_commit=git_commit(),
        versions=versions(task.corpus),
        hardware=hardware(task.device),
        precision=trainer.precision,
        command=str(command),
    )


def versions(corpus: CorpusFacts) -> dict[str, str]:
    """Those of the packages that a run depends on, and of its data, where they have one."""
    packages = {name: version(name) for name in ("triptych", "torch", "lightning", "hydra-core", "tokenizers")}
    return packages | ({"data": corpus.version} if corpus.version else {})


def labels(run: Run, command: Command) -> dict[str, str]:
    """What a run is, for dashboards. A job of a sweep is known by the name of its directory."""
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


def decoding_cost(network: Network, cost_log: CostLog) -> dict[str, int] | None:
    """The operations of one more token of a model that writes text, where as many tokens stand before it as in the mean
    of the training batches; None: it writes none."""
    if not isinstance(network, DecoderOnly | EncoderDecoder) or network.head.pool != "none" or not cost_log.shapes:
        return None
    length, source = cost_log.mean_lengths
    return {"flops": decoding_flops(network, length, source), "length": length, "source": source}


def eval_windows(data: DataModule) -> dict[str, int] | None:
    """How long texts are evaluated: tokens of a window, tokens from one to the next, and how many there are."""
    if not (isinstance(data.validation, Windows) and isinstance(data.test, Windows)):
        return None
    counts = {"validation": len(data.validation.sizes), "test": len(data.test.sizes)}
    return {"length": data.test.length, "stride": data.test.stride, **counts}


def training_range(examples: Sequence[Example] | LongText) -> dict[str, list[int]]:
    """Of each measure of the difficulty the least and the most in training; empty where the corpus states none."""
    known = [] if isinstance(examples, LongText) else [x.difficulty for x in examples if x.difficulty is not None]
    return {name: [limit(of_one[name] for of_one in known) for limit in (min, max)] for name in (known or [{}])[0]}


def confusion_matrix(module: TrainingModule) -> dict[str, Any] | None:
    """Of the test split: a row for each true class, a column for each predicted one."""
    counts = module.matrix_metrics.get("test/confusion_matrix")
    return None if counts is None else {"labels": list(module.task.labels), "counts": counts}


def git_commit() -> str | None:
    """The commit of the checkout that this package runs from; None outside of one."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        # an installed copy may stand inside of another project's checkout
        subprocess.run([*git, "ls-files", "--error-unmatch", Path(__file__).name], capture_output=True, check=True)
        return subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
