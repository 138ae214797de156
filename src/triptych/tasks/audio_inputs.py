"""Sounds as a network reads them."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float

from triptych.config import refusing
from triptych.data import CorpusFacts, Encoded, Example, Sound, log_mel
from triptych.nn import FrameEmbedding


class AudioInputs:
    """Computes the log-mel frames of sounds at the rate that the network reads. In a corpus with speakers, the mean
    frame of the speaker is subtracted: what voice, microphone and room have in common in all of a speaker's sounds (as
    Atal 1974 and Kaldi do, there by cepstra).

    Attributes:
        max_positions: the most positions of a sound.
        speaker_means: by name, the mean frame of the speakers that are known; see ``update_speaker_means``.

    Args:
        embedding: reads the frames.
        corpus: says whether it knows its speakers.
        max_positions: see above.
    """

    def __init__(self, embedding: FrameEmbedding, corpus: CorpusFacts, max_positions: int) -> None:
        self.embedding, self.max_positions = embedding, max_positions
        self.has_speakers = corpus.has_speakers
        self.speaker_means: dict[str, Float[np.ndarray, " mels"]] = {}

    def features(self, example: Example) -> Float[np.ndarray, "frames mels"]:
        """The frames of the sound, and of the silence that pads it. The mean of an unknown speaker is that of the
        sound.

        Raises:
            ValueError: there is no sound, it is silent, or shorter than a frame.
        """
        place = example.where if example.place is None else f"{example.where}: {example.text}"
        if example.sound is None or example.sound.is_silent:
            raise ValueError(f"{place}: {'silence; expected a sound' if example.sound else 'there is no sound'}")
        with refusing(f"{place}: "):
            frames = self._frames(example.sound)
        if not self.has_speakers:
            return frames
        mean = self.speaker_means.get(example.sound.speaker, mean_frame([frames]))
        without: Float[np.ndarray, "frames mels"] = frames - mean
        return without

    def update_speaker_means(self, sounds: Sequence[Sound]) -> None:
        """Takes the mean frame of each speaker from these sounds, which need no transcription, where the corpus has
        speakers."""
        if not self.has_speakers:
            return
        frames_of: dict[str, list[np.ndarray]] = {}
        for sound in sounds:
            if sound.speaker and not sound.is_silent:
                frames_of.setdefault(sound.speaker, []).append(self._frames(sound))
        self.speaker_means |= {name: mean_frame(frames) for name, frames in frames_of.items()}

    def truncate(self, item: Encoded) -> Encoded:
        """The first frames, as many as there are positions for."""
        kept = slice(self.max_positions * self.embedding.stride)
        if item.source is None:
            return replace(item, tokens=item.tokens[kept])
        return replace(item, source=item.source[kept])

    def _frames(self, sound: Sound) -> Float[np.ndarray, "frames mels"]:
        reads = self.embedding
        samples = sound.resampled(reads.rate).samples
        samples = np.pad(samples, (0, max(0, round((reads.seconds or 0) * reads.rate) - len(samples))))
        return log_mel(samples, rate=reads.rate, num_mels=reads.num_mels, window=reads.window, hop=reads.hop)


def mean_frame(sounds: Sequence[Float[np.ndarray, "_frames mels"]]) -> Float[np.ndarray, " mels"]:
    """The mean of all frames of these sounds, summed in float64: a speaker may have hours."""
    mean: Float[np.ndarray, " mels"] = np.concatenate(sounds).mean(0, dtype=np.float64)
    return mean.astype(np.float32)
