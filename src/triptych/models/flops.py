"""Counts parameters and floating-point operations of a network.

Tested by tests/models/test_flops.py and tests/config/test_families.py.
"""

import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from math import comb, prod
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from triptych.models.decoder_only import DecoderOnly
from triptych.models.encoder_decoder import EncoderDecoder
from triptych.models.prefix_lm import PrefixLM
from triptych.nn import FrameEmbedding, Network, PatchEmbedding, Stack

BatchShape = tuple[int, ...]
"""Rows, positions of ``tokens``, positions of ``source`` (0 without one); for images rows, channels, height, width.
Audio has a position per vector."""


def count_parameters(network: Network) -> tuple[int, int]:
    """All trainable parameters, and those outside of the embeddings of tokens and positions (a tied output layer is an
    embedding). Tied parameters count once."""
    embedding = {p for table in network.embeddings for p in table.parameters()} | position_tables(network)
    trainable = [p for p in network.parameters() if p.requires_grad]
    return sum(p.numel() for p in trainable), sum(p.numel() for p in trainable if p not in embedding)


def position_tables(network: Network) -> set[nn.Parameter]:
    """The parameters of position schemes with a vector per position."""
    return {p for stack in network.stacks if stack.max_positions is not None for p in stack.position.parameters()}


def active_parameters(network: Network) -> int:
    """Trainable parameters that take part in the computation of a token: those of the stacks and the head (including a
    tied output matrix), the matrix of image patches, and the stem of audio frames. Tables of tokens, token types and
    positions are excluded, since a token reads only a row of each. (In the full model a token uses either the encoder
    or the decoder; both count.)"""
    parts: list[nn.Module] = [*network.stacks, *network.heads]
    parts += [part.patches for part in network.embeddings if isinstance(part, PatchEmbedding)]
    parts += [part for part in network.embeddings if isinstance(part, FrameEmbedding)]
    met = {p for part in parts for p in part.parameters() if p.requires_grad}
    return sum(p.numel() for p in met - position_tables(network))


def parameters_by_part(network: Network) -> dict[str, int]:
    """All trainable parameters by part: embedding (all embeddings together), each stack, head (all heads). Tied
    parameters count in the first part."""
    seen: set[Tensor] = set()
    counts = {}
    stacks = {name: (stack,) for name, stack in zip(network.stack_names, network.stacks, strict=True)}
    for name, modules in {"embedding": network.embeddings, **stacks, "head": network.heads}.items():
        own = {p for module in modules for p in module.parameters() if p.requires_grad} - seen
        counts[name] = sum(p.numel() for p in own)
        seen |= own
    return counts


COUNTED = ("forward", "backward", "optimizer")
"""The parts of training that are counted, as listed in the record. (Older records lack the optimizer.)"""
LATER = " of states"
"""Suffix of a part's name: operations of the part whose input is not the image or audio itself, and so has a
gradient."""


