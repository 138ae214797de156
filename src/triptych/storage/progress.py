"""Progress bars."""

from rich.console import Console
from rich.progress import Progress, ProgressColumn


def show_progress(
    *columns: str | ProgressColumn,
    stderr: bool = True,
    transient: bool = True,
    auto_refresh: bool = True,
    disable: bool = False,
) -> Progress:
    """Progress bars of rich; hidden without a terminal.

    Args:
        columns: columns; none: rich's default.
        stderr: whether to use standard error.
        transient: whether to remove the bars at the end.
        auto_refresh: whether to start a thread that refreshes the bars.
        disable: whether to hide the bars.
    """
    console = Console(stderr=stderr)
    hide = disable or not console.file.isatty()
    return Progress(*columns, console=console, transient=transient, auto_refresh=auto_refresh, disable=hide)
