"""Sums over long inputs do not depend on the type of the weights: each part beside itself in float64."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from parts import dual_encoder
from triptych.nn import FrameEmbedding, Head, PatchEmbedding

LENGTHS = (3001, 1207)


@pytest.fixture(params=[torch.float16, torch.bfloat16], autouse=True)
def dtype(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    """That of the weights, and torch's own too, as within a step of 16-true and bf16-true."""
    torch.manual_seed(0)
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(torch.float32)


def numbers(*size: int, mean: float = 0.0) -> Tensor:
    return mean + torch.randn(size, dtype=torch.float32)


def mask() -> Tensor:
    return torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]


def assert_near(found: Tensor, expected: Tensor) -> None:
    """Within eight units in the last place of the largest."""
    bound = 8 * torch.finfo(found.dtype).eps * float(expected.detach().abs().max())
    torch.testing.assert_close(found.double(), expected, atol=bound, rtol=0)


def assert_as_in_float64(part: nn.Module, *inputs: Any) -> None:
    wide = [x.double() if x.is_floating_point() else x for x in inputs]
    assert_near(part(*inputs), deepcopy(part).double()(*wide))


@pytest.mark.parametrize("stem", ["stacked", "convolutional"])
def test_sounds_are_normalized(stem: Any) -> None:
    """With a mean far from 0, as log-mel frames have it."""
    content = numbers(2, max(LENGTHS), 80, mean=-3.0).to(torch.get_default_dtype())
    embedding = FrameEmbedding(rate=16000, num_mels=80, d_model=16, stem=stem, stride=1)
    assert_as_in_float64(embedding, content, mask())
    assert_as_in_float64(embedding, content)


def test_images_are_normalized() -> None:
    images = numbers(1, 3, 224, 224, mean=4.0).to(torch.get_default_dtype())
    part = PatchEmbedding(image_size=[224, 224], patch_size=[32, 32], num_channels=3, d_model=8, normalized=True)
    assert_as_in_float64(part, images)


def test_states_are_averaged() -> None:
    states = numbers(2, max(LENGTHS), 16, mean=40.0).to(torch.get_default_dtype())
    assert_as_in_float64(Head(d_model=16, num_outputs=3, pooling="mean"), states, mask())


def test_the_same_frames_are_hidden() -> None:
    """Odd lengths and places too."""
    embedding = FrameEmbedding(rate=16000, num_mels=80, d_model=16, time_masks=3, mel_masks=2)
    content = numbers(2, max(LENGTHS), 80)
    for real in (mask(), None):
        found, expected = [], []
        for kept, x in ((found, content.to(torch.get_default_dtype())), (expected, content)):
            torch.manual_seed(1)
            kept.append(embedding._kept(x, real))
            torch.set_default_dtype(torch.float32)
        assert torch.equal(found[0], expected[0])


def test_towers_end_in_vectors_of_one_length(dtype: torch.dtype) -> None:
    network = dual_encoder("encoder_only", initial_scale=100.0).to(dtype)
    vectors = network(torch.randint(11, (4, 6)), source=numbers(4, 2, 4, 6))
    squares = vectors.double().square().sum(-1)
    torch.testing.assert_close(squares, torch.full_like(squares, float(network.scale)), rtol=1e-5, atol=0)
