"""What benchmarks/speed.py measures: for each row of its page, the contenders on the same work.

Every contender is a function that does one round and says how much it did in how many seconds. The networks of
``transformers`` have random weights, and ``triptych.interop`` reads them: where networks are the same, so are weights.
"""

import os

os.environ |= {"HF_HUB_OFFLINE": "1", "WANDB_SILENT": "true"}

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from triptych.data import Batch
from triptych.data.batches.batch import IGNORE_INDEX, EncodedExample, collate, pad
from triptych.data.batches.sampler import StepSize, TrainingSampler
from triptych.interop import read_network
from triptych.models.generation import BeamSearch, Sampling, beam_search, generate
from triptych.nn import Network, Targets
from triptych.nn.kernels.cross_entropy import rows_at_once
from triptych.training.optimizers import AdamW

transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]

D_MODEL, LAYERS, HEADS, D_FF, VOCAB, LENGTH = 256, 4, 4, 1024, 8192, 256
ROWS_OF_DECODER, STEPS = 8, 4
TEXTS, BATCH, CLASSES, SHORTEST, MEDIAN, SIGMA = 128, 16, 4, 16, 64, 0.7
NEW_TOKENS, PROMPT, SENTENCES, BEAMS = 128, 16, 8, 5
LEARNING_RATE, BETAS, EPS, WEIGHT_DECAY = 1e-5, (0.9, 0.98), 1e-9, 0.01
CLIP = 1.0
PAD, START, END = 1, 0, 2
"""Tokens of the models of ``transformers``; the texts here have none of them but at their ends."""


class Round(NamedTuple):
    """One round.

    Attributes:
        amount: what was done, in the unit of the row.
        seconds: that it took.
    """

    amount: float
    seconds: float


@dataclass(frozen=True)
class Asked:
    """A ratio that is asked for: at least ``ratio`` times the rate of the peer."""

    ours: str
    peer: str
    ratio: float


@dataclass
class Row:
    """A table of the page.

    Attributes:
        title: of the table.
        unit: of the amount.
        rounds: the contenders.
        asked: the ratios asked for.
        steps: how many steps a round has, of each contender whose memory is measured.
        floor: the name of the contender that only multiplies matrices; None: there is none.
        flops: operations of one of its rounds.
        facts: what else is said below the table; checks that the contenders do the same.
    """

    title: str
    unit: str
    rounds: dict[str, Callable[[], Round]]
    asked: list[Asked]
    steps: dict[str, int] = field(default_factory=dict)
    floor: str | None = None
    flops: float = 0.0
    facts: list[str] = field(default_factory=list)


def timed(work: Callable[[], object], amount: float) -> Callable[[], Round]:
    """The work with a clock.

    Args:
        work: does a round.
        amount: what it counts as.
    """

    def run() -> Round:
        start = time.perf_counter()
        work()
        return Round(amount, time.perf_counter() - start)

    return run


# Matrix products


@dataclass(frozen=True)
class Product:
    """A batch of products [m, k] x [k, n].

    Attributes:
        batch: how many.
        m: rows of the first.
        k: columns of the first.
        n: columns of the second.
        by: the weight that the second is, by a number; None: none.
    """

    batch: int
    m: int
    k: int
    n: int
    by: int | None = None

    @property
    def flops(self) -> int:
        """2 m k n, of each."""
        return 2 * self.batch * self.m * self.k * self.n

    @property
    def backward(self) -> list["Product"]:
        """Of the gradients: to the first matrix, dY B^T, and to the second, A^T dY."""
        return [Product(self.batch, self.m, self.n, self.k), Product(self.batch, self.k, self.m, self.n)]


def attention_products(queries: Sequence[int], keys: Sequence[int]) -> list[Product]:
    """Scores and weighted values of each text; all pairs, those that a causal mask hides too.

    Args:
        queries: of each text.
        keys: of each text.
    """
    width = D_MODEL // HEADS
    pairs = zip(queries, keys, strict=True)
    return [p for q, k in pairs for p in (Product(HEADS, q, width, k), Product(HEADS, q, k, width))]


