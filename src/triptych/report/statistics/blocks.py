"""Statistics of differences within blocks, such as sizes of the network.

The difference d_b of two variants within block b, with its standard error e_b and f_b degrees of freedom by Welch's t
from the seeds of both, has over B blocks the mean

    d = sum d_b / B,  e² = sum e_b² / B²,  with (sum e_b²)² / sum (e_b⁴ / f_b) degrees of freedom (Satterthwaite 1946).

Seeds are the only source of error: the interval is for these blocks, not for others.

Interaction is the part of the cell means m_ab (variant a, block b, n_ab seeds) that an additive model does not explain,
with s_ab² the variance of seeds and N = sum n_ab (Scheffé 1959, chapter 4):

    F = [min over r, c of sum n_ab (m_ab - r_a - c_b)² / ((A - 1) (B - 1))] / [sum (n_ab - 1) s_ab² / (N - A B)].
"""

import math
from collections.abc import Sequence
from statistics import fmean, variance

import numpy as np
from scipy.special import fdtrc  # type: ignore[import-untyped]

from triptych.report.statistics.pair_test import PairTest
from triptych.report.statistics.significance import Welch


def average_over_blocks(differences: Sequence[Welch]) -> Welch:
    """The mean of the differences of two variants, one per block."""
    errors = [found.error**2 for found in differences]
    parts = sum(error**2 / found.freedom for error, found in zip(errors, differences, strict=True))
    freedom = sum(errors) ** 2 / parts if parts else sum(found.freedom for found in differences)
    error = math.sqrt(sum(errors)) / len(errors)
    return Welch(fmean(found.difference for found in differences), error, freedom)


def combine_blocks(tests: Sequence[PairTest], sign: int) -> PairTest:
    """The test of the mean difference of two variants over blocks; that of the only block as it is. Without a Welch
    test in each block, p is 1.

    Args:
        tests: of the same two variants, one per block.
        sign: 1 if a higher value is better, otherwise -1.
    """
    if len(tests) == 1:
        return tests[0]
    reasons = dict.fromkeys(reason for test in tests for reason in test.reasons)
    known = [test.welch for test in tests if test.welch is not None]
    welch = average_over_blocks(known) if len(known) == len(tests) else None
    ahead = sign * welch.difference if welch else 0.0
    help_ = all(test.more_seeds_help for test in tests)
    p = welch.p if welch else 1.0
    return PairTest((0, 0), welch, 1.0, p, (ahead > 0) - (ahead < 0), tuple(reasons), help_)


def interaction_p(cells: Sequence[Sequence[Sequence[float]]], grain: float = 0.0) -> float:
    """The p-value of the F test of interaction; 1 without several blocks, or without spread over seeds.

    Args:
        cells: per variant and block, the values of the seeds, at least two.
        grain: the resolution of the values: rounding adds grain² / 12 to their variance.
    """
    counts = np.array([[len(values) for values in row] for row in cells], float)
    means = np.array([[fmean(values) for values in row] for row in cells])
    num_variants, num_blocks = means.shape
    effects = [np.repeat(np.eye(num_variants), num_blocks, axis=0), np.tile(np.eye(num_blocks), (num_variants, 1))]
    weights = np.sqrt(counts.ravel())
    design, observed = np.hstack(effects) * weights[:, None], means.ravel() * weights
    left = observed - design @ np.linalg.lstsq(design, observed, rcond=None)[0]
    freedom, of_seeds = (num_variants - 1) * (num_blocks - 1), counts.sum() - counts.size
    within = sum((len(x) - 1) * (variance(x) + grain**2 / 12) for row in cells for x in row) / of_seeds
    return float(fdtrc(freedom, of_seeds, (left**2).sum() / freedom / within)) if freedom and within else 1.0
