"""The decoder by itself: every position sees only what comes before it (GPT's shape)."""

from collections.abc import Sequence
from typing import ClassVar

from jaxtyping import Bool, Float, Int
from torch import Tensor

from triptych.models.generation.continuation import Continuation
from triptych.nn import Documents, Embedding, Head, KeyValueCache, Network, PatchEmbedding, Stack, Targets


class DecoderOnly(Network):
    """head(decoder(embedding(tokens))) with a causal decoder. Radford et al. 2018, section 3.1.

    Args:
        embedding: of the tokens, or of the patches of an image.
        decoder: a causal stack without cross-attention.
        head: the next token at each position, or classes of the last position.
        tie_output: whether the head's matrix is the token table.

    Raises:
        ValueError: a stack that is not causal, or a tie of matrices of different shapes.
    """

    architecture: ClassVar[str] = "decoder_only"
    is_causal: ClassVar[bool] = True
    """Whether the stack itself hides what follows a position."""

    def __init__(
        self, *, embedding: Embedding | PatchEmbedding, decoder: Stack, head: Head, tie_output: bool = False
    ) -> None:
        if decoder.has_cross_attention:
            raise ValueError("model.decoder.cross_attention=true: no memory to look at; EncoderDecoder has one")
        super().__init__(embedding=embedding, stacks=(decoder,), head=head, tie_output=tie_output)
        if decoder.causal != self.is_causal:
            reason = "a decoder must not see the future" if self.is_causal else "a prefix is seen from both sides"
            other = "PrefixDecoder sees its prefix" if self.is_causal else "DecoderOnly is the causal one"
            raise ValueError(f"model.decoder.causal={str(decoder.causal).lower()}: {reason}; {other}")
        self.decoder = decoder

    def forward(
        self,
        tokens: Int[Tensor, "batch length"] | Float[Tensor, "batch channels height width"],
        mask: Bool[Tensor, "batch length"] | None = None,
        *,
        lengths: Sequence[int] | None = None,
        targets: Targets | None = None,
    ) -> Float[Tensor, "*rows_length_outputs"]:
        """Logits.

        Args:
            tokens: token ids, or images.
            mask: True at real tokens; None: all are real. Padding on the right needs no mask, since no position sees
                what follows it (a pooled head does need it, to find the last real token).
            lengths: of the documents that ``tokens`` is one packed row of, each read as if it stood alone; ``mask``
                says nothing then. None: nothing is packed.
            targets: what should be answered, for the sum of its losses in place of logits; None: logits.
        """
        documents = None if lengths is None else Documents(lengths, tokens.device)
        states = self._states(tokens, mask, documents=documents)
        return self.answer(states, mask, documents, targets)

    def continuation(self, mask: Bool[Tensor, "batch length"] | None, *, capacity: int) -> Continuation:
        """Starts decoding: the result, called with the prompt and then with each new token, gives the next logits.

        Args:
            mask: True at the real tokens of the prompts, which are padded on the left; None: no padding.
            capacity: the most positions, prompt included.
        """
        cache = KeyValueCache(num_layers=len(self.decoder.layers), capacity=capacity)

        def decode(tokens: Tensor, mask: Tensor | None, memory: Tensor | None, memory_mask: Tensor | None) -> Tensor:
            return self._states(tokens, mask, cache)

        return Continuation(decode, self.head, cache=cache, mask=mask)

    def _states(
        self,
        tokens: Tensor,
        mask: Tensor | None,
        cache: KeyValueCache | None = None,
        documents: Documents | None = None,
        prefix: Tensor | None = None,
    ) -> Tensor:
        past = 0 if cache is None else cache.length
        positions = None
        if mask is not None:  # real tokens are counted from 0, wherever the padding stands
            positions = (mask.long().cumsum(1) - 1).clamp(min=0)[:, past:]
        x = self.embedding(tokens)
        states: Tensor = self.decoder(
            x, mask=mask, positions=positions, cache=cache, documents=documents, prefix=prefix
        )
        return states