def stack_products(lengths: Sequence[int], memory: Sequence[int] | None = None, *, first: int = 0) -> list[Product]:
    """The forward products of a stack on packed texts.

    Args:
        lengths: of the texts.
        memory: the lengths of what cross-attention looks at; None: there is none.
        first: number of the first weight.
    """
    n, found, weight = sum(lengths), list[Product](), first
    for _ in range(LAYERS):
        sizes = [(n, D_MODEL, D_MODEL)] * 4 + [(n, D_MODEL, D_FF), (n, D_FF, D_MODEL)]
        found += attention_products(lengths, lengths)
        if memory is not None:
            sizes += [(n, D_MODEL, D_MODEL)] * 2 + [(sum(memory), D_MODEL, D_MODEL)] * 2
            found += attention_products(lengths, memory)
        for m, k, out in sizes:
            found.append(Product(1, m, k, out, weight))
            weight += 1
    return found


def head_products(answered: int) -> list[Product]:
    """The output layer on so many states, in the chunks in which ours is computed.

    Args:
        answered: states.
    """
    rows = rows_at_once(VOCAB, on_gpu=False)
    return [Product(1, min(rows, answered - start), D_MODEL, VOCAB, -1) for start in range(0, answered, rows)]


def multiply(products: Sequence[Product], dtype: torch.dtype) -> Callable[[], None]:
    """Does these products and nothing else: the operands are there, the results are overwritten. Each weight has its
    own memory; all other matrices of one shape share theirs.

    Args:
        products: in their order.
        dtype: of the matrices.
    """
    matrices: dict[tuple[object, ...], Tensor] = {}

    def matrix(role: object, *shape: int) -> Tensor:
        shape = shape[1:] if shape[0] == 1 else shape
        key = (role, *shape)
        if key not in matrices:
            matrices[key] = torch.randn(shape, dtype=dtype)
        return matrices[key]

    def product(p: Product) -> Callable[[], Tensor]:
        a, c = matrix("a", p.batch, p.m, p.k), matrix("c", p.batch, p.m, p.n)
        role = "b" if p.by is None else p.by
        b = matrix(role, p.batch, p.k, p.n)
        return partial(torch.matmul, a, b, out=c)

    with torch.inference_mode():
        calls = [product(p) for p in products]

    @torch.inference_mode()
    def run() -> None:
        for call in calls:
            call()

    return run


def best_of(times: int, call: Callable[[], object]) -> float:
    """Seconds of the quickest of so many calls.

    Args:
        times: how many.
        call: what is called.
    """
    found = []
    for _ in range(times):
        begun = time.perf_counter()
        call()
        found.append(time.perf_counter() - begun)
    return min(found)


def training_floor(steps: Sequence[Sequence[Product]], amount: float, dtype: torch.dtype) -> tuple[Any, float]:
    """A round of the products of training steps, forward and backward, and its operations.

    Args:
        steps: the forward products of each.
        amount: what a round counts as.
        dtype: of the matrices.
    """
    products = [p for step in steps for forward in step for p in (forward, *forward.backward)]
    return timed(multiply(products, dtype), amount), float(sum(p.flops for p in products))


def matrix_rate(dtype: torch.dtype, size: int = 2048) -> float:
    """Operations per second of products of large square matrices; the best of 5.

    Args:
        dtype: of the matrices.
        size: of their sides.
    """
    product = Product(1, size, size, size)
    return product.flops / best_of(5, multiply([product], dtype))


# Training


