"""Writes docs/studies/NAME.md, NAME.json and NAME.png from the report of a study:

    python tests/study_page.py NAME "Two of the findings" 1 4

where 1 and 4 are the numbers of the findings in the picture, and outputs/studies/NAME is in the current folder.
"""

import sys
import tempfile
import textwrap
from pathlib import Path

from browser import Browser

STUDIES = Path(__file__).parents[1] / "docs" / "studies"
SHOW_ONLY = """
document.querySelectorAll("header, .all, main > :not(.findings)").forEach(element => element.remove());
document.querySelectorAll(".finding").forEach((element, index) => KEPT.includes(index + 1) || element.remove());
"""


def write_study_page(report: Path, caption: str) -> None:
    """The page of the documentation and the record, from those that `triptych study` wrote next to the report."""
    name = report.parent.name
    title, *parts = report.with_suffix(".md").read_text(encoding="utf-8").strip().split("\n\n")
    table = next(index for index, part in enumerate(parts) if part.startswith("| prediction |"))
    parts.insert(table, f"![{caption}]({name}.png)")
    parts = [part if part[0] in "|-! " else textwrap.fill(part, 120, break_on_hyphens=False) for part in parts]
    parts.append(f"The values for each seed are in [{name}.json]({name}.json). The study is `conf/study/{name}.yaml`.")
    (STUDIES / f"{name}.md").write_text("\n\n".join([title, *parts]) + "\n", encoding="utf-8")
    (STUDIES / f"{name}.json").write_text(report.with_suffix(".findings.json").read_text(encoding="utf-8"))


def draw_findings(report: Path, numbers: list[int]) -> None:
    """A picture of some findings of the report."""
    with tempfile.TemporaryDirectory() as profile, Browser(Path(profile)) as browser:
        browser.open(report.resolve().as_uri(), width=1000, height=200)
        browser.ask(SHOW_ONLY.replace("KEPT", str(numbers)))
        browser.photograph(STUDIES / f"{report.parent.name}.png")


if __name__ == "__main__":
    name, caption, *numbers = sys.argv[1:]
    report = Path("outputs", "studies", name, "report.html")
    write_study_page(report, caption)
    draw_findings(report, [int(number) for number in numbers])
