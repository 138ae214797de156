"""Writes docs/claims.md, and its pictures and data in docs/claims: verdicts by rule on each claim of docs/claims.yaml.

Run by `make claims`.
"""

import csv
import io
import json
import re
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import nbformat
import yaml

from pages import rows, write_page

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
CONSTRUCTED, HOLDS, CONDITION, FAILS, OPEN, NOT_MEASURED = (
    "shown by construction", "holds", "holds with a condition", "does not hold", "inconclusive", "not measured",
)  # fmt: skip
COLOURS = {
    CONSTRUCTED: "#0072b2", HOLDS: "#007d59", CONDITION: "#8fbf4d", FAILS: "#b05200", OPEN: "#c9a227",
    NOT_MEASURED: "#c4c9ce",
}  # fmt: skip
KEYS = {"group", "claim", "tests", "condition", "literature", "next"}
AGREES = {"as predicted": True, "not as predicted": False, "inconclusive": None}
MEANING = {True: "supports it", False: "contradicts it", None: "inconclusive"}
DOT_COLOURS = ("#0072b2", "#b05200")


class ClaimError(ValueError):
    """A claim that names something that does not exist."""


@dataclass(frozen=True)
class ClaimTest:
    """A test of a claim.

    Attributes:
        source: what shows it, as a link with its command and time.
        figure: the result.
        agrees: whether it is as the claim says; None: undecided.
        is_sample: whether it is asserted code, true by construction.
        finding: of a study.
    """

    source: str
    figure: str
    agrees: bool | None
    is_sample: bool = False
    finding: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Claim:
    """A claim and its tests; the fields are those of docs/claims.yaml."""

    number: int
    group: str
    text: str
    tests: tuple[ClaimTest, ...]
    condition: str
    literature: str
    next: str

    @property
    def verdict(self) -> str:
        """By the rules that the page states."""
        if not self.tests:
            return NOT_MEASURED
        found = {test.agrees for test in self.tests}
        if found == {True} and not self.condition:
            return CONSTRUCTED if all(test.is_sample for test in self.tests) else HOLDS
        if True in found:
            return CONDITION
        return FAILS if found == {False} else OPEN


def read_claims(path: Path = DOCS / "claims.yaml") -> tuple[list[Claim], list[dict[str, Any]]]:
    """The claims, and the sessions of the course.

    Raises:
        ClaimError: a claim names something that does not exist, or holds with a condition that is not named.
    """
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    claims, group = list[Claim](), ""
    for number, entry in enumerate(content["claims"], 1):
        if unknown := set(entry) - KEYS:
            raise ClaimError(f"{path.name}: claim {number}: unknown key {unknown.pop()}; expected {', '.join(KEYS)}")
        group = entry.get("group", group)
        try:
            tests = tuple(read_test(test) for test in entry.get("tests", ()))
        except ClaimError as error:
            raise ClaimError(f"{path.name}: claim {number}: {error}") from None
        words = (entry.get(key) or "" for key in ("condition", "literature", "next"))
        claim = Claim(number, group, entry["claim"], tests, *words)
        if claim.verdict == CONDITION and not claim.condition:
            raise ClaimError(f"{path.name}: claim {number}: its tests disagree; expected a condition")
        claims.append(claim)
    taught = Counter(number for session in content["course"] for number in session["claims"])
    if wrong := {claim.number for claim in claims} ^ set(taught) or {n for n, times in taught.items() if times > 1}:
        raise ClaimError(f"{path.name}: course: expected claim {min(wrong)} in one session")
    return claims, content["course"]


