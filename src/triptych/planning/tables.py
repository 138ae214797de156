"""What the doctor has to say, as tables for the terminal."""

from dataclasses import asdict

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from triptych.config import amount, counted, duration
from triptych.models.flops import count_parameters, parameters_by_part
from triptych.planning.findings import Findings, size
from triptych.planning.forecast import UTILISATION, Forecast, computed_seconds, measured_seconds
from triptych.planning.gpus import GPUS, Device
from triptych.planning.memory import USABLE, Footprint, smallest
from triptych.storage.redaction import Redactor

SHOWN = ("rtx-4090", "a100-40gb", "h100", "h200")
"""GPUs that a training is laid out on where none is named."""
COLOURS = {"ok": "green", "warning": "yellow", "error": "red"}
NAMES = {
    "weights": "weights and tables",
    "gradients": "gradients",
    "optimizer": "state of the optimizer",
    "average": "moving average",
    "copies": "copies of the matrices for autocast",
    "exchange": "exchange between processes",
    "activations": "activations",
    "logits": "logits at a time",
}


def show_forecast(forecast: Forecast, device: Device, *, is_here: bool, sharded: bool) -> None:
    """Prints what the training will be, the memory of each process, and on how many GPUs it fits.

    Args:
        is_here: whether that is this machine's.
        sharded: whether FSDP is configured.
    """
    console = Console()
    console.print(summary(forecast, device, is_here=is_here))
    rows = forecast.estimate.rows
    footprint = (forecast.memory.fsdp if sharded else forecast.memory.ddp)(forecast.world_size, rows)
    share = -(-rows // forecast.world_size)
    console.print(memory(footprint, f"{'FSDP, ' if sharded else ''}{counted(share, 'row')} of {lengths(forecast)}"))
    console.print(fits(forecast, rows, [GPUS[name] for name in SHOWN] if is_here and not device.is_gpu else [device]))


def summary(forecast: Forecast, device: Device, *, is_here: bool) -> Table:
    """Network, work and time."""
    config, network = forecast.estimate.config, forecast.network
    total, non_embedding = count_parameters(network)
    table = Table(title="Plan", title_justify="left", show_header=False, box=box.SIMPLE_HEAD)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    layers = {name: len(stack.layers) for name, stack in zip(network.stack_names, network.stacks, strict=True)}
    updates = config.trainer.max_steps
    about = "about " if forecast.estimate.sample else ""
    examples = "" if config.batch.size is None else f"{counted(config.batch.size, 'example')}, "
    rows = {
        "architecture": f"{network.architecture}: " + ", ".join(f"{k} of {n} layers" for k, n in layers.items()),
        "task": config.task._target_.rpartition(".")[2],
        "parameters": f"{total:,} ({non_embedding:,} outside of the embeddings)",
        **{
            f"  {name}": f"{number:,}" if number or name != "head" else "0 (tied to the embedding)"
            for name, number in parameters_by_part(network).items()
        },
        "updates": f"{updates:,} of {examples}{about}{forecast.estimate.tokens:,.0f} tokens",
        "tokens": f"{about}{amount(updates * forecast.estimate.tokens)} in all",
        "operations": f"{about}{amount(forecast.flops, 'FLOP')} in all, "
        f"{amount(forecast.flops_of_update, 'FLOP')} an update",
        "device": device.name,
        "time": estimate(forecast, device, is_here=is_here),
    }
    for name, said in rows.items():
        table.add_row(name, said)
    return table


def estimate(forecast: Forecast, device: Device, *, is_here: bool) -> str:
    """The time of the training, and where it comes from."""
    updates = forecast.estimate.config.trainer.max_steps
    seconds = measured_seconds(forecast, device) if is_here else None
    if seconds is not None:
        processes = "" if forecast.world_size == 1 else " by one process, without the others"
        return (
            f"{duration(updates * seconds)}: measured here{processes}, {1000 * seconds:.3g} ms an update of tokens "
            "without meaning; validation, test, logging and reading are not in it"
        )
    computed = computed_seconds(forecast, device)
    if computed is None:
        too_large = "not known: too large to try out here; device=h100 (or another) computes it"
        return too_large if is_here else "not known in this precision"
    devices = "" if forecast.world_size == 1 else f" of {forecast.world_size} devices"
    return (
        f"{duration(computed)}: not measured; computed for {100 * UTILISATION:.0f} % of the peak{devices}, assumed "
        "(published trainings of large networks reached 21 to 46 %, small networks reach far less)"
    )


def memory(footprint: Footprint, what: str) -> Table:
    """The parts of the memory of a process."""
    table = Table(
        "memory of each process", title_justify="left", box=box.SIMPLE_HEAD, caption=what, caption_justify="left"
    )
    table.add_column("", justify="right")
    for name, count in asdict(footprint).items():
        if count:
            table.add_row(NAMES[name], size(count))
    table.add_section()
    table.add_row("in all", size(footprint.total))
    return table


def fits(forecast: Forecast, rows: int, devices: list[Device]) -> Table:
    """On how many GPUs the training fits."""
    table = Table(f"fits, of batches of {counted(rows, 'row')}", "memory", "DDP", "FSDP", box=box.SIMPLE_HEAD)
    table.caption, table.caption_justify = f"counting on {100 * USABLE:.0f} % of each memory", "left"
    largest = max(device.memory for device in devices)
    memory = forecast.memory_on_gpus
    least = memory.fsdp(rows, rows)  # one row a device
    if least.total > USABLE * largest:
        advice = (
            "trainer.precision=bf16-true keeps no copies for autocast" if least.copies else "lower shape.max_length"
        )
        table.caption += (
            f"; FSDP does not share copies for autocast ({size(least.copies)}), activations of one row "
            f"({size(least.activations + least.logits)}) and what is whole for a moment "
            f"({size(least.exchange)}): {advice}"
        )
    for device in devices:
        evenly = forecast.estimate.config.batch.tokens is None
        counts = [smallest(way, rows, device.memory, evenly=evenly) for way in (memory.ddp, memory.fsdp)]
        words = ["on none" if n is None else f"on {n}" for n in counts]
        table.add_row(device.name, size(device.memory), *words)
    return table


def show_findings(findings: Findings, redact: Redactor) -> None:
    """Prints a line for each thing that was looked at, errors and warnings first; one for all that need no word."""
    table = Table("", "check", "found", title="Checks", title_justify="left", box=box.SIMPLE_HEAD)
    silent = [finding.name for finding in findings if not finding.text]
    said = [finding for finding in findings if finding.text]
    for finding in sorted(said, key=lambda finding: -list(COLOURS).index(finding.level)):
        level = Text(finding.level, style=COLOURS[finding.level])
        table.add_row(level, finding.name, Text(str(redact(finding.text)), overflow="fold"))
    if silent:
        table.add_row(Text("ok", style=COLOURS["ok"]), "others", ", ".join(silent))
    Console().print(table)


def lengths(forecast: Forecast) -> str:
    """The positions of the longest batch."""
    estimate = forecast.estimate
    positions, source = estimate.longest
    seen = f", the longest of {counted(estimate.num_updates, 'update')} that were laid out" if estimate.sample else ""
    return counted(positions, "position") + (f" and {source} of the source" if source else "") + seen
