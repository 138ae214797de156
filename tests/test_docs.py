"""The samples of the documentation run, and its pictures are what the code says."""

import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from triptych import report

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize("page", ["concepts.md", "api/python.md", "api/inspection.md"])
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
    drawing = runpy.run_path(str(DOCS / "draw_masks.py"))
    assert drawing["draw_all"]() == kept
    css = (Path(report.__file__).parent / "page/templates/page.css").read_text(encoding="utf-8")
    colours = dict(re.findall(r"--(\w+): (#\w{6});", css.partition("@media")[0]))  # of a light page
    names = {"encoder_only": "BOTH_SIDES", "decoder_only": "PAST", "full": "CROSS"}
    assert {name: colours[name] for name in names} == {name: drawing[constant] for name, constant in names.items()}


def test_the_tour_names_each_room_once() -> None:
    tour = (DOCS / "architecture.md").read_text(encoding="utf-8").partition("## Where is")[0]
    folders = re.findall(r"^      (\w+)/ ", tour, re.MULTILINE)
    package = Path(report.__file__).parents[1]
    assert sorted(folders) == sorted(file.parent.name for file in package.glob("*/__init__.py"))
