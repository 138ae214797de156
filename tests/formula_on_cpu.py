"""What autograd keeps on a CPU, as a formula: an oracle for what is measured."""

from typing import Any

import torch

from triptych.nn import Head, RelativeBias, Stack
from triptych.nn.kernels import cross_entropy as loss
from triptych.planning.activations import Activations, extent


class OnCpu(Activations):
    """The formula of CPUs. Queries, keys and values are products of their own. The mask of dropout is as wide as what
    is dropped, RMS norms keep x and x / rms in float32. In bf16 attention is explicit up to 2,048 keys, with its
    scores; with attention dropout or relative positions it is torch's plain one, in float32. The logits of a chunk have
    copies."""

    def _stack(self, stack: Stack, rows: int, length: int, source: int, *, padded: bool) -> int:
        wider = stack.d_model * (self.precision.weight - self.precision.compute) * (stack.dropout.p > 0)
        kept: int = Activations._stack(self, stack, rows, length, source, padded=padded)
        return kept + rows * length * wider

    def _mask(self, attention: Any, kinds: Any, length: int, *, is_masked: bool, causal: bool) -> int:
        if self._is_explicit(length) or RelativeBias in kinds:
            return is_masked or causal
        return self.precision.compute * is_masked * self._is_fused(attention, kinds)

    def _attention(self, attention: Any, kinds: Any, length: int, local: Any) -> int:
        c, a = self.precision.compute, attention.q.out_features
        queries, keys, mask = extent(length, local)
        seen = length if local is None else local.keys
        scores = (3 if attention.dropout else 1) * a // attention.head_dim * queries * seen
        read = length * self._read(attention.q.in_features, 3)
        if self._is_explicit(seen):
            return read + c * ((length + queries + 2 * keys) * a + scores) + mask
        if self._is_fused(attention, kinds):
            return Activations._attention(self, attention, kinds, length, local)
        return read + c * length * a + self.precision.single * ((queries + 2 * keys) * a + scores)

    def _cross_attention(self, attention: Any, length: int, source: int) -> int:
        c, a = self.precision.compute, attention.q.out_features
        read, scores = self._read(attention.q.in_features, 1), a // attention.head_dim * source
        if self._is_explicit(source):
            position, kept = c * (2 * a + (3 if attention.dropout else 1) * scores), 2 * c * a
        elif self._is_fused(attention, set()):
            return Activations._cross_attention(self, attention, length, source)
        else:  # there is a copy of keys and values for each query head
            position, kept = c * a + self.precision.single * (a + 3 * scores), 2 * self.precision.single * a
        return length * (read + position) + source * (kept + self._copied(attention))

    def _projected(self, attention: Any, kinds: Any) -> int:
        return self._read(attention.q.in_features, 3)

    def _copied(self, attention: Any) -> int:
        return self._read(attention.k.in_features, 2) * self.precision.is_mixed

    def _is_explicit(self, keys: int) -> bool:
        return self.precision.products == torch.bfloat16 and keys <= 2048

    def _is_fused(self, attention: Any, kinds: Any) -> bool:
        return not attention.dropout and RelativeBias not in kinds

    def _norm(self, norm: Any, d: int) -> int:
        if isinstance(norm, torch.nn.LayerNorm):
            return Activations._norm(self, norm, d)
        return self.precision.single * (1 + 2 * d)

    def _dropped(self, probability: float, width: int) -> int:
        return self.precision.compute * Activations._dropped(self, probability, width)

    def logits(self, head: Head, rows: int, length: int) -> int:
        outputs, precision = head.output.out_features, self.precision
        if head.pooling != "none":
            return Activations.logits(self, head, rows, length)
        answers = min(rows * length, loss.rows_at_once(outputs, on_gpu=False))
        copies = precision.single if precision.compute != precision.single else 0
        sums = (precision.single - precision.weight) * head.output.in_features * outputs
        return (precision.compute + precision.single + copies) * answers * outputs + sums
