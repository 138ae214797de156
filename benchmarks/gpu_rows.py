"""What benchmarks/measure_gpu.py measures of the published sizes on a GPU, and of small ones on a CPU to show that it
runs.

Contenders take turns in one process, a round each; a round is some steps, or some texts. The page shows each result
with its required value and its target.
"""

import gc
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import peers
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triptych.data import Batch
from triptych.data.batches.batch import EncodedExample, collate, pad
from triptych.data.batches.sampler import StepSize
from triptych.models.flops import count_parameters
from triptych.planning.gpus import gpu_called

Work = Callable[[], object]


@dataclass(frozen=True)
class Line:
    """A result of the page.

    Attributes:
        what: was measured.
        found: the result.
        unit: of it.
        asked: required at least; None: no requirement.
        aim: target.
        note: a remark.
    """

    what: str
    found: float
    unit: str
    asked: float | None = None
    aim: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Sizes(peers.NetworkSizes):
    """Of the networks, the batches and the rounds."""

    rows: int
    texts: int
    new_tokens: int
    steps: int
    rounds: int


PUBLISHED = Sizes(768, 12, 12, 50304, 1024, rows=16, texts=512, new_tokens=128, steps=10, rounds=3)
"""GPT-2 124M, BERT base and BART base, one vocabulary for all; 50,304 is the next multiple of 64 to GPT-2's 50,257."""
SMALL = Sizes(32, 2, 4, 320, 64, rows=2, texts=24, new_tokens=8, steps=2, rounds=2)


def sizes_for(device: torch.device) -> Sizes:
    """The published ones on a GPU."""
    return PUBLISHED if device.type == "cuda" else SMALL


def wait(device: torch.device) -> None:
    """Until the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def rates(contenders: Mapping[str, tuple[Work, float]], device: torch.device, rounds: int) -> dict[str, list[float]]:
    """The rate of each contender in each round, after two rounds to warm up (the second, since compilers look twice);
    without those that fail.

    Args:
        contenders: what does a round, and how much that is.
        device: that they compute on.
        rounds: of each.
    """
    found = {name: list[float]() for name in contenders}
    for i in range(rounds + 2):
        names = [*found]
        for name in names[i % len(names) :] + names[: i % len(names)]:
            work, amount = contenders[name]
            gc.collect()
            wait(device)
            started = time.perf_counter()
            try:
                work()
            except Exception:  # it does not keep the others from being measured
                traceback.print_exc()
                print(f"{name}: left out")
                del found[name]
                continue
            wait(device)
            seconds = time.perf_counter() - started
            if i == 0:
                print(f"{name}: first round {seconds:.1f} s", flush=True)
            if i > 1:
                found[name].append(amount / seconds)
    return found


def ratio(found: Mapping[str, Sequence[float]], ours: str, theirs: str, **wanted: Any) -> list[Line]:
    """Our rate over theirs, round by round; nothing where one of the two has failed."""
    if not {ours, theirs} <= found.keys():
        return []
    shares = [a / b for a, b in zip(found[ours], found[theirs], strict=True)]
    note = f"{min(shares):.2f} to {max(shares):.2f} in {len(shares)} rounds"
    return [Line(f"{ours} vs. {theirs}", median(shares), "ratio", note=note, **wanted)]


def rate_lines(found: Mapping[str, Sequence[float]], unit: str) -> list[Line]:
    """The rate of each contender."""
    return [Line(name, median(of_one), unit) for name, of_one in found.items()]


# Networks


class PlainGPT(nn.Module):
    """GPT-2's network as one would write it for speed: pre-norm blocks with one product for queries, keys and values,
    torch's causal attention, and the loss of all logits at once."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.heads = s.heads
        self.tokens, self.places = nn.Embedding(s.vocab, s.d_model), nn.Embedding(s.length, s.d_model)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm1": nn.LayerNorm(s.d_model),
                    "qkv": nn.Linear(s.d_model, 3 * s.d_model),
                    "out": nn.Linear(s.d_model, s.d_model),
                    "norm2": nn.LayerNorm(s.d_model),
                    "up": nn.Linear(s.d_model, s.d_ff),
                    "down": nn.Linear(s.d_ff, s.d_model),
                }
            )
            for _ in range(s.layers)
        )
        self.norm = nn.LayerNorm(s.d_model)
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """The mean loss of the next tokens."""
        return peers.loss_of_logits(self.logits(tokens), tokens)

    def logits(self, tokens: Tensor) -> Tensor:
        """Of the token after each."""
        rows, length = tokens.shape
        x = self.tokens(tokens) + self.places.weight[:length]
        for block in self.blocks:
            assert isinstance(block, nn.ModuleDict)
            qkv = block["qkv"](block["norm1"](x)).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(*qkv.unbind(0), is_causal=True)
            x = x + block["out"](y.transpose(1, 2).flatten(2))
            x = x + block["down"](F.gelu(block["up"](block["norm2"](x)), approximate="tanh"))
        return F.linear(self.norm(x), self.tokens.weight)


