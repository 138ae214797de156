"""Sounds that soundfile and scipy wrote, in many formats and all widths, beside the samples that were given to them."""

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import soundfile
from scipy.io import wavfile

from triptych.data import read_audio

RATE = 8000
TONE = 0.6 * np.sin(np.arange(2000) * 0.3)
WIDTHS = {
    "PCM_U8": 2**-7, "PCM_S8": 2**-7, "PCM_16": 2**-15, "PCM_24": 2**-15, "PCM_32": 2**-15, "FLOAT": 2**-15,
    "DOUBLE": 2**-15, "ALAC_16": 2**-15, "ULAW": 2**-5, "ALAW": 2**-5,
}  # fmt: skip
"""By the format of a sample, the largest error; the reader keeps 16 bits. The last two have steps that grow."""
FORMATS = ("WAV", "WAVEX", "RF64", "W64", "FLAC", "AIFF", "AU", "CAF", "NIST")


@pytest.mark.parametrize("kind", FORMATS)
def test_formats_without_losses(kind: str) -> None:
    widths = WIDTHS.keys() & soundfile.available_subtypes(kind).keys()
    assert {"PCM_16", "PCM_24"} <= widths
    for width in sorted(widths):
        for channels in (1, 2):
            file = BytesIO()
            both = np.stack([TONE, 0.5 * TONE][:channels], axis=1)
            soundfile.write(file, both, RATE, subtype=width, format=kind)
            sound, done = read_audio(Path(f"x.{kind}"), file.getvalue())
            assert (sound.rate, done) == (RATE, ()), width
            np.testing.assert_allclose(sound.samples, both.mean(1), atol=2 * WIDTHS[width], err_msg=width)


@pytest.mark.parametrize(("kind", "width"), [("OGG", "VORBIS"), ("OGG", "OPUS")])
def test_formats_with_losses_keep_pitch_and_loudness(kind: str, width: str) -> None:
    file = BytesIO()
    soundfile.write(file, TONE, RATE, subtype=width, format=kind)
    sound, _ = read_audio(Path(f"x.{kind}"), file.getvalue())
    found = sound.samples[: len(TONE)]
    assert abs(np.abs(np.fft.rfft(found, 2000)).argmax() - np.abs(np.fft.rfft(TONE)).argmax()) <= 1
    assert np.square(found).mean() == pytest.approx(np.square(TONE).mean(), rel=0.1)


@pytest.mark.parametrize("kind", ["u1", "<i2", ">i2", "<i4", ">i4", "<f4", ">f4", "<f8", ">f8"])
def test_widths_by_scipy(kind: str) -> None:
    """Of either order of bytes; scipy writes what numpy has, in the range that it has."""
    scale = {"u1": 2**7 - 1, "i2": 2**15 - 1, "i4": 2**31 - 1}.get(kind[-2:], 1)
    samples = (TONE * scale + (128 if kind == "u1" else 0)).astype(kind)
    file = BytesIO()
    wavfile.write(file, RATE, samples)
    sound, done = read_audio(Path("x.wav"), file.getvalue())
    assert (sound.rate, done) == (RATE, ())
    np.testing.assert_allclose(sound.samples, TONE, atol=2**-6 if kind == "u1" else 2**-13)
