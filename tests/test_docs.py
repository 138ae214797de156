"""The samples of the documentation run, and its pictures are what the code says."""

import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize("page", ["concepts.md", "api/python.md"])
def test_the_samples_of_a_page(page: str) -> None:
    """One after the other, in one session; those of the concepts check themselves."""
    samples = re.findall("^```python\n(.*?)^```", (DOCS / page).read_text(encoding="utf-8"), re.S | re.M)
    assert samples
    names: dict[str, Any] = {"tokens": torch.randint(1000, (2, 128))}
    for sample in samples:
        exec(sample, names)


def test_the_pictures_of_the_masks() -> None:
    """Those that are kept are those that the masks of the models give."""
    kept = {file.name: file.read_text(encoding="utf-8") for file in (DOCS / "pictures").iterdir()}
    assert runpy.run_path(str(DOCS / "draw_masks.py"))["draw_all"]() == kept
