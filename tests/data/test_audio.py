"""Log-mel frames by their formula and beside a public implementation."""

import math
import wave
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.io import wavfile  # type: ignore[import-untyped]
from transformers import WhisperFeatureExtractor

from triptych.data.audio import RESCALED, Audio, log_mel_spectrogram, mel_filters, read_audio

RATE = 16000


def noise(samples: int, seed: int = 0) -> np.ndarray:
    tone = np.sin(np.arange(samples) * 2 * np.pi * 440 / RATE)
    return (0.3 * tone + 0.1 * np.random.default_rng(seed).standard_normal(samples)).astype(np.float32)


@pytest.mark.parametrize("num_mels", [80, 128])
@pytest.mark.parametrize("seconds", [0.5, 3.21])
def test_frames_are_those_of_whisper(num_mels: int, seconds: float) -> None:
    """Its clips are filled up with silence to 30 s, which changes the largest value of none."""
    samples = noise(round(seconds * RATE))
    padded = np.pad(samples, (0, 30 * RATE - len(samples)))
    [expected] = WhisperFeatureExtractor(feature_size=num_mels)(padded, sampling_rate=RATE, return_tensors="np")[
        "input_features"
    ]
    np.testing.assert_allclose(log_mel_spectrogram(padded, rate=RATE, num_mels=num_mels).T, expected, atol=2e-5)
    frames = log_mel_spectrogram(samples, rate=RATE, num_mels=num_mels)
    assert frames.shape == (round(seconds * 100), num_mels)
    inner = slice(2, len(frames) - 2)  # whose windows have none of what was filled up
    np.testing.assert_allclose(frames[inner], expected.T[: len(frames)][inner], atol=2e-5)


