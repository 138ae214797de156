"""Tokens to vectors. (Where a token stands is the stack's affair.)"""

from jaxtyping import Float, Int
from torch import Tensor, nn


class Embedding(nn.Module):
    """scale E[token] + T[type].

    Vaswani et al. 2017, section 3.4; types: Devlin et al. 2019, section 3.

    Args:
        vocab_size: number of tokens.
        d_model: width.
        scale_embedding: scale = sqrt(d_model) if true, else 1.
        num_token_types: rows of T, such as the two texts of a pair; 0: there is no T.
    """

    def __init__(
        self, *, vocab_size: int, d_model: int, scale_embedding: bool = True, num_token_types: int = 0
    ) -> None:
        super().__init__()
        self.d_model = d_model
        self.scale = d_model**0.5 if scale_embedding else 1.0
        self.tokens = nn.Embedding(vocab_size, d_model)
        self.token_types = nn.Embedding(num_token_types, d_model) if num_token_types else None
        nn.init.normal_(self.tokens.weight, std=d_model**-0.5)
        if self.token_types is not None:
            nn.init.normal_(self.token_types.weight, std=d_model**-0.5)

    def forward(
        self, tokens: Int[Tensor, "batch length"], token_types: Int[Tensor, "batch length"] | None = None
    ) -> Float[Tensor, "batch length d_model"]:
        """The vectors of these tokens.

        Args:
            tokens: token ids.
            token_types: the type of each token; None: all are of type 0 (whose vector is added, if there are types).
        """
        x: Tensor = self.scale * self.tokens(tokens)
        if self.token_types is not None:
            x = x + (self.token_types.weight[0] if token_types is None else self.token_types(token_types))
        return x
