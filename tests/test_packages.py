"""What is installed: every package, and all that it reads."""

import importlib
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import hydra_plugins
import tiny
import triptych

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


def test_one_version() -> None:
    """Of the code and of what one cites."""
    assert re.search("^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)[1] == triptych.__version__


def test_every_module_is_imported() -> None:
    """With this Python and these libraries; a module that no test needs could be one that cannot be."""
    for package in (triptych, hydra_plugins):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)


@pytest.mark.release
def test_the_wheel_works_in_an_empty_folder(tmp_path: Path) -> None:
    """Built from the sdist, installed without the checkout, in an environment that has the libraries alone."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in listed.split("\0")[:-1]:  # in the checkout are lists of earlier builds, which setuptools reads, too
        (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / "source" / name)
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path / "dist", tmp_path / "source"]
    subprocess.run(build, check=True, capture_output=True)  # the wheel is made of the sdist
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if not name.startswith("triptych-")}
    code = {file.relative_to(ROOT / "src").as_posix() for file in (ROOT / "src").rglob("*.py")}
    configuration = {f"triptych/{file.relative_to(ROOT)}" for file in (ROOT / "conf").rglob("*.yaml")}
    assert code | configuration <= packed

    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    python, empty = tmp_path / "venv/bin/python", tmp_path / "empty"
    empty.mkdir()
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", wheel]
    subprocess.run(pip, check=True, env={**os.environ, "PYTHONPATH": ""})
    (site,) = (tmp_path / "venv/lib").glob("*/site-packages")
    libraries = Path(pytest.__file__).parents[1]
    (site / "libraries.pth").write_text(f"{libraries}\n")  # of a folder named so, .pth files are not read: no checkout

    def run(*arguments: str) -> str:
        command = [tmp_path / "venv/bin/triptych", *arguments]
        own = {"OMP_NUM_THREADS": "1", "COLUMNS": "200", "PYTHONPATH": ""}
        finished = subprocess.run(command, cwd=empty, capture_output=True, text=True, env={**os.environ, **own})
        assert finished.returncode == 0, finished.stderr
        return finished.stdout

    where = subprocess.run([python, "-c", "import triptych; print(triptych.__file__)"], cwd=empty, capture_output=True)
    assert where.stdout.decode().startswith(str(tmp_path))
    assert run("--version").startswith(f"triptych {triptych.__version__}, ")
    assert "sst2/full" in run("list", "experiments")
    assert run("demo", "--print-overrides").count("run_dir=") == 24
    small = [*tiny.TINY, "trainer.max_steps=2", "trainer.val_check_interval=2", "logger=csv"]
    run("train", "experiment=dates/classification", *small, "run_dir=run")
    assert "classification" in run("compare", "run").lower()
    assert (empty / "report.html").exists()
