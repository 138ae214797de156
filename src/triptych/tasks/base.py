"""What all tasks share: the loss, the optimizer, the clock, the metrics' bookkeeping."""

import random
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import lightning as L
import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from jaxtyping import Float, Int
from lightning.pytorch.callbacks import WeightAveraging
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torchmetrics import Metric

from triptych.config import refusing
from triptych.data import (
    IGNORE,
    Batch,
    CorpusFacts,
    Encoded,
    Example,
    Image,
    LongText,
    Sound,
    Tokenizer,
    as_image,
    log_mel,
)
from triptych.nn import Documents, FrameEmbedding, Network, PatchEmbedding, Targets
from triptych.nn.head import PoolName
from triptych.tasks.exact_sums import Mean
from triptych.tasks.not_finite import NotFiniteUpdates
from triptych.tasks.precision import arithmetic
from triptych.tasks.scores import LOSS, Score, TaskFacts
from triptych.tasks.word_splitting import WordSplitter, warn_of_scripts

STAGES = ("val", "test")
MetricModes = Mapping[str, Literal["min", "max"] | None]
"""By metric, whether the lowest or the highest value is best, in Lightning's words; None: neither."""
BATCHES_SORTED = 16
"""So many batches of texts are sorted by length, and answered, at a time."""
COUNTED = ("k", "weight_sum", "lr_max", "scheduled_lr")
"""What a schedule-free optimizer counts in its groups, where others have settings alone."""
NOTHING_IS_WRITTEN = {
    "prefix_decoder": "all of the input is given, so it would be an encoder; use model=encoder_only or decoder_only"
}
"""Why tasks that write no text refuse an architecture."""


