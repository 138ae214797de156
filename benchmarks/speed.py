"""How fast Triptych is compared with other libraries on the same work: see README.md here. Run by `make bench`."""

import argparse
import gc
import json
import math
import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

import speed_loop
import speed_predict
import speed_rows
import torch
from page import check_output
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from speed_rows import Row
from torch.profiler import ProfilerActivity, profile

from triptych.storage.atomic import write_text
from triptych.training.hardware import hardware, keep_freed_memory

LIBRARIES = ("triptych", "torch", "lightning", "transformers", "x-transformers")


def rows_of(compiled: bool) -> dict[str, Callable[[], Row]]:
    """The tables of the page, by the name that --rows knows; each is made when its turn comes.

    Args:
        compiled: whether compiled peers are measured too.
    """
    return {
        "decoder": partial(speed_rows.decoder, compiled=compiled),
        "bfloat16": partial(speed_rows.decoder, dtype=torch.bfloat16, compiled=compiled),
        "encoder": speed_rows.encoder,
        "full": speed_rows.full,
        "greedy": partial(speed_rows.greedy, 1),
        "greedy16": partial(speed_rows.greedy, 16),
        "beam": speed_rows.beam,
        "classes": partial(speed_predict.predict_classes, 2000),
        "copies": partial(speed_predict.predict_copies, 1000),
        "loop": partial(speed_loop.loop, 128),
        "loop8": partial(speed_loop.loop, 8),
    }


def measure(row: Row, rounds: int, tick: Callable[[], None]) -> dict[str, list[speed_rows.Round]]:
    """The rounds of each contender after one to warm up. They take turns, and each round begins with another one.

    Args:
        row: the contenders.
        rounds: how many of each.
        tick: called after each of them.
    """
    names, found = list(row.rounds), {name: list[speed_rows.Round]() for name in row.rounds}
    for i in range(rounds + 1):
        first = i % len(names)
        for name in names[first:] + names[:first]:
            gc.collect()
            result = row.rounds[name]()
            if i:
                found[name].append(result)
            tick()
    return found


