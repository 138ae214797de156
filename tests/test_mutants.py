"""The mutants of tests/mutants.yaml, and how they are tried; ``make nightly`` tries them all."""

import ast
from pathlib import Path

import pytest

import mutants

TABLE = mutants.read_table()


def test_sixty_mutants_of_which_twenty_undo_fixes() -> None:
    """Those of the table; who changes one of its lines changes the table with it."""
    assert len(TABLE) == 60 == len({(mutant.old, mutant.new) for mutant in TABLE})
    assert sum(": " in mutant.mistake for mutant in TABLE) == 20


@pytest.mark.parametrize("mutant", TABLE, ids=lambda mutant: mutant.old)
def test_each_line_is_there_once(mutant: mutants.Mutant) -> None:
    """And the file with the other line is still Python."""
    place = mutants.find_file(mutant, mutants.ROOT)
    source = (mutants.ROOT / place).read_text()
    changed = mutants.mutate(source, mutant)
    ast.parse(changed)
    pairs = zip(source.splitlines(), changed.splitlines(), strict=True)
    assert [new.strip() for old, new in pairs if new != old] == [mutant.new]


def test_a_line_that_is_gone_is_named() -> None:
    """Or that is there several times."""
    with pytest.raises(LookupError, match="0 lines of src/triptych are 'no such line'; change"):
        mutants.find_file(mutants.Mutant("operator", "no such line", "pass", ""), mutants.ROOT)
    with pytest.raises(LookupError, match="lines of src/triptych are 'import re'"):
        mutants.find_file(mutants.Mutant("operator", "import re", "pass", ""), mutants.ROOT)


def test_the_first_failure_is_found(tmp_path: Path) -> None:
    """A test that fails, one that cannot be collected, one that takes too long, and none."""
    (tmp_path / "test_a.py").write_text("def test_right(): pass\n")
    (tmp_path / "test_b.py").write_text("def test_wrong():\n    assert 1 == 2\n")
    (tmp_path / "test_c.py").write_text("import time\n\ndef test_slow():\n    time.sleep(600)\n")
    (tmp_path / "test_d.py").write_text("1 +\n")
    assert mutants.find_failure(tmp_path, ["test_a.py", "test_b.py"], 100) == "test_b.py::test_wrong"
    assert mutants.find_failure(tmp_path, ["test_d.py"], 100) == "test_d.py"
    assert mutants.find_failure(tmp_path, ["test_a.py"], 100) == ""
    assert mutants.find_failure(tmp_path, ["test_c.py"], 3) == ""


def test_draws_are_repeatable_and_of_all_packages(tmp_path: Path) -> None:
    """All kinds of mistakes are drawn of two packages; a line that is there twice, and messages, are left alone."""
    code = """def mean(values, options, scale=2):
    if not values and options["strict"]:
        raise ValueError("nothing " + "there")
    return sum(values) / len(values) + options["offset"]
"""
    for package, text in (("nn", code), ("data", "same = 1 < 2\nflag = True\n"), ("train.py", "same = 1 < 2\n")):
        file = tmp_path / mutants.SOURCE / (package if "." in package else f"{package}/__init__.py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    drawn = mutants.draw(1, 8, tmp_path)
    assert drawn == mutants.draw(1, 8, tmp_path)
    assert {mutant.mistake for mutant in drawn} == {
        "constant", "key", "no check", "no normaliser", "no not", "operator",
    }  # fmt: skip
    assert ("flag = True", "flag = False") in {(mutant.old, mutant.new) for mutant in drawn}
    assert not any("same" in mutant.old or "nothing" in mutant.new for mutant in drawn)
