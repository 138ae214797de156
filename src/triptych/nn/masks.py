"""Who may attend to whom. Everywhere in Triptych, True in a mask means "may attend"."""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from triptych.nn.packing import Documents

LEAST_BLOCK = 32
"""Queries of a block of ``Local`` at least: kernels are slow where they have less to do at a time."""
LEAST_BLOCKS = 4
"""Blocks in a text from which on they cost less time than one mask of all pairs (measured on a CPU)."""


@dataclass(frozen=True, slots=True)
class Local:
    """The queries and keys of one text, of which each query sees those within a window, in blocks: the cost is
    O(length window).

    Block i has the queries i b, ..., i b + b - 1 and the keys from i b - w to i b + b - 1, or without causality to
    i b + b + w - 1; b = max(w, ``LEAST_BLOCK``). Keys that are not there are masked. Beltagy et al. 2020 (Longformer),
    section 3.1; the blocks are those of appendix A.

    Attributes:
        window: w; how far a query sees, itself included.
        causal: whether a query sees only itself and earlier keys.
        length: of the text.
        key_mask: True at real keys, False at padding; None: all keys are real.
    """

    window: int
    causal: bool
    length: int
    key_mask: Bool[Tensor, "batch length"] | None = None

    @property
    def pays(self) -> bool:
        """Whether the text is long enough beside the window."""
        return self.length >= LEAST_BLOCKS * self.queries

    @property
    def queries(self) -> int:
        """Queries of a block: b."""
        return max(self.window, LEAST_BLOCK)

    @property
    def keys(self) -> int:
        """Keys of a block."""
        return self.queries + self.window * (1 if self.causal else 2)

    @property
    def blocks(self) -> int:
        """How many there are; the last may end behind the text."""
        return -(-self.length // self.queries)

    @property
    def pairs(self) -> int:
        """Pairs of a query and a key, in all blocks."""
        return self.blocks * self.queries * self.keys

    def mask(self, device: torch.device) -> Bool[Tensor, "#batch blocks queries keys"]:
        """Visible(r, s) = real(i b - w + s) and 0 < s - r < 2 w, or <= w if causal: query r and key s of block i."""
        pairs = torch.ones(self.queries, self.keys, dtype=torch.bool, device=device)
        pairs = pairs.triu(1).tril(self.window if self.causal else 2 * self.window - 1)
        real = self.key_mask
        if real is None:
            real = torch.ones(1, self.length, dtype=torch.bool, device=device)
        return self.keys_of(real[..., None])[..., 0][:, :, None, :] & pairs

    def queries_of(self, x: Shaped[Tensor, "*rows length width"]) -> Shaped[Tensor, "*rows blocks queries width"]:
        """The queries of each block; zeros stand behind the last ones."""
        return F.pad(x, (0, 0, 0, self._behind)).unfold(-2, self.queries, self.queries).mT

    def keys_of(
        self, x: Shaped[Tensor, "*rows length width"], fill: int = 0
    ) -> Shaped[Tensor, "*rows blocks keys width"]:
        """The keys, or the values, of each block.

        Args:
            fill: what stands before the first and behind the last.
        """
        around = self.window, self._behind + (0 if self.causal else self.window)
        return F.pad(x, (0, 0, *around), value=fill).unfold(-2, self.keys, self.queries).mT

    @property
    def _behind(self) -> int:
        """Queries of the last block that are not there."""
        return self.blocks * self.queries - self.length


@dataclass(frozen=True, slots=True)
class Packing:
    """Queries and keys that are documents in a packed row; the queries of each see the keys of the same one.

    Attributes:
        queries: the documents of the queries.
        keys: those of the keys.
        causal: whether a query sees only the keys up to its own position.
        window: how far a query sees, itself included; None: without limit.
        has_prefix: whether a query sees the beginning of its document besides; kernels for packed rows cannot do that.
    """

    queries: Documents
    keys: Documents
    causal: bool = False
    window: int | None = None
    has_prefix: bool = False


@dataclass(frozen=True, slots=True)
class Visibility:
    """What the queries of one attention call may see.

    Attributes:
        mask: True where a query may attend to a key; None when every pair is visible, or when ``causal`` says it all.
        causal: the kernel itself keeps each query from the keys after it (as many queries as keys, no ``mask``).
        packing: where the documents stand, if there is a packed row; then ``mask`` and ``causal`` are of a batch that
            has a padded row for each document.
        local: a window over all of a text, in blocks; then ``mask`` and ``causal`` say nothing.
        sees: whether it is known that every query of ``mask`` sees a key.
        key_mask: True at real keys, for attention that takes no mask of pairs: ``mask`` is None then, and of a packed
            row it is that of the padded rows; None: all keys are real.
        leading: how many of the first tokens of each text are global, for attention that has such; None: one.
    """

    mask: Bool[Tensor, "#batch 1 #queries keys"] | None = None
    causal: bool = False
    packing: Packing | None = None
    local: Local | None = None
    sees: bool = False
    key_mask: Bool[Tensor, "batch keys"] | None = None
    leading: Int[Tensor, " batch"] | None = None

    @classmethod
    def within(
        cls,
        documents: Documents,
        *,
        causal: bool,
        window: int | None = None,
        prefix: Int[Tensor, " documents"] | None = None,
    ) -> "Visibility":
        """Of the documents of a packed row, each by itself.

        Args:
            documents: where they stand.
            causal: whether a position may see only itself and earlier ones.
            window: how far a position sees, itself included; None: without limit.
            prefix: see ``of``; of each document.
        """
        padded = cls.of(
            num_queries=documents.longest,
            num_keys=documents.longest,
            causal=causal,
            # what stands behind a document is after all of it
            key_mask=None if causal or prefix is not None else documents.mask,
            device=documents.positions.device,
            window=window,
            prefix=prefix,
        )
        packing = Packing(documents, documents, causal, window, has_prefix=prefix is not None)
        return replace(padded, packing=packing)

    @classmethod
    def across(cls, queries: Documents, keys: Documents) -> "Visibility":
        """Each document of a packed row sees all of its partner in another.

        Args:
            queries: the documents that see.
            keys: their partners, in the same order.
        """
        mask = keys.mask
        return cls(mask=None if mask is None else mask[:, None, None, :], packing=Packing(queries, keys))

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
    ) -> "Visibility":
        """Visible(i, j) = key_mask[j] and (not causal or j <= p) and |p - j| < window; p = i + num_keys - num_queries.

        The queries are the last ``num_queries`` of the ``num_keys`` positions (all of them without a cache). With a
        prefix of n positions it is j <= p or j < n in place of causality (Raffel et al. 2020, figure 3).

        Args:
            num_keys: number of key positions, cached ones included.
            causal: whether a position may see only itself and earlier ones.
            key_mask: True at real keys, False at padding; None when all keys are real.
            window: how far a position sees, itself included; None: without limit.
            prefix: the leading positions of each row, which all positions see; None: there are none.
        """
        if prefix is not None:
            begins = torch.arange(num_keys, device=device) < prefix[:, None]
            pairs = causal_mask(num_queries, num_keys, device) | begins[:, None, None]
            if window is not None:
                pairs = pairs & window_mask(num_queries, num_keys, window, device, causal=False)
            return cls(mask=pairs if key_mask is None else key_mask[:, None, None, :] & pairs)
        if window is not None and window < num_keys:
            local = Local(window, causal, num_keys, key_mask)
            if num_queries == num_keys and local.pays:
                return cls(local=local)
            pairs = window_mask(num_queries, num_keys, window, device, causal=causal)
        elif causal and num_queries > 1:  # the newest position alone sees everything before it
            if key_mask is None and num_queries == num_keys:
                return cls(causal=True)
            pairs = causal_mask(num_queries, num_keys, device)
        else:
            return cls(mask=None if key_mask is None else key_mask[:, None, None, :])
        return cls(mask=pairs[None, None] if key_mask is None else key_mask[:, None, None, :] & pairs)

    @classmethod
    def at(
        cls, place: Int[Tensor, "1"], key_mask: Bool[Tensor, "batch keys"], *, window: int | None = None
    ) -> "Visibility":
        """Visible(j) = key_mask[j] and j <= p and p - j < window, of one query at a place p that stands in a tensor.

        Args:
            place: p, a real position.
            key_mask: True at real keys; what it says of later ones does not matter.
            window: how far a position sees, itself included; None: without limit.
        """
        keys = torch.arange(key_mask.shape[1], device=place.device)
        visible = key_mask & (keys <= place)
        if window is not None:
            visible &= keys > place - window
        return cls(mask=visible[:, None, None, :], sees=True)

    def dense(self, device: torch.device) -> "Visibility":
        """The same without ``local``: a mask of all pairs."""
        if self.local is None:
            return self
        length, key_mask = self.local.length, self.local.key_mask
        pairs = window_mask(length, length, self.local.window, device, causal=self.local.causal)[None, None]
        mask = pairs if key_mask is None else key_mask[:, None, None, :] & pairs
        return replace(self, mask=mask, local=None)


def causal_mask(num_queries: int, num_keys: int, device: torch.device) -> Bool[Tensor, "queries keys"]:
    """Lower triangle, aligned at the last query and the last key: M[i, j] = (j <= i + num_keys - num_queries)."""
    ones = torch.ones(num_queries, num_keys, dtype=torch.bool, device=device)
    return ones.tril(num_keys - num_queries)


def window_mask(
    num_queries: int, num_keys: int, window: int, device: torch.device, *, causal: bool
) -> Bool[Tensor, "queries keys"]:
    """A band, aligned at the last query and the last key: M[i, j] = |p - j| < window and (not causal or j <= p) with
    p = i + num_keys - num_queries."""
    past = num_keys - num_queries
    ones = torch.ones(num_queries, num_keys, dtype=torch.bool, device=device)
    return ones.tril(past + (0 if causal else window - 1)).triu(past - window + 1)
