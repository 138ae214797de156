"""Progress bars, of work that takes long."""

from rich.console import Console
from rich.progress import Progress, ProgressColumn


def show_progress(
    *columns: str | ProgressColumn, stderr: bool = True, transient: bool = True, disable: bool = False
) -> Progress:
    """Bars of rich, which say nothing where there is no terminal.

    Args:
        columns: of each bar; none: those of rich.
        stderr: whether they are shown on standard error.
        transient: whether they vanish at the end.
        disable: whether they are not shown on a terminal either.
    """
    console = Console(stderr=stderr)
    return Progress(*columns, console=console, transient=transient, disable=disable or not console.file.isatty())
