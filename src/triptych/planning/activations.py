"""The memory that autograd needs for a forward pass on a GPU, as a formula. On CPUs it is measured instead
(``triptych.planning.peak_memory``), until that is confirmed on a GPU.

Tested by tests/planning/test_memory.py.
"""

from collections.abc import Set
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

from triptych.nn import (
    Block,
    Embedding,
    FeedForward,
    GatedFeedForward,
    Head,
    LayerNorm,
    LearnedPositions,
    MultiHeadAttention,
    Network,
    PatchEmbedding,
    Position,
    PostNorm,
    PreNorm,
    RelativeBias,
    Residual,
    RMSNorm,
    Rotary,
    SinusoidalPositions,
    Stack,
)
from triptych.nn.feed_forward import ACTIVATIONS
from triptych.nn.kernels.cross_entropy import rows_at_once
from triptych.nn.sliding_window import SlidingWindowBlocks
from triptych.tasks.precision import Precision

INDEX = 8
"""Bytes per token ID."""
KEEP_THEIR_RESULT = (ACTIVATIONS["relu"], torch.tanh)
"""Activations whose derivative follows from their output; for the others, autograd keeps the input."""
NORMS = (nn.LayerNorm, nn.RMSNorm)
KNOWN = {
    *(Stack, Block, MultiHeadAttention, FeedForward, GatedFeedForward, PreNorm, PostNorm, LayerNorm, RMSNorm),
    *(Position, LearnedPositions, SinusoidalPositions, Rotary, RelativeBias, Embedding, PatchEmbedding, Head),
    *(nn.Linear, nn.Embedding, nn.Dropout, nn.Identity, nn.ModuleList, *NORMS),
}
"""Modules that the formula supports, in addition to the network itself."""
Kinds = Set[type[nn.Module]]
"""Classes of the modules in a stack."""


class BatchBytes(NamedTuple):
    """The memory of a batch on a device, in addition to weights and gradients, in bytes.

    Attributes:
        copies: copies of the weights in the compute type, under autocast.
        activations: tensors that autograd keeps.
        logits: further memory of the loss and its gradient.
    """

    copies: int
    activations: int
    logits: int


