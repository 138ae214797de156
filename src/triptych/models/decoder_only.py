"""The decoder-only model: every position attends only to itself and earlier positions (as in GPT).

Tested by tests/models/test_model_properties.py, tests/models/test_model_errors.py,
tests/models/test_images_before_text.py and tests/models/test_sounds.py.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from triptych.models.generation.decode_step import DecodeStepPool
from triptych.models.generation.decoding_copy import DecodingCopies
from triptych.models.generation.incremental_decoder import GenerativeNetwork, IncrementalDecoder, count_real
from triptych.nn import Head, PackedLayout, Stack, Targets
from triptych.nn.network import Inputs


class DecoderOnly(GenerativeNetwork):
    """head(decoder(embedding(tokens))) with a causal decoder. Radford et al. 2018, section 3.1.

    Args:
        embedding: embeds the tokens, the patches of an image, or the frames of an audio clip.
        decoder: a causal stack without cross-attention.
        head: predicts the next token at each position, or the class at the last position.
        tie_word_embeddings: whether the head's matrix is the token table.
        source_embedding: embeds a non-text input before the text: audio frames or image patches; None: no such input.

    Raises:
        ValueError: the stack is not causal, or the tied matrices differ in shape.
    """

    architecture: ClassVar[str] = "decoder_only"
    stack_names: ClassVar[tuple[str, ...]] = ("decoder",)
    is_causal: ClassVar[bool] = True
    """Whether the stack masks the positions after each query."""

    def __init__(
        self,
        *,
        embedding: Inputs,
        decoder: Stack,
        head: Head,
        tie_word_embeddings: bool = False,
        source_embedding: Inputs | None = None,
    ) -> None:
        if decoder.has_cross_attention:
            raise ValueError(
                "model.decoder.cross_attention=true: a decoder-only model has no encoder output; use EncoderDecoder"
            )
        super().__init__(embedding=embedding, stacks=(decoder,), head=head, tie_word_embeddings=tie_word_embeddings)
        self.check_source_width(source_embedding)
        if decoder.causal != self.is_causal:
            reason = "a decoder must be causal" if self.is_causal else "attention within the prefix is bidirectional"
            other = "PrefixLM has a bidirectional prefix" if self.is_causal else "DecoderOnly is causal"
            raise ValueError(f"model.decoder.causal={str(decoder.causal).lower()}: {reason}; {other}")
        if not (self.is_causal or decoder.has_all_pairs):
            kind = decoder.layers[0].get_submodule("self_attention").choice
            raise ValueError(
                f"block/attention={kind} has no mask over pairs of positions, so attention within the prefix cannot "
                "be bidirectional; use model=decoder_only or full, or block/attention=multi_head"
            )
        self.decoder, self.source_embedding = decoder, source_embedding
        self.decode_steps, self.decoding_copies = DecodeStepPool(), DecodingCopies()

    def forward(
        self,
        tokens: Int[Tensor, "batch length"] | Float[Tensor, "batch *size"],
        mask: Bool[Tensor, "batch length"] | None = None,
        *,
        source: Float[Tensor, "batch *size"] | None = None,
        source_mask: Bool[Tensor, "batch frames"] | None = None,
        lengths: Sequence[int] | None = None,
        num_global_tokens: Int[Tensor, " rows"] | None = None,
        prefix: Int[Tensor, " rows"] | None = None,
        targets: Targets | None = None,
    ) -> Float[Tensor, "*rows_length_outputs"]:
        """Computes logits.

        Args:
            tokens: token ids, images, or audio frames.
            mask: True at non-padding tokens; None: no padding. Padding on the right needs no mask, since no position
                attends to later ones (but a pooled head needs it to find the last non-padding token).
            source: audio frames or an image before the text; None: there are none. The output has no logits for them.
            source_mask: True at non-padding frames; None: no padding.
            lengths: lengths of the documents if ``tokens`` is one packed row; each document is processed separately and
                ``mask`` is ignored. None: ``tokens`` is not packed.
            num_global_tokens: see ``Stack.forward``.
            prefix: number of leading tokens of each text that all of its positions attend to; None: each position
                attends to itself and earlier ones.
            targets: if given, returns the sum of the losses of these targets instead of logits.
        """
        documents = None if lengths is None else PackedLayout(lengths, tokens.device)
        x, mask = self.embed(self.embedding, tokens, mask)
        length = x.shape[1]
        x, whole = preceded(*self.read_before(source, source_mask), x, mask)
        positions = None if whole is None else count_real(whole)
        states = self.decoder(
            x, mask=whole, positions=positions, documents=documents, prefix=prefix, num_global_tokens=num_global_tokens
        )
        return self.apply_head(states[:, -length:], mask, documents, targets)

    def read_before(
        self, source: Float[Tensor, "batch *size"] | None, mask: Bool[Tensor, "batch frames"] | None
    ) -> tuple[Float[Tensor, "batch given d_model"] | None, Bool[Tensor, "batch given"] | None]:
        """Returns the vectors of the source and a mask that is True at the non-padding ones (None: no padding).

        Padding is moved to the front, so no gap separates the source from its text. Without a source both are None.

        Args:
            mask: True at non-padding frames, which come first; None: no padding.
        """
        if source is None:
            return None, None
        assert self.source_embedding is not None
        x, real = self.embed(self.source_embedding, source, mask)
        if real is None:
            return x, None
        length = x.shape[1]
        places = (torch.arange(length, device=x.device) + real.sum(1, keepdim=True)) % length
        return x.gather(1, places[..., None].expand_as(x)), real.gather(1, places)

    def continuation(
        self,
        mask: Bool[Tensor, "batch length"] | None,
        *,
        capacity: int,
        num_global_tokens: Int[Tensor, " batch"] | None = None,
        source: Float[Tensor, "batch *size"] | None = None,
        source_mask: Bool[Tensor, "batch frames"] | None = None,
    ) -> IncrementalDecoder:
        """Starts decoding: call the result with the prompt, then with each new token, to get the next logits.

        Args:
            mask: True at the non-padding tokens of the prompts, which are padded on the left; None: no padding.
            capacity: maximum number of text positions, including the prompt.
            num_global_tokens: see ``Stack.forward``.
            source: see ``forward``; with a source the prompts must not be padded.
            source_mask: see ``forward``.

        Raises:
            ValueError: padded prompts with a source.
        """
        before, real = self.read_before(source, source_mask)
        if before is not None:
            if mask is not None:
                raise ValueError("with a source the prompts must not be padded; expected mask=None")
            mask, capacity = real, capacity + before.shape[1]
        return IncrementalDecoder(
            self, capacity=capacity, mask=mask, num_global_tokens=num_global_tokens, before=before
        )


def preceded(
    before: Float[Tensor, "batch given d_model"] | None,
    before_mask: Bool[Tensor, "batch given"] | None,
    x: Float[Tensor, "batch length d_model"],
    mask: Bool[Tensor, "batch length"] | None,
) -> tuple[Float[Tensor, "batch all d_model"], Bool[Tensor, "batch all"] | None]:
    """Concatenates two sequences and their masks."""
    if before is None:
        return x, mask
    both = torch.cat((before, x), dim=1)
    if before_mask is None and mask is None:
        return both, None
    masks = [
        part.new_ones(part.shape[:2], dtype=torch.bool) if real is None else real
        for part, real in ((before, before_mask), (x, mask))
    ]
    return both, torch.cat(masks, dim=1)
