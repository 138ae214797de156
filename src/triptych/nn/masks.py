"""Who may attend to whom. Everywhere in Triptych, True in a mask means "may attend"."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Visibility:
    """What the queries of one attention call may see.

    Attributes:
        mask: True where a query may attend to a key; None when every pair is visible, or when ``causal`` says it all.
        causal: the kernel itself keeps each query from the keys after it (as many queries as keys, no ``mask``).
    """

    mask: Bool[Tensor, "#batch 1 #queries keys"] | None = None
    causal: bool = False

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
