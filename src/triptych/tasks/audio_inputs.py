"""The audio input of a network: log-mel frames.

Tested by tests/tasks/test_transcription.py.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
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
        mean = self.speaker_means.get(example.audio.speaker)
        return np.asarray(frames - (frames.mean(0, dtype=np.float64).astype(np.float32) if mean is None else mean))

    def update_speaker_means(self, sounds: Iterable[Audio]) -> None:
        """Computes the mean frame of each speaker from these clips, if the corpus has speakers."""
        totals: dict[str, np.ndarray] = {}
        counts = Counter[str]()
        for sound in sounds if self.has_speakers else ():
            if sound.speaker and not sound.is_silent:
                frames = self._frames(sound)
                rows = [totals[sound.speaker], frames] if sound.speaker in totals else [frames]
                totals[sound.speaker] = np.vstack(rows).sum(0, dtype=np.float64)  # there may be hours of audio
                counts[sound.speaker] += len(frames)
        means = {name: np.asarray(total / counts[name], np.float32) for name, total in totals.items()}
        self.speaker_means = self.speaker_means | means

    @contextmanager
    def with_means(self, means: dict[str, Float[np.ndarray, " mels"]]) -> Iterator[None]:
        """Sets ``speaker_means`` within the context."""
        before, self.speaker_means = self.speaker_means, means
        try:
            yield
        finally:
            self.speaker_means = before

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
