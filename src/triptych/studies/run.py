"""Runs a study, and reports its findings on the terminal, as a page, as Markdown, and as JSON.

Tested by tests/studies/test_study.py.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from triptych.config import ConfigError, counted
from triptych.launch.local import run_jobs
from triptych.launch.sweep import Job, collect, own_command
from triptych.report.compare import compare_runs
from triptych.report.page.render import Panel
from triptych.report.read_records import RunSet, find_runs
from triptych.report.scaling_report import scaling
from triptych.storage.atomic import write_text
from triptych.storage.redaction import Redactor
from triptych.studies.findings import AS_PREDICTED, Finding, judge_claims
from triptych.studies.study import Study, find_studies, read_study


def introduce(study: Study, jobs: dict[str, list[Job]], n_jobs: int, output: Path, again: str) -> None:
    """Prints the question, the runs to train and the output; nothing if all runs are done.

    Args:
        jobs: of each variant.
        n_jobs: the most that run at once.
        output: the page.
        again: the command that resumes the study.
    """
    left = [job for of_variant in jobs.values() for job in of_variant if not job.is_done]
    if not left:
        return
    several = f", {n_jobs} at a time" if n_jobs > 1 and len(left) > 1 else ""
    print(f"{study.question}")
    print(f"{counted(len(left), 'run')} to train{several} (measured: {study.runtime_note})")
    print(f"the page will be {output}; Ctrl-C stops, and `{again}` resumes", flush=True)


def train_variants(study: Study, jobs: dict[str, list[Job]], n_jobs: int, again: str) -> None:
    """Trains the remaining runs: a variant after those that it starts from.

    Args:
        jobs: of each variant.
        n_jobs: the most that run at once.
        again: the command that resumes the study.

    Raises:
        SweepFailed: runs failed.
    """
    left = dict(jobs)
    while left:
        ready = [variant for variant in left if not study.needs(variant) & {*left}]
        if not ready:
            raise ConfigError(f"study {study.name}: variants start from each other: {', '.join(left)}")
        now = [job for variant in ready for job in left.pop(variant)]
        redact = Redactor()
        failures = run_jobs(now, own_command(), n_jobs, redact, f"`{again}`")
        collect(now, failures, [], redact)


def read_runs(study: Study, jobs: dict[str, list[Job]], relative_to: Path) -> RunSet:
    """The finished runs of a study, each with its variant.

    Args:
        relative_to: the folder that the directories in the result are relative to.
    """
    variants = {job.directory.resolve(): variant for variant, of_variant in jobs.items() for job in of_variant}
    try:
        found = find_runs([study.folder], relative_to)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    known = [(run, variants.get((relative_to / run.directory).resolve())) for run in found.runs]
    return replace(found, runs=tuple(replace(run, variant=variant) for run, variant in known if variant is not None))


def report_findings(study: Study, jobs: dict[str, list[Job]], output: Path) -> None:
    """Tests the claims of a study, and prints and writes the findings.

    Args:
        jobs: of each variant.
        output: the page; ``.md`` and ``.findings.json`` with the same name hold only the findings.
    """
    found = read_runs(study, jobs, output.parent)
    findings = judge_claims(study, found.runs)
    panels = [
        Panel(one.claim.statement, one.claim.rationale, one.text, one.outcome, one.command, one.figure)
        for one in findings
    ]
    compare_runs(found, output, study.question, panels)
    if study.scaling:
        ladder = [job.directory for of_variant in jobs.values() for job in of_variant if job.is_done]
        scaling(ladder, output.with_name("scaling.html"))
    record = [{key: value for key, value in asdict(one).items() if key != "figure"} for one in findings]
    for one in record:  # JSON has no NaN
        one["values"] = {key: [x if math.isfinite(x) else None for x in found] for key, found in one["values"].items()}
    write_text(output.with_suffix(".findings.json"), json.dumps(record, indent=2) + "\n")
    write_text(output.with_suffix(".md"), write_markdown(study, findings))
    print_findings(study, findings)


def write_markdown(study: Study, findings: Sequence[Finding]) -> str:
    """The findings as a page of the documentation."""
    rows = [["prediction", "reason", "result", "outcome"], ["---"] * 4]
    rows += [[one.claim.statement, one.claim.rationale, one.text, f"**{one.outcome}**"] for one in findings]
    table = "\n".join(f"| {' | '.join(' '.join(cell.split()) for cell in row)} |" for row in rows)
    parts = [f"# {study.question}", f"    {study.command()}", study.runtime_note, table]
    return "\n\n".join([parts[0], *([study.answer] if study.answer else []), *parts[1:]]) + "\n"


def print_findings(study: Study, findings: Sequence[Finding]) -> None:
    """Prints the findings on the terminal."""
    table = Table(
        "prediction", "result", "outcome", title=Text(study.question), title_justify="left", title_style="bold"
    )
    for one in findings:
        style = "green" if one.outcome == AS_PREDICTED else "yellow"
        decides = f"\nto decide it: {one.command}" if one.command else ""
        table.add_row(Text(one.claim.statement), Text(one.text + decides), Text(one.outcome, style=style))
    Console().print(table)


def print_studies() -> None:
    """Lists the studies that come with Triptych."""
    console = Console(highlight=False)
    for name in find_studies():
        study = read_study(name)
        jobs = [job for of_variant in study.jobs([]).values() for job in of_variant]
        done = sum(job.is_done for job in jobs)
        console.print(Text.assemble((name, "bold green"), f": {study.question}"))
        state = Text(f"{study.answer or 'no answer yet'}\n{study.runtime_note}; {done} finished here")
        console.print(Padding(state, (0, 0, 1, 2)))
