"""Recurrent networks next to attention: tokens per second in training, and milliseconds per generated token.

`python benchmarks/recurrence.py --output benchmarks/recurrence.md` on an idle machine; see README.md here.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import torch
from page import check_output
from rich.progress import track

from triptych.models import DecoderOnly
from triptych.nn import Embedding, Head, MinGRU, MultiHeadAttention, Position, Recurrence, Rotary, Stack
from triptych.storage.atomic import write_text
from triptych.training.hardware import hardware

D_MODEL, VOCAB, TOKENS = 128, 256, 4096
KINDS: dict[str, Callable[..., MultiHeadAttention]] = {
    "multi_head": MultiHeadAttention,
    "tanh": partial(Recurrence, cell="tanh"),
    "lstm": partial(Recurrence, cell="lstm"),
    "gru": partial(Recurrence, cell="gru"),
    "mingru": MinGRU,
}
LENGTHS, PLACES = (64, 512, 4096), (16, 512, 2048)


def network(kind: str) -> DecoderOnly:
    """A decoder of two layers; attention has rotary positions."""
    position = Rotary if kind == "multi_head" else Position
    stack = Stack(
        num_layers=2,
        d_model=D_MODEL,
        num_heads=4,
        d_ff=4 * D_MODEL,
        causal=True,
        attention=KINDS[kind],
        position=position,
        max_length=max(LENGTHS),
    )
    head = Head(d_model=D_MODEL, num_outputs=VOCAB)
    return DecoderOnly(embedding=Embedding(vocab_size=VOCAB, d_model=D_MODEL), decoder=stack, head=head)


def train(net: DecoderOnly, length: int) -> float:
    """Tokens per second of a forward and a backward pass over ``TOKENS`` tokens."""
    tokens = torch.randint(VOCAB, (TOKENS // length, length))
    start = time.perf_counter()
    net.train()(tokens).logsumexp(-1).sum().backward()
    return TOKENS / (time.perf_counter() - start)


@torch.inference_mode()
def generate(net: DecoderOnly, place: int) -> float:
    """Milliseconds per token of one text, for 32 tokens after so many."""
    step = net.eval().continuation(None, capacity=place + 32)
    step(torch.randint(VOCAB, (1, place)))
    token = torch.randint(VOCAB, (1, 1))
    start = time.perf_counter()
    for _ in range(32):
        step(token)
    return 1000 * (time.perf_counter() - start) / 32


def measure(rounds: int) -> list[str]:
    """The tables, medians of rounds in which the networks take turns."""
    nets = {kind: network(kind) for kind in KINDS}
    lines = []
    for title, work, sizes, digits in (
        ("Training: tokens per second, by tokens per text", train, LENGTHS, 0),
        ("Generation: milliseconds per token of one text, by position", generate, PLACES, 2),
    ):
        lines += [f"## {title}", "", f"| threads | tokens | {' | '.join(KINDS)} |", "| --- " * (len(KINDS) + 2) + "|"]
        for threads in (1, 2):
            torch.set_num_threads(threads)
            for size in sizes:
                found: dict[str, list[float]] = {kind: [] for kind in KINDS}
                for number in track(range(rounds + 1), f"{work.__name__}, {threads} threads, {size} tokens"):
                    for kind, net in nets.items():
                        value = work(net, size)
                        found[kind] += [value] * (number > 0)
                cells = (f"{median(values):,.{digits}f}" for values in found.values())
                lines.append(f"| {threads} | {size:,} | {' | '.join(cells)} |")
        lines.append("")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="measured rounds; one more is left out")
    parser.add_argument("--output", type=Path, help="the page; otherwise it is printed")
    options = parser.parse_args()
    check_output(parser, options.output)
    sizes = ", ".join(f"{kind} {sum(p.numel() for p in network(kind).parameters()):,}" for kind in KINDS)
    cpu = hardware(torch.device("cpu"))
    page = [
        "# Recurrence next to attention",
        "",
        "`python benchmarks/recurrence.py` wrote this page; [README.md](README.md#recurrence) describes the method.",
        "",
        f"{cpu}, torch {torch.__version__}, float32. Two layers of width {D_MODEL}; parameters: {sizes}.",
        "",
        *measure(options.rounds),
    ]
    text = "\n".join(page)
    print(text) if options.output is None else write_text(options.output, text)


if __name__ == "__main__":
    main()
