"""The base class of all tasks."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torchmetrics import Metric

from triptych.data import (
    IGNORE_INDEX,
    Audio,
    Batch,
    CorpusInfo,
    EncodedExample,
    Example,
    Image,
    LongText,
    TokenizedWords,
    Tokenizer,
)
from triptych.nn import FrameEmbedding, Network, PatchEmbedding, Targets
from triptych.nn.head import Pooling
from triptych.tasks.audio_inputs import AudioInputs
from triptych.tasks.forward import run_network
from triptych.tasks.metric_specs import EXACT_MATCH, LOSS, MetricSpec, TaskInfo
from triptych.tasks.predictions import Prediction, Predictions
from triptych.tasks.views import View
from triptych.tasks.word_splitting import WordSplitter, warn_of_scripts

MetricModes = Mapping[str, Literal["min", "max"] | None]
"""Whether the lowest or the highest value is best, by metric, as in Lightning; None: neither."""
Metrics = Mapping[str, Metric]
"""Metrics by name."""
Values = Mapping[str, float]
"""Values of metrics by name."""
Scores = Mapping[str, Sequence[float]]
"""Numbers of each example by name, for the record (see ``Predictions``)."""
BATCHES_SORTED = 16
"""Number of batches of texts that are sorted by length and predicted together."""
NO_GENERATION = {
    "prefix_lm": "the whole input would be its prefix, so the model would be an encoder; "
    "use model=encoder_only or decoder_only"
}
"""Reasons why tasks without text generation do not support an architecture."""


@dataclass(frozen=True, slots=True)
class TaskContext:
    """The arguments of every task that are not its settings.

    Attributes:
        network: an ``EncoderOnly``, ``DecoderOnly``, ``PrefixLM`` or ``EncoderDecoder``.
        tokenizer: tokenizer of the texts.
        corpus: facts about the corpus, such as its classes.
        seed: seed of dropout at each step and of the random draws of the task.
        max_length: maximum number of tokens that the network reads at once.
        truncates: whether longer texts are truncated; otherwise they are an error.
        precision: ``trainer.precision``; predictions use it like the test.
    """

    network: Network
    tokenizer: Tokenizer
    corpus: CorpusInfo
    seed: int
    max_length: int
    truncates: bool = False
    precision: str = "32-true"


@dataclass(kw_only=True, eq=False, repr=False)
class Task(ABC):
    """A task on a given network: the encoding of examples as tokens and labels, loss, metrics and predictions.

    A task does not depend on a trainer: ``TrainingModule`` trains it, ``Predictor`` makes predictions with it.

    The loss of a step is the mean over all target labels of all ranks and accumulated batches, by default of their
    cross-entropy. The sampler counts the labels beforehand, so the loss does not depend on the split.

    Attributes:
        audio: converts audio to frames; None: the network has no audio input.

    Args:
        context: network, tokenizer, corpus and so on.
        label_smoothing: fraction of each label that is spread over all outputs (Szegedy et al. 2016).
    """

    name: ClassVar[str]
    title: ClassVar[str]
    """Name on a page."""
    columns: ClassVar[tuple[str, ...]] = ("text",)
    """Columns that a corpus must have, named after the fields of ``Example``."""
    reads_long_text: ClassVar[bool] = False
    """Whether the corpus may be one long text, read in windows."""
    input_title: ClassVar[str] = "Text"
    """Label of the input field in a form."""
    needs_input: ClassVar[bool] = True
    """Whether a prediction needs a non-empty input."""
    reads: ClassVar[tuple[str, ...]] = ()
    """Inputs other than text that the task supports, as fields of ``Example``."""
    metric_modes: ClassVar[MetricModes] = {"loss": "min"}
    """Modes of the metrics that a class adds to those of its parents; see ``MetricModes``."""
    compared_by: ClassVar[tuple[MetricSpec, ...]] = (LOSS,)
    """Scores that compare runs of this task, in order of preference; see ``comparison_metrics``."""
    not_comparable: ClassVar[str] = ""
    """Reason why the architectures are not comparable on this task; empty: they are."""
    ranked_by: ClassVar[tuple[str, str]] = ("", "")
    """The number that ranks predictions, and its name in a sentence; empty: the contribution to the score."""
    generates_text: ClassVar[bool] = False
    """Whether predictions are texts generated token by token."""
    unsupported: ClassVar[Mapping[str, str]] = {}
    """Reasons why an architecture does not support this task."""
    pooling: ClassVar[Mapping[str, Pooling]] = dict.fromkeys(
        ("encoder_only", "decoder_only", "prefix_lm", "full"), "none"
    )
    """The pooling of the head, by architecture."""
    is_dual_encoder: ClassVar[bool] = False
    """Whether the network is a ``DualEncoderBase``."""
    is_sum_of_examples: ClassVar[bool] = True
    """Whether the loss of a step is a sum over independent examples, so that it can be computed in parts."""
    predicts_tokens: ClassVar[bool] = True
    """Whether the outputs are the vocabulary, so that the output layer may be tied to the token embeddings."""

    scores_in_windows = False
    """Whether too long texts may be evaluated in windows, each token once, instead of being truncated."""

    z_loss = 0.0
    """Weight of (log Z)^2 in the training loss, if the outputs are the vocabulary; see ``Targets``."""

    encodes_randomly: ClassVar[bool] = False
    """Whether ``encode`` depends on the seed."""

    truncates_input: ClassVar[bool] = False
    """Whether the prediction for a too long text may be that for its beginning."""

    context: InitVar[TaskContext] = field(kw_only=False)
    label_smoothing: float

    def __post_init__(self, context: TaskContext) -> None:
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"task.label_smoothing={self.label_smoothing}: expected at least 0 and less than 1")
        self.network, self.tokenizer, self.corpus = context.network, context.tokenizer, context.corpus
        self.seed, self.precision = context.seed, context.precision
        self.max_length, self.truncates = context.max_length, context.truncates
        self.architecture = self.network.architecture
        frames = next((part for part in self.network.embeddings if isinstance(part, FrameEmbedding)), None)
        # the encoder of the encoder-decoder may have another number of positions than its decoder
        room = self.network.stacks[0].max_positions if self.architecture == "full" else None
        self.audio = None if frames is None else AudioInputs(frames, self.corpus, room or self.max_length)

    @abstractmethod
    def encode(self, examples: Sequence[Example]) -> list[EncodedExample]:
        """Encodes the examples for the architecture."""

    def encode_training(self, examples: Sequence[Example]) -> list[EncodedExample]:
        """Encodes examples of the training split, for some tasks with random draws."""
        return self.encode(examples)

    def truncate(self, item: EncodedExample) -> EncodedExample:
        """Cuts each side to its first ``max_length`` tokens, and keeps the end tokens of a complete text."""
        source = None if item.source is None else self._cut(item.source)
        if len(item.labels) == len(item.inputs):  # one label per position
            kept = slice(self.max_length)
            return replace(item, inputs=item.inputs[kept], labels=item.labels[kept], source=source)
        return replace(item, inputs=self._cut(item.inputs), source=source)

    def truncate_audio(self, item: EncodedExample) -> EncodedExample:
        """Truncates an audio clip; see ``AudioInputs``."""
        assert self.audio is not None
        return self.audio.truncate(item)

    def enforce_max_length(self, items: Sequence[EncodedExample]) -> list[EncodedExample]:
        """Truncates the examples that are too long.

        Raises:
            ValueError: if an example is too long and the task does not truncate.
        """
        too_long = [item for item in items if item.longest > self.max_length]
        if too_long and not self.truncates:
            where = "" if too_long[0].example is None else f"{too_long[0].example.where}: "
            others = f" (so have {len(too_long) - 1:,} others of {len(items):,})" if len(too_long) > 1 else ""
            raise ValueError(
                f"{where}{too_long[0].longest} tokens{others}, but shape.max_length={self.max_length}; raise it, "
                "or choose batch.too_long=truncate or drop"
            )
        return [self.truncate(item) if item.longest > self.max_length else item for item in items]

    def _cut(self, tokens: Int[np.ndarray, " length"]) -> Int[np.ndarray, " cut"]:
        if len(tokens) <= self.max_length:
            return tokens
        end = self.tokenizer.special.end
        return np.append(tokens[: self.max_length - len(end)], tokens[len(tokens) - len(end) :])

    @abstractmethod
    def make_metrics(self, stage: str) -> dict[str, Metric]:
        """Returns new metrics by name, in addition to the loss.

        Args:
            stage: val or test.
        """

    @abstractmethod
    def evaluate(self, batch: Batch, metrics: Metrics, stage: str) -> Predictions | None:
        """Adds one batch of an evaluation to the metrics, including the loss.

        Args:
            metrics: metrics of the stage, by name.
            stage: val or test.

        Returns:
            The predictions, for the record of a test; None: none, or not yet (see ``finish_test``).
        """

    def begin_test(self) -> None:
        """Resets the state of an earlier test."""

    def finish_test(self, metrics: Metrics) -> Predictions | None:
        """Evaluates the remaining batches at the end of a test.

        Args:
            metrics: see ``evaluate``.
        """
        return None

    def on_train_start(self) -> None:
        """Called before the first step, to write to the log."""

    def derived_metrics(self, values: dict[str, float]) -> dict[str, float]:
        """Adds metrics that are computed from others after all batches."""
        return values

    @classmethod
    def all_metric_modes(cls) -> MetricModes:
        """Returns the ``metric_modes`` of the class and its parents."""
        return {name: mode for kind in cls.__mro__[::-1] for name, mode in vars(kind).get("metric_modes", {}).items()}

    @classmethod
    def comparison_metrics(cls, architecture: str, metrics: Values, optimum: Values) -> Sequence[MetricSpec]:
        """Returns the scores that compare runs of this task, in order of preference: those of ``compared_by``.

        Many outputs may be correct, so exact match is one of them only if its best value is known.

        Args:
            optimum: best reachable values, where they are known.
        """
        return [score for score in cls.compared_by if score.key != EXACT_MATCH.key or score.key in optimum]

    @classmethod
    def info(cls, architecture: str, metrics: Values, optimum: Values) -> TaskInfo:
        """Returns the facts about this task that a comparison needs; see ``comparison_metrics``."""
        scores = cls.comparison_metrics(architecture, metrics, optimum)
        return TaskInfo(cls.title, scores, cls.not_comparable, *cls.ranked_by, generates_text=cls.generates_text)

    @classmethod
    def check_architecture(cls, architecture: str, settings: Mapping[str, Any]) -> None:
        """Raises a ValueError if the task does not support an architecture."""
        if architecture in cls.unsupported:
            raise ValueError(f"task={cls.name} on model={architecture}: {cls.unsupported[architecture]}")

    @classmethod
    def missing(cls, columns: Sequence[str]) -> list[str]:
        """Returns the columns that the task needs and a corpus with these columns lacks."""
        has_text = cls.reads_long_text and "long_text" in columns
        return [name for name in cls.columns if name not in columns and not (name == "text" and has_text)]

    @classmethod
    def num_extra_tokens(cls, settings: Mapping[str, Any]) -> int:
        """Returns the number of tokens that follow those of the tokenizer.

        Args:
            settings: settings of the task in the configuration.
        """
        return 0

    def names_of(self, ids: Sequence[int]) -> list[str]:
        """Returns readable names of tokens."""
        return self.tokenizer.ids_to_tokens(ids)

    @classmethod
    def num_outputs(cls, vocab_size: int, corpus: CorpusInfo) -> int:
        """Returns the number of outputs that the head must have."""
        return vocab_size

    @abstractmethod
    def predict_batch(self, texts: Sequence[Any]) -> Sequence[Prediction]:
        """Returns the predictions for a few inputs."""

    def begin_predictions(self, batch_size: int, advance: Callable[[int], None]) -> None:
        """Called before the first of several calls of ``predict_batch``.

        Args:
            batch_size: number of inputs per batch.
            advance: called with the number of inputs started since the last call, if the task ``fills_batches``.
        """

    def size_of(self, given: Any) -> int:
        """Returns the approximate length of an input; 0 for images, which all have one size."""
        if isinstance(given, Audio):
            return len(given.content)
        return 0 if self.image_shape is not None else sum(map(len, [given] if isinstance(given, str) else given))

    def check_input(self, given: Any) -> None:
        """Raises an error if an input is invalid, apart from its length."""

    def model_input(self, example: Example) -> str | tuple[str, str] | Image | Audio:
        """Returns the input of ``predict`` for an example of the corpus."""
        if example.audio is not None:
            return example.audio
        if example.image is not None:
            return example.image
        return (example.text, example.text_pair) if self.reads_pairs and example.text_pair is not None else example.text

    def reference(self, example: Example) -> str:
        """Returns the correct output as text; empty: there is none."""
        return ""

    @property
    def scoring_methods(self) -> tuple[str, ...]:
        """Methods that compute the likelihood of a text (see ``Predictor.score``), the default first; empty: none."""
        return ()

    def views(self, context: Sequence[int], text: TokenizedWords, method: str) -> Iterator[View]:
        """Yields the inputs of the network that score the tokens of a text, if there are ``scoring_methods``.

        Args:
            context: tokens before the text, which are not scored.
            text: the text.
            method: one of ``scoring_methods``.
        """
        raise NotImplementedError

    @property
    def fills_batches(self) -> bool:
        """Whether ``predict_batch`` itself divides its inputs into batches."""
        return False

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes of a text or a word that the task predicts; empty: there are none."""
        return ()

    @property
    def signatures(self) -> dict[str, str]:
        """Descriptions of how metrics are computed, in their standard form, by metric."""
        return {}

    def warn_of_scripts(self, examples: Sequence[Example] | LongText) -> None:
        """Logs a warning if the scores cannot split the references into words.

        Args:
            examples: examples of the test; the first 1,000 are checked.
        """
        if self.word_splitters and not isinstance(examples, LongText):
            warn_of_scripts(self.word_splitters, [self.reference(example) for example in examples[:1000]])

    @property
    def word_splitters(self) -> Sequence[WordSplitter]:
        """The word splitter of each score."""
        return ()

    @property
    def truncates_left(self) -> bool:
        """Whether predictions for a too long text drop its beginning."""
        return False

    @property
    def reads_pairs(self) -> bool:
        """Whether each input is a pair of texts."""
        return False

    def example_of(self, given: str | tuple[str, str], example: Example) -> Example:
        """Returns an input as an example.

        Args:
            given: a text, or a pair of texts.
            example: the other fields.

        Raises:
            TypeError: if the task reads pairs and the input is one text.
        """
        if isinstance(given, str):
            if self.reads_pairs:
                raise TypeError(f"{self.name} of this model reads pairs of texts: predict([(first, second)])")
            return replace(example, text=given)
        first, second = given
        return replace(example, text=first, text_pair=second)

    @property
    def image_shape(self) -> tuple[int, int, int] | None:
        """Channels, height and width of the images that the network reads; None: it has no image input."""
        return self.network.image_shape

    @property
    def has_tokens(self) -> bool:
        """Whether the network reads or generates tokens; False if its only input is an image."""
        return not isinstance(self.network.embedding, PatchEmbedding)

    def pixel_values(self, example: Example) -> Float[np.ndarray, "channels height width"]:
        """Returns the pixels of the image, from 0 to 1.

        Raises:
            ValueError: if the image is missing or has another size.
        """
        assert self.image_shape is not None
        return example.pixels(self.image_shape)

    @property
    def device(self) -> torch.device:
        """The device of the network."""
        return next(self.network.parameters()).device

    def forward(self, batch: Batch, targets: Targets | None = None) -> Float[Tensor, "*rows_length_outputs"]:
        """Returns the logits of the network, or the sum of its losses; see ``run_network``."""
        return run_network(self.network, batch, targets, self.num_global_tokens(batch))

    def num_global_tokens(self, batch: Batch) -> Int[Tensor, " rows"] | None:
        """Returns the number of leading global tokens of each text, for attention with global tokens; None: one."""
        return None

    def num_unprojected(self, batch: Batch) -> int:
        """Returns the number of positions without a head output: for tokens those without a target, else 0."""
        return batch.num_unscored if self.predicts_tokens else 0

    def training_loss(self, batch: Batch) -> Float[Tensor, ""]:
        """Computes the sum of the losses over the target labels."""
        if not self.predicts_tokens:
            return self.summed_loss(self.forward(batch), batch, self.label_smoothing)
        labels = batch.labels.flatten()[batch.scored]  # logits of other positions would be expensive
        return self.forward(batch, Targets(batch.scored, labels, self.label_smoothing, z_loss=self.z_loss))

    def scored_logits(self, metrics: Metrics, batch: Batch) -> Float[Tensor, "batch *length outputs"]:
        """Returns the logits of a batch, and adds its loss to the metrics."""
        logits = self.forward(batch)
        metrics["loss"].update(self.summed_loss(logits, batch), (batch.labels != IGNORE_INDEX).sum())
        return logits

    def summed_loss(
        self, logits: Float[Tensor, "batch *length outputs"], batch: Batch, label_smoothing: float = 0.0
    ) -> Float[Tensor, ""]:
        """Computes the sum of the cross-entropies of the target labels.

        Args:
            label_smoothing: fraction of each label that is spread over all outputs.
        """
        rows = logits.flatten(0, -2).to(torch.promote_types(logits.dtype, torch.float32))
        return F.cross_entropy(
            rows, batch.labels.flatten(), ignore_index=IGNORE_INDEX, reduction="sum", label_smoothing=label_smoothing
        )


def targets_of(examples: Sequence[Example], expected: str) -> list[str]:
    """Returns the targets of the examples.

    Args:
        expected: description of a target, for the message.

    Raises:
        ValueError: if a target is missing or empty.
    """
    for example in examples:
        if not (example.target or "").strip():
            there = "there is no target" if example.target is None else "an empty text"
            raise ValueError(f"{example.where}: {there}; expected {expected}")
    return [example.target or "" for example in examples]
