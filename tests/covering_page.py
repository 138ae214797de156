"""Writes docs/covering.md: which parts work with what, by rows that together have every two values of different settings.

Run by `make covering`; `covering_page.py PAGE 5` stops after five rows.
"""

import logging
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf
from rich.progress import track

from command_line import command_lines
from covering import Row, Values, explain, learn
from covering_rows import CHECKS, DATES, UPDATES, look, refusal
from triptych.config import PARTS, precision_of, target_of
from triptych.config.explain import choices_of
from triptych.config.schema import Heads
from triptych.tasks.precision import PRECISIONS
from triptych.training.hardware import hardware

CORPUS = {"similarity": "date_pairs", "question_answering": "date_questions"}
"""By task; the others read dates."""
HEADS = [f"head@heads.{kind}" for kind in Heads.__dataclass_fields__]
STYLES = {"encoder_only": "classification", "decoder_only": "language_modeling", "full": "translation"}
"""What the families are trained on, by architecture."""
SHAPE = ["shape.d_model=64", "shape.num_heads=8", "shape.d_ff=64"]
"""Of families, some of which have 8 key heads."""


def parts_of(group: str) -> list[str]:
    """The choices of a group of parts, without those that are a family's: these bear its name and have another's class."""
    conf = Path(str(files("triptych.conf")))
    families = tuple(path.name for path in (conf / "model").iterdir() if path.is_dir())
    return [
        name
        for name in choices_of(group, [])
        if "_target_" in OmegaConf.load(conf / group / f"{name}.yaml") or not name.startswith(families)
    ]


@cache
def factors() -> dict[str, list[str]]:
    """What is combined, as the configuration has it; the first value of each is the default."""
    with command_lines() as chosen:
        default, choices = chosen(), dict(HydraConfig.get().runtime.choices)
    choices |= {"head": choices[HEADS[0]], "trainer.precision": precision_of(default)}
    choices["batch.packed"] = str(default.batch.packed).lower()
    found = {
        "model": [name for name in choices_of("model", []) if "/" not in name],
        "task": choices_of("task", []),
        **{f"block/{part}": parts_of(f"block/{part}") for part in PARTS},
        "head": parts_of("head"),
        "optimizer": choices_of("optimizer", []),
        "trainer.precision": [*PRECISIONS],
        "batch.packed": ["false", "true"],
    }
    return {name: sorted(values, key=lambda value: value != choices[name]) for name, values in found.items()}


def arguments(row: Row) -> list[str]:
    """The command line of a row. In 16-mixed AdamW is not fused, as the answer to that says."""
    chosen = [f"{name}={value}" for name, value in row.items() if name != "head"]
    fused = ["optimizer.fused=false"] * ("16-mixed" in row.values() and "adamw" in row.values())
    corpus = CORPUS.get(row["task"], "dates")
    return [*DATES, *chosen, *(f"{group}={row['head']}" for group in HEADS), f"data={corpus}", *fused]


@dataclass(frozen=True)
class Measured:
    """What the page is made of.

    Attributes:
        rows: that were trained, each with what became of its checks.
        impossible: pairs that no row can have.
        reasons: of the sets of values that are refused.
        styles: the same as rows, by the command lines of families.
        seconds: that all rows took.
    """

    rows: list[tuple[Row, dict[str, str]]]
    impossible: list[Values]
    reasons: dict[Values, str]
    styles: list[tuple[str, dict[str, str]]]
    seconds: float


def styles() -> dict[str, list[str]]:
    """By the name of a family's model of any size: a command line."""
    found = {}
    with command_lines() as chosen:
        for name in (name for name in choices_of("model", []) if name.endswith("style")):
            architecture = target_of(chosen(f"model={name}"), "model").architecture
            line = [f"model={name}", *SHAPE, f"task={STYLES[architecture]}"]
            is_of_images = name.startswith("vit/")
            found[name] = ["task=classification", "data=digits", *line[:-1]] if is_of_images else [*DATES, *line]
    return found


def measure(limit: int | None) -> Measured:
    """Asks what is refused, and trains the rest.

    Args:
        limit: of the rows; None: all.
    """
    with command_lines() as chosen, tempfile.TemporaryDirectory() as name:
        folder, known = Path(name), dict[str, str | None]()

        def why(row: Row) -> str | None:
            line = arguments(row)
            key = " ".join(line)
            if key not in known:
                known[key] = refusal(chosen, line, folder)
            return known[key]

        first = {factor: values[0] for factor, values in factors().items()}
        grid = [first | {"model": model, "task": task} for model in factors()["model"] for task in factors()["task"]]
        rows, impossible, reasons = learn(factors(), [row for row in grid if why(row) is None], why)
        start = time.perf_counter()
        found = [
            (row, look(chosen, arguments(row), folder / f"row-{number}"))
            for number, row in enumerate(track(rows[:limit], "rows"))
        ]
        families = [
            (style, look(chosen, line, folder / style.replace("/", "-")))
            for style, line in track([*styles().items()][:limit], "families")
        ]
        return Measured(found, impossible, reasons, families, time.perf_counter() - start)


