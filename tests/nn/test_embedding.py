"""Embeddings of tokens and of patches."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from parts import make_stack
from small_models import randomize
from triptych.models import DecoderOnly, EncoderOnly
from triptych.nn import Embedding, Head, PatchEmbedding

TOKENS = torch.tensor([[1, 2, 3], [4, 1, 1]])
TYPES = torch.tensor([[0, 1, 1], [1, 0, 0]])


@pytest.mark.parametrize("scale_embedding", [False, True])
@pytest.mark.parametrize("types", [None, TYPES], ids=["no types", "types"])
def test_is_the_scaled_token_plus_its_type(scale_embedding: bool, types: torch.Tensor | None) -> None:
    embedding = Embedding(vocab_size=5, d_model=16, scale_embedding=scale_embedding, num_token_types=2)
    found = embedding(TOKENS, types)
    for row in range(2):
        for i in range(3):
            token = embedding.tokens.weight[TOKENS[row, i]]
            kind = embedding.token_types.weight[0 if types is None else types[row, i]]
            assert_close(found[row, i], (4.0 if scale_embedding else 1.0) * token + kind)


def test_without_types_a_vector_is_the_tokens_alone() -> None:
    embedding = Embedding(vocab_size=5, d_model=16)
    assert sorted(embedding.state_dict()) == ["tokens.weight"]
    assert_close(embedding(TOKENS), 4 * embedding.tokens.weight[TOKENS])


def test_token_dropout_hides_whole_tokens() -> None:
    """Each is there, and 1 / (1 - p) as large, or not at all; but only in training."""
    embedding = Embedding(vocab_size=5, d_model=16, token_dropout=0.25)
    tokens = torch.randint(5, (40, 50))
    plain = embedding.eval()(tokens)
    assert_close(plain, 4 * embedding.tokens.weight[tokens])
    found = embedding.train()(tokens)
    is_there = (found != 0).any(-1)
    assert_close(found, plain / 0.75 * is_there[..., None])
    deviation = (0.25 * 0.75 / tokens.numel()) ** 0.5
    assert abs(is_there.float().mean() - 0.75) < 5 * deviation


@st.composite
def grids(draw: st.DrawFn) -> tuple[dict[str, Any], tuple[int, int]]:
    """Sizes, and how many patches there are in each direction; sides and patches need not be square."""
    rows, columns, height, width = (draw(st.integers(1, 4)) for _ in range(4))
    sizes = {"image_size": [rows * height, columns * width], "patch_size": [height, width]}
    return {**sizes, "num_channels": draw(st.integers(1, 3))}, (rows, columns)


class TestPatches:
    @given(grid=grids())
    def test_are_cut_row_by_row_and_flattened_by_channels(self, grid: tuple[dict[str, Any], tuple[int, int]]) -> None:
        """Against a plain loop."""
        sizes, (rows, columns) = grid
        embedding = PatchEmbedding(**sizes, d_model=5).double()
        (height, width), patch = sizes["image_size"], sizes["patch_size"]
        images = torch.randn(2, sizes["num_channels"], height, width, dtype=torch.float64)
        found = embedding(images)
        assert found.shape == (2, 1 + rows * columns, 5)
        assert embedding.length == 1 + rows * columns
        assert_close(found[:, 0], embedding.cls.expand(2, 5))
        for number, image in enumerate(images):
            for i in range(rows * columns):
                top, left = i // columns * patch[0], i % columns * patch[1]
                pixels = [
                    image[channel, top + y, left + x]
                    for channel in range(sizes["num_channels"])
                    for y in range(patch[0])
                    for x in range(patch[1])
                ]
                expected = embedding.patches.weight @ torch.stack(pixels) + embedding.patches.bias
                assert_close(found[number, 1 + i], expected)

    @given(grid=grids())
    def test_are_a_convolution_with_a_stride_of_its_width(self, grid: tuple[dict[str, Any], tuple[int, int]]) -> None:
        sizes, _ = grid
        embedding, patch = PatchEmbedding(**sizes, d_model=5), sizes["patch_size"]
        convolution = torch.nn.Conv2d(sizes["num_channels"], 5, patch, stride=patch)
        with torch.no_grad():
            convolution.weight.copy_(embedding.patches.weight.view_as(convolution.weight))
            convolution.bias.copy_(embedding.patches.bias.normal_())
        images = torch.randn(3, sizes["num_channels"], *sizes["image_size"])
        assert_close(embedding(images)[:, 1:], convolution(images).flatten(2).mT)

    @given(grid=grids())
    def test_statistics_are_of_each_channel(self, grid: tuple[dict[str, Any], tuple[int, int]]) -> None:
        sizes, _ = grid
        channels = range(1, 1 + sizes["num_channels"])
        mean, std = [0.3 * i for i in channels], [i / 4 for i in channels]
        embedding = PatchEmbedding(**sizes, d_model=5, bias=False, mean=mean, std=std).double()
        plain = PatchEmbedding(**sizes, d_model=5, bias=False).double()
        plain.load_state_dict(embedding.state_dict())
        assert embedding.state_dict().keys() == {"cls", "patches.weight"}
        images = torch.randn(2, sizes["num_channels"], *sizes["image_size"], dtype=torch.float64)
        expected = images.clone()
        for channel, (m, s) in enumerate(zip(mean, std, strict=True)):
            expected[:, channel] = (images[:, channel] - m) / s
        assert_close(embedding(images), plain(expected))

    @pytest.mark.parametrize(
        ("sizes", "message"),
        [
            (
                {"mean": [0.5]},
                r"image_embedding\.mean=\[0\.5\] and image_embedding\.std=None: expected numbers or null for both",
            ),
            ({"std": [0.5]}, r"image_embedding\.mean=None and image_embedding\.std=\[0\.5\]"),
            (
                {"mean": [0.5], "std": [0.0]},
                r"image_embedding\.std=\[0\.0\]: expected a number above 0 for each of 1 channels",
            ),
            (
                {"mean": [0.5, 0.5], "std": [1.0]},
                r"image_embedding\.mean=\[0\.5, 0\.5\]: expected a number for each of 1 channels",
            ),
            (
                {"mean": [0.5], "std": [1.0], "normalized": True},
                r"image_embedding\.mean=\[0\.5\]: expected image_embedding\.normalized=f",
            ),
            ({"image_size": [8]}, r"image_embedding\.image_size=\[8\]: expected \[height, width\]"),
            ({"patch_size": [0, 2]}, r"image_embedding\.patch_size=\[0, 2\]: expected"),
            ({"patch_size": [2, 3]}, r"patch_size=\[2, 3\] does not divide image_embedding\.image_size=\[8, 8\]"),
            ({"num_channels": 0}, r"image_embedding\.num_channels=0: expected at least 1"),
        ],
    )
    def test_sizes_that_cannot_be(self, sizes: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            PatchEmbedding(**{"image_size": [8, 8], "patch_size": [2, 2], "num_channels": 1, "d_model": 4, **sizes})

    def test_of_another_image(self) -> None:
        embedding = PatchEmbedding(image_size=[8, 8], patch_size=[2, 2], num_channels=1, d_model=4)
        with pytest.raises(ValueError, match=r"images of \(1, 8, 6\) \(channels, height, width\); not \(1, 8, 8\)"):
            embedding(torch.zeros(1, 1, 8, 6))


def network_of_patches(architecture: str, *, max_length: int = 7, **options: Any) -> EncoderOnly | DecoderOnly:
    embedding = PatchEmbedding(image_size=[4, 6], patch_size=[2, 2], num_channels=3, d_model=16)
    causal = architecture == "decoder_only"
    sizes: dict[str, Any] = {"num_layers": 2, "d_model": 16, "num_heads": 4, "d_ff": 24, "max_length": max_length}
    stack = make_stack(**sizes, causal=causal, position="learned")
    head = Head(d_model=16, num_outputs=3, pooling="last" if causal else "first")
    if causal:
        return DecoderOnly(embedding=embedding, decoder=stack, head=head, **options)
    return EncoderOnly(embedding=embedding, encoder=stack, head=head, **options)


@pytest.mark.parametrize("architecture", ["encoder_only", "decoder_only"])
class TestNetworksOfPatches:
    def test_every_patch_and_its_place_matter(self, architecture: str) -> None:
        network, image = randomize(network_of_patches(architecture)), torch.randn(1, 3, 4, 6)
        logits = network(image)
        assert logits.shape == (1, 3)
        for row in (0, 2):
            for column in (0, 2, 4):
                other = image.clone()
                other[0, 1, row, column] += 1
                assert not torch.allclose(network(other), logits, atol=1e-4)
        assert not torch.allclose(network(image.flip(-1)), logits, atol=1e-4)

    def test_a_batch_is_its_images(self, architecture: str) -> None:
        network, images = randomize(network_of_patches(architecture)), torch.randn(3, 3, 4, 6)
        assert_close(network(images), torch.cat([network(image[None]) for image in images]))

    def test_positions_are_as_many_as_patches(self, architecture: str) -> None:
        key = rf"model\.{architecture.removesuffix('_only')}\.max_length"
        for wrong in (6, 8):
            with pytest.raises(ValueError, match=rf"^max_length={wrong}: .* 7 positions; set {key}=7"):
                network_of_patches(architecture, max_length=wrong)

    def test_a_tie_is_rejected(self, architecture: str) -> None:
        with pytest.raises(
            ValueError, match=r"model\.tie_word_embeddings=true: patches have no table of tokens; set .*=false"
        ):
            network_of_patches(architecture, tie_word_embeddings=True)
