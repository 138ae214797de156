"""Views: inputs of the network that each score some tokens of a text. One list of views per text, by architecture.

Tested by tests/tasks/test_likelihood.py.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from triptych.data import IGNORE_INDEX, EncodedExample, TokenizedWords


@dataclass(frozen=True, slots=True)
class View:
    """An input of the network that scores some tokens of a text.

    Attributes:
        item: labels at the scored positions only.
        places: index of the token in the text that each label scores, in the order of the labels.
        is_bidirectional: whether a decoder reads it from both sides.
    """

    item: EncodedExample
    places: Sequence[int]
    is_bidirectional: bool = False


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
    text: TokenizedWords,
    end: Sequence[int],
    mask: int,
    *,
    hides_rest_of_word: bool,
    predicts_next: bool = False,
) -> Iterator[View]:
    """Scores each token given all others (Salazar et al. 2020), or given all but the later ones of its word (Kauf and
    Ivanova 2023), since the tokens of a rare word give each other away.

    Args:
        begin: tokens before the text.
        end: tokens after it.
        mask: the mask token.
        hides_rest_of_word: whether to mask the later tokens of the word, too.
        predicts_next: whether a decoder predicts each token at the position before it (see ``mask_next_tokens``).
    """
    whole = np.array([*begin, *text.ids, *end])
    ends = np.searchsorted(text.word_of, text.word_of, side="right").tolist() if hides_rest_of_word else None
    for place, token in enumerate(text.ids):
        inputs, labels = whole.copy(), np.full(len(whole), IGNORE_INDEX)
        inputs[len(begin) + place : len(begin) + (ends[place] if ends else place + 1)] = mask
        labels[len(begin) + place - predicts_next] = token
        yield View(EncodedExample(inputs, labels), [place], is_bidirectional=predicts_next)


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
