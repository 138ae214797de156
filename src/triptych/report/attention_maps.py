"""Where a network looks: its attention weights, with the tokens; attention rollout."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from triptych.models import TwoTowers
from triptych.models.generation import BeamSearch, followed
from triptych.nn import MultiHeadAttention, PatchEmbedding
from triptych.nn.attention import attend_explicitly, attend_in_pairs
from triptych.nn.linformer import attend_shortened
from triptych.nn.longformer import attend_around_global_tokens
from triptych.nn.performer import attend_by_features
from triptych.nn.reformer import attend_in_buckets
from triptych.tasks import GenerativeTask, Prediction, Predictor, Task


@dataclass(frozen=True, slots=True)
class AttentionMap:
    """The weights of one kind of attention for one text.

    A row is named by the token that is written from it, where the network writes: in the row of a token it looked in
    order to write that token, which it reads one row later. Where nothing is written, a row is named by the token read.

    Attributes:
        queries: the tokens that look, as they are read.
        keys: the tokens that are looked at; in self-attention, the queries.
        weights: each row sums to 1.
        written: the tokens that were written from the last rows, one from each; empty where nothing was written.
    """

    queries: tuple[str, ...]
    keys: tuple[str, ...]
    weights: Float[Tensor, "layers heads queries keys"]
    written: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AttentionMaps:
    """What a network said of a text, and where it looked meanwhile.

    Attributes:
        prediction: as of ``Predictor.predict``.
        encoder: self-attention of the encoder; None: there is no encoder.
        decoder: self-attention of the decoder; None: there is no decoder.
        cross: attention of the decoder to the encoder's states; None: there are not both.
        unmapped: which of these three exist, but have no map, because a class of your own computes them in a way that
            ``recorded`` cannot see.
    """

    prediction: Prediction
    encoder: AttentionMap | None
    decoder: AttentionMap | None
    cross: AttentionMap | None
    unmapped: tuple[str, ...] = ()


def attention_maps(predictor: Predictor, inputs: Sequence[Any]) -> list[AttentionMaps]:
    """Where a trained network looks in each input while it answers. One that writes is followed through the prompt and
    what it writes, greedily or as ``predictor.task.sampling`` says; there is no beam search, whose texts are several.

    Args:
        predictor: with a trained task, as ``triptych.load(run)`` gives it.
        inputs: what its ``predict`` takes: texts, pairs of texts, or images.
    """
    return [_maps_of(predictor, given) for given in inputs]


@contextmanager
def _followed(task: Task) -> Iterator[list[int]]:
    """Sets beam search aside; yields the tokens that are written meanwhile, as they come."""
    if not isinstance(task, GenerativeTask):
        yield []
        return
    before, chosen = (task.search, task.ranks, task.sampling), list[int]()
    task.search, task.ranks, task.sampling = BeamSearch(), False, followed(task.sampling, chosen.extend)
    try:
        yield chosen
    finally:
        task.search, task.ranks, task.sampling = before


def _maps_of(predictor: Predictor, given: Any) -> AttentionMaps:
    task, network, read = predictor.task, predictor.network, list[tuple[str, ...]]()
    with _followed(task) as chosen, recorded(network) as weights, ExitStack() as hooks:
        for embedding in network.embeddings:
            reads = embedding.register_forward_hook(lambda module, inputs, output: read.append(_names(task, inputs[0])))
            hooks.enter_context(reads)
        (prediction,) = predictor.predict([given])
    if isinstance(network, TwoTowers):  # the tower that reads the image; then the other reads the texts to choose from
        read, tower = read[:1], "source_"
    else:
        tower = ""
    # The encoder of the full model reads first; the decoder then reads the prompt, and each token that it has written.
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
    """Of the tokens of the one text, of the patches of the one image, by row and column, or of the frames of the one
    sound, by time."""
    hears = None if task.audio is None else task.audio.embedding
    if tokens.ndim == 3 and hears is not None:
        return tuple(f"{hears.hop * hears.stride * i:.2f} s" for i in range(hears.count(tokens.shape[1])))
    if tokens.ndim == 2:
        return tuple(task.names_of(tokens[0].tolist()))
    (sees,) = (part for part in task.network.embeddings if isinstance(part, PatchEmbedding))
    rows, columns = sees.grid
    return ("<cls>", *(f"{row},{column}" for row in range(1, rows + 1) for column in range(1, columns + 1)))


@contextmanager
def recorded(network: nn.Module) -> Iterator[dict[nn.Module, Tensor]]:
    """The weights of each attention in a network that runs meanwhile:

        with recorded(network) as weights:
            network(tokens)
        weights[network.decoder.layers[0].self_attention]  # batch, heads, queries, keys

    The kernels keep their weights to themselves. But softmax(scale q k^T + bias + mask) I is the matrix of the weights:
    each kernel is called once more, with the identity as the values. So masks, biases, rotated and grouped heads are
    what they are, and the blocks need not know. Weights are those before dropout. Windows are masks of all pairs
    meanwhile, for the matrix has them all: what the network says may differ by rounding.

    The rows of later calls follow those of earlier ones (decoding with a cache). Of a packed row, each document is a
    row of the batch. Not seen is the kernel of packed rows on GPUs, nor an attention of your own that is not linear in
    the values, or that overrides more than ``PairwiseAttention.attend_pairs``: it is left out.

    Args:
        network: of any of the architectures, a stack, a block, or an attention by itself.
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
    attend_explicitly: {"dropout": 0.0},
    attend_in_pairs: {},
    attend_shortened: {"dropout": 0.0},
    attend_by_features: {},
    attend_in_buckets: {},
    attend_around_global_tokens: {"dropout": 0.0},
}
"""What attends, and how each is told not to drop weights. All of them are linear in the values."""


