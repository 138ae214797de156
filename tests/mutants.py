"""Whether the tests notice mistakes: each line of tests/mutants.yaml that is put in place of another has to turn one of
them red.

    python tests/mutants.py                 # all; exit status 1 if one survives
    python tests/mutants.py WORD            # those whose lines have this word
    python tests/mutants.py --draw SEED N   # N new mutants as YAML, spread over the packages

Each is tried in a copy of the checkout: first the test that killed it before, then the tests that ``make quick`` runs
for its file, until one fails. Nightly tests do not run. A line is looked for in all of
src/triptych, so that it may move.
"""

import ast
import copy
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from queue import Queue
from typing import NamedTuple

import yaml

import quick

ROOT = Path(__file__).parents[1]
SOURCE = Path("src", "triptych")
TABLE = Path(__file__).with_suffix(".yaml")
SECONDS = 300.0
"""The longest that the tests of one mutant may take."""
GRACE_S = 10.0
"""How long tests may tidy up after that."""
AT_ONCE = 2
BY_DAY = "not nightly and not release and not gpu and not site"


class Mutant(NamedTuple):
    """A line of the source, without its indent, and what it becomes; the fix that this undoes, or the kind of mistake
    that was drawn; and a test that fails then."""

    mistake: str
    old: str
    new: str
    killed_by: str


class Result(NamedTuple):
    """The test that failed, empty if none did; and the seconds that it took."""

    test: str
    seconds: float


def read_table() -> list[Mutant]:
    """All mutants."""
    return [Mutant(**row) for row in yaml.safe_load(TABLE.read_text())["mutants"]]


@cache
def all_lines(root: Path) -> dict[str, list[Path]]:
    """The files of each line of the source, relative to the folder of the checkout."""
    found: dict[str, list[Path]] = {}
    for file in sorted((root / SOURCE).rglob("*.py")):
        for line in file.read_text().splitlines():
            found.setdefault(line.strip(), []).append(file.relative_to(root))
    return found


def find_file(mutant: Mutant, root: Path) -> Path:
    """The file that has the line.

    Raises:
        LookupError: no file has it, or it is there several times.
    """
    files = all_lines(root).get(mutant.old, [])
    if len(files) != 1:
        raise LookupError(f"{len(files)} lines of {SOURCE} are {mutant.old!r}; change tests/mutants.yaml with them")
    return files[0]


def mutate(source: str, mutant: Mutant) -> str:
    """The source with the other line."""
    lines = source.splitlines()
    (number,) = (i for i, line in enumerate(lines) if line.strip() == mutant.old)
    indent = lines[number][: -len(lines[number].lstrip())]
    return "\n".join([*lines[:number], indent + mutant.new, *lines[number + 1 :]]) + "\n"


