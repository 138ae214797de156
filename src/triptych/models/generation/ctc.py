"""Decoding of connectionist temporal classification (CTC, Graves et al. 2006)."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from triptych.models.generation.beam_search import Hypothesis


def collapsed(path: Sequence[int], blank: int) -> list[int]:
    """Collapses a path of frames to its sequence: merges equal neighbors, then removes blanks."""
    return [token for i, token in enumerate(path) if token != blank and (i == 0 or token != path[i - 1])]


def prefix_beam_search(
    log_probabilities: Float[np.ndarray, "frames tokens"], *, blank: int, num_beams: int
) -> list[Hypothesis]:
    """Returns the most probable sequences, best first, each scored by all paths that collapse to it.

    log p(y) = logsumexp_{path: collapse(path) = y} sum_t log p_t(path_t). After each frame the ``num_beams`` most
    probable prefixes are kept, each with the probability of its paths that end in a blank and of those that end in its
    last token, which repeats only after a blank (Hannun et al. 2014, algorithm 1).

    Args:
        log_probabilities: log-probability of each token at each frame.
        blank: the blank token.
        num_beams: number of prefixes to keep.
    """
    beams: dict[tuple[int, ...], tuple[float, float]] = {(): (0.0, -np.inf)}  # paths that end in a blank, in a token
    for frame in log_probabilities.astype(np.float64):
        # At most num_beams new continuations of a prefix are kept, in addition to the blank and its last token. One
        # that is kept already gets this path too, however improbable the token is now.
        likeliest = [token for token in np.argsort(-frame, kind="stable")[: num_beams + 2].tolist() if token != blank]
        kept = defaultdict[tuple[int, ...], set[int]](set)
        for prefix in beams:
            kept[prefix[:-1]].update(prefix[-1:])
        found = defaultdict[tuple[int, ...], list[list[float]]](lambda: [[], []])
        for prefix, (in_blank, in_token) in beams.items():
            both = np.logaddexp(in_blank, in_token)
            found[prefix][0].append(both + frame[blank])
            if prefix:
                found[prefix][1].append(in_token + frame[prefix[-1]])
            for token in {*likeliest, *kept[prefix]}:
                before = in_blank if prefix and token == prefix[-1] else both
                found[*prefix, token][1].append(before + frame[token])
        sums = {prefix: (_logsumexp(scores[0]), _logsumexp(scores[1])) for prefix, scores in found.items()}
        possible = [prefix for prefix, scores in sums.items() if max(scores) > -np.inf]
        ranked = sorted(possible, key=lambda prefix: (-np.logaddexp(*sums[prefix]), prefix))
        beams = {prefix: sums[prefix] for prefix in ranked[:num_beams]}
    return [Hypothesis(list(prefix), float(np.logaddexp(*scores))) for prefix, scores in beams.items()]


def _logsumexp(scores: Sequence[float]) -> float:
    return float(np.logaddexp.reduce([-np.inf, *scores]))
