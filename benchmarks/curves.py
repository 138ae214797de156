"""What training costs as the network and its texts grow: see README.md here."""

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

import torch
from page import check_output
from rich.progress import Progress

from triptych.models import DecoderOnly, EncoderOnly
from triptych.models.flops import TrainingCost, count_parameters
from triptych.nn import (
    Embedding,
    FeedForward,
    Head,
    LinformerAttention,
    LongformerAttention,
    MultiHeadAttention,
    PerformerAttention,
    ReformerAttention,
    Rotary,
    Stack,
    Targets,
)
from triptych.storage.atomic import write_text
from triptych.training.hardware import hardware, keep_freed_memory
from triptych.training.optimizers import AdamW

VOCAB, HEAD_DIM, WINDOW = 8192, 64, 256
ATTENTION: dict[str, Callable[..., MultiHeadAttention]] = {
    "softmax": MultiHeadAttention,
    "longformer": LongformerAttention,
    "performer": partial(PerformerAttention, num_features=256),
    "reformer": partial(ReformerAttention, num_buckets=64, num_hashes=4, bucket_window=32),
    "linformer": partial(LinformerAttention, projected_length=256),
}
"""Each attends to about 256 keys, or has 256 features."""
MEMORY, SECONDS = 12.0, 60.0
"""GiB, and seconds per step, beyond which a point is left out."""
TOO_MUCH = 77
"""Exit status of a process that took more memory."""


@dataclass(frozen=True)
class Work:
    """A step of a decoder, or an encoder, with rotary positions and d_ff = 4 d_model.

    Attributes:
        d_model: its width.
        num_layers: its depth.
        batch: texts per step.
        length: tokens of each.
        window: that each layer looks back; None: everything.
        attention: a name of ``ATTENTION``.
        causal: whether it is a decoder.
    """

    d_model: int = 256
    num_layers: int = 4
    batch: int = 8
    length: int = 256
    window: int | None = None
    attention: str = "softmax"
    causal: bool = True

    def network(self) -> DecoderOnly | EncoderOnly:
        """A new one."""
        stack = Stack(
            num_layers=self.num_layers,
            d_model=self.d_model,
            num_heads=self.d_model // HEAD_DIM,
            d_ff=4 * self.d_model,
            causal=self.causal,
            max_length=self.length,
            position=Rotary,
            attention=partial(ATTENTION[self.attention], sliding_windows=[self.window])
            if self.window
            else ATTENTION[self.attention],
            feed_forward=partial(FeedForward, activation="gelu"),
        )
        embedding = Embedding(vocab_size=VOCAB, d_model=self.d_model)
        head = Head(d_model=self.d_model, num_outputs=VOCAB)
        if self.causal:
            return DecoderOnly(embedding=embedding, decoder=stack, head=head, tie_word_embeddings=True)
        return EncoderOnly(embedding=embedding, encoder=stack, head=head, tie_word_embeddings=True)


LENGTHS = range(8, 16)
STANDARD = Work()
LONG = replace(STANDARD, batch=1)
CURVES: dict[str, tuple[str, list[Work]]] = {
    "width": ("d_model", [replace(STANDARD, d_model=2**n) for n in range(6, 12)]),
    "depth": ("num_layers", [replace(STANDARD, num_layers=2**n) for n in range(6)]),
    "batch": ("batch", [replace(STANDARD, batch=2**n) for n in range(8)]),
    "length": ("length", [replace(LONG, length=2**n) for n in range(7, 16)]),
    "windows": ("length", [replace(LONG, length=2**n, window=WINDOW) for n in range(7, 16)]),
    "longformer": ("length", [replace(LONG, length=2**n, window=WINDOW, attention="longformer") for n in LENGTHS]),
    "performer": ("length", [replace(LONG, length=2**n, attention="performer") for n in LENGTHS]),
    "reformer": ("length", [replace(LONG, length=2**n, attention="reformer") for n in LENGTHS]),
    "encoder": ("length", [replace(LONG, length=2**n, causal=False) for n in LENGTHS]),
    "linformer": ("length", [replace(LONG, length=2**n, attention="linformer", causal=False) for n in LENGTHS]),
}
TITLES = {
    "width": "Width: d_model, 8 texts of 256 tokens",
    "depth": "Depth: num_layers, 8 texts of 256 tokens",
    "batch": "Batch: texts of 256 tokens",
    "length": "Length: tokens of one text, full attention",
    "windows": f"Length: tokens of one text, a window of {WINDOW} in each layer",
    "longformer": f"Length: tokens of one text, Longformer: a window of {WINDOW} and one global token",
    "performer": "Length: tokens of one text, Performer: 256 features",
    "reformer": "Length: tokens of one text, Reformer: 4 rounds of 64 buckets, 32 tokens back in each",
    "encoder": "Length: tokens of one text, an encoder with full attention",
    "linformer": "Length: tokens of one text, an encoder with Linformer: 256 keys",
}


