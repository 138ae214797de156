"""One name, one thing: no class is defined twice, and modules share a name only where this list says so."""

import ast
from collections import Counter
from pathlib import Path

MODULES = {
    "attention",  # nn/attention.py, and triptych.attention, which hands on report/attention_maps.py
    "folders",  # the commands on folders, and Hugging Face folders
}
"""This list only shrinks."""
SOURCE = Path(__file__).parents[1] / "src" / "triptych"


def test_no_class_is_defined_twice() -> None:
    """The plugins of Hydra are outside of the package: Hydra finds them by their names."""
    names = Counter(
        node.name
        for file in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    )
    assert {name for name, count in names.items() if count > 1} == set()


def test_no_module_has_the_name_of_another() -> None:
    names = Counter(file.stem for file in SOURCE.rglob("*.py") if not file.stem.startswith("__"))
    assert {name for name, count in names.items() if count > 1} == MODULES
