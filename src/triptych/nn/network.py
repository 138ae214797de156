"""What the three architectures have in common."""

from typing import ClassVar

from torch import nn

from triptych.nn.embedding import Embedding
from triptych.nn.head import Head


class Network(nn.Module):
    """An embedding on the way in and a head on the way out; perhaps they share their matrix (Press and Wolf 2017).

    Args:
        embedding: of the tokens.
        head: of the last states.
        tie_output: whether the head's matrix is the token table.

    Raises:
        ValueError: a tie, but the head's outputs are not the vocabulary.
    """

    architecture: ClassVar[str]

    def __init__(self, *, embedding: Embedding, head: Head, tie_output: bool) -> None:
        super().__init__()
        self.embedding, self.head = embedding, head
        if not tie_output:
            return
        if head.output.weight.shape != embedding.tokens.weight.shape:
            raise ValueError(
                f"model.tie_output=true: the head has {head.output.out_features} outputs, "
                f"the vocabulary {embedding.tokens.num_embeddings} tokens; set model.tie_output=false"
            )
        head.output.weight = embedding.tokens.weight
