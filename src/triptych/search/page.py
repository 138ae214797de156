"""What a search has found: a table on the terminal, and a page with pictures."""

import json
import warnings
from collections import Counter
from collections.abc import Sequence
from html import escape
from pathlib import Path

import optuna
from optuna.importance import PedAnovaImportanceEvaluator
from optuna.trial import TrialState
from optuna.visualization import (
    plot_intermediate_values,
    plot_optimization_history,
    plot_parallel_coordinate,
    plot_param_importances,
)
from rich.console import Console
from rich.table import Table

from triptych.durable import write_text
from triptych.report.assets import LOGO
from triptych.report.charts import Figure, base_axis, base_layout
from triptych.report.page import render_chart, render_document
from triptych.search.study import Study

NAMES = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}


def report(studies: Sequence[Study], runs: Sequence[Sequence[Path]], path: Path) -> None:
    """Prints the best trial of each study, and writes the page.

    Args:
        studies: of the sweep.
        runs: the run directories of the best trial of each.
        path: of the page.
    """
    settings = studies[0].settings
    table = Table(title=f"best {settings.metric} ({settings.direction}d)", title_justify="left", show_lines=True)
    for heading in ("study", "trials", "best", "with"):
        table.add_column(heading, overflow="fold")
    rows = [row(study) for study in studies]
    for cells in rows:
        table.add_row(*cells)
    console = Console()
    console.print(table)
    body = f"""<header>
<div class="brand">{LOGO}<span>Triptych</span></div>
<h1>What the search has found</h1>
<p class="soft">{escape(settings.metric)}, {settings.direction}d, on validation; sampler {settings.sampler}, pruner
{settings.pruner}{f", mean of {len(settings.seeds)} seeds" if settings.seeds else ""}.</p>
</header>
<main>
<section>
<div class="panel"><h3>The best trial of each study</h3>{html_table(rows)}</div>
{history(studies)}
</section>
{"".join(map(section, studies))}
</main>"""
    write_text(path, render_document("Triptych: search", body))
    print(path)
    if best := [str(directory) for directories in runs for directory in directories]:
        print(f"compare the best on the test set: triptych compare {' '.join(best)}")


def row(study: Study) -> list[str]:
    """The cells of a study: its name, its trials by what became of them, the best value and its parameters."""
    counts = Counter(NAMES.get(trial.state, "under way") for trial in study.trials)
    told = ", ".join(f"{count} {name}" for name, count in counts.items())
    best = study.best
    if best is None:
        return [study.name, told, "none", ""]
    params = " ".join(f"{key}={shown(value)}" for key, value in best.params.items())
    return [study.name, told, f"{best.value:.6g} (trial {best.number + 1})", params]


def shown(value: object) -> str:
    """A parameter, short."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def html_table(rows: Sequence[Sequence[str]]) -> str:
    """The same table for the page."""
    heads = "".join(f"<th>{heading}</th>" for heading in ("study", "trials", "best", "with"))
    cells = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{cells}</tbody></table></div>'


def history(studies: Sequence[Study]) -> str:
    """Each trial's value, and the best so far, of all studies side by side."""
    found = [study.optuna for study in studies if study.best is not None]
    metric = studies[0].settings.metric
    return styled(plot_optimization_history(found, target_name=metric), "History") if found else ""


def section(study: Study) -> str:
    """The pictures of one study: what was decisive, which settings go with which values, and what was pruned when."""
    if study.best is None:
        return ""
    metric, charts = study.settings.metric, []
    complete = study.optuna.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if len(study.searched) > 1 and len({trial.value for trial in complete}) > 1:
        with warnings.catch_warnings(action="ignore", category=optuna.exceptions.ExperimentalWarning):
            evaluator = PedAnovaImportanceEvaluator()
        figure = plot_param_importances(study.optuna, evaluator=evaluator, target_name=metric)
        charts.append(styled(figure, "Importance (PED-ANOVA, Watanabe et al. 2023)"))
    charts.append(styled(plot_intermediate_values(study.optuna), f"{escape(metric)} by updates"))
    parallel = styled(plot_parallel_coordinate(study.optuna, target_name=metric), "Parallel coordinates")
    return f'<section><h2>{escape(study.name)}</h2><div class="charts">{"".join(charts)}</div>{parallel}</section>'


def styled(figure: object, title: str) -> str:
    """A figure of Optuna's in the style of the page."""
    plain: Figure = json.loads(figure.to_json())  # type: ignore[attr-defined]
    layout = plain["layout"]
    axes = {key: base_axis() | layout[key] for key in layout if key.startswith(("xaxis", "yaxis"))}
    layout.pop("template", None)
    plain["layout"] = layout | base_layout(title) | axes | {"height": 380}
    plain["layout"]["showlegend"] = layout.get("showlegend", True)
    return render_chart(plain)
