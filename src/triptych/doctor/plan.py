"""What a training will be: its network, its memory, its operations and its time."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle
from statistics import fmean

import torch
import torch.nn.functional as F
from omegaconf import DictConfig

from triptych.accounting import BatchShape, inputs_of, shape_of, training_flops
from triptych.activations import PRECISIONS, Activations, Precision
from triptych.assembly import check_network, complete, encode_split, make_task, train_tokenizer
from triptych.config import ConfigError, build, target_of
from triptych.data import BytePairs, Characters, Corpus, CorpusFacts, Tokenizer, collate
from triptych.data.sampler import TrainingSampler
from triptych.devices import Device
from triptych.memory import Memory, optimizer_bytes
from triptych.nn import Network, PatchEmbedding

SAMPLE = 4000
"""Training examples that are laid out to see how long they are."""
UPDATES = 8
"""Updates of these whose batches are looked at."""
ASSUMED_VOCABULARY, ASSUMED_CLASSES = 256, 2
UTILISATION = 0.3
"""Share of a GPU's peak that a training is assumed to reach. Published ones reached 0.21 (GPT-3) to 0.46 (PaLM), by
Chowdhery et al. 2022, table 3; small networks reach much less."""
TRIED_ON_CPU, TRIED_ON_GPU = 1e11, 1e13
"""The most operations of a batch that is tried out here."""
SHORTEST_TRIAL_S, LONGEST_TRIAL_S = 1.0, 5.0
"""How long trying out takes."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What the data say of a training.

    Attributes:
        config: with vocabulary and outputs filled in.
        shapes: batches of one process, and how many there are of each, in the updates that were looked at.
        num_updates: how many these are.
        tokens: real tokens of an update, over all processes.
        longest: the most positions of a batch, and of its source.
        assumptions: what is not known before the data are read.
        sample: examples that the updates were laid out of; None: no data were read.
    """

    config: DictConfig
    shapes: Mapping[BatchShape, int]
    num_updates: int
    tokens: float
    longest: tuple[int, int]
    assumptions: list[str] = field(default_factory=list)
    sample: int | None = None


def survey(config: DictConfig, tokenizer: Tokenizer | None, world_size: int) -> Survey:
    """Looks at the data as far as that is cheap. Corpora that are made (they have no folder) are read, and a sample of
    them is laid out; of files, which may be missing, nothing but what the configuration says.

    Args:
        config: of the training.
        tokenizer: of the run that goes on; None: the configured one.
        world_size: processes that train together.

    Raises:
        ValueError: examples that cannot be trained on.
    """
    config = config.copy()
    if "dir" not in config.data:
        return _of_examples(config, build(config, "data"), tokenizer, world_size)
    assumptions = []
    if config.shape.vocab_size is None and "vocab_size" in config.model.embedding:
        size, assumption = _vocab_size(config, tokenizer)
        config.shape.vocab_size = size
        assumptions += assumption
    facts = getattr(target_of(config, "data"), "facts", None)
    is_stream = isinstance(facts, CorpusFacts) and facts.is_stream
    task = target_of(config, "task")
    if config.model.head.num_outputs is None:
        config.model.head.num_outputs = config.shape.vocab_size if task.predicts_tokens else ASSUMED_CLASSES
        if not task.predicts_tokens:
            assumptions.append(f"{ASSUMED_CLASSES} classes; the data say how many there are")
    length = config.shape.max_length
    is_full = target_of(config, "model").architecture == "full"
    rows = config.batch.size // (config.trainer.accumulate_grad_batches * world_size)
    if is_stream:
        source = (length + 1) // 2 if is_full else 0
        longest = (length + 1 - source, source) if is_full else (length, 0)
    else:
        longest = (length, length if is_full else 0)
        assumptions.append(
            f"every text as long as shape.max_length={length}, so tokens, operations and time are upper bounds"
        )
    shapes: dict[BatchShape, int] = {(rows, *longest): config.trainer.accumulate_grad_batches}
    tokens = config.batch.size * sum(longest)
    return Survey(config, shapes, 1, tokens, longest, assumptions)


def _vocab_size(config: DictConfig, tokenizer: Tokenizer | None) -> tuple[int, list[str]]:
    """Of a tokenizer that no text has been read for, and what is assumed about it."""
    if tokenizer is not None:
        return tokenizer.vocab_size, []
    untrained = build(config, "tokenizer")
    if isinstance(untrained, BytePairs):
        return untrained.vocab_size, []
    if isinstance(untrained, Characters):
        return ASSUMED_VOCABULARY, [f"{ASSUMED_VOCABULARY} characters; shape.vocab_size=N plans with N"]
    return untrained.train([]).vocab_size, []


def _of_examples(config: DictConfig, corpus: Corpus, tokenizer: Tokenizer | None, world_size: int) -> Survey:
    splits = corpus.splits()
    tokenizer = tokenizer or train_tokenizer(config, splits)
    complete(config, tokenizer, corpus.facts)
    network = check_network(config)
    task = make_task(config, tokenizer, corpus.facts, network)
    parts = config.trainer.accumulate_grad_batches
    if len(splits.train) < config.batch.size:
        raise ValueError(
            f"batch.size={config.batch.size}: the training split has {len(splits.train)} examples; expected no more"
        )
    encoded = encode_split(config, task, splits.train[: max(SAMPLE, config.batch.size)], "train")
    sampler = TrainingSampler(
        sizes=encoded.sizes,
        num_scored=encoded.num_scored,
        batch_size=min(config.batch.size, len(encoded.sizes)),
        accumulate=parts,
        seed=config.seed,
        world_size=world_size,
    )
    shapes: Counter[BatchShape] = Counter()
    tokens = 0
    for _, micro in zip(range(UPDATES * parts), sampler, strict=False):
        batch = collate([encoded[i] for i in micro.indices], micro.normalizer)
        shapes[shape_of(batch)] += 1
        tokens += batch.num_real
    embedding = network.embedding
    if isinstance(embedding, PatchEmbedding):
        longest = (embedding.length, 0)
    else:
        longest = (max(shape[1] for shape in shapes), max(shape[2] for shape in shapes))
    return Survey(config, shapes, UPDATES, tokens * world_size / UPDATES, longest, sample=len(encoded.sizes))


@dataclass(frozen=True, slots=True)
class Plan:
    """What a training will be.

    Attributes:
        network: on the meta device.
        survey: of the data.
        memory: by number of processes.
        precision: of the training.
        world_size: processes that train together.
        flops: operations of the whole training, over all processes.
    """

    network: Network
    survey: Survey
    memory: Memory
    precision: Precision
    world_size: int
    flops: float

    @property
    def flops_of_update(self) -> float:
        """Operations of one update, over all processes."""
        return self.flops / int(self.survey.config.trainer.max_steps)


def make_plan(surveyed: Survey, world_size: int, device: Device) -> Plan:
    """The plan of a training.

    Args:
        surveyed: its data, and its configuration.
        world_size: processes that train together.
        device: that each of them uses.

    Raises:
        ConfigError: a precision that is not counted.
    """
    config = surveyed.config
    if str(config.trainer.precision) not in PRECISIONS:
        raise ConfigError(f"trainer.precision={config.trainer.precision}: no plan; only for {', '.join(PRECISIONS)}")
    precision = PRECISIONS[str(config.trainer.precision)]
    network = check_network(config)
    per_process = training_flops(network, surveyed.shapes) / surveyed.num_updates
    network = check_network(config).to(precision.dtype)
    optimizer = replace(build(config, "optimizer"), fused=False)  # there is no fused kernel on the meta device
    memory = Memory(
        network=network,
        optimizer=optimizer_bytes(network, optimizer),
        activations=Activations(precision, on_gpu=device.is_gpu),
        length=surveyed.longest[0],
        source=surveyed.longest[1],
        padded=network.architecture == "encoder_only" or network.head.pool != "none",
        averaged="ema" in config.callbacks,
    )
    return Plan(network, surveyed, memory, precision, world_size, per_process * world_size * config.trainer.max_steps)


def computed_seconds(plan: Plan, device: Device) -> float | None:
    """Of the whole training, from the peak of a device; None: it is not known.

    Args:
        plan: of the training.
        device: that each process uses.
    """
    peak = device.single if plan.precision.compute == 4 else device.half if plan.precision.compute == 2 else None
    return None if peak is None else plan.flops / (UTILISATION * peak * plan.world_size)


def measured_seconds(plan: Plan, device: Device) -> float | None:
    """Of one update, by trying it out on this machine: forward, backward and the optimizer's step on batches of the
    shapes that the training will have, without what stands around them (loading, logging, communication).

    Args:
        plan: of the training.
        device: this machine's.

    Returns:
        None: it is too large to be tried out.
    """
    config = plan.survey.config
    parts: int = config.trainer.accumulate_grad_batches
    shapes = list(plan.survey.shapes)
    of_batch = plan.flops_of_update / (plan.world_size * parts)
    is_large = plan.memory.ddp(1, shapes[0][0]).total > 0.5 * device.memory
    if is_large or of_batch > (TRIED_ON_GPU if device.is_gpu else TRIED_ON_CPU):
        return None
    place = torch.device("cuda" if device.is_gpu else "cpu")
    network: Network = build(config, "model").to(place, plan.precision.dtype).train()
    optimizer = build(config, "optimizer")(network)
    half = torch.float16 if str(config.trainer.precision).startswith("16") else torch.bfloat16

    def train_on(shape: BatchShape) -> None:
        inputs = inputs_of(shape, place)
        if network.architecture == "decoder_only" and network.head.pool == "none":
            inputs = inputs[:1]  # as in training
        with torch.autocast(place.type, half, enabled=plan.precision.is_mixed):
            logits = network(*inputs).flatten(0, -2)
            labels = torch.zeros(len(logits), dtype=torch.long, device=place)
            loss = F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), labels)
        torch.autograd.backward(loss)

    def step() -> None:
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    def seconds(work: Callable[[], None]) -> float:
        started = time.perf_counter()
        work()
        if device.is_gpu:
            torch.cuda.synchronize()
        return time.perf_counter() - started

    train_on(shapes[0])
    step()  # the first of everything is slow
    passes: list[float] = []
    for shape in cycle(shapes):
        passes.append(seconds(partial(train_on, shape)))
        if sum(passes) > LONGEST_TRIAL_S or (sum(passes) > SHORTEST_TRIAL_S and len(passes) >= len(shapes)):
            break
    return parts * fmean(passes) + seconds(step)
