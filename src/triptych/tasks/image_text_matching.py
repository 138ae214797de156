"""The task of matching images and texts."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torchmetrics import Metric

from triptych.data import Batch, CorpusInfo, EncodedExample, Example, pad
from triptych.data.batches.batch import Given
from triptych.nn import Targets
from triptych.nn.autocast import without_autocast
from triptych.nn.head import Pooling
from triptych.tasks.contrastive import Matches, contrastive_loss, row_keys
from triptych.tasks.exact_sums import ExactMean
from triptych.tasks.metric_specs import ACCURACY
from triptych.tasks.predictions import ClassPrediction, Predictions
from triptych.tasks.task import NO_GENERATION, MetricModes, Metrics, Task, TaskContext, targets_of

TEXT_RECALL = replace(
    ACCURACY, name="image_to_text_recall_1", key="test/image_to_text_recall_1", title="recall at 1, image to text"
)
IMAGE_RECALL = replace(
    TEXT_RECALL,
    name="text_to_image_recall_1",
    key="test/text_to_image_recall_1",
    title="recall at 1, text to image",
    is_of_right_answers=False,
    numerator={"found_image": 1.0},
)
RANKS = (1, 5, 10)
"""Ranks at which recall is measured."""


@dataclass(kw_only=True, eq=False, repr=False)
class ImageTextMatching(Task):
    """Retrieves the text of an image, and the image of a text, with two towers (CLIP, Radford et al. 2021).

    The loss of a step is the mean of ``contrastive_losses`` in both directions over all pairs of the step, on all
    devices; equal texts are positives of each other.

    Class names are texts, too, so images can be classified into classes that are not in the training data (section
    3.1).

    Metrics: the loss over all pairs of the split; ``image_to_text_recall_k``, the fraction of images whose text is
    among the k best of all different texts, and ``text_to_image_recall_k``, the fraction of texts for which an image
    with this text is among the k best, k = 1, 5, 10 (see ``Matches``); if the corpus has classes, zero_shot_accuracy,
    by ``prompts``.

    Args:
        prompts: texts for a class, with {} for its name; the class vector is the mean of their vectors (section 3.1.4).
        classes: names of the classes for ``predict``, in the order of the classes of the corpus, if it has any; None:
            the classes of the corpus.

    Raises:
        ValueError: if there is no prompt or one without {}, or the number of classes is below two or not that of the
            corpus.
    """

    name = "image_text_matching"
    metric_modes: ClassVar[MetricModes] = {
        **{f"{way}_recall_{k}": "max" for way in ("image_to_text", "text_to_image") for k in RANKS},
        "zero_shot_accuracy": "max",
    }
    title = "Matching images and texts"
    compared_by = (TEXT_RECALL, IMAGE_RECALL)
    columns = ("image", "target")
    reads = ("image",)
    input_title = "Image"
    predicts_tokens = False
    is_dual_encoder = True
    is_sum_of_examples = False
    pooling: ClassVar[Mapping[str, Pooling]] = {"encoder_only": "mean", "decoder_only": "mean"}  # see docs/images.md
    unsupported: ClassVar[Mapping[str, str]] = {
        **NO_GENERATION,
        "full": "texts and images are read apart from each other; use model=dual_encoder or dual_decoder",
    }
    ranked_by = ("reciprocal_rank", "1 / the rank of the right text")

    label_smoothing: float = field(default=0.0, init=False)
    prompts: Sequence[str]
    classes: Sequence[str] | None

    def __post_init__(self, context: TaskContext) -> None:
        if not self.prompts or any(prompt.count("{}") != 1 for prompt in self.prompts):
            raise ValueError(
                f"task.prompts={list(self.prompts)}: expected texts with one {{}} in each, such as 'a photo of a {{}}'"
            )
        if self.classes is not None:
            check_classes(self.classes)
        super().__post_init__(context)
        if self.corpus.labels:
            check_classes(self.corpus.labels)
        if self.classes is not None and len(self.corpus.labels) not in (0, len(self.classes)):
            raise ValueError(
                f"task.classes={list(self.classes)}: the data have {len(self.corpus.labels)} classes; expected a word "
                f"for each of {', '.join(self.corpus.labels)}"
            )
        self._texts: dict[int, str] = {}  # texts of the last test, by key
        self._indices: list[int] = []  # indices of its examples that this process has read

    @property
    def labels(self) -> tuple[str, ...]:
        """The choices of ``predict``; if there are no classes, all texts of the last test."""
        return tuple(self.classes or ()) or self.corpus.labels or tuple(sorted({*self._texts.values()}))

    @contextmanager
    def choosing_from(self, classes: Sequence[str]) -> Iterator[None]:
        """Sets the choices of ``predict`` within the context; see ``check_classes``."""
        check_classes(classes)
        before, self.classes = self.classes, tuple(classes)
        try:
            yield
        finally:
            self.classes = before

    @classmethod
    def num_outputs(cls, vocab_size: int, corpus: CorpusInfo) -> int:
        """Raises a ValueError: the number of outputs of both heads must be set in the configuration."""
        raise ValueError("model.head.num_outputs=null: expected the width of the space in which texts and images meet")

    def encode(self, examples: Sequence[Example]) -> list[EncodedExample]:
        """Encodes text and image; the label is the key of the text.

        Raises:
            ValueError: if an example has no text or no image, or its image has another size.
        """
        texts = self.tokenizer.encode(targets_of(examples, "what belongs to the image"), as_target=True)
        return [
            self._laid_out(np.array(self.tokenizer.special.single(ids)), self.pixel_values(example), example)
            for example, ids in zip(examples, texts, strict=True)
        ]

    def _laid_out(self, tokens: Int[np.ndarray, " length"], image: Given, example: Example | None) -> EncodedExample:
        return EncodedExample(tokens, np.array([row_keys(tokens.tolist())]), image, example=example)

    def truncate(self, item: EncodedExample) -> EncodedExample:
        """Truncates the text, keeps its end tokens, and recomputes its key."""
        assert item.source is not None
        return self._laid_out(self._cut(item.inputs), item.source, item.example)

    def forward(self, batch: Batch, targets: Targets | None = None) -> Float[Tensor, "batch 2 width"]:
        """Returns the vectors of texts and images."""
        vectors: Tensor = self.network(batch.inputs, batch.mask, source=batch.source)
        return vectors

    def training_loss(self, batch: Batch) -> Float[Tensor, ""]:
        return contrastive_loss(self.forward(batch), batch.labels[:, 0])

    def make_metrics(self, stage: str) -> dict[str, Metric]:
        """Returns the metrics listed in the class docstring."""
        found: dict[str, Metric] = {"loss": Matches(self.network.head.output.out_features, RANKS)}
        return found | ({"zero_shot_accuracy": ExactMean()} if self.corpus.labels else {})

    def evaluate(self, batch: Batch, metrics: Metrics, stage: str) -> None:
        """Adds the vectors of a batch to the metrics."""
        assert batch.indices is not None
        vectors, indices = self.forward(batch), torch.from_numpy(batch.indices)
        if stage == "test":
            self._indices += batch.indices.tolist()
            texts = [self.reference(example) for example in batch.examples if example is not None]
            self._texts |= zip(batch.labels[:, 0].tolist(), texts, strict=True)
        metrics["loss"].update(vectors, batch.labels[:, 0], indices.to(vectors.device))
        if not self.corpus.labels:
            return
        classes = self.vectors_of(self.labels)
        with without_autocast(vectors.device):
            guesses = (vectors[:, 1] @ classes.T).argmax(1).tolist()
        labels = [None if example is None else example.label for example in batch.examples]
        hits = [self.corpus.labels[guess] == label for guess, label in zip(guesses, labels, strict=True)]
        metrics["zero_shot_accuracy"].update(float(sum(hits)), len(hits))

    def begin_test(self) -> None:
        self._texts, self._indices = {}, []

    def finish_test(self, metrics: Metrics) -> Predictions:
        """Returns the text that matches each image best; see ``Task``."""
        parts = [self._texts]
        if dist.is_initialized():
            parts *= dist.get_world_size()
            dist.all_gather_object(parts, self._texts)
        self._texts = {key: text for part in parts for key, text in part.items()}
        matches = metrics["loss"]
        assert isinstance(matches, Matches)
        matches.compute()
        found = [matches.of_each[index] for index in self._indices]
        numbers: dict[str, list[float]] = {
            "text_rank": [match.text_rank for match in found],
            "image_rank": [match.image_rank for match in found],
            "found_image": [int(match.image_rank == 1) for match in found],
            "reciprocal_rank": [1 / match.text_rank for match in found],
        }
        return Predictions([self._texts[match.best_key] for match in found], numbers, self._indices)

    def model_input(self, example: Example) -> Any:
        """Returns the image."""
        return example.image

    def reference(self, example: Example) -> str:
        """Returns the text of the image."""
        return example.target or ""

    def vectors_of(self, classes: Sequence[str]) -> Float[Tensor, "classes width"]:
        """Returns the vector of each class: the mean vector of its prompts, scaled to their norm."""
        texts = [prompt.replace("{}", name) for name in classes for prompt in self.prompts]
        ids = self.tokenizer.encode(texts, as_target=True)
        tokens, mask = pad([self._cut(np.array(self.tokenizer.special.single(row))) for row in ids])
        network: Any = self.network
        vectors = network.read_text(tokens.to(self.device), mask.to(self.device))
        mean: Tensor = vectors.view(len(classes), len(self.prompts), -1).mean(1)
        scale: Tensor = network.scale
        return F.normalize(mean, dim=-1) * scale.to(mean.dtype).sqrt()

    def predict_batch(self, texts: Sequence[Any]) -> list[ClassPrediction]:
        """Returns the best class or text for each image, with the probability of each choice.

        Args:
            texts: images.

        Raises:
            ValueError: if there are fewer than two choices.
        """
        classes = self.labels
        check_classes(classes)
        images = np.stack([self.pixel_values(Example("image", image=image)) for image in texts])
        network: Any = self.network
        vectors = network.read_source(torch.from_numpy(images).to(self.device))
        choices = self.vectors_of(classes)
        with without_autocast(vectors.device):
            rows = (vectors @ choices.T).softmax(-1).tolist()
        return [ClassPrediction(classes[int(np.argmax(row))], dict(zip(classes, row, strict=True))) for row in rows]


def check_classes(classes: Sequence[str]) -> None:
    """Raises a ValueError if there are fewer than two choices, or equal ones."""
    if len({*classes}) < max(2, len(classes)):
        raise ValueError(
            f"classes={list(classes) or 'null'}: expected at least two texts to choose from, all different, such as "
            "'classes=[a cat,a dog]'"
        )