def make_gpt2() -> Any:
    """GPT-2's network, without dropout."""
    config = transformers.GPT2Config(
        vocab_size=VOCAB,
        n_positions=LENGTH,
        n_embd=D_MODEL,
        n_layer=LAYERS,
        n_head=HEADS,
        n_inner=D_FF,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(config)


def make_bert() -> Any:
    """BERT's network with classes, without dropout."""
    config = transformers.BertConfig(
        vocab_size=VOCAB,
        hidden_size=D_MODEL,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=D_FF,
        max_position_embeddings=LENGTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pad_token_id=PAD,
    )
    config.num_labels = CLASSES
    torch.manual_seed(0)
    return transformers.BertForSequenceClassification(config)


def make_bart() -> Any:
    """BART's network, without dropout."""
    config = transformers.BartConfig(
        vocab_size=VOCAB,
        d_model=D_MODEL,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=D_FF,
        decoder_ffn_dim=D_FF,
        max_position_embeddings=LENGTH,
        dropout=0.0,
        attention_dropout=0.0,
        activation_dropout=0.0,
        pad_token_id=PAD,
        bos_token_id=START,
        eos_token_id=END,
        decoder_start_token_id=START,
        forced_eos_token_id=None,
    )
    torch.manual_seed(0)
    return transformers.BartForConditionalGeneration(config)


def ours_of(model: Any, task: str) -> Network:
    """Our network with the weights of a model of ``transformers``.

    Args:
        model: of a published family.
        task: that its head is for.
    """
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return read_network(folder, task).network.train()


def our_optimizer(network: nn.Module) -> torch.optim.Optimizer:
    """AdamW as ``triptych train`` makes it: fused, decay of the matrices alone."""
    beta1, beta2 = BETAS
    settings = AdamW(lr=LEARNING_RATE, beta1=beta1, beta2=beta2, eps=EPS, weight_decay=WEIGHT_DECAY)
    return settings(network)


def their_optimizer(network: nn.Module, *, fused: bool | None = None) -> torch.optim.Optimizer:
    """The same settings for torch.optim.AdamW over all parameters.

    Args:
        network: whose parameters.
        fused: None: as torch chooses.
    """
    return torch.optim.AdamW(
        network.parameters(), lr=LEARNING_RATE, betas=BETAS, eps=EPS, weight_decay=WEIGHT_DECAY, fused=fused
    )


def training(
    parameters: nn.Module,
    optimizer: torch.optim.Optimizer,
    losses: Sequence[Callable[[], Tensor]],
    dtype: torch.dtype = torch.float32,
) -> Callable[[], list[float]]:
    """A round of steps: forward and loss, backward, clipping of the norm, optimizer. Returns the losses.

    Args:
        parameters: the network.
        optimizer: of it.
        losses: of each step.
        dtype: bfloat16 for autocast.
    """

    def run() -> list[float]:
        found = []
        for loss_of in losses:
            with torch.autocast("cpu", dtype) if dtype != torch.float32 else nullcontext():
                loss = loss_of()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(parameters.parameters(), CLIP)
            optimizer.step()
            found.append(loss.detach())
        return [float(loss) for loss in found]

    return run


def decoder(*, dtype: torch.dtype = torch.float32, compiled: bool = False) -> Row:
    """Training of a language model, all sequences of one length.

    Args:
        dtype: bfloat16 for autocast.
        compiled: whether compiled peers are there too.
    """
    generator = torch.Generator().manual_seed(0)
    batches = torch.randint(3, VOCAB, (STEPS, ROWS_OF_DECODER, LENGTH), generator=generator).unbind()
    amount = float(STEPS * ROWS_OF_DECODER * LENGTH)
    contenders: dict[str, tuple[nn.Module, torch.optim.Optimizer, Callable[[Tensor], Tensor]]] = {}

    model = make_gpt2()
    places = torch.arange(ROWS_OF_DECODER * LENGTH).view(ROWS_OF_DECODER, LENGTH)[:, :-1].flatten()

    def our_loss(network: Network, tokens: Tensor) -> Tensor:
        labels = tokens[:, 1:].flatten()
        total: Tensor = network(tokens, targets=Targets(places, labels, 0.0))
        return total / len(labels)

    def loss_of_logits(logits: Tensor, tokens: Tensor) -> Tensor:
        return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())

    for name in ["Triptych", "Triptych, compiled"][: 1 + compiled]:
        network = ours_of(model, "language_modeling")
        if name != "Triptych":
            network.compile_parts(dynamic=False)
        contenders[name] = (network, our_optimizer(network), partial(our_loss, network))

    def add_gpt2(name: str, model: Any, *, fused: bool | None = None) -> None:
        call = torch.compile(model) if "compiled" in name else model
        optimizer = their_optimizer(model, fused=fused)
        contenders[name] = (model, optimizer, lambda tokens: call(input_ids=tokens, labels=tokens).loss)

    add_gpt2("Hugging Face GPT-2", model.train())
    add_gpt2("Hugging Face GPT-2, fused AdamW", make_gpt2().train(), fused=True)
    if compiled:
        add_gpt2("Hugging Face GPT-2, compiled", make_gpt2().train())
    for name, peer in peers().items():
        optimizer = their_optimizer(peer)
        contenders[name] = (peer, optimizer, partial(lambda peer, tokens: loss_of_logits(peer(tokens), tokens), peer))

    rounds, facts, first = {}, [], {}
    for name, (module, optimizer, loss) in contenders.items():
        run = training(module, optimizer, [partial(loss, tokens) for tokens in batches], dtype)
        first[name] = run()[0]
        rounds[name] = timed(run, amount)
    said = "; ".join(f"{name} {loss:.5f}" for name, loss in first.items() if name.startswith(("Triptych", "Hugging")))
    facts.append(f"Loss of the first step, from the same weights: {said}.")

    products = [*stack_products([LENGTH] * ROWS_OF_DECODER), *head_products(ROWS_OF_DECODER * (LENGTH - 1))]
    rounds["matrix products alone"], flops = training_floor([products] * STEPS, amount, dtype)
    is_single = dtype == torch.float32
    asked = [Asked("Triptych", "Hugging Face GPT-2", 1.33 if is_single else 1.3)]
    if compiled and is_single:
        asked += [Asked(name, "Hugging Face GPT-2, compiled", 1.18) for name in ("Triptych", "Triptych, compiled")]
    return Row(
        title=f"Training a decoder, {'float32' if is_single else 'bfloat16 autocast'}",
        unit="tokens/s",
        rounds=rounds,
        asked=asked,
        steps=dict.fromkeys(contenders, STEPS),
        floor="matrix products alone",
        flops=flops,
        facts=facts,
    )


