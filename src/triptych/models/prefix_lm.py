"""A decoder-only model with bidirectional attention within the prefix and causal attention after it."""

from collections.abc import Sequence
from typing import ClassVar

from jaxtyping import Bool, Float, Int
from torch import Tensor

from triptych.models.decoder_only import DecoderOnly, preceded
from triptych.models.generation.incremental_decoder import count_real
from triptych.nn import PackedLayout, Targets


class PrefixLM(DecoderOnly):
    """A ``DecoderOnly`` with another mask: position i attends to j if j <= i or j < prefix.

    The "prefix LM" in Raffel et al. 2020, section 3.2.1.

    Args:
        embedding: embeds the tokens.
        decoder: a non-causal stack without cross-attention.
        head: predicts the next token at each position.
        tie_word_embeddings: whether the head's matrix is the token table.

    Raises:
        ValueError: the stack is causal, its attention supports no masks, or the tied matrices differ in shape.
    """

    architecture: ClassVar[str] = "prefix_lm"
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
        """Computes logits.

        Args:
            tokens: token ids.
            mask: True at non-padding tokens; None: no padding. With a prefix, padding on the right needs no mask,
                since no position attends to what follows both it and the prefix.
            source: see ``DecoderOnly``; all positions attend to all of it.
            source_mask: see ``DecoderOnly``.
            prefix: number of leading tokens of each text that all of its positions attend to; None: all tokens.
            lengths: lengths of the documents if ``tokens`` is one packed row; each document is processed separately.
                None: ``tokens`` is not packed.
            targets: if given, returns the sum of the losses of these targets instead of logits.
        """
        documents = None if lengths is None else PackedLayout(lengths, tokens.device)
        before, real = self.read_before(source, source_mask)
        x, whole = preceded(before, real, self.embedding(tokens), mask)
        given = x.shape[1] - tokens.shape[1]
        positions = None if whole is None else count_real(whole)
        prefix = prefix if prefix is None else prefix + given
        states = self.decoder(x, mask=whole, positions=positions, documents=documents, prefix=prefix)
        return self.apply_head(states[:, given:], mask, documents, targets)
