"""Batched predictions with a trained task.

Tested by tests/tasks/test_task.py.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from triptych.data import Audio, Tokenizer
from triptych.nn import Network
from triptych.tasks.precision import arithmetic
from triptych.tasks.predictions import Prediction
from triptych.tasks.task import BATCHES_SORTED, Task


class Predictor:
    """Makes batched predictions with a trained task: ``Predictor(task).predict(texts)``.

    Attributes:
        task: the trained task; a generative task decodes by ``task.search`` and ``task.sampling``.
    """

    def __init__(self, task: Task) -> None:
        self.task = task

    @property
    def network(self) -> Network:
        """The network of the task."""
        return self.task.network

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the task."""
        return self.task.tokenizer

    def predict(self, texts: Sequence[Any], *, batch_size: int = 64) -> list[Prediction]:
        """Returns the prediction for each input, in their order.

        Args:
            texts: texts, or for a network with such inputs: pairs of texts, or images as arrays or nested sequences.
            batch_size: number of inputs per batch.

        Raises:
            TypeError: if it is one text instead of a list of texts or of pairs of texts.
        """
        if isinstance(texts, str):
            raise TypeError("predict takes a list of texts, not one text: predict([text])")
        return list(self.predictions(texts, batch_size=batch_size))

    def predictions(
        self, texts: Sequence[Any], *, batch_size: int = 64, advance: Callable[[int], None] = lambda count: None
    ) -> Iterator[Prediction]:
        """Yields the predictions one by one; inputs of similar length share a batch, which reduces padding.

        Args:
            texts: see ``predict``.
            batch_size: number of inputs per batch.
            advance: called with the number of inputs started since the last call.
        """
        task = self.task
        task.network.eval()
        task.begin_predictions(batch_size, advance)
        if task.audio is not None:
            known = task.audio.speaker_means
            task.audio.update_speaker_means([x for x in texts if isinstance(x, Audio) and x.speaker not in known])
        for start in range(0, len(texts), BATCHES_SORTED * batch_size):
            some = texts[start : start + BATCHES_SORTED * batch_size]
            predicted: dict[int, Prediction] = {}
            order = sorted(range(len(some)), key=lambda i: -task.size_of(some[i]))
            at_once = len(some) if task.fills_batches else batch_size
            for first in range(0, len(some), at_once):
                places = order[first : first + at_once]
                with torch.inference_mode(), arithmetic(task.precision, task.device).forward_context():
                    predicted |= zip(places, task.predict_batch([some[i] for i in places]), strict=True)
                if not task.fills_batches:
                    advance(len(places))
            yield from (predicted[i] for i in range(len(some)))
