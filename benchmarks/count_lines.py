"""Lines of src/triptych by package: statements, code on the page, and docstrings.

    python benchmarks/count_lines.py [FOLDER]

L, statements: one that is broken over several lines counts once, so L does not depend on how code is formatted. P,
lines of code on the page: without blank lines, comments and docstrings. D, lines of docstrings, blank ones within them
too. With FOLDER, the src/triptych of another checkout, two versions can be compared. Files, classes and functions are
as long as they are on the page, docstrings included.
"""

import ast
import io
import sys
import tokenize
from pathlib import Path
from typing import NamedTuple


class Lines(NamedTuple):
    """What is counted of a file."""

    statements: int
    code: int
    docstrings: int


def count_lines(source: str) -> Lines:
    """A docstring is a text that is a statement of its own, wherever it stands."""
    documented: set[int] = set()
    texts = 0
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            documented.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
            texts += 1
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    ends = sum(token.type == tokenize.NEWLINE for token in tokens)
    comments = {t.start[0] for t in tokens if t.type == tokenize.COMMENT and t.line.lstrip().startswith("#")}
    filled = {number for number, line in enumerate(source.splitlines(), start=1) if line.strip()}
    return Lines(ends - texts, len(filled - comments - documented), len(documented))


def print_longest(kind: str, lengths: list[tuple[int, str]], count: int) -> None:
    """Prints the first few."""
    print(f"the longest {kind}, docstrings included:")
    for length, name in sorted(lengths, reverse=True)[:count]:
        print(f"{length:7,}  {name}")


def main() -> None:
    """Prints the lines of each package, the totals, and the longest files, classes and functions."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "src" / "triptych"
    packages: dict[str, Lines] = {}
    files: list[tuple[int, str]] = []
    classes: list[tuple[int, str]] = []
    functions: list[tuple[int, str]] = []
    for file in sorted(root.rglob("*.py")):
        source, place = file.read_text(), file.relative_to(root)
        package = place.parts[0] + "/" * (len(place.parts) > 1)
        lines = count_lines(source)
        packages[package] = Lines(*map(sum, zip(lines, packages.get(package, (0, 0, 0)), strict=True)))
        files.append((len(source.splitlines()), str(place)))
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                length = ((node.end_lineno or 0) - node.lineno + 1, f"{place}: {node.name}")
                (classes if isinstance(node, ast.ClassDef) else functions).append(length)
    print(f"{'L':>7}{'P':>8}{'D':>8}")
    for package, lines in sorted(packages.items(), key=lambda row: -row[1].code):
        print(f"{lines.statements:7,}{lines.code:8,}{lines.docstrings:8,}  {package}")
    total = Lines(*map(sum, zip(*packages.values(), strict=True)))
    folders = sum(package.endswith("/") for package in packages)
    modules = sum(not package.endswith(("/", "__.py")) for package in packages)
    print(
        f"{total.statements:7,}{total.code:8,}{total.docstrings:8,}  in all; {folders} packages and {modules} modules"
    )
    print_longest("files", files, 3)
    print_longest("classes", classes, 3)
    print_longest("functions", functions, 5)


if __name__ == "__main__":
    main()
