"""The page that a benchmark writes."""

import argparse
import tempfile
from pathlib import Path


def check_output(parser: argparse.ArgumentParser, output: Path | None) -> None:
    """Ends the program where the page cannot be written, before anything is measured; makes its folder.

    Args:
        parser: of the command line.
        output: the page; None: none is written.
    """
    if output is None:
        return
    if output.is_dir():
        parser.error(f"--output={output}: a folder is there; expected a file")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=output.parent):
            pass
    except OSError as error:
        parser.error(f"--output={output}: {error.strerror}; expected a file that can be written")