@dataclass(frozen=True, slots=True)
class Activations:
    """The bytes that autograd keeps in one forward pass, from embedding to loss, without weights and their copies.

    For rows of s positions, width d, queries of all heads a = h e wide, keys g = h_kv e, feed-forward width f,
    vocabulary V; w bytes per weight, c bytes per number in matrix products (w; 2 under autocast), 1 byte per number in
    a dropout mask. Bytes per position:

    - The input of n matrices, R(n): c d, or under autocast n c d, since each gets a copy.
    - A norm, N: w d + 8 (input, mean, deviation); RMS: w d + 4.
    - Self-attention: R(1) + c (2 a + 2 g) + 4 h (queries, keys, values, result; log-sum-exp of each head), with rotary
      positions c (2 a + g) more (queries and keys before rotation, and a copy of the result). With a window z, if
      s >= 4 t, t = max(z, 32): there are n = ceil(s / t) blocks of t queries and of u keys, u = t + z in a decoder and
      t + 2 z in an encoder, that is n t / s = x queries and n u / s = y keys per position: R(1) + c (2 x a + 2 y g +
      x u) + 4 x h, with rotary positions c (2 a + g) more, or with x > 1 c a.
    - Cross-attention: R(1) + 2 c a + 4 h, and for each position of the memory 2 c g, and R(1) under autocast; without
      autocast the memory is kept once for all layers.
    - Feed-forward: R(1) + 2 c f, with relu R(1) + c f; gated: R(2) + 4 c f, with relu R(2) + 3 c f. With dropout f
      more, and c f with relu that is not gated.
    - Each of the three is a residual: N + d, without dropout N.
    - Token ID 8, with dropout d more; last norm N. Head with pooling: R(1), label 8, log-probabilities 4 V. Head for
      every position, in chunks (see ``triptych.nn.kernels.cross_entropy``): 8 and the gradient of its input, w d.

    With activation checkpointing a block keeps its input, w d, and the largest block counts in full, because it is
    recomputed while the others keep their inputs. The total is then an upper bound: autocast's copies of all weights
    exist in the forward pass only, and the inputs of a decoder are gone before its encoder is recomputed.

    A window with a short text, or padding in a decoder, needs a mask of c s^2 per layer; relative positions need one of
    c h s^2, and s^2 bytes in a decoder or a window; with padding, for each row. Relative positions keep their buckets,
    8 s^2 per stack.

    The method is that of Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models",
    section 4.1. Its s b d (34 + 5 h s / d) per layer equals this formula with two bytes, gelu, f = 4 d and dropout,
    without the second term, which a fused kernel does not keep.
    """

    precision: Precision

    def of_batch(
        self, network: Network, rows: int, length: int, source: int = 0, *, padded: bool = False
    ) -> BatchBytes:
        """The whole memory of a batch; see ``__call__`` for the arguments."""
        activations = self(network, rows, length, source, padded=padded)
        return BatchBytes(self.copies(network), activations, self.logits(network.head, rows, length))

    def __call__(self, network: Network, rows: int, length: int, source: int = 0, *, padded: bool = False) -> int:
        """The bytes of the activations.

        Args:
            network: network on any device.
            rows: rows of the batch per device.
            length: s of the only stack, or of the decoder.
            source: s of the encoder of the full model.
            padded: whether these positions have a mask; those of ``source`` always have one.
        """
        *encoder, last = network.stacks
        total = rows * self._embedding(network, length)
        if encoder:
            total += rows * self._embedding(network, source)
            total += self._stack(encoder[0], rows, source, 0, padded=True)
            total += rows * source * self._read(last.d_model, 0 if self.precision.is_mixed else 1)
        total += self._stack(last, rows, length, source, padded=padded)
        return total + (rows * length if network.head.pooling == "none" else rows) * self._head(network.head)

    def _embedding(self, network: Network, length: int) -> int:
        embedding = network.embedding
        if isinstance(embedding, PatchEmbedding):
            return (length - 1) * embedding.patches.in_features * self.precision.compute
        return length * INDEX

    def _stack(self, stack: Stack, rows: int, length: int, source: int, *, padded: bool) -> int:
        d, kinds = stack.d_model, {type(part) for part in stack.modules()}
        positions = self._dropped(stack.dropout.p, d)
        positions += sum(self._norm(norm, d) for norm in stack.children() if isinstance(norm, NORMS))
        blocks = []
        for block, window in zip(stack.layers, stack.windows, strict=True):
            assert isinstance(block, Block)
            local, pairs = stack.local(window, length), 0
            row = self._attention(block.self_attention, kinds, length, local)
            if block.cross_attention is not None:
                row += self._cross_attention(block.cross_attention, length, source)
            position = 0 if block.feed_forward is None else self._feed_forward(block.feed_forward, d)
            for residual in block.children():
                if isinstance(residual, Residual):
                    position += self._norm(residual.norm, d) + self._dropped(residual.dropout.p, d)
            if local is None:  # otherwise each row has masks of its blocks
                is_masked = (window is not None and window < length) or (stack.causal and padded)
                pairs = self._mask(block.self_attention, kinds, length, is_masked=is_masked, causal=stack.causal)
            blocks.append(rows * (row + length * position) + (rows if padded else 1) * pairs * length**2)
        if stack.activation_checkpointing:
            positions += len(blocks) * self.precision.weight * d
            blocks = [max(blocks)]
        return rows * length * positions + sum(blocks) + (INDEX * length**2 if RelativeBias in kinds else 0)

    def _mask(self, attention: MultiHeadAttention, kinds: Kinds, length: int, *, is_masked: bool, causal: bool) -> int:
        """Bytes of a mask per pair of positions."""
        heads = attention.q.out_features // attention.head_dim
        if RelativeBias in kinds:
            return self.precision.compute * heads + (is_masked or causal)
        return self.precision.compute * is_masked

    def _attention(
        self, attention: MultiHeadAttention, kinds: Kinds, length: int, local: SlidingWindowBlocks | None
    ) -> int:
        """Bytes per row."""
        c, a, g = self.precision.compute, attention.q.out_features, attention.k.out_features
        queries, keys, mask = extent(length, local)
        copied = length if Rotary in kinds or queries > length else 0  # input of the last matrix
        kept = c * ((2 * queries + copied) * a + 2 * keys * g + mask)
        statistics = self.precision.single * queries * a // attention.head_dim
        return length * self._projected(attention, kinds) + kept + statistics

    def _projected(self, attention: MultiHeadAttention, kinds: Kinds) -> int:
        """Bytes per position: the input of the self-attention matrices, and the queries and keys before rotation."""
        turned = attention.q.out_features + attention.k.out_features if Rotary in kinds else 0
        return self._read(attention.q.in_features, 1) + self.precision.compute * turned

    def _cross_attention(self, attention: MultiHeadAttention, length: int, source: int) -> int:
        """Bytes per row, including the keys and values of the memory."""
        c, a, g = self.precision.compute, attention.q.out_features, attention.k.out_features
        position = self._read(attention.q.in_features, 1) + 2 * c * a + self.precision.single * a // attention.head_dim
        return length * position + source * (2 * c * g + self._copied(attention))

    def _copied(self, attention: MultiHeadAttention) -> int:
        """Bytes that autocast copies per position of the memory."""
        return self._read(attention.k.in_features, 1) * self.precision.is_mixed

    def _feed_forward(self, feed_forward: nn.Module, d: int) -> int:
        assert isinstance(feed_forward, FeedForward | GatedFeedForward)
        is_gated, f = isinstance(feed_forward, GatedFeedForward), feed_forward.up.out_features
        has_result, drops = feed_forward.activation in KEEP_THEIR_RESULT, feed_forward.dropout.p > 0
        kept = 4 - has_result if is_gated else 2 - (has_result and not drops)
        hidden = kept * f * self.precision.compute + self._dropped(feed_forward.dropout.p, f)
        return self._read(d, 2 if is_gated else 1) + hidden

    def _head(self, head: Head) -> int:
        """Bytes per output."""
        d, c = head.output.in_features, self.precision.compute
        total = INDEX + self._dropped(head.dropout.p, d)
        if head.dense is not None:
            total += self._read(d, 1) + c * d
        if not isinstance(head.norm, nn.Identity):
            total += self._norm(head.norm, d)
        if head.pooling == "none":
            return total + self.precision.weight * d
        return total + self._read(d, 1) + self.precision.single * head.output.out_features

    def _norm(self, norm: nn.Module, d: int) -> int:
        return self.precision.weight * d + self.precision.single * (2 if isinstance(norm, nn.LayerNorm) else 1)

    def _read(self, d: int, matrices: int) -> int:
        return self.precision.compute * d * (matrices if self.precision.is_mixed else min(matrices, 1))

    def _dropped(self, probability: float, width: int) -> int:
        """Bytes of a dropout mask."""
        return width if probability > 0 else 0

    def logits(self, head: Head, rows: int, length: int) -> int:
        """Further memory of the loss and its gradient."""
        num_outputs, single = head.output.out_features, self.precision.single
        if head.pooling != "none":  # gradients of the log-probabilities and of the logits
            return 2 * single * rows * num_outputs
        # one chunk: logits, log-probabilities and their float32 input; plus the sum of the weight gradients
        answers = min(rows * length, rows_at_once(num_outputs, on_gpu=True))
        sums = (single - self.precision.weight) * head.output.in_features * num_outputs
        copied = single if self.precision.products == torch.bfloat16 else 0
        return (self.precision.compute + single + copied) * answers * num_outputs + sums

    def copies(self, network: Network) -> int:
        """Bytes of the copies of the weights in the compute type, under autocast."""
        weights = {weight for part in network.modules() if isinstance(part, nn.Linear) for weight in part.parameters()}
        return sum(weight.numel() for weight in weights) * self.precision.compute if self.precision.is_mixed else 0


