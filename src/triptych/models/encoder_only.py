"""The encoder by itself: every position sees every other (BERT's shape)."""

from collections.abc import Sequence
from typing import ClassVar

from jaxtyping import Bool, Float, Int
from torch import Tensor

from triptych.nn import Documents, Head, Network, Stack, Targets
from triptych.nn.network import Inputs


class EncoderOnly(Network):
    """head(encoder(embedding(tokens))). Devlin et al. 2019, section 3; of images, Dosovitskiy et al. 2021, section 3.1.

    Args:
        embedding: of the tokens, the patches of an image, or the frames of a sound.
        encoder: a stack that is not causal.
        head: what is predicted: classes of the pooled text, tags or masked tokens at each position.
        tie_output: whether the head's matrix is the token table.

    Raises:
        ValueError: a causal stack, or a tie of matrices of different shapes.
    """

    architecture: ClassVar[str] = "encoder_only"
    stack_names: ClassVar[tuple[str, ...]] = ("encoder",)

    def __init__(self, *, embedding: Inputs, encoder: Stack, head: Head, tie_output: bool = False) -> None:
        if encoder.has_cross_attention:
            raise ValueError("model.encoder.cross_attention=true: there is no memory to look at")
        super().__init__(embedding=embedding, stacks=(encoder,), head=head, tie_output=tie_output)
        if encoder.causal:
            raise ValueError("model.encoder.causal=true: an encoder sees both sides; DecoderOnly is the causal one")
        self.encoder = encoder

    def forward(
        self,
        tokens: Int[Tensor, "batch length"] | Float[Tensor, "batch *size"],
        mask: Bool[Tensor, "batch length"] | None = None,
        *,
        token_types: Int[Tensor, "batch length"] | None = None,
        positions: Int[Tensor, "#batch length"] | None = None,
        lengths: Sequence[int] | None = None,
        leading: Int[Tensor, " rows"] | None = None,
        targets: Targets | None = None,
    ) -> Float[Tensor, "*rows_length_outputs"]:
        """Logits.

        Args:
            tokens: token ids, images, or frames of sounds.
            mask: True at real tokens or frames; None: all are real.
            token_types: the type of each token, if the embedding has types; None: type 0.
            positions: the place of each token; None: in their order.
            lengths: of the documents that ``tokens`` is one packed row of, each read as if it stood alone; ``mask`` and
                ``positions`` say nothing then. None: nothing is packed.
            leading: see ``Stack.forward``.
            targets: what should be answered, for the sum of its losses in place of logits; None: logits.
        """
        if token_types is None:
            x, mask = self.read(self.embedding, tokens, mask)
        else:
            x = self.embedding(tokens, token_types)
        documents = None if lengths is None else Documents(lengths, tokens.device)
        states = self.encoder(x, mask=mask, positions=positions, documents=documents, leading=leading)
        return self.answer(states, mask, documents, targets)
