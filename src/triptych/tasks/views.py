"""Views: inputs of the network that each score some tokens of a text. One list of views per text, by architecture.

Tested by tests/tasks/test_likelihood.py.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from triptych.data import IGNORE_INDEX, EncodedExample, TokenizedWords

NUM_ORDERS = 4
"""Number of random orders in which a text is filled in, for its bound."""


@dataclass(frozen=True, slots=True)
class View:
    """An input of the network that scores some tokens of a text.

    Attributes:
        item: labels at the scored positions only.
        places: index of the token in the text that each label scores, in the order of the labels.
        weight: of its nats in those of the tokens.
        is_bidirectional: whether a decoder reads it from both sides.
    """

    item: EncodedExample
    places: Sequence[int]
    is_bidirectional: bool = False
    weight: float = 1.0


def causal_view(before: Sequence[int], ids: Sequence[int], prefix: int = 0) -> View:
    """Scores each token given all earlier ones: ln p(x) = sum_t ln p(x_t | before, x_<t). The end is not scored.

    Args:
        before: tokens before the text; at least one.
        ids: tokens of the text.
        prefix: see ``EncodedExample``.
    """
    labels = [IGNORE_INDEX] * (len(before) - 1) + [*ids]
    return View(EncodedExample(np.array([*before, *ids[:-1]]), np.array(labels), prefix=prefix), range(len(ids)))


def masked_views(
    begin: Sequence[int],
    ids: Sequence[int],
    end: Sequence[int],
    mask: int,
    ends: Sequence[int],
    *,
    predicts_next: bool = False,
) -> Iterator[View]:
    """Scores each token given all others (Salazar et al. 2020), or given all but some later ones: those of its word
    (Kauf and Ivanova 2023), since the tokens of a rare word give each other away, or all.

    Args:
        begin: tokens before the text.
        ids: tokens of the text.
        end: tokens after it.
        mask: the mask token.
        ends: for each token, the end of the tokens that are masked with it.
        predicts_next: whether a decoder predicts each token at the position before it (see ``mask_next_tokens``).
    """
    for place, stop in enumerate(ends):
        yield _hidden_view(begin, ids, end, mask, slice(place, stop), [place], predicts_next=predicts_next)


def word_ends(text: TokenizedWords) -> list[int]:
    """Returns the end of the word of each token."""
    return list(np.searchsorted(text.word_of, text.word_of, side="right").tolist())


def diffusion_views(begin: Sequence[int], ids: Sequence[int], end: Sequence[int], mask: int) -> Iterator[View]:
    """Scores texts by the bound of masked diffusion (see ``triptych.tasks.masked_diffusion.hide``):

        -ln p(x) <= sum over k = 1..n of 1 / k * E_S [sum over i in S of -ln p(x_i given x without S)], |S| = k

    with the mean over ``NUM_ORDERS`` sets S for each k, the first k tokens of a random order. The orders are a function
    of n, so that two sentences of the same length have the same.

    Args:
        begin: tokens before the text.
        ids: tokens of the text.
        end: tokens after it.
        mask: the mask token.
    """
    random = np.random.default_rng(len(ids))
    for _ in range(NUM_ORDERS):
        order = random.permutation(len(ids))
        for count in range(1, len(ids) + 1):
            places = np.sort(order[:count])
            yield _hidden_view(begin, ids, end, mask, places, places.tolist(), weight=1 / (count * NUM_ORDERS))


def _hidden_view(
    begin: Sequence[int],
    ids: Sequence[int],
    end: Sequence[int],
    mask: int,
    hidden: slice | Int[np.ndarray, " hidden"],
    places: Sequence[int],
    *,
    predicts_next: bool = False,
    weight: float = 1.0,
) -> View:
    text, targets = np.array(ids), np.full(len(ids), IGNORE_INDEX)
    targets[places] = text[places]
    text[hidden] = mask
    before, after = np.full(len(begin), IGNORE_INDEX), np.full(len(end), IGNORE_INDEX)
    labels = np.concatenate([before, targets, after])
    labels = np.append(labels[1:], IGNORE_INDEX) if predicts_next else labels
    item = EncodedExample(np.array([*begin, *text, *end]), labels)
    return View(item, places, is_bidirectional=predicts_next, weight=weight)


def labelled_at(item: EncodedExample, begin: int, places: Sequence[int]) -> View:
    """Scores some labels of a decoder, and leaves out what it reads later.

    Args:
        item: encoded for training.
        begin: index of the first label.
        places: the token that each label scores.
    """
    stop = begin + len(places)
    labels = np.append(np.full(begin, IGNORE_INDEX), item.labels[begin:stop])
    return View(EncodedExample(item.inputs[:stop], labels, item.source, item.prefix), places)
