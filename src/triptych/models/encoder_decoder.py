"""The encoder-decoder Transformer: the decoder generates the target and attends to the encoded source.

Tested by tests/models/test_model_properties.py and tests/models/test_model_errors.py.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from triptych.models.generation.decode_step import DecodeStepPool
from triptych.models.generation.decoding_copy import DecodingCopies
from triptych.models.generation.incremental_decoder import GenerativeNetwork, IncrementalDecoder
from triptych.nn import Embedding, Head, PackedLayout, PatchEmbedding, Stack, Targets
from triptych.nn.network import Inputs

Memory = Literal["all", "last"]


class EncoderDecoder(GenerativeNetwork):
    """head(decoder(embedding(tokens), memory)), memory = encoder(embedding(source)). Vaswani et al. 2017, section 3.

    Args:
        embedding: embeds the tokens of both sides, or only the decoder's if there is a ``source_embedding``.
        encoder: a non-causal stack.
        decoder: a causal stack with cross-attention.
        head: predicts the next token at each position, or the class at the last position.
        tie_word_embeddings: whether the head's matrix is the token table.
        source_embedding: embeds the source: tokens with a separate table (T5Gemma, Zhang et al. 2025), audio frames
            (Whisper, Radford et al. 2022) or image patches; None: ``embedding``.
        memory: all states of the encoder, or only the last one, a vector of fixed size (Sutskever et al. 2014; see
            ``last_states``).

    Raises:
        ValueError: a stack has the wrong kind, the widths differ, or the tied matrices differ in shape.
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
        tie_word_embeddings: bool = False,
        source_embedding: Inputs | None = None,
        memory: Memory = "all",
    ) -> None:
        super().__init__(
            embedding=embedding, stacks=(encoder, decoder), head=head, tie_word_embeddings=tie_word_embeddings
        )
        self.check_source_width(source_embedding)
        if encoder.causal:
            raise ValueError("model.encoder.causal=true: an encoder is bidirectional")
        if encoder.has_cross_attention:
            raise ValueError("model.encoder.cross_attention=true: this model has no encoder output to attend to")
        if not decoder.causal:
            raise ValueError("model.decoder.causal=false: a decoder must be causal")
        if not decoder.has_cross_attention:
            raise ValueError("model.decoder.cross_attention=false: the decoder of a full model attends to the encoder")
        if isinstance(source_embedding, PatchEmbedding):
            source_embedding.check_max_positions(encoder.max_positions, "encoder")
        self.encoder, self.decoder, self.source_embedding = encoder, decoder, source_embedding
        self.memory = memory
        self.decode_steps, self.decoding_copies = DecodeStepPool(), DecodingCopies()

    @property
    def max_positions(self) -> int | None:
        """The number of positions; see ``Network``. If the encoder reads no text, the decoder's alone."""
        reads_text = isinstance(self.source_embedding, Embedding | None)
        return super().max_positions if reads_text else self.decoder.max_positions

    def forward(
        self,
        source: Int[Tensor, "batch source"] | Float[Tensor, "batch *size"],
        tokens: Int[Tensor, "batch length"],
        source_mask: Bool[Tensor, "batch source"] | None = None,
        mask: Bool[Tensor, "batch length"] | None = None,
        *,
        source_lengths: Sequence[int] | None = None,
        lengths: Sequence[int] | None = None,
        num_global_tokens: Int[Tensor, " rows"] | None = None,
        targets: Targets | None = None,
    ) -> Float[Tensor, "*rows_length_outputs"]:
        """Computes the logits of the decoder (teacher forcing: ``tokens`` are the target, shifted by one).

        Args:
            source: input of the encoder.
            tokens: input of the decoder.
            source_mask: True at non-padding tokens or frames of the source; None: no padding, as with images.
            mask: True at non-padding tokens of the decoder. Right padding needs it only for a pooled head.
            source_lengths: lengths of the documents if ``source`` is one packed row; masks are then ignored. None: not
                packed.
            lengths: the same for ``tokens``; document i attends to document i of the source.
            num_global_tokens: see ``Stack.forward``; applies to the source.
            targets: if given, returns the sum of the losses of these targets instead of logits.
        """
        sources = None if source_lengths is None else PackedLayout(source_lengths, source.device)
        documents = None if lengths is None else PackedLayout(lengths, tokens.device)
        memory, memory_mask = self.encode(source, source_mask, sources, num_global_tokens)
        if self.memory == "last" and source_lengths is not None:
            sources = PackedLayout([1] * len(source_lengths), source.device)
        states = self.decoder(
            self.embedding(tokens),
            mask=mask,
            memory=memory,
            memory_mask=memory_mask,
            documents=documents,
            memory_documents=sources,
        )
        return self.apply_head(states, mask, documents, targets)

    def encode(
        self,
        source: Int[Tensor, "batch source"] | Float[Tensor, "batch *size"],
        source_mask: Bool[Tensor, "batch source"] | None = None,
        documents: PackedLayout | None = None,
        num_global_tokens: Int[Tensor, " rows"] | None = None,
    ) -> tuple[Float[Tensor, "batch memory d_model"], Bool[Tensor, "batch memory"] | None]:
        """Returns the memory (the encoder's states) and a mask, True at non-padding positions (None: no padding).

        Args:
            source_mask: True at non-padding tokens or frames of the source; None: no padding, as with images.
            documents: the documents if ``source`` is one packed row; None: it is not packed.
            num_global_tokens: see ``Stack.forward``.
        """
        x, mask = self.embed(self.source_embedding or self.embedding, source, source_mask)
        states = self.encoder(x, mask=mask, documents=documents, num_global_tokens=num_global_tokens)
        if self.memory == "all":
            return states, mask
        if documents is not None:
            states, mask = documents.padded(states), documents.mask
        last = last_states(states, mask, in_both_directions=self.encoder.is_recurrent)
        return last if documents is None else last.transpose(0, 1), None

    def continuation(
        self,
        source: Int[Tensor, "batch source"] | Float[Tensor, "batch *size"],
        source_mask: Bool[Tensor, "batch source"] | None,
        *,
        capacity: int,
    ) -> IncrementalDecoder:
        """Encodes the source and starts decoding.

        Call the result with the start token, then with each new token, to get the next logits.

        Args:
            source_mask: True at non-padding tokens or frames of the source; None: no padding, as with images.
            capacity: maximum number of decoder positions.
        """
        memory, memory_mask = self.encode(source, source_mask)
        return IncrementalDecoder(self, capacity=capacity, memory=memory, memory_mask=memory_mask)


def last_states(
    states: Float[Tensor, "batch length d_model"],
    mask: Bool[Tensor, "batch length"] | None,
    *,
    in_both_directions: bool,
) -> Float[Tensor, "batch 1 d_model"]:
    """Returns the state of the last non-padding position.

    Args:
        mask: True at non-padding positions, which come first; None: no padding.
        in_both_directions: whether the second half of each vector was computed from the end, and so is taken from the
            first position.
    """
    if mask is None:
        last = states[:, -1:]
    else:
        ends = (mask.sum(1) - 1).clamp(min=0)
        last = states.gather(1, ends[:, None, None].expand(-1, 1, states.shape[2]))
    if not in_both_directions:
        return last
    half = states.shape[2] // 2
    return torch.cat((last[..., :half], states[:, :1, half:]), -1)
