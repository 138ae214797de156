"""A decoder whose beginning is read from both sides: a given text sees all of itself, what is written only the past."""

from collections.abc import Sequence
from typing import ClassVar

from jaxtyping import Bool, Float, Int
from torch import Tensor

from triptych.models.decoder_only import DecoderOnly, preceded
from triptych.models.generation.continuation import count_real
from triptych.nn import Documents, Targets


class PrefixDecoder(DecoderOnly):
    """``DecoderOnly`` with another mask: position i sees j if j <= i or j < prefix ("prefix LM" in Raffel et al. 2020,
    section 3.2.1).

    Args:
        embedding: of the tokens.
        decoder: a stack that is not causal, without cross-attention.
        head: the next token at each position.
        tie_output: whether the head's matrix is the token table.

    Raises:
        ValueError: a causal stack, attention that takes no masks, or a tie of matrices of different shapes.
    """

    architecture: ClassVar[str] = "prefix_decoder"
    is_causal: ClassVar[bool] = False

    def forward(  # type: ignore[override] # its attention has no global tokens
        self,
        tokens: Int[Tensor, "batch length"] | Float[Tensor, "batch *size"],
        mask: Bool[Tensor, "batch length"] | None = None,
        *,
        source: Float[Tensor, "batch *size"] | None = None,
        source_mask: Bool[Tensor, "batch frames"] | None = None,
        prefix: Int[Tensor, " rows"] | None = None,
        lengths: Sequence[int] | None = None,
        targets: Targets | None = None,
    ) -> Float[Tensor, "*rows_length_outputs"]:
        """Logits.

        Args:
            tokens: token ids.
            mask: True at real tokens; None: all are real. With a prefix, padding on the right needs none, since no
                position sees what follows both it and the prefix.
            source: see ``DecoderOnly``; all positions see all of it.
            source_mask: see ``DecoderOnly``.
            prefix: the leading tokens of each text that all of its positions see; None: all tokens are seen.
            lengths: of the documents that ``tokens`` is one packed row of, each read as if it stood alone. None:
                nothing is packed.
            targets: what should be answered, for the sum of its losses in place of logits; None: logits.
        """
        documents = None if lengths is None else Documents(lengths, tokens.device)
        before, real = self.read_before(source, source_mask)
        x, whole = preceded(before, real, self.embedding(tokens), mask)
        given = x.shape[1] - tokens.shape[1]
        positions = None if whole is None else count_real(whole)
        prefix = prefix if prefix is None else prefix + given
        states = self.decoder(x, mask=whole, positions=positions, documents=documents, prefix=prefix)
        return self.answer(states[:, given:], mask, documents, targets)