def unknown_parts(network: Network) -> list[str]:
    """The names of classes and options in a network that the formula does not support."""
    unknown = {type(part).__qualname__ for part in network.modules() if type(part) not in KNOWN}
    attentions = [part for part in network.modules() if isinstance(part, MultiHeadAttention)]
    if any(not isinstance(attention.q_norm, nn.Identity) for attention in attentions):
        unknown.add("qk_norm")
    if any(part.softcap is not None for part in (*attentions, *network.heads)):
        unknown.add("softcap")
    if any(isinstance(stack.layers[0].self_residual.norm, nn.Identity) for stack in network.stacks):
        unknown.add("first_norm")
    if any(isinstance(part, PatchEmbedding) for part in network.embeddings[1:]):
        unknown.add("images as sources")
    if len(network.heads) > 1:
        unknown.add("two heads")
    if any(isinstance(stack.position, Rotary) and stack.position.cross for stack in network.stacks):
        unknown.add("cross")
    return sorted(unknown - {type(network).__qualname__})


def extent(length: int, local: SlidingWindowBlocks | None) -> tuple[int, int, int]:
    """The queries, keys and masked pairs of attention per row.

    Args:
        length: length of the row.
        local: blocks of a window; None: full attention.
    """
    if local is None:
        return length, length, 0
    return local.blocks * local.queries, local.blocks * local.keys, local.pairs
