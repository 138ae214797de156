"""Documents packed into one row: what comes out is what each gives by itself, and what a padded batch gives."""

from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from parts import POSITIONS, QK_NORMS, RESIDUALS
from small_models import build, pad, random_model

VOCAB = 11
ARCHITECTURES = ["encoder_only", "decoder_only", "full"]

every_model = pytest.mark.parametrize("architecture", ARCHITECTURES)
every_position = pytest.mark.parametrize("position", POSITIONS)
lengths = st.lists(st.tuples(st.integers(1, 7), st.integers(1, 7)), min_size=1, max_size=5)
"""Of the documents, and of their sources."""
options = st.fixed_dictionaries(
    {
        "pool": st.sampled_from(["none", "first", "mean", "last"]),
        "norm": st.sampled_from(["layer_norm", "rms_norm"]),
        "residual": st.sampled_from([*RESIDUALS]),
        "num_kv_heads": st.sampled_from([None, 2, 1]),
        "sliding_windows": st.sampled_from([None, [2, None]]),
        "qk_norm": st.sampled_from(QK_NORMS),
        "softcap": st.sampled_from([None, 2.0]),
        "first": st.sampled_from([0, 2]),
    }
)

Texts = tuple[list[Tensor], list[Tensor]]


def texts_of(sizes: list[tuple[int, int]]) -> Texts:
    documents, sources = ([torch.randint(VOCAB, (size,)) for size in side] for side in zip(*sizes, strict=True))
    return documents, sources


def packed(model: Any, texts: Texts) -> Tensor:
    """The logits, a row for each position, or for each document where the head pools."""
    sides = texts[:1] if model.architecture != "full" else texts[::-1]
    names = ("lengths",) if model.architecture != "full" else ("source_lengths", "lengths")
    sizes = {name: [len(text) for text in side] for name, side in zip(names, sides, strict=True)}
    logits: Tensor = model(*(torch.cat(side)[None] for side in sides), **sizes)
    return logits.flatten(0, -2)


def padded(model: Any, texts: Texts) -> Tensor:
    """The same of a padded batch."""
    (tokens, mask), (source, source_mask) = (pad([text[None] for text in side]) for side in texts)
    logits: Tensor = model(source, tokens, source_mask, mask) if model.architecture == "full" else model(tokens, mask)
    return logits[mask] if model.head.pooling == "none" else logits


def check(model: Any, texts: Texts, tolerance: float) -> None:
    """Losses and gradients."""
    results = []
    for logits in (packed(model, texts), padded(model, texts)):
        model.zero_grad()
        loss = cross_entropy(logits, torch.arange(len(logits)) % VOCAB, reduction="sum", label_smoothing=0.1)
        loss.backward()
        results.append((loss.detach(), {name: p.grad for name, p in model.named_parameters()}))
    (found, gradients), (expected, others) = results
    assert_close(found, expected, rtol=tolerance, atol=tolerance)
    for name, gradient in others.items():
        assert_close(gradients[name], gradient, rtol=tolerance, atol=tolerance, msg=name)


@every_model
@every_position
class TestPacked:
    @settings(max_examples=3)
    @given(options=options, sizes=lengths)
    def test_losses_and_gradients_are_those_of_a_padded_batch(
        self, architecture: str, position: str, options: dict[str, Any], sizes: list[tuple[int, int]]
    ) -> None:
        model, texts = random_model(architecture, position=position, **options), texts_of(sizes)
        check(model, texts, 1e-12)
        check(model.float(), texts, 1e-5)

    @settings(max_examples=3)
    @given(options=options, sizes=lengths, chosen=st.integers(0, 4))
    @example(options={"pool": "none"}, sizes=[(3, 2), (3, 2)], chosen=1)
    def test_a_document_is_read_as_if_it_stood_alone(
        self, architecture: str, position: str, options: dict[str, Any], sizes: list[tuple[int, int]], chosen: int
    ) -> None:
        """The others change nothing of it, to the last bit."""
        model, (documents, sources) = random_model(architecture, position=position, **options), texts_of(sizes)
        chosen %= len(sizes)

        def of_chosen(texts: Texts) -> Tensor:
            logits = packed(model, texts)
            return logits.split([len(text) for text in texts[0]] if model.head.pooling == "none" else 1)[chosen]

        def others_changed(side: list[Tensor]) -> list[Tensor]:
            return [text if i == chosen else (text + 1) % VOCAB for i, text in enumerate(side)]

        found = of_chosen((documents, sources))
        assert torch.equal(found, of_chosen((others_changed(documents), others_changed(sources))))
        alone = packed(model, ([documents[chosen]], [sources[chosen]]))
        assert_close(found, alone, rtol=1e-12, atol=1e-12)


@every_model
def test_under_autocast(architecture: str) -> None:
    model, texts = build(architecture, position="rotary").train(), texts_of([(5, 3), (2, 6), (7, 7)])
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = packed(model, texts), padded(model, texts)
    assert found.dtype == torch.bfloat16
    assert_close(found, expected, rtol=0.02, atol=0.02)


@every_model
def test_positions_are_counted_in_each_document(architecture: str) -> None:
    """More of them in the row than the table has; not in one document."""
    model = build(architecture, position="learned", max_length=4)
    packed(model, texts_of([(4, 4), (4, 3)]))
    with pytest.raises(ValueError, match=r"5 positions, but shape\.max_length=4"):
        packed(model, texts_of([(5, 4), (1, 3)]))
