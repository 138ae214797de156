"""``triptych train``: one training run, from the configuration to the record in its directory."""

import json
import logging
import re
import shlex
import shutil
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import lightning as L
import torch
import torch.distributed as dist
from hydra.core.hydra_config import HydraConfig
from lightning.pytorch.callbacks import WeightAveraging
from lightning.pytorch.loggers import Logger
from lightning.pytorch.trainer.states import TrainerFn
from omegaconf import DictConfig, OmegaConf
from safetensors.torch import save_model

from triptych import signals
from triptych.accounting import (
    active_parameters,
    count_parameters,
    decoding_flops,
    parameters_by_part,
    weights_sha256,
)
from triptych.assembly import (
    check_compiled,
    check_network,
    complete,
    make_data_module,
    make_task,
    measure,
    train_tokenizer,
)
from triptych.calibration import measure_paces
from triptych.checks import check_before_data, check_optimizer, check_validation
from triptych.choices import adopt
from triptych.config import ConfigError, RunError, build
from triptych.data import Corpus, DataModule, LongText, Windows, sha256
from triptych.devices import hardware, keep_freed_memory, peak_memory
from triptych.durable import replacing, write_text
from triptych.launch.processes import check_place, depends_on_clock, find_place, hush, run_processes
from triptych.matching import (
    FILE,
    RECORDED,
    check_countable,
    check_same,
    find_match,
    recorded,
    reference_of,
)
from triptych.models import DecoderOnly, EncoderDecoder
from triptych.nn import Network
from triptych.pretrained import Pretrained, settings_to_adopt
from triptych.redaction import Redactor
from triptych.results import show_confusion, signature
from triptych.resume import is_finished, prepare_directory, state_to_resume
from triptych.samples import answer_time, attention, gather_tested, samples, write_answers
from triptych.survey import ReadData
from triptych.tasks import Task
from triptych.tasks.base import NotFinite
from triptych.training import (
    FSDP,
    CheckpointFacts,
    Checkpoints,
    CSVLogger,
    Pruned,
    Tally,
    WandbLogger,
    read_checkpoint,
)

log = logging.getLogger("triptych")


