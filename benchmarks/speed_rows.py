"""What benchmarks/speed.py measures: for each row of its page, the contenders on the same work.

Every contender is a function that does one round and says how much it did in how many seconds. The networks of
``transformers`` have random weights, and ``triptych.interop`` reads them: where networks are the same, so are weights.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import peers
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triptych.data import Batch
from triptych.data.batches.batch import EncodedExample, collate, pad
from triptych.data.batches.sampler import StepSize
from triptych.nn.kernels.cross_entropy import rows_at_once

SIZES = peers.NetworkSizes(d_model=256, layers=4, heads=4, vocab=8192, length=256)
D_MODEL, LAYERS, HEADS, D_FF = SIZES.d_model, SIZES.layers, SIZES.heads, SIZES.d_ff
VOCAB, LENGTH = SIZES.vocab, SIZES.length
ROWS_OF_DECODER, STEPS = 8, 4
TEXTS, BATCH, SHORTEST, MEDIAN, SIGMA = 128, 16, 16, 64, 0.7
NEW_TOKENS, PROMPT, SENTENCES, BEAMS = 128, 16, 8, 5


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

    model = peers.make_gpt2(SIZES)
    for name in ["Triptych", "Triptych, compiled"][: 1 + compiled]:
        network = peers.ours_of(model, "language_modeling")
        if name != "Triptych":
            network.compile_parts(dynamic=False)
        contenders[name] = (network, peers.our_optimizer(network), peers.OurNextTokenLoss(network, batches[0]))

    def add_gpt2(name: str, model: Any, *, fused: bool | None = None) -> None:
        call = torch.compile(model) if "compiled" in name else model
        optimizer = peers.their_optimizer(model, fused=fused)
        contenders[name] = (model, optimizer, lambda tokens: call(input_ids=tokens, labels=tokens).loss)

    add_gpt2("Hugging Face GPT-2", model.train())
    add_gpt2("Hugging Face GPT-2, fused AdamW", peers.make_gpt2(SIZES).train(), fused=True)
    if compiled:
        add_gpt2("Hugging Face GPT-2, compiled", peers.make_gpt2(SIZES).train())
    for name, peer in other_decoders().items():
        optimizer = peers.their_optimizer(peer)
        contenders[name] = (
            peer,
            optimizer,
            partial(lambda peer, tokens: peers.loss_of_logits(peer(tokens), tokens), peer),
        )

    rounds, facts, first = {}, [], {}
    for name, (module, optimizer, loss) in contenders.items():
        run = peers.training(module, optimizer, [partial(loss, tokens) for tokens in batches], dtype)
        first[name] = run()[0]
        rounds[name] = timed(run, amount)
    said = "; ".join(f"{name} {loss:.5f}" for name, loss in first.items() if name.startswith(("Triptych", "Hugging")))
    facts.append(f"The losses of the first step, from the same weights, are: {said}.")

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


def other_decoders() -> dict[str, nn.Module]:
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
                dim=D_MODEL, depth=LAYERS, heads=HEADS, attn_dim_head=D_MODEL // HEADS, ff_mult=D_FF // D_MODEL,
                attn_flash=True,
            ),
        )  # fmt: skip
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


def layouts(items: Sequence[EncodedExample]) -> tuple[dict[str, list[Batch]], dict[str, list[Batch]], float, list[str]]:
    """Our batches and the others', by batching method; the non-padding tokens of each; and a sentence about them.

    Args:
        items: the texts in the order of their arrival.
    """
    amount = float(sum(item.size for item in items))
    budget = max(int(amount * BATCH / len(items)), max(item.size for item in items))
    bucketed, by_tokens = (peers.batches_by_step(items, size) for size in (StepSize(BATCH), StepSize(None, budget)))
    ours = {
        "Triptych, packed": [collate(examples, packed=True) for examples in bucketed],
        "Triptych, packed, by tokens": [collate(examples, packed=True) for examples in by_tokens],
        "Triptych, bucketed": [collate(examples) for examples in bucketed],
    }
    by_size = sorted(items, key=lambda item: item.size)
    theirs = {
        "in order of arrival": [collate(examples) for examples in peers.in_turn(items, BATCH)],
        "sorted by length": [collate(examples) for examples in peers.in_turn(by_size, BATCH)],
    }
    shares = {name: amount / sum(b.num_with_padding for b in batches) for name, batches in (ours | theirs).items()}
    shares_said = "; ".join(f"{name} {share:.0%}" for name, share in shares.items())
    facts = [
        f'There are {len(items)} texts, with {BATCH} per step. The rows "by tokens" limit the tokens per step instead: '
        f"they have {len(by_tokens)} steps of at most {budget} tokens. The fractions of non-padding positions are: "
        f"{shares_said}."
    ]
    return ours, theirs, amount, facts


def unequal(
    items: Sequence[EncodedExample],
    make: Callable[[peers.NetworkSizes], Any],
    task: str,
    products_of: Callable[[Sequence[EncodedExample]], list[Product]],
    *,
    title: str,
    unit: str,
    peer: str,
    arrival: float,
) -> Row:
    """Training on texts of unequal length.

    Args:
        items: the texts in the order of their arrival.
        make: the network of ``transformers``.
        task: that its head is for.
        products_of: the forward products of a step.
        title: of the row.
        unit: of the row.
        peer: what the network of ``transformers`` is called.
        arrival: the ratio that is required to batches in order of arrival.
    """
    ours, theirs, amount, facts = layouts(items)
    our_loss, their_loss = peers.LOSSES[task]
    rounds: dict[str, Callable[[], Round]] = {}
    for name, batches in ours.items():
        network = peers.ours_of(make(SIZES), task)
        losses = [partial(our_loss, network, batch) for batch in batches]
        rounds[name] = timed(peers.training(network, peers.our_optimizer(network), losses), amount)
    for name, batches in theirs.items():
        model = make(SIZES).train()
        losses = [partial(their_loss, model, batch) for batch in batches]
        rounds[f"{peer}, {name}"] = timed(peers.training(model, peers.their_optimizer(model), losses), amount)
    model, first = make(SIZES).train(), theirs["in order of arrival"][0]
    steps = peers.batches_by_step(items, StepSize(BATCH))
    network = peers.ours_of(model, task)
    mine, their = our_loss(network, first), their_loss(model, first)
    packed, padded = (our_loss(network, collate(steps[0], packed=is_packed)) for is_packed in (True, False))
    facts.append(
        f"The losses of one batch, from the same weights, are: Triptych {mine:.5f}, Hugging Face {their:.5f}. "
        f"The losses of another batch are: Triptych packed {packed:.5f}, padded {padded:.5f}."
    )
    rounds["matrix products alone"], flops = training_floor(list(map(products_of, steps)), amount, torch.float32)
    ratios = (("in order of arrival", arrival), ("sorted by length", 1.35))
    return Row(
        title=title,
        unit=unit,
        rounds=rounds,
        asked=[Asked(name, f"{peer}, {order}", ratio) for name in ours for order, ratio in ratios],
        steps={name: len(found) for name, found in (ours | {f"{peer}, {n}": b for n, b in theirs.items()}).items()},
        floor="matrix products alone",
        flops=flops,
        facts=facts,
    )


def encoder() -> Row:
    """Training of a classifier on texts of unequal length."""
    generator = np.random.default_rng(1)
    items = [
        EncodedExample(random_text(generator, length), generator.integers(0, peers.CLASSES, 1))
        for length in lengths_of_texts(0, TEXTS)
    ]

    def products_of(examples: Sequence[EncodedExample]) -> list[Product]:
        head = (Product(1, len(examples), D_MODEL, n, -n) for n in (D_MODEL, peers.CLASSES))
        return [*stack_products([len(item.inputs) for item in examples]), *head]

    return unequal(
        items, peers.make_bert, "classification", products_of,
        title="Training an encoder classifier, lengths 16 to 256", unit="non-padding tokens/s",
        peer="Hugging Face BERT", arrival=2.1,
    )  # fmt: skip


def full() -> Row:
    """Training of a full model with label smoothing on pairs of texts of unequal length."""
    generator = np.random.default_rng(1)
    items = []
    for length, other in zip(lengths_of_texts(0, TEXTS // 2), generator.uniform(0.8, 1.25, TEXTS // 2), strict=True):
        target = random_text(generator, int(np.clip(round(length * other), SHORTEST, LENGTH)))
        items.append(EncodedExample(np.append(peers.START, target[:-1]), target, random_text(generator, length)))

    def products_of(examples: Sequence[EncodedExample]) -> list[Product]:
        sources = [len(item.source) for item in examples if item.source is not None]
        targets = [len(item.inputs) for item in examples]
        stacks = [*stack_products(sources), *stack_products(targets, sources, first=1000)]
        return [*stacks, *head_products(sum(targets))]

    return unequal(
        items, peers.make_bart, "translation", products_of,
        title="Training a full model, label smoothing 0.1, lengths 16 to 256",
        unit="non-padding tokens/s, of both sides", peer="Hugging Face BART", arrival=2.4,
    )  # fmt: skip


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
    model = peers.make_gpt2(SIZES).eval()
    network: Any = peers.ours_of(model, "language_modeling").eval()
    prompt = torch.randint(3, VOCAB, (rows, PROMPT), generator=torch.Generator().manual_seed(0))
    mine = partial(peers.our_greedy, network, prompt, NEW_TOKENS)
    theirs = partial(peers.their_greedy, model, prompt, torch.ones_like(prompt), NEW_TOKENS)
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
        facts=[
            f"With the same weights, both libraries give identical sequences for {same} of {rows} "
            f"{'prompt' if rows == 1 else 'prompts'}."
        ],
    )


def beam() -> Row:
    """Beam search of a full model."""
    model = peers.make_bart(SIZES).eval()
    network: Any = peers.ours_of(model, "translation").eval()
    generator, lengths = np.random.default_rng(0), lengths_of_texts(0, SENTENCES)
    source, mask = pad([random_text(generator, length) for length in lengths], peers.PAD)
    prompt, attention_mask = torch.full((SENTENCES, 1), peers.START), mask.long()
    mine = partial(peers.our_beams, network, source, mask, prompt, NEW_TOKENS, BEAMS)
    theirs = partial(peers.their_beams, model, source, attention_mask, NEW_TOKENS, BEAMS)
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
            f"With the same weights, both libraries give identical outputs for {same} of {SENTENCES} sentences. The "
            f"mean number of tokens per output is {tokens[0]:.1f} for Triptych and {tokens[1]:.1f} for Hugging Face. "
            "The matrix products alone assume outputs of full length."
        ],
    )
