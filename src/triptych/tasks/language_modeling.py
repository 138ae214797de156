"""The language modeling task: predicting the next token of a text (masked language modeling: see denoising.py)."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torchmetrics import Metric

from triptych.data import IGNORE_INDEX, Batch, EncodedExample, Example, TokenizedWords
from triptych.data.prefix import prefix_length
from triptych.tasks.denoising import SCORING_METHODS
from triptych.tasks.exact_sums import ExactMean, ExactSum, widest
from triptych.tasks.generative import GenerativeTask
from triptych.tasks.masked_next_token import mask_next_tokens
from triptych.tasks.metric_specs import MetricSpec
from triptych.tasks.predictions import Prediction, Predictions
from triptych.tasks.task import MetricModes, Metrics, TaskContext, Values
from triptych.tasks.views import View, causal_view, diffusion_views, labelled_at, masked_views, word_ends

LARGEST_EXPONENT = 700  # exp of more is no float


BITS_PER_BYTE = MetricSpec(
    name="bits_per_byte",
    key="test/bits_per_byte",
    title="bits per byte",
    higher_is_better=False,
    unit="bits/byte",
    optimum_name="entropy",
    numerator={"nats": 1 / math.log(2)},
    denominator={"bytes": 1.0},
)
BOUND = replace(
    BITS_PER_BYTE,
    is_bound=True,
    note="Of an encoder it is an upper bound: the mean over the orders in which the tokens may be filled in.",
)
CONTINUATION = replace(
    BITS_PER_BYTE,
    name="continuation_bits_per_byte",
    key="test/continuation_bits_per_byte",
    title="bits per byte of the continuation",
    numerator={"continuation_nats": 1 / math.log(2)},
    denominator={"continuation_bytes": 1.0},
    note="Scored on the same bytes, those of the continuation.",
    counted="bytes",
)


@dataclass(kw_only=True, eq=False, repr=False)
class LanguageModeling(GenerativeTask):
    """Predicts the probability of each next token.

    The targets of the decoder-only model are all tokens of a line, including its end. The encoder-decoder is a prefix
    model: its encoder reads a prefix of the line, whose length is a fixed function of the line, and the targets of its
    decoder are the continuation. The prefix decoder has the same targets, and attends to the prefix in both directions.
    The score of the decoder-only model on the continuation is reported, too, for a comparison on the same tokens.

    A long text is read in windows; there, the prefix is the first half of the window.

    An encoder reads all tokens, some of which are hidden and are its targets (masked diffusion, see
    ``GenerativeTask``), so its scores are upper bounds. A line has ``max_length`` tokens, the last ones end tokens:
    their losses are part of N, since the end is to be predicted as well.

    Scores, all from N, the sum of the nats of the target tokens, including the ends of lines (eos):

    - ``perplexity``: exp(N / tokens). It depends on the tokenizer; the others do not, except for unknown characters and
      whitespace beyond ASCII (see ``Tokenizer.num_words``).
    - ``bits_per_byte``: N / (ln 2 * bytes of UTF-8).
    - ``nats_per_character``: N / characters (code points; one counts if its first byte is a target). An end of line
      counts if it is a "\\n" of the text; eos is neither a byte nor a character.
    - ``word_perplexity``: exp(N / words), where words are separated by whitespace and each end of a line, eos or "\\n",
      is a word, too, as usual for Penn Treebank and WikiText; one counts if its first byte is a target. Decoder-only
      models only.

    The first token of a long text is never a target: its bytes, characters and words are not counted.

    A decoder-only model may learn to read from both sides, too: a share of the training steps hides tokens and predicts
    them from the others (see ``mask_next_tokens``). Their loss is the mean over hidden tokens; evaluation is causal.

    Args:
        masked_share: fraction of the training steps with hidden tokens.
        mask_prob: probability that such a step hides a token.

    Raises:
        ValueError: if a number is out of range, or the network cannot read from both sides.
    """

    name = "language_modeling"
    metric_modes: ClassVar[MetricModes] = {
        "token_accuracy": "max", "perplexity": "min", "bits_per_byte": "min", "nats_per_character": "min",
        "word_perplexity": "min", "continuation_bits_per_byte": "min",
    }  # fmt: skip
    title = "Language modeling"
    reads_long_text = True
    needs_input = False
    masked_share: float = 0.0
    mask_prob: float = 0.15

    def __post_init__(self, context: TaskContext) -> None:
        if not 0 <= self.masked_share <= 1:
            raise ValueError(f"task.masked_share={self.masked_share}: expected 0 to 1")
        if not 0 < self.mask_prob < 1:
            raise ValueError(f"task.mask_prob={self.mask_prob}: expected more than 0 and less than 1")
        super().__post_init__(context)
        if self.masked_share:
            self._check_masking()

    def _check_masking(self) -> None:
        if self.architecture != "decoder_only":
            raise ValueError(
                f"task.masked_share={self.masked_share}: only model=decoder_only learns to read from both sides; "
                "expected 0"
            )
        stack = self.network.stacks[0]
        if not stack.has_all_pairs or stack.position.has_bias:
            part = "attention" if not stack.has_all_pairs else "position"
            raise ValueError(
                f"task.masked_share={self.masked_share}: block/{part} has no bidirectional form in a decoder; expected "
                "block/attention=multi_head and block/position=rotary, learned or sinusoidal"
            )
        if self.tokenizer.special.mask is None:
            raise ValueError(f"task.masked_share={self.masked_share}: the tokenizer has no mask token; expected 0")

    def training_loss(self, batch: Batch) -> Float[Tensor, ""]:
        """Computes the sum of the losses of the next tokens (of an encoder, a bound), or in some steps of the hidden
        ones, times the fraction of labels per hidden token."""
        if not self.masked_share or torch.rand(()) >= self.masked_share:
            return super().training_loss(batch)
        others = torch.from_numpy(self.tokenizer.text_ids).to(self.device)
        masked = mask_next_tokens(batch, self.mask_prob, self.mask, others)
        return super().training_loss(masked) * (len(batch.scored) / max(len(masked.scored), 1))

    @classmethod
    def comparison_metrics(cls, architecture: str, metrics: Values, optimum: Values) -> Sequence[MetricSpec]:
        """Returns bits per byte of the whole text, of an encoder a bound, and of the continuation; prefix models have
        only the latter."""
        if architecture == "encoder_only":
            return [BOUND]
        if architecture in ("full", "prefix_lm"):
            return [replace(CONTINUATION, key=BITS_PER_BYTE.key)]
        return [BITS_PER_BYTE, CONTINUATION]

    @property
    def scores_in_windows(self) -> bool:  # type: ignore[override]
        """False for prefix models, whose prefix is a part of the whole line."""
        return self.architecture == "decoder_only"

    @property
    def truncates_left(self) -> bool:
        """True for decoders, which continue the part of the text that fits."""
        return self.architecture != "full"

    @cached_property
    def token_sizes(self) -> Int[Tensor, "3 2 vocab"]:
        """The bytes in each token, and the characters and words that begin in it.

        Index 0 is after a token that does not end in whitespace, index 1 after one that does."""
        tokenizer = self.tokenizer
        return torch.from_numpy(np.stack((tokenizer.num_bytes(), tokenizer.num_characters(), tokenizer.num_words())))

    @cached_property
    def ends_in_space(self) -> Bool[Tensor, " vocab"]:
        """Whether the token ends in whitespace, so that a word begins after it."""
        return torch.from_numpy(self.tokenizer.ends_in_space())

    def encode(self, examples: Sequence[Example]) -> list[EncodedExample]:
        """Encodes lines; both parts are tokenized separately, so that all architectures have the same tokens."""
        cuts = [self._prefix_length(example.text) for example in examples]
        prefixes = self.tokenizer.encode([example.text[:cut] for example, cut in zip(examples, cuts, strict=True)])
        rests = self.tokenizer.encode([example.text[cut:] for example, cut in zip(examples, cuts, strict=True)])
        encoded, special = [], self.tokenizer.special
        for example, prefix, rest in zip(examples, prefixes, rests, strict=True):
            whole = [special.bos, *prefix, *rest, special.eos]
            if self.architecture == "full":
                encoded.append(self.lay_out(special.single(prefix), rest, example))
            elif self.is_filled_in:
                encoded.append(hideable(np.array([*whole, *[special.eos] * (self.max_length - len(whole))]), example))
            else:
                encoded.append(one_text(self.architecture, np.array(whole), len(prefix), example))
        return encoded

    def truncate(self, item: EncodedExample) -> EncodedExample:
        """Truncates an example (see ``Task``); a prefix decoder keeps the end of its prefix, and the targets."""
        if self.architecture != "prefix_lm":
            return super().truncate(item)
        cut = max(0, item.prefix + 1 - self.prompt_length)
        tokens, labels = (np.delete(row, np.s_[1 : 1 + cut])[: self.max_length] for row in (item.inputs, item.labels))
        return replace(item, inputs=tokens, labels=labels, prefix=item.prefix - cut)

    def _prefix_length(self, text: str) -> int:
        """Returns the position of the cut in a line; between words, if the tokenizer reads whole words."""
        cut = prefix_length(text)
        if not self.tokenizer.reads_words:
            return cut
        rest = text[cut:]
        return cut + next((i for i, character in enumerate(rest) if character.isspace()), len(rest))

    def encode_window(self, ids: Int[np.ndarray, " window"]) -> EncodedExample:
        """Encodes a window of a long text, given one more token than the network reads."""
        half = len(ids) // 2
        if self.architecture == "full":
            return EncodedExample(np.append(self.tokenizer.special.start, ids[half:-1]), ids[half:], ids[:half])
        return hideable(ids) if self.is_filled_in else one_text(self.architecture, ids, half - 1)

    @property
    def window_length(self) -> int:
        """The number of targets of a window. An encoder also reads the token before them."""
        return self.max_length - self.is_filled_in

    @property
    def scoring_methods(self) -> tuple[str, ...]:
        if self.is_filled_in:
            return ("left_to_right", "diffusion_bound", *SCORING_METHODS["masked_lm"])
        if self.architecture != "decoder_only":
            return ("prefix_log_likelihood",)
        return ("log_likelihood", *(SCORING_METHODS["masked_lm"] if self.masked_share else ()))

    def views(self, context: Sequence[int], text: TokenizedWords, method: str) -> Iterator[View]:
        """Yields one view: the probability of each token given the earlier ones. An encoder, or a decoder that also
        learned to read from both sides, needs a view per token; the encoder knows the length of a line, except for
        ``left_to_right``."""
        special = self.tokenizer.special
        if not text.ids:
            return
        if method not in ("log_likelihood", "prefix_log_likelihood"):
            begin = [special.bos, *context]
            num_ends = self.max_length - len(begin) - len(text.ids) if self.is_filled_in else 0
            end = [special.eos] * (0 if self.corpus.is_stream else num_ends)
            if method == "diffusion_bound":
                yield from diffusion_views(begin, text.ids, end, self.mask)
                return
            ends = word_ends(text) if method == "pseudo_log_likelihood_l2r" else range(1, len(text.ids) + 1)
            if method == "left_to_right":
                end, ends = [self.mask] * num_ends, [len(text.ids)] * len(text.ids)
            yield from masked_views(begin, text.ids, end, self.mask, ends, predicts_next=not self.is_filled_in)
            return
        if self.architecture == "full":
            item = self.lay_out(special.single(context), text.ids)
            yield labelled_at(item, len(special.target_begin), range(len(text.ids)))
        else:
            yield causal_view([special.bos, *context], text.ids, prefix=len(context))

    def model_input(self, example: Example) -> str:
        """Returns the first half of the line."""
        return example.text[: len(example.text) // 2]

    def reference(self, example: Example) -> str:
        """Returns the second half of the line."""
        return example.text[len(example.text) // 2 :]

    def make_metrics(self, stage: str) -> dict[str, Metric]:
        """Returns sums of nats and of their denominators, over all target tokens and over the continuations."""
        names = ("nats", "bytes", "characters", "words", "continuation_nats", "continuation_bytes")
        return {"token_accuracy": ExactMean(), **{name: ExactSum() for name in names}}

    def evaluate(self, batch: Batch, metrics: Metrics, stage: str) -> Predictions:
        """Adds the negative log-likelihoods of the target tokens, and their bytes, characters and words."""
        nats = self.scored_tokens(metrics, batch)[0].to(widest(self.device))
        scored = batch.labels != IGNORE_INDEX
        labels = batch.labels.where(scored, 0)  # any token: its sizes are not counted
        after_space = self.ends_in_space.to(self.device)[self._tokens_before(batch)].long()
        sizes = self.token_sizes.to(self.device)[:, after_space, labels] * scored
        continues = torch.arange(batch.labels.shape[1], device=self.device) >= batch.prefix[:, None]
        found = {"nats": nats, **dict(zip(("bytes", "characters", "words"), sizes, strict=True))}
        found |= {f"continuation_{name}": found[name].where(continues, 0) for name in ("nats", "bytes")}
        for name, values in found.items():
            metrics[name].update(values.sum())
        kept = ("nats", "bytes", "continuation_nats", "continuation_bytes")
        return Predictions([None] * len(nats), {name: found[name].sum(1).tolist() for name in kept})

    def _tokens_before(self, batch: Batch) -> Int[Tensor, "batch length"]:
        """Returns the token before each label in the text; the first label follows the last token of the prefix."""
        if self.is_filled_in:
            return batch.inputs.roll(1, 1)
        if batch.source is None or batch.source_mask is None:
            return batch.inputs
        special = self.tokenizer.special
        end, first = (0, 0) if self.corpus.is_stream else (len(special.end), len(special.target_begin))
        last = (batch.source_mask.sum(1, keepdim=True) - 1 - end).clamp(min=0)  # without a prefix: begin, end or bos
        before = batch.inputs.clone()
        before[:, first] = batch.source.gather(1, last)[:, 0]
        return before

    def derived_metrics(self, values: dict[str, float]) -> dict[str, float]:
        """Computes the scores of the class docstring; ``word_perplexity`` only if it fits into a float."""
        derived = {
            "loss": values["loss"],
            "perplexity": math.exp(min(values["loss"], LARGEST_EXPONENT)),
            "token_accuracy": values["token_accuracy"],
            "bits_per_byte": values["nats"] / math.log(2) / values["bytes"],
            "nats_per_character": values["nats"] / values["characters"],
        }
        if self.architecture == "decoder_only":
            if values["nats"] < LARGEST_EXPONENT * values["words"]:
                derived["word_perplexity"] = math.exp(values["nats"] / values["words"])
            bits = values["continuation_nats"] / math.log(2)
            derived["continuation_bits_per_byte"] = bits / values["continuation_bytes"]
        return derived

    def predict_batch(self, texts: Sequence[str]) -> Sequence[Prediction]:
        """Returns a continuation of each text.

        The beginning of a too long text is dropped; half of the positions of the network are always kept for the
        text."""
        special = self.tokenizer.special
        laid_out = special.single if self.architecture == "full" else special.opening
        begins_anywhere = self.corpus.is_stream  # windows have no bos
        prompts = [(ids or [special.bos]) if begins_anywhere else laid_out(ids) for ids in self.tokenizer.encode(texts)]
        if self.network.max_positions is None or self.architecture == "full":
            return self.answer(prompts)
        kept = max(self.network.max_positions - self.max_new_tokens, self.network.max_positions // 2)
        return self.answer([prompt[-kept:] for prompt in prompts])


def hideable(tokens: Int[np.ndarray, " length"], example: Example | None = None) -> EncodedExample:
    """Encodes a text for an encoder, which may hide all tokens but the first."""
    return EncodedExample(tokens, np.append(IGNORE_INDEX, tokens[1:]), example=example)


def one_text(
    architecture: str, tokens: Int[np.ndarray, " length_and_1"], prefix: int, example: Example | None = None
) -> EncodedExample:
    """Encodes a text for a decoder; the prefix of a prefix decoder is not a target."""
    labels = tokens[1:]
    if architecture == "prefix_lm":
        labels = np.append(np.full(prefix, IGNORE_INDEX), labels[prefix:])
    return EncodedExample(tokens[:-1], labels, prefix=prefix, example=example)
