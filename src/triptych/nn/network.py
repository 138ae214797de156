"""What the three architectures have in common."""

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
from triptych.nn.packing import Documents
from triptych.nn.stack import Stack

Inputs: TypeAlias = Embedding | PatchEmbedding | FrameEmbedding
"""What makes vectors of tokens, of the patches of an image, or of the frames of a sound."""


class Network(nn.Module):
    """An embedding on the way in and a head on the way out; perhaps they share their matrix (Press and Wolf 2017).

    Args:
        embedding: of the tokens, the patches of an image, or the frames of a sound.
        stacks: between the two.
        head: of the last states.
        tie_output: whether the head's matrix is the token table.

    Raises:
        ValueError: parts of different widths, a tie, but the head's outputs are not the vocabulary, or more or fewer
            positions than patches need.
    """

    architecture: ClassVar[str]
    stack_names: ClassVar[tuple[str, ...]]
    """Of the attributes that are its stacks, in the order of ``stacks``: what reads a source comes first."""

    def __init__(self, *, embedding: Inputs, stacks: Sequence[Stack], head: Head, tie_output: bool) -> None:
        super().__init__()
        check_widths(embedding, stacks, head)
        self.embedding, self.stacks, self.head = embedding, tuple(stacks), head
        if isinstance(embedding, PatchEmbedding):
            embedding.check_room(self.room, self.stack_names[-1])
        if not tie_output:
            return
        if not isinstance(embedding, Embedding):
            what = "patches" if isinstance(embedding, PatchEmbedding) else "frames"
            raise ValueError(f"model.tie_output=true: {what} have no table of tokens; set model.tie_output=false")
        if head.output.weight.shape != embedding.tokens.weight.shape:
            raise ValueError(
                f"model.tie_output=true: the head has {head.output.out_features} outputs, "
                f"the vocabulary {embedding.tokens.num_embeddings} tokens; set model.tie_output=false"
            )
        head.output.weight = embedding.tokens.weight

    def answer(
        self,
        states: Float[Tensor, "batch length d_model"],
        mask: Bool[Tensor, "batch length"] | None,
        documents: Documents | None,
        targets: Targets | None,
    ) -> Float[Tensor, "*rows_length_outputs"]:
        """Logits of the last states, or with targets their losses.

        Args:
            states: of the last layer.
            mask: True at real positions; None: all are real.
            documents: what ``states`` is one packed row of; None: nothing is packed.
            targets: what should be answered; None: logits.
        """
        answered: Tensor = self.head(states, mask, documents) if targets is None else self.head.loss(states, targets)
        return answered

    @property
    def embeddings(self) -> tuple[Inputs, ...]:
        """All of them: one, unless an architecture has more."""
        return (self.embedding,)

    @property
    def heads(self) -> tuple[Head, ...]:
        """All of them: one, unless an architecture has more."""
        return (self.head,)

    def compile_parts(self, *, dynamic: bool) -> None:
        """From now on training runs the blocks and the losses as torch.compile translates them.

        Args:
            dynamic: whether one program serves batches of all shapes; else each shape has its own.
        """
        for stack in self.stacks:
            stack.compile_blocks(dynamic=dynamic)
        for head in self.heads:
            head.compile_loss()

    @property
    def reads_source(self) -> bool:
        """Whether something else is given beside the text: to an encoder, or before it."""
        return len(self.stacks) > 1 or len(self.embeddings) > 1

    @property
    def image_shape(self) -> tuple[int, int, int] | None:
        """Channels, height and width of the images that it reads; None: it reads none."""
        return next((part.image_shape for part in self.embeddings if isinstance(part, PatchEmbedding)), None)

    def read(
        self,
        embedding: Inputs,
        given: Int[Tensor, "batch length"] | Float[Tensor, "batch *size"],
        mask: Bool[Tensor, "batch length"] | None,
    ) -> tuple[Float[Tensor, "batch positions d_model"], Bool[Tensor, "batch positions"] | None]:
        """The vectors of what is given, and True at the real ones; None: all are real.

        Args:
            embedding: one of the network's.
            given: tokens, images, or the frames of sounds.
            mask: True at real tokens or frames; None: all are real.
        """
        if isinstance(embedding, FrameEmbedding):
            return embedding(given, mask), None if mask is None else embedding.positions(mask)
        return embedding(given), mask

    @property
    def num_token_types(self) -> int:
        """The types of tokens that have a vector each."""
        types = self.embedding.token_types if isinstance(self.embedding, Embedding) else None
        return 0 if types is None else types.num_embeddings

    @property
    def room(self) -> int | None:
        """The positions that the stacks have a vector for; None: no limit."""
        return min((stack.room for stack in self.stacks if stack.room is not None), default=None)


def check_widths(embedding: Inputs, stacks: Sequence[Stack], head: Head) -> None:
    """Refuses parts of different widths."""
    width = embedding.d_model
    if others := {head.output.in_features, *(stack.d_model for stack in stacks)} - {width}:
        raise ValueError(f"d_model={others.pop()} beside d_model={width}: embedding, stacks and head share one width")


def count_positions(embedding: Inputs, given: Tensor) -> int:
    """The vectors that are made of each row of what is given.

    Args:
        given: tokens, images, or frames of sounds.
    """
    if isinstance(embedding, PatchEmbedding):
        return embedding.length
    return embedding.count(given.shape[1]) if isinstance(embedding, FrameEmbedding) else given.shape[1]


def weights_sha256(network: nn.Module) -> str:
    """Equal for bitwise equal weights."""
    digest = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
