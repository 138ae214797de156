"""Networks that read an image before a text, or in an encoder: who sees what; decoding with a cache."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from parts import POSITIONS
from small_models import random_model
from triptych.models import DecoderOnly, EncoderDecoder, PrefixLM
from triptych.nn import Network, PatchEmbedding

assert_close = partial(torch.testing.assert_close, atol=1e-5, rtol=1e-5)
VOCAB, WIDTH, LENGTH = 11, 16, 5
ARCHITECTURES = ("full", "decoder_only", "prefix_lm")
KINDS: dict[str, type[Network]] = {
    "full": EncoderDecoder, "decoder_only": DecoderOnly, "prefix_lm": PrefixLM
}  # fmt: skip
every_position = pytest.mark.parametrize("position", POSITIONS)
every_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES)


def image_network(architecture: str, position: str = "rotary", **options: Any) -> Any:
    """A network that reads texts, made to read images of 2 by 2 patches too."""
    model = random_model(architecture, position=position, d_model=WIDTH, vocab_size=VOCAB, **options)
    torch.manual_seed(1)
    embedding = PatchEmbedding(image_size=[4, 6], patch_size=[2, 3], num_channels=2, d_model=WIDTH, normalized=True)
    for parameter in embedding.double().parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    stacks = {name: getattr(model, name) for name in ("encoder", "decoder") if hasattr(model, name)}
    return KINDS[architecture](  # type: ignore[call-arg]
        embedding=model.embedding, source_embedding=embedding, head=model.head, **stacks
    ).eval()


def answer(network: Any, tokens: Tensor, images: Tensor) -> Tensor:
    if isinstance(network, EncoderDecoder):
        return network(images, tokens)
    prefix = {"prefix": torch.ones(len(tokens), dtype=torch.long)} if isinstance(network, PrefixLM) else {}
    return network(tokens, source=images, **prefix)


def inputs() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(3, 2, 4, 6, dtype=torch.float64, generator=generator)
    return images, torch.randint(VOCAB, (3, 6), generator=generator)


@every_position
@every_architecture
def test_a_text_sees_its_image_alone(architecture: str, position: str) -> None:
    options = {"max_length": LENGTH} if architecture == "full" else {}
    network = image_network(architecture, position, **options)
    images, tokens = inputs()
    tokens = tokens[:, :LENGTH]
    together = answer(network, tokens, images)
    assert together.shape == (3, LENGTH, VOCAB)
    for row, image, text in zip(together, images, tokens, strict=True):
        assert_close(answer(network, text[None], image[None])[0], row)
    for patch in (slice(0, 2), slice(2, 4)):  # of rows
        other = images.clone()
        other[:, :, patch, :3] += torch.rand(2, 2, 3, dtype=torch.float64)
        assert not torch.allclose(answer(network, tokens, other), together)


@every_architecture
def test_who_sees_whom(architecture: str) -> None:
    """Patches see each other, but not in a causal stack; and never the text, whose tokens see what came before."""
    network = image_network(architecture)
    images, tokens = inputs()
    states = dict[str, Tensor]()
    stack = network.encoder if architecture == "full" else network.decoder

    def states_of(images: Tensor, tokens: Tensor) -> Tensor:
        hook = stack.register_forward_hook(lambda module, given, output: states.update(found=output))
        answer(network, tokens, images)
        hook.remove()
        return states["found"]

    before = states_of(images, tokens)
    other = tokens.clone()
    other[:, 3] = (other[:, 3] + 1) % VOCAB
    after = states_of(images, other)
    if architecture == "full":
        assert_close(after, before)
    else:
        assert_close(after[:, : LENGTH + 3], before[:, : LENGTH + 3])
        assert not torch.allclose(after[:, LENGTH + 3], before[:, LENGTH + 3])
    changed = images.clone()
    changed[:, :, 2:, 3:] += torch.rand(2, 2, 3, dtype=torch.float64)  # the last patch, but see normalized
    network.source_embedding.normalized = False
    before, after = states_of(images, tokens), states_of(changed, tokens)
    is_same = torch.isclose(before, after).all(-1).all(0)
    earlier_see_it = architecture != "decoder_only"
    assert is_same[: LENGTH - 1].tolist() == [not earlier_see_it] * (LENGTH - 1)
    assert not is_same[LENGTH - 1 :].any()


@every_position
@every_architecture
def test_decoding_with_a_cache_is_reading_it_all(architecture: str, position: str) -> None:
    options = {"max_length": LENGTH} if architecture == "full" else {}
    network = image_network(architecture, position, **options)
    images, tokens = inputs()
    tokens = tokens[:, :LENGTH]
    expected = answer(network, tokens, images)
    if architecture == "full":
        next_token = network.continuation(images, None, capacity=LENGTH)
    else:
        next_token = network.continuation(None, capacity=LENGTH, source=images)
    with torch.no_grad():
        for place in range(LENGTH):
            assert_close(next_token(tokens[:, place : place + 1]), expected[:, place])
            if place == 2:  # some end
                kept = torch.tensor([2, 0])
                next_token.select(kept)
                tokens, expected = tokens[kept], expected[kept]


def test_each_image_is_made_alike() -> None:
    """Brightness and contrast do not matter."""
    embedding = PatchEmbedding(image_size=[4, 6], patch_size=[2, 3], num_channels=2, d_model=8, normalized=True)
    images = torch.rand(3, 2, 4, 6)
    torch.testing.assert_close(embedding(2 * images + 1), embedding(images), atol=1e-3, rtol=1e-3)
    plain = (images - images.mean((1, 2, 3), keepdim=True)) / (
        images.var((1, 2, 3), correction=0, keepdim=True) + 1e-5
    ).sqrt()
    embedding.normalized = False
    expected = embedding(plain)
    embedding.normalized = True
    torch.testing.assert_close(embedding(images), expected)


def test_an_encoder_has_as_many_positions() -> None:
    with pytest.raises(ValueError, match=r"max_length=7: \[cls\] and the patches of an image are 5 positions; set mod"):
        image_network("full", "sinusoidal", max_length=7)
