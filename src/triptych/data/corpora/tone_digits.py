"""Digits as tones in noise: synthetic audio whose best possible scores are known."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from jaxtyping import Float

from triptych.data.audio import Audio
from triptych.data.corpora.digit_strings import DigitStrings
from triptych.data.example import Example

RATE = 8000
STEP = 160
"""Samples of 20 ms, the unit of all lengths."""
TONE = 3 * STEP
"""Samples per tone."""
HERTZ = (400, 600, 850, 1200, 1700)
"""Frequencies of the tones. Each has whole periods in a step, so the tones are orthogonal."""
PAIRS = tuple(combinations(range(len(HERTZ)), 2))
"""The two successive tones of each digit."""
LONGEST_SILENCE = 4
"""Maximum number of steps before the first digit and after the last one."""


@dataclass(kw_only=True)
class ToneDigits(DigitStrings):
    """Digit strings in white noise. Each digit is two of five tones in succession, 60 ms each.

    These are drawn independently and uniformly: the number of digits, the digits, 0 to 4 silent steps of 20 ms before
    and after them, and the phase of each tone. ``audio`` is the audio, ``target`` the digits separated by spaces, and
    ``label`` the digit if each string has one.

    Attributes:
        noise: standard deviation of the noise; the tones have amplitude 1.
    """

    columns = ("audio", "target", "label")

    @property
    def loudness(self) -> float:
        """Scale of the samples that avoids clipping."""
        return 1 / (1 + 6 * self.noise)

    def optimum(self, task: str, architecture: str, examples: Sequence[Example]) -> dict[str, float]:
        """Returns the best possible scores on these examples, given how they are generated except for the phases:

        - classification: ``accuracy``, the mean of max_digit p(digit | audio)
        - transcription: ``exact_match``, the mean of max_string p(string | audio), over the strings that are most
          likely for some number of digits and length of the silences

        The probability of a tone of unknown phase in n samples x of white noise is that of noise alone times I_0(a
        |sum_t x_t e^{-i w t}| / s^2) exp(-a^2 n / 4 s^2) (Kay 1998, section 7.6).

        Args:
            task: other tasks have no known scores.
            architecture: not used.
            examples: at least one example of this corpus.
        """
        name = {"classification": "accuracy", "transcription": "exact_match"}.get(task)
        if name is None:
            return {}
        return {name: float(np.mean([self.listen(example.audio)[1] for example in examples if example.audio]))}

    def draw(self, split: str) -> Iterator[Example]:
        random = np.random.default_rng([self.seed, *split.encode()])
        for number in range(self.sizes[split]):
            digits = random.integers(10, size=random.choice(self.counts))
            before, after = random.integers(LONGEST_SILENCE + 1, size=2) * STEP
            tones = [self._tone(tone, random.uniform(0, 2 * math.pi)) for d in digits for tone in PAIRS[d]]
            clean = np.concatenate([np.zeros(before), *tones, np.zeros(after)])
            heard = self.loudness * (clean + self.noise * random.standard_normal(len(clean)))
            target = " ".join(map(str, digits))
            label = target if len(target) == 1 and self.counts.stop == 2 else None
            yield Example(f"{split} {number + 1}", target=target, label=label, audio=Audio.of(heard, RATE))

    @staticmethod
    def _tone(tone: int, phase: float) -> Float[np.ndarray, " samples"]:
        return np.cos(2 * math.pi * HERTZ[tone] * np.arange(TONE) / RATE + phase)

    def listen(self, sound: Audio) -> tuple[str, float]:
        """Returns the most likely digits and their probability.

        Args:
            sound: audio of this corpus.
        """
        tones, digit = self._evidence(sound), 2 * TONE // STEP
        steps, (first, second) = len(tones) - 1 + TONE // STEP, np.array(PAIRS).T
        scores = list[Float[np.ndarray, "digits 10"]]()  # per number of digits and place of the first
        for count in self.counts:
            for before in range(LONGEST_SILENCE + 1):
                if 0 <= steps - before - count * digit <= LONGEST_SILENCE:
                    starts = before + digit * np.arange(count)
                    scores.append(tones[starts][:, first] + tones[starts + TONE // STEP][:, second] - math.log(10))
        whole = np.logaddexp.reduce([np.logaddexp.reduce(of_digits, axis=1).sum() for of_digits in scores])
        found = {}
        for string in {tuple(of_digits.argmax(1).tolist()) for of_digits in scores}:
            alike = [
                of_digits[range(len(string)), string].sum() for of_digits in scores if len(of_digits) == len(string)
            ]
            found[" ".join(map(str, string))] = math.exp(np.logaddexp.reduce(alike) - whole)
        best = max(found, key=lambda string: found[string])
        return best, found[best]

    def _evidence(self, sound: Audio) -> Float[np.ndarray, "starts tones"]:
        """Computes log p(samples | tone) - log p(samples | only noise) for a tone that starts at each step."""
        from scipy.special import ive  # type: ignore[import-untyped]  # optional dependency

        heard = sound.samples.astype(np.float64) / self.loudness
        windows = np.lib.stride_tricks.sliding_window_view(heard, TONE)[::STEP]
        waves = np.exp(-2j * math.pi * np.outer(np.arange(TONE) / RATE, HERTZ))
        argument = np.abs(windows @ waves) / self.noise**2
        return np.asarray(np.log(ive(0, argument)) + argument - TONE / (4 * self.noise**2))