class TrainingCost:
    """FLOPs of the matrix products, forward and backward, of training batches, by part: embedding (of images and audio;
    tables cost nothing), each stack, cross_attention and head.

    Padding counts, and so do the pairs that a causal mask hides. Windowed attention counts the pairs in its blocks if a
    text is long enough for them (see ``triptych.nn.sliding_window.SlidingWindowBlocks``), otherwise all pairs.
    Subquadratic attention counts what it computes. The backward pass, to inputs and to weights, costs twice the forward
    pass; images and frames need no gradient. torch's counter counts fused attention on the meta device only, and splits
    the forward pass by part, but not the backward pass.

    One row of a text costs c + (its tokens) a + (pairs of its tokens) b, a polynomial of degree 2 in the lengths. A few
    counts of the shortest texts therefore give the cost of every batch by Newton's forward differences, in integers:
    f(1 + x) = sum over i of (difference i of f at 1) (x choose i), and likewise in two lengths. Self-attention whose
    cost is no such polynomial is counted separately.

    Args:
        network: on the meta device.

    Raises:
        ValueError: a part cannot be computed there.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self._counts: dict[tuple[int, ...], Counter[str]] = {}  # of one row of each length
        self._of_layers: dict[tuple[str, int | None, int], int] = {}
        self._of_batches: dict[BatchShape, int] = {}
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            network.head(torch.zeros(1, 1, network.embedding.d_model, device="meta"))
        self._of_an_answer: int = 3 * counter.get_total_flops()
        embedding = network.embedding
        self._given = [part.length for part in network.embeddings[1:] if isinstance(part, PatchEmbedding)]
        shortest = (1, *(self._given or [1])) if network.reads_source else (1,)
        self._counted(embedding.image_shape if isinstance(embedding, PatchEmbedding) else shortest)

    def of_batch(self, shape: BatchShape, *, unanswered: int = 0) -> int:
        """FLOPs of one batch, over all parts.

        Args:
            unanswered: positions without an output projection.
        """
        if shape not in self._of_batches:
            self._of_batches[shape] = sum(self.by_part({shape: 1}).values())
        return self._of_batches[shape] - unanswered * self._of_an_answer

    def by_part(self, shapes: Mapping[BatchShape, int], *, unanswered: int = 0) -> dict[str, int]:
        """FLOPs of many batches by part.

        Args:
            shapes: number of batches per shape.
            unanswered: positions of all batches without an output projection.
        """
        total: Counter[str] = Counter()
        for (rows, *lengths), count in shapes.items():
            for part, flops in self._of_row(*lengths).items():
                total[part.removesuffix(LATER)] += (2 if part == "embedding" else 3) * count * rows * flops
        if unanswered:
            total["head"] -= unanswered * self._of_an_answer
        return {part: flops for part, flops in total.items() if flops}

    def _of_row(self, *lengths: int) -> Counter[str]:
        """FLOPs of the forward pass of one row."""
        if len(lengths) == 3:  # an image, of which there is one size
            return self._counted(lengths)
        sides = [length for length in lengths if length][: 1 if self._given else None]  # images have one size
        fixed = lengths[len(sides) :]
        total: Counter[str] = Counter()
        for place, weight in finite_differences(sides).items():
            for part, flops in self._counted((*place, *fixed)).items():
                total[part] += weight * flops
        total.update(self._beside_the_polynomial(lengths))
        return total

    def _beside_the_polynomial(self, lengths: tuple[int, ...]) -> Counter[str]:
        """Correction for self-attention with windows, and for subquadratic attention."""
        total: Counter[str] = Counter()
        if isinstance(self.network, PrefixLM):  # a prefix needs a mask of all pairs
            return total
        parts = self.network.stack_names[::-1]  # in the order of the lengths
        if len(parts) == 1:  # the one stack also reads the source
            lengths = (sum(lengths),)
        for part, length in zip(parts, lengths, strict=False):
            stack: Stack = getattr(self.network, part)
            for layer, window in enumerate(stack.windows):
                if window is None and stack.has_all_pairs:
                    continue
                total[part] += self._of_attention(part, layer, length)
                for (place,), weight in finite_differences([length]).items():
                    total[part] -= weight * self._of_attention(part, layer, place)
        return total

    def _of_attention(self, part: str, layer: int, length: int) -> int:
        """FLOPs of the forward pass of one text in one layer."""
        stack: Stack = getattr(self.network, part)
        window = stack.windows[layer]
        if (part, window, length) not in self._of_layers:
            attention = stack.layers[layer].get_submodule("self_attention")
            dtype = next(attention.parameters()).dtype
            x = torch.zeros(1, length, stack.d_model, device="meta", dtype=dtype)
            attention_mask = stack.attention_mask(length, x.device, window=window)
            bias = stack.position.bias(length, length)
            with torch.no_grad(), FlopCounterMode(display=False) as counter:
                attention(x, attention_mask=attention_mask, bias=bias)
            self._of_layers[part, window, length] = counter.get_total_flops()
        return self._of_layers[part, window, length]

    def _counted(self, lengths: tuple[int, ...]) -> Counter[str]:
        if lengths not in self._counts:
            self._counts[lengths] = Counter(forward_flops(self.network, (1, *lengths)))
        return self._counts[lengths]


def finite_differences(lengths: Sequence[int]) -> Counter[tuple[int, ...]]:
    """The weights that give the value of a polynomial of degree 2 at these lengths from its values at the shortest
    lengths.

    Args:
        lengths: one, or two; at least 1.
    """
    weights: Counter[tuple[int, ...]] = Counter()
    sides = [length - 1 for length in lengths]
    for orders in product(range(3), repeat=len(sides)):
        times = prod(map(comb, sides, orders))
        if sum(orders) > 2 or not times:
            continue
        for steps in product(*(range(order + 1) for order in orders)):
            sign = (-1) ** (sum(orders) - sum(steps))
            weights[tuple(1 + step for step in steps)] += sign * times * prod(map(comb, orders, steps))
    return weights


def forward_flops(network: Network, shape: BatchShape) -> dict[str, int]:
    """FLOPs of the matrix products of one forward pass, by part.

    Args:
        network: on the meta device.

    Raises:
        ValueError: a part cannot be computed there: it reads values, or creates tensors on another device.
    """
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        try:
            network(**inputs_of(network, shape, torch.device("meta")))
        except RuntimeError as error:
            frames = traceback.extract_tb(error.__traceback__)
            ours = [frame for frame in frames if not Path(frame.filename).is_relative_to(Path(torch.__file__).parent)]
            raise ValueError(
                f"{ours[-1].filename}, line {ours[-1].lineno}: the operations of a part are counted on tensors without "
                f"values, where this fails ({str(error).splitlines()[0]}); expected results whose shapes depend on "
                "shapes alone, and new tensors on the device of the input"
            ) from error
    counts = {name: sum(of_one.values()) for name, of_one in counter.get_flop_counts().items()}
    root = type(network).__name__
    parts = {part: counts.get(f"{root}.{part}", 0) for part in ("embedding", *network.stack_names, "head")}
    for part in ("embedding", "head"):
        parts[part] += counts.get(f"{root}.source_{part}", 0)
    later = f"embedding{LATER}"
    parts[later] = sum(flops for name, flops in counts.items() if name.endswith("embedding.convolutions.1"))
    parts["embedding"] -= parts[later]
    parts["cross_attention"] = sum(flops for name, flops in counts.items() if name.endswith(".cross_attention"))
    if parts["cross_attention"]:
        parts["decoder"] -= parts["cross_attention"]
    return {part: flops for part, flops in parts.items() if flops}


def decoding_flops(network: DecoderOnly | EncoderDecoder, length: int, source: int = 0) -> int:
    """FLOPs of the matrix products for one more token, with cached keys and values.

    Args:
        network: on the meta device, with a head that predicts at each position.
        length: tokens of the decoder, including the new one.
        source: tokens of the encoder, whose pass is not counted.
    """
    tokens = torch.zeros(1, length, dtype=torch.long, device="meta")
    given = inputs_of(network, (1, length, source), torch.device("meta")).get("source")
    with torch.no_grad():
        if isinstance(network, EncoderDecoder):
            assert given is not None
            decode = network.continuation(given, None, capacity=length)
        else:
            decode = network.continuation(None, capacity=length, source=given)
        if length > 1:
            decode(tokens[:, 1:])
        with FlopCounterMode(display=False) as counter:
            decode(tokens[:, :1])
    return int(counter.get_total_flops())


def inputs_of(network: Network, shape: BatchShape, device: torch.device) -> dict[str, Tensor]:
    """The inputs of a network for a batch of this shape, by argument name, without padding: equal tokens, silent audio,
    black images.

    Args:
        device: of the tensors; on the meta device they take no memory.
    """
    if len(shape) == 4:
        return {"tokens": torch.zeros(shape, device=device)}
    rows, length, source = (*shape, 0)[:3]
    found = dict[str, Tensor]()
    for name, count, prefix in (("source", source, "source_"), ("tokens", length, "")):
        if not count or (name == "source" and not network.reads_source):
            continue
        embedding = (name == "source" and getattr(network, "source_embedding", None)) or network.embedding
        if isinstance(embedding, PatchEmbedding):
            found[name] = torch.zeros(rows, *embedding.image_shape, device=device)
            continue
        if isinstance(embedding, FrameEmbedding):
            count *= embedding.stride
            found[name] = torch.zeros(rows, count, embedding.num_mels, device=device)
        else:
            found[name] = torch.zeros(rows, count, dtype=torch.long, device=device)
        found[f"{prefix}mask"] = torch.ones(rows, count, dtype=torch.bool, device=device)
    return found
