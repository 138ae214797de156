"""How often the 95 % intervals of ``triptych scaling`` hold the exponents that the data were drawn from.

    triptych scaling outputs/scaling --output docs/scaling/dates.html
    python benchmarks/scaling_coverage.py docs/scaling/dates.json [--simulations 1000] [--output FILE.md]

A data set has the sizes and tokens of each run of the measured ladder, the losses of a law that is known, and normal
noise of their logarithm. In the law, both terms are equal in the middle of the design, and together as large as the
loss that could be reduced there was measured to be. Each data set is fitted as the command does it, with all draws. An
interval of 95 % should hold the truth 93 to 97 % of the time.
"""

import argparse
import json
import time
from collections import Counter
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from page import check_output
from rich.progress import track

from triptych.report.statistics.power_laws import fit_power_law
from triptych.report.statistics.scaling import EXPONENTS, derive_exponents, percentile_interval

NAMES = ("parameters", "tokens")


class Ladder:
    """A law, at the design of one architecture.

    Args:
        record: the content of a page.
        law: of the architecture, there.
        exponents: of the law that is simulated.
        noise: the standard deviation of the logarithm of the loss.
    """

    def __init__(
        self, record: Mapping[str, Any], law: Mapping[str, Any], exponents: tuple[float, float], noise: float
    ) -> None:
        self.name, self.floor, self.noise = law["architecture"], law["irreducible"], noise
        points = [point for point in record["points"] if point["architecture"] == self.name]
        self.x = np.array([[point[name] for name in NAMES] for point in points])
        reducible = float(np.median([point["loss"] for point in points])) - self.floor
        centred = self.x / np.exp(np.log(self.x).mean(0))
        self.loss = self.floor + reducible / 2 * np.sum(centred ** -np.array(exponents), 1)
        self.truth = derive_exponents(*np.array(exponents)[:, None])

    def draw(self, number: int, seed: int, *, is_known: bool) -> dict[str, np.ndarray]:
        """The bootstrap draws of the exponents, of one data set."""
        noise = self.noise * np.random.default_rng([number, seed]).standard_normal(len(self.x))
        floor = self.floor if is_known else None
        fit = fit_power_law(NAMES, self.x, self.loss * np.exp(noise), floor, seed=seed)
        return derive_exponents(*fit.exponent_draws.T)


def count_hits(ladders: list[Ladder], simulations: int, *, is_known: bool) -> Counter[tuple[str, str]]:
    """In how many data sets the interval holds the truth, by exponent and by architecture, or pair of them."""
    hits: Counter[tuple[str, str]] = Counter()
    for number in track(range(simulations), f"E {'known' if is_known else 'fitted'}"):
        draws = {ladder.name: ladder.draw(number, seed, is_known=is_known) for seed, ladder in enumerate(ladders)}
        for exponent in EXPONENTS:
            rows = {ladder.name: (draws[ladder.name][exponent], ladder.truth[exponent]) for ladder in ladders}
            for one, other in combinations(ladders, 2):
                (a, true_a), (b, true_b) = rows[one.name], rows[other.name]
                rows[f"{one.name} minus {other.name}"] = a - b, true_a - true_b
            for name, (values, truth) in rows.items():
                low, high = percentile_interval(values)
                hits[exponent, name] += int(low <= truth[0] <= high)
    return hits


def main() -> None:
    """Prints the table, and writes it where asked."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("record", type=Path, help="the JSON beside the page of the ladder")
    parser.add_argument("--simulations", type=int, default=1000)
    parser.add_argument("--noise", type=float, default=0.01, help="standard deviation of the logarithm of the loss")
    parser.add_argument("--alpha", type=float, default=0.5, help="the exponent of parameters")
    parser.add_argument("--beta", type=float, default=0.6, help="the exponent of tokens")
    parser.add_argument("--known", action="store_true", help="with E known alone, not with E fitted")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    check_output(parser, arguments.output)
    begin, record = time.perf_counter(), json.loads(arguments.record.read_text())
    ladders = [Ladder(record, law, (arguments.alpha, arguments.beta), arguments.noise) for law in record["laws"]]
    lines = []
    for is_known in (True,) if arguments.known else (True, False):
        hits = count_hits(ladders, arguments.simulations, is_known=is_known)
        columns = list(dict.fromkeys(name for _, name in hits))
        if not lines:
            lines = [f"| exponent | {' | '.join(columns)} |", "|---|" + "---|" * len(columns)]
        for exponent, label in EXPONENTS.items():
            shares = [f"{100 * hits[exponent, name] / arguments.simulations:.1f} %" for name in columns]
            lines.append(f"| {label}; E {'known' if is_known else 'fitted'} | {' | '.join(shares)} |")
    design = ", ".join(f"{ladder.name} {len(ladder.x)} runs, noise {100 * ladder.noise:.2f} %" for ladder in ladders)
    lines.append(f"\n{arguments.simulations:,} simulations; {design}; {time.perf_counter() - begin:.0f} s.")
    text = "\n".join(lines)
    print(text)
    if arguments.output is not None:
        arguments.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
