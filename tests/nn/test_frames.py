"""The vectors of frames: against torch's layers, whatever stands beside them, and what SpecAugment hides."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from triptych.nn.frames import FrameEmbedding, normalize_frames


def make(**options: Any) -> FrameEmbedding:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"rate": 8000, "num_mels": 6, "d_model": 8, "normalized": False} | options
    return FrameEmbedding(**sizes).double()


def frames(*lengths: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    content = torch.randn(len(lengths), max(lengths), 6, dtype=torch.float64, generator=generator)
    return content, torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


@given(
    stem=st.sampled_from(["stacked", "convolutional"]),
    stride=st.integers(1, 4),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    normalized=st.booleans(),
)
@settings(max_examples=60)
def test_a_sound_has_the_same_vectors_by_itself(stem: str, stride: int, lengths: list[int], normalized: bool) -> None:
    embedding = make(stem=stem, stride=stride, normalized=normalized)
    content, mask = frames(*lengths)
    together, real = embedding(content, mask), embedding.positions(mask)
    assert together.shape[:2] == real.shape
    for row, is_real, x, length in zip(together, real, content, lengths, strict=True):
        alone = embedding(x[None, :length])[0]
        assert int(is_real.sum()) == len(alone) == embedding.count(length)
        torch.testing.assert_close(row[is_real], alone)


def test_the_convolutions_of_whisper() -> None:
    embedding = make()
    first, second = embedding.convolutions
    content, _ = frames(7)
    expected = F.gelu(F.conv1d(content.mT, first.weight, first.bias, padding=1))
    expected = F.gelu(F.conv1d(expected, second.weight, second.bias, stride=2, padding=1)).mT
    torch.testing.assert_close(embedding(content), expected)


def test_stacked_frames_by_hand() -> None:
    embedding = make(stem="stacked", stride=3)
    content, _ = frames(4)
    assert embedding.linear is not None
    weight, bias = embedding.linear.weight, embedding.linear.bias
    rows = [content[0, :3].flatten(), torch.cat((content[0, 3], torch.zeros(12, dtype=torch.float64)))]
    torch.testing.assert_close(embedding(content)[0], torch.stack([weight @ row + bias for row in rows]))


def test_a_normalized_sound_is_as_loud_as_any() -> None:
    content, mask = frames(9, 4)
    louder = 3 + 5 * content
    torch.testing.assert_close(normalize_frames(louder, mask), normalize_frames(content, mask), atol=1e-4, rtol=1e-4)
    for row, length in zip(normalize_frames(content, mask), (9, 4), strict=True):
        values = row[:length]
        assert float(values.mean()) == pytest.approx(0, abs=1e-9)
        assert float(values.square().mean()) == pytest.approx(1, abs=1e-4)
        assert not row[length:].any()


class TestSpecAugment:
    def hidden(self, embedding: FrameEmbedding, mask: Tensor) -> Tensor:
        content = torch.ones(*mask.shape, 6, dtype=torch.float64)
        return ~embedding._kept(content, mask)

    def test_stretches_of_time_are_within_the_sound(self) -> None:
        embedding, (_, mask) = make(time_masks=1, time_share=0.5), frames(*[20, 8] * 200)
        found = self.hidden(embedding, mask)
        assert (found == found[..., :1]).all()  # all mels
        found = found[..., 0]
        assert not (found & ~mask).any()
        for row, length in zip(found, [20, 8] * 200, strict=True):
            places = row.nonzero()[:, 0].tolist()
            assert places == list(range(places[0], places[-1] + 1)) if places else True
            assert len(places) <= length // 2
        widths = found[::2].sum(1).bincount(minlength=11)
        assert (widths > 0).all()  # 0, ..., 10 frames
        assert (found[::2].sum(0) > 0).all()

    def test_bands_of_mels_are_of_all_time(self) -> None:
        embedding, (_, mask) = make(mel_masks=2, mel_width=2), frames(*[5] * 200)
        found = self.hidden(embedding, mask)
        assert (found == found[:, :1]).all()
        assert set(found[:, 0].sum(1).tolist()) == {0, 1, 2, 3, 4}

    def test_only_training_hides(self) -> None:
        embedding, (content, mask) = make(time_masks=2, mel_masks=2), frames(9, 4)
        torch.manual_seed(3)
        assert not torch.equal(embedding(content, mask), embedding.eval()(content, mask))
        torch.testing.assert_close(embedding(content, mask), make()(content, mask))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stride": 0}, "model.embedding.stride=0: expected at least 1"),
        ({"time_masks": -1}, "model.embedding.time_masks=-1: expected 0 or more"),
        ({"time_share": 1.5}, "model.embedding.time_share=1.5: expected 0 to 1"),
        ({"seconds": 0.02}, "model.embedding.seconds=0.02: expected null, or at least window=0.025"),
        ({"rate": 99}, "model.embedding.rate=99: hop=0.01 s is less than a sample; expected 100"),
        ({"hop": 0.03}, "model.embedding.hop=0.03: expected more than 0, and at most window=0.025"),
    ],
)
def test_mistakes(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        make(**options)