def train(config: DictConfig) -> None:
    """Trains, validates and tests; writes config.yaml, metrics.csv, tokenizer.json, checkpoints, train.log,
    weights.safetensors, attention.json and summary.json into ``run_dir``. A run that was not finished goes on. A trial
    of a search does not test; as the same run without the search it goes on to its test.

    Args:
        config: composed by Hydra from conf/train.yaml.

    Raises:
        ConfigError: a mistake in the configuration or in the data, before the first step.
        RunError: the run cannot go on.
        Interruption: it was asked to end, and the same command goes on with it.
    """
    run_dir = Path(config.run_dir)
    place = find_place()
    if place.rank:
        hush()
    pretrained = None
    if config.init_from is not None:
        settings, pretrained = settings_to_adopt(config)
        adopt(config, settings)
    match = recorded(config)
    if match is not None:
        match.apply(config)
    whole = OmegaConf.to_container(config, resolve=True)
    redact = Redactor(whole)
    redact.guard_logging()
    plain = cast(dict[str, Any], redact(whole))
    if is_finished(config, plain):
        if place.rank == 0:
            print(f"{run_dir} holds this run, finished: nothing to do", flush=True)
        return
    world_size = place.world_size
    if place.starter != "parent":  # which has checked it
        check_before_data(config)
        world_size = check_place(config, place)
    reference = None if match is not None else reference_of(config, HydraConfig.get().overrides.task)
    if reference is not None:
        check_countable(config, world_size)
    run_dir.mkdir(parents=True, exist_ok=True)
    if place.starter is None and world_size > 1:
        if not OmegaConf.is_missing(HydraConfig.get().job, "num"):  # the command of this process is not ours
            raise ConfigError(
                f"trainer.devices={config.trainer.devices}: this launcher starts one process; expected hydra/launcher="
                "local, joblib or slurm, or as many tasks_per_node"
            )
        same = [f"run_dir={run_dir}"] if depends_on_clock(config) else []
        command = [sys.executable, "-m", "triptych", "train", *sys.argv[1:], *same]
        raise SystemExit(run_processes(command, world_size, run_dir))
    earlier = state_to_resume(config, plain)
    if earlier is not None:
        earlier.warn_of_place(plain)
    elif config.init_from is not None:
        pretrained = pretrained or Pretrained(config.init_from)
        pretrained.check(check_network(config))

    keep_freed_memory()
    corpus: Corpus = build(config, "data")
    log.info("reading %s", HydraConfig.get().runtime.choices["data"])
    try:
        splits = corpus.splits()
        sizes = [
            str(split) if isinstance(split, LongText) else f"{len(split):,} examples"
            for split in (splits.train, splits.validation, splits.test)
        ]
        log.info("%s to train, %s to validate, %s to test", *sizes)
        first = next(iter(splits.train), None)
        has_pairs = first is not None and first.pair is not None
        facts = replace(corpus.facts, sha256=sha256(splits), has_pairs=has_pairs)
        if earlier is not None:
            earlier.check_data(facts)
            tokenizer = earlier.tokenizer
        else:
            tokenizer = train_tokenizer(config, splits) if pretrained is None else pretrained.tokenizer
        if reference is not None:
            check_same(reference, config.match, data=facts.sha256, tokenizer=tokenizer.sha256)
            data_of_both = ReadData(splits, facts, tokenizer, world_size)
            log.info("match=%s: %s", config.match, "timing updates" if config.match == "wall_time" else "counting")
            match = find_match(
                config, reference, data_of_both, partial(measure_paces, data_of_both, place.environment())
            )
            match.apply(config)
            if "trainer.max_steps" in match.chosen:
                check_optimizer(config)
                check_validation(config)
        if match is not None:
            log.info("%s", match)
        complete(config, tokenizer, facts)
        task = make_task(config, tokenizer, facts)
        task.compiles = config.compile
        check_compiled(config, task, splits.train)
        if earlier is not None:
            earlier.check_network(task)
        elif pretrained is not None:
            pretrained.give(task)
        data = make_data_module(config, task, splits)
        data.train_dataloader()  # refuses a batch size that cannot be split
    except ValueError as error:
        raise ConfigError(str(error)) from None
    plain = cast(dict[str, Any], redact(OmegaConf.to_container(config, resolve=True)))
    loggers: list[Logger] = [build(config, f"logger.{name}") for name in config.logger]
    callbacks = [build(config, f"callbacks.{name}") for name in config.callbacks]
    (checkpoints,) = (callback for callback in callbacks if isinstance(callback, Checkpoints))
    tally = Tally(check_network(config))
    trainer: L.Trainer = build(
        config,
        "trainer",
        {
            "logger": loggers,
            "callbacks": [*callbacks, tally, CheckpointFacts(plain, task)],
            "plugins": [checkpoints.files, place.environment()],
        },
    )
    if place.rank == 0:  # only now that nothing of the user's can be wrong any more
        prepare_directory(run_dir, loggers, earlier)
        if match is None:
            (run_dir / FILE).unlink(missing_ok=True)
        else:
            write_text(run_dir / FILE, json.dumps(redact(asdict(match)), indent=2) + "\n")
        write_text(run_dir / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(plain)))
        if task.image_shape is None:
            write_text(run_dir / "tokenizer.json", tokenizer.to_json())

    parameters, _ = count_parameters(task.network)
    log.info(
        "%s on %s: %s parameters, %s, %s updates; run directory %s",
        task.name,
        task.architecture,
        f"{parameters:,}",
        f"{tokenizer.vocab_size} tokens in the vocabulary" if task.image_shape is None else "images in patches",
        config.trainer.max_steps,
        run_dir,
    )
    if earlier is not None:
        data.start = earlier.step
        log.warning("going on from %s, after %s updates", earlier.path, earlier.step)
    failed = True
    tests = "pruning" not in config.callbacks  # a trial of a search does not
    signals.catch(*signals.STOPS)
    try:
        for logger in loggers:
            if isinstance(logger, WandbLogger):
                logger.describe(redact(labels(config, task)))
                logger.log_hyperparams(plain)
                if place.rank == 0 and earlier is not None:
                    logger.log_again([row for other in loggers if isinstance(other, CSVLogger) for row in other.rows()])
        with explained(config, trainer, task, data):
            trainer.fit(task, data, ckpt_path=None if earlier is None else earlier.path, weights_only=True)
            metrics = test(config, trainer, task, data, run_dir, tests=tests)
            if isinstance(trainer.strategy, FSDP):  # the record is of the whole network
                weights = trainer.strategy.lightning_module_state_dict()
                if place.rank == 0:
                    task.network = build(config, "model").to(dtype=task.dtype)
                    task.load_state_dict(weights)
        tally, tested = tally.of_all_ranks(), gather_tested(task)
        if place.rank:
            return  # rank 0 writes the record
        task.to(trainer.strategy.root_device)  # Lightning has moved it to the CPU, and the record is of the device
        if task.skipped_updates:
            log.warning("%s of %s updates were left out: not finite", task.skipped_updates, trainer.global_step)
        with replacing(run_dir / "weights.safetensors") as temporary:
            save_model(task.network, str(temporary))
            shutil.copymode(run_dir / "config.yaml", temporary)  # safetensors leaves it to its owner alone
        record = summary(config, task, data, trainer, tally, metrics)
        record["match"] = None
        if match is not None:
            record["match"] = match.record(record[RECORDED[match.quantity]])
            match.warn_of(record["match"])
        for key in ("command", "init_from", "match"):
            record[key] = redact(record[key])
        looks: dict[str, Any] = {"samples": []}
        if tests:
            with not_fatal("the best possible score"):
                record["optimum"] |= {
                    f"test/{name}": value
                    for name, value in corpus.optimum(task.name, task.architecture, splits.test).items()
                }
            with not_fatal("samples"):
                record["samples"] = samples(task, splits)
            with not_fatal("the time of an answer"):
                record["answer_time_s"] = answer_time(task, splits)
            with not_fatal("attention.json"):
                looks = attention(task, splits)
                content = json.dumps(looks, ensure_ascii=False, separators=(",", ":"))
                write_text(run_dir / "attention.json", content + "\n")
            with not_fatal("answers.jsonl"):
                write_answers(run_dir / "answers.jsonl", task, splits.test, tested)
        write_text(run_dir / "summary.json", json.dumps(record, indent=2, ensure_ascii=False) + "\n")
        failed = False
        for logger in loggers:
            if isinstance(logger, WandbLogger):
                with not_fatal("the record in W&B"):
                    from triptych.report.attention import attention_pictures  # which others need not wait for

                    pictures = attention_pictures(task.architecture, looks["samples"])
                    logger.log_record(record, run_dir / "checkpoints", pictures)
        with not_fatal("the figures here"):
            for name, value in metrics.items():
                optimum = record["optimum"].get(name)
                best = "" if optimum is None else f" (best possible guesser: {optimum:.4f})"
                how = signature(task, name)
                log.info("%s = %.4f%s%s", name, value, best, f" ({how})" if how else "")
            show_confusion(task)
    except Pruned as pruned:
        failed = False
        if place.rank == 0:
            write_text(run_dir / "pruned.json", json.dumps({"updates": pruned.update}) + "\n")
            log.info("%s: other trials of the search were better by then", pruned)
    finally:
        for logger in loggers:
            if isinstance(logger, WandbLogger):
                logger.finish(failed=failed)
        signals.release(*signals.STOPS)


