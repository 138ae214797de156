"""Installs Triptych with this Python and a torch, runs tests that depend on both, writes a row of docs/versions.md.

`make versions` runs this with the Python of the row. It uses the standard library only.
"""

import platform
import re
import shutil
import subprocess
import sys
import venv
from datetime import date
from pathlib import Path
from xml.etree import ElementTree

from pages import write_page

ROOT = Path(__file__).parents[1]
TESTS = {
    "tests/nn tests/models tests/tasks": "the blocks, the networks and the tasks",
    "tests/interop/test_decoder_families.py": "the decoder families, compared with `transformers`",
    "tests/faults/test_kill_faults.py::test_fault_1_killed_at_random_steps[translation_full]": "a run that is "
    "killed twice and ends with bitwise the same weights as an uninterrupted run",
    "tests/test_packages.py::test_every_module_is_imported": "imports each module of Triptych",
}
"""What a row runs, and what that is."""
COLUMNS = ("Python", "torch", "passed", "failed", "skipped", "Triptych", "on")
ROW = re.compile(r"^\| (3\.\d+\.\d+) \| (\S+) \|.*\|$", re.MULTILINE)
SAY = """\
from importlib.metadata import version
import torch
print(version("triptych"), torch.__version__)
"""


def run_tests(torch: str, folder: Path) -> tuple[str, ...]:
    """The cells of a row, measured in a separate environment.

    Args:
        torch: its version; empty: the newest that pip finds.
        folder: of the environment.

    Raises:
        CalledProcessError: these versions cannot be installed.
    """
    venv.create(folder, clear=True, with_pip=True)
    python, constraints, report = folder / "bin/python", folder / "constraints.txt", folder / "report.xml"
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    constraints.write_text(re.sub("^torch==.*\n", "", pins, flags=re.MULTILINE), encoding="utf-8")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--constraint", constraints]
    subprocess.run([*pip, f"{ROOT}[dev]", f"torch=={torch}" if torch else "torch"], check=True)
    said = subprocess.run([python, "-c", SAY], check=True, capture_output=True, text=True).stdout
    triptych, installed = said.split()
    tests = [word for words in TESTS for word in words.split()]
    options = ["-m", "not release and not gpu", f"--junit-xml={report}"]
    subprocess.run([python, "-m", "pytest", *options, *tests], cwd=ROOT, check=False)
    (suite,) = ElementTree.parse(report).getroot()
    tried, failures, errors, skipped = (int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped"))
    counts = (tried - failures - errors - skipped, failures + errors, skipped)
    return platform.python_version(), installed, *map(str, counts), triptych, date.today().isoformat()


def order(row: str) -> list[int]:
    """By the numbers of Python and torch."""
    found = ROW.match(row)
    assert found is not None
    return [int(number) for version in found.groups() for number in re.findall(r"\d+", version.partition("+")[0])]


def write_row(page: Path, cells: tuple[str, ...]) -> None:
    """Adds a row, or replaces the row of the same Python and torch."""
    rows = {
        found.groups(): found[0] for found in ROW.finditer(page.read_text(encoding="utf-8") if page.exists() else "")
    }
    rows[cells[:2]] = f"| {' | '.join(cells)} |"
    tests = "\n".join(f"- `{names}`: {what}" for names, what in TESTS.items())
    write_page(page, "versions_page", tests=tests, rows="\n".join(sorted(rows.values(), key=order)))


if __name__ == "__main__":
    torch = sys.argv[1] if sys.argv[1:] else ""
    environment = ROOT / "outputs" / f"python-{platform.python_version()}-torch-{torch or 'newest'}"
    cells = run_tests(torch, environment)
    write_row(ROOT / "docs" / "versions.md", cells)
    print(*(f"{name} {cell}" for name, cell in zip(COLUMNS, cells, strict=True)), sep=", ")
    shutil.rmtree(environment)  # gigabytes, where torch is one for GPUs
    sys.exit(cells[COLUMNS.index("failed")] != "0")
