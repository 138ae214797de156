"""Batched predictions with a trained task.

Tested by tests/tasks/test_task.py.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from triptych.data import Audio, Tokenizer
from triptych.nn import Network
from triptych.tasks.likelihood import TextScore, score_texts
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

    def score(
        self,
        texts: Sequence[str],
        contexts: Sequence[str] | None = None,
        method: str | None = None,
        *,
        batch_tokens: int | None = None,
        advance: Callable[[int], None] = lambda count: None,
    ) -> list[TextScore]:
        """Returns the surprisal of each text, by the likelihood that the network was trained on.

        - ``log_likelihood`` (decoder-only): ln p of each token given the earlier ones.
        - ``prefix_log_likelihood`` (full or prefix decoder as language model): the same given the context, which such a
          network reads with bidirectional attention.
        - ``pseudo_log_likelihood_l2r`` (masked encoder): ln p of each token given all others except the later ones of
          its word (Kauf and Ivanova 2023). It is no probability: the sum over all texts is not 1.
        - ``pseudo_log_likelihood`` (masked encoder): ln p of each token given all others (Salazar et al. 2020).
        - ``infilling_by_word`` (text infilling): ln p of each word given all others; each is replaced by a mask.
        - ``span_corruption_by_word`` (span corruption): the same, and that the span ends after the word.

        Args:
            texts: the texts. Their ends (eos) are not scored.
            contexts: the beginning of each text, which is not scored; a text usually starts with a space then. None: no
                contexts.
            method: one of these; None: the default of the task and the architecture.
            batch_tokens: maximum number of tokens per batch, with padding; None: 4,096 on CPUs, 65,536 on GPUs.
            advance: called with the number of texts scored since the last call.

        Raises:
            ValueError: the task has no likelihood or no such method, or a text is too long.
        """
        most = batch_tokens or (4096 if self.task.device.type == "cpu" else 65_536)
        return score_texts(self.task, texts, contexts, method, most, advance)

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
