"""What the README shows runs."""

import re
from pathlib import Path
from typing import Any

import torch

README = Path(__file__).parents[1] / "README.md"


def test_the_blocks_in_plain_pytorch() -> None:
    (code,) = [c for c in re.findall("```python\n(.*?)```", README.read_text(encoding="utf-8"), re.S) if "Stack(" in c]
    names: dict[str, Any] = {"tokens": torch.randint(1000, (2, 128))}
    exec(code, names)
    assert names["logits"].shape == (2, 128, 1000)


def test_links_lead_somewhere() -> None:
    """From the README and from each page of docs to files of the project."""
    for page in (README, *README.parent.glob("docs/**/*.md"), README.parent / "CONTRIBUTING.md"):
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"
