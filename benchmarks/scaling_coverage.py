"""How often the 95 % intervals of ``triptych scaling`` hold the exponents that the data were drawn from.

    triptych scaling outputs/scaling --output docs/scaling/dates.html
    python benchmarks/scaling_coverage.py docs/scaling/dates.json [--simulations 1000] [--output FILE.md]

A dataset has the sizes and tokens of each run of the measured ladder, the losses of a law that is known, and normal
noise of their logarithm: one draw per cell, and one per run. In the law, both terms are equal in the middle of the
design, and together as large as the loss that could be reduced there was measured to be. Each dataset is fitted as the
command does it. An interval of 95 % should hold the truth 93 to 97 % of the time. The last row counts the datasets in
which an exponent differs by Holm's correction, although none does and whatever R squared is.
"""

import argparse
import json
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from page import check_output
from rich.progress import track

from triptych.report.statistics.scaling import COORDINATES, EXPONENTS, Ladder, Point, contrast, fit_ladder

NAMES = ("parameters", "tokens")


class SimulatedLadder:
    """A law, at the design of one architecture.

    Args:
        record: the content of a page.
        law: of the architecture, there.
        exponents: of the law that is simulated.
        noise: the standard deviations of the logarithm of the loss, over cells and over the runs of a cell.
        seeds: runs per cell.
    """

    def __init__(
        self,
        record: Mapping[str, Any],
        law: Mapping[str, Any],
        exponents: tuple[float, float],
        noise: tuple[float, float],
        seeds: int,
    ) -> None:
        self.name, self.floor, self.noise, self.seeds = law["architecture"], law["irreducible"], noise, seeds
        points = [point for point in record["points"] if point["architecture"] == self.name]
        self.x = np.array([[point[name] for name in NAMES] for point in points])
        reducible = float(np.median([point["loss"] for point in points])) - self.floor
        centred = self.x / np.exp(np.log(self.x).mean(0))
        self.loss = self.floor + reducible / 2 * np.sum(centred ** -np.array(exponents), 1)
        self.truth = {name: coordinates.of(*exponents)[0] for name, coordinates in COORDINATES.items()}

    def draw(self, number: int, seed: int, *, is_known: bool) -> Ladder:
        """The fit of one dataset."""
        random, (cells, runs) = np.random.default_rng([number, seed]), self.noise
        points = []
        for (size, tokens), loss in zip(self.x, self.loss, strict=True):
            shift = cells * random.standard_normal()
            for run in range(self.seeds):
                noisy = loss * np.exp(shift + runs * random.standard_normal())
                points.append(Point("", self.name, run, size, tokens, 6 * size * tokens, float(noisy)))
        return fit_ladder(points, self.floor if is_known else None, None)


def count_hits(ladders: list[SimulatedLadder], simulations: int, *, is_known: bool) -> Counter[tuple[str, str]]:
    """In how many datasets the interval holds the truth, by exponent and by architecture, or pair of them; and in how
    many an exponent differs."""
    hits: Counter[tuple[str, str]] = Counter()
    for number in track(range(simulations), f"E {'known' if is_known else 'fitted'}"):
        fits = [ladder.draw(number, seed, is_known=is_known) for seed, ladder in enumerate(ladders)]
        for ladder, fit in zip(ladders, fits, strict=True):
            for name, exponent in fit.exponents.items():
                hits[name, ladder.name] += int(exponent.low <= ladder.truth[name] <= exponent.high)
        contrasts = contrast(fits)
        for found in contrasts:
            pair = f"{found.first} minus {found.second}"
            hits[found.exponent, pair] += int(found.difference.low <= 0 <= found.difference.high)
            hits["differs", pair] += int(any(x.p_holm < 0.05 for x in contrasts) and found.exponent == "parameters")
    return hits


def main() -> None:
    """Prints the table, and writes it where asked."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("record", type=Path, help="the JSON beside the page of the ladder")
    parser.add_argument("--simulations", type=int, default=1000)
    parser.add_argument("--cell-noise", type=float, default=0.03, help="standard deviation of log loss over cells")
    parser.add_argument("--noise", type=float, default=0.01, help="standard deviation of log loss over runs of a cell")
    parser.add_argument("--seeds", type=int, default=3, help="runs per cell")
    parser.add_argument("--alpha", type=float, default=0.5, help="the exponent of parameters")
    parser.add_argument("--beta", type=float, default=0.6, help="the exponent of tokens")
    parser.add_argument("--known", action="store_true", help="with E known alone, not with E fitted")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    check_output(parser, arguments.output)
    begin, record = time.perf_counter(), json.loads(arguments.record.read_text())
    exponents, noise = (arguments.alpha, arguments.beta), (arguments.cell_noise, arguments.noise)
    ladders = [SimulatedLadder(record, law, exponents, noise, arguments.seeds) for law in record["laws"]]
    lines = []
    for is_known in (True,) if arguments.known else (True, False):
        hits = count_hits(ladders, arguments.simulations, is_known=is_known)
        columns = list(dict.fromkeys(name for _, name in hits))
        if not lines:
            lines = [f"| exponent | {' | '.join(columns)} |", "|---|" + "---|" * len(columns)]
        for exponent, label in EXPONENTS.items():
            shares = [f"{100 * hits[exponent, name] / arguments.simulations:.1f} %" for name in columns]
            lines.append(f"| {label}; E {'known' if is_known else 'fitted'} | {' | '.join(shares)} |")
        shares = [f"{100 * hits['differs', name] / arguments.simulations:.1f} %" for name in columns]
        differs = [share if " minus " in name else "" for name, share in zip(columns, shares, strict=True)]
        lines.append(f"| any differs; E {'known' if is_known else 'fitted'} | {' | '.join(differs)} |")
    design = ", ".join(f"{ladder.name} {len(ladder.x)} cells" for ladder in ladders)
    sizes = f"noise {100 * noise[0]:.2f} % of a cell, {100 * noise[1]:.2f} % of a run, {arguments.seeds} seeds"
    elapsed = time.perf_counter() - begin
    lines.append(f"\n{arguments.simulations:,} simulations; {design}; {sizes}; {elapsed:.0f} s.")
    text = "\n".join(lines)
    print(text)
    if arguments.output is not None:
        arguments.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
