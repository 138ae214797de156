"""Residual connections around sub-layers.

Tested by tests/nn/test_block.py and tests/nn/test_published_parts.py.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from triptych.nn.sizes import Sizes


class Residual(nn.Module, ABC):
    """The base class of residual connections.

    Args:
        sizes: sizes of the stack.
        norm: builds the norm, from its width.

    Attributes:
        needs_final_norm: whether the stack needs a norm after the last block.
        is_parallel: whether a block has one connection around the sum of its sub-layers, instead of one around each.
    """

    needs_final_norm: ClassVar[bool]
    is_parallel: ClassVar[bool] = False

    def __init__(self, sizes: Sizes, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.norm, self.dropout = norm(sizes.d_model), nn.Dropout(sizes.dropout)

    @abstractmethod
    def forward(
        self, x: Float[Tensor, "batch length d_model"], sublayer: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "batch length d_model"]:
        """Combines x with the sub-layer's output for x."""


class PreNorm(Residual):
    """x + dropout(f(norm(x))). Trains without a long warm-up: Xiong et al. 2020."""

    needs_final_norm = True

    def forward(
        self, x: Float[Tensor, "batch length d_model"], sublayer: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "batch length d_model"]:
        return x + self.added(x, sublayer)

    def added(
        self, x: Float[Tensor, "batch length d_model"], sublayer: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "batch length d_model"]:
        y: Tensor = self.dropout(sublayer(self.norm(x)))
        return y


class NoResidual(PreNorm):
    """dropout(f(norm(x))), without a connection around f."""

    def forward(
        self, x: Float[Tensor, "batch length d_model"], sublayer: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "batch length d_model"]:
        return self.added(x, sublayer)


class SandwichNorm(PreNorm):
    """x + dropout(norm_2(f(norm(x)))): the output is normalised, too. Ding et al. 2021 (CogView), section 2.3; as in
    Gemma 2."""

    def __init__(self, sizes: Sizes, norm: Callable[[int], nn.Module]) -> None:
        super().__init__(sizes, norm)
        self.output_norm = norm(sizes.d_model)

    def added(
        self, x: Float[Tensor, "batch length d_model"], sublayer: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "batch length d_model"]:
        y: Tensor = self.dropout(self.output_norm(sublayer(self.norm(x))))
        return y


class Parallel(PreNorm):
    """x + dropout(f_1(norm(x)) + f_2(norm(x)) + ...), where the f_i are all sub-layers of a block.

    All read the same norm, so none waits for another. Wang and Komatsuzaki 2021 (GPT-J); Chowdhery et al. 2022 (PaLM),
    section 2.
    """

    is_parallel = True


class ParallelNorms(PreNorm):
    """x + dropout(f_1(norm_1(x))) + dropout(f_2(norm_2(x))) + ...: as ``Parallel``, but each sub-layer has its own
    norm. Black et al. 2022 (GPT-NeoX), section 2."""


class PostNorm(Residual):
    """norm(x + dropout(f(x))). Vaswani et al. 2017, section 3.1."""

    needs_final_norm = False

    def forward(
        self, x: Float[Tensor, "batch length d_model"], sublayer: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "batch length d_model"]:
        y: Tensor = self.norm(x + self.dropout(sublayer(x)))
        return y


class ResPostNorm(Residual):
    """x + dropout(norm(f(x))): the norm follows the sub-layer. Liu et al. 2022 (Swin Transformer V2), section 3.2; as
    in OLMo 2."""

    needs_final_norm = True

    def forward(
        self, x: Float[Tensor, "batch length d_model"], sublayer: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "batch length d_model"]:
        y: Tensor = x + self.dropout(self.norm(sublayer(x)))
        return y
