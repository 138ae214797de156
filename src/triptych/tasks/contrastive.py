"""The contrastive loss of texts and images, and their retrieval recall."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from triptych.data import IGNORE_INDEX
from triptych.nn.autocast import without_autocast
from triptych.tasks.exact_sums import ExactSum

NUM_KEYS = 2**60
"""Number of different keys of texts."""
PLACES = (0, 20, 40)
"""Bit offsets of the parts of a key; float32 represents each part exactly."""
ROWS = 1024
"""Number of rows of a similarity matrix that are computed at once."""


def row_keys(tokens: Sequence[int]) -> int:
    """Returns the key of a text: equal for equal tokens, different for others with probability 1 - 2^-60."""
    digest = hashlib.blake2b(np.array(tokens, np.int64).tobytes(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % NUM_KEYS


def contrastive_losses(
    queries: Float[Tensor, "rows width"],
    candidates: Float[Tensor, "all width"],
    positives: Bool[Tensor, "rows all"],
    real: Bool[Tensor, " all"] | None = None,
) -> Float[Tensor, " rows"]:
    """Computes -mean_(p in P(i)) log softmax_j(q_i · c_j)[p] for each query i with the positives P(i).

    See Radford et al. 2021, figure 3, for one positive per query; Yang et al. 2022 (UniCL), equation 2, for several.

    Args:
        positives: True where a candidate matches the query; at least once in each row that counts.
        real: True at candidates, False at padding; None: no padding.
    """
    scores = queries @ candidates.T
    if real is not None:
        scores = scores.masked_fill(~real, float("-inf"))
    right = scores.masked_fill(~positives, 0.0).sum(1) / positives.sum(1).clamp(min=1)
    return scores.logsumexp(1) - right


def contrastive_loss(vectors: Float[Tensor, "batch 2 width"], keys: Int[Tensor, " batch"]) -> Float[Tensor, ""]:
    """Sums the mean of the ``contrastive_losses`` in both directions over the pairs of this process.

    Candidates are the images, or texts, of all processes. Every process must call it.

    Args:
        vectors: for each pair, the vector of the text and that of the image.
        keys: equal for pairs whose texts are equal, which are positives of each other; IGNORE_INDEX: no pair. (A mask,
            because counting the pairs would synchronize with the GPU.)
    """
    everyone, every_key = gather(vectors), gather(keys)
    real = every_key != IGNORE_INDEX
    positives = (keys[:, None] == every_key) & real
    texts, images = vectors.unbind(1)
    all_texts, all_images = everyone.unbind(1)
    with without_autocast(vectors.device):
        losses = contrastive_losses(texts, all_images, positives, real)
        losses = losses + contrastive_losses(images, all_texts, positives, real)
    return losses.masked_fill(keys == IGNORE_INDEX, 0.0).sum() / 2


def gather(rows: Shaped[Tensor, "rows *size"]) -> Shaped[Tensor, "all *size"]:
    """Concatenates the rows of all processes, in rank order; gradients flow back to each process."""
    # A sum of zero-padded tensors, since all backends have a gradient for sums.
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return rows
    rank, counts = dist.get_rank(), torch.zeros(dist.get_world_size(), dtype=torch.long, device=rows.device)
    counts[rank] = len(rows)
    dist.all_reduce(counts)
    before, after = int(counts[:rank].sum()), int(counts[rank + 1 :].sum())
    padded = torch.cat((rows.new_zeros(before, *rows.shape[1:]), rows, rows.new_zeros(after, *rows.shape[1:])))
    found: Tensor = _SumOfProcesses.apply(padded)  # type: ignore[no-untyped-call]
    return found


class _SumOfProcesses(torch.autograd.Function):
    """The sum of x over all processes; the gradient of x is the sum of their gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        total = gradient.clone()
        dist.all_reduce(total)
        return total


@dataclass(frozen=True, slots=True)
class RetrievalRanks:
    """The retrieval ranks of an image and its text among all pairs of an evaluation.

    Attributes:
        best_key: key of the text that matches the image best.
        text_rank: rank of the text of the image among all different texts, from 1.
        image_rank: rank of the best image with that text among the images with other texts, from 1.
    """

    best_key: int
    text_rank: int
    image_rank: int


