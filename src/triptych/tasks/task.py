"""The contract of a task: how examples are read, what is scored, and what is predicted."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torchmetrics import Metric

from triptych.config import refusing
from triptych.data import IGNORE, Batch, CorpusFacts, Encoded, Example, Image, LongText, Sound, Tokenizer, as_image
from triptych.nn import FrameEmbedding, Network, PatchEmbedding, Targets
from triptych.nn.head import PoolName
from triptych.tasks.audio_inputs import AudioInputs
from triptych.tasks.forward import run_network
from triptych.tasks.predictions import Prediction, Predictions
from triptych.tasks.scores import LOSS, Score, TaskFacts
from triptych.tasks.word_splitting import WordSplitter, warn_of_scripts

MetricModes = Mapping[str, Literal["min", "max"] | None]
"""By metric, whether the lowest or the highest value is best, in Lightning's words; None: neither."""
BATCHES_SORTED = 16
"""So many batches of texts are sorted by length, and answered, at a time."""
NOTHING_IS_WRITTEN = {
    "prefix_decoder": "all of the input is given, so it would be an encoder; use model=encoder_only or decoder_only"
}
"""Why tasks that write no text refuse an architecture."""


@dataclass(frozen=True, slots=True)
class TaskContext:
    """What every task is given beside its settings.

    Attributes:
        network: an ``EncoderOnly``, ``DecoderOnly``, ``PrefixDecoder`` or ``EncoderDecoder``.
        tokenizer: of the texts.
        corpus: what is known of the corpus (its classes, for instance).
        seed: dropout at each step, and what the task draws, are functions of it.
        max_length: the most tokens that the network reads at once.
        truncates: whether longer texts are cut to it; else they are refused.
        precision: ``trainer.precision``, in which answers are computed like the tested ones.
    """

    network: Network
    tokenizer: Tokenizer
    corpus: CorpusFacts
    seed: int
    max_length: int
    truncates: bool = False
    precision: str = "32-true"


