"""The base class of generative tasks.

Tested by tests/tasks/test_task.py and tests/tasks/test_filling_in.py.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torchmetrics import Metric

from triptych.config import one_of
from triptych.data import IGNORE_INDEX, Batch, EncodedExample, Example, collate, pad
from triptych.models.generation import BeamSearch, LogitsProcessors, Prompts, Sampling, beam_search, generate
from triptych.nn import Targets
from triptych.nn.device_copy import copy_to_device
from triptych.tasks.exact_sums import ExactMean
from triptych.tasks.masked_diffusion import (
    Proposal,
    draw,
    draw_by_index,
    fill_in,
    hide,
    propose_tokens,
    with_tokens,
)
from triptych.tasks.predictions import Candidate, Prediction
from triptych.tasks.task import MetricModes, Metrics, Task, TaskContext

FillingOrder = Literal["confidence", "random", "left_to_right"]


@dataclass(kw_only=True, eq=False, repr=False)
class GenerativeTask(Task):
    """A task that generates text token by token: by beam search, sampling, or greedy decoding.

    An encoder reads the prompt and all places of the target, which it fills in step by step (masked diffusion, see
    ``triptych.tasks.masked_diffusion``; Nie et al. 2025 for text). A target has a fixed number of places; those after
    its end have the end token, too. Its loss is a bound on -ln p of all places.

    Attributes:
        sampling: how the next token is chosen if there is one beam.
        search: settings of the beam search.
        ranks: whether a prediction is the list of the best candidates with their scores, instead of the best text.

    Args:
        max_new_tokens: maximum number of generated tokens.
        logits_processors: constraints on the generated text; None: none.
        z_loss: weight of (log Z)^2 in the training loss, Z being the sum of the exp(logit) of a position (Chowdhery et
            al. 2022, section 5: 1e-4); not part of the loss in evaluation.
        num_inference_steps: number of steps in which an encoder fills in a target; None: one per place.
        filling_order: the places that an encoder fills in first: those with the most probable tokens, random ones, or
            the first ones.
    """

    generates_text = True
    metric_modes: ClassVar[MetricModes] = {"token_accuracy": "max"}

    max_new_tokens: int
    logits_processors: LogitsProcessors | None = None
    z_loss: float = 0.0
    num_inference_steps: int | None = None
    filling_order: FillingOrder = "confidence"

    def __post_init__(self, context: TaskContext) -> None:
        if not 0 <= self.z_loss < float("inf"):
            raise ValueError(f"task.z_loss={self.z_loss}: expected at least 0")
        if self.max_new_tokens < 1:
            raise ValueError(f"task.max_new_tokens={self.max_new_tokens}: expected at least 1")
        super().__post_init__(context)
        if self.logits_processors is not None and self.logits_processors.largest >= self.tokenizer.vocab_size:
            raise ValueError(
                f"task.logits_processors: token {self.logits_processors.largest}, but the vocabulary has "
                f"{self.tokenizer.vocab_size}"
            )
        if self.is_filled_in:
            self._check_filling()
        self.sampling, self.search, self.ranks = Sampling(), BeamSearch(), False
        self._generator: torch.Generator | None = None
        self._rows: int | None = None
        self._advance: Callable[[int], None] = lambda count: None

    @property
    def is_filled_in(self) -> bool:
        """Whether targets are filled in, by an encoder."""
        return self.architecture == "encoder_only"

    def _check_filling(self) -> None:
        if self.filling_order not in get_args(FillingOrder):
            raise ValueError(
                f"task.filling_order={self.filling_order}: {one_of(self.filling_order, [*get_args(FillingOrder)])}"
            )
        if self.num_inference_steps is not None and not 1 <= self.num_inference_steps <= self.num_places:
            raise ValueError(
                f"task.num_inference_steps={self.num_inference_steps}: expected 1 to {self.num_places}, the places of "
                "a target, or null"
            )
        if self.tokenizer.special.mask is None:
            raise ValueError("model=encoder_only fills in masks, and the tokenizer has no mask token")
        for name, value, expected in (
            ("label_smoothing", self.label_smoothing, 0.0),
            ("z_loss", self.z_loss, 0.0),
            ("logits_processors", self.logits_processors, None),
        ):
            if value != expected:
                shown = "null" if expected is None else expected
                raise ValueError(f"task.{name}: not supported by an encoder that fills in; expected {shown}")

    @property
    def num_places(self) -> int:
        """Number of places of a target that an encoder fills in, its end included."""
        return min(self.max_new_tokens, self.max_length // 2)

    def begin_predictions(self, batch_size: int, advance: Callable[[int], None]) -> None:
        """Creates the one random generator for all texts; see ``Task``."""
        self._generator, self._rows, self._advance = self.sampling.generator(self.device), batch_size, advance

    @property
    def fills_batches(self) -> bool:
        """True, since new texts take the places of finished ones, unless they are filled in; see ``Task``."""
        return not self.is_filled_in

    @property
    def end(self) -> int:
        """The token that ends a generated text."""
        return self.tokenizer.special.eos

    @property
    def prompt_length(self) -> int:
        """Maximum number of prompt tokens; a decoder-only model needs positions for its output."""
        reserved = 0 if self.architecture == "full" else min(self.max_new_tokens, self.max_length // 2)
        return self.max_length - reserved

    def build_prompt(self, ids: Sequence[int]) -> list[int]:
        """Returns a source as input: a complete text, or for a decoder the tokens before the target.

        An encoder that generates also reads the source before the target."""
        special = self.tokenizer.special
        return special.single(ids) if self.architecture == "full" else [*special.begin, *ids, special.sep]

    def lay_out(self, source: Sequence[int], target: Sequence[int], example: Example | None = None) -> EncodedExample:
        """Encodes source and target: separately for the encoder-decoder, as one text with target labels for a decoder.

        Args:
            source: see ``build_prompt``.
            target: the text to generate.
        """
        if self.architecture == "full":
            tokens, labels = self.tokenizer.special.written(target)
            return EncodedExample(np.array(tokens), np.array(labels), np.array(source), example=example)
        if self.is_filled_in:
            places = [*target, *[self.end] * max(1, self.num_places - len(target))]
            labels = [IGNORE_INDEX] * len(source) + places
            return EncodedExample(np.array([*source, *places]), np.array(labels), prefix=len(source), example=example)
        prefix = len(source) - 1
        labels = [IGNORE_INDEX] * prefix + [*target, self.end]
        return EncodedExample(np.array([*source, *target]), np.array(labels), prefix=prefix, example=example)

    def truncate_pair(self, item: EncodedExample) -> EncodedExample:
        """Truncates source and target; a decoder-only model keeps positions for the target."""
        first = item.prefix if item.source is None else len(self.tokenizer.special.target_begin)
        given = item.inputs[: first + (not self.is_filled_in)] if item.source is None else item.source
        source, target = self.truncate_source(given.tolist()), item.labels[first:].tolist()
        target = target[: target.index(self.end)][: self.num_places - 1] if self.is_filled_in else target[:-1]
        laid_out = self.lay_out(source, self.target_of(source, target), item.example)
        return replace(laid_out, inputs=laid_out.inputs[: self.max_length], labels=laid_out.labels[: self.max_length])

    def target_of(self, source: Sequence[int], target: Sequence[int]) -> Sequence[int]:
        """Returns the part of a target that belongs to a truncated source."""
        return target

    def truncate_source(self, source: Sequence[int]) -> list[int]:
        """Truncates a source, and keeps its end tokens.

        Args:
            source: see ``build_prompt``.
        """
        if len(source) <= self.prompt_length:
            return [*source]
        end = len(self.tokenizer.special.end) if self.architecture == "full" else 1
        return [*source[: self.prompt_length - end], *source[len(source) - end :]]

    def make_metrics(self, stage: str) -> dict[str, Metric]:
        """Returns the fraction of the target tokens, or of the hidden ones of an encoder, that are the most likely
        ones; see ``scored_tokens``."""
        return {"token_accuracy": ExactMean()}

    def scored_tokens(
        self, metrics: Metrics, batch: Batch
    ) -> tuple[Float[Tensor, "batch length"], Int[Tensor, "batch length"]]:
        """Returns the nats of each target token and the most likely token, 0 elsewhere.

        Of an encoder, the nats are weighted terms of its bound, and only hidden places have any. Adds loss and accuracy
        to the metrics, per token: the end tokens after the first one have nats, but do not count. The logits are never
        all in memory."""
        is_token = is_predicted = batch.labels != IGNORE_INDEX
        if self.is_filled_in:
            nats, guesses, weights = self._bound(batch, *draw_by_index(batch, self.seed))
            ends = batch.labels == self.end
            is_token = is_token & ~(ends & F.pad(ends, (1, -1)))
            is_predicted = is_token & (weights > 0)
        else:
            nats, guesses = self._losses(batch, batch.scored)
        metrics["loss"].update(nats.sum(), is_token.sum())
        metrics["token_accuracy"].update(((guesses == batch.labels) & is_predicted).sum(), is_predicted.sum())
        return nats, guesses

    def _losses(
        self, batch: Batch, scored: Int[Tensor, " scored"]
    ) -> tuple[Float[Tensor, "batch length"], Int[Tensor, "batch length"]]:
        """The loss at some positions and the most likely token, 0 elsewhere."""
        labels = batch.labels.flatten()[scored]
        losses, likeliest = self.forward(batch, Targets(scored, labels, 0.0, each=True))
        nats = losses.new_zeros(batch.labels.numel()).index_copy(0, scored, losses)
        guesses = batch.labels.new_zeros(batch.labels.numel()).index_copy(0, scored, likeliest.long())
        return nats.view(batch.labels.shape), guesses.view(batch.labels.shape)

    def _bound(
        self, batch: Batch, shares: Float[Tensor, " texts"], orders: Float[Tensor, "batch length"]
    ) -> tuple[Float[Tensor, "batch length"], Int[Tensor, "batch length"], Float[Tensor, "batch length"]]:
        """The weighted losses of hidden places, see ``hide``, the most likely tokens there, and the weights."""
        hidden, weights = hide(batch, self.mask, shares, orders)
        nats, guesses = self._losses(hidden, weights.flatten().nonzero()[:, 0])
        return nats * weights, guesses, weights

    def training_loss(self, batch: Batch) -> Float[Tensor, ""]:
        """Computes the sum of the losses over the target labels; of an encoder, a bound on it."""
        if not self.is_filled_in:
            return super().training_loss(batch)
        hidden, weights = hide(batch, self.mask, *draw(batch))
        scored = weights.flatten().nonzero()[:, 0]
        logits, labels = self.forward(hidden).flatten(0, 1)[scored], batch.labels.flatten()[scored]
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return (F.cross_entropy(logits, labels, reduction="none") * weights.flatten()[scored]).sum()

    def num_unprojected(self, batch: Batch) -> int:
        return 0 if self.is_filled_in else super().num_unprojected(batch)

    @property
    def mask(self) -> int:
        """The mask token."""
        mask = self.tokenizer.special.mask
        assert mask is not None
        return mask

    def answer(self, given: Sequence[Sequence[int]]) -> Sequence[Prediction]:
        """Returns the predictions: the best text, or the candidates.

        Args:
            given: token ids of each input, for instance of the source text.
        """
        return self.candidates(given) if self.ranks else self.decode(given)

    def decode(self, given: Sequence[Sequence[int]], *, rows: int | None = None) -> list[str]:
        """Generates a text for each input: the source of the encoder-decoder, or the prompt of a decoder.

        Args:
            rows: number of rows of a batch; None: that of ``predictions``, or all.
        """
        if self.search.num_beams > 1:
            return [candidates[0].text for candidates in self.candidates(given, rows=rows)]
        ids = self.decode_ids(given, rows=rows)
        return [self.text_of(written, source) for written, source in zip(ids, given, strict=True)]

    def decode_ids(self, given: Sequence[Sequence[int]], *, rows: int | None = None) -> list[list[int]]:
        """Generates the tokens for each input, by sampling or greedy decoding.

        Args:
            rows: see ``decode``.
        """
        if self.is_filled_in:
            size = max(rows or self._rows or len(given), 1)
            return [*chain(*(self._fill_in(given[start : start + size]) for start in range(0, len(given), size)))]
        order = sorted(range(len(given)), key=lambda i: -len(given[i]))
        waiting = iter(order)

        def more(count: int) -> Prompts | None:
            some = [given[i] for i in islice(waiting, count)]
            self._advance(len(some))
            return self._start(some) if some else None

        first = more(rows or self._rows or len(given))
        if first is None:
            return []
        outputs = generate(
            first.next_token,
            first.tokens,
            end=self.end,
            max_new_tokens=first.limits,
            sampling=self.sampling,
            generator=self._generator,
            logits_processors=self.logits_processors,
            prompt_mask=first.mask,
            more=more,
        )
        ids_of = dict(zip(order, outputs, strict=True))
        return [ids_of[i] for i in range(len(given))]

    def candidates(self, given: Sequence[Sequence[int]], *, rows: int | None = None) -> list[list[Candidate]]:
        """Returns the best candidates for each input by beam search, best first.

        Args:
            rows: see ``decode``.
        """
        if self.is_filled_in:
            raise ValueError("beam search: an encoder fills in its text; expected num_beams=1, no num_return_sequences")
        candidates, rows = list[list[Candidate]](), rows or self._rows or len(given)
        for first in range(0, len(given), rows):
            some = given[first : first + rows]
            prompts = self._start(some)
            self._advance(len(some))
            found = beam_search(
                prompts.next_token,
                prompts.tokens,
                end=self.end,
                max_new_tokens=prompts.limits,
                search=self.search,
                logits_processors=self.logits_processors,
                prompt_mask=prompts.mask,
            )
            for source, hypotheses in zip(some, found, strict=True):
                candidates.append([Candidate(self.text_of(h.tokens, source), h.score) for h in hypotheses])
        return candidates

    def _fill_in(self, given: Sequence[Sequence[int]]) -> list[list[int]]:
        """Generates the tokens of each target with an encoder, whose places are all masked at first."""
        batch = collate([self.lay_out(source, []) for source in given]).to(self.device)
        places, generator = batch.labels != IGNORE_INDEX, self._generator or self.sampling.generator(self.device)
        position = torch.arange(places.shape[1], dtype=torch.float32, device=self.device).expand(places.shape)
        ranks = torch.rand(places.shape, dtype=torch.float32, device=self.device, generator=generator)
        ranks = position if self.filling_order == "left_to_right" else ranks

        def propose(tokens: Int[Tensor, "batch length"]) -> Proposal:
            logits = self.forward(with_tokens(batch, tokens))[places].float()
            logits[:, self.mask] = -torch.inf
            logits = logits.view(len(given), self.num_places, -1)
            now = tokens[places].view(len(given), -1)
            chosen = propose_tokens(
                logits, now == self.mask, self.end, partial(self.sampling.choose, generator=generator)
            )
            p = logits.softmax(-1).gather(2, chosen[..., None])[..., 0]
            proposed = tokens.masked_scatter(places, chosen)
            is_by_confidence = self.filling_order == "confidence"
            return proposed, ranks.masked_scatter(places, -p) if is_by_confidence else ranks

        start = batch.inputs.masked_fill(places, self.mask)
        filled = fill_in(start, places, propose, self.num_inference_steps or self.num_places)
        rows = filled[places].view(len(given), -1).tolist()
        return [row[: row.index(self.end)] if self.end in row else row for row in rows]

    def text_of(self, ids: Sequence[int], given: Sequence[int]) -> str:
        """Returns the text of generated tokens."""
        return self.tokenizer.decode(ids)

    def num_global_tokens(self, batch: Batch) -> Int[Tensor, " rows"] | None:
        return batch.prefix + 1 if self.has_global_prompt else None

    @property
    def has_global_prompt(self) -> bool:
        """Whether all tokens before the generated ones are global, for attention with global tokens."""
        return False

    def _start(self, given: Sequence[Sequence[int]]) -> Prompts:
        """Returns the prompts and the state of the network before the first new token."""
        network: Any = self.network  # of a generative architecture
        room = network.max_positions
        lengths = [1 if self.architecture == "full" else len(ids) for ids in given]
        limits = [self.max_new_tokens if room is None else min(self.max_new_tokens, room - n) for n in lengths]
        if min(limits) < 1:
            raise ValueError(f"a prompt of {max(lengths)} tokens leaves no room: shape.max_length={room}")
        capacity = max(lengths) + max(limits)
        if self.architecture == "full":
            source, source_mask = (tensor.to(self.device) for tensor in pad(given))
            prompt = torch.full((len(given), 1), self.tokenizer.special.start, device=self.device)
            return Prompts(network.continuation(source, source_mask, capacity=capacity), prompt, None, limits)
        prompt, real = pad(given, left=True)
        mask = real.to(self.device)
        num_global_tokens = copy_to_device(torch.tensor(lengths), self.device) if self.has_global_prompt else None
        next_token = network.continuation(
            None if real.all() else mask, capacity=capacity, num_global_tokens=num_global_tokens
        )
        return Prompts(next_token, prompt.to(self.device), mask, limits)