@dataclass(frozen=True, slots=True)
class ClassPrediction:
    """The likeliest class of a text, and the probability of each."""

    label: str
    probabilities: dict[str, float]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One of several answers, and the score by which they are ranked (see
    ``triptych.models.generation.BeamSearch``)."""

    text: str
    score: float


@dataclass(frozen=True, slots=True)
class Tested:
    """What was answered to one example of the test split.

    Attributes:
        index: the number of the example in the split.
        output: the answer; None: an example was scored, not answered.
        numbers: its share in the metrics, by name; see docs/run_directory.md.
    """

    index: int
    output: str | None
    numbers: Mapping[str, float]


Prediction = str | float | ClassPrediction | list[Candidate] | Image


@dataclass(frozen=True, slots=True)
class Setup:
    """What every task is given.

    Attributes:
        network: an ``EncoderOnly``, ``DecoderOnly``, ``PrefixDecoder`` or ``EncoderDecoder``.
        tokenizer: of the texts.
        corpus: what is known of the corpus (its classes, for instance).
        optimizer: makes the optimizer of the network.
        schedule: factor of the learning rate at each update.
        seed: dropout at each update follows from it.
        max_length: the most tokens that the network reads at once.
        truncates: whether longer texts are cut to it; else they are refused.
        skips_not_finite: whether an update whose loss or gradient is not finite is left out; else it ends the run.
        precision: ``trainer.precision``, in which answers are computed like the tested ones.
    """

    network: Network
    tokenizer: Tokenizer
    corpus: CorpusFacts
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    schedule: Callable[[int], float]
    seed: int
    max_length: int
    truncates: bool = False
    skips_not_finite: bool = False
    precision: str = "32-true"


class Task(L.LightningModule):
    """A task on a network that is given to it.

    The loss of an update is the mean over all of its scored labels, of their cross-entropy if the task says nothing
    else, over all ranks and accumulated batches: the sampler counts them beforehand, so that the split changes nothing.

    A task is a layout (how an example becomes tokens and labels for an architecture), metrics, and a prediction.

    Attributes:
        matrices: metrics that are no single number, of the last evaluation: ``test/confusion_matrix``, for instance.
        not_finite: what becomes of updates that are not finite.
        new_weights: names of the network's tensors that ``init_from`` did not bring; empty: it brought all, or is null.
        compiles: whether training runs the blocks as torch.compile translates them.
        has_one_shape: whether all batches have the same shape; else one program serves those of all shapes.
        precision: ``trainer.precision``, in which ``predict`` computes.
        speakers: by name, the mean frame of those who were met; see ``meet``.
        tested: what was answered to the examples of this process in the last test, in no order; empty where the answers
            are no record (denoising).

    Args:
        setup: network, tokenizer, optimizer and so on.
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

    scores_in_windows: bool = False
    """Whether a text that is too long may be evaluated in windows, each token once, instead of being truncated."""

    z_loss: float = 0.0
    """Weight of (log Z)^2 in the loss of a training whose outputs are the vocabulary; see ``Targets``."""

    draws: ClassVar[bool] = False
    """Whether ``encode`` follows from the seed."""

    answers_a_part: ClassVar[bool] = False
    """Whether the beginning of a text that is too long may be answered in its place."""

    def __init__(self, setup: Setup, *, label_smoothing: float) -> None:
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"task.label_smoothing={label_smoothing}: expected at least 0 and less than 1")
        super().__init__()
        self.network, self.tokenizer, self.corpus = setup.network, setup.tokenizer, setup.corpus
        self.optimizer, self.schedule, self.seed = setup.optimizer, setup.schedule, setup.seed
        self.max_length, self.truncates = setup.max_length, setup.truncates
        self.not_finite = NotFiniteUpdates(skips=setup.skips_not_finite)
        self.compiles, self.has_one_shape, self.precision = False, False, setup.precision
        self.new_weights: set[str] = set()
        self.architecture = setup.network.architecture
        self.label_smoothing = label_smoothing
        self.matrices: dict[str, list[list[int]]] = {}
        self.tested: list[Tested] = []
        self.speakers: dict[str, Float[np.ndarray, " mels"]] = {}
        self._losses: list[Tensor] = []  # of the batches since the last logging
        self._update_losses: list[Tensor] = []  # of the batches of this update
        self.metrics = nn.ModuleDict(
            {stage: nn.ModuleDict({"loss": Mean(), **self.make_metrics(stage)}) for stage in STAGES}
        )

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

    def truncate_sound(self, item: Encoded) -> Encoded:
        """The first frames, as many as there are positions for."""
        assert self.frames is not None
        kept = slice(self.sound_length * self.frames.stride)
        if item.source is None:
            return replace(item, tokens=item.tokens[kept])
        return replace(item, source=item.source[kept])

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
    def update_metrics(self, metrics: Mapping[str, Metric], batch: Batch) -> None:
        """Takes one batch of an evaluation into the metrics, the loss among them."""

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
    def predict_batch(self, texts: Sequence[str]) -> Sequence[Prediction]:
        """What the network says of each of a few texts."""

    def check_asked(self, given: Any) -> None:
        """Refuses an input that cannot be answered, apart from its length.

        Raises:
            ValueError: such an input.
        """

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
    def frames(self) -> FrameEmbedding | None:
        """What reads the frames of sounds; None: the network hears nothing."""
        return next((part for part in self.network.embeddings if isinstance(part, FrameEmbedding)), None)

    @property
    def sound_length(self) -> int:
        """The most positions of a sound: of the full model those of its encoder, for which there may be more, or fewer,
        than for a text."""
        room = self.network.stacks[0].room if self.architecture == "full" else None
        return self.max_length if room is None else room

    def hear(self, example: Example) -> Float[np.ndarray, "frames mels"]:
        """The frames of the sound, at the rate that the network reads, and of the silence that it is continued with. Of
        a corpus that knows its speakers, without the mean frame of the one who speaks: what voice, microphone and room
        have in common with all that he says (as Atal 1974 and Kaldi do, there by cepstra). Of a speaker whom nobody has
        met, the mean is that of the sound.

        Raises:
            ValueError: there is no sound, it is silent, or shorter than a frame.
        """
        place = example.where if example.place is None else f"{example.where}: {example.text}"
        if example.sound is None or example.sound.is_silent:
            raise ValueError(f"{place}: {'silence; expected a sound' if example.sound else 'there is no sound'}")
        with refusing(f"{place}: "):
            frames = self._frames_of(example.sound)
        if not self.corpus.has_speakers:
            return frames
        mean = self.speakers.get(example.sound.speaker, mean_frame([frames]))
        without: Float[np.ndarray, "frames mels"] = frames - mean
        return without

    def meet(self, sounds: Sequence[Sound]) -> None:
        """Takes the mean frame of each speaker from these sounds, where the corpus knows speakers; nobody need say what
        is said in them."""
        if not self.corpus.has_speakers:
            return
        heard: dict[str, list[np.ndarray]] = {}
        for sound in sounds:
            if sound.speaker and not sound.is_silent:
                heard.setdefault(sound.speaker, []).append(self._frames_of(sound))
        self.speakers |= {name: mean_frame(frames) for name, frames in heard.items()}

    def _frames_of(self, sound: Sound) -> Float[np.ndarray, "frames mels"]:
        reads = self.frames
        assert reads is not None
        samples = sound.resampled(reads.rate).samples
        samples = np.pad(samples, (0, max(0, round((reads.seconds or 0) * reads.rate) - len(samples))))
        return log_mel(samples, rate=reads.rate, num_mels=reads.num_mels, window=reads.window, hop=reads.hop)

    @property
    def room(self) -> int | None:
        """The positions that the network has a vector for; None: no limit."""
        return self.network.room

    def predictions(
        self, texts: Sequence[Any], *, batch_size: int = 64, advance: Callable[[int], None] = lambda count: None
    ) -> Iterator[Prediction]:
        """What the network says of each text, in their order. Those of similar length are read together, so that there
        is little padding.

        Args:
            texts: the inputs; pairs of texts, or images, as arrays or nested sequences, for a network that reads these.
            batch_size: inputs at a time.
            advance: told how many more inputs were taken up.
        """
        self.eval()
        self.meet([given for given in texts if isinstance(given, Sound) and given.speaker not in self.speakers])
        for start in range(0, len(texts), BATCHES_SORTED * batch_size):
            some = texts[start : start + BATCHES_SORTED * batch_size]
            answers: dict[int, Prediction] = {}
            order = sorted(range(len(some)), key=lambda i: -self._size_of(some[i]))
            at_once = len(some) if self.fills_batches else batch_size
            for first in range(0, len(some), at_once):
                places = order[first : first + at_once]
                with torch.inference_mode(), arithmetic(self.precision, self.device).forward_context():
                    answers |= zip(places, self.predict_batch([some[i] for i in places]), strict=True)
                if not self.fills_batches:
                    advance(len(places))
            yield from (answers[i] for i in range(len(some)))

    def _size_of(self, given: Any) -> int:
        """About how long an input is; all images are as large."""
        if isinstance(given, Sound):
            return len(given.content)
        return 0 if self.image_shape is not None else sum(map(len, [given] if isinstance(given, str) else given))

    def predict(self, texts: Sequence[Any], *, batch_size: int = 64) -> list[Prediction]:
        """What the network says of each text, in their order.

        Args:
            texts: the inputs; pairs of texts, or images, as arrays or nested sequences, for a network that reads these.
            batch_size: inputs at a time.

        Raises:
            TypeError: one text instead of a list of texts, or of pairs of texts.
        """
        if isinstance(texts, str):
            raise TypeError("predict takes a list of texts, not one text: predict([text])")
        return list(self.predictions(texts, batch_size=batch_size))

    def forward(self, batch: Batch, targets: Targets | None = None) -> Float[Tensor, "*rows_length_outputs"]:
        """The network's logits, or the sum of its losses.

        Args:
            targets: what it should answer; None: logits.
        """
        answered: Tensor
        # Where each position is scored by itself, a causal stack needs no mask for padding on the right; the plain
        # triangle has a faster kernel.
        is_pooled = self.network.head.pool != "none"
        mask = batch.mask if is_pooled or self.architecture == "encoder_only" else None
        lengths = {"lengths": batch.lengths, "leading": self.leading(batch)}
        if (token_types := self._token_types(batch)) is not None:
            answered = self.network(batch.tokens, mask, token_types=token_types, **lengths, targets=targets)
        elif self.architecture == "prefix_decoder":
            prefix = batch.prefix + 1  # the state of its last token is that of the first label behind it
            sources = {"source": batch.source, "source_mask": batch.source_mask}
            answered = self.network(
                batch.tokens, mask, prefix=prefix, lengths=batch.lengths, **sources, targets=targets
            )  # fmt: skip
        elif batch.source is not None and self.architecture == "decoder_only":
            sources = {"source": batch.source, "source_mask": batch.source_mask}
            answered = self.network(batch.tokens, mask, **sources, targets=targets)
        elif batch.source is None:
            answered = self.network(batch.tokens, mask, **lengths, targets=targets)
        else:
            lengths |= {"source_lengths": batch.source_lengths}
            answered = self.network(batch.source, batch.tokens, batch.source_mask, mask, **lengths, targets=targets)
        return answered

    def leading(self, batch: Batch) -> Int[Tensor, " rows"] | None:
        """How many of the first tokens of each text are global, in attention that has such; None: one."""
        return None

    @property
    def reads_token_types(self) -> bool:
        """Whether the network tells the two texts of a pair apart."""
        return self.architecture == "encoder_only" and self.network.num_token_types > 1

    def _token_types(self, batch: Batch) -> Int[Tensor, "batch length"] | None:
        """0 in the first text and what surrounds it, 1 in the second (Devlin et al. 2019, section 3). None: the network
        does not read types."""
        if not self.reads_token_types:
            return None
        if batch.lengths is None:
            places, starts = torch.arange(batch.tokens.shape[1], device=batch.prefix.device), batch.prefix[:, None]
        else:
            documents = Documents(batch.lengths, batch.prefix.device)
            places, starts = documents.positions[None], batch.prefix[documents.numbers][None]
        return ((places >= starts) & (starts > 0)).long()

    def on_train_start(self) -> None:
        """Compiles, after a moving average has copied the network."""
        if self.compiles:
            self.network.compile_parts(dynamic=not self.has_one_shape)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The share of this batch in the loss of the update."""
        # Chance is a function of (seed, batch, rank) alone, so a run may go on at any step. (The hash of a tuple of
        # integers is the same in every process.)
        seed = hash((self.seed, batch_idx, self.global_rank)) % 2**32
        torch.default_generator.manual_seed(seed)  # torch.manual_seed takes milliseconds where no GPU is
        if self.device.type != "cpu":
            torch.get_device_module(self.device).manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        total = self.training_loss(batch)
        accumulate = self.trainer.accumulate_grad_batches
        parts = accumulate * self.trainer.world_size  # Lightning and DDP take the mean of them
        loss = total * (parts / max(batch.normalizer, 1))
        self._update_losses = [*self._update_losses, loss.detach()][-accumulate:]
        self._losses.append(loss.detach())
        if self.is_logged(self.trainer.global_step + 1) and (batch_idx + 1) % accumulate == 0:
            losses = torch.stack(self._losses)
            losses = losses.where(losses.isfinite(), torch.nan)
            self.log("train/loss", losses.nanmean(), prog_bar=True, sync_dist=True)
            self._losses.clear()
        # An infinite loss can have a finite gradient; now it has not, and every rank sees it in the sum.
        return loss * torch.where(loss.detach().isfinite(), 1.0, torch.nan)

    def num_unanswered(self, batch: Batch) -> int:
        """Positions of a training batch that the head says nothing about: it is asked where a token is scored, or, of
        classes, everywhere."""
        return batch.num_unscored if self.predicts_tokens else 0

    def training_loss(self, batch: Batch) -> Float[Tensor, ""]:
        """The sum over the scored labels."""
        if not self.predicts_tokens:
            return self.summed_loss(self(batch), batch, self.label_smoothing)
        labels = batch.labels.flatten()[batch.scored]  # what is not scored of a vocabulary of outputs would cost much
        total: Tensor = self(batch, Targets(batch.scored, labels, self.label_smoothing, z_loss=self.z_loss))
        return total

    def on_validation_start(self) -> None:
        """Validates no weights that are not finite."""
        self.not_finite.look()

    def on_train_end(self) -> None:
        """Looks at the last update."""
        self.not_finite.look()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds what is counted and not logged yet; of each rank."""
        self.not_finite.look()
        losses = [(torch.stack(self._losses) if self._losses else torch.empty(0)).cpu()] * self.trainer.world_size
        if len(losses) > 1:
            dist.all_gather_object(losses, losses[0])
        checkpoint["task"] = {"losses": torch.stack(losses), "skipped_updates": self.not_finite.skipped}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Goes on from there, with the settings of this run's optimizer and the state of the earlier one's."""
        callbacks: list[L.Callback] = self.trainer.callbacks  # type: ignore[attr-defined]
        if not any(isinstance(callback, WeightAveraging) for callback in callbacks):
            # of a run with a moving average, take the weights that training continues with
            checkpoint["state_dict"] = checkpoint.get("current_model_state", checkpoint["state_dict"])
        groups = self.optimizer(self.network).param_groups
        factor = self.schedule(checkpoint["global_step"])
        for saved, group in zip(checkpoint["optimizer_states"][0]["param_groups"], groups, strict=True):
            settings = {name: value for name, value in group.items() if name not in ("params", *COUNTED)}
            saved.update(settings, initial_lr=group["lr"], lr=group["lr"] * factor)
        checkpoint["lr_schedulers"][0]["base_lrs"] = [group["lr"] for group in groups]
        losses = checkpoint["task"]["losses"].to(self.device)
        is_same_world = len(losses) == self.trainer.world_size
        self._losses = list(losses[self.global_rank] if is_same_world else losses.mean(0))
        self.not_finite.skipped = checkpoint["task"]["skipped_updates"]

    def is_logged(self, step: int) -> bool:
        """Whether Lightning's loggers write after this many updates; on others there is no need to compute what is
        logged."""
        every: int = self.trainer.log_every_n_steps  # type: ignore[attr-defined]
        return step % every == 0

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Metrics of a validation batch."""
        self._evaluate(batch, "val")

    def on_test_epoch_start(self) -> None:
        """Forgets the answers of an earlier test."""
        self.tested = []

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Metrics of a test batch."""
        self._evaluate(batch, "test")

    def on_validation_epoch_end(self) -> None:
        """Logs ``val/...``."""
        self._log_metrics("val")

    def on_test_epoch_end(self) -> None:
        """Logs ``test/...``."""
        self._log_metrics("test")

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """The optimizer, and its schedule by updates."""
        optimizer = self.optimizer(self.network)
        schedule = self.schedule  # in a function: LambdaLR would put an object's attributes into the checkpoint
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: schedule(step))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clips the norm of the gradient of the update, and logs what it was. (Lightning's own refuses fused optimizers
        under autocast, though only float16 scales its gradients.)

        Raises:
            NotFinite: the loss or the gradient is not.
        """
        limit = gradient_clip_val or float("inf")
        norm = torch.nn.utils.clip_grad_norm_(self.network.parameters(), limit)
        # torch's fused AdamW changes nothing by itself where its attribute found_inf is 1, a tensor of the device
        may_look_later = (
            isinstance(optimizer, torch.optim.AdamW)
            and optimizer.defaults["fused"]
            and self.device.type not in ("cpu", "mps")
        )
        if isinstance(norm, DTensor):  # each process has a share of the gradient
            norm, may_look_later = norm.full_tensor(), False
        loss, update = torch.stack(self._update_losses).mean(), self.trainer.global_step + 1
        if may_look_later:
            optimizer.found_inf = (~norm.isfinite()).float()  # type: ignore[attr-defined]
            self.not_finite.look_later(update, loss, norm)
        elif not norm.isfinite():  # the norm is the same on all ranks
            if is_scaled := self.trainer.precision == "16-mixed":
                # It scales the gradient by trial; that it is too large at times, and is left out then, is a part of it.
                # So the loss tells, of all ranks: a rank that ended by its own would leave the others waiting for it.
                loss = self.trainer.strategy.reduce(loss, reduce_op="mean")
            if not (is_scaled and loss.isfinite()):
                self.not_finite.add(update, float(loss), float(norm))
                self.network.zero_grad(set_to_none=True)  # the optimizer leaves out what has no gradient
        if self.is_logged(self.trainer.global_step + 1):
            self.log("train/gradient_norm", norm)

    def metric_names(self, stage: str) -> list[str]:
        """What an evaluation measures.

        Args:
            stage: val or test.
        """
        names = [n for name, metric in self.metrics_of(stage).items() for n in getattr(metric, "names", [name])]
        return [*self.derived_metrics(dict.fromkeys(names, 1.0))]

    def metrics_of(self, stage: str) -> dict[str, Metric]:
        """The metrics of a stage by name."""
        metrics: Any = self.metrics[stage]
        return dict(metrics.items())

    def _evaluate(self, batch: Batch, stage: str) -> None:
        if not batch.examples:  # there were more processes than batches
            return
        self.update_metrics(self.metrics_of(stage), batch)

    def scored_logits(self, metrics: Mapping[str, Metric], batch: Batch) -> Float[Tensor, "batch *length outputs"]:
        """The logits of a batch, whose loss is added to the metrics."""
        logits: Tensor = self(batch)
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

    def keep(self, batch: Batch, outputs: Sequence[str | None], numbers: Mapping[str, Sequence[float]]) -> None:
        """Keeps the answers to the examples of a test batch; of other batches none.

        Args:
            outputs: the answer to each example; None: it was scored, not answered.
            numbers: by name, a number of each example.
        """
        if batch.indices is None or not self.trainer.testing:
            return
        rows = zip(*numbers.values(), strict=True) if numbers else [()] * len(outputs)
        self.tested += [
            Tested(index, output, dict(zip(numbers, row, strict=True)))
            for index, output, row in zip(batch.indices.tolist(), outputs, rows, strict=True)
        ]

    def _log_metrics(self, stage: str) -> None:
        metrics = self.metrics_of(stage)
        results = {name: torch.as_tensor(metric.compute()) for name, metric in metrics.items()}
        self.matrices |= {f"{stage}/{name}": result.tolist() for name, result in results.items() if result.ndim == 2}
        values = {name: float(result) for name, result in results.items() if result.ndim == 0}
        for name, result in results.items():
            if result.ndim == 1:  # of a metric that gives several numbers
                metric: Any = metrics[name]
                values |= zip(metric.names, result.tolist(), strict=True)
        values = self.derived_metrics(values)
        self.log_dict({f"{stage}/{name}": value for name, value in values.items()})
        for of_stage in metrics.values():
            of_stage.reset()


def mean_frame(sounds: Sequence[Float[np.ndarray, "_frames mels"]]) -> Float[np.ndarray, " mels"]:
    """The mean of all frames of these sounds, summed in float64: a speaker may have hours."""
    mean: Float[np.ndarray, " mels"] = np.concatenate(sounds).mean(0, dtype=np.float64)
    return mean.astype(np.float32)


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