@dataclass(kw_only=True, eq=False, repr=False)
class Task(ABC):
    """A task on a network that is given to it: a layout (how an example becomes tokens and labels for an architecture),
    a loss, metrics, and a prediction. It knows no trainer: ``TrainingModule`` trains it, ``Predictor`` asks it.

    The loss of a step is the mean over all of its scored labels, of their cross-entropy if the task says nothing
    else, over all ranks and accumulated batches: the sampler counts them beforehand, so that the split changes nothing.

    Attributes:
        audio: how sounds become frames; None: the network reads no sounds.

    Args:
        context: network, tokenizer, corpus and so on.
        label_smoothing: share of each label that is spread over all outputs (Szegedy et al. 2016).
    """

    name: ClassVar[str]
    title: ClassVar[str]
    """The name on a page."""
    columns: ClassVar[tuple[str, ...]] = ("text",)
    """What a corpus must have: names of the fields of ``Example``, for each of which a table has a column."""
    reads_long_text: ClassVar[bool] = False
    """Whether a long text, read in windows, will do in place of texts."""
    input_title: ClassVar[str] = "Text"
    """What is asked for in a form."""
    needs_input: ClassVar[bool] = True
    """Whether nothing can be answered to an empty text."""
    reads: ClassVar[tuple[str, ...]] = ()
    """What it can read beside texts: the fields of ``Example`` that have it."""
    metric_modes: ClassVar[MetricModes] = {"loss": "min"}
    """Of the metrics that a class adds to those of its parents; see ``MetricModes``."""
    not_comparable: ClassVar[str] = ""
    """Why architectures cannot be compared by this task; empty: they can."""
    ranked_by: ClassVar[tuple[str, str]] = ("", "")
    """The number of an answer that says how good it is, and its name in a sentence; empty: its share in the score."""
    writes_text: ClassVar[bool] = False
    """Whether answers are texts that are written token by token."""
    refusals: ClassVar[Mapping[str, str]] = {}
    """Why an architecture cannot do this task."""
    pools: ClassVar[Mapping[str, PoolName]] = {
        "encoder_only": "none",
        "decoder_only": "none",
        "prefix_decoder": "none",
        "full": "none",
    }
    """Which states the head of each architecture reads."""
    has_two_towers: ClassVar[bool] = False
    """Whether the network is one of ``TwoTowers``."""
    is_sum_of_examples: ClassVar[bool] = True
    """Whether the loss of an update is a sum over its examples, each by itself, so that it can be computed in parts."""
    predicts_tokens: ClassVar[bool] = True
    """Whether the outputs are the vocabulary, so that the output layer may be tied to the token table."""

    scores_in_windows = False
    """Whether a text that is too long may be evaluated in windows, each token once, instead of being truncated."""

    z_loss = 0.0
    """Weight of (log Z)^2 in the loss of a training whose outputs are the vocabulary; see ``Targets``."""

    encodes_randomly: ClassVar[bool] = False
    """Whether ``encode`` follows from the seed."""

    answers_a_part: ClassVar[bool] = False
    """Whether the beginning of a text that is too long may be answered in its place."""

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
        # of the full model the positions of its encoder, of which there may be more, or fewer, than for a text
        room = self.network.stacks[0].room if self.architecture == "full" else None
        self.audio = None if frames is None else AudioInputs(frames, self.corpus, room or self.max_length)

    @abstractmethod
    def encode(self, examples: Sequence[Example]) -> list[Encoded]:
        """Lays the examples out for the architecture."""

    def encode_training(self, examples: Sequence[Example]) -> list[Encoded]:
        """The same of the training split; some tasks draw there."""
        return self.encode(examples)

    def truncate(self, item: Encoded) -> Encoded:
        """The first ``max_length`` tokens of each side; what ends a text that is read as a whole stays its end."""
        source = None if item.source is None else self._cut(item.source)
        if len(item.labels) == len(item.tokens):  # each position has its own label
            kept = slice(self.max_length)
            return replace(item, tokens=item.tokens[kept], labels=item.labels[kept], source=source)
        return replace(item, tokens=self._cut(item.tokens), source=source)

    def truncate_audio(self, item: Encoded) -> Encoded:
        """The same of a sound; see ``AudioInputs``."""
        assert self.audio is not None
        return self.audio.truncate(item)

    def fit(self, items: Sequence[Encoded]) -> list[Encoded]:
        """These examples, those that are too long truncated.

        Raises:
            ValueError: an example is too long, and texts are not truncated.
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
        """New metrics, by name, besides the loss.

        Args:
            stage: val or test.
        """

    @abstractmethod
    def evaluate(self, batch: Batch, metrics: Mapping[str, Metric], stage: str) -> Predictions | None:
        """Takes one batch of an evaluation into the metrics, the loss among them.

        Args:
            metrics: of the stage, by name.
            stage: val or test.

        Returns:
            what was predicted, for the record of a test; None: nothing, or not yet (see ``finish_test``).
        """

    def begin_test(self) -> None:
        """Forgets what is left of an earlier test."""

    def finish_test(self, metrics: Mapping[str, Metric]) -> Predictions | None:
        """Evaluates what waits for the last batch of a test.

        Args:
            metrics: see ``evaluate``.
        """
        return None

    def on_train_start(self) -> None:
        """Called before the first step, for the log."""

    def derived_metrics(self, values: dict[str, float]) -> dict[str, float]:
        """Metrics that follow from others once all batches were seen."""
        return values

    @classmethod
    def all_metric_modes(cls) -> MetricModes:
        """The ``metric_modes`` of the class and of its parents."""
        return {name: mode for kind in cls.__mro__[::-1] for name, mode in vars(kind).get("metric_modes", {}).items()}

    @classmethod
    def scores(cls, architecture: str, metrics: Mapping[str, float], optimum: Mapping[str, float]) -> Sequence[Score]:
        """What runs of this task can be compared by, in order of preference.

        Args:
            optimum: those of which the best reachable value is known.
        """
        return [LOSS]

    @classmethod
    def facts(cls, architecture: str, metrics: Mapping[str, float], optimum: Mapping[str, float]) -> TaskFacts:
        """What a comparison knows of this task; see ``scores``."""
        scores = cls.scores(architecture, metrics, optimum)
        return TaskFacts(cls.title, scores, cls.not_comparable, *cls.ranked_by, writes_text=cls.writes_text)

    @classmethod
    def check_architecture(cls, architecture: str, settings: Mapping[str, Any]) -> None:
        """Refuses an architecture that cannot do the task.

        Raises:
            ValueError: the architecture cannot do the task.
        """
        if architecture in cls.refusals:
            raise ValueError(f"task={cls.name} on model={architecture}: {cls.refusals[architecture]}")

    @classmethod
    def missing(cls, columns: Sequence[str]) -> list[str]:
        """What the task needs and a corpus with these columns lacks."""
        has_text = cls.reads_long_text and "long_text" in columns
        return [name for name in cls.columns if name not in columns and not (name == "text" and has_text)]

    @classmethod
    def num_extra_tokens(cls, settings: Mapping[str, Any]) -> int:
        """Tokens behind those of the tokenizer.

        Args:
            settings: of the task, as the configuration has them.
        """
        return 0

    def names_of(self, ids: Sequence[int]) -> list[str]:
        """Of tokens, for people to read."""
        return self.tokenizer.names(ids)

    @classmethod
    def num_outputs(cls, vocab_size: int, corpus: CorpusFacts) -> int:
        """Outputs that the head must have."""
        return vocab_size

    @abstractmethod
    def predict_batch(self, texts: Sequence[Any]) -> Sequence[Prediction]:
        """What the network says of each of a few inputs."""

    def begin_predictions(self, batch_size: int, advance: Callable[[int], None]) -> None:
        """Called before ``predict_batch`` is asked for the first of many inputs.

        Args:
            batch_size: inputs at a time.
            advance: told how many more inputs were taken up, where the task ``fills_batches``.
        """

    def size_of(self, given: Any) -> int:
        """About how long an input is; all images are as large."""
        if isinstance(given, Sound):
            return len(given.content)
        return 0 if self.image_shape is not None else sum(map(len, [given] if isinstance(given, str) else given))

    def check_asked(self, given: Any) -> None:
        """Refuses an input that cannot be answered, apart from its length."""

    def asked(self, example: Example) -> str | tuple[str, str] | Image | Sound:
        """What ``predict`` is given of an example of the corpus."""
        if example.sound is not None:
            return example.sound
        if example.image is not None:
            return example.image
        return (example.text, example.pair) if self.reads_pairs and example.pair is not None else example.text

    def reference(self, example: Example) -> str:
        """The right answer, as text; empty: there is none."""
        return ""

    @property
    def fills_batches(self) -> bool:
        """Whether ``predict_batch`` makes batches of the many texts that it is given."""
        return False

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes that outputs are chosen from, a text or a word at a time; empty: there are none."""
        return ()

    @property
    def signatures(self) -> dict[str, str]:
        """By metric: how it is computed, where that has a standard form."""
        return {}

    def warn_of_scripts(self, examples: Sequence[Example] | LongText) -> None:
        """Says what of the right answers the scores cannot split into words.

        Args:
            examples: of the test; the first 1,000 are looked at.
        """
        if self.word_splitters and not isinstance(examples, LongText):
            warn_of_scripts(self.word_splitters, [self.reference(example) for example in examples[:1000]])

    @property
    def word_splitters(self) -> Sequence[WordSplitter]:
        """What cuts the texts of each score into words."""
        return ()

    @property
    def forgets_beginnings(self) -> bool:
        """Whether the beginning of a text that is too long is left out, and the rest answered."""
        return False

    @property
    def reads_pairs(self) -> bool:
        """Whether each input is a pair of texts."""
        return False

    def example_of(self, given: str | tuple[str, str], example: Example) -> Example:
        """An input as an example.

        Args:
            given: a text, or a pair of texts.
            example: what else it has.

        Raises:
            TypeError: one text where pairs are read.
        """
        if isinstance(given, str):
            if self.reads_pairs:
                raise TypeError(f"{self.name} of this model reads pairs of texts: predict([(first, second)])")
            return replace(example, text=given)
        first, second = given
        return replace(example, text=first, pair=second)

    @property
    def image_shape(self) -> tuple[int, int, int] | None:
        """Channels, height and width of the images that the network reads; None: it reads none."""
        return self.network.image_shape

    @property
    def has_tokens(self) -> bool:
        """Whether there are tokens that the network reads or writes; where it sees an image and nothing else, there are
        none."""
        return not isinstance(self.network.embedding, PatchEmbedding)

    def see(self, example: Example) -> Float[np.ndarray, "channels height width"]:
        """The pixels of the image, 0 to 1.

        Raises:
            ValueError: there is none, or one of another size.
        """
        assert self.image_shape is not None
        with refusing(f"{example.where}: "):
            if example.image is None:
                raise ValueError("there is no image")
            return as_image(example.image, self.image_shape)

    @property
    def device(self) -> torch.device:
        """Where the network computes."""
        return next(self.network.parameters()).device

    def forward(self, batch: Batch, targets: Targets | None = None) -> Float[Tensor, "*rows_length_outputs"]:
        """The network's logits, or the sum of its losses; see ``run_network``."""
        return run_network(self.network, batch, targets, leading=self.leading(batch))

    def leading(self, batch: Batch) -> Int[Tensor, " rows"] | None:
        """How many of the first tokens of each text are global, in attention that has such; None: one."""
        return None

    def num_unanswered(self, batch: Batch) -> int:
        """Positions of a training batch that the head says nothing about: it is asked where a token is scored, or, of
        classes, everywhere."""
        return batch.num_unscored if self.predicts_tokens else 0

    def training_loss(self, batch: Batch) -> Float[Tensor, ""]:
        """The sum over the scored labels."""
        if not self.predicts_tokens:
            return self.summed_loss(self.forward(batch), batch, self.label_smoothing)
        labels = batch.labels.flatten()[batch.scored]  # what is not scored of a vocabulary of outputs would cost much
        total: Tensor = self.forward(batch, Targets(batch.scored, labels, self.label_smoothing, z_loss=self.z_loss))
        return total

    def scored_logits(self, metrics: Mapping[str, Metric], batch: Batch) -> Float[Tensor, "batch *length outputs"]:
        """The logits of a batch, whose loss is added to the metrics."""
        logits: Tensor = self.forward(batch)
        metrics["loss"].update(self.summed_loss(logits, batch), (batch.labels != IGNORE).sum())
        return logits

    def summed_loss(
        self, logits: Float[Tensor, "batch *length outputs"], batch: Batch, label_smoothing: float = 0.0
    ) -> Float[Tensor, ""]:
        """The sum over the scored labels of their cross-entropy.

        Args:
            label_smoothing: share of each label that is spread over all outputs.
        """
        return F.cross_entropy(
            logits.flatten(0, -2).to(torch.promote_types(logits.dtype, torch.float32)),
            batch.labels.flatten(),
            ignore_index=IGNORE,
            reduction="sum",
            label_smoothing=label_smoothing,
        )


def targets_of(examples: Sequence[Example], expected: str) -> list[str]:
    """The targets, none of them empty.

    Args:
        expected: what a target is, for the message.

    Raises:
        ValueError: an example without one.
    """
    for example in examples:
        if not (example.target or "").strip():
            there = "there is no target" if example.target is None else "an empty text"
            raise ValueError(f"{example.where}: {there}; expected {expected}")
    return [example.target or "" for example in examples]
