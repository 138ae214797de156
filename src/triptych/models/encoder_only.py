"""The encoder-only model: every position attends to every other (as in BERT).

Tested by tests/models/test_model_properties.py and tests/models/test_model_errors.py.
"""

from collections.abc import Sequence
from typing import ClassVar

from jaxtyping import Bool, Float, Int
from torch import Tensor

from triptych.nn import Head, Network, PackedLayout, Stack, Targets
from triptych.nn.network import Inputs


class EncoderOnly(Network):
    """head(encoder(embedding(tokens))). Devlin et al. 2019, section 3; of images, Dosovitskiy et al. 2021, section 3.1.

    Args:
        embedding: embeds the tokens, the patches of an image, or the frames of an audio clip.
        encoder: a non-causal stack.
        head: predicts classes of the pooled text, or tags or masked tokens at each position.
        tie_word_embeddings: whether the head's matrix is the token table.

    Raises:
        ValueError: the stack is causal, or the tied matrices differ in shape.
    """

    architecture: ClassVar[str] = "encoder_only"
    stack_names: ClassVar[tuple[str, ...]] = ("encoder",)

    def __init__(self, *, embedding: Inputs, encoder: Stack, head: Head, tie_word_embeddings: bool = False) -> None:
        if encoder.has_cross_attention:
            raise ValueError("model.encoder.cross_attention=true: this model has no encoder output to attend to")
        super().__init__(embedding=embedding, stacks=(encoder,), head=head, tie_word_embeddings=tie_word_embeddings)
        if encoder.causal:
            raise ValueError("model.encoder.causal=true: an encoder is bidirectional; DecoderOnly is causal")
        self.encoder = encoder

    def forward(
        self,
        tokens: Int[Tensor, "batch length"] | Float[Tensor, "batch *size"],
        mask: Bool[Tensor, "batch length"] | None = None,
        *,
        token_types: Int[Tensor, "batch length"] | None = None,
        positions: Int[Tensor, "#batch length"] | None = None,
        lengths: Sequence[int] | None = None,
        num_global_tokens: Int[Tensor, " rows"] | None = None,
        targets: Targets | None = None,
    ) -> Float[Tensor, "*rows_length_outputs"]:
        """Computes logits.

        Args:
            tokens: token ids, images, or audio frames.
            mask: True at non-padding tokens or frames; None: no padding.
            token_types: type of each token, if the embedding has types; None: type 0.
            positions: position of each token; None: 0, 1, ...
            lengths: lengths of the documents if ``tokens`` is one packed row; each document is processed separately and
                ``mask`` and ``positions`` are ignored. None: ``tokens`` is not packed.
            num_global_tokens: see ``Stack.forward``.
            targets: if given, returns the sum of the losses of these targets instead of logits.
        """
        if token_types is None:
            x, mask = self.embed(self.embedding, tokens, mask)
        else:
            x = self.embedding(tokens, token_types)
        documents = None if lengths is None else PackedLayout(lengths, tokens.device)
        states = self.encoder(
            x, mask=mask, positions=positions, documents=documents, num_global_tokens=num_global_tokens
        )
        return self.apply_head(states, mask, documents, targets)
