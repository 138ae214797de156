"""Writes docs/compatibility.md: which parts work with what, by rows that contain every pair of values of two settings.

Run by `make compatibility`; `compatibility_page.py PAGE 5` stops after five rows.
"""

import atexit
import logging
import os
import shutil
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
from covering_rows import CHECKS, DATES, NO_FAMILY, NOT_ASKED, STEPS, look, refusal
from pages import table, write_page
from small_images import TO_DRAW, write_small_images
from triptych.config import PARTS, precision_of, target_of
from triptych.config.diagnose import choices_of
from triptych.config.schema import HeadsConfig
from triptych.tasks.precision import PRECISIONS
from triptych.training.hardware import hardware

CORPUS = {
    "similarity": "date_pairs", "question_answering": "date_questions", "transcription": "tone_digits",
    "chat": "date_instructions", "captioning": "drawn_digits", "image_generation": "image_files",
}  # fmt: skip
"""By task; the others read dates."""
DRAWN = [
    *("data.noise=0.1", "data.max_digits=1"),
    *("image_embedding.image_size=[12,24]", "image_embedding.patch_size=[12,6]", "image_embedding.num_channels=3"),
]
MARKS = {
    "chat": ["data.turns=1", "shape.max_length=128"],
    "infilling": ["tokenizer.num_sentinels=3"],
    "transcription": [
        "data.noise=1", "data.min_digits=2", "data.max_digits=3", "audio_embedding.rate=8000",
        "audio_embedding.num_mels=16",
    ],
    "captioning": DRAWN,
    "image_generation": TO_DRAW[2:],
}  # fmt: skip
"""What a task needs besides."""
HEADS = [f"head@heads.{kind}" for kind in HeadsConfig.__dataclass_fields__]
WITH_EPS = ("adamw", "muon", "schedule_free_adamw")
STYLES = {"encoder_only": "classification", "decoder_only": "language_modeling", "full": "translation"}
"""What the families are trained on, by architecture."""
MATCHING = [
    *("task=image_text_matching", "data=image_files", "data.train=all.tsv"),
    *("image_embedding.image_size=[4,4]", "image_embedding.patch_size=[2,2]", "image_embedding.num_channels=3"),
]
TOWERS = ("dual_encoder", "dual_decoder")
"""The models that serve image_text_matching alone, as no other does."""
OTHERS = {
    "vit": (["data=digits"], "classification"),
    "whisper": (
        [
            *("data=tone_digits", *(text for text in DATES if ".num_" in text)),
            *("audio_embedding.seconds=1", "model.encoder.max_length=50", "audio_embedding.num_mels=16"),
        ],
        "transcription",
    ),
}
"""Of families that read no texts, what they are trained on instead."""
SHAPE = ["shape.d_model=64", "shape.num_heads=8", "shape.d_ff=64"]
"""Of families, some of which have 8 key heads."""


@cache
def small_images() -> Path:
    """A folder with images that are drawn."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    return write_small_images(folder)


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
    choices["batch.packing"] = "false"  # null decides by the texts
    found = {
        "model": [name for name in choices_of("model", []) if "/" not in name and name not in TOWERS],
        "task": [name for name in choices_of("task", []) if name != "image_text_matching"],
        **{f"block/{part}": parts_of(f"block/{part}") for part in PARTS},
        "head": parts_of("head"),
        "optimizer": choices_of("optimizer", []),
        # on CPUs Lightning makes 16-mixed bf16-mixed
        "trainer.precision": [name for name in PRECISIONS if name != "16-mixed"],
        "batch.packing": ["false", "true"],
    }
    return {name: sorted(values, key=lambda value: value != choices[name]) for name, values in found.items()}


def arguments(row: Row) -> list[str]:
    """The command line of a row. What is said about eps in 16-true is obeyed."""
    chosen = [f"{name}={value}" for name, value in row.items() if name != "head"]
    eps = ["optimizer.eps=1.0e-4"] * (row["trainer.precision"] == "16-true" and row["optimizer"] in WITH_EPS)
    corpus = CORPUS.get(row["task"], "dates")
    sizes = DATES if corpus.startswith("date") else [text for text in DATES if ".num_" in text]
    sizes = [f"data.dir={small_images()}"] if corpus == "image_files" else sizes
    return [*sizes, *chosen, *(f"{group}={row['head']}" for group in HEADS), f"data={corpus}", *eps,
            *MARKS.get(row["task"], [])]  # fmt: skip


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
    """By the name of a family's model of any size, and of the two towers: a command line."""
    found = {}
    with command_lines() as chosen:
        for name in (name for name in choices_of("model", []) if name.endswith("style") or name in TOWERS):
            if name in (*TOWERS, "clip/style"):
                found[name] = [*MATCHING, f"data.dir={small_images()}", f"model={name}", *SHAPE]
                continue
            architecture = target_of(chosen(f"model={name}"), "model").architecture
            data, task = OTHERS.get(name.partition("/")[0], (DATES, STYLES[architecture]))
            found[name] = [*data, f"model={name}", *SHAPE, f"task={task}"]
    return found


