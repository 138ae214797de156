"""Writes docs/covering.md: which parts work with what, by rows that together have every two values of two settings.

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

from command_line import command_lines
from covering import Row, Values, explain, learn, pairs_of
from covering_rows import CHECKS, DATES, UPDATES, look, refusal
from triptych.config import PARTS, precision_of, target_of
from triptych.config.explain import choices_of
from triptych.config.schema import Heads
from triptych.tasks.precision import PRECISIONS
from triptych.training.hardware import hardware

CORPUS = {"similarity": "date_pairs", "question_answering": "date_questions"}
"""By task; the others read dates."""
HEADS = [f"head@heads.{kind}" for kind in Heads.__dataclass_fields__]
WITH_EPS = ("adamw", "muon", "schedule_free_adamw")
STYLES = {"encoder_only": "classification", "decoder_only": "language_modeling", "full": "translation"}
"""What the families are trained on, by architecture."""
SHAPE = ["shape.d_model=64", "shape.num_heads=8", "shape.d_ff=64"]
"""Of families, some of which have 8 key heads."""


def parts_of(group: str) -> list[str]:
    """The choices of a group of parts, without a family's: these bear its name, and have the class of another."""
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
        "trainer.precision": [
            name for name in PRECISIONS if name != "16-mixed"
        ],  # on CPUs Lightning makes it bf16-mixed
        "batch.packed": ["false", "true"],
    }
    return {name: sorted(values, key=lambda value: value != choices[name]) for name, values in found.items()}


def arguments(row: Row) -> list[str]:
    """The command line of a row. What is said about eps in 16-true is obeyed."""
    chosen = [f"{name}={value}" for name, value in row.items() if name != "head"]
    eps = ["optimizer.eps=1.0e-4"] * (row["trainer.precision"] == "16-true" and row["optimizer"] in WITH_EPS)
    corpus = CORPUS.get(row["task"], "dates")
    return [*DATES, *chosen, *(f"{group}={row['head']}" for group in HEADS), f"data={corpus}", *eps]


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
        found = []
        for number, row in enumerate(rows[:limit], 1):
            print(f"{number} of {len(rows)}: {' '.join(row.values())}", flush=True)
            found.append((row, look(chosen, arguments(row), folder / f"row-{number}")))
        families = []
        for style, line in [*styles().items()][:limit]:
            print(style, flush=True)
            families.append((style, look(chosen, line, folder / style.replace("/", "-"))))
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
    parts = [*(f"block/{part}" for part in PARTS), "head"]
    trained = [*((say(row.items()), found) for row, found in measured.rows), *measured.styles]
    said = [found.get("exports", "") for _, found in trained]
    reasons = [f"{say(values)}: {reason}" for values, reason in measured.reasons.items()]
    reasons += sorted({reason.removeprefix("refused: ") for reason in said if reason.startswith("refused: ")})

    def exported(found: Mapping[str, str]) -> str:
        _, refused, reason = found.get("exports", "").partition("refused: ")
        return f"no ({reasons.index(reason) + 1})" if refused else found.get("exports", "failed").partition(":")[0]

    properties, families = [["", *CHECKS], ["---"] * (len(CHECKS) + 1)], [["`model=`", *CHECKS]]
    for factor, values in factors().items():
        for value in values:
            rows = [found for row, found in measured.rows if row[factor] == value]
            properties.append([f"`{factor}={value}`", *answers(rows)])
    families.append(properties[1])
    for name, found in measured.styles:
        held = [(found.get(check, "failed") or "-").partition(":")[0] for check in CHECKS if check != "exports"]
        families.append([name, *held, exported(found)])
    of_rows = [[*factors(), "exports"], ["---"] * (len(factors()) + 1)]
    of_rows += [[*(short(*value) for value in row.items()), exported(found)] for row, found in sorted_rows(measured)]
    failures = [f"- {name}, {check}: {what}" for name, found in trained for check, what in found.items()]
    two_parts = [pair for pair in measured.impossible if all(factor in parts for factor, _ in pair)]
    page.write_text(
        TEMPLATE.format(
            rows=len(measured.rows),
            updates=UPDATES,
            pairs=f"{len(set[Values]().union(*(pairs_of(row) for row, _ in measured.rows))):,}",
            impossible=len(measured.impossible),
            seconds=f"{measured.seconds / len(trained):.1f}",
            torch=torch.__version__,
            hardware=hardware(torch.device("cpu")),
            failed="\n".join(line for line in failures if ": failed" in line) or "Nothing.",
            grid=table(["task"], ["model"], measured),
            parts=table([*parts, "optimizer", "trainer.precision", "batch.packed"], ["model", "task"], measured),
            training=table(parts, ["optimizer", "trainer.precision", "batch.packed"], measured),
            optimizers=table(["optimizer"], ["trainer.precision", "batch.packed"], measured),
            precisions=table(["trainer.precision"], ["batch.packed"], measured),
            two_parts="\n".join(f"- {say(pair)}: {cell(pair, measured)}" for pair in two_parts),
            properties=drawn(properties),
            families=drawn(families),
            reasons="\n".join(f"{number}. {reason}" for number, reason in enumerate(reasons, 1)),
            of_rows=drawn(of_rows),
        ),
        encoding="utf-8",
    )


