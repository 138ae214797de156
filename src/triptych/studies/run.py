"""Trains what a study asks for, and says what it found: on the terminal, as a page, as Markdown, and as JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from triptych.config import ConfigError, counted
from triptych.launch.local import run_jobs, server_for
from triptych.launch.sweep import Job, collect, own_command
from triptych.report.compare import compare_runs
from triptych.report.page.render import Panel
from triptych.report.read_records import RunSet, find_runs
from triptych.report.scaling import scaling
from triptych.storage.atomic import write_text
from triptych.storage.redaction import Redactor
from triptych.studies.findings import AS_PREDICTED, Finding, find
from triptych.studies.study import Study, find_studies, read_study


def introduce(study: Study, jobs: dict[str, list[Job]], n_jobs: int, output: Path, again: str) -> None:
    """Prints what is asked, what is trained for it and what comes of it; nothing, if all is trained.

    Args:
        jobs: of each arm.
        n_jobs: the most that run at once.
        output: the page.
        again: the command that goes on.
    """
    left = [job for of_arm in jobs.values() for job in of_arm if not job.is_done]
    if not left:
        return
    several = f", {n_jobs} at a time" if n_jobs > 1 and len(left) > 1 else ""
    print(f"{study.question}")
    print(f"{counted(len(left), 'training')} to do{several} (measured: {study.cost})")
    print(f"the page will be {output}; Ctrl-C stops, and `{again}` goes on from there", flush=True)


def train(study: Study, jobs: dict[str, list[Job]], n_jobs: int, again: str) -> None:
    """Trains what is not done yet: an arm after those that it begins from.

    Args:
        jobs: of each arm.
        n_jobs: the most that run at once.
        again: the command that goes on.

    Raises:
        SweepFailed: trainings failed.
    """
    left = dict(jobs)
    while left:
        ready = [arm for arm in left if not study.needs(arm) & {*left}]
        if not ready:
            raise ConfigError(f"study {study.name}: arms begin from each other: {', '.join(left)}")
        now = [job for arm in ready for job in left.pop(arm)]
        redact, command = Redactor(), own_command()
        with server_for(command, sum(not job.is_done for job in now), n_jobs) as server:
            failures = run_jobs(now, command, n_jobs, redact, server, f"`{again}`")
        collect(now, failures, [], redact)


def read_runs(study: Study, jobs: dict[str, list[Job]], relative_to: Path) -> RunSet:
    """The finished runs of a study, each with its arm.

    Args:
        relative_to: the folder that the directories in the answer are relative to.
    """
    arms = {job.directory.resolve(): arm for arm, of_arm in jobs.items() for job in of_arm}
    try:
        found = find_runs([study.folder], relative_to)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    known = [(run, arms.get((relative_to / run.directory).resolve())) for run in found.runs]
    return replace(found, runs=tuple(replace(run, arm=arm) for run, arm in known if arm is not None))


def answer(study: Study, jobs: dict[str, list[Job]], output: Path) -> None:
    """Judges the claims of a study, prints what was found, and writes it.

    Args:
        jobs: of each arm.
        output: the page; ``.md`` and ``.findings.json`` beside it have the findings alone.
    """
    found = read_runs(study, jobs, output.parent)
    findings = find(study, found.runs)
    panels = [
        Panel(one.claim.says, one.claim.because, one.text, one.outcome, one.command, one.figure) for one in findings
    ]
    compare_runs(found, output, study.question, panels)
    if study.scaling:
        ladder = [job.directory for of_arm in jobs.values() for job in of_arm if job.is_done]
        scaling(ladder, output.with_name("scaling.html"))
    record = [{key: value for key, value in asdict(one).items() if key != "figure"} for one in findings]
    write_text(output.with_suffix(".findings.json"), json.dumps(record, indent=2) + "\n")
    write_text(output.with_suffix(".md"), write_markdown(study, findings))
    print_findings(study, findings)


def write_markdown(study: Study, findings: Sequence[Finding]) -> str:
    """The findings as a page of the documentation."""
    rows = [["predicted", "because", "found", ""], ["---"] * 4]
    rows += [[one.claim.says, one.claim.because, one.text, f"**{one.outcome}**"] for one in findings]
    table = "\n".join(f"| {' | '.join(' '.join(cell.split()) for cell in row)} |" for row in rows)
    parts = [f"# {study.question}", f"    {study.command()}", study.cost, table]
    return "\n\n".join([parts[0], *([study.answer] if study.answer else []), *parts[1:]]) + "\n"


def print_findings(study: Study, findings: Sequence[Finding]) -> None:
    """On the terminal."""
    table = Table("predicted", "found", "", title=Text(study.question), title_justify="left", title_style="bold")
    for one in findings:
        style = "green" if one.outcome == AS_PREDICTED else "yellow"
        decides = f"\nto decide it: {one.command}" if one.command else ""
        table.add_row(Text(one.claim.says), Text(one.text + decides), Text(one.outcome, style=style))
    Console().print(table)


def print_studies() -> None:
    """Lists the studies that come with Triptych."""
    console = Console(highlight=False)
    for name in find_studies():
        study = read_study(name)
        jobs = [job for of_arm in study.jobs([]).values() for job in of_arm]
        done = sum(job.is_done for job in jobs)
        console.print(Text.assemble((name, "bold green"), f": {study.question}"))
        console.print(
            Padding(Text(f"{study.answer or 'not answered yet'}\n{study.cost}; {done} done here"), (0, 0, 1, 2))
        )
