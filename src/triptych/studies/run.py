"""Runs a study, and reports its findings on the terminal, as a page, as Markdown, and as JSON.

Tested by tests/studies/test_study.py.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from triptych.config import amount, counted
from triptych.launch.local import run_jobs
from triptych.launch.sweep import collect, own_command
from triptych.report.compare import compare_runs, finite
from triptych.report.page.charts import draw_sensitivity
from triptych.report.page.render import Panel
from triptych.report.read_records import RecordedRun
from triptych.report.scaling_report import scaling
from triptych.report.statistics.metrics import validation_key
from triptych.storage.atomic import write_text
from triptych.storage.redaction import Redactor
from triptych.storage.run_directory import RECORD
from triptych.studies.findings import AS_PREDICTED, Finding, judge_claims
from triptych.studies.plan import StudyPlan, check_variants, plan_study, read_runs
from triptych.studies.study import Study, Tuning, find_studies, read_study

RECORDED = (
    "architecture", "seed", "began", "ended", "steps", "best_step", "params", "train_flops", "wall_time_s", "metrics",
    "data_sha256", "tokenizer_sha256", "weights_sha256", "git_commit",
)  # fmt: skip
"""Keys of summary.json in the record of a study."""


def introduce(study: Study, plan: StudyPlan, n_jobs: int, output: Path, again: str) -> None:
    """Prints the question, the runs to train and the output; nothing if all runs are done.

    Args:
        n_jobs: the most that run at once.
        output: the page.
        again: the command that resumes the study.
    """
    jobs = [job for of_variant in (*plan.trials.values(), *plan.jobs.values()) for job in of_variant]
    left = sum(not job.is_done for job in jobs)
    if not left:
        return
    several = f", {n_jobs} at a time" if n_jobs > 1 and left > 1 else ""
    kind = "trial" if len(plan.tunings) < len(plan.trials) else "run"
    print(f"{study.question}")
    print(f"{counted(left, kind)} to train{several} (measured: {study.runtime_note})")
    print(f"the page will be {output}; Ctrl-C stops, and `{again}` resumes", flush=True)


def train_study(study: Study, more: Sequence[str], n_jobs: int, output: Path, again: str) -> StudyPlan:
    """Trains the remaining runs: a variant after its trials, and after those that it starts from.

    Args:
        more: overrides that come last.
        n_jobs: the most that run at once.
        output: the page.
        again: the command that resumes the study.

    Raises:
        SweepFailed: runs failed.
    """
    plan, tried = plan_study(study, more), set[Path]()
    if any(not job.is_done for job in plan.startable):
        check_variants(study, more)
    introduce(study, plan, n_jobs, output, again)
    while jobs := [job for job in plan.startable if job.directory not in tried]:
        redact = Redactor()
        failures = run_jobs(jobs, own_command(), n_jobs, redact, f"`{again}`")
        collect(jobs, failures, [], redact)
        tried |= {job.directory for job in jobs}
        known, plan = plan.tunings, plan_study(study, more)
        for variant in plan.tunings.keys() - known:
            print(describe_tuning(variant, plan.tunings[variant]), flush=True)
    return plan


def describe_tuning(variant: str, tuning: Tuning) -> str:
    """The trials of a variant and the chosen one, in a sentence."""
    values = ", ".join(f"{key}={value}" for key, value in tuning.chosen.values.items())
    flops = f"{counted(len(tuning.trials), 'trial')} of {amount(tuning.train_flops)} FLOPs"
    return f"{variant.replace('_', ' ')}: {values} is the best of {flops} ({tuning.measure}: {tuning.chosen.shown})"


def draw_tunings(study: Study, tunings: Mapping[str, Tuning]) -> list[Panel]:
    """The score of each variant against each tuned number, for variants that were tuned together."""
    panels = []
    for variants in study.panels():
        known = {variant: tunings[variant] for variant in variants if variant in tunings}
        for key in dict.fromkeys(key for tuning in known.values() for key in tuning.chosen.values):
            curves = {
                variant: (tuning.architecture, curve)
                for variant, tuning in known.items()
                if (curve := tuning.curve(key))
            }
            measures = ", ".join(dict.fromkeys(tuning.measure for tuning in known.values()))
            text = ". ".join(describe_tuning(variant, tuning) for variant, tuning in known.items()) + "."
            if curves:
                panels.append(Panel(f"Tuned: {key}", "", text, "", "", draw_sensitivity(key, measures, curves)))
    return panels


def report_findings(study: Study, plan: StudyPlan, output: Path) -> None:
    """Tests the claims of a study, and prints and writes the findings.

    Args:
        output: the page; ``.md`` and ``.findings.json`` with the same name hold only the findings.
    """
    found = read_runs(plan.jobs, output.parent)
    findings = judge_claims(study, found.runs, plan.tunings)
    panels = [
        Panel(one.claim.statement, one.claim.reason, one.text, one.outcome, one.command, one.figure) for one in findings
    ]
    compare_runs(found, output, study.question, panels + draw_tunings(study, plan.tunings), answer=study.conclusion)
    if study.scaling:
        ladder = [job.directory for jobs in (plan.trials or plan.jobs).values() for job in jobs if job.is_done]
        scaling(ladder, output.with_name("scaling.html"))
    write_text(output.with_suffix(".findings.json"), write_json(study, findings, plan.tunings, found.runs))
    write_text(output.with_suffix(".md"), write_markdown(study, findings, plan.tunings))
    print_findings(study, findings)


def write_json(
    study: Study, findings: Sequence[Finding], tunings: Mapping[str, Tuning], runs: Sequence[RecordedRun]
) -> str:
    """The record of a study, from which its claims can be judged again: findings, trials, and of each run its costs,
    scores and digests, the settings that differ between runs, and the validation curves of the task's metrics."""
    keys = dict.fromkeys(key for run in runs for key in run.settings)
    differing = [key for key in keys if len({str(run.settings.get(key)) for run in runs}) > 1]
    record = {
        "study": study.name,
        "findings": [{key: value for key, value in asdict(one).items() if key != "figure"} for one in findings],
        "tunings": {
            variant: {
                "measure": tuning.measure,
                "chosen": tuning.chosen.values,
                "trials": [{**trial.values, "score": trial.score} for trial in tuning.trials],
                "edges": [edge.describe(variant) for edge in tuning.edges],
                "train_flops": tuning.train_flops,
            }
            for variant, tuning in tunings.items()
        },
        "runs": [
            {"variant": run.variant}
            | {key: value for key, value in run.summary.items() if key in RECORDED}
            | {"settings": {key: run.settings[key] for key in differing if key in run.settings}}
            | {"curves": {key: [[*x.steps], [*x.values]] for key, x in run.curves.items() if key in _curves_of(run)}}
            for run in runs
        ],
    }
    return json.dumps(finite(record), indent=1) + "\n"


def _curves_of(run: RecordedRun) -> set[str]:
    return {validation_key(metric, run) for metric in run.task_info.comparison_metrics}


def write_markdown(study: Study, findings: Sequence[Finding], tunings: Mapping[str, Tuning]) -> str:
    """The findings, and what was tuned, as a page of the documentation."""
    rows = [["prediction", "reason", "result", "outcome"], ["---"] * 4]
    rows += [[one.claim.statement, one.claim.reason, one.text, f"**{one.outcome}**"] for one in findings]
    table = "\n".join(f"| {' | '.join(' '.join(cell.split()) for cell in row)} |" for row in rows)
    tuned = "\n".join(f"- {describe_tuning(variant, tuning)}" for variant, tuning in tunings.items())
    parts = [f"# {study.question}", study.conclusion, f"    {study.command()}", study.runtime_note, table, tuned]
    return "\n\n".join(filter(None, parts)) + "\n"


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
        done = len(list(study.folder.glob(f"*/*/{RECORD}")))
        state = Text(
            f"{study.conclusion or 'no answer yet'}\n{study.runtime_note}; {counted(done, 'run')} finished here"
        )
        console.print(Padding(state, (0, 0, 1, 2)))