def anonymous() -> float:
    """GiB of this process that are not the content of files, now."""
    status = Path("/proc/self/status").read_text()
    return float(status.partition("RssAnon:")[2].split()[0]) / 2**20


def measure(work: Work, steps: int) -> dict[str, float]:
    """Runs the steps. Returns the seconds of the median one, the first left out; the most GiB of anonymous memory,
    seen every 5 ms, beyond what was there before the network; its parameters; and the FLOPs of a step.

    Args:
        work: what a step is.
        steps: how many, after a first one.
    """
    keep_freed_memory()
    with torch.device("meta"):
        on_paper = work.network()
    flops = TrainingCost(on_paper).of_batch((work.batch, work.length, 0))
    before, peak, ended = anonymous(), 0.0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not ended.wait(0.005):
            peak = max(peak, anonymous())
            if peak - before > MEMORY:
                os._exit(TOO_MUCH)

    watcher = threading.Thread(target=watch)
    watcher.start()
    network = work.network()
    optimizer = AdamW(lr=1e-4, beta1=0.9, beta2=0.98, eps=1e-9, weight_decay=0.01)(network)
    tokens = torch.randint(VOCAB, (work.batch, work.length))
    targets, seconds = Targets(torch.arange(tokens.numel()), tokens.flatten(), 0.0), []
    for _ in range(1 + steps):
        start = time.perf_counter()
        network(tokens, targets=targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - start)
    ended.set()
    watcher.join()
    found = {"seconds": median(seconds[1:]), "gib": peak - before, "flops": flops}
    return found | {"params": count_parameters(on_paper)[0]}


def measured(work: Work, steps: int) -> dict[str, float] | None:
    """``measure`` in a separate process; None: it took too long, or the memory that there is.

    Args:
        work: what a step is.
        steps: how many, after a first one.
    """
    command = [sys.executable, __file__, "--one", json.dumps(asdict(work)), "--steps", str(steps)]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=SECONDS * (1 + steps), check=False)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode == TOO_MUCH:
        return None
    done.check_returncode()
    found: dict[str, float] = json.loads(done.stdout)
    return found


def table_of(name: str, found: list[tuple[Work, dict[str, float] | None]]) -> str:
    """A table of the page.

    Args:
        name: of the curve.
        found: its points.
    """
    key, _ = CURVES[name]
    header = [f"`{key}`", "parameters", "tokens/s", "GFLOP/s", "GiB", "KiB per token"]
    lines = [header, ["---"] * len(header)]
    for work, point in found:
        if point is None:
            lines.append([f"{getattr(work, key):,}", *["left out"] * 5])
            continue
        tokens = work.batch * work.length
        rate = point["flops"] / point["seconds"] / 1e9
        size = f"{point['params'] / 1e6:,.1f} M"
        cells = [size, f"{tokens / point['seconds']:,.0f}", f"{rate:,.0f}", f"{point['gib']:.2f}"]
        lines.append([f"{getattr(work, key):,}", *cells, f"{point['gib'] * 2**20 / tokens:,.0f}"])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Measures the curves that are asked for, and prints and writes a table of each; after a point that takes too much,
    larger ones are not tried."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--curves", default=",".join(CURVES), help=f"some of {','.join(CURVES)}")
    parser.add_argument("--steps", type=int, default=5, help="of each point, after one to warm up")
    parser.add_argument("--points", type=int, help="only the first so many of each curve")
    parser.add_argument("--output", type=Path, help="the page")
    parser.add_argument("--one", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(Work(**given.one), given.steps)))
        return
    chosen = [name.strip() for name in given.curves.split(",")]
    if unknown := [name for name in chosen if name not in CURVES]:
        parser.error(f"--curves: {', '.join(unknown)}; expected some of {', '.join(CURVES)}")
    if given.steps < 1:
        parser.error(f"--steps={given.steps}: expected at least 1")
    if given.points is not None and given.points < 1:
        parser.error(f"--points={given.points}: expected at least 1")
    check_output(parser, given.output)
    parts = [
        "# What training costs as the work grows",
        "`python benchmarks/curves.py` wrote this page; [README.md](README.md#cost-as-the-work-grows) describes the "
        'method. The column "GiB" is the peak memory of training, weights included. The column "KiB per token" is this '
        'memory divided by the number of tokens per step. Points marked "left out" would need more than '
        f"{MEMORY:g} GiB or {SECONDS:g} seconds per step.",
        f"{hardware(torch.device('cpu'))}, torch {torch.__version__}, float32. Rates are medians of "
        f"{given.steps} steps.",
    ]
    with Progress() as progress:
        for name in chosen:
            works = CURVES[name][1][: given.points]
            found: list[tuple[Work, dict[str, float] | None]] = []
            for work in progress.track(works, description=name):
                fits = not found or found[-1][1] is not None
                found.append((work, measured(work, given.steps) if fits else None))
            parts += [f"## {TITLES[name]}", table_of(name, found)]
            progress.console.print("\n".join(parts[-2:]), soft_wrap=True, highlight=False)
            if given.output is not None:
                write_text(given.output, "\n\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
