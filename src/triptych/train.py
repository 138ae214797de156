"""``triptych train``: one training run, from the configuration to the record in its directory."""

import json
import logging
import shutil
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import lightning as L
from hydra.core.hydra_config import HydraConfig
from lightning.pytorch.callbacks import EarlyStopping, WeightAveraging
from lightning.pytorch.loggers import Logger
from omegaconf import DictConfig, OmegaConf
from safetensors.torch import save_model

from triptych.assembly.checks import check_before_data, check_optimizer
from triptych.assembly.compatibility import check_compiled
from triptych.assembly.datasets import make_data_module, train_tokenizer
from triptych.assembly.early_checks import check_validation
from triptych.assembly.init_from import Pretrained, settings_to_adopt
from triptych.assembly.network import check_network, complete, make_task
from triptych.config import ConfigError, RunError, build
from triptych.config.overrides import adopt
from triptych.data import Corpus, DataModule, LongText, sha256
from triptych.evaluate import measure
from triptych.launch import signals
from triptych.launch.processes import depends_on_clock, find_place, hush, run_processes
from triptych.planning.batch_shapes import ReadData
from triptych.planning.cost_log import Tally
from triptych.planning.flops import (
    count_parameters,
)
from triptych.planning.matching import FILE, RECORDED, check_countable, check_same, find_match, recorded, reference_of
from triptych.planning.pace import measure_paces
from triptych.report.console import show_confusion, signature
from triptych.report.samples import answer_time, attention, gather_tested, samples, write_answers
from triptych.report.summary import labels, summary
from triptych.search.pruning import Pruned
from triptych.storage.atomic import replacing, write_text
from triptych.storage.redaction import Redactor
from triptych.tasks import Task
from triptych.training import FSDP, CheckpointFacts, Checkpoints, CSVLogger, WandbLogger, read_checkpoint
from triptych.training.callbacks.checkpoints import check_metric, validation_metrics
from triptych.training.failures import explained
from triptych.training.hardware import keep_freed_memory
from triptych.training.resume import is_finished, prepare_directory, state_to_resume
from triptych.training.strategies import check_place

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
    for name, callback in zip(config.callbacks, callbacks, strict=True):
        if isinstance(callback, EarlyStopping):
            check_metric(f"callbacks.{name}.monitor", callback.monitor, validation_metrics(task))
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
                    from triptych.report.page.attention import attention_pictures  # which others need not wait for

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
            what = {"task": task.name, "data": HydraConfig.get().runtime.choices["data"]}
            note = {"updates": pruned.update, **what, "architecture": task.architecture}
            write_text(run_dir / "pruned.json", json.dumps(note) + "\n")
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
