"""Two towers that map texts and their paired inputs to the same vector space (as in CLIP)."""

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from triptych.nn import Embedding, Head, Network, PatchEmbedding, Stack
from triptych.nn.network import Inputs, check_widths

LARGEST_SCALE = 100.0
"""The largest scale; training becomes unstable beyond it (Radford et al. 2021, section 2.5)."""


class DualEncoderBase(Network):
    """Two vectors, of a text and of its pair, such as an image; their dot product measures how well they match:

        u(head(stack(embedding(tokens)))) and u(source_head(source_stack(source_embedding(source))))

    with u(x) = sqrt(scale) x / |x|, so that the product is scale times the cosine. The scale (the inverse of the
    temperature) is trained, and at most 100. Radford et al. 2021, sections 2.3 to 2.5.

    Attributes:
        log_scale: the logarithm of the scale.

    Args:
        embedding: embeds the tokens.
        stack: encodes the text.
        head: pools the text's states and maps them into the common space.
        source_embedding: embeds the paired input: patches of an image, or frames of an audio clip.
        source_stack: encodes the paired input.
        source_head: pools the paired input's states and maps them into the common space.
        initial_scale: scale before training; 1 / 0.07 in CLIP.

    Raises:
        ValueError: the towers' output widths differ, a head does not pool, or the scale is out of range.
    """

    def __init__(
        self,
        embedding: Embedding,
        stack: Stack,
        head: Head,
        source_embedding: Inputs | None,
        source_stack: Stack,
        source_head: Head,
        initial_scale: float,
    ) -> None:
        if source_embedding is None:
            raise ValueError(
                "model.source_embedding=null: a dual encoder needs pairs of a text and an input; use data with both"
            )
        names = tuple(reversed(self.stack_names))
        for name, part in zip(names, (stack, source_stack), strict=True):
            if part.has_cross_attention:
                raise ValueError(f"model.{name}.cross_attention=true: this model has no encoder output to attend to")
        for name, pools in (("head", head), ("source_head", source_head)):
            if pools.pooling == "none":
                raise ValueError(
                    f"model.{name}.pooling=none: each tower outputs one vector; expected first, mean or last"
                )
        if (width := head.output.out_features) != (other := source_head.output.out_features):
            raise ValueError(
                f"model.source_head.num_outputs={other} and model.head.num_outputs={width}: both towers must "
                "have the same number of outputs"
            )
        if not 0 < initial_scale <= LARGEST_SCALE:
            raise ValueError(f"model.initial_scale={initial_scale}: expected more than 0, at most {LARGEST_SCALE:g}")
        super().__init__(embedding=embedding, stacks=(stack,), head=head, tie_word_embeddings=False)
        check_widths(source_embedding, [source_stack], source_head)
        if isinstance(source_embedding, PatchEmbedding):
            source_embedding.check_max_positions(source_stack.max_positions, names[1])
        self.stacks = (source_stack, stack)
        self.source_embedding, self.source_head = source_embedding, source_head
        self.log_scale = nn.Parameter(torch.tensor([math.log(initial_scale)]))  # FSDP shares no scalar

    @property
    def embeddings(self) -> tuple[Inputs, ...]:
        return self.embedding, self.source_embedding

    @property
    def heads(self) -> tuple[Head, ...]:
        return self.head, self.source_head

    @property
    def max_positions(self) -> int | None:
        """The positions of the text stack; see ``Network``."""
        return self.stacks[1].max_positions

    @property
    def scale(self) -> Float[Tensor, "1"]:
        """The factor that cosines are multiplied by."""
        scale: Tensor = _BoundedExp.apply(self.log_scale)  # type: ignore[no-untyped-call]
        return scale

    def forward(
        self,
        tokens: Int[Tensor, "batch length"],
        mask: Bool[Tensor, "batch length"] | None = None,
        *,
        source: Float[Tensor, "batch *size"],
        source_mask: Bool[Tensor, "batch frames"] | None = None,
    ) -> Float[Tensor, "batch 2 width"]:
        """Returns the vector of each text and that of its paired input.

        Args:
            mask: True at non-padding tokens; None: no padding.
            source: images, or audio frames.
            source_mask: True at non-padding frames; None: no padding.
        """
        return torch.stack((self.read_text(tokens, mask), self.read_source(source, source_mask)), dim=1)

    def read_text(
        self, tokens: Int[Tensor, "batch length"], mask: Bool[Tensor, "batch length"] | None = None
    ) -> Float[Tensor, "batch width"]:
        """Returns the vectors of texts.

        Args:
            mask: True at non-padding tokens; None: no padding.
        """
        x, mask = self.embed(self.embedding, tokens, mask)
        return self._scaled(self.head(self.stacks[1](x, mask=mask), mask))

    def read_source(
        self, source: Float[Tensor, "batch *size"], mask: Bool[Tensor, "batch frames"] | None = None
    ) -> Float[Tensor, "batch width"]:
        """Returns the vectors of images or audio clips.

        Args:
            mask: True at non-padding frames; None: no padding.
        """
        x, mask = self.embed(self.source_embedding, source, mask)
        return self._scaled(self.source_head(self.stacks[0](x, mask=mask), mask))

    def _scaled(self, vectors: Float[Tensor, "batch width"]) -> Float[Tensor, "batch width"]:
        """Rescales vectors to the length sqrt(scale), in float32 at least."""
        wide = torch.promote_types(vectors.dtype, torch.float32)
        return self.scale.to(wide).sqrt() * F.normalize(vectors.to(wide), dim=-1)


