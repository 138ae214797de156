"""Records the attention weights of a network, and computes attention rollout."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from triptych.models import DualEncoderBase
from triptych.models.generation import BeamSearch, with_streamer
from triptych.nn import MultiHeadAttention, PatchEmbedding
from triptych.nn.attention import attend_eager, attend_in_pairs
from triptych.nn.linformer_attention import attend_shortened
from triptych.nn.longformer_attention import attend_around_global_tokens
from triptych.nn.performer_attention import attend_by_features
from triptych.nn.reformer_attention import attend_in_buckets
from triptych.tasks import GenerativeTask, Prediction, Predictor, Task


@dataclass(frozen=True, slots=True)
class AttentionMap:
    """The weights of one kind of attention for one text.

    If the network generates text, each row is labelled with the token that is predicted from it. The network reads that
    token one row later. Otherwise each row is labelled with the token read there.

    Attributes:
        queries: the query tokens, as they are read.
        keys: the key tokens; in self-attention, the queries.
        weights: each row sums to 1.
        written: the tokens generated from the last rows, one per row; empty if nothing was generated.
    """

    queries: tuple[str, ...]
    keys: tuple[str, ...]
    weights: Float[Tensor, "layers heads queries keys"]
    written: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AttentionMaps:
    """The prediction for one input, and the attention weights behind it.

    Attributes:
        prediction: as of ``Predictor.predict``.
        encoder: self-attention of the encoder; None without an encoder.
        decoder: self-attention of the decoder; None without a decoder.
        cross: cross-attention of the decoder to the encoder's states; None without both.
        unmapped: which of these three exist without a map, because a custom class computes them in a way that
            ``record_attention`` cannot record.
    """

    prediction: Prediction
    encoder: AttentionMap | None
    decoder: AttentionMap | None
    cross: AttentionMap | None
    unmapped: tuple[str, ...] = ()


def attention_maps(predictor: Predictor, inputs: Sequence[Any]) -> list[AttentionMaps]:
    """Attention maps of a trained network for each input. A generative network is recorded over the prompt and the
    tokens that it generates, greedily or by ``predictor.task.sampling``. Beam search is turned off, because it has
    several texts.

    Args:
        predictor: with a trained task, as from ``triptych.load(run)``.
        inputs: inputs of its ``predict``: texts, pairs of texts, or images.
    """
    return [_maps_of(predictor, given) for given in inputs]


@contextmanager
def _followed(task: Task) -> Iterator[list[int]]:
    """Turns beam search off; yields the list to which generated tokens are added."""
    if not isinstance(task, GenerativeTask):
        yield []
        return
    before, chosen = (task.search, task.ranks, task.sampling), list[int]()
    task.search, task.ranks, task.sampling = BeamSearch(), False, with_streamer(task.sampling, chosen.extend)
    try:
        yield chosen
    finally:
        task.search, task.ranks, task.sampling = before


def _maps_of(predictor: Predictor, given: Any) -> AttentionMaps:
    task, network, read = predictor.task, predictor.network, list[tuple[str, ...]]()
    with _followed(task) as chosen, record_attention(network) as weights, ExitStack() as hooks:
        for embedding in network.embeddings:
            reads = embedding.register_forward_hook(lambda module, inputs, output: read.append(_names(task, inputs[0])))
            hooks.enter_context(reads)
        (prediction,) = predictor.predict([given])
    tower = ""
    if isinstance(network, DualEncoderBase):
        # the tower that reads the image; then the other reads the texts to choose from
        read, tower = read[:1], "source_"
    # The encoder of the full model runs first. The decoder then reads the prompt and each generated token.
    source = read.pop(0) if task.architecture == "full" else ()
    tokens = tuple(name for names in read for name in names)
    encoded, written = source or tokens, tuple(task.names_of(chosen))

    unmapped: list[str] = []

    def found(name: str, stack: str, kind: str, queries: tuple[str, ...], keys: tuple[str, ...]) -> AttentionMap | None:
        layers = getattr(network, f"{tower}{stack}").layers if hasattr(network, f"{tower}{stack}") else ()
        attentions = [attention for layer in layers if (attention := getattr(layer, kind)) is not None]
        if not attentions:
            return None
        of_layers = [weights[attention][0] for attention in attentions if attention in weights]
        if [w.shape[1:] for w in of_layers] != [(len(queries), len(keys))] * len(attentions):
            unmapped.append(name)
            return None
        return AttentionMap(queries, keys, torch.stack(of_layers).cpu(), written if stack == "decoder" else ())

    return AttentionMaps(
        prediction,
        encoder=found("encoder", "encoder", "self_attention", encoded, encoded),
        decoder=found("decoder", "decoder", "self_attention", tokens, tokens),
        cross=found("cross", "decoder", "cross_attention", tokens, source),
        unmapped=tuple(unmapped),
    )


def _names(task: Task, tokens: Tensor) -> tuple[str, ...]:
    """Labels of the positions: tokens of a text, patches of an image by row and column, or frames of audio by time."""
    embedding = None if task.audio is None else task.audio.embedding
    if tokens.ndim == 3 and embedding is not None:
        return tuple(f"{embedding.hop * embedding.stride * i:.2f} s" for i in range(embedding.count(tokens.shape[1])))
    if tokens.ndim == 2:
        return tuple(task.names_of(tokens[0].tolist()))
    (patches,) = (part for part in task.network.embeddings if isinstance(part, PatchEmbedding))
    rows, columns = patches.grid
    return ("<cls>", *(f"{row},{column}" for row in range(1, rows + 1) for column in range(1, columns + 1)))


@contextmanager
def record_attention(network: nn.Module) -> Iterator[dict[nn.Module, Tensor]]:
    """Records the weights of each attention in a network while the context is open:

        with record_attention(network) as weights:
            network(tokens)
        weights[network.decoder.layers[0].self_attention]  # batch, heads, queries, keys

    Fused kernels do not return their weights. But softmax(scale q k^T + bias + mask) I is the matrix of the weights:
    each kernel is called once more, with the identity as the values. Masks, biases, rotations and grouped heads
    therefore need no special code. Weights are those before dropout. Local attention runs as masks over all pairs
    meanwhile, so the output may differ by rounding.

    Rows of later calls (decoding with a cache) are appended to those of earlier ones. Each document of a packed row
    becomes a row of the batch. Not recorded: the kernel for packed rows on GPUs, and a custom attention that is not
    linear in the values or that overrides more than ``PairwiseAttention.attend_pairs``.

    Args:
        network: any of the architectures, a stack, a block, or a single attention.
    """
    recorder = _Recorder()
    with ExitStack() as stack:
        for module in network.modules():
            if isinstance(module, MultiHeadAttention):
                stack.enter_context(module.register_forward_pre_hook(recorder.enter, with_kwargs=True))
        stack.enter_context(recorder)
        yield recorder.weights


KERNELS: dict[Any, dict[str, float]] = {
    F.scaled_dot_product_attention: {"dropout_p": 0.0},
    attend_eager: {"dropout": 0.0},
    attend_in_pairs: {},
    attend_shortened: {"dropout": 0.0},
    attend_by_features: {},
    attend_in_buckets: {},
    attend_around_global_tokens: {"dropout": 0.0},
}
"""Attention functions, and the arguments that turn off dropout in each. All are linear in the values."""


class _Recorder(TorchFunctionMode):
    """Intercepts every call of an attention function and finds the module that made it."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: dict[nn.Module, Tensor] = {}
        self._unmapped = set[nn.Module]()
        self._module: nn.Module | None = None

    def enter(
        self, module: nn.Module, inputs: tuple[Tensor, ...], options: dict[str, Any]
    ) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
        """Marks this module as the caller, and makes it compute all pairs at once."""
        self._module = module
        return inputs, {**options, "attention_mask": options["attention_mask"].dense(inputs[0].device)}

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        if function in KERNELS and self._module is not None and len(args) > 2 and args[0].ndim == 4:
            weights = weights_of(function, args, {**kwargs, **KERNELS[function]}, result)
            before = self.weights.get(self._module)
            if weights is None or (before is not None and before.shape[:2] != weights.shape[:2]):
                self._unmapped.add(self._module)
                self.weights.pop(self._module, None)
            elif self._module not in self._unmapped:
                if before is not None:
                    grown = weights.shape[3] - before.shape[3]
                    weights = torch.cat((F.pad(before, (0, grown)), weights), dim=2)
                self.weights[self._module] = weights
        return result