def say(values: Iterable[tuple[str, str]]) -> str:
    """Values as on a command line, in the order of the factors."""
    return " ".join(f"`{name}={value}`" for name, value in sorted(values, key=lambda v: [*factors()].index(v[0])))


def short(factor: str, value: str) -> str:
    """What a table calls a value."""
    return {"batch.packed": {"true": "packed", "false": "padded"}}.get(factor, {}).get(value, value)


def cell(pair: Values, measured: Measured) -> str:
    """How many rows had both values, or the numbers of the reasons why none can."""
    if pair in measured.impossible:
        numbers = [*measured.reasons]
        because = explain(pair, factors(), measured.reasons)
        return f"no ({', '.join(str(numbers.index(values) + 1) for values in because)})"
    rows = [found for row, found in measured.rows if pair <= row.items()]
    failed = sum(any(said.startswith("failed") for said in found.values()) for found in rows)
    return f"{len(rows)}" if not failed else f"{failed} of {len(rows)} failed"


def table(down: Sequence[str], across: Sequence[str], measured: Measured) -> str:
    """A cell for each two values of the factors in the rows and in the columns."""
    columns = [(factor, value) for factor in across for value in factors()[factor]]
    lines = [["", *(short(*column) for column in columns)], ["---"] * (len(columns) + 1)]
    for factor in down:
        for value in factors()[factor]:
            cells = [cell(frozenset({(factor, value), column}), measured) for column in columns]
            lines.append([f"`{factor}={value}`", *cells])
    return drawn(lines)


def drawn(lines: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def answers(found: Sequence[Mapping[str, str]]) -> list[str]:
    """For each check in how many rows it held, and in how many it was refused or did not hold."""
    cells = []
    for name in CHECKS:
        said = [checks.get(name, "failed").partition(":")[0] for checks in found]
        others = [f"{count} {what}" for what in ("refused", "failed") if (count := said.count(what))]
        held = len([what for what in said if what not in ("refused", "failed", "")])
        cells.append(", ".join([str(held)] * (held > 0) + others) or "-")
    return cells


def write_page(page: Path, measured: Measured) -> None:
    """Writes what was measured."""
    parts = [f"block/{part}" for part in PARTS] + ["head"]
    properties = [["", *CHECKS], ["---"] * (len(CHECKS) + 1)]
    for factor, values in factors().items():
        for value in values:
            rows = [found for row, found in measured.rows if row[factor] == value]
            properties.append([f"`{factor}={value}`", *answers(rows)])
    families = [["`model=`", *CHECKS], ["---"] * (len(CHECKS) + 1)]
    families += [[name, *(said or "-" for said in found.values())] for name, found in measured.styles]
    failed = [
        f"- {name}, {check}: {said}"
        for name, found in [*((say(row.items()), found) for row, found in measured.rows), *measured.styles]
        for check, said in found.items()
        if said.startswith("failed")
    ]
    two_parts = [pair for pair in measured.impossible if all(factor in parts for factor, _ in pair)]
    lists = {
        "failed": failed or ["Nothing."],
        "reasons": [f"{n}. {say(values)}: {said}" for n, (values, said) in enumerate(measured.reasons.items(), 1)],
        "two_parts": [f"- {say(pair)}: {cell(pair, measured)}" for pair in two_parts],
        "exports": sorted({f"- {found['exports']}" for _, found in measured.rows if "refused" in found.get("exports", "")}),
    }
    page.write_text(
        TEMPLATE.format(
            grid=table(["task"], ["model"], measured),
            parts=table([*parts, "optimizer", "trainer.precision", "batch.packed"], ["model", "task"], measured),
            training=table(parts, ["optimizer", "trainer.precision", "batch.packed"], measured),
            optimizers=table(["optimizer"], ["trainer.precision", "batch.packed"], measured),
            precisions=table(["trainer.precision"], ["batch.packed"], measured),
            properties=drawn(properties),
            families=drawn(families),
            rows=len(measured.rows),
            styles=len(measured.styles),
            seconds=f"{measured.seconds:.0f}",
            updates=UPDATES,
            torch=torch.__version__,
            hardware=hardware(torch.device("cpu")),
            **{name: "\n".join(lines) for name, lines in lists.items()},
        ),
        encoding="utf-8",
    )


TEMPLATE = """\
# What works with what

Written by `make covering`, which measures all of this anew.

{rows} {styles} {seconds} {updates} {torch} {hardware}

{failed}

{grid}

{parts}

{training}

{optimizers}

{precisions}

{properties}

{families}

{reasons}

{two_parts}

{exports}
"""


def main(page: Path, limit: int | None) -> None:
    """Measures, and writes the page."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    os.environ["TRIPTYCH_CACHE"] = tempfile.mkdtemp()
    write_page(page, measure(limit))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else None)
