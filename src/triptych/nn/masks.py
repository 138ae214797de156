"""Who may attend to whom. Everywhere in Triptych, True in a mask means "may attend"."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool
from torch import Tensor

from triptych.nn.documents import Documents


@dataclass(frozen=True, slots=True)
class Packing:
    """Queries and keys that are documents in a packed row; the queries of each see the keys of the same one.

    Attributes:
        queries: the documents of the queries.
        keys: those of the keys.
        causal: whether a query sees only the keys up to its own position.
        window: how far a query sees, itself included; None: without limit.
    """

    queries: Documents
    keys: Documents
    causal: bool = False
    window: int | None = None


@dataclass(frozen=True, slots=True)
class Visibility:
    """What the queries of one attention call may see.

    Attributes:
        mask: True where a query may attend to a key; None when every pair is visible, or when ``causal`` says it all.
        causal: the kernel itself keeps each query from the keys after it (as many queries as keys, no ``mask``).
        packing: where the documents stand, if there is a packed row; then ``mask`` and ``causal`` are of a batch that
            has a padded row for each document.
    """

    mask: Bool[Tensor, "#batch 1 #queries keys"] | None = None
    causal: bool = False
    packing: Packing | None = None

    @classmethod
    def within(cls, documents: Documents, *, causal: bool, window: int | None = None) -> "Visibility":
        """Of the documents of a packed row, each by itself.

        Args:
            documents: where they stand.
            causal: whether a position may see only itself and earlier ones.
            window: how far a position sees, itself included; None: without limit.
        """
        padded = cls.of(
            num_queries=documents.longest,
            num_keys=documents.longest,
            causal=causal,
            key_mask=None if causal else documents.mask,  # what stands behind a document is after all of it
            device=documents.positions.device,
            window=window,
        )
        return replace(padded, packing=Packing(documents, documents, causal, window))

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
    ) -> "Visibility":
        """Visible(i, j) = key_mask[j] and (not causal or j <= p) and |p - j| < window; p = i + num_keys - num_queries.

        The queries are the last ``num_queries`` of the ``num_keys`` positions (all of them without a cache).

        Args:
            num_queries: number of query positions.
            num_keys: number of key positions, cached ones included.
            causal: whether a position may see only itself and earlier ones.
            key_mask: True at real keys, False at padding; None when all keys are real.
            device: where the mask is made.
            window: how far a position sees, itself included; None: without limit.
        """
        if window is not None and window < num_keys:
            after = num_keys - num_queries + (0 if causal else window - 1)
            ones = torch.ones(num_queries, num_keys, dtype=torch.bool, device=device)
            pairs = ones.tril(after).triu(num_keys - num_queries - window + 1)
        elif causal and num_queries > 1:  # the newest position alone sees everything before it
            if key_mask is None and num_queries == num_keys:
                return cls(causal=True)
            pairs = causal_mask(num_queries, num_keys, device)
        else:
            return cls(mask=None if key_mask is None else key_mask[:, None, None, :])
        return cls(mask=pairs[None, None] if key_mask is None else key_mask[:, None, None, :] & pairs)


def causal_mask(num_queries: int, num_keys: int, device: torch.device) -> Bool[Tensor, "queries keys"]:
    """Lower triangle, aligned at the last query and the last key: M[i, j] = (j <= i + num_keys - num_queries)."""
    ones = torch.ones(num_queries, num_keys, dtype=torch.bool, device=device)
    return ones.tril(num_keys - num_queries)
