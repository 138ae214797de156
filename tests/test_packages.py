"""What is installed: every package, and all that it reads."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]


def test_every_folder_with_code_is_installed() -> None:
    """(setuptools finds packages by itself in one folder alone, and conf/ stands beside src/.)"""
    folders = {file.parent.relative_to(ROOT / "src") for file in (ROOT / "src").rglob("*.py")}
    assert SETTINGS["packages"] == sorted({"triptych.conf", *(".".join(folder.parts) for folder in folders)})


def test_all_that_is_read_is_installed() -> None:
    """Each file of the configuration and of the pages."""
    installed = {
        file
        for package, patterns in SETTINGS["package-data"].items()
        for pattern in patterns
        for file in (ROOT / SETTINGS["package-dir"].get(package, f"src/{package.replace('.', '/')}")).glob(pattern)
    }
    others = {file for file in (ROOT / "src" / "triptych").rglob("*") if file.is_file() and file.suffix[:3] != ".py"}
    assert installed == {*(ROOT / "conf").rglob("*.yaml"), *others, ROOT / "src/triptych/py.typed"}
