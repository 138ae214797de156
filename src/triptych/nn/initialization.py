"""The one initialisation.

- Linear weights: normal with standard deviation fan_in^-1/2, so that a unit input gives a unit output.
- The last projection of each residual branch: the same divided by sqrt(branches of the stack), so that the sum of all
  branches has the size of one (Radford et al. 2019, section 2.3, scale GPT-2's in this way).
- Embeddings: normal with standard deviation d_model^-1/2; multiplied by sqrt(d_model) on the way in they are units,
  and as a tied output layer they give unit logits (Vaswani et al. 2017, section 3.4).
- Biases 0, norms 1, relative position tables 0.
"""

from torch import nn


def initialize_linear(linear: nn.Linear, scale: float = 1.0) -> None:
    """Weight ~ normal(0, scale fan_in^-1/2), bias 0."""
    nn.init.normal_(linear.weight, std=scale * linear.in_features**-0.5)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)
