"""Lines of code of src/triptych by room, without docstrings, comments and blanks.

    python benchmarks/count_lines.py [FOLDER]

A line is a logical one: a statement that is broken over several counts once, so the figure does not depend on how code
is formatted. Functions are as long as they are on the page, docstring included.
"""

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path


def lines_of_code(source: str) -> int:
    """Logical lines but for texts that stand alone, which are documentation."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    texts = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]
    return sum(token.type == tokenize.NEWLINE for token in tokens) - len(texts)


def main() -> None:
    """Prints the lines of each room, and the longest functions."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "src" / "triptych"
    rooms: Counter[str] = Counter()
    functions: list[tuple[int, str]] = []
    for file in sorted(root.rglob("*.py")):
        source, place = file.read_text(), file.relative_to(root)
        rooms[place.parts[0] + "/" * (len(place.parts) > 1)] += lines_of_code(source)
        functions += [
            ((node.end_lineno or 0) - node.lineno + 1, f"{place}: {node.name}")
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
    modules = sum(not room.endswith(("/", "__.py")) for room in rooms)
    packages = sum(room.endswith("/") for room in rooms)
    for room, lines in rooms.most_common():
        print(f"{lines:7,}  {room}")
    print(f"{rooms.total():7,}  in all; {packages} packages and {modules} modules at the top. The longest functions:")
    for lines, name in sorted(functions, reverse=True)[:5]:
        print(f"{lines:7,}  {name}")


if __name__ == "__main__":
    main()
