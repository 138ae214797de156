"""The notebooks, executed by Jupyter's own kernel on runs of seconds."""

import ast
import importlib
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import tiny
from commands import run

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
EXPERIMENTS = (
    "translation_full",
    "classification_encoder_only",
    "classification_decoder_only",
    "language_modeling_decoder_only",
)

every_notebook = pytest.mark.parametrize("notebook", NOTEBOOKS, ids=[notebook.stem for notebook in NOTEBOOKS])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make demo` would leave, but tiny."""
    folder = tmp_path_factory.mktemp("runs")
    options = [*tiny.TINY, "logger=csv", "trainer.max_steps=6", "trainer.val_check_interval=3"]
    for name in EXPERIMENTS:
        finished = run("train", *tiny.dates(name), *options, f"run_dir={name}", cwd=folder)
        assert finished.returncode == 0, finished.stderr
    return folder


def code_of(notebook: Path) -> list[str]:
    return [cell.source for cell in nbformat.read(notebook, as_version=4).cells if cell.cell_type == "code"]


@pytest.mark.nightly
@every_notebook
def test_runs_and_draws(notebook: Path, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIPTYCH_RUNS", str(runs))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    content = nbformat.read(notebook, as_version=4)
    place = {"metadata": {"path": str(notebook.parent)}}
    NotebookClient(content, timeout=300, kernel_name="python3", resources=place).execute()  # raises what a cell raises
    outputs = [output for cell in content.cells for output in cell.get("outputs", [])]
    figures = [output for output in outputs if "application/vnd.plotly.v1+json" in output.get("data", {})]
    assert len(figures) == sum("figure.update_layout" in code for code in code_of(notebook)) > 2
    assert not [output.text for output in outputs if output.get("name") == "stderr"]


@every_notebook
def test_has_no_outputs(notebook: Path) -> None:
    """Pictures weigh megabytes and are of someone else's training; who wants them runs the notebook."""
    for cell in nbformat.read(notebook, as_version=4).cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


@every_notebook
def test_imports_what_there_is(notebook: Path) -> None:
    for code in code_of(notebook):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom) and node.module:
                module = importlib.import_module(node.module)
                assert all(hasattr(module, name.name) for name in node.names), ast.unparse(node)
            elif isinstance(node, ast.Import):
                assert all(importlib.import_module(name.name) for name in node.names)


@every_notebook
def test_defines_nothing(notebook: Path) -> None:
    """What others could use belongs into the package."""
    for code in code_of(notebook):
        assert not [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.FunctionDef | ast.ClassDef)]


def test_there_are_three() -> None:
    assert len(NOTEBOOKS) == 3
