"""What the tasks that write text share."""

from collections.abc import Sequence
from typing import Any

import torch

from triptych.data.batch import pad
from triptych.data.corpus import CorpusFacts
from triptych.data.tokenizers import BOS, EOS, Tokenizer
from triptych.decoding import Sampling, generate
from triptych.nn import Network
from triptych.optim import AdamW, Schedule
from triptych.tasks.base import Task


class GenerativeTask(Task):
    """A task whose answers are texts, decoded token by token.

    Args:
        network: its head has one output for each token.
        tokenizer: of the texts.
        corpus: what is known of the corpus.
        optimizer: makes the optimizer.
        schedule: factor of the learning rate.
        seed: of dropout.
        label_smoothing: share of each label that is spread over the vocabulary.
        max_new_tokens: the most tokens that are decoded.
    """

    def __init__(
        self,
        *,
        network: Network,
        tokenizer: Tokenizer,
        corpus: CorpusFacts,
        optimizer: AdamW,
        schedule: Schedule,
        seed: int,
        label_smoothing: float,
        max_new_tokens: int,
    ) -> None:
        super().__init__(
            network=network,
            tokenizer=tokenizer,
            corpus=corpus,
            optimizer=optimizer,
            schedule=schedule,
            seed=seed,
            label_smoothing=label_smoothing,
        )
        if max_new_tokens < 1:
            raise ValueError(f"task.max_new_tokens={max_new_tokens}: expected at least 1")
        self.max_new_tokens = max_new_tokens
        self.sampling = Sampling()

    @property
    def room(self) -> int | None:
        """The positions that the network has a vector for; None: no limit."""
        embedding = self.network.embedding
        return embedding.max_length if embedding.positions is not None else None

    def decode(self, given: Sequence[Sequence[int]]) -> list[str]:
        """What the network writes after what it is given: the source of the full model, the prompt of a decoder.

        Args:
            given: token ids.
        """
        network: Any = self.network  # of one of the two architectures that write
        room = self.room
        if self.architecture == "full":
            source, source_mask = (tensor.to(self.device) for tensor in pad(given))
            prompt = torch.full((len(given), 1), BOS, device=self.device)
            new = self.max_new_tokens if room is None else min(self.max_new_tokens, room - 1)
            next_token = network.continuation(source, source_mask, capacity=1 + new)
        else:
            prompt, mask = (tensor.to(self.device) for tensor in pad(given, left=True))
            length = prompt.shape[1]
            new = self.max_new_tokens if room is None else min(self.max_new_tokens, room - length)
            if new < 1:
                raise ValueError(f"a prompt of {length} tokens leaves no room: shape.max_length={room}")
            next_token = network.continuation(None if mask.all() else mask, capacity=length + new)
        outputs = generate(next_token, prompt, end=EOS, max_new_tokens=new, sampling=self.sampling)
        return [self.tokenizer.decode(ids) for ids in outputs]
