"""The comparison as a table on the terminal.

Tested by tests/report/page/test_render.py.
"""

import math
from collections.abc import Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from triptych.config import amount, counted, duration
from triptych.report.labels import field_name
from triptych.report.page.style import ARCHITECTURES
from triptych.report.read_records import RunSet
from triptych.report.statistics.audit import Difference
from triptych.report.statistics.caveats import find_caveats
from triptych.report.statistics.factors import value_of
from triptych.report.statistics.groups import Group
from triptych.report.statistics.standings import describe_training
from triptych.report.statistics.verdicts import Verdict

LEAST_OF_RUN = 32
"""Columns of text that a run directory needs at least; a longer one wraps."""
_WIDE = 120
"""Minimum terminal width at which run directories are shown."""


def print_tables(
    groups: Sequence[Group],
    verdicts: Sequence[Verdict | None],
    audits: Sequence[Sequence[Difference]],
    found: RunSet,
    console: Console,
) -> None:
    """Print one table per task, with its verdict, the commands that would decide it, and its audit.

    Args:
        audits: one list for each group.
        found: lists what is left out.
    """
    for group, verdict, audit in zip(groups, verdicts, audits, strict=True):
        shown = group.strongest
        columns = _columns(shown)
        while _width(columns, shown) > console.width and next(reversed(columns)) != "value":
            columns.popitem()  # costs come last; varied settings and the value stay
        console.print(_table(shown, columns, console))
        own = {contender.name for contender in shown.contenders}
        rows = [row for row in describe_training(group) if row["configuration"] in own]
        console.print(_training_table(rows, console))
        if num_hidden := len(group.contenders) - len(own):
            console.print(f"The best {len(own)} on the validation set; {counted(num_hidden, 'other')} in the page")
        if verdict:
            console.print(Text(verdict.text, style="bold"))
        if verdict and verdict.commands:
            lines = [f"More seeds would probably decide it ({verdict.price}):", *verdict.commands]
            console.print(Text("\n  ".join(lines)), soft_wrap=True)
        for caveat in find_caveats(group):
            console.print(Text(caveat, style="yellow"))
        for difference in audit:
            console.print(Text(f"differs: {field_name(difference.field)}. {difference.text}", style="yellow"))
        console.print()
    if found.unfinished:
        names = ", ".join(found.unfinished)
        console.print(Text(f"Left out because they are not finished (no summary.json): {names}", style="yellow"))
    if found.num_untested:
        console.print(Text(f"Left out because trials of a search are not tested: {found.num_untested}", style="yellow"))
    for damage in found.damaged:
        console.print(Text(f"Left out because it is damaged: {damage}", style="yellow"))


def _columns(group: Group) -> dict[str, list[str]]:
    """The cells of each column except the first, by column head."""
    best = group.metric.optimum_name
    values = [(group.value(run), group.optimum(run)) for run in group.runs]
    pairs = zip(group.runs, values, strict=True)
    shown = [
        group.show(run, x).removesuffix(" bits/byte") if math.isfinite(x) else "not finite" for run, (x, _) in pairs
    ]
    gaps = [group.metric.show_gap(x, y) if y is not None and math.isfinite(x) else "" for x, y in values]
    return {
        **{name: [value_of(run, key) for run in group.runs] for name, key in group.varied.items()},
        "seed": [str(run.seed) for run in group.runs],
        "value": shown,
        **({f"to the {best}": [gap.removesuffix(f" the {best}") for gap in gaps]} if any(gaps) else {}),
        "params": [amount(run.params) for run in group.runs],
        "FLOPs": [amount(run.train_flops) for run in group.runs],
        "time": [duration(run.wall_time_s) for run in group.runs],
    }


def _width(columns: dict[str, list[str]], group: Group) -> int:
    return 1 + sum(2 + _least(name, cells, group) for name, cells in columns.items()) + len("architecture  ")


def _least(name: str, cells: list[str], group: Group) -> int:
    """The minimum width of a column. Only values of settings, which may be long, may wrap."""
    longest = max(map(len, (name, *cells)))
    return min(longest, 14) if name in group.varied else longest


def _training_table(rows: Sequence[Mapping[str, str]], console: Console) -> Table:
    """How the configurations were trained, in the columns that fit into the terminal. Only the first one wraps."""
    table, room = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0)), console.width
    for head in rows[0]:
        is_first, texts = head == "configuration", [row[head] for row in rows]
        words = [*head.split(), *(" ".join(texts).split() if is_first else texts)]
        room -= max(map(len, words)) + 2
        if room >= 0 or is_first:
            table.add_column(head.replace(" ", "\n"), overflow="fold", no_wrap=not is_first)
    for row in rows:
        table.add_row(*(Text(text) for text in [*row.values()][: len(table.columns)]))
    return table


def _table(group: Group, columns: dict[str, list[str]], console: Console) -> Table:
    title = Text(f"{group.task.replace('_', ' ')} on {group.data}: {group.metric.title}, {group.metric.direction}")
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("architecture", no_wrap=True)
    for name, cells in columns.items():
        least = _least(name, cells, group)
        table.add_column(name, justify="right", no_wrap=name not in group.varied, overflow="fold", min_width=least)
    room_for_run = min(max(len(run.directory) for run in group.runs), LEAST_OF_RUN)
    shows_run = console.width >= max(_WIDE, _width(columns, group) + room_for_run + 2)
    if shows_run:
        table.add_column("run", overflow="fold")
    for i, run in enumerate(group.runs):
        table.add_row(
            Text(ARCHITECTURES[run.architecture].word, style=ARCHITECTURES[run.architecture].terminal),
            *(cells[i] for cells in columns.values()),
            *([Text(run.directory)] if shows_run else []),
        )
    return table