def measure(limit: int | None) -> Measured:
    """Asks what is refused, and trains the rest.

    Args:
        limit: of the rows; None: all.
    """
    with command_lines() as chosen, tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        @cache
        def why_line(*line: str) -> str | None:
            return refusal(chosen, line, folder)

        def why(row: Row) -> str | None:
            return why_line(*arguments(row))

        first = {factor: values[0] for factor, values in factors().items()}
        grid = [first | {"model": model, "task": task} for model in factors()["model"] for task in factors()["task"]]
        rows, impossible, reasons = learn(factors(), [row for row in grid if why(row) is None], why)
        rows.sort(key=lambda row: order(row.items()))
        reasons = {values: reasons[values] for values in sorted(reasons, key=order)}
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


@cache
def places() -> list[tuple[str, str]]:
    """All values of all factors, in the order of the page."""
    return [(factor, value) for factor, values in factors().items() for value in values]


def order(values: Iterable[tuple[str, str]]) -> list[int]:
    """Where values stand among all, to sort by."""
    return sorted(map(places().index, values))


def say(values: Iterable[tuple[str, str]]) -> str:
    """Values as on a command line."""
    return " ".join("`{}={}`".format(*places()[place]) for place in order(values))


def short(factor: str, value: str) -> str:
    """What a table calls a value."""
    return {"batch.packing": {"true": "packed", "false": "padded"}}.get(factor, {}).get(value, value)


def cell(pair: Values, measured: Measured) -> str:
    """How many rows had both values, or the numbers of the reasons why none can."""
    if pair in measured.impossible:
        because = explain(pair, factors(), measured.reasons)
        return f"no ({', '.join(str(i) for i, values in enumerate(measured.reasons, 1) if values in because)})"
    rows = [found for row, found in measured.rows if pair <= row.items()]
    failed = sum(any(said.startswith("failed") for said in found.values()) for found in rows)
    return f"{len(rows)}" if not failed else f"{failed} of {len(rows)} failed"


def pairs_table(down: Sequence[str], across: Sequence[str], measured: Measured) -> str:
    """A cell for each two values of the factors in the rows and in the columns."""
    columns = [place for place in places() if place[0] in across]
    return table(
        ["", *(short(*column) for column in columns)],
        [
            [say([place]), *(cell(frozenset({place, column}), measured) for column in columns)]
            for place in places()
            if place[0] in down
        ],
    )


def held(check: str, rows: Sequence[Mapping[str, str]]) -> str:
    """In how many rows a check held, of those where it was asked."""
    asked = [found[check] for found in rows if found[check] != NOT_ASKED]
    good = [what for what in asked if not what.startswith(("failed", NO_FAMILY))]
    if not asked:
        return NOT_ASKED
    return f"{len(good)}" if good == asked else f"{len(good)} of {len(asked)}"


def of_family(found: Mapping[str, str]) -> str:
    """The class of the exported network."""
    return "none" if found["exports"].startswith(NO_FAMILY) else found["exports"].partition(":")[0]


def write(page: Path, measured: Measured) -> None:
    """Writes what was measured."""
    parts, others = [*(f"block/{part}" for part in PARTS), "head"], ["optimizer", "trainer.precision", "batch.packing"]
    trained = [*((say(row.items()), found) for row, found in measured.rows), *measured.styles]
    failures = [
        f"- {name}, {check}: {what}"
        for name, found in trained
        for check, what in found.items()
        if what.startswith("failed")
    ]
    checks = [check for check in CHECKS if check != "exports"]
    of_value = {place: [found for row, found in measured.rows if row[place[0]] == place[1]] for place in places()}
    write_page(
        page,
        "compatibility_page",
        rows=len(measured.rows),
        steps=STEPS,
        pairs=f"{len(set[Values]().union(*(pairs_of(row) for row, _ in measured.rows))):,}",
        impossible=len(measured.impossible),
        seconds=f"{measured.seconds / len(trained):.0f}",
        torch=torch.__version__,
        hardware=hardware(torch.device("cpu")),
        failed="\n".join(failures) or "Nothing.",
        grid=pairs_table(["task"], ["model"], measured),
        parts=pairs_table([*parts, *others], ["model", "task"], measured),
        training=pairs_table(parts, others, measured),
        optimizers=pairs_table(["optimizer"], ["trainer.precision", "batch.packing"], measured),
        precisions=pairs_table(["trainer.precision"], ["batch.packing"], measured),
        two_parts="\n".join(
            f"- {say(pair)}: {cell(pair, measured)}"
            for pair in measured.impossible
            if all(factor in parts for factor, _ in pair)
        ),
        properties=table(
            ["", *CHECKS],
            [[say([place]), *(held(check, rows) for check in CHECKS)] for place, rows in of_value.items()],
        ),
        families=table(
            ["`model=`", *CHECKS],
            [
                [name, *(found[check].partition(":")[0] for check in checks), of_family(found)]
                for name, found in measured.styles
            ],
        ),
        no_family="\n".join(
            f"- {name}: {found['exports']}" for name, found in measured.styles if of_family(found) == "none"
        ),
        reasons="\n".join(
            f"{number}. {say(values)}: {reason}" for number, (values, reason) in enumerate(measured.reasons.items(), 1)
        ),
        of_rows=table(
            [*factors(), "exports"],
            [[*(short(*value) for value in row.items()), of_family(found)] for row, found in measured.rows],
        ),
    )


def main(page: Path, limit: int | None) -> None:
    """Measures, and writes the page."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    os.environ["TRIPTYCH_CACHE"] = tempfile.mkdtemp()
    write(page, measure(limit))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else None)
