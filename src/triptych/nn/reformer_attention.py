"""Reformer: attention among tokens with the same hash.

Tested by tests/nn/test_efficient_attention.py.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from triptych.nn.attention import SubquadraticAttention, interceptable, project
from triptych.nn.masks import AttentionMask
from triptych.nn.positions import MemoryAngles
from triptych.nn.sizes import Sizes
from triptych.nn.sliding_window import SlidingWindowBlocks

ITSELF = -1e5
"""Score of a token with itself, so low that it counts only without other tokens: it is always in its own bucket."""


class ReformerAttention(SubquadraticAttention):
    """y_i = sum over j in P_i of softmax(q_i k_j) v_j with k_j = q_j / |q_j|, where P_i are tokens in the bucket of i
    in one of several hash rounds: the cost is O(length bucket_window rounds). LSH attention, Kitaev et al. 2020,
    section 2.

    h(x) = argmax([x R, -x R]) of a random R (Andoni et al. 2015). As keys are normalized queries ("shared-QK"), both
    are in the same bucket. P_i has the tokens that share i's bucket in a round and are among the ``bucket_window``
    nearest by position, i included: on both sides, or to the left in a decoder. (The paper splits the sorted tokens
    into chunks, and attends to one chunk before. There, the neighbours depend on later tokens; here they do not, so a
    decoder sees no future.) The matrices R are drawn once and saved with the weights; all heads of a layer share them.
    Cross-attention is that of ``MultiHeadAttention``.

    Args:
        sizes: sizes of the stack.
        layer: index of the block, from 0.
        cross: whether it is cross-attention to a memory.
        num_buckets: number of buckets per round; even.
        num_hashes: number of hash rounds.
        bucket_window: tokens of its bucket that a token attends to on each side, itself included.
        qkv_bias: whether the projections to queries and values have a bias; None: ``sizes.bias``.

    Raises:
        ValueError: the number of buckets is odd, or a number is below 1.
    """

    rotations: Float[Tensor, "rounds head_dim half"]

    def __init__(
        self,
        sizes: Sizes,
        layer: int = 0,
        cross: bool = False,
        *,
        num_buckets: int = 16,
        num_hashes: int = 4,
        bucket_window: int = 32,
        qkv_bias: bool | None = None,
    ) -> None:
        super().__init__(sizes, layer, cross=cross, qkv_bias=qkv_bias)
        for name, value in (("num_hashes", num_hashes), ("bucket_window", bucket_window)):
            if value < 1:
                raise ValueError(f"block.attention.{name}={value}: expected at least 1")
        if num_buckets < 2 or num_buckets % 2:
            nearest = max(2, num_buckets + 1)
            raise ValueError(f"block.attention.num_buckets={num_buckets}: expected an even number; nearest: {nearest}")
        self.bucket_window, self.num_buckets = bucket_window, num_buckets
        if not cross:
            del self.k
            self.register_buffer("rotations", torch.randn(num_hashes, sizes.head_dim, num_buckets // 2))

    def _project(self, x: Float[Tensor, "batch length d_model"]) -> tuple[Tensor, ...]:
        q, v = project(x, self.q, self.v)
        return q, q, v

    def _keys(
        self,
        k: Float[Tensor, "batch keys kv_width"],
        q: Float[Tensor, "batch heads _queries head_dim"],
        angles: MemoryAngles | None,
    ) -> Float[Tensor, "batch heads keys head_dim"]:
        return super()._keys(k, q, angles) if self.is_cross else F.normalize(q, dim=-1)

    def attend_texts(
        self,
        q: Float[Tensor, "batch heads queries head_dim"],
        k: Float[Tensor, "batch heads keys head_dim"],
        v: Float[Tensor, "batch heads keys head_dim"],
        attention_mask: AttentionMask,
    ) -> Float[Tensor, "batch heads queries head_dim"]:
        buckets = self._hash(k.detach(), attention_mask.key_mask)
        y: Tensor = attend_in_buckets(q, k, v, buckets, bucket_window=self.bucket_window, causal=attention_mask.causal)
        return y

    def _hash(
        self, x: Float[Tensor, "batch heads keys head_dim"], key_mask: Bool[Tensor, "batch keys"] | None
    ) -> Int[Tensor, "rounds batch heads keys"]:
        """The bucket of each key; padding has a separate one."""
        turned = x @ self.rotations[:, None, None].to(x.dtype)
        buckets = torch.cat((turned, -turned), -1).argmax(-1)
        return buckets if key_mask is None else buckets.masked_fill(~key_mask[:, None], self.num_buckets)


@interceptable
@torch.compiler.disable  # type: ignore[untyped-decorator] # what torch 2.13 makes of its sorting reads beyond the ends of tensors
def attend_in_buckets(
    q: Float[Tensor, "batch heads queries head_dim"],
    k: Float[Tensor, "batch heads keys head_dim"],
    v: Float[Tensor, "batch heads keys width"],
    buckets: Int[Tensor, "rounds batch heads keys"],
    *,
    bucket_window: int,
    causal: bool,
) -> Float[Tensor, "batch heads queries width"]:
    """Sum over j in P_i of softmax(q_i k_j) v_j; see ``ReformerAttention``.

    Each round sorts the tokens by bucket, then by position; P_i is then a window. A pair that occurs in n rounds counts
    once, with 1 / n of its weight in each (Kitaev et al. 2020, appendix A).

    Args:
        q: queries, at the last positions of the keys if there are fewer.
        k: keys.
        v: values.
        buckets: of each key in each round.
        bucket_window: see ``ReformerAttention``.
        causal: whether a query attends only to itself and earlier keys.
    """
    if q.shape[2] < k.shape[2]:
        return attend_newest_in_buckets(q, k, v, buckets, bucket_window=bucket_window)
    local = SlidingWindowBlocks(bucket_window, causal, k.shape[2])
    order = buckets.argsort(dim=-1, stable=True)
    places = torch.stack((buckets, order.argsort(dim=-1)), -1)  # bucket and rank of each token in each round
    logs, results = [], []
    for i, taken in enumerate(order):
        q_of, k_of, v_of = (x.take_along_dim(taken[..., None], -2) for x in (q, k, v))
        places_of = places.take_along_dim(taken[None, ..., None], -2)
        bucket, rank = local.queries_of(places_of)[..., None].unbind(-2)
        key_bucket, key_rank = local.keys_of(places_of, fill=-1)[..., None, :, :].unbind(-1)
        meets = (bucket == key_bucket) & ((rank - key_rank).abs() < bucket_window)
        visible = meets[i] & (key_rank[i] <= rank[i]) if causal else meets[i]
        scores = precise(local.queries_of(q_of) @ local.keys_of(k_of).mT)
        scores = scores - meets.sum(0).clamp(min=1).to(scores.dtype).log()
        scores = scores.masked_fill(rank[i] == key_rank[i], ITSELF).masked_fill(~visible, torch.finfo(scores.dtype).min)
        result = scores.softmax(-1).type_as(v) @ local.keys_of(v_of)
        back = places[i, ..., 1:]
        log, result = (x.flatten(2, 3) for x in (scores.logsumexp(-1, keepdim=True), result))
        logs.append(log.take_along_dim(back, -2))
        results.append(result.take_along_dim(back, -2))
    shares = torch.stack(logs).softmax(0).type_as(v)
    return (shares * torch.stack(results)).sum(0)


def attend_newest_in_buckets(
    q: Float[Tensor, "batch heads queries head_dim"],
    k: Float[Tensor, "batch heads keys head_dim"],
    v: Float[Tensor, "batch heads keys width"],
    buckets: Int[Tensor, "rounds batch heads keys"],
    *,
    bucket_window: int,
) -> Float[Tensor, "batch heads queries width"]:
    """The same for the newest queries of a decoder, with a mask of their pairs. See ``attend_in_buckets``."""
    queries, keys = q.shape[2], k.shape[2]
    places = torch.arange(keys, device=q.device)
    own = places[-queries:, None]
    meets = (buckets[..., -queries:, None] == buckets[..., None, :]) & (places <= own)
    later = meets.flip(-1).cumsum(-1).flip(-1)  # number of later or equal keys in the same bucket
    visible = (meets & (later <= bucket_window)).any(0)
    scores = precise(q @ k.mT).masked_fill(places == own, ITSELF).masked_fill(~visible, float("-inf"))
    return scores.softmax(-1).type_as(v) @ v


def precise(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """x in float32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
