"""The doctor's output as tables for the terminal.

Tested by tests/planning/test_doctor.py.
"""

from dataclasses import asdict

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from triptych.config import amount, counted, duration
from triptych.models.flops import count_parameters, parameters_by_part
from triptych.planning.check_results import CheckResults, size
from triptych.planning.forecast import UTILISATION, Forecast, computed_seconds, measured_seconds
from triptych.planning.gpus import GPUS, Device
from triptych.planning.memory import USABLE, MemoryBreakdown, smallest_gpu_count
from triptych.storage.redaction import Redactor

SHOWN = ("rtx-4090", "a100-40gb", "h100", "h200")
"""GPUs to plan for by default."""
COLOURS = {"ok": "green", "warning": "yellow", "error": "red"}
NAMES = {
    "weights": "weights and buffers",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "average": "moving average",
    "copies": "copies of the weights for autocast",
    "exchange": "communication buffers",
    "activations": "activations",
    "logits": "logits",
}


def show_forecast(forecast: Forecast, device: Device, *, is_here: bool, sharded: bool) -> None:
    """Prints the plan of the run, the memory of each process, and the number of GPUs that it needs.

    Args:
        is_here: whether the device is that of this computer.
        sharded: whether FSDP is configured.
    """
    console = Console()
    console.print(plan_summary(forecast, device, is_here=is_here))
    rows = forecast.estimate.rows
    footprint = (forecast.memory.fsdp if sharded else forecast.memory.ddp)(forecast.world_size, rows)
    share = -(-rows // forecast.world_size)
    console.print(memory(footprint, f"{'FSDP, ' if sharded else ''}{counted(share, 'row')} of {lengths(forecast)}"))
    console.print(fits(forecast, rows, [GPUS[name] for name in SHOWN] if is_here and not device.is_gpu else [device]))


def plan_summary(forecast: Forecast, device: Device, *, is_here: bool) -> Table:
    """A table of network, work and time."""
    config, network = forecast.estimate.config, forecast.network
    total, non_embedding = count_parameters(network)
    table = Table(title="Plan", title_justify="left", show_header=False, box=box.SIMPLE_HEAD)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    layers = {name: len(stack.layers) for name, stack in zip(network.stack_names, network.stacks, strict=True)}
    steps = config.trainer.max_steps
    about = "about " if forecast.estimate.sample else ""
    examples = "" if config.batch.global_size is None else f"{counted(config.batch.global_size, 'example')}, "
    rows = {
        "architecture": f"{network.architecture}: " + ", ".join(f"{k} of {n} layers" for k, n in layers.items()),
        "task": config.task._target_.rpartition(".")[2],
        "parameters": f"{total:,} ({non_embedding:,} outside of the embeddings)",
        **{
            f"  {name}": f"{number:,}" if number or name != "head" else "0 (tied to the embedding)"
            for name, number in parameters_by_part(network).items()
        },
        "steps": f"{steps:,} of {examples}{about}{forecast.estimate.tokens:,.0f} tokens",
        "tokens": f"{about}{amount(steps * forecast.estimate.tokens)} in total",
        "compute": f"{about}{amount(forecast.flops, 'FLOP')} in total, "
        f"{amount(forecast.flops_per_step, 'FLOP')} per step",
        "device": device.name,
        "time": estimate(forecast, device, is_here=is_here),
    }
    for name, said in rows.items():
        table.add_row(name, said)
    return table


def estimate(forecast: Forecast, device: Device, *, is_here: bool) -> str:
    """The duration of the run, and how it was determined."""
    steps = forecast.estimate.config.trainer.max_steps
    seconds = measured_seconds(forecast, device) if is_here else None
    if seconds is not None:
        processes = "" if forecast.world_size == 1 else " with one process"
        return (
            f"{duration(steps * seconds)}: measured on this computer{processes}, {1000 * seconds:.3g} ms per step on "
            "arbitrary tokens, without validation, test, logging and reading data"
        )
    computed = computed_seconds(forecast, device)
    if computed is None:
        too_large = "unknown: too large to measure on this computer; set device=h100 (or another) to compute it"
        return too_large if is_here else "unknown for this precision"
    devices = "" if forecast.world_size == 1 else f" of {forecast.world_size} devices"
    return (
        f"{duration(computed)}: not measured; computed for an assumed {100 * UTILISATION:.0f} % of the peak{devices} "
        "(published runs of large networks reached 21 to 46 %, small networks reach far less)"
    )


def memory(footprint: MemoryBreakdown, what: str) -> Table:
    """A table of the memory of a process."""
    table = Table(
        "memory of each process", title_justify="left", box=box.SIMPLE_HEAD, caption=what, caption_justify="left"
    )
    table.add_column("", justify="right")
    for name, count in asdict(footprint).items():
        if count:
            table.add_row(NAMES[name], size(count))
    table.add_section()
    table.add_row("total", size(footprint.total))
    return table


def fits(forecast: Forecast, rows: int, devices: list[Device]) -> Table:
    """A table of the number of GPUs that the run needs."""
    table = Table(f"GPUs for batches of {counted(rows, 'row')}", "memory", "DDP", "FSDP", box=box.SIMPLE_HEAD)
    table.caption, table.caption_justify = f"assuming that {100 * USABLE:.0f} % of each memory is usable", "left"
    largest = max(device.memory for device in devices)
    memory = forecast.memory_on_gpus
    least = memory.fsdp(rows, rows)  # one row per device
    if least.total > USABLE * largest:
        advice = (
            "trainer.precision=bf16-true keeps no copies for autocast" if least.copies else "lower shape.max_length"
        )
        table.caption += (
            f"; FSDP does not shard copies for autocast ({size(least.copies)}), activations of one row "
            f"({size(least.activations + least.logits)}) and gathered weights "
            f"({size(least.exchange)}): {advice}"
        )
    for device in devices:
        evenly = forecast.estimate.config.batch.max_tokens is None
        counts = [smallest_gpu_count(way, rows, device.memory, evenly=evenly) for way in (memory.ddp, memory.fsdp)]
        table.add_row(device.name, size(device.memory), *("does not fit" if n is None else f"{n}" for n in counts))
    return table


def show_findings(findings: CheckResults, redact: Redactor) -> None:
    """Prints one line per check, errors and warnings first, and one line for all checks without a text."""
    table = Table("", "check", "result", title="Checks", title_justify="left", box=box.SIMPLE_HEAD)
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
    seen = f", the longest of {counted(len(estimate.steps), 'step')}" if estimate.sample else ""
    return counted(positions, "position") + (f" and {source} of the source" if source else "") + seen
