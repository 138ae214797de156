"""What is said in a sound."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.functional.text import char_error_rate, word_error_rate
from torchmetrics.text import CharErrorRate, WordErrorRate

from triptych.data import IGNORE, Batch, Encoded, Example, collate, pad_frames
from triptych.models.generation import Prompts
from triptych.models.generation.ctc import collapsed, prefix_beam_search
from triptych.tasks.base import Prediction
from triptych.tasks.exact_sums import Mean
from triptych.tasks.scores import EXACT_MATCH, Score
from triptych.tasks.sequence_to_sequence import SequenceToSequence

ERRORS = {"word": word_error_rate, "character": char_error_rate}


class Transcription(SequenceToSequence):
    """Writes what is said in a sound.

    - An encoder by itself gives each of its positions a token or a blank (``pad``); the loss is connectionist temporal
      classification, -log of the sum over all paths that collapse to the text (Graves et al. 2006).
    - The full model hears with its encoder and writes with its decoder (Whisper, Radford et al. 2022).
    - A decoder by itself reads frames and text in one sequence, the frames first; a prefix decoder sees them from both
      sides.

    Metrics: loss (of an encoder, the nats of all paths a token), exact_match; token_accuracy of those that write token
    by token; at the test, and of an encoder always, word_error_rate and character_error_rate: substitutions, insertions
    and deletions over the words, or characters, of the right texts. With ``num_beams`` an encoder is searched too (see
    ``prefix_beam_search``).
    """

    name = "transcription"
    title = "Transcription"
    columns = ("sound", "target")
    hears = True
    input_title = "Sound"
    answers_a_part = False
    refusals: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def scores(cls, architecture: str, metrics: Mapping[str, float], optimum: Mapping[str, float]) -> Sequence[Score]:
        """Exact match where its best value is known; the word error rate."""
        words = Score("word_error_rate", "test/word_error_rate", "word error rate", False, "%",
                      numerator={"word_errors": 1.0}, denominator={"words": 1.0})  # fmt: skip
        return [EXACT_MATCH, words] if EXACT_MATCH.key in optimum else [words]

    @property
    def is_ctc(self) -> bool:
        """Whether each position has its token, and not each token its position."""
        return self.architecture == "encoder_only"

    def encode(self, examples: Sequence[Example]) -> list[Encoded]:
        """Frames and text, laid out for the architecture.

        Raises:
            ValueError: an example without a sound or a text, or a text that is too long for its sound.
        """
        if missing := [example for example in examples if not (example.target or "").strip()]:
            is_empty = missing[0].target is not None
            raise ValueError(
                f"{missing[0].where}: {'an empty text; expected what is said' if is_empty else 'there is no target'}"
            )
        targets = self.tokenizer.encode([example.target or "" for example in examples], as_target=True)
        return [self._laid_out(example, target) for example, target in zip(examples, targets, strict=True)]

    def _laid_out(self, example: Example, target: Sequence[int]) -> Encoded:
        frames, special = self.hear(example), self.tokenizer.special
        if self.is_ctc:
            item = Encoded(frames, np.array(target, dtype=np.int64), example=example)
            return self._checked(item, f"lower frames.stride={self.frames.stride if self.frames else 1}")
        tokens, labels = special.written(target)
        if self.architecture != "full":
            tokens, labels = [special.bos, *target], [*target, special.eos]
        return Encoded(np.array(tokens), np.array(labels), frames, example=example)

    def _checked(self, item: Encoded, advice: str) -> Encoded:
        """The same, whose text has a path: a position for each token, and a blank between two that are equal."""
        assert self.frames is not None
        least = len(item.labels) + sum(a == b for a, b in pairwise(item.labels.tolist()))
        if (positions := self.frames.count(len(item.tokens))) < least:
            where = "" if item.example is None else f"{item.example.where}: "
            raise ValueError(f"{where}{positions} positions for a text that needs {least} ({advice})")
        return item

    def truncate_sound(self, item: Encoded) -> Encoded:
        """See ``Task``.

        Raises:
            ValueError: of an encoder, a text that is too long for what is left of its sound.
        """
        kept = super().truncate_sound(item)
        return self._checked(kept, "batch.too_long=drop leaves it out of a training") if self.is_ctc else kept

    def num_unanswered(self, batch: Batch) -> int:
        """See ``Task``; of an encoder each position is asked, whatever the text."""
        return 0 if self.is_ctc else super().num_unanswered(batch)

    def training_loss(self, batch: Batch) -> Float[Tensor, ""]:
        """See ``Task``."""
        return self.paths_loss(self(batch), batch) if self.is_ctc else super().training_loss(batch)

    def paths_loss(self, logits: Float[Tensor, "batch positions vocab"], batch: Batch) -> Float[Tensor, ""]:
        """-log p(text), over all paths, the sum over the batch."""
        of_texts = F.ctc_loss(
            logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1).transpose(0, 1),
            batch.labels.clamp(min=0),
            self._lengths(batch),
            (batch.labels != IGNORE).sum(1),
            blank=self.tokenizer.special.pad,
            reduction="none",
        )
        return of_texts.sum() * bool(batch.examples)  # of a process that has none, a batch stands for nothing

    def _lengths(self, batch: Batch) -> Tensor:
        assert self.frames is not None
        assert batch.mask is not None
        return self.frames.positions(batch.mask).sum(1)

    def make_metrics(self, stage: str) -> dict[str, Metric]:
        """Of an encoder the same at every evaluation: it answers at once."""
        if self.is_ctc:
            return {"exact_match": Mean(), **self.test_metrics()}
        return super().make_metrics(stage)

    def test_metrics(self) -> dict[str, Metric]:
        """torchmetrics' error rates."""
        return {"word_error_rate": WordErrorRate(), "character_error_rate": CharErrorRate()}

    def score(
        self, metrics: Mapping[str, Metric], outputs: Sequence[str], references: Sequence[str]
    ) -> Mapping[str, Sequence[float]]:
        """See ``SequenceToSequence``."""
        numbers: dict[str, list[float]] = {"words": [float(len(right.split())) for right in references]}
        numbers["characters"] = [float(len(right)) for right in references]
        for kind, rate in ERRORS.items():
            metrics[f"{kind}_error_rate"].update(outputs, references)
            numbers[f"{kind}_errors"] = [
                round(float(rate([output], [right])) * count) if count else float(len(output))
                for output, right, count in zip(outputs, references, numbers[f"{kind}s"], strict=True)
            ]
        return numbers

    def update_metrics(self, metrics: Mapping[str, Metric], batch: Batch) -> None:
        """See ``SequenceToSequence``."""
        if not self.is_ctc:
            super().update_metrics(metrics, batch)
            return
        logits: Tensor = self(batch)
        metrics["loss"].update(self.paths_loss(logits, batch), (batch.labels != IGNORE).sum())
        self._score(metrics, batch, self._read(logits, self._lengths(batch)))

    def _read(self, logits: Float[Tensor, "batch positions vocab"], lengths: Tensor) -> list[str]:
        """The texts of the likeliest paths, or by beam search the likeliest texts."""
        blank, num_beams, texts = self.tokenizer.special.pad, self.search.num_beams, []
        for row, length in zip(logits.float().cpu().numpy(), lengths.tolist(), strict=True):
            ids = collapsed(row[:length].argmax(-1).tolist(), blank)
            if num_beams > 1:
                scores = torch.from_numpy(row[:length]).log_softmax(-1).numpy()
                ids = prefix_beam_search(scores, blank=blank, num_beams=num_beams)[0].tokens
            texts.append(self.text_of(ids, ()))
        return texts

    def predict_batch(self, texts: Sequence[Any]) -> Sequence[Prediction]:
        """What is said in each sound.

        Args:
            texts: sounds.
        """
        examples = [Example("sound", target="", sound=sound) for sound in texts]
        if not self.is_ctc:
            return self.answer([self.hear(example) for example in examples])  # type: ignore[misc]
        batch = collate([Encoded(self.hear(x), np.empty(0, np.int64), example=x) for x in examples]).to(self.device)
        return self._read(self(batch), self._lengths(batch))

    @property
    def fills_batches(self) -> bool:
        """See ``GenerativeTask``; an encoder answers at once."""
        return not self.is_ctc

    def _fitting(self, source: Any) -> Any:
        return source

    def _sources_of(self, batch: Batch) -> list[Any]:
        assert batch.source is not None
        assert batch.source_mask is not None
        return [row[mask].cpu().numpy() for row, mask in zip(batch.source, batch.source_mask, strict=True)]

    def _start(self, given: Sequence[Any]) -> Prompts:
        """Of frames, before the first token of each text."""
        network: Any = self.network
        assert self.frames is not None
        source, mask = (tensor.to(self.device) for tensor in pad_frames(given))
        special, is_full = self.tokenizer.special, self.architecture == "full"
        given_tokens = [special.start, *special.target_begin] if is_full else [special.bos]
        taken = len(given_tokens) + (0 if is_full else self.frames.count(source.shape[1]))
        limit = self.max_new_tokens if self.room is None else min(self.max_new_tokens, self.room - taken)
        if limit < 1:
            raise ValueError(f"a sound of {source.shape[1]} frames leaves no room: shape.max_length={self.room}")
        sounds = (source, mask) if is_full else (None,)
        named = {} if is_full else {"source": source, "source_mask": mask}
        next_token = network.continuation(*sounds, capacity=len(given_tokens) + limit, **named)
        prompt = torch.tensor([given_tokens] * len(given), device=self.device)
        return Prompts(next_token, prompt, None, [limit] * len(given))