class _BoundedExp(torch.autograd.Function):
    """min(exp(x), LARGEST_SCALE). Beyond the bound the gradient is that at the bound if a step along it lowers x, else
    0. The gradient of a clamp is always 0 there, so a scale that a step took beyond the bound would stay there."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        exp = x.exp()
        y = exp.clamp(max=LARGEST_SCALE)
        ctx.save_for_backward(y, exp > LARGEST_SCALE)
        return y

    @staticmethod
    def backward(ctx: Any, *of_y: Tensor) -> Tensor:
        y, is_beyond = ctx.saved_tensors
        of_x: Tensor = of_y[0] * y
        return torch.where(is_beyond, of_x.clamp(min=0), of_x)


class DualEncoder(DualEncoderBase):
    """``DualEncoderBase`` with bidirectional attention in both.

    Args:
        embedding: embeds the tokens.
        encoder: encodes the text.
        head: see ``DualEncoderBase``.
        source_embedding: see ``DualEncoderBase``.
        source_encoder: encodes the paired input.
        source_head: see ``DualEncoderBase``.
        initial_scale: see ``DualEncoderBase``.

    Raises:
        ValueError: a stack is causal; or see ``DualEncoderBase``.
    """

    architecture: ClassVar[str] = "encoder_only"
    stack_names: ClassVar[tuple[str, ...]] = ("source_encoder", "encoder")

    def __init__(
        self,
        *,
        embedding: Embedding,
        encoder: Stack,
        head: Head,
        source_embedding: Inputs | None,
        source_encoder: Stack,
        source_head: Head,
        initial_scale: float = 1 / 0.07,
    ) -> None:
        super().__init__(embedding, encoder, head, source_embedding, source_encoder, source_head, initial_scale)
        for name, stack in (("encoder", encoder), ("source_encoder", source_encoder)):
            if stack.causal:
                raise ValueError(f"model.{name}.causal=true: an encoder is bidirectional; DualDecoder is causal")
        self.encoder, self.source_encoder = encoder, source_encoder


class DualDecoder(DualEncoderBase):
    """``DualEncoderBase`` with a causal stack for texts, as in CLIP (Radford et al. 2021, section 2.4).

    The other stack may be causal or, as CLIP's for images, bidirectional.

    Args:
        embedding: embeds the tokens.
        decoder: encodes the text; causal.
        head: see ``DualEncoderBase``.
        source_embedding: see ``DualEncoderBase``.
        source_decoder: encodes the paired input.
        source_head: see ``DualEncoderBase``.
        initial_scale: see ``DualEncoderBase``.

    Raises:
        ValueError: the stack for texts is not causal; or see ``DualEncoderBase``.
    """

    architecture: ClassVar[str] = "decoder_only"
    stack_names: ClassVar[tuple[str, ...]] = ("source_decoder", "decoder")

    def __init__(
        self,
        *,
        embedding: Embedding,
        decoder: Stack,
        head: Head,
        source_embedding: Inputs | None,
        source_decoder: Stack,
        source_head: Head,
        initial_scale: float = 1 / 0.07,
    ) -> None:
        super().__init__(embedding, decoder, head, source_embedding, source_decoder, source_head, initial_scale)
        if not decoder.causal:
            raise ValueError("model.decoder.causal=false: a decoder must be causal; DualEncoder is bidirectional")
        self.decoder, self.source_decoder = decoder, source_decoder
