"""The comparison as a table on the terminal."""

import math
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from triptych.report.records import ARCHITECTURES
from triptych.report.verdicts import Difference, Group, Verdict
from triptych.report.wording import amount, duration

_COLOURS = {"full": "blue", "encoder_only": "yellow", "decoder_only": "green"}
_WIDE = 120
"""From this width on there is room for the run directories."""


def print_tables(
    groups: Sequence[Group],
    verdicts: Sequence[Verdict],
    audits: Sequence[Sequence[Difference]],
    unfinished: Sequence[str],
    num_untested: int,
    console: Console,
) -> None:
    """Print one table for each task, with its verdict and its audit.

    Args:
        groups: the runs of each task.
        verdicts: one for each group.
        audits: one list for each group.
        unfinished: directories of unfinished runs.
        num_untested: how many runs are trials of a search, which were not tested.
        console: where to print.
    """
    for group, verdict, audit in zip(groups, verdicts, audits, strict=True):
        title = Text(f"{group.task} on {group.data}: {group.metric.title}, {group.metric.direction}")
        table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        best = group.metric.optimum_name
        table.add_column("architecture", no_wrap=True)
        has_best = any(group.optimum(run) is not None for run in group.runs)
        for name in ("seed", "value", *([f"to the {best}"] if has_best else []), "params", "FLOPs", "time"):
            table.add_column(name, justify="right", no_wrap=True)
        if console.width >= _WIDE:
            table.add_column("run", overflow="fold")
        for run in group.runs:
            value, optimum = group.value(run), group.optimum(run)
            finite = math.isfinite(value)
            distance = group.metric.show_gap(value, optimum) if finite and optimum is not None else ""
            table.add_row(
                Text(ARCHITECTURES[run.architecture], style=_COLOURS[run.architecture]),
                str(run.seed),
                group.metric.show(value).removesuffix(" bits/byte") if finite else "not finite",
                *([distance.removesuffix(f" the {best}")] if has_best else []),
                amount(run.params),
                amount(run.train_flops),
                duration(run.wall_time_s),
                *([Text(run.directory)] if console.width >= _WIDE else []),
            )
        console.print(table)
        console.print(Text(verdict.text, style="bold"))
        for difference in audit:
            console.print(Text(f"differs: {difference.field}. {difference.text}", style="yellow"))
        console.print()
    if unfinished:
        console.print(Text(f"Left out, as not finished (no summary.json): {', '.join(unfinished)}", style="yellow"))
    if num_untested:
        console.print(Text(f"Left out, as trials of a search, which do not test: {num_untested}", style="yellow"))
