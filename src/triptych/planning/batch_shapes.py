"""The batches of the first steps of a run, formed from its data as in training."""
# Takes a DictConfig: before the plan, overrides, checkpoints and matches may still set any key.

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from triptych.assembly.choose_parts import complete_config, count_patches
from triptych.assembly.encode_splits import encode_training
from triptych.assembly.loaders import check_update, is_packed, step_size_of
from triptych.assembly.make_task import check_network, make_task
from triptych.assembly.read_data import read_corpus, train_tokenizer
from triptych.config import as_dict, build, target_of
from triptych.config.run_settings import RunSettings
from triptych.data import (
    BPE,
    Characters,
    CorpusInfo,
    LongText,
    Splits,
    Tokenizer,
    TrainingWindows,
    Unigram,
    WordLevel,
    WordPiece,
)
from triptych.data.batches.datamodule import Collated
from triptych.data.batches.sampler import RankSlice
from triptych.data.batches.window_sampler import training_sampler
from triptych.models.flops import BatchShape
from triptych.nn import PatchEmbedding
from triptych.training.callbacks.cost_tracker import shape_of

READ_BYTES = 10 * 2**20
"""Maximum size of the files that are read to measure their texts."""
SAMPLE = 4000
"""Number of training examples to encode."""
STEPS = 8
"""Number of steps to form from them."""
ASSUMED_CHARACTERS, ASSUMED_WORDS, ASSUMED_CLASSES = 256, 32_000, 2
ASSUMED_FACTS = CorpusInfo(labels=("0", "1"), tag_labels=("0", "1"))
"""Assumed for data that were not read."""


@dataclass(frozen=True, slots=True)
class StepShapes:
    """The batches of one process in one step.

    Attributes:
        shapes: number of batches by shape.
        tokens: number of non-padding tokens.
        unprojected: number of positions without an output projection.
    """

    shapes: Mapping[BatchShape, int]
    tokens: int
    unprojected: int = 0


@dataclass(frozen=True, slots=True)
class BatchEstimate:
    """The estimated batches of a run.

    Attributes:
        config: configuration with vocabulary and outputs filled in.
        steps: the first steps of one process.
        world_size: number of processes.
        rows: rows per batch over all processes; with batch.max_tokens, those of the batch with the most positions.
        longest: maximum number of positions per row of a batch and of its source.
        documents: lengths of the documents and their sources in the largest packed batch; None: no packing.
        assumptions: assumptions about data that were not read.
        sample: number of encoded examples; None: no data were read, or windows of a long text.
    """

    config: DictConfig
    steps: Sequence[StepShapes]
    world_size: int
    rows: int
    longest: tuple[int, int]
    documents: tuple[Sequence[int], Sequence[int]] | None = None
    assumptions: Sequence[str] = field(default_factory=list)
    sample: int | None = None

    @property
    def shapes(self) -> Counter[BatchShape]:
        """The number of batches by shape, in all these steps."""
        return sum((Counter(step.shapes) for step in self.steps), Counter())

    @property
    def tokens(self) -> float:
        """The mean number of non-padding tokens per step, over all processes."""
        return self.world_size * sum(step.tokens for step in self.steps) / len(self.steps)


class ReadData:
    """Estimates batches from data that were read."""

    def __init__(self, splits: Splits, info: CorpusInfo, tokenizer: Tokenizer, world_size: int) -> None:
        self.splits, self.info, self.tokenizer, self.world_size = splits, info, tokenizer, world_size

    def complete(self, config: DictConfig) -> DictConfig:
        """The configuration with vocabulary and outputs filled in."""
        config = config.copy()
        complete_config(config, self.tokenizer.vocab_size, self.info)
        return config

    def estimate(self, config: DictConfig, *, sample: int = SAMPLE, num_steps: int = STEPS) -> BatchEstimate:
        """Forms the first steps, from at most the first ``sample`` training examples."""
        config, train = self.complete(config), self.splits.train
        settings, network = RunSettings.of(config), check_network(config)
        task = make_task(settings, self.tokenizer, self.info, network)
        if not isinstance(train, LongText):
            train = train[: max(sample, config.batch.global_size or 0)]
        encoded = encode_training(settings.encoding, task, train)
        check_update(settings.loader, encoded)
        step_size = step_size_of(settings)
        ranks = RankSlice(world_size=self.world_size)
        sampler = training_sampler(encoded, step_size=step_size, seed=config.seed, ranks=ranks)
        batches, steps, micro = Collated(encoded, packed=is_packed(settings, encoded)), [], iter(sampler)
        packed: list[tuple[Sequence[int], Sequence[int]]] = []
        for _ in range(num_steps):
            step = [batches[share] for share in islice(micro, step_size.accumulate)]
            packed += [(batch.lengths, batch.source_lengths or ()) for batch in step if batch.lengths is not None]
            counts = Counter(shape_of(batch, network) for batch in step)
            tokens = sum(batch.num_nonpadding for batch in step)
            steps.append(StepShapes(counts, tokens, unprojected=sum(map(task.num_unprojected, step))))
        shapes = {shape for step in steps for shape in step.shapes}
        embedding = network.embedding
        if isinstance(embedding, PatchEmbedding):
            rows, *longest = max(shapes)[0], embedding.length, 0
        elif config.batch.max_tokens is None:
            rows, *longest = (max(shape[i] for shape in shapes) for i in range(3))
        else:  # batches with more rows have shorter ones
            rows, *longest = max(shapes, key=lambda shape: shape[0] * sum(shape[1:]))
        length, source = longest
        count = None if isinstance(encoded, TrainingWindows) else len(encoded.sizes)
        documents = max(packed, key=lambda sides: sum(map(sum, sides)), default=None)
        size = rows * self.world_size
        return BatchEstimate(config, steps, self.world_size, size, (length, source), documents, sample=count)


