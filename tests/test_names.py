"""One name, one thing: no class is defined twice, modules share a name only where this list says so, and a test has the
name and the place of its module, or the module names it."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from quick import all_imports_of

pytestmark = pytest.mark.daily

MODULES = {
    "attention",  # nn/attention.py, and triptych.attention, which hands on report/attention_maps.py
    "folders",  # the commands on folders, and Hugging Face folders
}
"""This list only shrinks."""
ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "triptych"


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


def names_in(tree: ast.Module) -> set[str]:
    """The public classes, functions and constants of a module."""
    targets = [node.targets for node in tree.body if isinstance(node, ast.Assign)]
    targets += [[node.target] for node in tree.body if isinstance(node, ast.AnnAssign)]
    constants = {target.id for some in targets for target in some if isinstance(target, ast.Name)}
    definitions = {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    return {name for name in constants | definitions if not name.startswith("_")}


def modules_from(tree: ast.Module) -> set[str]:
    """The modules that a module imports names from."""
    return {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}


def test_each_module_has_a_test_in_its_place_or_names_one() -> None:
    """A file that a docstring names, or a helper that it imports, has the name of the module, or one from it or from a
    module that imports it."""
    modules = [file for file in sorted(SOURCE.rglob("*.py")) if not file.stem.startswith("__")]
    trees = {".".join(file.relative_to(SOURCE.parent).with_suffix("").parts): ast.parse(file.read_text("utf-8"))
             for file in modules}  # fmt: skip
    names = {module: names_in(tree) for module, tree in trees.items()}
    imports = {module: modules_from(tree) for module, tree in trees.items()}
    found = set()
    for module, tree in trees.items():
        _, *folders, name = module.split(".")
        place = "/".join(["tests", *folders, f"test_{name}.py"])
        last = " ".join((ast.get_docstring(tree) or "").rpartition("\n\n")[2].split())
        named = re.findall(r"tests/[\w/]+\.py", last) if last.startswith("Tested by ") else []
        found |= {place, *named}
        assert named or (ROOT / place).is_file(), f"{module}: neither {place} nor a last line 'Tested by tests/...'"
        users = [other for other in trees if module in imports[other]]
        known = {name}.union(*(names[user] for user in [module, *users]))
        for file in named:
            words = set(re.findall(r"\w+", " ".join([(ROOT / file).read_text("utf-8"), *all_imports_of(ROOT / file)])))
            assert known & words, f"{module}: {file} does not mention it"
    by_subject = {"faults", "gpu", "interop"}
    tests = [file.relative_to(ROOT) for file in (ROOT / "tests").glob("*/**/test_*.py")]
    assert {str(file) for file in tests if file.parts[1] not in by_subject} <= found