@contextmanager
def not_fatal(what: str) -> Iterator[None]:
    """Lets a run end without what cannot be made of its weights: the training is done, and its record is worth more.

    Args:
        what: is left out then.
    """
    try:
        yield
    except (RunError, signals.Interruption):  # such as a full disk: the same command ends the run when there is room
        raise
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        log.warning(
            "left out of the record: %s (%s: %s, %s line %s)",
            what, type(error).__name__, error, Path(place.filename).name, place.lineno,
        )  # fmt: skip


@contextmanager
def explained(config: DictConfig, trainer: L.Trainer, task: Task, data: DataModule) -> Iterator[None]:
    """Says what to do about a run that cannot go on.

    Raises:
        RunError: with the update, its examples, and the setting to change.
        Interruption: it was asked to end, and so were the others, which this process has waited for in vain.
    """
    try:
        yield
    except NotFinite as error:
        raise RunError(
            f"{error}; it read {data.describe_update(error.update)}. The same command with not_finite=skip leaves such "
            f"updates out; with optimizer.lr below {config.optimizer.lr}, go on in another run_dir with "
            f"resume={config.run_dir}"
        ) from error
    except (MemoryError, RuntimeError) as error:
        if is_loss_of_a_peer(error):
            # After the last update a process that is asked to end does not wait for the others.
            if (signum := signals.received()) is not None and trainer.state.fn != TrainerFn.FITTING:
                raise signals.Interruption(signum, trainer.global_step) from error
            said = str(error).splitlines()[0]  # gloo: [place in its source] what happened. Advice
            reason = (said.rpartition(".cc:")[2].partition("] ")[2] or said).partition(". ")[0]
            raise RunError(
                f"after {trainer.global_step} updates another process was gone or hung ({reason}); the same command "
                "goes on from the newest checkpoint"
            ) from error
        if isinstance(error, RunError) or not is_out_of_memory(error):
            raise
        if not task.training:  # it was in the middle of an evaluation
            advice = f"lower batch.eval_size={config.batch.eval_size}"
        else:
            parts = config.trainer.accumulate_grad_batches
            size = f"size={config.batch.size}" if config.batch.tokens is None else f"tokens={config.batch.tokens}"
            advice = (
                f"raise trainer.accumulate_grad_batches={parts} (the same update in more parts), or lower "
                f"batch.{size} or shape.max_length={config.shape.max_length}"
            )
        raise RunError(f"out of memory after {trainer.global_step} updates: {advice}") from error


