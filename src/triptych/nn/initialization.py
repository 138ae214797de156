"""The one initialisation.

- Linear weights: normal with standard deviation fan_in^-1/2, so that a unit input gives a unit output.
- The last projection of each residual branch: the same divided by sqrt(branches of the stack), so that the sum of all
  branches has the size of one (Radford et al. 2019, section 2.3, scale GPT-2's in this way).
- Embeddings: normal with standard deviation d_model^-1/2; multiplied by sqrt(d_model) on the way in they are units,
  and as a tied output layer they give unit logits (Vaswani et al. 2017, section 3.4).
- Biases 0, norms 1, relative position tables 0.
"""

from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from triptych.nn.stack import Stack


def initialize_linear(linear: nn.Linear, scale: float = 1.0) -> None:
    """Weight ~ normal(0, scale fan_in^-1/2), bias 0."""
    nn.init.normal_(linear.weight, std=scale * linear.in_features**-0.5)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)


def initialize_stack(stack: "Stack") -> None:
    """Initialises the linear layers and position tables of a stack; norms are ones by construction."""
    for module in stack.modules():
        if isinstance(module, nn.Linear):
            initialize_linear(module)
    if isinstance(stack.positions, nn.Parameter):
        nn.init.normal_(stack.positions, std=stack.d_model**-0.5)
    if stack.relative_bias is not None:
        nn.init.zeros_(stack.relative_bias.table.weight)
    outputs = [
        module
        for name, module in stack.named_modules()
        if isinstance(module, nn.Linear) and name.endswith(("attention.o", "feed_forward.down"))
    ]
    for output in outputs:
        initialize_linear(output, scale=len(outputs) ** -0.5)