@contextmanager
def silent() -> Iterator[None]:
    """Standard error goes nowhere, that of C++ too: the profiler says when it starts and stops."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def peak_of(run: Callable[[], object]) -> int:
    """The most bytes that torch had allocated at once on the CPU, beyond what was there before; what matrix libraries
    allocate for themselves is not seen.

    Args:
        run: what allocates.
    """
    with silent(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    results = profiler.profiler.kineto_results
    events = [e for e in results.events() if e.name() == "[memory]" and e.device_index() < 0]
    allocated = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        allocated += event.nbytes()
        peak = max(peak, allocated)
    return peak


def ratio(ours: Sequence[speed_rows.Round], theirs: Sequence[speed_rows.Round]) -> dict[str, float]:
    """The rate of the first over that of the second in each round: median, least and largest.

    Args:
        ours: rounds.
        theirs: the rounds in turn with them.
    """
    found = [(a.amount / a.seconds) / (b.amount / b.seconds) for a, b in zip(ours, theirs, strict=True)]
    return {"median": median(found), "min": min(found), "max": max(found)}


def record_of(name: str, row: Row, found: dict[str, list[speed_rows.Round]]) -> dict[str, Any]:
    """What is known of a table, as plain containers.

    Args:
        name: of the row.
        row: its contenders.
        found: their rounds.
    """
    floor = found[row.floor] if row.floor else None
    contenders = {}
    for contender, rounds in found.items():
        contenders[contender] = {
            "rate": median(r.amount / r.seconds for r in rounds),
            "seconds": [r.seconds for r in rounds],
            "amount": rounds[0].amount,
            "share_of_floor": None if floor is None else ratio(rounds, floor)["median"],
            "bytes_per_token": None,
        }
        if contender in row.steps:
            tokens = rounds[0].amount / row.steps[contender]
            contenders[contender]["bytes_per_token"] = peak_of(row.rounds[contender]) / tokens
    asked = {(a.ours, a.peer): a.ratio for a in row.asked}
    ratios = [
        {"ours": ours, "peer": peer, "asked": asked.get((ours, peer)), **ratio(found[ours], found[peer])}
        for ours in found
        for peer in found
        if ours.startswith("Triptych") and not peer.startswith("Triptych") and peer != row.floor
    ]
    return {
        "name": name,
        "title": row.title,
        "unit": row.unit,
        "contenders": contenders,
        "ratios": ratios,
        "floor_flops": row.flops,
        "floor_flops_per_s": None if floor is None else median(row.flops / r.seconds for r in floor),
        "facts": row.facts,
    }


def machine(rounds: int, *, keeps_memory: bool) -> dict[str, Any]:
    """Where and how it was measured.

    Args:
        rounds: of each contender.
        keeps_memory: whether freed memory was kept.
    """
    versions = {}
    for name in LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    return {
        "cpu": hardware(torch.device("cpu")), "cores": os.cpu_count(), "threads": torch.get_num_threads(),
        "load": list(os.getloadavg()), "python": platform.python_version(), "versions": versions, "rounds": rounds,
        "keeps_freed_memory": keeps_memory, "matrix_flops_per_s": matrix_rates(),
    }  # fmt: skip


def matrix_rates() -> dict[str, float]:
    """Operations per second of products of large square matrices, by their precision."""
    dtypes = (torch.float32, torch.bfloat16)
    return {str(dtype).removeprefix("torch."): speed_rows.matrix_rate(dtype) for dtype in dtypes}


def figure(value: float) -> str:
    """With three digits that say something: 0.0512, 1.23, 45.6, 7,890."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    return f"{value:,.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def tables_of(record: dict[str, Any]) -> list[tuple[list[str], list[list[str]]]]:
    """The two tables of a row, as texts: the rates, and the ratios.

    Args:
        record: see ``record_of``.
    """
    contenders = record["contenders"]
    has_floor = record["floor_flops_per_s"] is not None
    has_memory = any(c["bytes_per_token"] is not None for c in contenders.values())
    header = ["", record["unit"]]
    header += ["fraction of the products' rate"] * has_floor + ["peak memory of a step, KiB per token"] * has_memory
    rates = []
    for name, contender in contenders.items():
        cells = [name, figure(contender["rate"])]
        if has_floor:
            cells.append(f"{contender['share_of_floor']:.0%}")
        if has_memory:
            memory = contender["bytes_per_token"]
            cells.append("" if memory is None else figure(memory / 1024))
        rates.append(cells)
    ratios = [
        [
            f"{r['ours']} over {r['peer']}",
            f"{r['median']:.2f} ({r['min']:.2f} ... {r['max']:.2f})",
            "" if r["asked"] is None else f"{r['asked']:g}",
            "" if r["asked"] is None else "yes" if r["median"] >= r["asked"] else "no",
        ]
        for r in record["ratios"]
    ]
    return [(header, rates), (["", "ratio: median (min ... max)", "required: at least", "reached"], ratios)]


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """A table of a page."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def page_of(facts: dict[str, Any], records: list[dict[str, Any]]) -> str:
    """The page.

    Args:
        facts: of the machine.
        records: of the rows.
    """
    versions = ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
    rates = ", ".join(f"{rate / 1e9:.0f} in {dtype}" for dtype, rate in facts["matrix_flops_per_s"].items())
    kept = "keeps freed memory, as in `triptych train`" if facts["keeps_freed_memory"] else "has its default settings"
    parts = [
        "# Speed",
        f'`{facts["command"]}` wrote this page; [README.md](README.md) describes the method. "Matrix products alone" '
        'is a reference that computes only the matrix products of the same work. "Required" is the ratio that the '
        "project aims for.",
        f"{facts['cpu']} (of {facts['cores']} cores); load average {facts['load'][0]:.1f} at the start; "
        f"Python {facts['python']}, {versions}. The tables show medians of {facts['rounds']} "
        f"rounds. Large square matrix products reach these rates in GFLOP/s: {rates}. "
        f"The allocator {kept}.",
    ]
    for record in records:
        parts.append(f"## {record['title']}")
        parts += [markdown(*table) for table in tables_of(record)]
        if record["floor_flops_per_s"] is not None:
            rate = figure(record["floor_flops_per_s"] / 1e9)
            said = f"The matrix products alone run at {rate} GFLOP/s."
            parts.append(" ".join([*record["facts"], said]))
        else:
            parts.append(" ".join(record["facts"]))
    return "\n\n".join(parts) + "\n"


def show(record: dict[str, Any], console: Console) -> None:
    """Prints the tables of a row."""
    for header, rows in tables_of(record):
        table = Table(*header, title=record["title"])
        for row in rows:
            table.add_row(*row)
        console.print(table)
    for fact in record["facts"]:
        console.print(fact)


def main() -> None:
    """Measures the rows that are asked for, prints them, and writes the page and the JSON file next to it."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = list(rows_of(False))
    parser.add_argument("--rows", default=",".join(names), help=f"some of {','.join(names)}")
    parser.add_argument("--rounds", type=int, default=9, help="of each contender, after one to warm up")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: all cores")
    parser.add_argument("--compile", action="store_true", help="peers by torch.compile too, which takes minutes more")
    parser.add_argument(
        "--plain-allocator", action="store_true", help="no contender keeps the memory that it frees (default: all do)"
    )
    parser.add_argument("--output", type=Path, help="the page; the JSON file is written next to it")
    arguments = parser.parse_args()
    chosen = [name.strip() for name in arguments.rows.split(",")]
    if unknown := [name for name in chosen if name not in names]:
        parser.error(f"--rows: {', '.join(unknown)}; expected some of {', '.join(names)}")
    if arguments.rounds < 1:
        parser.error(f"--rounds={arguments.rounds}: expected at least 1")
    if arguments.threads < 1:
        parser.error(f"--threads={arguments.threads}: expected at least 1")
    check_output(parser, arguments.output)

    torch.set_num_threads(arguments.threads)
    if not arguments.plain_allocator:
        keep_freed_memory()
    facts = machine(arguments.rounds, keeps_memory=not arguments.plain_allocator)
    options = f"--rows {','.join(chosen)} --rounds {arguments.rounds}"
    is_whole = chosen == names and arguments.rounds == parser.get_default("rounds") and arguments.compile
    facts["command"] = "make bench" if is_whole else f"python benchmarks/speed.py {options}"
    rows, records = rows_of(arguments.compile), []
    console = Console(file=sys.stdout)  # this one, also where a contender is given another
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        overall = progress.add_task("rows", total=len(chosen))
        for name in chosen:
            task = progress.add_task(name, total=None)
            row = rows[name]()
            progress.update(task, total=(arguments.rounds + 1) * len(row.rounds))
            found = measure(row, arguments.rounds, partial(progress.advance, task))
            records.append(record_of(name, row, found))
            facts["matrix_flops_per_s"] = {
                dtype: max(rate, facts["matrix_flops_per_s"][dtype]) for dtype, rate in matrix_rates().items()
            }
            show(records[-1], console)
            if arguments.output is not None:  # after each row: all of them take the better part of an hour
                write_text(arguments.output, page_of(facts, records))
                content = json.dumps({"machine": facts, "rows": records}, indent=2)
                write_text(arguments.output.with_suffix(".json"), content + "\n")
            progress.advance(overall)
    if arguments.output is not None:
        console.print(f"{arguments.output} and {arguments.output.with_suffix('.json').name} are written")


if __name__ == "__main__":
    main()
