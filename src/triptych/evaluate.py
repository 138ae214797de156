"""``triptych evaluate``: the metrics of a checkpoint."""
# Takes a DictConfig: it is the command's own configuration, as Hydra has composed it.

import logging
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import cast

import lightning as L
import numpy as np
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from omegaconf import DictConfig, OmegaConf

from triptych.assembly.compatibility import check_corpus
from triptych.assembly.loaders import check_rank_shares, make_data_module
from triptych.assembly.restore import checkpoint_file, restore, set_search
from triptych.config import ConfigError, build, error_prefix, target_of
from triptych.config.run_settings import RunSettings
from triptych.data import Corpus, DataModule, MinimalPair, MinimalPairs, read_splits
from triptych.data.readers.files import unpacked
from triptych.report.console import show_metrics
from triptych.report.pair_scores import MOST_TIES, PairScores, show_pair_scores
from triptych.storage.progress import show_progress
from triptych.storage.run_directory import RunDirectory
from triptych.tasks import LanguageModeling, Predictor, Task, TextToText, Translation
from triptych.tasks.precision import arithmetic
from triptych.training import TrainingModule
from triptych.training.hardware import device_for, hardware

log = logging.getLogger("triptych")


def evaluate(config: DictConfig) -> None:
    """Prints the metrics of a checkpoint on the validation and test splits of its corpus, or of another.

    Args:
        config: composed by Hydra from conf/evaluate.yaml.
    """
    device = device_for(config.trainer.accelerator)
    trained, task = restore(config.checkpoint, config.trainer.precision)
    if "_target_" in config.data and target_of(config, "data") is MinimalPairs:
        task.network.to(device)
        evaluate_minimal_pairs(config, task)
        return
    if config.method is not None:
        raise ConfigError(f"method={config.method} scores minimal pairs; expected data=minimal_pairs, or null")
    trained.data = corpus_of(config.data, trained.data)
    if "_target_" not in trained.data:
        raise ConfigError(f"checkpoint={config.checkpoint} was imported and has no corpus: give data=... too")
    check_corpus(trained)
    trained.batch.eval_batch_size = config.batch_size or trained.batch.eval_batch_size
    set_search(task, config, ("num_beams", "length_penalty", "early_stopping"))
    set_tokenizers(task, config.bleu_tokenizer, config.rouge_tokenizer)
    module = TrainingModule(task)
    is_same_data = not {"_target_", "test"} & {*config.data}
    metrics = evaluation(RunSettings.of(trained), module, is_same_data=is_same_data, accelerator=device.type)
    where = f"{hardware(device)}, {trained.trainer.precision}"
    show_metrics(f"{checkpoint_file(config.checkpoint)} on {where}", metrics, module)


def evaluate_minimal_pairs(config: DictConfig, task: Task) -> None:
    """Prints the accuracy on minimal pairs, and writes the scores of each pair into the run directory. Prefix models
    read the common first words of a pair as their prefix."""
    corpus: MinimalPairs = build(config, "data")
    with error_prefix():
        pairs = corpus.read()
        has_prefix = isinstance(task, LanguageModeling) and task.architecture != "decoder_only"
        prefixes = [pair.prefix if has_prefix else "" for pair in pairs]
        good = [(prefix, pair.good[len(prefix) :]) for prefix, pair in zip(prefixes, pairs, strict=True)]
        bad = [(prefix, pair.bad[len(prefix) :]) for prefix, pair in zip(prefixes, pairs, strict=True)]
        distinct = [*dict.fromkeys(chain(good, bad))]
        with show_progress() as progress:
            advance = partial(progress.advance, progress.add_task("scoring sentences", total=len(distinct)))
            contexts, texts = zip(*distinct, strict=True)
            found = Predictor(task).score(texts, contexts, config.method, advance=advance)
    score_of = dict(zip(distinct, found, strict=True))
    scores = PairScores.of(pairs, [score_of[x] for x in good], [score_of[x] for x in bad])
    path, method = checkpoint_file(config.checkpoint), found[0].method
    folder = path.parents[1] if path.parent.name == "checkpoints" else path.parent
    table = Path(unpacked(corpus.test)).stem
    scores.write(RunDirectory(folder).minimal_pairs / f"{table}.{method}.tsv")
    if task.corpus.is_stream:
        log.warning("training read windows of a long text, which have no <bos>; for sentences, train on lines")
    warn_of_pairs(scores, pairs, prefixes if has_prefix else None)
    show_pair_scores(f"{path} by {method}", scores)


