"""How much autograd keeps of a forward for the backward, as a formula."""

from dataclasses import dataclass

import torch
from torch import nn

from triptych.nn import GatedFeedForward, Head, Network, PatchEmbedding, Rotary, Stack
from triptych.nn.attention import LONGEST_EXPLICIT, MultiHeadAttention
from triptych.nn.block import Block
from triptych.nn.feed_forward import ACTIVATIONS, FeedForward
from triptych.nn.masks import Local
from triptych.tasks.devices import Precision

INDEX = 8
"""Bytes of a token id."""
KEEP_THEIR_RESULT = (ACTIVATIONS["relu"], torch.tanh)
"""Activations whose derivative follows from what they return; of the others autograd keeps the argument."""


@dataclass(frozen=True, slots=True)
class Activations:
    """The bytes that autograd keeps of one forward, embedding to loss, besides weights and their copies.

    For rows of s positions, width d, queries of all heads a = h e wide, keys g = h_kv e, feed-forward width f,
    vocabulary V; w bytes a weight, c bytes a number of the matrix products (w; 2 under autocast), k bytes a number of
    a dropout mask (1 on a GPU; on a CPU those of what is dropped). Bytes a position:

    - What n matrices read, R(n): c d, or under autocast n c d, since it copies for each.
    - A norm, N: w d + 8 (input, mean, deviation); RMS: w d + 4, on a CPU 8 d + 4 (x and x / rms in float32).
    - Self-attention: R(3) + c (2 a + 2 g) + 4 h (queries, keys, values, result; log-sum-exp of each head), with rotary
      positions c a more. Without a fused kernel, that is on a CPU with attention dropout or relative positions:
      R(3) + c a + 4 (3 a + p h s) with p = 1, or 3 with dropout. In bf16 on a CPU: R(3) + c (4 a + p h s).
      Within a window w, if s >= 4 b, b = max(w, 32): there are n = ceil(s / b) blocks of b queries and of u keys, u =
      b + w in a decoder and b + 2 w in an encoder, that is n b / s = x queries and n u / s = y keys a position: R(3) +
      c (2 x a + 2 y g + x u) + 4 x h, with rotary positions or x > 1 c a more. Without a fused kernel R(3) + c a + 4
      (x a + 2 y a + p x h u); in bf16 on a CPU R(3) + c ((1 + x + 2 y) a + p x h u) + x u.
    - Cross-attention: R(1) + 2 c a + 4 h, and for each position of the memory 2 c g, and R(2) under autocast; else the
      memory is kept once, for all layers. In bf16 on a CPU: R(1) + c (2 a + p h s'), with s' positions in the memory.
    - Feed-forward: R(1) + 2 c f, with relu R(1) + c f; gated: R(2) + 4 c f, with relu R(2) + 3 c f. With dropout k f
      more, and c f with relu that is not gated.
    - Each of the three is a residual: N + k d, without dropout N.
    - The id of a token 8, k d with dropout; the last norm N; a head that pools R(1), a label 8, its log-probabilities
      4 V; one that answers everywhere, a chunk at a time (see ``triptych.nn.kernels.cross_entropy``), 8 and
      the gradient of what it reads, w d.

    With activation checkpointing a block keeps what goes into it, w d; but the block that is computed anew is there as
    a whole, with all that the others keep: the largest counts.

    A window of a shorter text, or padding of a decoder, is a mask of c s^2 a layer; so are relative positions on a GPU,
    c h s^2; with padding, for each row. In bf16 on a CPU any decoder has it, of s^2 bytes. Relative positions keep
    their buckets, 8 s^2 a stack.

    The method is that of Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models",
    section 4.1. Its s b d (34 + 5 h s / d) a layer, without the second term, which a fused kernel does not keep, is
    what stands here for two bytes, gelu, f = 4 d and dropout.

    Attributes:
        precision: of the training.
        on_gpu: whether the kernels are CUDA's.
    """

    precision: Precision
    on_gpu: bool

    def __call__(self, network: Network, rows: int, length: int, source: int = 0, *, padded: bool = False) -> int:
        """The bytes of a batch.

        Args:
            network: on any device.
            rows: of the batch, on one device.
            length: s of the only stack, or of the decoder.
            source: s of the encoder of the full model.
            padded: whether these positions have a mask; those of ``source`` always have.
        """
        *encoder, last = network.stacks
        total = rows * self._embedding(network, length)
        if encoder:
            total += rows * self._embedding(network, source)
            total += self._stack(encoder[0], rows, source, 0, padded=True)
            total += rows * source * self._read(last.d_model, 0 if self.precision.is_mixed else 1)
        total += self._stack(last, rows, length, source, padded=padded)
        return total + (rows * length if network.head.pool == "none" else rows) * self._head(network.head)

    def _embedding(self, network: Network, length: int) -> int:
        embedding = network.embedding
        if isinstance(embedding, PatchEmbedding):
            return (length - 1) * embedding.patches.in_features * self.precision.compute
        return length * INDEX

    def _stack(self, stack: Stack, rows: int, length: int, source: int, *, padded: bool) -> int:
        d, norms = stack.d_model, [m for m in (stack.embed_norm, stack.final_norm) if not isinstance(m, nn.Identity)]
        positions = self._dropped(stack.dropout.p, d, self.precision.weight)
        positions += sum(self._norm(norm, d) for norm in norms)
        is_relative = stack.position.has_bias
        blocks = [
            self._block(stack, block, window, rows, length, source, padded=padded)
            for block, window in zip(stack.layers, stack.windows, strict=True)
            if isinstance(block, Block)
        ]
        if stack.activation_checkpointing:
            positions += len(blocks) * self.precision.weight * d
            blocks = [max(blocks)]
        return rows * length * positions + sum(blocks) + (INDEX * length**2 if is_relative else 0)

    def _block(
        self, stack: Stack, block: Block, window: int | None, rows: int, length: int, source: int, *, padded: bool
    ) -> int:
        d, attention, cross = stack.d_model, block.self_attention, block.cross_attention
        is_relative, is_rotary = stack.position.has_bias, isinstance(stack.position, Rotary)
        local = stack.local(window, length)
        row = self._attention(attention, length, local, is_relative=is_relative, is_rotary=is_rotary)
        positions = self._feed_forward(block.feed_forward, d)
        pairs = masks = memory = 0
        heads = attention.q.out_features // attention.head_dim
        is_windowed = window is not None and window < length
        if local is not None:
            pass  # the masks of the blocks are of each row
        elif self._is_explicit(length):
            masks = (is_windowed or stack.causal) * (rows if padded else 1)
        elif is_relative and self.on_gpu:
            pairs = heads * (rows if padded else 1)
        elif self._is_fused(attention, is_relative=is_relative) and (is_windowed or (stack.causal and padded)):
            pairs = rows if padded else 1
        if cross is not None:
            positions += self._cross_attention(cross, source)
            memory = self._memory(cross, source)
        for residual in (block.self_residual, block.cross_residual, block.feed_forward_residual):
            if residual is not None:
                positions += self._norm(residual.norm, d) + self._dropped(residual.dropout.p, d)
        squares = (pairs * self.precision.compute + masks) * length**2
        return rows * (row + length * positions + source * memory) + squares

    def _attention(
        self, attention: MultiHeadAttention, length: int, local: Local | None, *, is_relative: bool, is_rotary: bool
    ) -> int:
        """Of a row."""
        c, a, g = self.precision.compute, attention.q.out_features, attention.k.out_features
        heads, read = a // attention.head_dim, length * self._read(attention.q.in_features, 3)
        queries = keys = seen = length
        mask = 0
        if local is not None:
            queries, keys, seen = local.blocks * local.queries, local.blocks * local.keys, local.keys
            mask = local.pairs
        scores = (3 if attention.dropout else 1) * heads * queries * seen
        if self._is_explicit(seen):
            return read + c * ((length + queries + 2 * keys) * a + scores) + mask
        if self._is_fused(attention, is_relative=is_relative):
            copied = length if is_rotary or queries > length else 0  # the result, as the last matrix reads it
            return (
                read + c * ((2 * queries + copied) * a + 2 * keys * g + mask) + self.precision.single * heads * queries
            )
        return read + c * length * a + self.precision.single * ((queries + 2 * keys) * a + scores)

    def _cross_attention(self, attention: MultiHeadAttention, keys: int) -> int:
        c, a = self.precision.compute, attention.q.out_features
        heads, read = a // attention.head_dim, self._read(attention.q.in_features, 1)
        if self._is_explicit(keys):
            return read + c * (2 * a + (3 if attention.dropout else 1) * heads * keys)
        if self._is_fused(attention, is_relative=False):
            return read + 2 * c * a + self.precision.single * heads
        return read + c * a + self.precision.single * (a + 3 * heads * keys)

    def _memory(self, attention: MultiHeadAttention, keys: int) -> int:
        """Of each position of the memory."""
        if self._is_explicit(keys):
            kept = 2 * self.precision.compute * attention.q.out_features
        elif self._is_fused(attention, is_relative=False):
            kept = 2 * self.precision.compute * attention.k.out_features
        else:  # there is a copy for each query head
            kept = 2 * self.precision.single * attention.q.out_features
        return kept + self._read(attention.k.in_features, 2) * self.precision.is_mixed

    def _is_explicit(self, keys: int) -> bool:
        """See ``triptych.nn.attention.attend_explicitly``."""
        is_bf16 = self.precision.compute == 2 and self.precision.dtype != torch.float16
        return is_bf16 and not self.on_gpu and keys <= LONGEST_EXPLICIT

    def _is_fused(self, attention: MultiHeadAttention, *, is_relative: bool) -> bool:
        return self.on_gpu or not (attention.dropout or is_relative)

    def _feed_forward(self, feed_forward: nn.Module, d: int) -> int:
        assert isinstance(feed_forward, FeedForward | GatedFeedForward)
        has_result = feed_forward.activation in KEEP_THEIR_RESULT
        is_gated, drops = isinstance(feed_forward, GatedFeedForward), feed_forward.dropout.p > 0
        kept = 1 if is_gated else 0 if has_result and not drops else 1
        kept += 1  # what the last matrix reads
        kept += (1 if has_result else 2) if is_gated else 0
        f = feed_forward.up.out_features
        hidden = kept * f * self.precision.compute + self._dropped(feed_forward.dropout.p, f)
        return self._read(d, 2 if is_gated else 1) + hidden

    def _head(self, head: Head) -> int:
        """Of each answer."""
        d, c = head.output.in_features, self.precision.compute
        total = INDEX + self._dropped(head.dropout.p, d)
        if head.dense is not None:
            total += self._read(d, 1) + c * d
        if not isinstance(head.norm, nn.Identity):
            total += self._norm(head.norm, d)
        if head.pool == "none":
            return total + self.precision.weight * d
        return total + self._read(d, 1) + self.precision.single * head.output.out_features

    def _norm(self, norm: nn.Module, d: int) -> int:
        w, single = self.precision.weight, self.precision.single
        if isinstance(norm, nn.LayerNorm):
            return w * d + 2 * single
        return single + (w * d if self.on_gpu else 2 * single * d)

    def _read(self, d: int, matrices: int) -> int:
        return self.precision.compute * d * (matrices if self.precision.is_mixed else min(matrices, 1))

    def _dropped(self, probability: float, width: int, size: int | None = None) -> int:
        """The mask of dropout, of numbers of ``size`` bytes (None: as the matrix products write them)."""
        return width * (1 if self.on_gpu else size or self.precision.compute) if probability > 0 else 0
