"""Audio: reading, samples, and log-mel spectrograms.

Tested by tests/data/test_audio.py and tests/data/test_foreign_audio.py.
"""

import hashlib
import struct
import wave
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from io import BytesIO
from math import gcd
from pathlib import Path

import numpy as np
from jaxtyping import Float

from triptych.config import error_prefix

LOUDEST, FLOOR = 8.0, 1e-10
"""Dynamic range of the spectrogram in decades below its maximum; and the minimum energy."""
OVERSHOOT, FULL_SCALE = 2.0, 2.0**15
"""The largest peak of samples from -1 to 1, since MP3 decoders may exceed 1; and the largest peak of samples in the
range of 16-bit integers."""
RESCALED = "rescaled (floats in the range of 16-bit integers)"

ADPCM = (0x0002, 0x0011)
"""WAV formats whose blocks contain several frames and state how many: Microsoft and IMA ADPCM."""
STREAMED = 0x7FFFF000
"""The smallest size in a WAV header that means that the writer did not know the size yet."""


@dataclass(frozen=True, slots=True)
class Audio:
    """Samples of one channel.

    Attributes:
        rate: samples per second.
        content: 16-bit samples, little-endian.
        speaker: name of the speaker; empty if unknown.
        digest: SHA-256 of the content that was left out; empty: the content is there.
    """

    rate: int
    content: bytes
    speaker: str = ""
    digest: str = ""

    @classmethod
    def of(cls, samples: Float[np.ndarray, " samples"] | Sequence[float], rate: int) -> "Audio":
        """Quantizes samples from -1 to 1 to 16 bits; samples up to ``OVERSHOOT`` are clipped.

        Raises:
            ValueError: no samples, a sample that is not finite, or one beyond ``OVERSHOOT``.
        """
        values = np.asarray(samples, dtype=np.float64)
        if not values.size or not np.isfinite(values).all():
            raise ValueError("a sample is not a finite number" if values.size else "no samples")
        if (peak := np.abs(values).max()) > OVERSHOOT:
            raise ValueError(f"the peak is {peak:.6g}; expected samples from -1 to 1 (divide 16-bit integers by 2**15)")
        return cls(rate, np.clip(np.rint(values * 2**15), -(2**15), 2**15 - 1).astype("<i2").tobytes())

    @property
    def samples(self) -> Float[np.ndarray, " samples"]:
        """Samples from -1 to 1."""
        return np.frombuffer(self.content, "<i2").astype(np.float32) / 2**15

    @property
    def seconds(self) -> float:
        """Duration."""
        return len(self.content) / 2 / self.rate

    @property
    def is_silent(self) -> bool:
        """Whether all samples are equal."""
        samples = np.frombuffer(self.content, "<i2")
        return not samples.size or bool(samples.min() == samples.max())

    def resampled(self, rate: int) -> "Audio":
        """Returns the audio at another rate, resampled by scipy's polyphase filter."""
        if rate == self.rate:
            return self
        from scipy.signal import resample_poly  # type: ignore[import-untyped]  # takes a second to import

        common = gcd(rate, self.rate)
        samples = resample_poly(self.samples.astype(np.float64), rate // common, self.rate // common)
        return replace(Audio.of(np.clip(samples, -1, 1), rate), speaker=self.speaker)

    def __repr__(self) -> str:
        """Short, and equal for equal audio: the fingerprint of a corpus hashes it."""
        spoken = f", speaker={self.speaker!r}" if self.speaker else ""
        return f"Audio(rate={self.rate}, sha256={self.sha256}{spoken})"

    @property
    def sha256(self) -> str:
        """SHA-256 of the content."""
        return self.digest or hashlib.sha256(self.content).hexdigest()


def read_audio(path: Path, content: bytes | None = None) -> tuple[Audio, tuple[str, ...]]:
    """Reads an audio file; multiple channels are averaged.

    For float files the peak determines the range. Up to ``OVERSHOOT`` the range is -1 to 1, and louder samples are
    clipped. Up to ``FULL_SCALE`` it is that of 16-bit integers, as scipy writes them, and the samples are divided by
    2^15. Integer files have no peak above 1.

    Args:
        path: audio file; only used in messages if ``content`` is given.
        content: content of the file; None: read ``path``.

    Returns:
        The audio, and the changes made to it: ``RESCALED``, "clipped (above 1)".

    Raises:
        ValueError: soundfile is not installed; or the file is not audio, is truncated, has no samples, a sample that is
            not finite, or a larger peak.
    """
    if find_spec("soundfile") is None:
        raise ValueError(f"{path}: soundfile is not installed; type pip install soundfile, or pip install '.[sound]'")
    import soundfile  # type: ignore[import-untyped]  # optional dependency

    try:
        samples, rate = soundfile.read(path if content is None else BytesIO(content), dtype="float64", always_2d=True)
        check_is_whole(path, path.read_bytes() if content is None else content)
    except (soundfile.LibsndfileError, RuntimeError, TypeError) as error:
        raise ValueError(f"{path}: not a readable audio file ({str(error).rpartition(': ')[2]})") from None
    done = []
    peak = np.abs(samples).max(initial=0)
    if FULL_SCALE < peak < np.inf:
        raise ValueError(
            f"{path}: the peak is {peak:.6g}; expected at most 1, or {FULL_SCALE:.0f} for floats in the range of "
            "16-bit integers"
        )
    if OVERSHOOT < peak < np.inf:
        samples = samples / FULL_SCALE
        done.append(RESCALED)
    mono = samples.mean(1)
    if np.abs(mono).max(initial=0) > 1:
        done.append("clipped (above 1)")
    with error_prefix(f"{path}: "):
        return Audio.of(mono, rate), tuple(done)


def check_is_whole(path: Path, content: bytes) -> None:
    """Compares the number of samples in a WAV file with its header, since libsndfile accepts truncated files.

    https://www.mmsp.ece.mcgill.ca/Documents/AudioFormats/WAVE/WAVE.html
    """
    order = {b"RIFF": "<", b"RIFX": ">"}.get(content[:4])
    place, width, frames = 12, 1, 1  # bytes per block, frames per block
    while order and place + 8 <= len(content):
        name, size = struct.unpack_from(f"{order}4sI", content, place)
        place += 8
        if name == b"fmt ":
            kind, width = struct.unpack_from(f"{order}H10xH", content, place)
            (frames,) = struct.unpack_from(f"{order}18xH", content, place) if kind in ADPCM else (1,)
        if name == b"data":
            if len(content) - place < size < STREAMED:
                promised, there = (num_bytes // max(width, 1) * frames for num_bytes in (size, len(content) - place))
                raise ValueError(f"{path}: truncated: {there:,} frames; its header specifies {promised:,}")
            return
        place += size + size % 2


def audio_to_wav(sound: Audio) -> bytes:
    """Encodes audio as a WAV file."""
    file = BytesIO()
    with wave.open(file, "wb") as target:
        target.setnchannels(1)
        target.setsampwidth(2)
        target.setframerate(sound.rate)
        target.writeframes(sound.content)
    return file.getvalue()


def log_mel_spectrogram(
    samples: Float[np.ndarray, " samples"], *, rate: int, num_mels: int, window: float = 0.025, hop: float = 0.01
) -> Float[np.ndarray, "frames mels"]:
    """Computes the log-mel spectrogram of Whisper (Radford et al. 2022, section 2.2), with one frame per ``hop``
    seconds.

    x = log10 max(M |F w|^2, 1e-10), y = (max(x, max x - 8) + 4) / 4, where F w is the Fourier transform of the samples
    around the frame times a Hann window, and M are the triangular filters of ``mel_filters``. Both ends are padded by
    reflection.

    Args:
        samples: from -1 to 1.
        rate: samples per second.
        window: seconds.
        hop: seconds.

    Raises:
        ValueError: fewer samples than half a window.
    """
    size, step = round(window * rate), round(hop * rate)
    if len(samples) <= size // 2:
        raise ValueError(f"{len(samples)} samples; expected more than {size // 2}")
    padded = np.pad(samples.astype(np.float64), size // 2, mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, size)[::step][: len(samples) // step]
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)
    energy = np.abs(np.fft.rfft(windows * hann)) ** 2 @ mel_filters(rate, size, num_mels)
    decades = np.log10(np.maximum(energy, FLOOR))
    return np.asarray((np.maximum(decades, decades.max() - LOUDEST) + 4) / 4, np.float32)


@cache
def mel_filters(rate: int, size: int, num_mels: int) -> Float[np.ndarray, "frequencies mels"]:
    """Computes triangular filters of equal area, with corners at equal distances on Slaney's mel scale (1998), from 0
    to half the rate. The scale is linear below 1000 Hz and has 27 steps from there to 6400 Hz.

    Args:
        rate: samples per second.
        size: samples per window.
    """
    corners = _hertz(np.linspace(0, _mel(rate / 2), num_mels + 2))
    places = np.fft.rfftfreq(size, 1 / rate)[:, None]
    rising = (places - corners[:-2]) / (corners[1:-1] - corners[:-2])
    falling = (corners[2:] - places) / (corners[2:] - corners[1:-1])
    triangles = np.maximum(0, np.minimum(rising, falling))
    return np.asarray(triangles * 2 / (corners[2:] - corners[:-2]))


def _mel(hertz: float) -> float:
    return 3 * hertz / 200 if hertz < 1000 else 15 + 27 * np.log(hertz / 1000) / np.log(6.4)


def _hertz(mel: Float[np.ndarray, " mels"]) -> Float[np.ndarray, " mels"]:
    return np.where(mel < 15, 200 * mel / 3, 1000 * 6.4 ** ((np.maximum(mel, 15) - 15) / 27))
