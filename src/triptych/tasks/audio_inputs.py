"""The audio input of a network: log-mel frames.

Tested by tests/tasks/test_transcription.py.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float

from triptych.config import error_prefix
from triptych.data import Audio, CorpusInfo, EncodedExample, Example, log_mel_spectrogram
from triptych.nn import FrameEmbedding


class AudioInputs:
    """The log-mel frames of audio clips, at the sampling rate of the network.

    In a corpus with speakers, the mean frame of the speaker is subtracted. It removes what voice, microphone and room
    have in common in all clips of a speaker (as Atal 1974 and Kaldi do with cepstra).

    Attributes:
        max_positions: maximum number of positions of a clip.
        speaker_means: mean frame of each known speaker, by name; see ``update_speaker_means``.

    Args:
        embedding: embeds the frames.
        corpus: states whether its clips name their speakers.
        max_positions: see above.
    """

    def __init__(self, embedding: FrameEmbedding, corpus: CorpusInfo, max_positions: int) -> None:
        self.embedding, self.max_positions = embedding, max_positions
        self.has_speakers = corpus.has_speakers
        self.speaker_means: dict[str, Float[np.ndarray, " mels"]] = {}

    def features(self, example: Example) -> Float[np.ndarray, "frames mels"]:
        """Returns the frames of the clip, including its padding with silence.

        For an unknown speaker, the mean frame of the clip is subtracted.

        Raises:
            ValueError: if the clip is missing, silent, or shorter than a frame.
        """
        place = example.where if example.place is None else f"{example.where}: {example.text}"
        if example.audio is None or example.audio.is_silent:
            raise ValueError(f"{place}: {'the audio is silent' if example.audio else 'no audio'}")
        with error_prefix(f"{place}: "):
            frames = self._frames(example.audio)
        if not self.has_speakers:
            return frames
        mean = self.speaker_means.get(example.audio.speaker, mean_frame([frames]))
        return np.asarray(frames - mean)

    def update_speaker_means(self, sounds: Sequence[Audio]) -> None:
        """Computes the mean frame of each speaker from these clips, if the corpus has speakers."""
        if not self.has_speakers:
            return
        frames_of: dict[str, list[np.ndarray]] = {}
        for sound in sounds:
            if sound.speaker and not sound.is_silent:
                frames_of.setdefault(sound.speaker, []).append(self._frames(sound))
        self.speaker_means |= {name: mean_frame(frames) for name, frames in frames_of.items()}

    def truncate(self, item: EncodedExample) -> EncodedExample:
        """Cuts a clip to the frames that fit into ``max_positions``."""
        kept = slice(self.max_positions * self.embedding.stride)
        if item.source is None:
            return replace(item, inputs=item.inputs[kept])
        return replace(item, source=item.source[kept])

    def _frames(self, sound: Audio) -> Float[np.ndarray, "frames mels"]:
        reads = self.embedding
        samples = sound.resampled(reads.rate).samples
        samples = np.pad(samples, (0, max(0, round((reads.seconds or 0) * reads.rate) - len(samples))))
        return log_mel_spectrogram(
            samples, rate=reads.rate, num_mels=reads.num_mels, window=reads.window, hop=reads.hop
        )


def mean_frame(sounds: Sequence[Float[np.ndarray, "_frames mels"]]) -> Float[np.ndarray, " mels"]:
    """Returns the mean of all frames of these clips, summed in float64 (a speaker may have hours of audio)."""
    return np.asarray(np.concatenate(sounds).mean(0, dtype=np.float64), np.float32)
