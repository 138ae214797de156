"""Full attention and windows, the longer the text: see README.md here."""

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from statistics import median

import torch

from triptych.models import DecoderOnly
from triptych.nn import Embedding, Head, Stack, Targets

WINDOW, VOCAB = 256, 256
LENGTHS = [2**n for n in range(7, 16)]
MEMORY, SECONDS = 12.0, 60.0
"""GiB, and seconds of an update in the mean, beyond which a text is left out."""


def anonymous() -> float:
    """GiB of this process that are not the content of files, now."""
    status = Path("/proc/self/status").read_text()
    return float(status.partition("RssAnon:")[2].split()[0]) / 2**20


def measure(length: int, window: int | None, updates: int) -> dict[str, float]:
    """Trains a decoder on one text. Returns the tokens a second of the median update, the first left out; and the most
    GiB of anonymous memory, seen every 5 ms, beyond what was there before the network."""
    before, peak, ended = anonymous(), 0.0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not ended.wait(0.005):
            peak = max(peak, anonymous())
            if peak - before > MEMORY:
                os._exit(1)

    watcher = threading.Thread(target=watch)
    watcher.start()
    stack = Stack(
        num_layers=4, d_model=256, num_heads=4, d_ff=1024, causal=True, windows=[window], position="rotary",
        activation="gelu",
    )  # fmt: skip
    embedding, head = Embedding(vocab_size=VOCAB, d_model=256), Head(d_model=256, num_outputs=VOCAB)
    network = DecoderOnly(embedding=embedding, decoder=stack, head=head, tie_output=True)
    optimizer = torch.optim.AdamW(network.parameters())
    tokens, places = torch.randint(VOCAB, (1, length)), torch.arange(length)
    seconds = []
    for _ in range(1 + updates):
        start = time.perf_counter()
        network(tokens, targets=Targets(places, tokens[0], 0.0)).backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - start)
    ended.set()
    watcher.join()
    return {"tokens/s": length / median(seconds[1:]), "GiB": peak - before}


def measured(length: int, window: int | None, updates: int) -> dict[str, float] | None:
    """``measure`` in a process of its own; None: it took too long, or the memory that there is."""
    command = [sys.executable, __file__, "--one", str(length), str(window or 0), "--updates", str(updates)]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=SECONDS * (1 + updates), check=True)
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError):
        return None
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    """Prints a row for each length; after one that takes too much, longer ones are not tried."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lengths", type=int, nargs="*", default=LENGTHS)
    parser.add_argument("--updates", type=int, default=5)
    parser.add_argument("--one", type=int, nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        length, window = given.one
        print(json.dumps(measure(length, window or None, given.updates)))
        return
    print(f"| length | full: tokens/s | GiB | windows of {WINDOW}: tokens/s | GiB |\n|---|---|---|---|---|", flush=True)
    goes_on = {None: True, WINDOW: True}
    for length in sorted(given.lengths):
        cells = []
        for window in goes_on:
            found = measured(length, window, given.updates) if goes_on[window] else None
            if found is None:
                goes_on[window] = False
                cells += ["left out", "left out"]
                continue
            cells += [f"{found['tokens/s']:,.0f}", f"{found['GiB']:.2f}"]
        print(f"| {length} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
