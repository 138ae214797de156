"""``triptych dashboard``: the comparison of runs as a W&B workspace and a W&B report, written as Python code."""

import math
import os
import runpy
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from pprint import pformat
from statistics import fmean
from string import Template
from typing import Any

from omegaconf import OmegaConf

from triptych.config import ConfigError, amount, duration
from triptych.report.read_records import find_runs
from triptych.report.statistics.factors import MODEL, setting_of
from triptych.report.statistics.groups import Group, group_runs
from triptych.report.statistics.metrics import metric_key
from triptych.report.statistics.verdicts import judge
from triptych.storage.atomic import write_text
from triptych.storage.run_directory import RunDirectory


def dashboard(directories: Sequence[Path], output: Path, by: Sequence[str] = (), tuned: Sequence[str] = ()) -> None:
    """Writes the code of a workspace and a report, builds both as far as possible offline, and prints how to upload
    them.

    Args:
        directories: run directories, or parents of them.
        output: the Python file.
        by: keys of the compared settings; empty: ``model``, or the only one that varies.
        tuned: keys of settings that are tuned, not compared.
    """
    if find_spec("wandb_workspaces") is None:
        raise ConfigError("triptych dashboard needs wandb-workspaces: pip install 'triptych[dashboard]'")
    found = find_runs(directories, output.parent)
    runs = found.runs
    for damage in found.damaged:
        print(f"left out because it is damaged: {damage}", file=sys.stderr)
    folders = {run.directory: Path(os.path.normpath(output.parent / run.directory)) for run in runs}
    ids = {name: wandb_id(folder) for name, folder in folders.items()}
    logged = tuple(run for run in runs if ids[run.directory])
    if not logged:
        raise ConfigError(f"{directories[0]}: none of its {len(runs)} runs was logged to W&B; train with logger=wandb")
    comparisons = [comparison(group, ids) for group in group_runs(logged, by=by, tuned=tuned)]
    used = [folders[run.directory] for run in logged]
    waiting = [folder for folder in used if any(folder.glob("wandb/offline-run-*"))]
    sync = sync_command(waiting)
    titles = ", ".join(comparison["title"] for comparison in comparisons)
    # Directory names are untrusted: insert the repr of a text or of a list, never code.
    template = (files("triptych.report.page") / "templates" / "dashboard.py.txt").read_text(encoding="utf-8")
    code = Template(template).substitute(
        sync=repr(sync if waiting else "the runs are in W&B already"),
        project=repr(project_of(used)),
        title=repr(f"Triptych: {titles}"[:128]),
        comparisons=pformat(comparisons, width=118, sort_dicts=False),
    )
    output.parent.mkdir(parents=True, exist_ok=True)
    write_text(output, code)
    views = runpy.run_path(str(output))  # fail here if a view cannot be built
    sections = views["workspace"]("entity")._to_model().spec.section.panel_bank_config.sections
    views["report"]("")._to_model()  # with an entity it would ask the server for the project
    left_out = f" ({len(runs) - len(logged)} others were not logged to W&B)" if len(logged) < len(runs) else ""
    print(
        f"{output}: a workspace of {len(sections)} sections and a report of {len(logged)} run(s){left_out}. "
        f"To upload: {f'{sync}; ' if waiting else ''}python {shlex.quote(str(output))} ENTITY"
    )


def sync_command(folders: Sequence[Path]) -> str:
    """The shell command that uploads runs logged offline."""
    siblings = Counter(folder.parent for folder in folders)
    places = dict.fromkeys(
        shlex.quote(str(folder)) if siblings[folder.parent] == 1 else f"{shlex.quote(str(folder.parent))}/*"
        for folder in folders
    )
    return " ".join(["wandb sync", *(f"{place}/wandb/offline-run-*" for place in places)])


def comparison(group: Group, ids: dict[str, str]) -> dict[str, Any]:
    """The content of the views for the runs of one task on the same data; ``ids`` holds W&B ids by run directory."""
    metrics = list(dict.fromkeys(metric_key(group.metric, run) for run in group.runs))
    measured = {name for run in group.runs for name in run.curves}
    wanted = ["train/loss", "val/loss", *(key.replace("test/", "val/", 1) for key in metrics)]
    return {
        "title": f"{group.task.replace('_', ' ').capitalize()} on {group.data}",
        "verdict": judge(group).text,
        "table": table(group),
        "by": [_config_key(group, key) for key in group.by],
        "metrics": metrics,
        "curves": [name for name in dict.fromkeys(wanted) if name in measured],
        "has_classes": any(run.confusion_matrix for run in group.runs),
        "runs": [ids[run.directory] for run in group.runs],
    }


def table(group: Group) -> str:
    """The means over seeds of each configuration, as Markdown."""
    head = "architecture" if group.by == (MODEL,) else "variant"
    rows = [[head, "seeds", group.metric.title, "parameters", "tokens", "FLOPs", "time"]]
    for contender in group.contenders:
        values = [value for run in contender.runs if math.isfinite(value := group.value(run))]
        costs = [(run.params, run.train_tokens, run.train_flops, run.wall_time_s) for run in contender.runs]
        params, tokens, flops, seconds = map(fmean, zip(*costs, strict=True))
        shown = group.metric.show(fmean(values)) if values else "not finite"
        cells = [contender.name, str(len(contender.runs)), shown, amount(params), amount(tokens), amount(flops, "FLOP")]
        rows.append([*(cell.replace("|", "\\|") for cell in cells), duration(seconds)])
    rows.insert(1, ["---"] * len(rows[0]))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _config_key(group: Group, key: str) -> str:
    """The key of a compared factor in the configuration of a W&B run: a part is given by its class."""
    if key == MODEL:
        return "labels.architecture"
    name = setting_of(key)
    is_part = "/" in key or key in ("optimizer", "scheduler") or name not in group.runs[0].settings
    return f"{name}._target_" if is_part else name


def wandb_id(directory: Path) -> str:
    """The W&B id of a run; empty if it was not logged to W&B."""
    file = directory / "wandb" / "id"
    return file.read_text() if file.is_file() else ""


def project_of(directories: Sequence[Path]) -> str:
    """The common W&B project of runs that were logged to W&B."""
    configs = [OmegaConf.load(RunDirectory(directory).config) for directory in directories]
    projects = sorted({str(OmegaConf.select(config, "logger.wandb.project")) for config in configs})
    if len(projects) > 1:
        raise ConfigError(f"the runs are in the W&B projects {', '.join(projects)}; expected runs of one project")
    return projects[0]
