"""The base class of tasks that generate text from audio or an image.

Tested by tests/tasks/test_captioning.py and tests/tasks/test_transcription.py.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float

from triptych.data import Batch, EncodedExample, Example, pad_and_stack
from triptych.models.generation import Prompts
from triptych.nn.network import count_positions
from triptych.tasks.predictions import Prediction
from triptych.tasks.sequence_to_sequence import SequenceToSequence
from triptych.tasks.task import targets_of

Signal = Float[np.ndarray, "frames mels"] | Float[np.ndarray, "channels height width"]
"""The frames of an audio clip, or the pixels of an image."""


class SignalToText(SequenceToSequence):
    """Generates the target text of a signal.

    The encoder-decoder reads the signal with its encoder and generates with its decoder. A decoder-only model reads
    signal and text in one sequence, the signal first; a prefix decoder attends to the signal in both directions."""

    truncates_input = False
    unsupported: ClassVar[Mapping[str, str]] = {
        "encoder_only": "an encoder does not fill in texts after a signal; use model=full or decoder_only"
    }
    signal: ClassVar[str]
    """The field of ``Example`` with the signal."""
    is_filled_in = False
    """See ``GenerativeTask``."""

    @abstractmethod
    def perceive(self, example: Example) -> Signal:
        """Returns the signal of an example as input of the network.

        Raises:
            ValueError: if the signal is missing or invalid for the network.
        """

    def encode(self, examples: Sequence[Example]) -> list[EncodedExample]:
        """Encodes signal and text for the architecture.

        Raises:
            ValueError: if an example has no signal or no text, or a signal that is invalid for the network.
        """
        targets = self.tokenizer.encode(targets_of(examples, "what is to be written"), as_target=True)
        pairs = zip(examples, targets, strict=True)
        return [self.lay_out_signal(self.perceive(example), target, example) for example, target in pairs]

    def lay_out_signal(self, given: Signal, target: Sequence[int], example: Example) -> EncodedExample:
        """Encodes the signal, and the text after its start token.

        Args:
            target: the text to generate.
        """
        special = self.tokenizer.special
        tokens, labels = special.written(target)
        if self.architecture != "full":
            tokens, labels = [special.bos, *target], [*target, special.eos]
        return EncodedExample(np.array(tokens), np.array(labels), given, example=example)

    def truncate(self, item: EncodedExample) -> EncodedExample:
        """Cuts the text to its first ``max_length`` tokens; for audio see ``truncate_audio``."""
        tokens, labels = item.inputs[: self.max_length], item.labels[: self.max_length]
        return EncodedExample(tokens, labels, item.source, example=item.example)

    def predict_batch(self, texts: Sequence[Any]) -> Sequence[Prediction]:
        """Returns the generated text for each signal.

        Args:
            texts: audio clips, or images.
        """
        return self.answer([self.perceive(example) for example in self.examples_of(texts)])  # type: ignore[misc]

    def examples_of(self, given: Sequence[Any]) -> list[Example]:
        """Returns the inputs of ``predict`` as examples."""
        return [Example(self.signal, target="", **{self.signal: one}) for one in given]

    def _fitting(self, source: Any) -> Any:
        return source

    def _sources_of(self, batch: Batch) -> list[Any]:
        assert batch.source is not None
        if batch.source_mask is None:
            return [*batch.source.cpu().numpy()]
        return [row[mask].cpu().numpy() for row, mask in zip(batch.source, batch.source_mask, strict=True)]

    def _start(self, given: Sequence[Any]) -> Prompts:
        """Returns the prompts and the state of the network after reading the signals."""
        network: Any = self.network
        room = network.max_positions
        source, mask = (None if part is None else part.to(self.device) for part in pad_and_stack(given))
        assert source is not None
        special, is_full = self.tokenizer.special, self.architecture == "full"
        given_tokens = [special.start, *special.target_begin] if is_full else [special.bos]
        taken = len(given_tokens) + (0 if is_full else count_positions(network.source_embedding, source))
        limit = self.max_new_tokens if room is None else min(self.max_new_tokens, room - taken)
        if limit < 1:
            raise ValueError(f"the {self.signal} leaves no room for a text: a stack has max_length={room}")
        signals = (source, mask) if is_full else (None,)
        named = {} if is_full else {"source": source, "source_mask": mask}
        next_token = network.continuation(*signals, capacity=len(given_tokens) + limit, **named)
        prompt = torch.tensor([given_tokens] * len(given), device=self.device)
        return Prompts(next_token, prompt, None, [limit] * len(given))