def is_loss_of_a_peer(error: BaseException) -> bool:
    """NCCL has a class of its own for it. Gloo has not: it fails in a call of torch.distributed, or says its name. (A
    tensor on a device that the processes do not share fails there, too: that is a mistake of ours.)"""
    if "No backend type associated" in str(error):
        return False
    if isinstance(error, dist.DistError) or "gloo" in str(error):
        return True
    return any("torch/distributed/" in frame.filename for frame in traceback.extract_tb(error.__traceback__)[-1:])


def is_out_of_memory(error: BaseException) -> bool:
    """torch's allocators say it in different ways."""
    said = ("not enough memory", "can't allocate memory")
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(words in str(error) for words in said)


def test(
    config: DictConfig, trainer: L.Trainer, task: Task, data: DataModule, run_dir: Path, *, tests: bool
) -> dict[str, float]:
    """Validates and, where it ``tests``, tests the last or the best weights, and returns all metrics."""
    # A moving average is in the weights, or in the best ones; Lightning would validate the last average in their place.
    trainer.callbacks = [c for c in trainer.callbacks if not isinstance(c, WeightAveraging)]  # type: ignore[attr-defined]
    if config.test_weights == "best":
        best = read_checkpoint(run_dir / "checkpoints" / "best.ckpt")
        trainer.strategy.load_model_state_dict(best)
    return measure(trainer, task, data, tests=tests)


