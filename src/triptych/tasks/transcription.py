"""The task of transcribing speech."""

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

from triptych.data import IGNORE_INDEX, Batch, EncodedExample, Example, collate
from triptych.models.generation.ctc import collapsed, prefix_beam_search
from triptych.tasks.exact_sums import ExactMean
from triptych.tasks.metric_specs import EXACT_MATCH, MetricSpec
from triptych.tasks.predictions import Prediction, Predictions
from triptych.tasks.signal_to_text import Signal, SignalToText
from triptych.tasks.task import MetricModes, Metrics, Scores
from triptych.tasks.word_splitting import WordSplitter

WORD_ERROR_RATE = MetricSpec(
    name="word_error_rate",
    key="test/word_error_rate",
    title="word error rate",
    higher_is_better=False,
    unit="%",
    numerator={"word_errors": 1.0},
    denominator={"words": 1.0},
)
ERRORS = {"word": word_error_rate, "character": char_error_rate}


class Transcription(SignalToText):
    """Transcribes the speech of an audio clip.

    - An encoder-only model predicts a token or a blank (``pad``) at each position; the loss is connectionist temporal
      classification, -log of the sum over all paths that collapse to the text (Graves et al. 2006).
    - The encoder-decoder (Whisper, Radford et al. 2022) and the decoders generate the text; see ``SignalToText``.

    Metrics: loss (for an encoder, in nats of all paths per token), exact_match; token_accuracy of the generative
    models; word_error_rate and character_error_rate in the test, and for an encoder also in validation: substitutions,
    insertions and deletions per word, or character, of the references. With ``num_beams`` an encoder uses beam search,
    too (see ``prefix_beam_search``)."""

    name = "transcription"
    metric_modes: ClassVar[MetricModes] = {"word_error_rate": "min", "character_error_rate": "min"}
    title = "Transcription"
    compared_by = (EXACT_MATCH, WORD_ERROR_RATE)
    columns = ("audio", "target")
    signal = "audio"
    reads = ("audio",)
    input_title = "Sound"
    unsupported: ClassVar[Mapping[str, str]] = {}

    @property
    def is_ctc(self) -> bool:
        """Whether the loss is CTC: the model predicts one token or blank per position."""
        return self.architecture == "encoder_only"

    def perceive(self, example: Example) -> Float[np.ndarray, "frames mels"]:
        """Returns the frames of the clip; see ``AudioInputs``."""
        assert self.audio is not None
        return self.audio.features(example)

    def lay_out_signal(self, given: Signal, target: Sequence[int], example: Example) -> EncodedExample:
        """Encodes a clip and its text (see ``SignalToText``); the input of an encoder is the frames only.

        Raises:
            ValueError: if the text is too long for its clip.
        """
        if not self.is_ctc:
            return super().lay_out_signal(given, target, example)
        item = EncodedExample(given, np.array(target, dtype=np.int64), example=example)
        return self._checked(item, f"lower audio_embedding.stride={self.audio.embedding.stride if self.audio else 1}")

    def _checked(self, item: EncodedExample, advice: str) -> EncodedExample:
        """Checks that the text has a path: a position for each token, and a blank between equal neighbors."""
        assert self.audio is not None
        least = len(item.labels) + sum(a == b for a, b in pairwise(item.labels.tolist()))
        if (positions := self.audio.embedding.count(len(item.inputs))) < least:
            where = "" if item.example is None else f"{item.example.where}: "
            raise ValueError(f"{where}{positions} positions for a text that needs {least} ({advice})")
        return item

    def truncate_audio(self, item: EncodedExample) -> EncodedExample:
        """Truncates a clip; see ``Task``.

        Raises:
            ValueError: if, for an encoder, the text is too long for the truncated clip.
        """
        kept = super().truncate_audio(item)
        return self._checked(kept, "batch.too_long=drop leaves it out of a training") if self.is_ctc else kept

    def num_unprojected(self, batch: Batch) -> int:
        """Returns 0 for an encoder, whose head is computed at all positions; see ``Task``."""
        return 0 if self.is_ctc else super().num_unprojected(batch)

    def training_loss(self, batch: Batch) -> Float[Tensor, ""]:
        return self.paths_loss(self.forward(batch), batch) if self.is_ctc else super().training_loss(batch)

    def paths_loss(self, logits: Float[Tensor, "batch positions vocab"], batch: Batch) -> Float[Tensor, ""]:
        """Computes the sum over the batch of -log p(text), over all paths."""
        scores = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1).transpose(0, 1)
        targets, sizes = batch.labels.clamp(min=0), (batch.labels != IGNORE_INDEX).sum(1)
        blank = self.tokenizer.special.pad
        of_texts = F.ctc_loss(scores, targets, self._lengths(batch), sizes, blank=blank, reduction="none")
        return of_texts.sum() * bool(batch.examples)  # 0 for a process without examples

    def _lengths(self, batch: Batch) -> Tensor:
        assert self.audio is not None
        assert batch.mask is not None
        return self.audio.embedding.positions(batch.mask).sum(1)

    def make_metrics(self, stage: str) -> dict[str, Metric]:
        """Returns new metrics; for an encoder, those of the test in every evaluation, since decoding is cheap."""
        if self.is_ctc:
            return {"exact_match": ExactMean(), **self.test_metrics()}
        return super().make_metrics(stage)

    @property
    def word_splitters(self) -> Sequence[WordSplitter]:
        """The word splitter of the word error rate, at whitespace."""
        return [WordSplitter("word error rate", "whitespace", str.split, "character_error_rate is reported, too")]

    def test_metrics(self) -> dict[str, Metric]:
        """Returns the error rates of torchmetrics."""
        return {"word_error_rate": WordErrorRate(), "character_error_rate": CharErrorRate()}

    def score(self, metrics: Metrics, outputs: Sequence[str], references: Sequence[str]) -> Scores:
        numbers: dict[str, list[float]] = {"words": [float(len(right.split())) for right in references]}
        numbers["characters"] = [float(len(right)) for right in references]
        for kind, rate in ERRORS.items():
            metrics[f"{kind}_error_rate"].update(outputs, references)
            numbers[f"{kind}_errors"] = [
                round(float(rate([output], [right])) * count) if count else float(len(output))
                for output, right, count in zip(outputs, references, numbers[f"{kind}s"], strict=True)
            ]
        return numbers

    def evaluate(self, batch: Batch, metrics: Metrics, stage: str) -> Predictions | None:
        if not self.is_ctc:
            return super().evaluate(batch, metrics, stage)
        logits = self.forward(batch)
        metrics["loss"].update(self.paths_loss(logits, batch), (batch.labels != IGNORE_INDEX).sum())
        return self._score(metrics, batch, self._read(logits, self._lengths(batch)))

    def _read(self, logits: Float[Tensor, "batch positions vocab"], lengths: Tensor) -> list[str]:
        """Returns the texts of the most likely paths, or the most likely texts by beam search."""
        blank, num_beams, texts = self.tokenizer.special.pad, self.search.num_beams, []
        for row, length in zip(logits.float().cpu().numpy(), lengths.tolist(), strict=True):
            ids = collapsed(row[:length].argmax(-1).tolist(), blank)
            if num_beams > 1:
                scores = torch.from_numpy(row[:length]).log_softmax(-1).numpy()
                ids = prefix_beam_search(scores, blank=blank, num_beams=num_beams)[0].tokens
            texts.append(self.text_of(ids, ()))
        return texts

    def predict_batch(self, texts: Sequence[Any]) -> Sequence[Prediction]:
        """Returns the transcription of each clip.

        Args:
            texts: audio clips.
        """
        if not self.is_ctc:
            return super().predict_batch(texts)
        items = [EncodedExample(self.perceive(x), np.empty(0, np.int64), example=x) for x in self.examples_of(texts)]
        batch = collate(items).to(self.device)
        return self._read(self.forward(batch), self._lengths(batch))

    @property
    def fills_batches(self) -> bool:
        """False for an encoder, which predicts all tokens at once; see ``GenerativeTask``."""
        return not self.is_ctc
