"""Sounds and what is said in them: layouts, the loss over all paths, answers of each architecture."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from command_line import complete
from predicting import GREEDY, evaluating, in_double, learn, make_context, predict, reading, words_of
from triptych.assembly.encode_splits import encode_evaluation, encode_training
from triptych.assembly.make_task import make_task as task_of
from triptych.assembly.read_data import read_corpus, train_tokenizer
from triptych.config.run_settings import RunSettings
from triptych.data import Audio, Example, ToneDigits, collate, log_mel_spectrogram
from triptych.data.batches.batch import empty_batch
from triptych.models.generation import BeamSearch
from triptych.nn import FrameEmbedding
from triptych.tasks import Transcription
from triptych.training import TrainingModule

ARCHITECTURES = ("encoder_only", "full", "decoder_only", "prefix_lm")
every_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES)
DIGITS = ToneDigits(min_digits=1, max_digits=3, noise=0.3, num_train=12, num_validation=2, num_test=4, seed=1)
TOKENIZER = words_of([" ".join("0123456789")])


def make_task(architecture: str, *, max_length: int = 80, num_beams: int = 1, **options: Any) -> Any:
    frames = FrameEmbedding(rate=8000, num_mels=16, d_model=32, **options)
    network = reading(architecture, frames, TOKENIZER.vocab_size, max_length)
    context = make_context(network, TOKENIZER, max_length)
    return Transcription(context, label_smoothing=0.0, max_new_tokens=6, **GREEDY | {"num_beams": num_beams})


@every_architecture
def test_what_is_said_is_written(architecture: str) -> None:
    """Digits that are known by heart, each heard by itself and beside others."""
    torch.manual_seed(0)
    task = make_task(architecture)
    examples = DIGITS.splits().train[:5]
    assert learn(task, task.encode(examples), steps=900, until=0.02)[-1] < 0.1
    sounds = [task.model_input(example) for example in examples]
    assert predict(task, sounds) == [example.target for example in examples]
    assert predict(task, sounds[3:4]) == [examples[3].target]
    task.search = BeamSearch(3, 1.0, early_stopping=False)
    assert predict(task, sounds[:3]) == [example.target for example in examples[:3]]


def test_the_loss_is_that_of_all_paths() -> None:
    """In float64, by enumeration."""
    task = evaluating(in_double(make_task("encoder_only", stem="stacked", stride=8)))
    example = Example("short", target="4 4", audio=Audio.of(np.sin(np.arange(3200)), 8000))
    [item] = task.encode([example])
    batch = collate([item])
    batch.inputs = batch.inputs.double()
    log_p = task.forward(batch)[0].log_softmax(-1).detach().numpy()
    assert len(log_p) == 5
    target, blank = item.labels.tolist(), TOKENIZER.special.pad
    total = -np.inf
    for path in product({blank, *target}, repeat=len(log_p)):
        merged = [token for i, token in enumerate(path) if not i or token != path[i - 1]]
        if [token for token in merged if token != blank] == target:
            total = np.logaddexp(total, sum(row[token] for row, token in zip(log_p, path, strict=True)))
    assert float(task.training_loss(batch)) == pytest.approx(-total)


@every_architecture
def test_a_batch_is_the_sum_of_its_sounds(architecture: str) -> None:
    task = evaluating(make_task(architecture))
    items = task.encode(DIGITS.splits().train[:5])
    losses = [float(task.training_loss(collate([item]))) for item in items]
    assert float(task.training_loss(collate(items))) == pytest.approx(sum(losses), rel=1e-4)


@every_architecture
def test_a_process_without_sounds_adds_nothing(architecture: str) -> None:
    task = make_task(architecture)
    loss = task.training_loss(empty_batch(task.encode(DIGITS.splits().train[:1])[0], 7))
    loss.backward()
    assert float(loss) == 0
    assert all((p.grad is not None and not p.grad.any()) for p in task.network.parameters())


@every_architecture
def test_layouts(architecture: str) -> None:
    task, special = make_task(architecture), TOKENIZER.special
    example = DIGITS.splits().train[0]
    [item] = task.encode([example])
    ids, frames = TOKENIZER.encode([example.target or ""])[0], task.audio.features(example)
    if architecture == "encoder_only":
        np.testing.assert_array_equal(item.inputs, frames)
        assert (item.labels.tolist(), item.source) == (ids, None)
    else:
        np.testing.assert_array_equal(item.source, frames)
        start = special.start if architecture == "full" else special.bos
        assert (item.inputs.tolist(), item.labels.tolist()) == ([start, *ids], [*ids, special.eos])
    assert task.reference(example) == example.target


class TestMistakes:
    def test_silence_and_what_is_missing(self) -> None:
        task, sound = make_task("full"), DIGITS.splits().train[0].audio
        for example, message in (
            (Example("a", target="1", audio=Audio.of(np.zeros(4000), 8000)), "'a': the audio is silent"),
            (Example("a", target="1"), "'a': no audio"),
            (Example("a", audio=sound), "'a': there is no target; expected what is to be written"),
            (Example("a", target="1", audio=Audio.of([0.0, 0.5], 8000)), "'a': 2 samples; expected more than 100"),
        ):
            with pytest.raises(ValueError, match=message):
                task.encode([example])

    def test_a_text_that_no_path_has(self) -> None:
        task = make_task("encoder_only", stride=4)
        short = Audio.of(np.sin(np.arange(800)), 8000)  # 10 frames
        with pytest.raises(ValueError, match="'a': 3 positions for a text that needs 5"):
            task.encode([Example("a", target="1 1 1", audio=short)])
        assert task.encode([Example("a", target="1 2 1", audio=short)])

    def test_a_text_that_is_too_long_for_what_is_left_of_its_sound(self) -> None:
        task = make_task("encoder_only", max_length=3)
        (item,) = task.encode([Example("s", target="1 1 2", audio=Audio.of(np.sin(np.arange(4000)), 8000))])
        with pytest.raises(ValueError, match=r"3 positions for a text that needs 4 \(batch.too_long=drop leaves it"):
            task.truncate_audio(item)
        kept = make_task("encoder_only", max_length=4).truncate_audio(item)
        assert task.audio.embedding.count(len(kept.inputs)) == 4

    def test_a_sound_of_another_rate_is_resampled(self) -> None:
        task = make_task("full")
        fast = Audio.of(np.sin(np.arange(16000) / 3), 16000)
        assert task.audio.features(Example("a", audio=fast)).shape == (100, 16)


@pytest.mark.parametrize("kind", ["classification", "transcription"])
@pytest.mark.parametrize("architecture", ["encoder_only", "full"])
@pytest.mark.parametrize("too_long", ["error", "truncate", "drop"])
def test_a_sound_with_too_many_positions(
    kind: str, architecture: str, too_long: str, chosen: Callable[..., Any]
) -> None:
    """One digit has 6 to 14 steps of 20 ms, and a position each step."""
    config = chosen(
        f"experiment=tones/{kind}", f"model={architecture}", f"batch.too_long={too_long}", "shape.max_length=10",
        "batch.global_size=4", "data.num_train=20", "data.num_validation=9", "data.num_test=1",
        "data.min_digits=1", "data.max_digits=1",
    )  # fmt: skip
    _, splits, info = read_corpus(config, "tones")
    tokenizer = train_tokenizer(config, splits)
    complete(config, tokenizer, info)
    task = task_of(RunSettings.of(config), tokenizer, info)
    if too_long == "error":
        with pytest.raises(
            ValueError, match=r"train \d+.*: an audio clip of 1\d positions is longer than shape.max_length=10"
        ):
            encode_training(RunSettings.of(config).encoding, task, splits.train)
        return
    train = encode_training(RunSettings.of(config).encoding, task, splits.train)
    validation = encode_evaluation(RunSettings.of(config).encoding, task, splits.validation, "validation")
    assert 0 < train.too_long < 20
    assert len(train.sizes) == (20 if too_long == "truncate" else 20 - train.too_long)
    assert len(validation.sizes) == 9
    frames = task.audio.embedding
    assert frames is not None
    for split in (train, validation):
        for i in range(len(split.sizes)):
            item = split[i]
            heard = item.inputs if item.source is None else item.source
            assert heard.shape[1] == 32
            whole = task.audio.features(item.example)
            np.testing.assert_array_equal(heard, whole[: 10 * frames.stride])


@every_architecture
def test_the_head_is_asked_as_often_as_is_counted(architecture: str) -> None:
    """Of an encoder at each position, also beside a longer text; of the others where a token is scored."""
    task = make_task(architecture)
    task.network.train()
    batch = collate(task.encode(DIGITS.splits().train[:6]))
    asked = list[int]()
    weight = task.network.head.output
    hook = weight.register_forward_hook(lambda module, inputs, output: asked.append(output[..., 0].numel()))
    task.training_loss(batch).backward()
    hook.remove()
    slots = len(batch.labels) * (
        task.audio.embedding.count(batch.inputs.shape[1]) if architecture == "encoder_only" else 0
    )
    expected = slots or batch.labels.numel()
    assert expected - task.num_unprojected(batch) == (sum(asked) if asked else len(batch.scored))
    assert (task.num_unprojected(batch) == 0) == (architecture == "encoder_only")


class TestSpeakers:
    @staticmethod
    def sounds() -> list[Audio]:
        """Two speakers, the second of which is louder, by a microphone of his own."""
        generator = np.random.default_rng(0)
        made = []
        for i in range(6):
            samples = 0.05 * generator.standard_normal(3000 + 200 * i) * (1 + np.sin(np.arange(3000 + 200 * i) / 400))
            made.append(replace(Audio.of(samples * (4 if i % 2 else 1), 8000), speaker="ab"[i % 2]))
        return made

    def test_the_mean_frame_of_a_speaker_is_taken_from_all_that_he_says(self) -> None:
        task, sounds = make_task("encoder_only"), self.sounds()
        plain = [task.audio.features(Example("s", audio=sound)) for sound in sounds]
        task.audio.has_speakers = True
        task.audio.update_speaker_means(sounds)
        for speaker in (0, 1):
            frames = np.concatenate(plain[speaker::2])
            for sound, whole in zip(sounds[speaker::2], plain[speaker::2], strict=True):
                heard = task.audio.features(Example("s", audio=sound))
                np.testing.assert_allclose(heard, whole - frames.astype(np.float64).mean(0), atol=1e-5)
        stranger = replace(sounds[0], speaker="")
        np.testing.assert_allclose(task.audio.features(Example("s", audio=stranger)).mean(0), 0, atol=1e-5)

    def test_the_mean_of_hours_is_exact(self, monkeypatch: pytest.MonkeyPatch) -> None:
        task = make_task("encoder_only")
        task.audio.has_speakers = True
        frames = np.random.default_rng(0).normal(-0.7, 0.1, (200_000, 4)).astype(np.float32)
        monkeypatch.setattr(task.audio, "_frames", lambda sound: frames)
        task.audio.update_speaker_means(self.sounds()[:1])
        np.testing.assert_allclose(task.audio.speaker_means["a"], frames.astype(np.float64).mean(0), rtol=2e-7)

    def test_answers_do_not_depend_on_who_else_is_heard(self) -> None:
        task, sounds = make_task("encoder_only"), self.sounds()
        task.audio.has_speakers = True
        together = predict(task, sounds)
        apart = make_task("encoder_only")
        apart.network.load_state_dict(task.network.state_dict())
        apart.audio.has_speakers = True
        found = [predict(apart, sounds[speaker::2]) for speaker in (0, 1)]
        assert together == [found[i % 2][i // 2] for i in range(6)]

    def test_without_speakers_sounds_are_heard_as_they_are(self) -> None:
        task, (sound, *_) = make_task("encoder_only"), self.sounds()
        task.audio.update_speaker_means([sound])
        assert task.audio.speaker_means == {}
        np.testing.assert_array_equal(
            task.audio.features(Example("s", audio=sound)), log_mel_spectrogram(sound.samples, rate=8000, num_mels=16)
        )


def test_errors_of_each_sound() -> None:
    """One word of three is wrong, two of its letters; where nothing is said, each letter is."""
    task = make_task("full")
    metrics = TrainingModule(task).metrics_of("test")
    outputs, references = ["one two five", "ab"], ["one two nine", ""]
    assert task.score(metrics, outputs, references) == {
        "words": [3, 0], "word_errors": [1, 2], "characters": [12, 0], "character_errors": [2, 2],
    }  # fmt: skip
    assert float(metrics["character_error_rate"].compute()) == pytest.approx(4 / 12)