def weights_of(
    function: Any, args: tuple[Any, ...], options: dict[str, Any], result: Tensor
) -> Float[Tensor, "batch heads queries keys"] | None:
    """The weights of one call: the result with the identity as the values. None if they do not reproduce the result,
    that is, if the kernel is not linear in the values.

    Args:
        function: one of ``KERNELS``.
        args: queries, keys, values, and its other positional arguments.
        options: its keyword arguments, without dropout.
        result: the result of the original call.
    """
    q, k, v, *others = args
    like = v[0] if isinstance(v, tuple) else v
    identity = torch.eye(k.shape[2], dtype=like.dtype, device=k.device).expand(*like.shape[:2], -1, -1)
    if function is not attend_in_pairs:
        values = (identity, identity) if isinstance(v, tuple) else identity
        weights: Tensor = function(q, k, values, *others, **options).detach()
        return weights.to(torch.promote_types(weights.dtype, torch.float32))
    # A custom kernel may need values as wide as a head: use that many columns of the identity at a time.
    width = v.shape[3]
    columns = torch.split(F.pad(identity, (0, -k.shape[2] % width)), width, dim=3)
    weights = torch.cat([function(q, k, values, *others, **options) for values in columns], dim=3).detach()
    weights = weights[..., : k.shape[2]].to(torch.promote_types(weights.dtype, torch.float32))
    tolerance = 100 * torch.finfo(result.dtype).eps * float(v.detach().abs().amax())
    is_linear = torch.allclose(weights @ v.to(weights.dtype), result.to(weights.dtype), atol=tolerance, rtol=1e-2)
    return weights if is_linear else None


def rollout(weights: Float[Tensor, "layers heads length length"]) -> Float[Tensor, "layers length length"]:
    """The share of each input in each position after each layer, if residuals carry half and attention the other half.

    R_l = A_l R_(l-1), R_0 = I, A_l = (I + mean over the heads of W_l) / 2. Abnar and Zuidema 2020, section 3.

    Args:
        weights: W, of self-attention.

    Returns:
        R_1, ..., R_L; rows sum to 1.
    """
    identity = torch.eye(weights.shape[-1], dtype=weights.dtype)
    layers, r = [], identity
    for w in weights.mean(1):
        r = (identity + w) / 2 @ r
        layers.append(r)
    return torch.stack(layers)