class TorchDecoder(nn.Module):
    """GPT-2's shape from torch.nn's own layers."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCAB, D_MODEL), nn.Embedding(LENGTH, D_MODEL)
        layer = nn.TransformerEncoderLayer(
            D_MODEL, HEADS, D_FF, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, LAYERS, norm=nn.LayerNorm(D_MODEL), enable_nested_tensor=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH))
        self.register_buffer("places", torch.arange(LENGTH))

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits; the output is tied."""
        x = self.tokens(tokens) + self.positions(self.places)
        return F.linear(self.layers(x, mask=self.mask, is_causal=True), self.tokens.weight)


def peers() -> dict[str, nn.Module]:
    """Other libraries' decoders of the same sizes, each with its own initial weights."""
    torch.manual_seed(0)
    found: dict[str, nn.Module] = {"torch.nn.TransformerEncoder": TorchDecoder()}
    if find_spec("x_transformers") is not None:
        from x_transformers import Decoder, TransformerWrapper  # type: ignore[import-untyped]

        found["x-transformers"] = TransformerWrapper(
            num_tokens=VOCAB,
            max_seq_len=LENGTH,
            tie_embedding=True,
            attn_layers=Decoder(
                dim=D_MODEL,
                depth=LAYERS,
                heads=HEADS,
                attn_dim_head=D_MODEL // HEADS,
                ff_mult=D_FF // D_MODEL,
                attn_flash=True,
            ),
        )
    return found


