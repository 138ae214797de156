"""Fills wheels/ with what `make gpu` needs on a machine without a network that has torch, lightning and transformers:
what Triptych and its tests require, in the versions of this environment, but for what PRESENT requires.

    python benchmarks/gpu_wheels.py [--python 3.12]
"""

import argparse
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

WHEELS = Path(__file__).parents[1] / "wheels"
NEEDED = ("triptych", "pytest", "pytest-xdist", "hypothesis", "beartype")
PRESENT = ("torch", "lightning", "transformers", "pandas", "pyarrow", "scikit-learn", "scipy", "setuptools", "wheel")
"""With what they require: the environment that is expected there. The last two build Triptych itself."""
LATER = ("pydantic", "pydantic-core", "annotated-types", "typing-inspection")
"""Of these, what only their newest versions require."""
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (5, 12, 17, 24, 27, 28, 31, 34, 35)]
PLATFORMS += ["manylinux1_x86_64", "manylinux2010_x86_64", "manylinux2014_x86_64"]
MOST = 60 * 2**20
"""Bytes of all together, so that they travel with a checkout."""


def all_of(names: tuple[str, ...]) -> set[str]:
    """These packages and what they require, as far as it is installed here."""
    found, waiting = set[str](), [canonicalize_name(name) for name in names]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        try:
            given = [Requirement(line) for line in requires(name) or []]
        except PackageNotFoundError:  # of another platform
            found.remove(name)
            continue
        waiting += [canonicalize_name(r.name) for r in given if r.marker is None or r.marker.evaluate({"extra": ""})]
    return found


def main() -> None:
    """Downloads them, and says how large they are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="3.12", help="of the other machine (3.12)")
    arguments = parser.parse_args()
    WHEELS.mkdir(exist_ok=True)
    for old in WHEELS.glob("*.whl"):
        old.unlink()
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    for name in sorted(all_of(NEEDED) - (all_of(PRESENT) - {*LATER}) - {"triptych"}):
        exactly = f"{name}=={version(name)}"
        platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
        command = [*pip, "download", "--no-deps", "--only-binary=:all:", "--implementation", "cp", "-d", str(WHEELS)]
        download = [*command, "--python-version", arguments.python, *platforms, exactly]
        if subprocess.run(download, capture_output=True, check=False).returncode:  # there is a source alone
            subprocess.run([*pip, "wheel", "--no-deps", "-w", str(WHEELS), exactly], check=True)
    size = sum(wheel.stat().st_size for wheel in WHEELS.glob("*.whl"))
    print(f"{len([*WHEELS.glob('*.whl')])} wheels in {WHEELS}, {size / 2**20:.1f} MiB")
    if size > MOST:
        raise SystemExit(f"expected at most {MOST / 2**20:.0f} MiB: take something out that the other machine has")


if __name__ == "__main__":
    main()