def read_test(entry: Mapping[str, Any]) -> ClaimTest:
    """A test of a claim, from its entry."""
    (kind,) = {"sample", "notebook", "study", "experiment", "page"} & set(entry) or {""}
    if kind == "sample":
        page, _, heading = entry[kind].partition("#")
        if "```python" not in section_of(DOCS / page, heading):
            raise ClaimError(f"{entry[kind]} has no sample")
        anchor = re.sub(r"[^\w]+", "-", heading.lower())
        return ClaimTest(f"[{heading}]({page}#{anchor})", "asserted by the sample", True, is_sample=True)
    if kind == "notebook":
        file, _, heading = entry[kind].partition("#")
        notebook = nbformat.read(ROOT / "notebooks" / file, as_version=4)
        titles = [line.lstrip("# ") for cell in notebook.cells for line in cell.source.splitlines() if line[:2] == "##"]
        if heading not in titles:
            raise ClaimError(f"{entry[kind]}: no such section; expected one of {', '.join(titles)}")
        return ClaimTest(f"notebook `{file}`, section {heading}", "computed there", True, is_sample=True)
    agrees = entry.get("agrees", True)
    if kind == "study":
        finding = finding_of(entry[kind], entry["claim"])
        outcome = AGREES[finding["outcome"]]
        is_opposite = outcome is False and not agrees and finding["claim"]["margin"] is not None
        verdict = None if outcome is None or is_opposite else outcome == agrees
        study = yaml.safe_load((ROOT / "conf/study" / f"{entry[kind]}.yaml").read_text(encoding="utf-8"))
        link = f"[study {entry[kind]}](studies/{entry[kind]}.md), prediction {entry['claim']}"
        source = f"{link}: `triptych study {entry[kind]}` ({study['runtime_note']})"
        return ClaimTest(source, f"{finding['what']}: {show_finding(finding)}", verdict, finding=finding)
    if kind == "experiment":
        file = ROOT / "conf/experiment" / f"{entry[kind]}.yaml"
        cost = re.search(r"^# Cost: (.*)", text_of(file, kind), re.MULTILINE)
        source = f"`triptych train experiment={entry[kind]}`" + (f" ({cost[1].split(', in')[0]})" if cost else "")
    elif kind == "page":
        file = ROOT / entry[kind]
        link = entry[kind].removeprefix("docs/") if entry[kind].startswith("docs/") else f"../{entry[kind]}"
        source = f"[{entry[kind]}]({link})"
    else:
        raise ClaimError(f"{dict(entry)}: expected sample, notebook, study, experiment or page")
    if entry["figure"] not in re.sub(r"\n#? *", " ", text_of(file, kind)):
        raise ClaimError(f"{entry[kind]} does not state {entry['figure']!r}")
    # a single run shows that something is possible, and decides nothing else
    return ClaimTest(source, entry.get("words", entry["figure"]), agrees if kind == "page" or agrees else None)


def text_of(file: Path, kind: str) -> str:
    """The content of a file of this kind."""
    if not file.exists():
        known = sorted(path.stem for path in file.parent.glob(f"*{file.suffix}"))
        raise ClaimError(f"{file.stem}: there is no such {kind}; expected one of {', '.join(known)}")
    return file.read_text(encoding="utf-8")