def sorted_rows(measured: Measured) -> list[tuple[Row, dict[str, str]]]:
    """By the order of the values in the configuration."""
    places = [(factor, {value: i for i, value in enumerate(values)}) for factor, values in factors().items()]
    return sorted(measured.rows, key=lambda row: [place[row[0][factor]] for factor, place in places])


TEMPLATE = """\
# What works with what

Written by `make covering`, which asks and trains all of this anew: on {hardware}, with torch {torch}.

Each architecture, task, part, head, optimizer, precision and layout that the configuration has was tried with each of
the others, two at a time: {rows} tiny trainings ("rows", {updates} updates, {seconds} s each with its checks) have
{pairs} pairs of such values in them, each at least once, and {impossible} more the product refuses. (So pairwise covering
goes; what goes wrong only where three meet can escape it.) A number in a table is that of the rows that have both
values. *no (3)* is reason 3 [below](#why-not), in the product's words; several numbers are one for each way that there
would be. Files of `conf/block` that only set options of these parts for a family are left out; the families have a
[table of their own](#families).

Of each row it is asked whether it

- trains: the loss is finite, every weight has a gradient, and the record of the run is complete;
- resumes: gone on with from its checkpoint after half of the updates, it ends with bitwise the same weights and metrics;
- evaluates: the checkpoint has the metrics of the run, to the last digit;
- packs: a packed row of texts has the logits of a padded batch;
- sees the past only: the last token changes no logits before it. Not asked of an encoder, which sees both sides;
- decodes with a cache: each token that is written has the logits that the whole text gives it at once. Asked where text
  is written;
- exports: read again from the Hugging Face folder that it was written into, it has the same logits; or no published
  family is this network.

Logits are compared in the precision of the row (1e-10 in float64, 1e-5 in float32, 0.01 in float16 and 0.08 in bfloat16, of
the largest or 1), exported ones in float32. 16-mixed is not among the precisions: on CPUs Lightning trains bf16-mixed in
its place. AdamW's kin have `optimizer.eps=1.0e-4` in 16-true, as they must.

## What failed

{failed}

## Tasks and architectures

{grid}

## Everything else by architecture and task

{parts}

## Parts by optimizer, precision and layout

{training}

## Optimizers and precisions

{optimizers}

{precisions}

## Two parts

All pairs of parts of different kinds stand in a row, but:

{two_parts}

## What held

In how many rows of each value; - where it was not asked.

{properties}

## Families

The models of any size (`model=bert/style`), with their own parts: an encoder on classification, a decoder on language
modelling, a full model on translation.

{families}

## Why not

{reasons}

## The rows

{of_rows}
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