# Texts of unequal length


def lengths_of_texts(seed: int, count: int) -> list[int]:
    """Log-normal lengths, cut to 16 ... 256.

    Args:
        seed: of the draws.
        count: how many.
    """
    drawn = np.random.default_rng(seed).lognormal(np.log(MEDIAN), SIGMA, count)
    return [int(length) for length in np.clip(np.round(drawn), SHORTEST, LENGTH)]


def random_text(generator: np.random.Generator, length: int) -> np.ndarray:
    """Any tokens but the special ones."""
    return generator.integers(3, VOCAB, length)


def batches_by_step(items: Sequence[EncodedExample], *, tokens: int | None = None) -> list[list[EncodedExample]]:
    """An epoch of steps as ``triptych train`` makes them: like sizes together.

    Args:
        items: the texts.
        tokens: the most tokens per step; None: a fixed number of texts.
    """
    sampler = TrainingSampler(
        sizes=np.array([item.size for item in items]),
        num_scored=np.array([item.num_scored for item in items]),
        step_size=StepSize(BATCH if tokens is None else None, tokens),
        seed=0,
    )
    return [[items[i] for i in sampler.indices_of_step(k)] for k in range(sampler.pool_size)]


def in_turn(items: Sequence[EncodedExample]) -> list[list[EncodedExample]]:
    """Batches of the items in their order."""
    return [list(items[i : i + BATCH]) for i in range(0, len(items), BATCH)]


def layouts(items: Sequence[EncodedExample]) -> tuple[dict[str, list[Batch]], dict[str, list[Batch]], float, list[str]]:
    """Our batches and the others', by batching method; the non-padding tokens of each; and a sentence about them.

    Args:
        items: the texts in the order of their arrival.
    """
    amount = float(sum(item.size for item in items))
    budget = max(int(amount * BATCH / len(items)), max(item.size for item in items))
    bucketed, by_tokens = batches_by_step(items), batches_by_step(items, tokens=budget)
    ours = {
        "Triptych, packed": [collate(examples, packed=True) for examples in bucketed],
        "Triptych, packed, by tokens": [collate(examples, packed=True) for examples in by_tokens],
        "Triptych, bucketed": [collate(examples) for examples in bucketed],
    }
    by_size = sorted(items, key=lambda item: item.size)
    theirs = {
        "in order of arrival": [collate(examples) for examples in in_turn(items)],
        "sorted by length": [collate(examples) for examples in in_turn(by_size)],
    }
    shares = {name: amount / sum(b.num_with_padding for b in batches) for name, batches in (ours | theirs).items()}
    shares_said = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    facts = [
        f"{len(items)} texts, {BATCH} per step (by tokens: at most {budget} tokens per step, "
        f"{len(by_tokens)} steps). Non-padding positions: {shares_said}."
    ]
    return ours, theirs, amount, facts


