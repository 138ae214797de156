"""Whether one network is better than another on minimal pairs: the paired bootstrap over paradigms, pairs and seeds.

Tested by tests/report/statistics/test_pair_bootstrap.py.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from triptych.report.pair_scores import PairScores
from triptych.report.statistics.bootstrap import NUM_RESAMPLES, SEED, Paired


def compare_pair_scores(
    first: Sequence[PairScores], second: Sequence[PairScores], paradigms: Sequence[str]
) -> Paired | None:
    """Returns the difference of two accuracies in points, and its bootstrap interval. Each draw has paradigms with
    replacement, pairs within each, the same for both arms, and seeds of each arm.

    Args:
        first: the scores of an arm, one per seed; so is ``second``.
        paradigms: paradigms whose accuracies are averaged.

    Returns:
        None if both arms have not scored the same pairs.
    """
    every = [*first, *second]
    if len({tuple(scores.paradigm) for scores in every}) > 1 or not paradigms:
        return None
    points = np.array([scores.points for scores in every])
    points[:, np.isnan(points).any(0)] = np.nan  # what one leaves out does not count for the others
    random = np.random.default_rng(SEED)
    draws = len(paradigms), [1 / len(paradigms)] * len(paradigms)
    counts = np.vstack([np.ones(len(paradigms), int), random.multinomial(*draws, NUM_RESAMPLES)])
    weights = np.hstack([_weights_of_seeds(len(first), random), -_weights_of_seeds(len(second), random)])
    totals = np.zeros(NUM_RESAMPLES + 1)
    for name, times in zip(paradigms, counts.T, strict=True):
        of_name = points[:, np.array(every[0].paradigm) == name]
        kinds, sizes = np.unique(of_name[:, ~np.isnan(of_name[0])], axis=1, return_counts=True)  # of pairs, a few
        if not (count := int(sizes.sum())):
            return None
        drawn = random.multinomial(times * count, sizes / count)
        drawn[0] = sizes  # the pairs themselves
        totals += ((weights @ kinds) * drawn).sum(1) / count
    observed, *differences = (100 * totals / len(paradigms)).tolist()
    low, high = np.percentile(differences, [2.5, 97.5])
    as_far = np.abs(np.array(differences) - np.mean(differences)) >= abs(observed)
    return Paired(observed, float(low), float(high), float((as_far.sum() + 1) / (NUM_RESAMPLES + 1)))


def _weights_of_seeds(count: int, random: np.random.Generator) -> Float[np.ndarray, "draws seeds"]:
    """The weight of each seed: equal ones first, then those of each draw."""
    drawn = random.multinomial(count, [1 / count] * count, NUM_RESAMPLES)
    return np.vstack([np.ones(count), drawn]) / count
