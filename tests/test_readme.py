"""What the README shows runs."""

import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_links_lead_somewhere() -> None:
    """From the README and from each page of docs to files of the project."""
    for page in (README, *README.parent.glob("docs/**/*.md"), README.parent / "CONTRIBUTING.md"):
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
            if "://" not in target and not target.startswith("configuration/"):  # which `make docs` writes
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_files_of_the_tour_are_there() -> None:
    """Of ``src/triptych``, or of the project."""
    tour = (README.parent / "docs/architecture.md").read_text(encoding="utf-8")
    files = re.findall(r"`([\w/.]+\.(?:py|yaml|toml))`", tour)
    assert len(files) > 30
    for file in files:
        assert (README.parent / "src/triptych" / file).is_file() or (README.parent / file).is_file(), file