def half_bart(s: peers.NetworkSizes) -> Any:
    """BART's network of half as many layers on each side, as its base has."""
    return peers.make_bart(s, s.layers // 2)


def training_steps(network: nn.Module, losses: Sequence[Callable[[], Tensor]], device: torch.device) -> Work:
    """A round of steps in bf16 autocast."""
    return peers.training(network, peers.our_optimizer(network), losses, torch.bfloat16, device.type)


# What is measured


def card(device: torch.device) -> list[Line]:
    """What the card itself does: products of large matrices, and copies."""
    size, found = (8192, list[Line]()) if device.type == "cuda" else (256, list[Line]())
    sheet = sheet_of(device)
    for name, dtype, tf32 in (
        ("float32", torch.float32, False), ("TF32", torch.float32, True), ("float16", torch.float16, False),
        ("bfloat16", torch.bfloat16, False),
    ):  # fmt: skip
        torch.backends.cuda.matmul.allow_tf32 = tf32
        a, b = torch.randn(2, size, size, device=device, dtype=dtype).unbind()
        rate = median(rates({name: (partial(torch.matmul, a, b), 2.0 * size**3)}, device, 9)[name])
        note = f"{rate / sheet:.0%} of the data sheet's rate" if sheet and name == "bfloat16" else ""
        found.append(Line(f"matrix products of {size} x {size}, {name}", rate / 1e12, "TFLOP/s", note=note))
    torch.backends.cuda.matmul.allow_tf32 = False
    x = torch.empty(2**30 if device.type == "cuda" else 2**20, dtype=torch.uint8, device=device)
    y = torch.empty_like(x)
    rate = median(rates({"copy": (lambda: y.copy_(x), 2.0 * x.numel())}, device, 9)["copy"])
    return [*found, Line("memory copies, bytes read and written", rate / 1e12, "TB/s")]


def sheet_of(device: torch.device) -> float | None:
    """Dense bf16 FLOPs per second of the card's data sheet; None: it is not known."""
    if device.type != "cuda":
        return None
    known = gpu_called(torch.cuda.get_device_name(device))
    return None if known is None else known.half


def decoder(device: torch.device) -> list[Line]:
    """Training GPT-2 124M in bf16 on texts of 1,024 tokens."""
    s = sizes_for(device)
    batches = torch.randint(3, s.vocab, (s.steps, s.rows, s.length), device=device).unbind()

    def their_loss(call: Any, tokens: Tensor) -> Tensor:
        loss: Tensor = call(input_ids=tokens, labels=tokens).loss
        return loss

    model = peers.make_gpt2(s)
    eager, compiled = (peers.ours_of(model, "language_modeling", device) for _ in range(2))
    compiled.compile_parts(dynamic=False)
    plain, theirs = PlainGPT(s).to(device), model.to(device).train()
    networks: dict[str, tuple[nn.Module, Callable[[Tensor], Tensor]]] = {
        "Triptych": (eager, peers.OurNextTokenLoss(eager, batches[0])),
        "Triptych, compiled": (compiled, peers.OurNextTokenLoss(compiled, batches[0])),
        "a plain GPT, compiled": (plain, torch.compile(plain)),
        "transformers, compiled": (theirs, partial(their_loss, torch.compile(theirs))),
    }
    amount = float(s.steps * s.rows * s.length)
    work = {
        name: (training_steps(network, [partial(loss, batch) for batch in batches], device), amount)
        for name, (network, loss) in networks.items()
    }
    found = rates(work, device, s.rounds)
    ours = max((name for name in found if name.startswith("Triptych")), key=lambda name: median(found[name]))
    lines = [*rate_lines(found, "tokens/s"), *ratio(found, ours, "a plain GPT, compiled", asked=1.05, aim=1.15)]
    lines += ratio(found, ours, "transformers, compiled")
    _, others = count_parameters(eager)
    flops = 6 * (others + s.vocab * s.d_model) + 12 * s.layers * s.d_model * s.length
    if sheet := sheet_of(device):
        note = "6 N + 12 L d T FLOPs per token (Chowdhery et al. 2022, appendix B); N includes the output layer"
        share = 100 * median(found[ours]) * flops / sheet
        lines.append(Line(f"{ours}, fraction of the data sheet's bf16 rate", share, "%", asked=42, aim=50, note=note))
    return lines


def texts(s: Sizes, *, pairs: bool) -> list[EncodedExample]:
    """Texts of log-normal lengths, the median a quarter of the longest, in the order of their arrival."""
    generator, found = np.random.default_rng(0), []
    for drawn in generator.lognormal(np.log(s.length / 4), 0.7, s.texts):
        source, target = (
            generator.integers(3, s.vocab, int(np.clip(round(drawn * other), 8, s.length)))
            for other in (1.0, generator.uniform(0.8, 1.25))
        )
        if pairs:
            found.append(EncodedExample(np.append(peers.START, target[:-1]), target, source))
        else:
            found.append(EncodedExample(source, generator.integers(0, peers.CLASSES, 1)))
    return found


def layouts(items: Sequence[EncodedExample], s: Sizes, device: torch.device) -> dict[str, list[Batch]]:
    """The same texts packed as ``triptych train`` packs them, padded by length, and padded in the order of arrival."""
    size = 4 * s.rows
    bucketed, arrived = peers.batches_by_step(items, StepSize(size)), peers.in_turn(items, size)
    batches = {
        "packed": [collate(examples, packed=True) for examples in bucketed],
        "sorted": [collate(examples) for examples in bucketed],
        "in order of arrival": [collate(examples) for examples in arrived],
    }
    return {name: [batch.to(device) for batch in found] for name, found in batches.items()}


def unequal(device: torch.device, make: Callable[[Sizes], Any], task: str) -> list[Line]:
    """Training on texts of unequal length: ours packed, against ``transformers`` padded, and at its best."""
    s = sizes_for(device)
    our_loss, their_loss = peers.LOSSES[task]
    items = texts(s, pairs=task == "translation")
    batches, amount = layouts(items, s, device), float(sum(item.size for item in items))
    model = make(s)
    work: dict[str, tuple[Work, float]] = {}
    for name, layout, compiles in (
        ("Triptych, packed", "packed", False),
        ("Triptych, packed and compiled", "packed", True),
        ("Triptych, bucketed", "sorted", False),
        ("Triptych, bucketed and compiled", "sorted", True),
    ):
        network = peers.ours_of(model, task, device)
        if compiles:
            network.compile_parts(dynamic=True)
        losses = [partial(our_loss, network, batch) for batch in batches[layout]]
        work[name] = training_steps(network, losses, device), amount
    for name, layout, compiles in (
        ("transformers, padded", "in order of arrival", False),
        ("transformers, sorted", "sorted", False),
        ("transformers, sorted and compiled", "sorted", True),
    ):
        theirs = make(s).to(device).train()
        call = torch.compile(theirs, dynamic=True) if compiles else theirs
        work[name] = (
            training_steps(theirs, [partial(their_loss, call, batch) for batch in batches[layout]], device),
            amount,
        )
    found = rates(work, device, s.rounds)
    ours, best = (
        max((name for name in found if name.startswith(whose)), key=lambda name: median(found[name]))
        for whose in ("Triptych", "transformers")
    )
    return [
        *rate_lines(found, "non-padding tokens/s"),
        *ratio(found, ours, "transformers, padded", asked=2.0, aim=2.5),
        *ratio(found, ours, best, asked=1.1, aim=1.2),
    ]


def encoder(device: torch.device) -> list[Line]:
    """Training BERT base with classes in bf16 on texts of unequal length."""
    return unequal(device, peers.make_bert, "classification")


def full(device: torch.device) -> list[Line]:
    """Training BART base with label smoothing in bf16 on pairs of texts of unequal length."""
    return unequal(device, half_bart, "translation")


def decoding(device: torch.device) -> list[Line]:
    """Decoding with GPT-2 124M, one prompt and 16, in bf16."""
    s, lines = sizes_for(device), list[Line]()
    half = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = peers.make_gpt2(s).eval().to(device, half)
    network: Any = peers.ours_of(model.float(), "language_modeling", device).eval().to(half)
    model = model.to(half)
    for rows in (1, 16):
        prompt = torch.randint(3, s.vocab, (rows, 16), device=device, generator=torch.Generator(device).manual_seed(0))
        mine = partial(peers.our_greedy, network, prompt, s.new_tokens)
        theirs = partial(peers.their_greedy, model, prompt, torch.ones_like(prompt), s.new_tokens)
        amount = float(rows * s.new_tokens)
        names = f"Triptych, {rows}", f"transformers, {rows}", f"transformers, static cache compiled, {rows}"
        work: dict[str, tuple[Work, float]] = {names[0]: (mine, amount), names[1]: (theirs, amount)}
        if device.type == "cuda":  # on CPUs transformers does not compile its loop
            work[names[2]] = partial(theirs, cache_implementation="static"), amount
        found = rates(work, device, s.rounds)
        lines += [*rate_lines(found, "tokens/s"), *ratio(found, names[0], names[1], asked=5.0, aim=7.0)]
        lines += ratio(found, names[0], names[2], asked=1.2, aim=1.5)
    return lines


def beams(device: torch.device) -> list[Line]:
    """Beam search with BART base in bf16, 5 beams."""
    s, half = sizes_for(device), torch.bfloat16 if device.type == "cuda" else torch.float32
    model = half_bart(s).eval()
    network: Any = peers.ours_of(model, "translation", device).eval().to(half)
    model = model.to(device, half)
    generator = np.random.default_rng(0)
    source, mask = pad([generator.integers(3, s.vocab, n) for n in generator.integers(8, s.length // 4, 8)], peers.PAD)
    source, mask = source.to(device), mask.to(device)
    prompt = torch.full((8, 1), peers.START, device=device)
    mine = partial(peers.our_beams, network, source, mask, prompt, s.new_tokens, 5)
    theirs = partial(peers.their_beams, model, source, mask.long(), s.new_tokens, 5)
    work: dict[str, tuple[Work, float]] = {"Triptych, 5 beams": (mine, 8.0), "transformers, 5 beams": (theirs, 8.0)}
    static = "transformers, 5 beams, static cache compiled"
    if device.type == "cuda":
        work[static] = partial(theirs, cache_implementation="static"), 8.0
    found = rates(work, device, s.rounds)
    lines = [*rate_lines(found, "texts/s"), *ratio(found, "Triptych, 5 beams", "transformers, 5 beams", asked=5, aim=7)]
    return lines + ratio(found, "Triptych, 5 beams", static, asked=1.2, aim=1.5)
