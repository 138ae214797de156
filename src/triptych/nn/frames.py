"""The embedding of audio frames.

Tested by tests/nn/test_frames.py and tests/nn/test_long_inputs_in_16_bits.py.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from triptych.nn.initialization import initialize_linear

Stem = Literal["stacked", "convolutional"]


class FrameEmbedding(nn.Module):
    """stem(augment(frames)): one vector per ``stride`` frames of a log-mel spectrogram.

    - ``stacked``: a linear layer on the concatenated frames.
    - ``convolutional``: x = gelu(conv_1(frames)), gelu(conv_2(x)), both over 3 frames, the second with the stride
      (Radford et al. 2022, section 2.2).

    Each convolution reads 0 beyond the end of an audio clip, however long the others in the batch are.

    Training masks parts (SpecAugment, Park et al. 2019, section 2): ``time_masks`` stretches of time, each of up to
    ``time_share`` of the frames, and ``mel_masks`` bands of up to ``mel_width`` rows, are 0.

    Args:
        rate: sampling rate, in samples per second.
        num_mels: number of values per frame.
        d_model: width.
        window: length of a frame, in seconds.
        hop: distance between two frames, in seconds.
        stem: see above.
        stride: number of frames per vector.
        normalized: whether to normalize each audio clip to mean 0 and variance 1 over all of its frames (false in
            Whisper).
        seconds: length to which audio is padded with silence, which counts as audio (Whisper: 30); None: no padding.
    """

    def __init__(
        self,
        *,
        rate: int,
        num_mels: int,
        d_model: int,
        window: float = 0.025,
        hop: float = 0.01,
        stem: Stem = "convolutional",
        stride: int = 2,
        normalized: bool = True,
        seconds: float | None = None,
        time_masks: int = 0,
        time_share: float = 0.1,
        mel_masks: int = 0,
        mel_width: int = 10,
    ) -> None:
        super().__init__()
        for name, value in (("rate", rate), ("num_mels", num_mels), ("stride", stride)):
            if value < 1:
                raise ValueError(f"model.embedding.{name}={value}: expected at least 1")
        for name, value in (("time_masks", time_masks), ("mel_masks", mel_masks), ("mel_width", mel_width)):
            if value < 0:
                raise ValueError(f"model.embedding.{name}={value}: expected 0 or more")
        if not 0 <= time_share <= 1:
            raise ValueError(f"model.embedding.time_share={time_share}: expected 0 to 1")
        if not 0 < hop <= window:
            raise ValueError(f"model.embedding.hop={hop}: expected more than 0, and at most window={window}")
        if hop * rate < 1:
            raise ValueError(f"model.embedding.rate={rate}: hop={hop} s is less than a sample; expected {1 / hop:.0f}")
        if seconds is not None and seconds < window:
            raise ValueError(f"model.embedding.seconds={seconds}: expected null, or at least window={window}")
        self.rate, self.num_mels, self.d_model, self.window, self.hop = rate, num_mels, d_model, window, hop
        self.normalized, self.seconds = normalized, seconds
        self.stride, self.time_masks, self.time_share = stride, time_masks, time_share
        self.mel_masks, self.mel_width = mel_masks, mel_width
        self.linear = nn.Linear(stride * num_mels, d_model) if stem == "stacked" else None
        self.convolutions = nn.ModuleList()
        if self.linear is not None:
            initialize_linear(self.linear)
            return
        for width, step in ((num_mels, 1), (d_model, stride)):
            convolution = nn.Conv1d(width, d_model, 3, step, padding=1)
            nn.init.xavier_uniform_(convolution.weight)
            if convolution.bias is not None:
                nn.init.zeros_(convolution.bias)
            self.convolutions.append(convolution)

    def forward(
        self, frames: Float[Tensor, "batch frames mels"], mask: Bool[Tensor, "batch frames"] | None = None
    ) -> Float[Tensor, "batch length d_model"]:
        """Computes the vectors; ``positions`` returns which of them are non-padding.

        Args:
            frames: frames of each audio clip; values beyond its end are ignored.
            mask: True at non-padding frames, which come first; None: no padding.
        """
        dtype = next(self.parameters()).dtype
        x = frames.to(torch.promote_types(dtype, torch.float32))
        if self.normalized:
            x = normalize_frames(x, mask)
        x = x.to(dtype)
        if mask is not None:
            x = x * mask[..., None]
        if self.training and (self.time_masks or self.mel_masks):
            x = x * self._kept(x, mask)
        if self.linear is not None:
            x = F.pad(x, (0, 0, 0, -x.shape[1] % self.stride))
            stacked: Tensor = self.linear(x.reshape(len(x), -1, self.stride * self.num_mels))
            return stacked
        for i, convolution in enumerate(self.convolutions):
            if i and mask is not None:
                x = x * mask[..., None]
            x = F.gelu(convolution(x.mT)).mT
        return x

    def positions(self, mask: Bool[Tensor, "batch frames"]) -> Bool[Tensor, "batch length"]:
        """Returns a mask that is True at the vectors of non-padding frames.

        Args:
            mask: True at non-padding frames.
        """
        return mask[:, :: self.stride]

    def count(self, frames: int) -> int:
        """Returns the number of vectors for a number of frames."""
        return -(-frames // self.stride)

    def _kept(
        self, x: Float[Tensor, "batch frames mels"], mask: Bool[Tensor, "batch frames"] | None
    ) -> Bool[Tensor, "batch frames mels"]:
        """Returns a mask that is False at masked values."""
        count, num_frames, num_mels = x.shape
        # In float32, whatever the network's type: float16 has no odd numbers above 2048.
        of_each = x.new_ones(count, dtype=torch.float32)
        lengths = num_frames * of_each if mask is None else mask.sum(1, dtype=torch.float32)
        in_time = _is_hidden(self.time_masks, num_frames, lengths, self.time_share * lengths)
        in_mels = _is_hidden(self.mel_masks, num_mels, num_mels * of_each, self.mel_width * of_each)
        return ~(in_time[..., None] | in_mels[:, None])


def normalize_frames(
    x: Float[Tensor, "batch frames mels"], mask: Bool[Tensor, "batch frames"] | None
) -> Float[Tensor, "batch frames mels"]:
    """(x - m) / s, with mean m and standard deviation s of the non-padding frames of each audio clip.

    Args:
        x: in float32 at least, since sums over long audio exceed float16.
        mask: True at non-padding frames; None: no padding.
    """
    real = x.new_ones(x.shape[:2]) if mask is None else mask.to(x.dtype)
    count = (real.sum(1) * x.shape[2])[:, None, None]
    centred = (x - (x * real[..., None]).sum((1, 2), keepdim=True) / count) * real[..., None]
    return centred * (centred.square().sum((1, 2), keepdim=True) / count + 1e-5).rsqrt()


def _is_hidden(
    num_masks: int, size: int, lengths: Float[Tensor, " batch"], widest: Float[Tensor, " batch"]
) -> Bool[Tensor, "batch size"]:
    """Returns a mask, True in spans of uniform widths 0, ..., widest at uniform positions within the lengths."""
    draws = torch.rand(2, num_masks, len(lengths), dtype=lengths.dtype, device=lengths.device)
    widths = torch.minimum((draws[0] * (widest + 1)).floor(), lengths)
    starts = (draws[1] * (lengths - widths + 1)).floor()
    places = torch.arange(size, device=lengths.device)
    return ((places >= starts[..., None]) & (places < (starts + widths)[..., None])).any(0)
