"""Phrases that a native engineer would not write, in every text that a user reads, with the words to use instead.

    python tests/phrases.py            # prints each place; exit status 1 if there is one
    python tests/phrases.py --count    # prints how often each phrase occurs

Texts are Markdown pages, page templates, comments of YAML files, and docstrings, comments and messages of the source
code. Code in backticks or in indented blocks does not count.
"""

import ast
import io
import json
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PHRASES = {
    r"go(es|ing)? on|gone on|went on": "resume (a run), continue (anything else)",
    r"anew": "again, from scratch",
    r"nobody|whoever|whom|no one": "no user, no process; or the passive",
    r"who(?! is hiring)": "the user, the process, the reader that",
    r"beside it|besides?(?= \w)": "baseline; next to; in addition to",
    r"refused, with": "not supported",
    r"an update|(?:\d|many|of|after|all|these|per|each|more|few|other) updates?": "step",
    r"trainings": "training runs, runs",
    r"real tokens": "non-padding tokens",
    r"likeliest|commonest": "most likely, most frequent",
    r"(?:bits|nats|tokens|bytes|examples|texts?|lines?|words?|samples?) an? (?:second|byte|token|text|line|update|step|"
    r"character|word|example|seed|epoch)": "per",
    r"by heart": "memorize, overfit",
    r"told? apart": "distinguish; significantly different",
    r"on the spot": "generated on the fly; synthetic",
    r"guesser": "the Bayes-optimal predictor",
    r"in the place of|in (?:its|their) place": "instead of",
    r"data sets?": "dataset",
    r"white space": "whitespace",
    r"of (?:your|its|their|his) own": "your own X, separate",
    r"says? nothing|nothing is said": "states, reports",
    r"(?-i:he|she|his|her)": "it, they",
}
"""By pattern (whole words, in any case): what to write."""


def prose_of_markdown(text: str) -> Iterator[tuple[int, str]]:
    """Paragraph by paragraph: the line at which it begins, and its words without code."""
    fenced, start, words = False, 1, list[str]()
    for number, line in enumerate([*text.splitlines(), ""], 1):
        is_fence = line.lstrip().startswith(("```", "~~~"))
        fenced ^= is_fence
        if fenced or is_fence or line.startswith("    ") or not line.strip():
            if words:
                yield start, " ".join(words)
            words = []
            continue
        start = start if words else number
        words.append(re.sub(r"`[^`]*`|\]\([^)]*\)", " ", line).strip())


def prose_of_python(text: str) -> Iterator[tuple[int, str]]:
    """Docstrings, comments, and strings of several words."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, re.sub(r"``[^`]*``|`[^`]*`", " ", " ".join(node.value.split()))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def prose_of(file: Path) -> Iterator[tuple[int, str]]:
    """The texts of a file that a user reads."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".py":
        yield from prose_of_python(text)
    elif file.suffix == ".ipynb":
        for cell in json.loads(text)["cells"]:
            if cell["cell_type"] == "markdown":
                yield from prose_of_markdown("".join(cell["source"]))
    elif file.suffix in (".yaml", ".sbatch"):
        for number, line in enumerate(text.splitlines(), 1):
            if "#" in line:
                yield number, re.sub(r"`[^`]*`", " ", line.partition("#")[2])
    elif file.suffix == ".md":
        yield from prose_of_markdown(text)
    else:
        yield from enumerate(text.splitlines(), 1)


def files_of(root: Path) -> list[Path]:
    """All files with such texts; the change log tells of older versions in their own words."""
    pages = [root / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "Makefile")]
    found = [*root.glob("docs/**/*.md"), *root.glob("benchmarks/*.md"), *root.glob("src/**/*.py")]
    found += [*root.glob("src/**/templates/*"), *root.glob("conf/**/*.yaml"), *root.glob("slurm/*.sbatch")]
    return sorted([*pages, *found, *root.glob("notebooks/*.ipynb")])


def find_phrases(root: Path) -> Iterator[tuple[Path, int, str, str]]:
    """File, line, the phrase and what to write, for each place."""
    patterns = {re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE): instead for pattern, instead in PHRASES.items()}
    for file in files_of(root):
        for line, text in prose_of(file):
            for pattern, instead in patterns.items():
                for match in pattern.finditer(text):
                    yield file.relative_to(root), line, match[0], instead


def main(arguments: list[str]) -> int:
    """The exit status."""
    found = list(find_phrases(ROOT))
    if arguments == ["--count"]:
        counts = Counter(instead for _, _, _, instead in found)
        for instead, count in counts.most_common():
            print(f"{count:6,}  {instead}")
        print(f"{len(found):6,}  in all")
        return 0
    for file, line, phrase, instead in found:
        print(f"{file}:{line}: {phrase!r}; write: {instead}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
