"""The decoder by itself: every position sees only what comes before it (GPT's shape)."""

from collections.abc import Sequence
from typing import ClassVar

from jaxtyping import Bool, Float, Int
from torch import Tensor

from triptych.models.generation.continuation import Continuation, Writer, count_real
from triptych.models.generation.step import Steps
from triptych.nn import Documents, Embedding, Head, PatchEmbedding, Stack, Targets


class DecoderOnly(Writer):
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
        if not (self.is_causal or decoder.has_all_pairs):
            kind = type(decoder.layers[0].self_attention).__name__.lower()
            raise ValueError(
                f"block/attention={kind} takes no mask of pairs, so a prefix cannot be seen from both sides; use "
                "model=decoder_only or full, or block/attention=multi_head"
            )
        self.decoder, self.steps = decoder, Steps()

    def forward(
        self,
        tokens: Int[Tensor, "batch length"] | Float[Tensor, "batch channels height width"],
        mask: Bool[Tensor, "batch length"] | None = None,
        *,
        lengths: Sequence[int] | None = None,
        leading: Int[Tensor, " rows"] | None = None,
        targets: Targets | None = None,
    ) -> Float[Tensor, "*rows_length_outputs"]:
        """Logits.

        Args:
            tokens: token ids, or images.
            mask: True at real tokens; None: all are real. Padding on the right needs no mask, since no position sees
                what follows it (a pooled head does need it, to find the last real token).
            lengths: of the documents that ``tokens`` is one packed row of, each read as if it stood alone; ``mask``
                says nothing then. None: nothing is packed.
            leading: see ``Stack.forward``.
            targets: what should be answered, for the sum of its losses in place of logits; None: logits.
        """
        documents = None if lengths is None else Documents(lengths, tokens.device)
        positions = None if mask is None else count_real(mask)
        x = self.embedding(tokens)
        states = self.decoder(x, mask=mask, positions=positions, documents=documents, leading=leading)
        return self.answer(states, mask, documents, targets)

    def continuation(
        self,
        mask: Bool[Tensor, "batch length"] | None,
        *,
        capacity: int,
        leading: Int[Tensor, " batch"] | None = None,
    ) -> Continuation:
        """Starts decoding: the result, called with the prompt and then with each new token, gives the next logits.

        Args:
            mask: True at the real tokens of the prompts, which are padded on the left; None: no padding.
            capacity: the most positions, prompt included.
            leading: see ``Stack.forward``.
        """
        return Continuation(self, capacity=capacity, mask=mask, leading=leading)