class Matches(ExactSum):
    """The contrastive loss over all pairs of an evaluation, and the recall at several ranks.

    Image-to-text recall is the fraction of images whose text is among the k best of all different texts; text-to-image
    recall is the fraction of texts that have an image among the k best of all images. Ties count against the correct
    candidate.

    Attributes:
        names: names of the values: loss, image_to_text_recall_k and text_to_image_recall_k for each k.
        of_each: after ``compute``, the match of each example by its index.

    Args:
        width: size of the vectors.
        ranks: the values of k.
    """

    def __init__(self, width: int, ranks: Sequence[int]) -> None:
        super().__init__()
        self.width, self.ranks = width, tuple(ranks)
        self.names = ("loss", *(f"{way}_recall_{k}" for way in ("image_to_text", "text_to_image") for k in ranks))
        self.of_each: Mapping[int, RetrievalRanks] = {}

    def update(  # type: ignore[override]
        self, vectors: Float[Tensor, "batch 2 width"], keys: Int[Tensor, " batch"], indices: Int[Tensor, " batch"]
    ) -> None:
        """Adds pairs.

        Args:
            vectors: vectors of texts and images.
            keys: equal for equal texts.
            indices: indices of the examples.
        """
        assert isinstance(self.terms, list)
        parts = [keys >> place & (2**20 - 1) for place in PLACES]
        numbers = torch.stack((indices, *parts), dim=1).to(self.device, self.dtype)
        rows = torch.cat((numbers, vectors.flatten(1).to(self.device, self.dtype)), dim=1)
        self.terms.append(rows.flatten())  # if a process has no terms, torchmetrics can gather only vectors

    def compute(self) -> Float[Tensor, " numbers"]:
        """Returns the values in the order of ``names``; NaN if there are no pairs."""
        terms = self.terms
        if not isinstance(terms, Tensor):
            terms = torch.cat([*terms, torch.empty(0, device=self.device)])
        rows = terms.to("cpu", torch.float64).view(-1, 4 + 2 * self.width)
        if not len(rows):
            return torch.full((len(self.names),), torch.nan)
        rows = rows[rows[:, 0].argsort()]  # independent of the order of arrival
        keys = (rows[:, 1:4].long() << torch.tensor(PLACES)).sum(1)
        texts, images = rows[:, 4:].view(-1, 2, self.width).unbind(1)
        losses = _in_parts(lambda part: _losses(part, texts, images, keys), len(rows))
        matches = _in_parts(lambda part: _find(part, texts, images, keys), len(rows))
        of_rows = [RetrievalRanks(*match) for match in matches.tolist()]
        self.of_each = dict(zip(rows[:, 0].long().tolist(), of_rows, strict=True))
        shares = [(ranks <= k).double().mean() for ranks in matches[:, 1:].T for k in self.ranks]
        return torch.stack((losses.mean(), *shares))


def _in_parts(function: Callable[[Tensor], Tensor], count: int) -> Tensor:
    """Concatenates the results of a function for the rows 0 to count - 1, computed ``ROWS`` at a time."""
    return torch.cat([function(part) for part in torch.split(torch.arange(count), ROWS)])


def _losses(part: Tensor, texts: Tensor, images: Tensor, keys: Tensor) -> Float[Tensor, " part"]:
    positives = keys[part, None] == keys
    both = contrastive_losses(texts[part], images, positives), contrastive_losses(images[part], texts, positives)
    return (both[0] + both[1]) / 2


def _find(part: Tensor, texts: Tensor, images: Tensor, keys: Tensor) -> Int[Tensor, "part 3"]:
    """Returns the key of the best text of each image, and the ranks of both."""
    different, first = first_of_each(keys)
    scores = images[part] @ texts[first].T
    best = different[scores.argmax(1)]
    text_ranks = rank_of_best(scores, keys[part, None] == different)
    image_ranks = rank_of_best(texts[part] @ images.T, keys[part, None] == keys)
    return torch.stack((best, text_ranks, image_ranks), dim=1)


def first_of_each(keys: Int[Tensor, " rows"]) -> tuple[Int[Tensor, " different"], Int[Tensor, " different"]]:
    """Returns the distinct keys and the first position of each."""
    different, places = torch.unique(keys, return_inverse=True)
    first = torch.full_like(different, len(keys)).scatter_reduce(0, places, torch.arange(len(keys)), "amin")
    return different, first


def rank_of_best(
    scores: Float[Tensor, "rows candidates"], positives: Bool[Tensor, "rows candidates"]
) -> Int[Tensor, " rows"]:
    """Returns the rank of the best positive among the negatives, from 1; ties and NaN rank before it."""
    best = scores.masked_fill(~positives, -torch.inf).amax(1, keepdim=True)
    return 1 + (~positives & ~(scores < best)).sum(1)
