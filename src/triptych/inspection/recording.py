"""Records the states of a network, and their gradients.

Tested by tests/inspection/test_recording.py and tests/inspection/test_known_network.py.
"""

import difflib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from triptych.nn import Block, Network, Stack


class Recording(Mapping[str, Tensor]):
    """The outputs of the parts of a network, by name, each [batch, length, d_model].

    The names are those of the modules: ``embedding``, ``decoder.layers.0.self_attention``, ``.cross_attention`` and
    ``.feed_forward`` (sub-layers, before the residual connection), ``decoder.layers.0`` (after it) and
    ``decoder.final_norm``. ``decoder.embedded`` is the input of the first block.

    Positions of later calls (decoding with a cache) follow those of earlier ones. An embedding that encoder and decoder
    share is called for each.

    Raises:
        KeyError: there is no such part.
        ValueError: the calls had batches of different sizes.
    """

    def __init__(self) -> None:
        self._calls: dict[str, list[Tensor]] = {}

    def add(self, name: str, output: Tensor) -> None:
        """Adds the output of one call of a part."""
        self._calls.setdefault(name, []).append(output)

    def __getitem__(self, name: str) -> Float[Tensor, "batch length d_model"]:
        if name not in self._calls:
            near = difflib.get_close_matches(name, self._calls, 1, 0.0)
            hint = f"; did you mean {near[0]}?" if near else "; the network was not called"
            raise KeyError(f"nothing was recorded of {name}{hint}")
        outputs = self._calls[name]
        if len(rows := {len(output) for output in outputs}) > 1:
            raise ValueError(f"{name} was called with batches of {sorted(rows)} rows; record calls of one batch")
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)

    def __iter__(self) -> Iterator[str]:
        return iter(self._calls)

    def __len__(self) -> int:
        return len(self._calls)

    def gradient(self, name: str) -> Float[Tensor, "batch length d_model"]:
        """Returns the gradient of a part's output.

        Raises:
            ValueError: there is none: ``record`` had no ``gradients=True``, or ``backward`` was not called.
        """
        output = self[name]
        if len(self._calls[name]) > 1:
            is_shared = name == "embedding" and {"encoder.embedded", "decoder.embedded"} <= self.keys()
            advice = "expected encoder.embedded or decoder.embedded" if is_shared else "record only one"
            raise ValueError(f"{name} was called {len(self._calls[name])} times; {advice}")
        if output.grad is None:
            raise ValueError(f"{name} has no gradient; expected record(network, gradients=True) and loss.backward()")
        return output.grad

    def stream(self, stack: str) -> Float[Tensor, "states batch length d_model"]:
        """Returns x_0, x_1, ..., x_N: the input of the first block and the output of each.

        Args:
            stack: name of the stack, such as ``decoder``.
        """
        return torch.stack([self[name] for name in self._stream_names(stack)])

    def stream_gradient(self, stack: str) -> Float[Tensor, "states batch length d_model"]:
        """Returns the gradients of x_0, x_1, ..., x_N, see ``stream``."""
        return torch.stack([self.gradient(name) for name in self._stream_names(stack)])

    def gradient_times_input(self, name: str) -> Float[Tensor, "batch length"]:
        """Returns x . dy/dx of each position's vector x: to first order, by how much y falls if x becomes 0.

        Args:
            name: the part that computes x, such as ``embedding``; y is what ``backward`` was called of. Shrikumar et
                al. 2016, section 2.
        """
        return (self[name] * self.gradient(name)).sum(-1).detach()

    def _stream_names(self, stack: str) -> list[str]:
        layers = sum(name.startswith(f"{stack}.layers.") and name.count(".") == 2 for name in self)
        return [f"{stack}.embedded", *(f"{stack}.layers.{layer}" for layer in range(layers))]


@contextmanager
def record(network: Network, *, gradients: bool = False) -> Iterator[Recording]:
    """Records the states of a network while the context is open:

        with record(network) as recording:
            network(tokens)
        recording["decoder.layers.0.self_attention"]  # batch, length, d_model

    With ``gradients`` they stay on their device and in the graph, and ``backward`` fills in their gradients:

        with record(network, gradients=True) as recording:
            network(tokens, targets=targets).backward()
        recording.stream_gradient("decoder").norm(dim=-1)  # layers + 1, batch, length

    Args:
        network: any of the architectures. (That of a predictor is ``predictor.network``.)
        gradients: whether to keep the graph; otherwise the states are detached and on the CPU.

    Raises:
        ValueError: the network is compiled or sharded.
    """
    stacks = {name: part for name, part in network.named_modules() if isinstance(part, Stack)}
    if hasattr(network, "_orig_mod") or any(stack.is_compiled for stack in stacks.values()):
        raise ValueError("a compiled network calls no hooks, so nothing can be recorded; expected compile=false")
    if any(isinstance(parameter, DTensor) for parameter in network.parameters()):
        raise ValueError("a sharded network has parts of its weights only; load its checkpoint with triptych.load")
    recording = Recording()

    def keep(name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Tensor) -> Tensor | None:
            if not gradients:
                recording.add(name, output.detach().cpu())
                return None
            if not output.requires_grad:  # the weights are frozen
                output = output.detach().requires_grad_()
            output.retain_grad()
            recording.add(name, output)
            return output

        return hook

    with ExitStack() as hooks:
        for name, part in _recorded_parts(network, stacks):
            hooks.enter_context(part.register_forward_hook(keep(name)))
        for stack in stacks.values():
            hooks.callback(setattr, stack, "activation_checkpointing", stack.activation_checkpointing)
            stack.activation_checkpointing = False  # it would compute, and so record, each block twice
        yield recording


def _recorded_parts(network: Network, stacks: Mapping[str, Stack]) -> Iterator[tuple[str, nn.Module]]:
    """Yields the parts and their names; ``embedded`` is the output of a stack's first dropout."""
    names = {part: name for name, part in network.named_modules()}
    yield from ((names[embedding], embedding) for embedding in network.embeddings)
    for name, stack in stacks.items():
        yield f"{name}.embedded", stack.dropout
        for block in stack.layers:
            assert isinstance(block, Block)
            sublayers = block.self_attention, block.cross_attention, block.feed_forward, block
            yield from ((names[part], part) for part in sublayers if part is not None)
        yield f"{name}.final_norm", stack.final_norm