class _Recorder(TorchFunctionMode):
    """Sees every call of a kernel of attention, and whose it is."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: dict[nn.Module, Tensor] = {}
        self._unmapped = set[nn.Module]()
        self._module: nn.Module | None = None

    def enter(
        self, module: nn.Module, inputs: tuple[Tensor, ...], options: dict[str, Any]
    ) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
        """This module computes from now on, all pairs at once."""
        self._module = module
        return inputs, {**options, "visibility": options["visibility"].dense(inputs[0].device)}

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
    """The weights of one call of a kernel: what it makes of the identity in place of the values. None: they do not give
    its result, so it is not linear in the values.

    Args:
        function: one of ``KERNELS``.
        args: queries, keys, values, and what else it was called with.
        options: its keyword arguments, without dropout.
        result: what it gave.
    """
    q, k, v, *others = args
    like = v[0] if isinstance(v, tuple) else v
    identity = torch.eye(k.shape[2], dtype=like.dtype, device=k.device).expand(*like.shape[:2], -1, -1)
    if function is not attend_in_pairs:
        values = (identity, identity) if isinstance(v, tuple) else identity
        weights: Tensor = function(q, k, values, *others, **options).detach()
        return weights.to(torch.promote_types(weights.dtype, torch.float32))
    # Code that is not ours may need values of the width of a head: the columns of the identity, so many at a time.
    width = v.shape[3]
    columns = torch.split(F.pad(identity, (0, -k.shape[2] % width)), width, dim=3)
    weights = torch.cat([function(q, k, values, *others, **options) for values in columns], dim=3).detach()
    weights = weights[..., : k.shape[2]]
    weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
    tolerance = 100 * torch.finfo(result.dtype).eps * float(v.detach().abs().amax())
    is_linear = torch.allclose(weights @ v.to(weights.dtype), result.to(weights.dtype), atol=tolerance, rtol=1e-2)
    return weights if is_linear else None


def rollout(
    weights: Float[Tensor, "layers heads length length"],
) -> Float[Tensor, "layers length length"]:
    """How much of each input is in each position after each layer, if residuals carry half and attention the other.

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
