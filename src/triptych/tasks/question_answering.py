"""The task of extracting the answer to a question from a text."""

import math
import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torchmetrics import Metric

from triptych.data import IGNORE_INDEX, Batch, CorpusInfo, EncodedExample, Example, collate
from triptych.nn.device_copy import copy_to_device
from triptych.tasks.exact_sums import ExactMean
from triptych.tasks.metric_specs import EXACT_MATCH, MetricSpec
from triptych.tasks.predictions import Predictions
from triptych.tasks.sequence import cut_pair
from triptych.tasks.task import NO_GENERATION, MetricModes, Metrics, Task, TaskContext


@dataclass(kw_only=True, eq=False, repr=False)
class QuestionAnswering(Task):
    """Predicts the first and last token of the answer: two outputs per position, softmax over the positions.

    See Devlin et al. 2019, section 4.2 and 4.3. Question, separator and text are one sequence (see
    ``SpecialTokens.pair``).

    The positions are those of the text, and the first token of the sequence, which means "no answer": for questions
    without an answer, and for answers that were cut off at the end of a too long text. If there are several correct
    answers, the first one is the target. The loss is the mean of the cross-entropies of start and end.

    Every architecture reads the same sequence, an encoder-decoder on both sides. In a decoder, a token attends only to
    the tokens before it, so the start of an answer is predicted from these.

    Metrics: exact_match and f1, as defined by the evaluation of SQuAD (see ``exact_match``, ``f1``), the best over the
    correct answers, mean over the questions.

    Args:
        max_answer_tokens: maximum number of tokens of an answer.

    Raises:
        ValueError: if ``max_answer_tokens`` is below 1.
    """

    name = "question_answering"
    metric_modes: ClassVar[MetricModes] = {"exact_match": "max", "f1": "max"}
    title = "Question answering"
    compared_by = (
        replace(EXACT_MATCH, numerator={"exact_match": 1.0}),
        MetricSpec("f1", "test/f1", "F1 of the words", True, "%", is_of_right_answers=True, numerator={"f1": 1.0}),
    )
    columns = ("text", "text_pair", "answers")
    input_title = "Question"
    predicts_tokens = False
    truncates_input = True
    reads_pairs = True
    unsupported = NO_GENERATION

    label_smoothing: float = field(default=0.0, init=False)
    max_answer_tokens: int

    def __post_init__(self, context: TaskContext) -> None:
        if self.max_answer_tokens < 1:
            raise ValueError(f"task.max_answer_tokens={self.max_answer_tokens}: expected at least 1")
        super().__post_init__(context)

    @classmethod
    def num_outputs(cls, vocab_size: int, corpus: CorpusInfo) -> int:
        """Returns 2, for start and end."""
        return 2

    def encode(self, examples: Sequence[Example]) -> list[EncodedExample]:
        """Encodes question and text; the labels are the first and last token of the answer.

        Raises:
            ValueError: if an example has no text or no answers, or an answer is not at its position in the text.
        """
        for example in examples:
            if example.text_pair is None or example.answers is None:
                what = "text that answers it" if example.text_pair is None else "list of answers"
                raise ValueError(f"{example.where}: a question, but there is no {what}")
        questions = self.tokenizer.encode([example.text for example in examples])
        encoded = []
        for example, question, (text, places) in zip(examples, questions, self._texts(examples), strict=True):
            tokens, prefix = self.tokenizer.special.pair(question, text)
            labels = np.array(_span(example, places)) + prefix if example.answers else np.zeros(2, dtype=int)
            encoded.append(self._laid_out(np.array(tokens), prefix, labels, example))
        return encoded

    def _texts(self, examples: Sequence[Example]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """Returns the tokens of the texts, and the character range of each token."""
        return self.tokenizer.encode_with_places([example.text_pair or "" for example in examples])

    def _laid_out(
        self, given: Int[np.ndarray, " length"], prefix: int, labels: Int[np.ndarray, " 2"], example: Example | None
    ) -> EncodedExample:
        return EncodedExample(given, labels, given if self.architecture == "full" else None, prefix, example)

    def truncate(self, item: EncodedExample) -> EncodedExample:
        """Truncates the longer of question and text; see ``Task``."""
        tokens, prefix = cut_pair(item.inputs, item.prefix, self.max_length, self.tokenizer.special)
        labels = item.labels - item.prefix + prefix
        has_answer = item.labels[0] >= item.prefix and labels[1] < len(tokens) - len(self.tokenizer.special.end)
        return self._laid_out(tokens, prefix, labels if has_answer else np.zeros_like(labels), item.example)

    def num_global_tokens(self, batch: Batch) -> Int[Tensor, " rows"]:
        """Returns the length of the question with its special tokens; see ``Task``."""
        return batch.prefix

    def _is_text(self, batch: Batch) -> Bool[Tensor, "batch length"]:
        """Returns whether each position of each example belongs to the text."""
        assert batch.mask is not None
        device, longest = batch.prefix.device, batch.mask.shape[1]
        lengths = batch.mask.sum(1)
        if batch.lengths is not None:
            longest, lengths = max(batch.lengths), copy_to_device(torch.tensor(batch.lengths), device)
        places = torch.arange(longest, device=device)
        ends = lengths - len(self.tokenizer.special.end)
        return (places >= batch.prefix[:, None]) & (places < ends[:, None])

    def _scores(
        self, logits: Float[Tensor, "rows positions 2"], batch: Batch
    ) -> tuple[Float[Tensor, "batch length"], Float[Tensor, "batch length"]]:
        """Returns the logits of start and end, minus infinity at positions outside of the text."""
        is_allowed = self._is_text(batch)
        is_allowed[:, 0] = True
        scores = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if batch.lengths is not None:  # unpacks the examples of a packed row
            scores = pad_sequence(list(torch.split(scores[0], list(batch.lengths))), batch_first=True)
        start, end = scores.masked_fill(~is_allowed[..., None], -torch.inf).unbind(-1)
        return start, end

    def summed_loss(
        self, logits: Float[Tensor, "rows positions 2"], batch: Batch, label_smoothing: float = 0.0
    ) -> Float[Tensor, ""]:
        """Computes the sum of the cross-entropies of starts and ends."""
        both = torch.cat(self._scores(logits, batch))
        return F.cross_entropy(both, batch.labels.T.flatten(), ignore_index=IGNORE_INDEX, reduction="sum")

    def reference(self, example: Example) -> str:
        """Returns the first correct answer."""
        return right_answers(example)[0]

    def make_metrics(self, stage: str) -> dict[str, Metric]:
        """Returns the metrics listed in the class docstring."""
        return {"exact_match": ExactMean(), "f1": ExactMean()}

    def evaluate(self, batch: Batch, metrics: Metrics, stage: str) -> Predictions:
        """Adds a batch to the metrics, and returns its predictions."""
        guesses = self._answers(batch, self.scored_logits(metrics, batch))
        rights = [right_answers(example) for example in batch.examples if example is not None]
        pairs = list(zip(guesses, rights, strict=True))
        values = dict[str, list[float]]()
        for name, score in (("exact_match", exact_match), ("f1", f1)):
            values[name] = [max(score(guess, right) for right in of_one) for guess, of_one in pairs]
            metrics[name].update(math.fsum(values[name]), len(pairs))
        return Predictions(guesses, values)

    def _answers(self, batch: Batch, logits: Float[Tensor, "batch length 2"]) -> list[str]:
        """Returns the text of the best span; "" if the first token, "no answer", scores at least as high."""
        start, end = self._scores(logits, batch)
        none = (start[:, 0] + end[:, 0]).tolist()
        is_text = self._is_text(batch)
        start, end = (scores.masked_fill(~is_text, -torch.inf) for scores in (start, end))
        firsts, lasts, scores = (values.tolist() for values in best_spans(start, end, self.max_answer_tokens))
        examples = [example for example in batch.examples if example is not None]
        answers = []
        for i, (example, (_, places)) in enumerate(zip(examples, self._texts(examples), strict=True)):
            if not scores[i] > none[i]:  # also if a score is NaN
                answers.append("")
                continue
            prefix = int(batch.prefix[i])
            first, last = places[firsts[i] - prefix], places[lasts[i] - prefix]
            answers.append((example.text_pair or "")[first[0] : last[1]].strip())
        return answers

    def predict_batch(self, texts: Sequence[Any]) -> list[str]:
        """Returns the answer for each pair of question and text; "": no answer."""
        examples = [self.example_of(given, Example("", answers=())) for given in texts]
        batch = collate(self.enforce_max_length(self.encode(examples))).to(self.device)
        return self._answers(batch, self.forward(batch))


def _span(example: Example, places: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Returns the first and last token of the first correct answer.

    Raises:
        ValueError: if the answer is not at its position in the text, or has no token.
    """
    (answer, *_), text = example.answers or (), example.text_pair or ""
    stop = answer.start + len(answer.text)
    if text[answer.start : stop] != answer.text:
        raise ValueError(
            f"{example.where}: the answer {answer.text!r} should stand at character {answer.start} of the text; "
            f"there is {text[answer.start : stop]!r}"
        )
    inside = [i for i, (begin, end) in enumerate(places) if begin < stop and end > answer.start]
    if not inside:
        raise ValueError(f"{example.where}: the tokenizer has no token for the answer {answer.text!r}")
    return inside[0], inside[-1]


def best_spans(
    start: Float[Tensor, "batch length"], end: Float[Tensor, "batch length"], max_length: int
) -> tuple[Int[Tensor, " batch"], Int[Tensor, " batch"], Float[Tensor, " batch"]]:
    """Finds the span of each row with the score max_(i <= j < i + max_length) start_i + end_j.

    Args:
        start: score of each position as the first.
        end: score of each position as the last.
        max_length: maximum length of a span.

    Returns:
        The first positions, the last positions, and the scores.
    """
    windows = F.pad(end, (0, max_length - 1), value=-torch.inf).unfold(1, max_length, 1)
    ends, lengths = windows.max(-1)
    scores, firsts = (start + ends).max(-1)
    return firsts, firsts + lengths.gather(1, firsts[:, None])[:, 0], scores


def right_answers(example: Example) -> list[str]:
    """Returns the correct answers; if there are none, "" is correct (Rajpurkar et al. 2018)."""
    return [answer.text for answer in example.answers or () if normalize_answer(answer.text)] or [""]


def normalize_answer(answer: str) -> str:
    """Normalizes an answer like the evaluation of SQuAD (Rajpurkar et al. 2016).

    The result is in lower case, without ASCII punctuation, articles, and repeated whitespace."""
    plain = "".join(character for character in answer.lower() if character not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", plain).split())


def exact_match(guess: str, right: str) -> float:
    """Returns 1 if the normalized answers are equal, else 0."""
    return float(normalize_answer(guess) == normalize_answer(right))


def f1(guess: str, right: str) -> float:
    """Computes 2 n / (words of the guess + words of the right answer) of normalized answers.

    n is the number of common words, counted with repetitions. If one answer has no words: 1 if neither has, else 0."""
    ours, theirs = normalize_answer(guess).split(), normalize_answer(right).split()
    if not ours or not theirs:
        return float(ours == theirs)
    common = (Counter(ours) & Counter(theirs)).total()
    return 2 * common / (len(ours) + len(theirs))
