"""The full Transformer: an encoder reads the source, a decoder writes the target and looks at the source."""

from typing import ClassVar

from jaxtyping import Bool, Float, Int
from torch import Tensor

from triptych.models.continuation import Continuation
from triptych.nn import Embedding, Head, KeyValueCache, Network, Stack


class EncoderDecoder(Network):
    """head(decoder(embedding(tokens), memory)), memory = encoder(embedding(source)). Vaswani et al. 2017, section 3.

    Args:
        embedding: of the tokens of both sides.
        encoder: a stack that is not causal.
        decoder: a causal stack with cross-attention.
        head: the next token at each position, or classes of the last position.
        tie_output: whether the head's matrix is the token table.

    Raises:
        ValueError: a stack of the wrong kind, or a tie of matrices of different shapes.
    """

    architecture: ClassVar[str] = "full"

    def __init__(
        self, *, embedding: Embedding, encoder: Stack, decoder: Stack, head: Head, tie_output: bool = False
    ) -> None:
        super().__init__(embedding=embedding, stacks=(encoder, decoder), head=head, tie_output=tie_output)
        if encoder.causal:
            raise ValueError("model.encoder.causal=true: an encoder sees both sides")
        if encoder.has_cross_attention:
            raise ValueError("model.encoder.cross_attention=true: there is no memory to look at")
        if not decoder.causal:
            raise ValueError("model.decoder.causal=false: a decoder must not see the future")
        if not decoder.has_cross_attention:
            raise ValueError("model.decoder.cross_attention=false: the decoder of the full model looks at the encoder")
        self.encoder, self.decoder = encoder, decoder

    def forward(
        self,
        source: Int[Tensor, "batch source"],
        tokens: Int[Tensor, "batch length"],
        source_mask: Bool[Tensor, "batch source"] | None = None,
        mask: Bool[Tensor, "batch length"] | None = None,
    ) -> Float[Tensor, "batch *length outputs"]:
        """Logits of the decoder (teacher forcing: ``tokens`` are the target, shifted by one).

        Args:
            source: what the encoder reads.
            tokens: what the decoder reads.
            source_mask: True at real source tokens; None: all are real.
            mask: True at real tokens of the decoder. Padding on the right needs none, but for a pooled head.
        """
        states = self._states(tokens, mask, self.encode(source, source_mask), source_mask)
        logits: Tensor = self.head(states, mask)
        return logits

    def encode(
        self, source: Int[Tensor, "batch source"], source_mask: Bool[Tensor, "batch source"] | None = None
    ) -> Float[Tensor, "batch source d_model"]:
        """The memory: the encoder's states of the source."""
        memory: Tensor = self.encoder(self.embedding(source), mask=source_mask)
        return memory

    def continuation(
        self, source: Int[Tensor, "batch source"], source_mask: Bool[Tensor, "batch source"] | None, *, capacity: int
    ) -> Continuation:
        """Reads the source and starts decoding: the result, called with the start token and then with each new token,
        gives the next logits.

        Args:
            source: what the encoder reads.
            source_mask: True at real source tokens; None: all are real.
            capacity: the most positions of the decoder.
        """
        cache = KeyValueCache(num_layers=len(self.decoder.layers), capacity=capacity, memory_length=source.shape[1])

        def decode(tokens: Tensor, mask: Tensor | None, memory: Tensor | None, memory_mask: Tensor | None) -> Tensor:
            return self._states(tokens, mask, memory, memory_mask, cache)

        memory = self.encode(source, source_mask)
        return Continuation(decode, self.head, cache=cache, memory=memory, memory_mask=source_mask)

    def _states(
        self,
        tokens: Tensor,
        mask: Tensor | None,
        memory: Tensor | None,
        memory_mask: Tensor | None,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        x = self.embedding(tokens)
        states: Tensor = self.decoder(x, mask=mask, memory=memory, memory_mask=memory_mask, cache=cache)
        return states
