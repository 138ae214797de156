"""``make quick``: the tests that a change needs, the nearest first, for a minute (``SECONDS=200``: longer).

What has changed is what git sees: everything since the branch left ``main``, committed or not, untracked files too. A
test is needed if it changed, if it stands in the folder of a changed room, if it names a changed file, or if what it
imports reaches a changed module; the fewer imports lie between, the earlier it runs. Tests of other rooms that start
processes come last.
"""

import ast
import os
import re
import signal
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import grimp

ROOT = Path(__file__).parents[1]
SECONDS = 50.0  # and ten to lint and to end
FILES = 24  # to collect more takes the time in which they would run
LONG = re.compile(
    r"^pytestmark = .*mark\.(faults|nightly|release|site)", re.MULTILINE
)  # what make test does not run either


def find_changes(root: Path) -> set[Path]:
    """The files that differ from where the branch left ``main``; where there is no ``main``, from the last commit."""

    def git(*arguments: str) -> list[str]:
        return subprocess.check_output(["git", *arguments], cwd=root, text=True).splitlines()

    base = git("merge-base", "HEAD", "main")[0] if git("branch", "--list", "main") else "HEAD"
    names = [*git("diff", "--name-only", base), *git("ls-files", "--others", "--exclude-standard")]
    return {Path(name) for name in names}


@cache
def imports_of(file: Path) -> frozenset[str]:
    """What a file imports: modules, and names in them."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
    return frozenset(found)


@cache
def fixtures_of(conftest: Path) -> frozenset[str]:
    """The names of the fixtures of a ``conftest.py``."""
    functions = [node for node in ast.parse(conftest.read_text()).body if isinstance(node, ast.FunctionDef)]
    return frozenset(f.name for f in functions if any("fixture" in ast.unparse(d) for d in f.decorator_list))


def all_imports_of(test: Path) -> set[str]:
    """What a test imports: itself, by the helpers beside it, and by the fixtures that it names."""
    found, words = set(imports_of(test)), set(re.findall(r"\w+", test.read_text()))
    for helper in [*test.parent.glob("*.py"), *(ROOT / "tests").glob("*.py")]:
        if helper.stem in found:
            found |= imports_of(helper)
    for conftest in (folder / "conftest.py" for folder in test.parents if folder.is_relative_to(ROOT / "tests")):
        if conftest.exists() and fixtures_of(conftest) & words:
            found |= {name for name in imports_of(conftest) if name.startswith("triptych")}
    return found


def order(changes: set[Path]) -> list[Path]:
    """The files of tests that changed files need, as they are to run."""
    graph = grimp.build_graph("triptych")
    modules, rooms, words, named = set(), set(), set(), set()
    for change in changes:
        if change.parts[0] == "src":
            if change.suffix == ".py" and (ROOT / change).exists():  # its docstring may name its tests
                named |= {Path(name) for name in re.findall(r"tests/[\w/]+\.py", (ROOT / change).read_text())}
            module = ".".join(change.with_suffix("").parts[1:]).removesuffix(".__init__")
            while module not in graph.modules:  # a file that is gone, or no Python: its package
                module = module.rpartition(".")[0]
            modules.add(module)
            rooms |= set(module.split(".")[1:2])
        elif change.parts[0] == "conf":
            group, *choice = change.with_suffix("").parts[1:]
            rooms.add("config")
            words |= {f"{group}={'/'.join(choice)}"} if choice else {f'compose("{group}"', "composed"}
        elif change.name == "conftest.py":
            rooms.add(change.parts[-2])
        else:  # a helper, a page, a script
            words.add(change.stem if change.parts[0] == "tests" else change.name)

    def distance(test: Path) -> tuple[int, ...] | None:
        place, imports = test.relative_to(ROOT), all_imports_of(test)
        starts_processes = "subprocess" in imports
        if place in changes:
            return (0,)
        if place in named or ".".join(["triptych", *place.parts[1:-1], test.stem.removeprefix("test_")]) in modules:
            return (1,)
        if place.parts[1] in rooms or any(re.search(rf"\b{re.escape(word)}(?!\w)", test.read_text()) for word in words):
            return (2, starts_processes)
        entries = imports & graph.modules | ({"triptych.cli"} if starts_processes else set())
        if entries & modules:
            return (3, starts_processes, 1)
        chains = [graph.find_shortest_chain(importer=entry, imported=module) for entry in entries for module in modules]
        return (3, starts_processes, min(map(len, filter(None, chains)))) if any(chains) else None

    tests = [test for test in (ROOT / "tests").rglob("test_*.py") if not LONG.search(test.read_text())]
    distances = {test: far for test in sorted(tests) if (far := distance(test)) is not None}
    return sorted(distances, key=lambda test: distances[test])


def main(seconds: float = SECONDS) -> int:
    """Runs them for so long; the exit status, which is 1 also where no test has had its turn."""
    changes = find_changes(ROOT)
    needed = order(changes)
    tests = needed[:FILES]
    print(f"{len(changes)} changed files need {len(needed)} files of tests; runs {len(tests)}", flush=True)
    if not tests:
        return 0
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record.xml"
        workers = ["-n", "0"] if len(tests) < 3 else ["--no-loadscope-reorder"]
        command = [sys.executable, "-m", "pytest", *workers, f"--junitxml={record}", *map(str, tests)]
        process = subprocess.Popen(command, cwd=ROOT, process_group=0)
        try:
            return process.wait(seconds)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does, so that tests tidy up
            process.wait()
        (suite,) = ElementTree.parse(record).getroot()
        ran, failed = int(suite.attrib["tests"]), int(suite.attrib["failures"]) + int(suite.attrib["errors"])
        print(f"stopped after {seconds:g} s: {ran} tests have run, {failed} failed; make test runs all")
        return int(failed > 0 or ran == 0)


if __name__ == "__main__":
    sys.exit(main(*map(float, sys.argv[1:])))
