"""The base class of the architectures.

Tested by tests/models/test_model_parameters.py and tests/nn/test_initialization.py.
"""

import hashlib
from collections.abc import Sequence
from typing import ClassVar, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from triptych.nn.embedding import Embedding, PatchEmbedding
from triptych.nn.frames import FrameEmbedding
from triptych.nn.head import Head
from triptych.nn.kernels.cross_entropy import Targets
from triptych.nn.packing import PackedLayout
from triptych.nn.stack import Stack

Inputs: TypeAlias = Embedding | PatchEmbedding | FrameEmbedding
"""The embedding of tokens, image patches or audio frames."""


class Network(nn.Module):
    """A network with an embedding, stacks and a head, which may share the embedding's matrix (Press and Wolf 2017).

    Args:
        embedding: embeds the tokens, the patches of an image, or the frames of an audio clip.
        stacks: stacks between embedding and head.
        head: maps the last states to outputs.
        tie_word_embeddings: whether the head's matrix is the token table.

    Raises:
        ValueError: the widths of the parts differ, the outputs of a tied head are not the vocabulary, or the number of
            positions is not that of the patches.
    """

    architecture: ClassVar[str]
    stack_names: ClassVar[tuple[str, ...]]
    """Attribute names of the stacks, in the order of ``stacks``; the stack that reads the source is first."""

    def __init__(self, *, embedding: Inputs, stacks: Sequence[Stack], head: Head, tie_word_embeddings: bool) -> None:
        super().__init__()
        check_widths(embedding, stacks, head)
        self.embedding, self.stacks, self.head = embedding, tuple(stacks), head
        if isinstance(embedding, PatchEmbedding):
            embedding.check_max_positions(self.max_positions, self.stack_names[-1])
        if not tie_word_embeddings:
            return
        if not isinstance(embedding, Embedding):
            what = "patches" if isinstance(embedding, PatchEmbedding) else "frames"
            raise ValueError(
                f"model.tie_word_embeddings=true: {what} have no table of tokens; set model.tie_word_embeddings=false"
            )
        if head.output.weight.shape != embedding.tokens.weight.shape:
            raise ValueError(
                f"model.tie_word_embeddings=true: the head has {head.output.out_features} outputs, "
                f"the vocabulary {embedding.tokens.num_embeddings} tokens; set model.tie_word_embeddings=false"
            )
        head.output.weight = embedding.tokens.weight

    def apply_head(
        self,
        states: Float[Tensor, "batch length d_model"],
        mask: Bool[Tensor, "batch length"] | None,
        documents: PackedLayout | None,
        targets: Targets | None,
    ) -> Float[Tensor, "*rows_length_outputs"]:
        """Computes logits from the last states, or losses if there are targets.

        Args:
            states: states of the last layer.
            mask: True at non-padding positions; None: no padding.
            documents: the documents if ``states`` is one packed row; None: it is not packed.
            targets: labels to compute losses of; None: returns logits.
        """
        answered: Tensor = self.head(states, mask, documents) if targets is None else self.head.loss(states, targets)
        return answered

    @property
    def embeddings(self) -> tuple[Inputs, ...]:
        """All embeddings: one, unless an architecture has more."""
        return (self.embedding,)

    @property
    def heads(self) -> tuple[Head, ...]:
        """All heads: one, unless an architecture has more."""
        return (self.head,)

    def compile_parts(self, *, dynamic: bool) -> None:
        """Compiles the blocks and the losses with torch.compile for training.

        Args:
            dynamic: whether one compiled program serves batches of all shapes; otherwise each shape has its own.
        """
        for stack in self.stacks:
            stack.compile_blocks(dynamic=dynamic)
        for head in self.heads:
            head.compile_loss()

    @property
    def reads_source(self) -> bool:
        """Whether the network has a source in addition to the text: for an encoder, or before the text."""
        return len(self.stacks) > 1 or len(self.embeddings) > 1

    @property
    def image_shape(self) -> tuple[int, int, int] | None:
        """Channels, height and width of input images; None: no images."""
        return next((part.image_shape for part in self.embeddings if isinstance(part, PatchEmbedding)), None)

    def embed(
        self,
        embedding: Inputs,
        given: Int[Tensor, "batch length"] | Float[Tensor, "batch *size"],
        mask: Bool[Tensor, "batch length"] | None,
    ) -> tuple[Float[Tensor, "batch positions d_model"], Bool[Tensor, "batch positions"] | None]:
        """Embeds an input; returns the vectors and a mask that is True at non-padding ones (None: no padding).

        Args:
            embedding: one of the network's embeddings.
            given: tokens, images, or audio frames.
            mask: True at non-padding tokens or frames; None: no padding.
        """
        if isinstance(embedding, FrameEmbedding):
            return embedding(given, mask), None if mask is None else embedding.positions(mask)
        return embedding(given), mask

    @property
    def num_token_types(self) -> int:
        """Number of token types."""
        types = self.embedding.token_types if isinstance(self.embedding, Embedding) else None
        return 0 if types is None else types.num_embeddings

    @property
    def max_positions(self) -> int | None:
        """Maximum number of positions that the stacks support; None: no limit."""
        return min((stack.max_positions for stack in self.stacks if stack.max_positions is not None), default=None)


def check_widths(embedding: Inputs, stacks: Sequence[Stack], head: Head) -> None:
    """Raises an error if the widths of the parts differ."""
    width = embedding.d_model
    if others := {head.output.in_features, *(stack.d_model for stack in stacks)} - {width}:
        raise ValueError(f"d_model={others.pop()} and d_model={width}: embedding, stacks and head must have one width")


def count_positions(embedding: Inputs, given: Tensor) -> int:
    """Returns the number of vectors per row of an input.

    Args:
        given: tokens, images, or audio frames.
    """
    if isinstance(embedding, PatchEmbedding):
        return embedding.length
    return embedding.count(given.shape[1]) if isinstance(embedding, FrameEmbedding) else given.shape[1]


def weights_sha256(network: nn.Module) -> str:
    """Returns a hash that is equal for bitwise equal weights."""
    digest = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
