"""``check_part``: tests a custom part of the blocks before you train a model with it."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from triptych.nn import (
    AttentionMask,
    FeedForward,
    KeyValueCache,
    LayerNorm,
    MultiHeadAttention,
    PackedLayout,
    Position,
    PreNorm,
    Residual,
    Rotary,
    Sizes,
    Stack,
)
from triptych.nn.initialization import initialize_linear

LENGTHS = (5, 2, 7)
"""Lengths of the random texts."""
MEMORY_LENGTHS = (3, 6, 4)
"""Lengths of the memories for cross-attention, one per text."""
TOLERANCE = 1e-4
"""Largest difference between two ways to compute the same outputs of size 1, which float32 rounds to 1e-6."""


def check_part(
    *,
    position: Callable[[Sizes], Position] = Rotary,
    attention: Callable[..., MultiHeadAttention] = MultiHeadAttention,
    feed_forward: Callable[[Sizes], nn.Module] = FeedForward,
    residual: Callable[[Sizes, Callable[[int], nn.Module]], Residual] = PreNorm,
    norm: Callable[[int], nn.Module] = LayerNorm,
    causal: bool | None = None,
    cross_attention: bool = True,
    num_heads: int = 4,
    head_dim: int = 8,
) -> None:
    """Builds stacks of two layers with the given parts, and compares their outputs on random input:

    - causality: changing later positions does not change earlier outputs;
    - padding: a padded batch gives the outputs of each text alone, and finite gradients;
    - packing: so does one packed row;
    - cache: decoding in steps gives the outputs of one pass;
    - bias: attention with a score for each pair of positions adds the bias of the position scheme;
    - cross-attention: the same for padded and packed memories, and for a cache.

        from triptych.testing import check_part

        def test_my_attention():
            check_part(attention=MyAttention)
            check_part(attention=partial(MyAttention, temperature=2.0))

    Args:
        position: as in ``Stack``, like the other parts; several may be custom.
        causal: whether the stack is causal, as a decoder is; None: checks both kinds.
        cross_attention: whether to also check decoders with a memory.
        num_heads: number of query heads.
        head_dim: width of each head.

    Raises:
        ValueError: a check failed. The message names each one, with the largest difference.
    """
    width = num_heads * head_dim
    sized = partial(
        Stack, num_layers=2, d_model=width, num_heads=num_heads, d_ff=2 * width, max_length=max(LENGTHS) + 1
    )
    make_stack = partial(
        sized, position=position, attention=attention, feed_forward=feed_forward, residual=residual, norm=norm
    )
    kinds = [(False, False), (True, False), (True, True)]
    kinds = [kind for kind in kinds if causal in (None, kind[0]) and (cross_attention or not kind[1])]
    if faults := _find_faults(make_stack, kinds):
        parts = [part for part in (position, attention, feed_forward, residual, norm) if is_foreign(part)]
        names = ", ".join(f"{target.__module__}.{target.__qualname__}" for target in map(_class_of, parts))
        raise ValueError(f"{names or 'this stack'}: " + "; ".join(f"{name}: {fault}" for name, fault in faults.items()))


def _find_faults(make_stack: Callable[..., Stack], kinds: list[tuple[bool, bool]]) -> dict[str, str]:
    """Checks a stack of each kind: whether it is causal, and whether it has a memory.

    Returns:
        What is wrong, by the name of the check.

    Raises:
        ValueError: no kind of stack can be built.
    """
    faults: dict[str, str] = {}
    refusals = []
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.manual_seed(0)
        for is_causal, has_memory in kinds:
            try:
                stack = make_stack(causal=is_causal, cross_attention=has_memory)
            except ValueError as error:  # such as Linformer's, which has no causal form
                refusals.append(str(error))
            except Exception as error:
                faults.setdefault("construction", _describe(error))
            else:
                randomize(stack)
                for name, fault in _StackCheck(stack).faults():
                    faults.setdefault(name, fault)
    if len(refusals) == len(kinds):
        raise ValueError(refusals[0])
    return faults


def is_foreign(part: Callable[..., nn.Module]) -> bool:
    """Returns whether a part is defined outside of Triptych."""
    return str(_class_of(part).__module__).partition(".")[0] != "triptych"


def _class_of(part: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    return part.func if isinstance(part, partial) else part


def randomize(stack: Stack) -> None:
    """Adds noise to all weights, since initial zeros would hide faults, and disables dropout."""
    with torch.no_grad():
        for module in stack.modules():
            if isinstance(module, nn.Linear):
                initialize_linear(module)
        for parameter in stack.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    stack.eval()


class _StackCheck:
    """The checks of one stack; each returns what is wrong, or an empty string.

    Args:
        stack: with random weights.
    """

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.texts = [torch.randn(1, length, stack.d_model) for length in LENGTHS]
        self.memories = [torch.randn(1, length, stack.d_model) for length in MEMORY_LENGTHS]

    def faults(self) -> Iterator[tuple[str, str]]:
        """Yields the name of each failed check, and what is wrong."""
        for name, check in self.checks().items():
            try:
                fault = check()
            except Exception as error:  # any exception of a custom part is a fault
                fault = _describe(error)
            if fault:
                yield name, fault

    def checks(self) -> dict[str, Callable[[], str]]:
        """Returns the checks by name."""
        if self.stack.has_cross_attention:
            return {"cross-attention": self.cross_attention}
        always = {"padding": self.padding, "packing": self.packing}
        if self.stack.has_all_pairs:
            always["bias"] = self.bias
        if self.stack.causal or self.stack.has_all_pairs:
            always["causality"] = self.causality
        return always | ({"cache": self.cache} if self.stack.causal else {})

    def causality(self) -> str:
        """Checks that changed positions from t on, in row t, do not affect earlier ones.

        A stack that is not causal gets the first two positions as a prefix, which all others may attend to."""
        text = self.texts[-1]
        first = 0 if self.stack.causal else 2
        starts = torch.arange(first, text.shape[1])
        prefix = None if self.stack.causal else torch.full_like(starts, first)
        with torch.no_grad():
            expected = self.stack(text, prefix=None if prefix is None else prefix[:1])
            changed = torch.arange(text.shape[1]) >= starts[:, None]
            found = self.stack(torch.where(changed[..., None], torch.randn_like(text), text), prefix=prefix)
        earlier = ~changed[..., None]
        return _compare(found * earlier, expected * earlier, "a position attends to later ones")

    def padding(self) -> str:
        """Checks padding on the right and, for a decoder with a cache, on the left, as for prompts."""
        with torch.no_grad():
            expected = torch.cat([self.stack(text) for text in self.texts], dim=1)
        faults = []
        for on_the_left in (False, True) if self.stack.causal else (False,):
            x, mask = _pad(self.texts, on_the_left=on_the_left)
            positions = cache = None
            if on_the_left:
                positions = (mask.cumsum(1) - 1).clamp(min=0)
                cache = KeyValueCache(num_layers=len(self.stack.layers), capacity=x.shape[1])
            with torch.set_grad_enabled(not on_the_left):
                found = self.stack(x, mask=mask, positions=positions, cache=cache)[mask][None]
            faults.append(_compare(found, expected, "a text in a padded batch differs from the same text alone"))
            if not on_the_left:
                found.square().sum().backward()
                gradients = [parameter.grad for parameter in self.stack.parameters() if parameter.grad is not None]
                if not all(gradient.isfinite().all() for gradient in gradients):
                    faults.append("a padded batch has gradients that are not finite")
        return next(filter(None, faults), "")

    def packing(self) -> str:
        """Checks one packed row with all texts."""
        with torch.no_grad():
            expected = torch.cat([self.stack(text) for text in self.texts], dim=1)
            found = self.stack(torch.cat(self.texts, dim=1), documents=PackedLayout(LENGTHS, torch.device("cpu")))
        return _compare(found, expected, "a document in a packed row differs from the same document alone")

    def cache(self) -> str:
        """Checks decoding in steps of one and of more positions."""
        text = self.texts[-1]
        with torch.no_grad():
            return _compare(self._decode(text, None), self.stack(text), "decoding with a cache differs from one pass")

    def bias(self) -> str:
        """Checks that the outputs change with a bias."""
        attention = self.stack.layers[0].get_submodule("self_attention")
        assert isinstance(attention, MultiHeadAttention)
        x, sizes = self.texts[0], (1, attention.q.out_features // attention.head_dim, LENGTHS[0], LENGTHS[0])
        with torch.no_grad():
            attend = partial(attention, x, attention_mask=AttentionMask())
            without, with_bias = attend(bias=None), attend(bias=3 * torch.randn(sizes))
        ignored = torch.allclose(without, with_bias, atol=TOLERANCE)
        return "the bias of block/position=alibi and relative is not added to the scores" if ignored else ""

    def cross_attention(self) -> str:
        """Checks cross-attention; each text has its own memory."""
        pairs = list(zip(self.texts, self.memories, strict=True))
        with torch.no_grad():
            expected = [self.stack(text, memory=memory) for text, memory in pairs]
            together = torch.cat(expected, dim=1)
            (x, mask), (memory, memory_mask) = _pad(self.texts), _pad(self.memories)
            padded = self.stack(x, mask=mask, memory=memory, memory_mask=memory_mask)[mask][None]
            documents, sources = (PackedLayout(each, torch.device("cpu")) for each in (LENGTHS, MEMORY_LENGTHS))
            rows = torch.cat(self.texts, dim=1), torch.cat(self.memories, dim=1)
            packed = self.stack(rows[0], memory=rows[1], documents=documents, memory_documents=sources)
            decoded = self._decode(*pairs[-1])
        return (
            _compare(padded, together, "padding of the memory changes the output")
            or _compare(packed, together, "a packed row differs from each pair of a text and a memory alone")
            or _compare(decoded, expected[-1], "decoding with a cache differs from one pass")
        )

    def _decode(
        self, text: Float[Tensor, "1 length d_model"], memory: Float[Tensor, "1 source d_model"] | None
    ) -> Float[Tensor, "1 length d_model"]:
        length, source = text.shape[1], 0 if memory is None else memory.shape[1]
        cache = KeyValueCache(num_layers=len(self.stack.layers), capacity=length, memory_length=source)
        chunks = torch.split(text, [3, 1, length - 4], dim=1)
        return torch.cat([self.stack(x, memory=memory, cache=cache) for x in chunks], dim=1)


def _pad(
    texts: list[Float[Tensor, "1 _length d_model"]], *, on_the_left: bool = False
) -> tuple[Float[Tensor, "batch length d_model"], Tensor]:
    """Returns a batch with random padding and a mask, True at non-padding positions."""
    longest = max(text.shape[1] for text in texts)
    x, mask = torch.randn(len(texts), longest, texts[0].shape[2]), torch.zeros(len(texts), longest, dtype=torch.bool)
    for i, text in enumerate(texts):
        place = slice(longest - text.shape[1], None) if on_the_left else slice(text.shape[1])
        x[i, place], mask[i, place] = text[0], True
    return x, mask


def _compare(found: Tensor, expected: Tensor, fault: str) -> str:
    """Returns the fault if the two differ by more than the tolerance."""
    if found.shape != expected.shape:
        return f"{fault}: shape {[*found.shape]} instead of {[*expected.shape]}"
    largest = (found - expected).abs().max().item()
    return "" if largest <= TOLERANCE else f"{fault} (by up to {largest:.2g})"


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
