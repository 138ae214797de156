"""One class for a whole text, or for an image."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.classification import MulticlassConfusionMatrix, MulticlassF1Score

from triptych.data.batch import Batch, Encoded, collate
from triptych.data.corpus import CorpusFacts
from triptych.data.example import Example
from triptych.data.images import as_image
from triptych.nn.head import PoolName
from triptych.tasks.base import ClassPrediction, Task
from triptych.tasks.exact import Mean


class Classification(Task):
    """The class of a text, or of an image: softmax(head(state)).

    The state is the first position's in an encoder, the last real position's in a decoder. The decoder of the full
    model reads the same text as its encoder (as BART does, Lewis et al. 2020, section 3.1), behind its start token and
    without the last token, as where it writes a text (so do Hugging Face's classifiers).
    """

    name = "classification"
    predicts_tokens = False
    answers_a_part = True
    pools: ClassVar[Mapping[str, PoolName]] = {"encoder_only": "first", "decoder_only": "last", "full": "last"}

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes."""
        return self.corpus.labels

    @classmethod
    def num_outputs(cls, vocab_size: int, corpus: CorpusFacts) -> int:
        """One for each class.

        Raises:
            ValueError: fewer than two classes.
        """
        if len(corpus.labels) < 2:
            raise ValueError(f"data: the only label is {', '.join(corpus.labels)!r}; expected at least two classes")
        return len(corpus.labels)

    def encode(self, examples: Sequence[Example]) -> list[Encoded]:
        """The text as a whole, or the image, and the number of the class.

        Raises:
            ValueError: a label that is not one of the classes, or an image of another size.
        """
        numbers = {label: i for i, label in enumerate(self.labels)}
        encoded = []
        for example, given in zip(examples, self._given(examples), strict=True):
            if example.label not in numbers:
                raise ValueError(
                    f"{example.where}: label {example.label!r}; expected one of {', '.join(self.labels)} "
                    "(the labels that the model was trained with)"
                )
            label = np.array([numbers[example.label]])
            if self.architecture == "full":
                encoded.append(Encoded(self._shifted(given), label, given, example=example))
            else:
                encoded.append(Encoded(given, label, example=example))
        return encoded

    def _given(self, examples: Sequence[Example]) -> Iterator[np.ndarray]:
        """The texts as a whole, or the images."""
        if self.image_shape is None:
            for ids in self.tokenizer.encode([example.text for example in examples]):
                yield np.array(self.tokenizer.special.whole(ids))
            return
        for example in examples:
            try:
                yield as_image(() if example.image is None else example.image, self.image_shape)
            except ValueError as error:
                raise ValueError(f"{example.where}: {error}") from None

    def truncate(self, item: Encoded) -> Encoded:
        """See ``Task``; the decoder of the full model reads what its encoder reads."""
        cut = super().truncate(item)
        return cut if cut.source is None else replace(cut, tokens=self._shifted(cut.source))

    def _shifted(self, source: Int[np.ndarray, " length"]) -> Int[np.ndarray, " length"]:
        return np.append(self.tokenizer.special.start, source[:-1])

    def make_metrics(self, stage: str) -> dict[str, Metric]:
        """Accuracy, the mean over the classes of their F1, and how often each class was taken for each other."""
        return {
            "accuracy": Mean(),
            "macro_f1": MulticlassF1Score(num_classes=len(self.labels), average="macro"),
            "confusion_matrix": MulticlassConfusionMatrix(num_classes=len(self.labels)),
        }

    def update_metrics(
        self, metrics: Mapping[str, Metric], batch: Batch, logits: Float[Tensor, "batch classes"]
    ) -> None:
        """Counts hits."""
        classes = batch.labels[:, 0]
        metrics["accuracy"].update((logits.argmax(-1) == classes).sum(), len(classes))
        for name in ("macro_f1", "confusion_matrix"):
            metrics[name].update(logits, classes)

    def predict_batch(self, texts: Sequence[Any]) -> list[ClassPrediction]:
        """The likeliest class of each text, or image, with the probability of every class."""
        if self.image_shape is None:
            examples = [Example(text, label=self.labels[0]) for text in texts]
        else:
            examples = [Example("image", label=self.labels[0], image=image) for image in texts]
        encoded = self.fit(self.encode(examples))
        probabilities = self(collate(encoded).to(self.device)).float().softmax(-1).tolist()
        return [
            ClassPrediction(self.labels[int(np.argmax(row))], dict(zip(self.labels, row, strict=True)))
            for row in probabilities
        ]
