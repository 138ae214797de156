"""A real browser for the pages."""

import shutil
import subprocess
from pathlib import Path

import pytest

needs_browser = pytest.mark.skipif(shutil.which("chromium") is None, reason="needs a browser: no chromium on PATH")


def dom_of(address: str, profile: Path) -> str:
    """What a browser makes of a page, without a complaint."""
    options = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking"
    options += " --disable-component-update --disable-sync --enable-logging=stderr --virtual-time-budget=10000"
    done = subprocess.run(
        ["chromium", *options.split(), f"--user-data-dir={profile}", "--dump-dom", address],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    assert "CONSOLE" not in done.stderr, [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return done.stdout
