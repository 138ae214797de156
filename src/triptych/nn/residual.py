"""How a sub-layer's output and its input become one."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from triptych.nn.sizes import Sizes


class Residual(nn.Module, ABC):
    """The way around a sub-layer.

    Args:
        sizes: of the stack.
        norm: makes the norm, from its width.

    Attributes:
        needs_final_norm: whether the last block's states are not normalised yet.
        is_parallel: whether a block has one of it, around the sum of its sub-layers, instead of one around each.
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
        """Adds what the sub-layer says of x to x."""


class PreNorm(Residual):
    """x + dropout(f(norm(x))). It trains without a long warm-up: Xiong et al. 2020."""

    needs_final_norm = True

    def forward(
        self, x: Float[Tensor, "batch length d_model"], sublayer: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "batch length d_model"]:
        return x + self.added(x, sublayer)

    def added(
        self, x: Float[Tensor, "batch length d_model"], sublayer: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "batch length d_model"]:
        """dropout(f(norm(x)))."""
        y: Tensor = self.dropout(sublayer(self.norm(x)))
        return y


class Sandwich(PreNorm):
    """x + dropout(norm_2(f(norm(x)))): what is added is normalised, too. Ding et al. 2021 (CogView), section 2.3; as in
    Gemma 2.

    Args:
        sizes: of the stack.
        norm: makes both norms, from their width.
    """

    def __init__(self, sizes: Sizes, norm: Callable[[int], nn.Module]) -> None:
        super().__init__(sizes, norm)
        self.output_norm = norm(sizes.d_model)

    def added(
        self, x: Float[Tensor, "batch length d_model"], sublayer: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "batch length d_model"]:
        """dropout(norm_2(f(norm(x))))."""
        y: Tensor = self.dropout(self.output_norm(sublayer(self.norm(x))))
        return y


class Parallel(PreNorm):
    """x + dropout(f_1(norm(x)) + f_2(norm(x)) + ...), the f_i being all sub-layers of a block.

    None waits for another, and there is one norm. Wang and Komatsuzaki 2021 (GPT-J); Chowdhery et al. 2022 (PaLM),
    section 2.
    """

    is_parallel = True


class ParallelNorms(PreNorm):
    """x + dropout(f_1(norm_1(x))) + dropout(f_2(norm_2(x))) + ...: as ``Parallel``, but each sub-layer has its own
    norm. Black et al. 2022 (GPT-NeoX), section 2.
    """


class PostNorm(Residual):
    """norm(x + dropout(f(x))). Vaswani et al. 2017, section 3.1."""

    needs_final_norm = False

    def forward(
        self, x: Float[Tensor, "batch length d_model"], sublayer: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "batch length d_model"]:
        y: Tensor = self.norm(x + self.dropout(sublayer(x)))
        return y


class ResPost(Residual):
    """x + dropout(norm(f(x))): the norm stands behind the sub-layer, and the way around it is free. Liu et al. 2022
    (Swin Transformer V2), section 3.2; as in OLMo 2.
    """

    needs_final_norm = True

    def forward(
        self, x: Float[Tensor, "batch length d_model"], sublayer: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "batch length d_model"]:
        y: Tensor = x + self.dropout(self.norm(sublayer(x)))
        return y
