"""Attention masks. Everywhere in Triptych, True in a mask means "may attend".

Tested by tests/nn/test_attention.py and tests/nn/test_sliding_window.py.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from triptych.nn.packing import PackedLayout
from triptych.nn.sliding_window import SlidingWindowBlocks, window_mask


@dataclass(frozen=True, slots=True)
class PackedMask:
    """Documents in a packed row; each query attends only to keys of the same document.

    Attributes:
        queries: documents of the queries.
        keys: documents of the keys.
        causal: whether a query attends only to keys up to its own position.
        window: distance a query attends to, itself included; None: no window.
        has_prefix: whether a query also attends to a prefix of its document, which no kernel for packed rows supports.
    """

    queries: PackedLayout
    keys: PackedLayout
    causal: bool = False
    window: int | None = None
    has_prefix: bool = False


@dataclass(frozen=True, slots=True)
class AttentionMask:
    """The keys that each query of one attention call may attend to.

    Attributes:
        mask: True where a query may attend to a key; None if every pair is visible or ``causal`` is enough.
        causal: whether the kernel applies the causal mask (then there is one query per key and no ``mask``).
        packing: the documents of a packed row; then ``mask`` and ``causal`` apply to a batch with a padded row for
            each document.
        local: a window over a whole text, in blocks; then ``mask`` and ``causal`` are ignored.
        has_visible_key: whether every query of ``mask`` is known to have a visible key.
        blind: True at queries without a visible key, whose output is zero although ``mask`` shows them all keys; None:
            no such queries, or ``mask`` shows them none.
        is_in_bias: whether the bias of the attention call is -inf at hidden pairs, so that ``mask`` adds nothing.
        key_mask: True at non-padding keys, for attention without a mask of pairs (``mask`` is None); for a packed row,
            that of the padded rows. None: no padding.
        num_global_tokens: number of leading tokens of each text that are global, if attention has such; None: one.
    """

    mask: Bool[Tensor, "#batch 1 #queries keys"] | None = None
    causal: bool = False
    packing: PackedMask | None = None
    local: SlidingWindowBlocks | None = None
    has_visible_key: bool = False
    blind: Bool[Tensor, "#batch 1 #queries 1"] | None = None
    is_in_bias: bool = False
    key_mask: Bool[Tensor, "batch keys"] | None = None
    num_global_tokens: Int[Tensor, " batch"] | None = None

    @classmethod
    def within(
        cls,
        documents: PackedLayout,
        *,
        causal: bool,
        window: int | None = None,
        prefix: Int[Tensor, " documents"] | None = None,
    ) -> "AttentionMask":
        """Returns the visibility within each document of a packed row.

        Args:
            documents: the documents.
            causal: whether a position attends only to itself and earlier ones.
            window: distance a position attends to, itself included; None: no window.
            prefix: see ``of``; one value per document.
        """
        padded = cls.of(
            num_queries=documents.longest,
            num_keys=documents.longest,
            causal=causal,
            # a causal mask already hides the padding after a document
            key_mask=None if causal or prefix is not None else documents.mask,
            device=documents.positions.device,
            window=window,
            prefix=prefix,
        )
        return replace(padded, packing=PackedMask(documents, documents, causal, window, has_prefix=prefix is not None))

    @classmethod
    def across(cls, queries: PackedLayout, keys: PackedLayout) -> "AttentionMask":
        """Returns the visibility of cross-attention between the documents of two packed rows.

        Args:
            queries: documents of the queries.
            keys: documents that they attend to, in the same order.
        """
        mask = keys.mask
        return cls(mask=None if mask is None else mask[:, None, None, :], packing=PackedMask(queries, keys))

    @classmethod
    def of(
        cls,
        *,
        num_queries: int,
        num_keys: int,
        causal: bool,
        key_mask: Bool[Tensor, "batch keys"] | None,
        device: torch.device,
        window: int | None = None,
        prefix: Int[Tensor, " batch"] | None = None,
    ) -> "AttentionMask":
        """Visible(i, j) = key_mask[j] and (not causal or j <= p) and |p - j| < window; p = i + num_keys - num_queries.

        The queries are the last ``num_queries`` of the ``num_keys`` positions (all of them without a cache). With a
        prefix of n positions, j <= p or j < n replaces causality (Raffel et al. 2020, figure 3).

        Args:
            num_keys: number of key positions, including cached ones.
            causal: whether a position attends only to itself and earlier ones.
            key_mask: True at non-padding keys, False at padding; None: no padding.
            window: distance a position attends to, itself included; None: no window.
            prefix: number of leading positions of each row that all positions attend to; None: no prefix.
        """
        if prefix is not None:
            begins = torch.arange(num_keys, device=device) < prefix[:, None]
            pairs = causal_mask(num_queries, num_keys, device) | begins[:, None, None]
            if window is not None:
                pairs = pairs & window_mask(num_queries, num_keys, window, device, causal=False)
            return cls(mask=pairs if key_mask is None else key_mask[:, None, None, :] & pairs)
        if window is not None and window < num_keys:
            local = SlidingWindowBlocks(window, causal, num_keys, key_mask)
            if num_queries == num_keys and local.is_worthwhile:
                return cls(local=local)
            pairs = window_mask(num_queries, num_keys, window, device, causal=causal)
        elif causal and num_queries > 1:  # a single newest position attends to all positions before it
            if key_mask is None and num_queries == num_keys:
                return cls(causal=True)
            pairs = causal_mask(num_queries, num_keys, device)
        else:
            return cls(mask=None if key_mask is None else key_mask[:, None, None, :])
        return cls(mask=pairs[None, None] if key_mask is None else key_mask[:, None, None, :] & pairs)

    @classmethod
    def at(
        cls, place: Int[Tensor, "1"], key_mask: Bool[Tensor, "batch keys"], *, window: int | None = None
    ) -> "AttentionMask":
        """Visible(j) = key_mask[j] and j <= p and p - j < window, for one query whose position p is a tensor.

        Args:
            place: p, a non-padding position.
            key_mask: True at non-padding keys; later keys are ignored.
            window: distance a position attends to, itself included; None: no window.
        """
        keys = torch.arange(key_mask.shape[1], device=place.device)
        visible = key_mask & (keys <= place)
        if window is not None:
            visible &= keys > place - window
        return cls(mask=visible[:, None, None, :], has_visible_key=True)

    def dense(self, device: torch.device) -> "AttentionMask":
        """Returns the same visibility with a mask of all pairs instead of ``local``."""
        if self.local is None:
            return self
        length, key_mask = self.local.length, self.local.key_mask
        pairs = window_mask(length, length, self.local.window, device, causal=self.local.causal)[None, None]
        return replace(self, mask=pairs if key_mask is None else key_mask[:, None, None, :] & pairs, local=None)

    def for_kernel(self, device: torch.device) -> "AttentionMask":
        """Returns the same visibility for torch's kernels. On GPUs, queries without visible keys attend to all keys and
        are ``blind``, since the kernels were reported to give NaN gradients for them."""
        if self.mask is None or self.local is not None or self.has_visible_key or device.type == "cpu":
            return self
        blind = ~self.mask.any(-1, keepdim=True)
        return replace(self, mask=self.mask | blind, blind=blind, has_visible_key=True)

    def join_bias(
        self, bias: Float[Tensor, "1 heads queries keys"], dtype: torch.dtype
    ) -> Float[Tensor, "#batch heads queries keys"]:
        """Returns the bias with -inf at hidden pairs, which a kernel adds to the scores."""
        mask = causal_mask(bias.shape[2], bias.shape[3], bias.device) if self.causal else self.mask
        return bias.to(dtype) if mask is None else bias.to(dtype).masked_fill(~mask, float("-inf"))


def causal_mask(num_queries: int, num_keys: int, device: torch.device) -> Bool[Tensor, "queries keys"]:
    """Lower triangle, aligned at the last query and the last key: M[i, j] = (j <= i + num_keys - num_queries)."""
    return torch.ones(num_queries, num_keys, dtype=torch.bool, device=device).tril(num_keys - num_queries)