class AssumedData:
    """Estimates batches from the configuration alone.

    Args:
        tokenizer: tokenizer of the resumed run; None: the configured one, not yet trained.
    """

    def __init__(self, tokenizer: Tokenizer | None, world_size: int) -> None:
        self.tokenizer, self.world_size = tokenizer, world_size

    def complete(self, config: DictConfig) -> DictConfig:
        """The configuration with vocabulary and outputs filled in, with assumptions if needed."""
        return self._completed(config)[0]

    def estimate(self, config: DictConfig, *, sample: int = SAMPLE, num_steps: int = STEPS) -> BatchEstimate:
        """One step of maximum size; the arguments are ignored."""
        config, assumptions = self._completed(config)
        length = config.shape.max_length
        is_full = target_of(config, "model").architecture == "full"
        parts = config.trainer.accumulate_grad_batches
        info = getattr(target_of(config, "data"), "info", None)
        if isinstance(info, CorpusInfo) and info.is_stream:
            source = (length + 1) // 2 if is_full else 0
            longest = (length + 1 - source, source) if is_full else (length, 0)
        else:
            longest = (length, length if is_full else 0)
            if OmegaConf.select(config, "model.source_embedding.image_size") is not None:
                longest = (length, 1 + count_patches(config))
            assumptions.append(
                f"every text as long as shape.max_length={length}, so tokens, FLOPs and time are upper bounds"
            )
        size = config.batch.global_size or max(1, config.batch.max_tokens // sum(longest))
        rows = -(-size // parts)
        share = -(-rows // self.world_size)
        step = StepShapes({(share, *longest): parts}, size * sum(longest) // self.world_size)
        documents = ([longest[0]], [source for source in longest[1:] if source]) if config.batch.packing else None
        return BatchEstimate(config, [step], self.world_size, rows, longest, documents, assumptions=assumptions)

    def _completed(self, config: DictConfig) -> tuple[DictConfig, list[str]]:
        """The completed configuration, and the assumptions."""
        config, num_outputs = config.copy(), config.model.head.num_outputs
        vocab_size, assumptions = self._vocab_size(config)
        complete_config(config, vocab_size, ASSUMED_FACTS)
        if config.shape.vocab_size is None:  # of images
            assumptions = []
        has_classes = num_outputs is None and not target_of(config, "task").predicts_tokens
        if has_classes and config.model.head.num_outputs == ASSUMED_CLASSES:
            assumptions.append(f"{ASSUMED_CLASSES} classes; the data define the real number")
        return config, assumptions

    def _vocab_size(self, config: DictConfig) -> tuple[int, list[str]]:
        """The vocabulary size of an untrained tokenizer, and the assumptions about it."""
        if config.shape.vocab_size is not None:
            return config.shape.vocab_size, []
        if self.tokenizer is not None:
            return self.tokenizer.vocab_size, []
        untrained = build(config, "tokenizer")
        if isinstance(untrained, WordLevel) and untrained.vocab_size is None:
            return ASSUMED_WORDS, [f"{ASSUMED_WORDS:,} words; shape.vocab_size=N plans with N"]
        if isinstance(untrained, BPE | Unigram | WordPiece | WordLevel):
            assert untrained.vocab_size is not None
            return untrained.vocab_size * (1 if untrained.joint else 2), []
        if isinstance(untrained, Characters):
            return ASSUMED_CHARACTERS, [f"{ASSUMED_CHARACTERS} characters; shape.vocab_size=N plans with N"]
        return untrained.train([]).vocab_size, []


Data = ReadData | AssumedData


def inspect_data(config: DictConfig, tokenizer: Tokenizer | None, world_size: int) -> Data:
    """Reads the data if that is cheap: generated corpora (without a folder or name) and small files of lines or rows.
    Other data are not read; they may be missing.

    Args:
        tokenizer: tokenizer of the resumed run; None: the configured one.
    """
    if {"dir", "name"} & set(config.data) and not has_small_files(config):
        return AssumedData(tokenizer, world_size)
    _, splits, info = read_corpus(config, target_of(config, "data").__name__)
    return ReadData(splits, info, tokenizer or train_tokenizer(config, splits), world_size)


def has_small_files(config: DictConfig) -> bool:
    """Whether the corpus consists of small files of lines or rows that all exist. (A long text need not be read, since
    its windows have equal length.)"""
    info = getattr(target_of(config, "data"), "info", None)
    if "dir" not in config.data or (isinstance(info, CorpusInfo) and info.is_stream):
        return False
    data = as_dict(config.data, resolve=False)
    names = [name for split in ("train", "validation", "test") for name in texts_in(data.get(split))]
    try:
        return sum(Path(data["dir"], name).stat().st_size for name in names) <= READ_BYTES
    except OSError:
        return False


def texts_in(value: Any) -> list[str]:
    """All texts in a setting: the setting itself, or those in a list or mapping."""
    if isinstance(value, dict | list):
        return [text for part in (value.values() if isinstance(value, dict) else value) for text in texts_in(part)]
    return [value] if isinstance(value, str) else []
