"""The full Transformer: an encoder reads the source, a decoder writes the target and looks at the source."""

from collections.abc import Sequence
from typing import ClassVar

from jaxtyping import Bool, Float, Int
from torch import Tensor

from triptych.models.generation.continuation import Continuation, Writer
from triptych.models.generation.step import Steps
from triptych.nn import Documents, Embedding, Head, PatchEmbedding, Stack, Targets
from triptych.nn.network import Inputs


class EncoderDecoder(Writer):
    """head(decoder(embedding(tokens), memory)), memory = encoder(embedding(source)). Vaswani et al. 2017, section 3.

    Args:
        embedding: of the tokens of both sides, or with a ``source_embedding`` of the decoder's.
        encoder: a stack that is not causal.
        decoder: a causal stack with cross-attention.
        head: the next token at each position, or classes of the last position.
        tie_output: whether the head's matrix is the token table.
        source_embedding: of the tokens of the source, if the encoder has a table of its own (T5Gemma, Zhang et al.
            2025), or of what is no text (frames of sounds: Whisper, Radford et al. 2022; patches of images); None:
            ``embedding``.

    Raises:
        ValueError: a stack of the wrong kind, parts of different widths, or a tie of matrices of different shapes.
    """

    architecture: ClassVar[str] = "full"
    stack_names: ClassVar[tuple[str, ...]] = ("encoder", "decoder")

    def __init__(
        self,
        *,
        embedding: Embedding,
        encoder: Stack,
        decoder: Stack,
        head: Head,
        tie_output: bool = False,
        source_embedding: Inputs | None = None,
    ) -> None:
        super().__init__(embedding=embedding, stacks=(encoder, decoder), head=head, tie_output=tie_output)
        if source_embedding is not None and source_embedding.d_model != embedding.d_model:
            raise ValueError(
                f"model.source_embedding.d_model={source_embedding.d_model} beside d_model={embedding.d_model}: both "
                "tables share one width"
            )
        if encoder.causal:
            raise ValueError("model.encoder.causal=true: an encoder sees both sides")
        if encoder.has_cross_attention:
            raise ValueError("model.encoder.cross_attention=true: there is no memory to look at")
        if not decoder.causal:
            raise ValueError("model.decoder.causal=false: a decoder must not see the future")
        if not decoder.has_cross_attention:
            raise ValueError("model.decoder.cross_attention=false: the decoder of the full model looks at the encoder")
        if isinstance(source_embedding, PatchEmbedding):
            source_embedding.check_room(encoder.room, "encoder")
        self.encoder, self.decoder, self.steps = encoder, decoder, Steps()
        self.source_embedding = source_embedding

    @property
    def embeddings(self) -> tuple[Inputs, ...]:
        return (self.embedding,) if self.source_embedding is None else (self.embedding, self.source_embedding)

    @property
    def room(self) -> int | None:
        """See ``Network``; of one whose encoder reads no text, the positions of the decoder's."""
        reads_text = isinstance(self.source_embedding, Embedding | None)
        return super().room if reads_text else self.decoder.room

    def forward(
        self,
        source: Int[Tensor, "batch source"] | Float[Tensor, "batch *size"],
        tokens: Int[Tensor, "batch length"],
        source_mask: Bool[Tensor, "batch source"] | None = None,
        mask: Bool[Tensor, "batch length"] | None = None,
        *,
        source_lengths: Sequence[int] | None = None,
        lengths: Sequence[int] | None = None,
        leading: Int[Tensor, " rows"] | None = None,
        targets: Targets | None = None,
    ) -> Float[Tensor, "*rows_length_outputs"]:
        """Logits of the decoder (teacher forcing: ``tokens`` are the target, shifted by one).

        Args:
            source: what the encoder reads.
            tokens: what the decoder reads.
            source_mask: True at real tokens or frames of the source; None: all are real, as of images.
            mask: True at real tokens of the decoder. Padding on the right needs none, but for a pooled head.
            source_lengths: of the documents that ``source`` is one packed row of; masks say nothing then. None: nothing
                is packed.
            lengths: the same of ``tokens``: document i looks at document i of the source.
            leading: see ``Stack.forward``; of the source.
            targets: what should be answered, for the sum of its losses in place of logits; None: logits.
        """
        sources = None if source_lengths is None else Documents(source_lengths, source.device)
        documents = None if lengths is None else Documents(lengths, tokens.device)
        memory, memory_mask = self.encode(source, source_mask, sources, leading)
        states = self.decoder(
            self.embedding(tokens),
            mask=mask,
            memory=memory,
            memory_mask=memory_mask,
            documents=documents,
            memory_documents=sources,
        )
        return self.answer(states, mask, documents, targets)

    def encode(
        self,
        source: Int[Tensor, "batch source"] | Float[Tensor, "batch *size"],
        source_mask: Bool[Tensor, "batch source"] | None = None,
        documents: Documents | None = None,
        leading: Int[Tensor, " rows"] | None = None,
    ) -> tuple[Float[Tensor, "batch memory d_model"], Bool[Tensor, "batch memory"] | None]:
        """The memory, that is the encoder's states of the source, and True at its real positions; None: all are.

        Args:
            source_mask: True at real tokens or frames of the source; None: all are real, as of images.
            documents: what ``source`` is one packed row of; None: nothing is packed.
            leading: see ``Stack.forward``.
        """
        x, mask = self.read(self.source_embedding or self.embedding, source, source_mask)
        return self.encoder(x, mask=mask, documents=documents, leading=leading), mask

    def continuation(
        self,
        source: Int[Tensor, "batch source"] | Float[Tensor, "batch *size"],
        source_mask: Bool[Tensor, "batch source"] | None,
        *,
        capacity: int,
    ) -> Continuation:
        """Reads the source and starts decoding: the result, called with the start token and then with each new token,
        gives the next logits.

        Args:
            source_mask: True at real tokens or frames of the source; None: all are real, as of images.
            capacity: the most positions of the decoder.
        """
        memory, memory_mask = self.encode(source, source_mask)
        return Continuation(self, capacity=capacity, memory=memory, memory_mask=memory_mask)