def warn_of_pairs(scores: PairScores, pairs: Sequence[MinimalPair], prefixes: Sequence[str] | None) -> None:
    """Logs which pairs say little, or are left out."""
    count = f"of {len(pairs):,} pairs"
    if left_out := int(np.isnan(scores.points).sum()):
        log.warning("%s %s are left out: they have an unknown token or an empty sentence", f"{left_out:,}", count)
    if identical := sum(pair.good == pair.bad for pair in pairs):
        log.warning("%s %s have two identical sentences, half a point each", f"{identical:,}", count)
    if scores.ties > MOST_TIES:
        log.warning("%.1f %% of the pairs are ties, half a point each", 100 * scores.ties)
    if prefixes is not None and (without := sum(not prefix for prefix in prefixes)):
        log.warning("%s %s have no common first word, and training has no empty prefix", f"{without:,}", count)


def set_tokenizers(task: Task, bleu: str | None, rouge: str | None) -> None:
    """Sets the tokenizers of BLEU and ROUGE; None: unchanged."""
    with error_prefix():
        if bleu is not None:
            if not isinstance(task, Translation):
                raise ConfigError(f"bleu_tokenizer={bleu}: {task.name} has no BLEU; expected null")
            task.use_bleu_tokenizer(bleu)
        if rouge is not None:
            if not isinstance(task, TextToText):
                raise ConfigError(f"rouge_tokenizer={rouge}: {task.name} has no ROUGE; expected null")
            task.use_rouge_tokenizer(rouge)


def corpus_of(given: DictConfig, recorded: DictConfig) -> DictConfig:
    """Returns the configuration node of the corpus to evaluate on.

    Data for training is optional: if the test is a separate file, or ``train`` is missing, only the given splits are
    read.

    Args:
        given: another corpus, or settings that override the recorded ones; may be empty.
        recorded: the node of the training run; may be empty.
    """
    data = given if "_target_" in given else cast(DictConfig, OmegaConf.merge(recorded, given))
    if "train" not in [*data] or isinstance(data.test, int | float):
        return data
    if OmegaConf.is_missing(data, "train"):
        data.train = None
        if isinstance(data.validation, int | float):
            data.validation = None
    elif data is not given and "test" in given:
        for key in {"train", "validation"} - {*given}:
            data[key] = None
    return data


def evaluation(
    settings: RunSettings, module: TrainingModule, *, is_same_data: bool, accelerator: str = "auto"
) -> dict[str, float]:
    """Computes the metrics of a task on the validation and test splits of a corpus.

    Args:
        settings: settings of the training run, perhaps with another corpus.
        is_same_data: whether the corpus should be that of the training run.
        accelerator: accelerator of the evaluation, independent of that of the training run; see ``device_for``.
    """
    device, task = device_for(accelerator), module.task
    corpus: Corpus = settings.build("data")
    with error_prefix():
        splits, info = read_splits(corpus, settings.plain("data"))
        if not is_same_data:  # the corpus may be a long text while that of the training run was lines, or the reverse
            task.corpus = replace(task.corpus, is_stream=info.is_stream)
        if is_same_data and info.sha256 != task.corpus.sha256:
            log.warning("data: these are not the examples of the training any more; its figures cannot come out again")
        data = make_data_module(settings, task, splits, training=False)
        check_rank_shares(settings.trainer, data)
    task.warn_of_scripts(splits.test)
    with tempfile.TemporaryDirectory() as directory:
        trainer = L.Trainer(
            accelerator=device.type,
            devices=1,
            # one process, wherever it is started, and float16 also on CPUs, where Lightning would use bfloat16
            plugins=[LightningEnvironment(), arithmetic(task.precision, device)],
            limit_val_batches=settings.trainer.limit_val_batches,
            limit_test_batches=settings.trainer.limit_test_batches,
            logger=False,
            enable_checkpointing=False,
            enable_model_summary=False,
            default_root_dir=directory,
        )
        return measure(trainer, module, data)


def measure(trainer: L.Trainer, module: TrainingModule, data: DataModule, *, tests: bool = True) -> dict[str, float]:
    """Computes the metrics on the validation split, if there is one, and on the test split, if ``tests`` is set."""
    values = {} if data.validation is None else dict(trainer.validate(module, data, verbose=False)[0])
    if tests:
        values |= trainer.test(module, data, verbose=False)[0]
    return {name: float(value) for name, value in values.items() if name.startswith(("val/", "test/"))}