def section_of(page: Path, heading: str) -> str:
    parts = re.split(r"^##+ (.*)\n", text_of(page, "page"), flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    if heading not in sections:
        raise ClaimError(f"{page.name} has no section {heading!r}; expected one of {', '.join(sections)}")
    return sections[heading]


def finding_of(study: str, number: int) -> Mapping[str, Any]:
    record = json.loads(text_of(DOCS / "studies" / f"{study}.json", "study"))
    findings = record["findings"] if isinstance(record, dict) else record
    if not 1 <= number <= len(findings):
        raise ClaimError(f"study {study} has the claims 1 to {len(findings)}, not {number}")
    finding: Mapping[str, Any] = findings[number - 1]
    return finding


def show_finding(finding: Mapping[str, Any]) -> str:
    means = " vs. ".join(f"{name.replace('_', ' ')} {value}" for name, value in finding["shown"].items())
    return f"{means}; {finding['difference']}"


def draw_tests(findings: Sequence[Mapping[str, Any]]) -> str:
    """A picture (SVG) with a panel per finding and a row per variant: a dot per seed, and a line at their mean."""
    parts, top = list[str](), 8
    for finding in findings:
        values = [value for found in finding["values"].values() for value in found]
        low, high = min(values), max(values)
        pad = 0.08 * (high - low) or 0.05 * abs(high) or 1.0
        share = finding["what"].startswith(("accuracy", "exact match")) and low >= 0 and high <= 1
        low, high = (max(low - pad, 0.0), min(high + pad, 1.0)) if share else (low - pad, high + pad)
        statement = f"Predicted: {finding['claim']['statement']}. Found: {finding['outcome']}"
        parts.append(f'<text x="8" y="{top + 14}" font-weight="bold">{escape(statement)}</text>')
        top += 32
        for colour, (name, found) in zip(DOT_COLOURS, finding["values"].items(), strict=True):
            label = f"{name.replace('_', ' ')}: {finding['shown'][name]}"
            parts.append(f'<text x="8" y="{top + 4}">{escape(label)}</text>')
            parts.append(f'<line x1="420" y1="{top}" x2="800" y2="{top}" stroke="#c4c9ce"/>')
            places = [420 + 380 * (value - low) / (high - low) for value in found]
            mean = sum(places) / len(places)
            parts.append(f'<line x1="{mean:.1f}" y1="{top - 9}" x2="{mean:.1f}" y2="{top + 9}" stroke="{colour}"/>')
            parts += [f'<circle cx="{x:.1f}" cy="{top}" r="4" fill="{colour}" fill-opacity="0.6"/>' for x in places]
            top += 24
        ends = (f"{100 * end:.3g} %" if share else f"{end:.4g}" for end in (low, high))
        for end, (x, anchor) in zip(ends, ((420, "start"), (800, "end")), strict=True):
            parts.append(f'<text x="{x}" y="{top}" text-anchor="{anchor}" fill="#5b6670">{end}</text>')
        parts.append(f'<text x="610" y="{top}" text-anchor="middle" fill="#5b6670">{escape(finding["what"])}</text>')
        top += 22
    return picture(810, top, "".join(parts))


def draw_overview(claims: Sequence[Claim]) -> str:
    """A picture (SVG) of all verdicts: a row per group, a square per claim."""
    groups, parts = list(dict.fromkeys(claim.group for claim in claims)), list[str]()
    for row, group in enumerate(groups):
        parts.append(f'<text x="8" y="{30 * row + 27}">{escape(group)}</text>')
        for column, claim in enumerate(one for one in claims if one.group == group):
            x, y = 330 + 30 * column, 30 * row + 9
            parts.append(f'<g><title>{escape(f"{claim.number}. {claim.text} {claim.verdict}")}</title>'
                         f'<rect x="{x}" y="{y}" width="27" height="27" rx="3" fill="{COLOURS[claim.verdict]}"/>'
                         f'<text x="{x + 13.5}" y="{y + 18}" text-anchor="middle" font-size="12" '
                         f'fill="{"#20262b" if claim.verdict in (NOT_MEASURED, OPEN, CONDITION) else "#ffffff"}">'
                         f'{claim.number}</text></g>')  # fmt: skip
    top = 30 * len(groups) + 20
    for number, (verdict, colour) in enumerate(COLOURS.items()):
        x, y = 8 + 260 * (number % 3), top + 24 * (number // 3)
        parts.append(f'<rect x="{x}" y="{y}" width="15" height="15" rx="2" fill="{colour}"/>'
                     f'<text x="{x + 22}" y="{y + 12}">{verdict}</text>')  # fmt: skip
    return picture(780, top + 52, "".join(parts))


def picture(width: int, height: int, content: str) -> str:
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    text = 'font-family="sans-serif" font-size="13"'
    ground = f'<rect width="{width}" height="{height}" fill="#ffffff"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {text}>{ground}{content}</svg>\n'


def write_csv(findings: Sequence[Mapping[str, Any]]) -> str:
    """The values of a picture."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["prediction", "measure", "variant", "run", "value"])
    for finding in findings:
        for variant, values in finding["values"].items():
            table.writerows(
                [finding["claim"]["statement"], finding["what"], variant, run, value]
                for run, value in enumerate(values, 1)
            )
    return text.getvalue()


def describe(claim: Claim) -> list[str]:
    """The cells of a claim's row."""
    shown = [
        f"{test.figure} ({test.source})" + ("" if test.is_sample else f": {MEANING[test.agrees]}")
        for test in claim.tests
    ]
    if claim.condition:
        shown.append(f"*{claim.condition}*")
    if any(test.finding for test in claim.tests):
        shown.append(f"[values](claims/{claim.number}.csv)")
    literature = [claim.literature] * bool(claim.literature) + [f"To measure: {claim.next}."] * bool(claim.next)
    anchored = f'<a id="claim-{claim.number}"></a>{claim.number}'
    cells = [anchored, claim.text, f"**{claim.verdict}**", "<br>".join(shown), "<br>".join(literature)]
    return [cell.replace("|", "\\|") for cell in cells]


def write_claims(docs: Path = DOCS) -> None:
    """The page, its pictures and their data."""
    claims, course = read_claims()
    folder = docs / "claims"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "overview.svg").write_text(draw_overview(claims), encoding="utf-8")
    groups = []
    for group in dict.fromkeys(claim.group for claim in claims):
        ours = [claim for claim in claims if claim.group == group]
        table = rows([describe(claim) for claim in ours])
        drawn = []
        for claim in ours:
            if findings := [test.finding for test in claim.tests if test.finding]:
                (folder / f"{claim.number}.svg").write_text(draw_tests(findings), encoding="utf-8")
                (folder / f"{claim.number}.csv").write_text(write_csv(findings), encoding="utf-8")
                drawn.append(f"![Claim {claim.number}: {claim.text}](claims/{claim.number}.svg)")
        head = "| | claim | verdict | what shows it | literature, and what would measure it |\n|---|---|---|---|---|"
        groups.append("\n\n".join([f"## {group}", f"{head}\n{table}", *drawn]))
    counts = Counter(claim.verdict for claim in claims)
    write_page(
        docs / "claims.md",
        "claims_page",
        count=str(len(claims)),
        verdicts=rows([verdict, str(counts[verdict])] for verdict in COLOURS),
        course=rows(
            [str(number), session["title"], ", ".join(f'<a href="#claim-{n}">{n}</a>' for n in session["claims"])]
            for number, session in enumerate(course, 1)
        ),
        groups="\n\n".join(groups),
    )


if __name__ == "__main__":
    write_claims()