def encoder() -> Row:
    """Training of a classifier on texts of unequal length."""
    generator = np.random.default_rng(1)
    items = [
        EncodedExample(random_text(generator, length), generator.integers(0, CLASSES, 1))
        for length in lengths_of_texts(0, TEXTS)
    ]
    ours, theirs, amount, facts = layouts(items)
    rounds: dict[str, Callable[[], Round]] = {}
    num_steps: dict[str, int] = {}
    for name, batches in ours.items():
        network = ours_of(make_bert(), "classification")
        losses = [partial(our_classification_loss, network, batch) for batch in batches]
        rounds[name], num_steps[name] = timed(training(network, our_optimizer(network), losses), amount), len(batches)
    for name, batches in theirs.items():
        model = make_bert().train()
        optimizer = their_optimizer(model)
        losses = [partial(their_classification_loss, model, batch) for batch in batches]
        peer = f"Hugging Face BERT, {name}"
        rounds[peer], num_steps[peer] = timed(training(model, optimizer, losses), amount), len(batches)
    model, first = make_bert().train(), theirs["in order of arrival"][0]
    mine = our_classification_loss(ours_of(model, "classification"), first)
    packed = our_classification_loss(ours_of(model, "classification"), collate(batches_by_step(items)[0], packed=True))
    padded = our_classification_loss(ours_of(model, "classification"), collate(batches_by_step(items)[0]))
    their = their_classification_loss(model, first)
    facts.append(
        f"Loss of one batch, from the same weights: Triptych {mine:.5f}, Hugging Face {their:.5f}; "
        f"of another one, packed {packed:.5f}, padded {padded:.5f}."
    )
    products = [
        [
            *stack_products([len(item.inputs) for item in examples]),
            *(Product(1, len(examples), D_MODEL, n, -n) for n in (D_MODEL, CLASSES)),
        ]
        for examples in batches_by_step(items)
    ]
    rounds["matrix products alone"], flops = training_floor(products, amount, torch.float32)
    return Row(
        title="Training an encoder classifier, lengths 16 to 256",
        unit="non-padding tokens/s",
        rounds=rounds,
        asked=asked_of_layouts(ours, "Hugging Face BERT", 2.1, 1.35),
        steps=num_steps,
        floor="matrix products alone",
        flops=flops,
        facts=facts,
    )


def asked_of_layouts(ours: Mapping[str, object], peer: str, arrival: float, by_length: float) -> list[Asked]:
    """What is asked of each of our layouts: against batches in order of arrival, and sorted ones.

    Args:
        ours: by name.
        peer: name of the other network.
        arrival: the ratio to the former.
        by_length: the ratio to the latter.
    """
    pairs = (("in order of arrival", arrival), ("sorted by length", by_length))
    return [Asked(name, f"{peer}, {order}", ratio) for name in ours for order, ratio in pairs]


def our_classification_loss(network: Network, batch: Batch) -> Tensor:
    """The loss of a batch, as ``triptych.tasks.Classification`` computes it."""
    logits = network(batch.inputs, batch.mask, lengths=batch.lengths)
    total = F.cross_entropy(logits.float(), batch.labels.flatten(), ignore_index=IGNORE_INDEX, reduction="sum")
    return total / batch.num_labels_in_step


def their_classification_loss(model: Any, batch: Batch) -> Tensor:
    """The loss of a padded batch."""
    assert batch.mask is not None
    loss: Tensor = model(input_ids=batch.inputs, attention_mask=batch.mask.long(), labels=batch.labels[:, 0]).loss
    return loss


SMOOTHING = 0.1


