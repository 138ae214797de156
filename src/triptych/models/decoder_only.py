"""The decoder by itself: every position sees only what comes before it (GPT's shape)."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from triptych.models.generation.continuation import Continuation, Writer, count_real
from triptych.models.generation.step import Steps
from triptych.nn import Documents, Head, Stack, Targets
from triptych.nn.network import Inputs


class DecoderOnly(Writer):
    """head(decoder(embedding(tokens))) with a causal decoder. Radford et al. 2018, section 3.1.

    Args:
        embedding: of the tokens, the patches of an image, or the frames of a sound.
        decoder: a causal stack without cross-attention.
        head: the next token at each position, or classes of the last position.
        tie_output: whether the head's matrix is the token table.
        source_embedding: of what is given before the text and is no text: frames of a sound, patches of an image; None:
            nothing is.

    Raises:
        ValueError: a stack that is not causal, or a tie of matrices of different shapes.
    """

    architecture: ClassVar[str] = "decoder_only"
    stack_names: ClassVar[tuple[str, ...]] = ("decoder",)
    is_causal: ClassVar[bool] = True
    """Whether the stack itself hides what follows a position."""

    def __init__(
        self,
        *,
        embedding: Inputs,
        decoder: Stack,
        head: Head,
        tie_output: bool = False,
        source_embedding: Inputs | None = None,
    ) -> None:
        if decoder.has_cross_attention:
            raise ValueError("model.decoder.cross_attention=true: no memory to look at; EncoderDecoder has one")
        super().__init__(embedding=embedding, stacks=(decoder,), head=head, tie_output=tie_output)
        if source_embedding is not None and source_embedding.d_model != embedding.d_model:
            raise ValueError(
                f"model.source_embedding.d_model={source_embedding.d_model} beside d_model={embedding.d_model}: both "
                "share one width"
            )
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
        self.decoder, self.steps, self.source_embedding = decoder, Steps(), source_embedding

    @property
    def embeddings(self) -> tuple[Inputs, ...]:
        return (self.embedding,) if self.source_embedding is None else (self.embedding, self.source_embedding)

    def forward(
        self,
        tokens: Int[Tensor, "batch length"] | Float[Tensor, "batch *size"],
        mask: Bool[Tensor, "batch length"] | None = None,
        *,
        source: Float[Tensor, "batch *size"] | None = None,
        source_mask: Bool[Tensor, "batch frames"] | None = None,
        lengths: Sequence[int] | None = None,
        leading: Int[Tensor, " rows"] | None = None,
        targets: Targets | None = None,
    ) -> Float[Tensor, "*rows_length_outputs"]:
        """Logits.

        Args:
            tokens: token ids, images, or frames of sounds.
            mask: True at real tokens; None: all are real. Padding on the right needs no mask, since no position sees
                what follows it (a pooled head does need it, to find the last real token).
            source: what is given before the text, frames or an image; None: nothing is. There are no answers to it.
            source_mask: True at real frames; None: all are real.
            lengths: of the documents that ``tokens`` is one packed row of, each read as if it stood alone; ``mask``
                says nothing then. None: nothing is packed.
            leading: see ``Stack.forward``.
            targets: what should be answered, for the sum of its losses in place of logits; None: logits.
        """
        documents = None if lengths is None else Documents(lengths, tokens.device)
        x, mask = self.read(self.embedding, tokens, mask)
        length = x.shape[1]
        x, whole = preceded(*self.read_before(source, source_mask), x, mask)
        positions = None if whole is None else count_real(whole)
        states = self.decoder(x, mask=whole, positions=positions, documents=documents, leading=leading)
        return self.answer(states[:, -length:], mask, documents, targets)

    def read_before(
        self, source: Float[Tensor, "batch *size"] | None, mask: Bool[Tensor, "batch frames"] | None
    ) -> tuple[Float[Tensor, "batch given d_model"] | None, Bool[Tensor, "batch given"] | None]:
        """The vectors of what is given before the text, and True at the real ones, which come last: what is between a
        sound and its text would put them apart. None: nothing is given; all are real.

        Args:
            mask: True at real frames, which come first; None: all are real.
        """
        if source is None:
            return None, None
        assert self.source_embedding is not None
        x, real = self.read(self.source_embedding, source, mask)
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
        leading: Int[Tensor, " batch"] | None = None,
        source: Float[Tensor, "batch *size"] | None = None,
        source_mask: Bool[Tensor, "batch frames"] | None = None,
    ) -> Continuation:
        """Starts decoding: the result, called with the prompt and then with each new token, gives the next logits.

        Args:
            mask: True at the real tokens of the prompts, which are padded on the left; None: no padding.
            capacity: the most positions of the text, prompt included.
            leading: see ``Stack.forward``.
            source: see ``forward``; prompts must have no padding then.
            source_mask: see ``forward``.
        """
        before, real = self.read_before(source, source_mask)
        if before is not None:
            assert mask is None
            mask, capacity = real, capacity + before.shape[1]
        return Continuation(self, capacity=capacity, mask=mask, leading=leading, before=before)


def preceded(
    before: Float[Tensor, "batch given d_model"] | None,
    before_mask: Bool[Tensor, "batch given"] | None,
    x: Float[Tensor, "batch length d_model"],
    mask: Bool[Tensor, "batch length"] | None,
) -> tuple[Float[Tensor, "batch all d_model"], Bool[Tensor, "batch all"] | None]:
    """Two sequences, one behind the other, and their masks."""
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
