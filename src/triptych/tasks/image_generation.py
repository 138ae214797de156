"""The task of generating images from texts, pixel by pixel."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from triptych.data import IGNORE_INDEX, Batch, EncodedExample, Example, Image, collate
from triptych.models.generation import LogitsProcessors, Sampling
from triptych.tasks.generative import GenerativeTask
from triptych.tasks.masked_diffusion import Proposal, draw, draw_by_index, fill_in, hide, with_tokens
from triptych.tasks.metric_specs import MetricSpec
from triptych.tasks.predictions import Prediction, Predictions
from triptych.tasks.task import MetricModes, Metrics, TaskContext, Values, targets_of

LEAST_TEXT = 3
"""Minimum number of text tokens: a begin token, one word, and an end token."""
BITS_PER_DIMENSION = MetricSpec(
    name="bits_per_dimension",
    key="test/bits_per_dimension",
    title="bits per dimension",
    higher_is_better=False,
    unit="bits/dim",
    optimum_name="entropy",
    digits=4,
    numerator={"nats": 1 / math.log(2)},
    denominator={"dimensions": 1.0},
    note="Of an encoder it is an upper bound: the mean over the orders in which the pixels may be filled in.",
)


@dataclass(kw_only=True, eq=False, repr=False)
class ImageGeneration(GenerativeTask):
    """Generates an image for a text; the pixels are tokens after the text, row by row (DALL-E, Ramesh et al. 2021).

    As in section 2.2 there, but without its codebook: each value of a pixel has ``levels``, and each combination is a
    token. The softmax is over the pixel tokens only, so the probabilities of all images sum to 1.

    A decoder-only model reads text, separator and pixels as one sequence, and its targets are the pixels; the
    encoder-decoder reads the text with its encoder.

    An encoder reads the text and all pixels, some of which are hidden and are its targets (masked diffusion, see
    ``triptych.tasks.masked_diffusion``). In evaluation, the draws are a function of the seed and the example index. It
    generates an image by filling in some pixels per step, in random order.

    Metrics: loss per pixel, in nats; bits_per_dimension, the loss in bits per value of a pixel; token_accuracy.

    Args:
        image_size: height and width, in pixels.
        num_channels: 1 for grayscale, 3 for red, green and blue.
        levels: number of levels of each value of a pixel, including black and white.
        num_inference_steps: number of steps in which an encoder fills in an image; null: one per pixel.

    Raises:
        ValueError: if a number is out of range, or the network has too few positions for an image.
    """

    name = "image_generation"
    metric_modes: ClassVar[MetricModes] = {"bits_per_dimension": "min"}
    title = "Image generation"
    columns = ("image", "target")

    is_filled_in = False
    """See ``GenerativeTask``; an encoder fills in pixels by the methods of this class."""
    label_smoothing: float = field(default=0.0, init=False)
    max_new_tokens: int = field(init=False)
    logits_processors: LogitsProcessors | None = field(default=None, init=False)
    z_loss: float = field(default=0.0, init=False)
    image_size: Sequence[int]
    num_channels: int
    levels: int
    num_inference_steps: int | None

    def __post_init__(self, context: TaskContext) -> None:
        if len(self.image_size) != 2 or min(self.image_size) < 1:
            raise ValueError(f"task.image_size={list(self.image_size)}: expected [height, width]")
        if self.num_channels not in (1, 3):
            raise ValueError(f"task.num_channels={self.num_channels}: expected 1 or 3")
        if not 2 <= self.levels <= 256:
            raise ValueError(f"task.levels={self.levels}: expected 2 to 256")
        self.max_new_tokens = self.num_pixels = math.prod(self.image_size)
        if self.num_inference_steps is not None and not 1 <= self.num_inference_steps <= self.num_pixels:
            raise ValueError(
                f"task.num_inference_steps={self.num_inference_steps}: expected 1 to {self.num_pixels}, the pixels "
                "of an image, or null"
            )
        least = self.num_pixels + (0 if context.network.architecture == "full" else LEAST_TEXT)
        if context.max_length < least:
            raise ValueError(
                f"shape.max_length={context.max_length}: an image has {self.num_pixels} pixels, each of them a token; "
                f"expected at least {least}, and room for the text"
            )
        super().__post_init__(context)
        height, width = self.image_size
        self.shape, self.first = (self.num_channels, height, width), self.tokenizer.vocab_size
        self.num_codes = self.levels**self.num_channels
        self.sampling = Sampling(temperature=1.0)
        others = {*range(self.network.head.output.out_features)} - {*range(self.first, self.first + self.num_codes)}
        self.logits_processors = LogitsProcessors(suppress_tokens=sorted(others))

    @classmethod
    def num_extra_tokens(cls, settings: Mapping[str, Any]) -> int:
        """Returns the number of pixel tokens, plus one for the mask of a pixel."""
        return int(settings["levels"] ** settings["num_channels"]) + 1

    def encode(self, examples: Sequence[Example]) -> list[EncodedExample]:
        """Encodes text and pixels for the architecture.

        Raises:
            ValueError: if an example has no text or no image, or its image has another size.
        """
        texts = self.tokenizer.encode(targets_of(examples, "what is to be drawn"))
        return [
            self.lay_out_image(self.build_prompt(ids), self.codes_of(example) + self.first, example)
            for example, ids in zip(examples, texts, strict=True)
        ]

    def lay_out_image(
        self, source: Sequence[int], pixels: Int[np.ndarray, " pixels"], example: Example | None = None
    ) -> EncodedExample:
        """Encodes a text and the tokens of an image.

        Args:
            source: see ``build_prompt``.
        """
        special, given, hidden = self.tokenizer.special, len(source), [IGNORE_INDEX] * len(source)
        if self.architecture == "full":
            return EncodedExample(np.append(special.start, pixels[:-1]), pixels, np.array(source), example=example)
        if self.architecture == "encoder_only":  # the hidden pixels are drawn at each step
            return EncodedExample(np.append(source, pixels), np.append(hidden, pixels), example=example)
        tokens, labels = np.append(source, pixels[:-1]), np.append(hidden[1:], pixels)
        return EncodedExample(tokens, labels, prefix=given - 1, example=example)

    def codes_of(self, example: Example) -> Int[np.ndarray, " pixels"]:
        """Returns the code of each pixel, from 0: the number whose digits are its levels, the first channel first.

        Raises:
            ValueError: if the image is missing or has another size.
        """
        values = example.pixels(self.shape, "task.num_channels, task.image_size")
        digits = np.clip(np.rint(values.reshape(len(values), -1) * (self.levels - 1)), 0, self.levels - 1)
        return np.asarray(np.ravel_multi_index(tuple(digits.astype(np.int64)), (self.levels,) * self.num_channels))

    def image_of(self, codes: Int[np.ndarray, " pixels"]) -> Image:
        """Returns the image with these codes; the inverse of ``codes_of``."""
        digits = np.unravel_index(codes, (self.levels,) * self.num_channels)
        return Image.of(np.reshape(digits, self.shape) / (self.levels - 1))

    def truncate(self, item: EncodedExample) -> EncodedExample:
        """Truncates the text, and keeps all pixels."""
        given = len(item.labels) - self.num_pixels + (self.architecture != "encoder_only")
        source = item.inputs[:given] if item.source is None else item.source
        return self.lay_out_image(self.cut_text(source.tolist()), item.labels[-self.num_pixels :], item.example)

    def cut_text(self, source: Sequence[int]) -> list[int]:
        """Truncates a text, and keeps its end tokens.

        Args:
            source: see ``build_prompt``.
        """
        most, end = self.max_length, len(self.tokenizer.special.end)
        if self.architecture != "full":  # only an encoder reads the last pixel
            most, end = most - self.num_pixels + (self.architecture != "encoder_only"), 1
        return [*source] if len(source) <= most else [*source[: most - end], *source[len(source) - end :]]

    def num_unprojected(self, batch: Batch) -> int:
        """Returns 0, since the head is computed at all positions."""
        return 0

    def training_loss(self, batch: Batch) -> Float[Tensor, ""]:
        """Computes the sum of the losses of the pixels."""
        drawn = draw(batch) if self.architecture == "encoder_only" else ()
        return self._nats(batch, *drawn)[0].sum()

    def _nats(
        self,
        batch: Batch,
        shares: Float[Tensor, " texts"] | None = None,
        orders: Float[Tensor, "batch length"] | None = None,
    ) -> tuple[Float[Tensor, "batch length"], Float[Tensor, "batch length"]]:
        """Returns the loss of each pixel, and 1 where the most likely token is correct; both 0 elsewhere.

        Args:
            batch: rows with N pixels each, or without targets.
            shares: of an encoder, of which only hidden pixels count, see ``hide``; None: all pixels count.
            orders: the same.
        """
        weights = (batch.labels != IGNORE_INDEX).to(torch.float32)
        if shares is not None and orders is not None:
            batch, weights = hide(batch, self.first + self.num_codes, shares, orders)
        logits = self.logits_of_codes(batch)
        labels = (batch.labels - self.first).clamp(min=0)
        losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(weights)
        return losses * weights, (logits.argmax(-1) == labels) * weights

    def logits_of_codes(self, batch: Batch) -> Float[Tensor, "batch length codes"]:
        """Returns the logits of the pixel tokens, in float32 at least."""
        logits = self.forward(batch)[..., self.first : self.first + self.num_codes]
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def evaluate(self, batch: Batch, metrics: Metrics, stage: str) -> Predictions:
        """Adds the losses of all pixels to the metrics."""
        rows = len(batch.labels)
        drawn = draw_by_index(batch, self.seed) if self.architecture == "encoder_only" else ()
        nats, hits = self._nats(batch, *drawn)
        metrics["loss"].update(nats.sum(), rows * self.num_pixels)
        metrics["token_accuracy"].update(hits.sum(), rows * self.num_pixels)
        dimensions = self.num_pixels * self.shape[0]
        return Predictions([None] * rows, {"nats": nats.sum(1).tolist(), "dimensions": [dimensions] * rows})

    @classmethod
    def comparison_metrics(cls, architecture: str, metrics: Values, optimum: Values) -> Sequence[MetricSpec]:
        """Returns bits per dimension; see ``Task``."""
        return [replace(BITS_PER_DIMENSION, is_bound=architecture == "encoder_only")]

    def derived_metrics(self, values: dict[str, float]) -> dict[str, float]:
        """Adds the loss in bits."""
        return {**values, "bits_per_dimension": values["loss"] / math.log(2) / self.shape[0]}

    def model_input(self, example: Example) -> str:
        """Returns the text."""
        return example.target or ""

    @property
    def has_global_prompt(self) -> bool:
        """True for a decoder-only model, for text and separator; see ``GenerativeTask``."""
        return self.architecture == "decoder_only"

    @property
    def fills_batches(self) -> bool:
        """False for an encoder, which fills in all images of a batch together; see ``GenerativeTask``."""
        return self.architecture != "encoder_only"

    def predict_batch(self, texts: Sequence[str]) -> Sequence[Prediction]:
        """Generates an image for each text."""
        given = [self.cut_text(self.build_prompt(ids)) for ids in self.tokenizer.encode(texts)]
        drawn = self._fill_in(given) if self.architecture == "encoder_only" else self.decode_ids(given)
        return [self.image_of(np.array(ids) - self.first) for ids in drawn]

    def _fill_in(self, given: Sequence[Sequence[int]]) -> list[list[int]]:
        """Generates images with an encoder: all pixels start hidden, and each step samples some, in random order."""
        hidden = np.full(self.num_pixels, self.first + self.num_codes)
        batch = collate([self.lay_out_image(source, hidden) for source in given]).to(self.device)
        places = batch.labels != IGNORE_INDEX
        generator = self._generator or self.sampling.generator(self.device)
        drawn = torch.rand(len(given), self.num_pixels, dtype=torch.float32, device=self.device, generator=generator)
        ranks = torch.zeros(places.shape, device=self.device).masked_scatter(places, drawn)

        def propose(tokens: Int[Tensor, "batch length"]) -> Proposal:
            logits = self.logits_of_codes(with_tokens(batch, tokens))[places]
            return tokens.masked_scatter(places, self.first + self.sampling.choose(logits, generator)), ranks

        filled = fill_in(batch.inputs, places, propose, self.num_inference_steps or self.num_pixels)
        return list(filled[places].view(len(given), -1).tolist())

    def names_of(self, ids: Sequence[int]) -> list[str]:
        """Returns readable names of tokens; the name of a pixel is its levels."""
        return [
            self.tokenizer.ids_to_tokens([i])[0] if i < self.first else self._name_pixel(i - self.first) for i in ids
        ]

    def _name_pixel(self, code: int) -> str:
        if code == self.num_codes:
            return "?"
        return "/".join(map(str, np.unravel_index(code, (self.levels,) * self.num_channels)))