def test_a_frame_by_its_formula() -> None:
    samples, frame = noise(1000), 3
    size, step = 200, 80  # 8 kHz
    window = [0.5 * (1 - math.cos(2 * math.pi * n / size)) * samples[frame * step - size // 2 + n] for n in range(size)]
    energy = [abs(sum(x * np.exp(-2j * math.pi * k * n / size) for n, x in enumerate(window))) ** 2 for k in range(101)]
    mels = np.log10(np.maximum(np.array(energy) @ mel_filters(8000, size, 20), 1e-10))
    frames = log_mel_spectrogram(samples, rate=8000, num_mels=20)
    largest = frames.max() * 4 - 4
    np.testing.assert_allclose(frames[frame], (np.maximum(mels, largest - 8) + 4) / 4, atol=1e-5)


@given(rate=st.sampled_from([8000, 16000, 22050, 44100]), num_mels=st.integers(5, 80))
@settings(max_examples=20)
def test_triangles_have_equal_areas(rate: int, num_mels: int) -> None:
    """And their corners are those of their neighbours."""
    filters = mel_filters(rate, 8 * rate // 100, num_mels)
    fine = mel_filters.__wrapped__(rate, 2 * rate, num_mels)
    areas = fine.sum(0) / 2
    np.testing.assert_allclose(areas, 1, rtol=0.02)
    assert filters.shape == (4 * rate // 100 + 1, num_mels)
    between = fine / fine.max(0)  # where two overlap, their heights are 1 together
    inner = slice(int(fine.argmax(0)[0]), int(fine.argmax(0)[-1]) + 1)
    np.testing.assert_allclose(between[inner].sum(1), 1, atol=0.03)


def test_too_few_samples() -> None:
    with pytest.raises(ValueError, match="200 samples; expected more than 200"):
        log_mel_spectrogram(noise(200), rate=RATE, num_mels=80)


class TestSound:
    @given(st.lists(st.floats(-1, 1), min_size=1, max_size=50))
    def test_samples_are_kept_in_16_bits(self, samples: list[float]) -> None:
        sound = Audio.of(samples, 8000)
        np.testing.assert_allclose(sound.samples, samples, atol=2**-15)
        assert sound == Audio.of(sound.samples, 8000)
        assert repr(sound) == repr(Audio.of(sound.samples, 8000))
        assert sound.seconds == len(samples) / 8000
        assert sound.is_silent == (len(set(sound.samples.tolist())) == 1)

    @pytest.mark.parametrize(("before", "after"), [(44100, 16000), (8000, 16000), (16000, 8000)])
    def test_a_tone_has_its_pitch_at_another_rate(self, before: int, after: int) -> None:
        def tone(rate: int) -> np.ndarray:
            return 0.5 * np.sin(2 * np.pi * 440 * np.arange(rate // 2) / rate)

        sound = Audio.of(tone(before), before).resampled(after)
        assert (sound.rate, sound.seconds) == (after, 0.5)
        middle = slice(after // 20, -after // 20)  # the filter sees zeros beyond both ends
        np.testing.assert_allclose(sound.samples[middle], tone(after)[middle], atol=2e-3)

    @pytest.mark.parametrize("ending", [".wav", ".flac", ".mp3"])
    def test_files(self, ending: str, tmp_path: Path) -> None:
        samples = noise(RATE)
        soundfile.write(tmp_path / f"both{ending}", np.stack([samples, 0 * samples], 1), RATE)
        sound, _ = read_audio(tmp_path / f"both{ending}")
        assert sound.rate == RATE
        if ending == ".mp3":  # which keeps what is heard
            spectra = [np.abs(np.fft.rfft(x[:RATE])) for x in (sound.samples, samples / 2)]
            assert abs(spectra[0].argmax() - spectra[1].argmax()) <= 1
            assert np.square(sound.samples).sum() == pytest.approx(np.square(samples / 2).sum(), rel=0.1)
        else:
            np.testing.assert_allclose(sound.samples, samples / 2, atol=2**-14)

    def test_what_is_no_sound(self, tmp_path: Path) -> None:
        (tmp_path / "text.wav").write_text("no sound")
        with pytest.raises(ValueError, match=r"text.wav: not a readable audio file \(Format not recognised"):
            read_audio(tmp_path / "text.wav")
        soundfile.write(tmp_path / "empty.wav", np.zeros(0), RATE)
        with pytest.raises(ValueError, match=r"empty.wav: no samples"):
            read_audio(tmp_path / "empty.wav")
        soundfile.write(tmp_path / "nan.wav", np.array([0.0, np.nan]), RATE, subtype="FLOAT")
        with pytest.raises(ValueError, match=r"nan.wav: a sample is not a finite number"):
            read_audio(tmp_path / "nan.wav")

    @pytest.mark.parametrize("kind", ["PCM_16", "PCM_24", "FLOAT", "ULAW", "MS_ADPCM", "IMA_ADPCM", "FLAC"])
    def test_a_truncated_file_is_rejected(self, tmp_path: Path, kind: str) -> None:
        file = BytesIO()
        soundfile.write(file, noise(4000), RATE, *(["PCM_16", None, "FLAC"] if kind == "FLAC" else [kind, None, "WAV"]))
        path, content = tmp_path / "cut.wav", file.getvalue()
        path.write_bytes(content + b"LIST\0\0\0\4ab")  # what follows the samples may be cut
        frames = len(read_audio(path)[0].samples)
        for cut in (content[: len(content) // 2], content[:-2]):
            with soundfile.SoundFile(BytesIO(cut)) as opened:  # which has what there is of a block of IMA's
                there = r"[\d,]+" if kind == "IMA_ADPCM" else f"{opened.frames:,}"
            said = "not a readable audio file" if kind == "FLAC" else f"truncated: {there} .* specifies {frames:,}$"
            path.write_bytes(cut)
            for of_file in (None, cut):
                with pytest.raises(ValueError, match=rf"cut.wav: {said}"):
                    read_audio(path, of_file)

    @pytest.mark.parametrize("size", [0, 0x7FFFF000, 0x80000000, 0xFFFFFFFF])
    def test_a_streamed_file_is_read(self, size: int) -> None:
        """Its writer did not know the size."""
        content = wav(noise(100))
        place = content.index(b"data") + 4
        of_file, of_samples = ((size or 8).to_bytes(4, "little"), size.to_bytes(4, "little"))
        streamed = content[:4] + of_file + content[8:place] + of_samples + content[place + 4 :]
        assert read_audio(Path("a.wav"), streamed) == read_audio(Path("a.wav"), content)

    def test_samples_in_another_range_are_rejected(self) -> None:
        """A corpus of one's own easily passes on what scipy reads."""
        with pytest.raises(ValueError, match="the peak is 12000; expected samples from -1 to 1"):
            Audio.of(np.array([0, 12000], np.int16), RATE)
        assert Audio.of([0.0, 1.5, -2.0], RATE) == Audio.of([0.0, 1.0, -1.0], RATE)


def wav(samples: np.ndarray) -> bytes:
    """As scipy writes it."""
    file = BytesIO()
    wavfile.write(file, RATE, samples)
    return file.getvalue()


def wave_module(samples: np.ndarray, width: int) -> bytes:
    """Of 16-bit integers, in so many bytes each."""
    file = BytesIO()
    with wave.open(file, "wb") as target:
        target.setparams((1, width, RATE, 0, "NONE", ""))
        target.writeframes(
            b"".join((int(x) << 8 * (width - 2)).to_bytes(width, "little", signed=True) for x in samples)
        )
    return file.getvalue()


class TestRanges:
    @given(
        samples=st.lists(st.integers(-(2**15), 2**15 - 1), min_size=1, max_size=20).filter(
            lambda samples: max(map(abs, samples)) > 2
        )
    )
    @settings(max_examples=30)
    def test_the_same_samples_are_the_same_sound_in_every_format(self, samples: list[int]) -> None:
        """scipy writes floats in whatever range they have: those of 16-bit integers are divided by 2^15."""
        numbers = np.array(samples, np.int16)
        expected = Audio(RATE, numbers.astype("<i2").tobytes())
        floats = {f"{kind} of {top}": wav((numbers / top).astype(kind)) for kind in "fd" for top in (1, 2**15)}
        written = {
            **floats, "int16": wav(numbers), "int32": wav(numbers.astype(np.int32) << 16),
            "2 bytes": wave_module(numbers, 2), "3 bytes": wave_module(numbers, 3), "4 bytes": wave_module(numbers, 4),
        }  # fmt: skip
        for name, content in written.items():
            done = (RESCALED,) if name in ("f of 1", "d of 1") else ()
            assert read_audio(Path(name), content) == (expected, done), name

    @pytest.mark.parametrize("kind", ["f", "d"])
    def test_peaks_of_float_files(self, kind: str) -> None:
        tone = np.sin(np.arange(1000)) / np.sin(np.arange(1000)).max()

        def read(peak: float) -> tuple[np.ndarray, tuple[str, ...]]:
            sound, done = read_audio(Path("a.wav"), wav((peak * tone).astype(kind)))
            assert not sound.is_silent
            return sound.samples, done

        for peak in (1e-4, 0.5, 1.0):  # -80 dB to full scale: as they are
            samples, done = read(peak)
            np.testing.assert_allclose(samples, peak * tone, atol=2**-15)
            assert done == ()
        for peak in (1.01, 2.0):
            samples, done = read(peak)
            np.testing.assert_allclose(samples, np.clip(peak * tone, -1, 1), atol=2**-15)
            assert done == ("clipped (above 1)",)
        for peak in (2.01, 500.0, 2.0**15):
            samples, done = read(peak)
            np.testing.assert_allclose(samples, peak * tone / 2**15, atol=2**-15)
            assert done == (RESCALED,)
        with pytest.raises(ValueError, match=r"^a\.wav: the peak is 40000; expected at most 1, or 32768 "):
            read(40000.0)

    def test_the_peak_is_that_of_the_loudest_channel(self) -> None:
        """Of one that is quiet, the mean would be too."""
        both = np.stack([np.array([3.0, -1.0]), np.zeros(2)], 1)
        sound, done = read_audio(Path("a.wav"), wav(both))
        assert (np.frombuffer(sound.content, "<i2").tolist(), done) == ([2, 0], (RESCALED,))

    def test_integer_files_are_never_rescaled(self, tmp_path: Path) -> None:
        soundfile.write(tmp_path / "a.flac", np.array([-(2**15), 2**15 - 1], np.int16), RATE)
        assert read_audio(tmp_path / "a.flac")[1] == ()
        wavfile.write(tmp_path / "a.wav", RATE, np.array([0, 128, 255], np.uint8))
        sound, done = read_audio(tmp_path / "a.wav")
        assert (sound.samples.tolist(), done) == ([-1, 0, 127 / 128], ())