def summary(
    config: DictConfig, task: Task, data: DataModule, trainer: L.Trainer, tally: Tally, metrics: dict[str, float]
) -> dict[str, Any]:
    """The record of a run, but for what the network makes of the test examples; the keys are documented in
    docs/run_directory.md."""
    choices = HydraConfig.get().runtime.choices
    parameters, non_embedding = count_parameters(task.network)
    flops = tally.cost.by_part(tally.shapes, unanswered=tally.unanswered)
    stacks = {
        name: len(getattr(task.network, name).layers) for name in ("encoder", "decoder") if hasattr(task.network, name)
    }
    return {
        "experiment": experiment(),
        "architecture": task.architecture,
        "task": task.name,
        "data": choices["data"],
        "seed": config.seed,
        "params": parameters,
        "non_embedding_params": non_embedding,
        "active_params": active_parameters(task.network),
        "params_by_part": parameters_by_part(task.network),
        "num_layers": stacks,
        "init_from": config.init_from,
        "train_flops": sum(flops.values()),
        "train_flops_by_part": flops,
        "decoding": decoding_cost(tally.cost.network, tally),
        "train_tokens": tally.tokens,
        "real_tokens": tally.real_tokens,
        "tokens_per_update": tally.tokens / max(trainer.global_step, 1),
        "updates": trainer.global_step,
        "skipped_updates": task.skipped_updates,
        "wall_time_s": tally.wall_time,
        "tokens_per_s": tally.tokens / tally.seconds if tally.seconds else 0.0,
        "peak_memory_bytes": peak_memory(task.device),
        "metrics": metrics,
        "optimum": {},
        "signatures": task.signatures,
        "confusion_matrix": confusion_matrix(task),
        "too_long": {"policy": config.batch.too_long, **data.too_long},
        "eval_windows": eval_windows(data),
        "tested_weights": config.test_weights,
        "samples": [],
        "answer_time_s": None,
        "weights_sha256": weights_sha256(task.network),
        "data_sha256": task.corpus.sha256,
        "tokenizer_sha256": task.tokenizer.sha256,
        "git_commit": git_commit(),
        "versions": {name: version(name) for name in ("triptych", "torch", "lightning", "hydra-core", "tokenizers")},
        "hardware": hardware(task.device),
        "precision": trainer.precision,
        "command": "triptych train " + shlex.join(HydraConfig.get().overrides.task),
    }


def experiment() -> str:
    """The name of the experiment, or of the corpus, task and model."""
    choices = HydraConfig.get().runtime.choices
    return choices["experiment"] or f"{choices['data']}/{choices['task']}_{choices['model']}"


def labels(config: DictConfig, task: Task) -> dict[str, str]:
    """What a run is, for dashboards. A job of a sweep is known by the name of its directory."""
    choices, run_dir = HydraConfig.get().runtime.choices, Path(config.run_dir)
    found = {"experiment": experiment(), "architecture": task.architecture, "task": task.name, "data": choices["data"]}
    if config.match is not None:
        found["match"] = config.match
    if re.search("-[0-9a-f]{8}$", run_dir.name):
        found["sweep"] = run_dir.absolute().parent.name
    return found


def decoding_cost(network: Network, tally: Tally) -> dict[str, int] | None:
    """The operations of one more token of a model that writes text, where as many tokens stand before it as in the mean
    of the training batches; None: it writes none."""
    if not isinstance(network, DecoderOnly | EncoderDecoder) or network.head.pool != "none" or not tally.shapes:
        return None
    length, source = tally.mean_lengths
    return {"flops": decoding_flops(network, length, source), "length": length, "source": source}


def eval_windows(data: DataModule) -> dict[str, int] | None:
    """How long texts are evaluated: tokens of a window, tokens from one to the next, and how many there are."""
    if not (isinstance(data.validation, Windows) and isinstance(data.test, Windows)):
        return None
    counts = {"validation": len(data.validation.sizes), "test": len(data.test.sizes)}
    return {"length": data.test.length, "stride": data.test.stride, **counts}


def confusion_matrix(task: Task) -> dict[str, Any] | None:
    """Of the test split: a row for each true class, a column for each predicted one."""
    counts = task.matrices.get("test/confusion_matrix")
    return None if counts is None else {"labels": list(task.corpus.labels), "counts": counts}


def git_commit() -> str | None:
    """The commit of the checkout that this package runs from; None outside of one."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        # an installed copy may stand inside of another project's checkout
        subprocess.run([*git, "ls-files", "--error-unmatch", Path(__file__).name], capture_output=True, check=True)
        return subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
