"""Measures of attention heads.

Tested by tests/inspection/test_attention_heads.py.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from triptych.nn import MultiHeadAttention, Network


def attention_entropy(weights: Float[Tensor, "*rows keys"]) -> Float[Tensor, "*rows"]:
    """H = -sum_k w_k log w_k in nats: 0 if all weight is on one key, log n if n keys have equal weights.

    Args:
        weights: attention weights, as of ``triptych.report.attention_maps``.
    """
    return weights.xlogy(weights).sum(-1).neg()


@contextmanager
def ablate_heads(network: Network, heads: Mapping[str, Sequence[int]]) -> Iterator[None]:
    """Sets the outputs of attention heads to 0, before W_o, while the context is open (Michel et al. 2019, section 2):

        with ablate_heads(network, {"encoder.layers.0.self_attention": [1]}):
            network(tokens)

    Args:
        heads: the heads to ablate, counted from 0, by the name of their attention.

    Raises:
        ValueError: there is no such attention or head.
    """
    with ExitStack() as hooks:
        for name, numbers in heads.items():
            attention = _attention_called(name, network)
            of_heads = attention.o.in_features // attention.head_dim
            if wrong := [number for number in numbers if not 0 <= number < of_heads]:
                raise ValueError(f"{name} has the heads 0 to {of_heads - 1}, not {wrong[0]}")

            columns = torch.arange(attention.o.in_features).view(of_heads, -1)[list(numbers)].flatten()
            hooks.enter_context(attention.o.register_forward_pre_hook(_zero(columns)))
        yield


def _zero(columns: Int[Tensor, " columns"]) -> Callable[[nn.Module, tuple[Tensor]], Tensor]:
    """Returns a hook that sets these columns of a module's input to 0."""
    return lambda module, inputs: inputs[0].index_fill(-1, columns.to(inputs[0].device), 0.0)


def _attention_called(name: str, network: Network) -> MultiHeadAttention:
    found = {path: module for path, module in network.named_modules() if isinstance(module, MultiHeadAttention)}
    attentions = {path: module for path, module in found.items() if not module.is_recurrent}
    if name in found.keys() - attentions.keys():
        raise ValueError(f"{name} is a recurrence, which has no heads")
    if name not in attentions:
        raise ValueError(f"{name} is no attention of this network; it has {', '.join(attentions) or 'none'}")
    return attentions[name]
