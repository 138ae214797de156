"""The likelihood of texts, on one scale for all architectures: -ln p of each token, in nats.

Tested by tests/tasks/test_likelihood.py.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float, Int

from triptych.config import nearest
from triptych.data import collate
from triptych.nn import Targets
from triptych.tasks.precision import arithmetic
from triptych.tasks.task import Task
from triptych.tasks.views import View


class TextTooLongError(ValueError):
    """A text does not fit into the network.

    Args:
        index: index of the text, from 0.
        message: for the user, without the text.
    """

    def __init__(self, index: int, message: str) -> None:
        super().__init__(f"text {index + 1}: {message}")
        self.index, self.message = index, message


@dataclass(frozen=True, slots=True)
class TextScore:
    """The surprisal of a text: -ln p, whose sum is minus the logarithm of its likelihood or pseudo-likelihood.

    Attributes:
        method: how it was computed; see ``Predictor.score``.
        tokens: the tokens.
        nats: -ln p of each token.
        words: the words, as the tokenizer splits the text before it forms tokens.
        word_nats: sum of the nats of the tokens of each word.
        num_unknown: number of unknown tokens.
    """

    method: str
    tokens: list[str]
    nats: list[float]
    words: list[str]
    word_nats: list[float]
    num_unknown: int

    @property
    def total(self) -> float:
        """The sum of the nats."""
        return sum(self.nats)


def score_texts(
    task: Task,
    texts: Sequence[str],
    contexts: Sequence[str] | None,
    method: str | None,
    batch_tokens: int,
    advance: Callable[[int], None],
) -> list[TextScore]:
    """Scores texts with a trained task; see ``Predictor.score``.

    Args:
        advance: called with the number of texts scored since the last call.

    Raises:
        TypeError: one text, or one context, in place of a list.
        ValueError: the task has no likelihood or no such method, or there is not a context per text.
        TextTooLongError: a text is too long.
    """
    if isinstance(texts, str) or isinstance(contexts, str):
        raise TypeError("score takes lists of texts, not one text: score([text])")
    if contexts is not None and len(contexts) != len(texts):
        raise ValueError(f"{len(texts)} texts with {len(contexts)} contexts: expected a context per text")
    if not task.scoring_methods:
        raise ValueError(
            f"{task.name} on {task.architecture} has no likelihood of a text; expected language_modeling or denoising"
        )
    method = method or task.scoring_methods[0]
    if method not in task.scoring_methods:
        known = [*task.scoring_methods]
        raise ValueError(
            f"method={method}: {task.name} on {task.architecture} supports {', '.join(known)}{nearest(method, known)}"
        )
    tokenized = task.tokenizer.encode_words(texts)
    given = [[] for _ in texts] if contexts is None else task.tokenizer.encode(contexts)
    ends = np.cumsum([0, *(len(text.ids) for text in tokenized)])
    nats = np.zeros(ends[-1])
    order = sorted(range(len(texts)), key=lambda i: -len(tokenized[i].ids) - len(given[i]))

    def views() -> Iterator[tuple[int, View]]:
        for i in order:
            for view in task.views(given[i], tokenized[i], method):
                if view.item.longest > task.max_length:
                    room = f"the network reads at most {task.max_length} (shape.max_length of its training)"
                    raise TextTooLongError(i, f"{view.item.longest} tokens; {room}")
                yield i, view
            advance(1)

    task.network.eval()
    with torch.inference_mode(), arithmetic(task.precision, task.device).forward_context():
        for some in _batches(views(), batch_tokens):
            places = np.concatenate([ends[i] + np.array(view.places) for i, view in some])
            weights = np.repeat([view.weight for _, view in some], [len(view.places) for _, view in some])
            np.add.at(nats, places, weights * _losses(task, [view for _, view in some]))
    unk = task.tokenizer.special.unk
    scores = []
    for text, (start, stop) in zip(tokenized, pairwise(ends.tolist()), strict=True):
        of_tokens = nats[start:stop]
        of_words = np.bincount(text.word_of, of_tokens, len(text.words)).tolist()
        num_unknown = 0 if unk is None else text.ids.count(unk)
        names = task.names_of(text.ids)
        scores.append(TextScore(method, names, of_tokens.tolist(), text.words, of_words, num_unknown))
    return scores


def _batches(views: Iterable[tuple[int, View]], batch_tokens: int) -> Iterator[list[tuple[int, View]]]:
    """Groups views whose padded lengths have at most ``batch_tokens`` in all."""
    some, longest = list[tuple[int, View]](), 0
    for number, view in views:
        longer = max(longest, view.item.size)
        if some and longer * (len(some) + 1) > batch_tokens:
            yield some
            some, longer = [], view.item.size
        some.append((number, view))
        longest = longer
    if some:
        yield some


def _losses(task: Task, views: Sequence[View]) -> Float[np.ndarray, " scored"]:
    batch = collate([view.item for view in views]).to(task.device)
    batch.is_bidirectional = views[0].is_bidirectional  # as all views of a method
    labels: Int[torch.Tensor, " scored"] = batch.labels.flatten()[batch.scored]
    return task.forward(batch, Targets(batch.scored, labels, 0.0, each=True))[0].double().cpu().numpy()