def full() -> Row:
    """Training of a full model with label smoothing on pairs of texts of unequal length."""
    generator = np.random.default_rng(1)
    items = []
    for length, other in zip(lengths_of_texts(0, TEXTS // 2), generator.uniform(0.8, 1.25, TEXTS // 2), strict=True):
        target = random_text(generator, int(np.clip(round(length * other), SHORTEST, LENGTH)))
        items.append(EncodedExample(np.append(START, target[:-1]), target, random_text(generator, length)))
    ours, theirs, amount, facts = layouts(items)
    rounds: dict[str, Callable[[], Round]] = {}
    num_steps: dict[str, int] = {}
    for name, batches in ours.items():
        network = ours_of(make_bart(), "translation")
        losses = [partial(our_translation_loss, network, batch) for batch in batches]
        rounds[name], num_steps[name] = timed(training(network, our_optimizer(network), losses), amount), len(batches)
    for name, batches in theirs.items():
        model = make_bart().train()
        optimizer = their_optimizer(model)
        losses = [partial(their_translation_loss, model, batch) for batch in batches]
        peer = f"Hugging Face BART, {name}"
        rounds[peer], num_steps[peer] = timed(training(model, optimizer, losses), amount), len(batches)
    model, first = make_bart().train(), theirs["in order of arrival"][0]
    network = ours_of(model, "translation")
    mine, their = our_translation_loss(network, first), their_translation_loss(model, first)
    packed, padded = (
        our_translation_loss(network, collate(batches_by_step(items)[0], packed=is_packed))
        for is_packed in (True, False)
    )
    facts.append(
        f"Loss of one batch, from the same weights: Triptych {mine:.5f}, Hugging Face {their:.5f}; "
        f"of another one, packed {packed:.5f}, padded {padded:.5f}."
    )
    products = []
    for examples in batches_by_step(items):
        sources = [len(item.source) for item in examples if item.source is not None]
        targets = [len(item.inputs) for item in examples]
        stacks = [*stack_products(sources), *stack_products(targets, sources, first=1000)]
        products.append([*stacks, *head_products(sum(targets))])
    rounds["matrix products alone"], flops = training_floor(products, amount, torch.float32)
    return Row(
        title="Training a full model, label smoothing 0.1, lengths 16 to 256",
        unit="non-padding tokens/s, of both sides",
        rounds=rounds,
        asked=asked_of_layouts(ours, "Hugging Face BART", 2.4, 1.35),
        steps=num_steps,
        floor="matrix products alone",
        flops=flops,
        facts=facts,
    )


def our_translation_loss(network: Network, batch: Batch) -> Tensor:
    """The loss of a batch, as ``triptych.tasks.Translation`` computes it."""
    targets = Targets(batch.scored, batch.labels.flatten()[batch.scored], SMOOTHING)
    total: Tensor = network(
        batch.source,
        batch.inputs,
        batch.source_mask,
        None,
        source_lengths=batch.source_lengths,
        lengths=batch.lengths,
        targets=targets,
    )
    return total / batch.num_labels_in_step


def their_translation_loss(model: Any, batch: Batch) -> Tensor:
    """The loss of a padded batch."""
    assert batch.source_mask is not None
    mask = batch.source_mask.long()
    logits = model(input_ids=batch.source, attention_mask=mask, decoder_input_ids=batch.inputs, use_cache=False).logits
    return F.cross_entropy(
        logits.flatten(0, 1).float(), batch.labels.flatten(), ignore_index=IGNORE_INDEX, label_smoothing=SMOOTHING
    )


# Decoding


def decoding_products(rows: int, keys: Sequence[int], memory: int | None = None) -> list[Product]:
    """The products of decoding token by token, the output layer included.

    Args:
        rows: sequences that grow side by side.
        keys: how many positions each step sees.
        memory: positions that cross-attention looks at; None: there is none.
    """
    found = []
    for seen in keys:
        weight = 0
        for _ in range(LAYERS):
            sizes = [(D_MODEL, D_MODEL)] * 4 + [(D_MODEL, D_FF), (D_FF, D_MODEL)]
            looks = [seen]
            if memory is not None:  # its keys and values are there already
                sizes, looks = [*sizes, *[(D_MODEL, D_MODEL)] * 2], [seen, memory]
            width = D_MODEL // HEADS
            for k, n in sizes:
                found.append(Product(1, rows, k, n, weight))
                weight += 1
            for length in looks:
                found += [Product(rows * HEADS, 1, width, length), Product(rows * HEADS, 1, length, width)]
        found.append(Product(1, rows, D_MODEL, VOCAB, -1))
    return found


def greedy(rows: int) -> Row:
    """Greedy decoding of a decoder.

    Args:
        rows: prompts at a time.
    """
    model = make_gpt2().eval()
    network: Any = ours_of(model, "language_modeling").eval()
    prompt = torch.randint(3, VOCAB, (rows, PROMPT), generator=torch.Generator().manual_seed(0))
    everywhere = torch.ones_like(prompt)

    @torch.inference_mode()
    def mine() -> list[list[int]]:
        next_token = network.continuation(None, capacity=PROMPT + NEW_TOKENS)
        return generate(next_token, prompt, end=-1, max_new_tokens=NEW_TOKENS, sampling=Sampling())

    def theirs() -> list[list[int]]:
        found = model.generate(
            prompt,
            attention_mask=everywhere,
            do_sample=False,
            use_cache=True,
            min_new_tokens=NEW_TOKENS,
            max_new_tokens=NEW_TOKENS,
        )
        tokens: list[list[int]] = found[:, PROMPT:].tolist()
        return tokens

    same = sum(a == b for a, b in zip(mine(), theirs(), strict=True))
    amount = float(rows * NEW_TOKENS)
    keys = range(PROMPT + 1, PROMPT + NEW_TOKENS)
    products = [*stack_products([PROMPT] * rows), Product(1, rows, D_MODEL, VOCAB, -1)]
    products += decoding_products(rows, keys)
    return Row(
        title=f"Greedy decoding, {rows} {'prompt' if rows == 1 else 'prompts'}, {NEW_TOKENS} new tokens each",
        unit="tokens/s",
        rounds={
            "Triptych": timed(mine, amount),
            "Hugging Face GPT-2": timed(theirs, amount),
            "matrix products alone": timed(multiply(products, torch.float32), amount),
        },
        asked=[Asked("Triptych", "Hugging Face GPT-2", 1.7 if rows == 1 else 2.2)],
        floor="matrix products alone",
        flops=float(sum(p.flops for p in products)),
        facts=[f"Identical sequences from the same weights: {same} of {rows}."],
    )


def beam() -> Row:
    """Beam search of a full model."""
    model = make_bart().eval()
    network: Any = ours_of(model, "translation").eval()
    generator, lengths = np.random.default_rng(0), lengths_of_texts(0, SENTENCES)
    source, mask = pad([random_text(generator, length) for length in lengths], PAD)
    prompt, attention_mask = torch.full((SENTENCES, 1), START), mask.long()

    @torch.inference_mode()
    def mine() -> list[list[int]]:
        next_token = network.continuation(source, mask, capacity=1 + NEW_TOKENS)
        found = beam_search(next_token, prompt, end=END, max_new_tokens=NEW_TOKENS, search=BeamSearch(BEAMS))
        return [hypotheses[0].tokens for hypotheses in found]

    def theirs() -> list[list[int]]:
        found = model.generate(
            source,
            attention_mask=attention_mask,
            num_beams=BEAMS,
            do_sample=False,
            use_cache=True,
            early_stopping=False,
            length_penalty=1.0,
            max_new_tokens=NEW_TOKENS,
        )
        rows: list[list[int]] = found[:, 1:].tolist()
        return [row[: row.index(END)] if END in row else row for row in rows]

    answers, others = mine(), theirs()
    same = sum(a == b for a, b in zip(answers, others, strict=True))
    tokens = [sum(map(len, answer)) / SENTENCES for answer in (answers, others)]
    products = [*stack_products([source.shape[1]] * SENTENCES)]
    products += decoding_products(SENTENCES * BEAMS, range(1, NEW_TOKENS + 1), source.shape[1])
    return Row(
        title=f"Beam search of a full model, {BEAMS} beams, {SENTENCES} sentences, at most {NEW_TOKENS} new tokens",
        unit="sentences/s",
        rounds={
            "Triptych": timed(mine, float(SENTENCES)),
            "Hugging Face BART": timed(theirs, float(SENTENCES)),
            "matrix products alone": timed(multiply(products, torch.float32), float(SENTENCES)),
        },
        asked=[Asked("Triptych", "Hugging Face BART", 2.2)],
        floor="matrix products alone",
        flops=float(sum(p.flops for p in products)),
        facts=[
            f"Identical outputs from the same weights: {same} of {SENTENCES}; mean tokens per output: "
            f"Triptych {tokens[0]:.1f}, Hugging Face {tokens[1]:.1f}. The products assume outputs of full length."
        ],
    )
