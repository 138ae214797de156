"""Embeddings of tokens and of image patches. (Positions are added by the stack.)"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from triptych.nn.initialization import initialize_linear


class Embedding(nn.Module):
    """d scale E[token] + T[type], where in training d = 0 at random places, and 1 / (1 - token_dropout) at the others.

    Vaswani et al. 2017, section 3.4; types: Devlin et al. 2019, section 3; dropped tokens: Iyyer et al. 2015, section
    3.1.

    Args:
        scale_embedding: scale = sqrt(d_model) if true, else 1.
        num_token_types: rows of T, such as one for each text of a pair; 0: no T.
        token_dropout: probability of dropping a token's vector (its position stays).
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        d_model: int,
        scale_embedding: bool = True,
        num_token_types: int = 0,
        token_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.d_model = d_model
        self.scale = d_model**0.5 if scale_embedding else 1.0
        self.tokens = nn.Embedding(vocab_size, d_model)
        self.token_types = nn.Embedding(num_token_types, d_model) if num_token_types else None
        self.token_dropout = nn.Dropout(token_dropout)
        nn.init.normal_(self.tokens.weight, std=d_model**-0.5)
        if self.token_types is not None:
            nn.init.normal_(self.token_types.weight, std=d_model**-0.5)

    def forward(
        self, tokens: Int[Tensor, "batch length"], token_types: Int[Tensor, "batch length"] | None = None
    ) -> Float[Tensor, "batch length d_model"]:
        """Computes the vectors of tokens.

        Args:
            token_types: type of each token; None: type 0, whose vector is added if there are types.
        """
        x: Tensor = self.scale * self.tokens(tokens)
        if self.training and self.token_dropout.p:
            x = x * self.token_dropout(x.new_ones(tokens.shape))[..., None]
        if self.token_types is not None:
            x = x + (self.token_types.weight[0] if token_types is None else self.token_types(token_types))
        return x


class PatchEmbedding(nn.Module):
    """[cls; patches((image - mean) / std) W + b]: a learned vector, then one vector per patch, row by row.

    A patch is flattened in the order channel, row, column. Dosovitskiy et al. 2021, section 3.1, equation 1.

    Attributes:
        grid: rows and columns of patches.
        length: number of vectors per image.

    Args:
        image_size: height and width, in pixels.
        patch_size: height and width of a patch.
        normalized: whether to normalize each image to mean 0 and variance 1 over all of its values.
        bias: whether there is a b.
        mean: mean of each channel, such as over the training images; None: 0.
        std: standard deviation of each channel; None: 1.

    Raises:
        ValueError: the sizes are invalid, or ``mean`` or ``std`` does not have one value per channel.
    """

    def __init__(
        self,
        *,
        image_size: Sequence[int],
        patch_size: Sequence[int],
        num_channels: int,
        d_model: int,
        normalized: bool = False,
        bias: bool = True,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        for name, size in (("image_size", image_size), ("patch_size", patch_size)):
            if len(size) != 2 or min(size) < 1:
                raise ValueError(f"image_embedding.{name}={list(size)}: expected [height, width]")
        if num_channels < 1:
            raise ValueError(f"image_embedding.num_channels={num_channels}: expected at least 1")
        (height, width), (patch_height, patch_width) = image_size, patch_size
        if height % patch_height or width % patch_width:
            raise ValueError(
                f"image_embedding.patch_size={list(patch_size)} does not divide "
                f"image_embedding.image_size={list(image_size)}"
            )
        if (mean is None) != (std is None):
            raise ValueError(
                f"image_embedding.mean={mean} and image_embedding.std={std}: expected numbers or null for both"
            )
        if mean is not None and normalized:
            raise ValueError(f"image_embedding.mean={list(mean)}: expected image_embedding.normalized=false with it")
        if mean is not None and std is not None:
            for name, numbers in (("mean", mean), ("std", std)):
                if len(numbers) != num_channels or (name == "std" and min(numbers) <= 0):
                    what = "a number" if name == "mean" else "a number above 0"
                    raise ValueError(
                        f"image_embedding.{name}={list(numbers)}: expected {what} for each of {num_channels} channels"
                    )
        self.d_model, self.normalized = d_model, normalized
        self.statistics = None if mean is None or std is None else tuple(zip(mean, std, strict=True))
        self.image_shape = (num_channels, height, width)
        self.patch_size = (patch_height, patch_width)
        self.grid = (height // patch_height, width // patch_width)
        self.length = 1 + self.grid[0] * self.grid[1]
        self.patches = nn.Linear(num_channels * patch_height * patch_width, d_model, bias=bias)
        self.cls = nn.Parameter(torch.empty(d_model))
        initialize_linear(self.patches)
        nn.init.normal_(self.cls, std=d_model**-0.5)

    def check_max_positions(self, room: int | None, stack: str) -> None:
        """Raises an error if a stack has more or fewer positions than an image has vectors.

        Args:
            room: number of positions of the stack; None: no limit.
            stack: name of the stack.
        """
        if room not in (None, self.length):
            raise ValueError(
                f"max_length={room}: [cls] and the patches of an image are {self.length} positions; set "
                f"model.{stack}.max_length={self.length}"
            )

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch length d_model"]:
        """Computes 1 + (number of patches) vectors for each image.

        Args:
            images: pixels, of any type.

        Raises:
            ValueError: the images have another size.
        """
        if images.shape[1:] != self.image_shape:
            raise ValueError(f"images of {tuple(images.shape[1:])} (channels, height, width); not {self.image_shape}")
        x = images.to(self.cls.dtype)
        if self.normalized:
            x = F.layer_norm(x, self.image_shape)
        if self.statistics is not None:
            channels = zip(x.unbind(1), self.statistics, strict=True)
            x = torch.stack([(channel - mean) / std for channel, (mean, std) in channels], dim=1)
        patches = F.unfold(x, self.patch_size, stride=self.patch_size).mT
        return torch.cat((self.cls.expand(len(images), 1, -1), self.patches(patches)), dim=1)
