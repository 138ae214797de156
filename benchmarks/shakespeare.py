"""Tiny Shakespeare after the processor time that nanoGPT's recipe for a CPU takes. See README.md here."""

import argparse
import json
import math
import os
import sys
import tempfile
import time
from pathlib import Path

import torch
from gpu_rows import PlainGPT, Sizes
from starts import measure
from torch import Tensor
from torch.nn.functional import cross_entropy

STEPS, ROWS, LENGTH, STRIDE, WARMUP = 2000, 12, 64, 16, 100
MOST, LEAST = 1e-3, 1e-4
"""Learning rates: https://github.com/karpathy/nanoGPT, config/train_shakespeare_char.py and the README's recipe for a
CPU: 4 layers, 4 heads, d_model 128, no dropout."""


def train_peer(text: Tensor, vocab: int) -> tuple[float, float, float]:
    """A bare loop of the recipe, which does not validate.

    Returns:
        Processor seconds, and nats a character of the last tenth: in blocks of 64; and each after 48 or more.
    """
    torch.manual_seed(1)
    sizes = Sizes(128, 4, 4, vocab, LENGTH + 1, ROWS, 0, 0, STEPS, 1)
    train, test = text[: int(0.9 * len(text))], text[int(0.9 * len(text)) :]
    begin = time.process_time()
    network = PlainGPT(sizes)
    matrices = [parameter for parameter in network.parameters() if parameter.ndim > 1]
    others = [parameter for parameter in network.parameters() if parameter.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=MOST, betas=(0.9, 0.99), fused=True)
    for step in range(STEPS):
        cosine = 0.5 * (1 + math.cos(math.pi * max(0, step - WARMUP) / (STEPS - WARMUP)))
        rate = MOST * step / WARMUP if step < WARMUP else LEAST + cosine * (MOST - LEAST)
        for group in optimizer.param_groups:
            group["lr"] = rate
        starts = torch.randint(len(train) - LENGTH, (ROWS,))
        loss = network(torch.stack([train[start : start + LENGTH + 1] for start in starts]))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
    taken = time.process_time() - begin
    return taken, read(network, test, LENGTH), read(network, test, STRIDE)


@torch.no_grad()
def read(network: PlainGPT, text: Tensor, stride: int) -> float:
    """Nats a character: of each window, which begins so many characters after the one before, the last ones count."""
    windows = text.unfold(0, LENGTH + 1, stride)
    total = 0.0
    for rows in windows.split(256):
        logits = network.logits(rows[:, :-1])[:, -stride:]
        total += cross_entropy(logits.flatten(0, 1), rows[:, -stride:].flatten(), reduction="sum").item()
    return total / (len(windows) * stride)


def train_ours(file: Path, overrides: list[str], folder: str) -> tuple[float, float]:
    """The command of the experiment, from its imports to its test.

    Args:
        overrides: of its settings.
        folder: for the run.

    Returns:
        Processor seconds, and nats a character of the last tenth.
    """
    triptych, data = [sys.executable, "-P", "-m", "triptych"], [f"data.dir={file.parent}", f"data.train={file.name}"]
    run = [*triptych, "train", "experiment=shakespeare/on_a_cpu", *data, *overrides, "run_dir=run", "logger=csv"]
    _, taken = measure(run, folder)
    summary = json.loads(Path(folder, "run", "summary.json").read_text())
    return taken, summary["metrics"]["test/loss"]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="input.txt of tiny Shakespeare")
    parser.add_argument("overrides", nargs="*", help="of the settings of the experiment")
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    characters = given.file.read_text()
    vocabulary = {character: number for number, character in enumerate(sorted(set(characters)))}
    text = torch.tensor([vocabulary[character] for character in characters])
    print("| one thread | processor, s | nats in blocks of 64 | each character after 48 at least |")
    print("|---|---|---|---|")
    peer, blocks, nats = train_peer(text, len(vocabulary))
    print(f"| nanoGPT's recipe in a bare loop | {peer:.0f} | {blocks:.3f} | {nats:.3f} |", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        ours, nats = train_ours(given.file.resolve(), given.overrides, folder)
    print(f"| triptych train experiment=shakespeare/on_a_cpu | {ours:.0f} | | {nats:.3f} |")


if __name__ == "__main__":
    main()