def copy_checkout(folder: Path) -> None:
    """Copies all files that git knows or would add."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.check_output(command, cwd=ROOT, text=True).splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def find_failure(folder: Path, tests: list[str], seconds: float) -> str:
    """The first of some tests that fails; empty: none does in that time."""
    command = [sys.executable, "-m", "pytest", "-n", "0", "-x", "-p", "no:cacheprovider", "-m", BY_DAY, *tests]
    own = {"PYTHONPATH": str(folder / "src"), "OMP_NUM_THREADS": "1", "COLUMNS": "1000"}
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=os.environ | own, stdout=output, stderr=output, process_group=0
        )
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does, so that tests tidy up
            try:
                process.wait(GRACE_S)
            except subprocess.TimeoutExpired:  # a background job ignores SIGINT
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        output.seek(0)
        failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output.read(), re.MULTILINE)
    return failed[1] if failed else ""


def try_mutant(mutant: Mutant, tests: list[str], folder: Path) -> Result:
    """What becomes of it in a copy of the checkout, which is the same again afterwards. A test that fails without the
    mutant, too, says nothing."""
    began, place = time.monotonic(), find_file(mutant, ROOT)
    first = [[mutant.killed_by]] if mutant.killed_by else []
    for some in [*first, *(tests[i : i + 6] for i in range(0, len(tests), 6))]:
        if (left := began + SECONDS - time.monotonic()) < 0:
            break
        (folder / place).write_text(mutate((ROOT / place).read_text(), mutant))
        found = find_failure(folder, some, left)
        shutil.copy2(ROOT / place, folder / place)
        if found and not find_failure(folder, [found], SECONDS):
            return Result(found, time.monotonic() - began)
    return Result("", time.monotonic() - began)


def main(word: str = "") -> int:
    """Tries all whose lines have this word; the exit status.

    Raises:
        LookupError: a line is gone.
    """
    mutants = [mutant for mutant in read_table() if word in mutant.old + mutant.new]
    orders = {
        place: [str(test.relative_to(ROOT)) for test in quick.order({place})]
        for place in {find_file(m, ROOT) for m in mutants}
    }
    with tempfile.TemporaryDirectory() as parent, ThreadPoolExecutor(AT_ONCE) as pool:
        folders: Queue[Path] = Queue()
        for i in range(AT_ONCE):
            copy_checkout(Path(parent, str(i)))
            folders.put(Path(parent, str(i)))

        def run(mutant: Mutant) -> Result:
            folder = folders.get()
            try:
                return try_mutant(mutant, orders[find_file(mutant, ROOT)], folder)
            finally:
                folders.put(folder)

        survived = 0
        for mutant, result in zip(mutants, pool.map(run, mutants), strict=True):
            survived += not result.test
            said = f"killed by {result.test}" if result.test else "SURVIVED"
            print(f"{result.seconds:4.0f} s  {find_file(mutant, ROOT)}: {mutant.new}  {said}", flush=True)
    print(f"{len(mutants) - survived} of {len(mutants)} mutants are killed")
    return int(survived > 0)


def swap_operator(node: ast.AST) -> None:
    """Off by one at a bound, or a sign."""
    swaps = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
    if isinstance(node, ast.Compare):
        node.ops = [swaps.get(type(op), type(op))() for op in node.ops]
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        node.op = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
    elif isinstance(node, ast.BoolOp):
        node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()


def shift_or_swap_constant(node: ast.AST) -> None:
    """A number off by one, or the other truth value."""
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        node.value = not node.value
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        node.value += 1


def is_text(node: ast.AST) -> bool:
    """Whether it is the name of a file below a folder, not a number."""
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def mistakes_of(node: ast.AST, keys: list[str]) -> Iterator[tuple[str, ast.AST]]:
    """What could be there in place of a node, by the kind of mistake.

    Args:
        keys: the texts in brackets in the same file.
    """
    for kind, change in (("operator", swap_operator), ("constant", shift_or_swap_constant)):
        other = copy.deepcopy(node)
        change(other)
        if ast.dump(other) != ast.dump(node):
            yield kind, other
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "no not", node.operand
    if isinstance(node, ast.Raise):
        yield "no check", ast.Pass()
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and not is_text(node.right):
        yield "no normaliser", node.left
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and node.slice.value in keys:
        other_key = keys[keys.index(node.slice.value) - 1]
        if other_key != node.slice.value:
            yield "key", ast.Subscript(node.value, ast.Constant(other_key), node.ctx)


def candidates_in(file: Path, is_unique: dict[str, bool]) -> Iterator[Mutant]:
    """All mutants of a file; of lines that are in ``src/triptych`` once, outside of messages and annotations."""
    source = file.read_text()
    lines, tree = source.splitlines(), ast.parse(source)
    subscripts = [node.slice for node in ast.walk(tree) if isinstance(node, ast.Subscript)]
    keys = sorted({key.value for key in subscripts if isinstance(key, ast.Constant) and isinstance(key.value, str)})

    def walk(node: ast.AST) -> Iterator[ast.AST]:
        yield node
        if not isinstance(node, ast.Raise | ast.JoinedStr):
            for name, child in ast.iter_fields(node):
                for inner in child if isinstance(child, list) else [child]:
                    if isinstance(inner, ast.AST) and name not in ("annotation", "returns"):
                        yield from walk(inner)

    for node in walk(tree):
        number = getattr(node, "lineno", 0)
        if not number or node.end_lineno != number or not lines[number - 1].isascii():  # type: ignore[attr-defined]
            continue
        line = lines[number - 1]
        for kind, other in mistakes_of(node, keys):
            new = line[: node.col_offset] + ast.unparse(other) + line[node.end_col_offset :]  # type: ignore[attr-defined]
            if is_unique.get(line.strip()):
                yield Mutant(kind, line.strip(), new.strip(), "")


def draw(seed: int, count: int, root: Path = ROOT) -> list[Mutant]:
    """Mutants of all packages in turn, the modules beside them being one; of each package the rarest kind so far."""
    chance, source = random.Random(seed), root / SOURCE
    is_unique = {line: len(files) == 1 for line, files in all_lines(root).items()}
    found: dict[str, dict[str, list[Mutant]]] = {}
    for file in sorted(source.rglob("*.py")):
        package = file.relative_to(source).parts[0] if file.parent != source else ""
        for mutant in candidates_in(file, is_unique):
            found.setdefault(package, {}).setdefault(mutant.mistake, []).append(mutant)
    drawn: list[Mutant] = []
    while len(drawn) < count:
        for kinds in found.values():
            taken = Counter(mutant.mistake for mutant in drawn)
            kind = min(kinds, key=lambda kind: (taken[kind], kind))
            mutant = chance.choice(kinds[kind])
            if mutant not in drawn:
                drawn.append(mutant)
    return drawn[:count]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--draw"]:
        print(
            yaml.safe_dump([mutant._asdict() for mutant in draw(*map(int, sys.argv[2:]))], sort_keys=False, width=200)
        )
        sys.exit()
    sys.exit(main(*sys.argv[1:]))
