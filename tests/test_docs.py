"""The samples of the documentation run, and its pictures are what the code says."""

import re
import runpy
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"


def test_the_samples_of_the_concepts() -> None:
    """One after the other, in one session; they check themselves."""
    samples = re.findall("^```python\n(.*?)^```", (DOCS / "concepts.md").read_text(encoding="utf-8"), re.S | re.M)
    assert sum("assert" in sample for sample in samples) > 3
    names: dict[str, Any] = {}
    for sample in samples:
        exec(sample, names)


def test_the_pictures_of_the_masks() -> None:
    """Those that are kept are those that the masks of the models give."""
    kept = {file.name: file.read_text(encoding="utf-8") for file in (DOCS / "pictures").iterdir()}
    assert runpy.run_path(str(DOCS / "draw_masks.py"))["draw_all"]() == kept
