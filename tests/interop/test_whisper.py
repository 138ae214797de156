"""Whisper, against ``transformers``: networks, frames of sounds, what is written, folders in and out."""

import json
import logging
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
import transformers as hf
from safetensors.torch import load_file
from tokenizers import pre_tokenizers

import oracle
import triptych
from cases import every_third_by_day, values_by_day
from command_line import composed
from commands import run
from oracle import Case, name_of
from predicting import predict
from triptych.assembly.encode_splits import encode_sounds
from triptych.config import ConfigError
from triptych.config.run_settings import EncodingSettings
from triptych.data import Audio, Characters, CorpusInfo, Example
from triptych.interop import import_folder, load_pretrained, read_network, save_pretrained
from triptych.nn import sinusoids

SMALL = {
    "vocab_size": 101, "num_mel_bins": 7, "d_model": 32, "encoder_layers": 2, "decoder_layers": 3,
    "encoder_attention_heads": 4, "decoder_attention_heads": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 80,
    "max_source_positions": 50, "max_target_positions": 40, "pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 2,
    "decoder_start_token_id": 3, "begin_suppress_tokens": None,
}  # fmt: skip


def whisper(**options: Any) -> Case:
    config = hf.WhisperConfig(**{**SMALL, **options})
    head = hf.WhisperForConditionalGeneration
    return Case(f"{head.__name__} {options}", lambda: head(config), generates=True)


CASES = [
    whisper(),
    whisper(activation_function="relu", encoder_layers=3, decoder_layers=1, num_mel_bins=12, decoder_attention_heads=8),
    whisper(max_source_positions=100, max_target_positions=30, tie_word_embeddings=False),
]
every_case = pytest.mark.parametrize("case", CASES, ids=name_of)


@every_case
def test_equals_theirs(case: Case, tmp_path: Path) -> None:
    oracle.check(case, tmp_path)
    mine, their = (load_file(folder / "model.safetensors") for folder in (tmp_path, oracle.reference(case).folder))
    assert mine.keys() == their.keys()
    assert all(torch.equal(mine[name], their[name]) for name in their)


@every_case
def test_equals_theirs_in_float64(case: Case) -> None:
    """An eps that is fixed shows only here."""
    assert oracle.float64_distance(case) < 1e-12


@pytest.mark.parametrize(("case", "num_beams"), values_by_day(CASES, [5, 1]), ids=name_of)
def test_writes_what_theirs_writes(case: Case, num_beams: int) -> None:
    assert oracle.decoded_alike(case, num_beams=num_beams)


@every_case
def test_decodes_in_chunks_as_at_once(case: Case) -> None:
    assert oracle.cached_distance(case) < 1e-10


def test_the_fixed_table() -> None:
    """Theirs is computed in float32, of angles of up to 1,500."""
    table = hf.models.whisper.modeling_whisper.sinusoids(1500, 384)
    assert torch.allclose(sinusoids(1500, 384, halves=True), table, atol=2e-4)
    assert torch.allclose(sinusoids(3, 384, halves=True), table[:3], atol=1e-6)


WORDS = ["th", "he", "in", "er"]
SPECIAL = ["endoftext", "startoftranscript", "en", "de", "transcribe", "translate", "notimestamps"]
LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
ID = {name: len(LETTERS) + len(WORDS) + i for i, name in enumerate(SPECIAL)}
END, START = ID["endoftext"], ID["startoftranscript"]
IDS = {"bos_token_id": END, "pad_token_id": END, "eos_token_id": END, "decoder_start_token_id": START}
PUBLISHED = {
    "lang_to_id": {f"<|{name}|>": ID[name] for name in ("en", "de")},
    "task_to_id": {name: ID[name] for name in ("transcribe", "translate")},
    "no_timestamps_token_id": ID["notimestamps"],
    "is_multilingual": True,
    "alignment_heads": [[0, 1]],
    "max_initial_timestamp_index": 50,
    "prev_sot_token_id": 0,
    "return_timestamps": False,
    "max_length": 30,
}
"""As the published files have it."""
ENGLISH = [[1, ID["en"]], [2, ID["transcribe"]], [3, ID["notimestamps"]]]
SETTINGS: list[dict[str, Any]] = [
    {"max_length": 12},
    {"max_new_tokens": 9, "suppress_tokens": [1, 70, 33, 200, 15, 240], "begin_suppress_tokens": [30, 40, 50, END]},
    {"forced_decoder_ids": ENGLISH, "max_new_tokens": 9},
    {
        "forced_decoder_ids": ENGLISH,
        "max_length": 70,
    },  # more than there are positions, and these more than the encoder's
    {"forced_decoder_ids": ENGLISH[:2], "no_timestamps_token_id": ID["notimestamps"], "max_length": 14},
    {**PUBLISHED, "language": "de"},
    {**PUBLISHED, "language": "<|en|>", "task": "translate", "suppress_tokens": [9, 50, 70]},
    {**PUBLISHED, "forced_decoder_ids": ENGLISH[:2], "min_length": 9, "num_beams": 3},
]


@cache
def original() -> Path:
    """A folder with a tokenizer and what makes frames. The end comes often: in place of two letters that do."""
    config = {**SMALL, **IDS, "vocab_size": ID["notimestamps"] + 1, "max_target_positions": 60}
    model = oracle.randomized(hf.WhisperForConditionalGeneration(hf.WhisperConfig(**config)), 3)
    with torch.no_grad():
        table = model.get_input_embeddings().weight
        table[END] = 0.7 * (table[239] + table[241])
    folder = oracle.folder_of_process()
    oracle.save(model, folder)
    tokens = {token: i for i, token in enumerate([*LETTERS, *WORDS])} | {"<|endoftext|>": END}
    tokenizer = hf.WhisperTokenizer(tokens, [tuple(word) for word in WORDS])
    tokenizer.add_special_tokens({"additional_special_tokens": [f"<|{name}|>" for name in SPECIAL[1:]]})
    tokenizer.save_pretrained(folder)
    assert hf.AutoTokenizer.from_pretrained(folder).convert_tokens_to_ids("<|notimestamps|>") == ID["notimestamps"]
    return folder


def publish(folder: Path, **settings: Any) -> None:
    """Writes that folder with these generation settings."""
    shutil.copytree(original(), folder, dirs_exist_ok=True)
    (folder / "generation_config.json").write_text(json.dumps({**IDS, **settings}))


def published(folder: Path, **settings: Any) -> tuple[Any, Any]:
    """Writes the same; gives the model and the processor of it."""
    publish(folder, **settings)
    model = hf.WhisperForConditionalGeneration.from_pretrained(folder).eval()
    return model, hf.WhisperProcessor.from_pretrained(folder)


def sounds(*seconds: float) -> list[Audio]:
    """Noise with a tone."""
    draws = np.random.default_rng(0)
    return [
        Audio.of(0.1 * draws.standard_normal(round(16000 * s)) + 0.3 * np.sin(0.1 * np.arange(round(16000 * s))), 16000)
        for s in seconds
    ]


SOUNDS = sounds(0.2, 0.55, 1.0, 0.31, 0.77, 0.08)


def frames_of(processor: Any, heard: list[Audio] = SOUNDS) -> torch.Tensor:
    """What transformers makes of sounds."""
    found: torch.Tensor = processor(
        [sound.samples for sound in heard], sampling_rate=16000, return_tensors="pt"
    ).input_features
    return found


def written(model: Any, frames: torch.Tensor) -> list[list[int]]:
    """The tokens that ``generate`` writes, up to the end."""
    rows = model.generate(frames.to(model.dtype)).tolist()
    return [row[: row.index(END)] if END in row else row for row in rows]


def written_by_ours(task: Any) -> list[list[int]]:
    task.text_of = lambda ids, given: [*ids]
    return predict(task, SOUNDS)


def test_frames_and_logits_of_the_same_sounds(tmp_path: Path) -> None:
    model, processor = published(tmp_path)
    task: Any = load_pretrained(tmp_path).task
    frames = torch.from_numpy(np.stack([task.audio.features(Example("audio", audio=sound)) for sound in SOUNDS]))
    expected = frames_of(processor).mT
    assert frames.shape == (len(SOUNDS), 100, 7)
    assert float((frames - expected).abs().max()) < 1e-4  # theirs are of float32
    tokens = torch.randint(ID["endoftext"], (len(SOUNDS), 9))
    with torch.no_grad():
        mine = task.network(frames, tokens, torch.ones(frames.shape[:2], dtype=torch.bool))
        their = model(input_features=expected.mT, decoder_input_ids=tokens).logits
    assert oracle.distance(mine, their, torch.ones(tokens.shape, dtype=torch.bool)) < 1e-5


@pytest.mark.parametrize("settings", every_third_by_day(SETTINGS), ids=str)
def test_what_generate_writes_we_write(settings: dict[str, Any], tmp_path: Path) -> None:
    """From the published folder, and from what is written of it."""
    model, processor = published(tmp_path / "theirs", **settings)
    expected = written(model, frames_of(processor))
    assert len({len(row) for row in expected}) > 1, "no sound ends"
    first: Any = import_folder(tmp_path / "theirs", tmp_path / "imported.ckpt").task
    assert written_by_ours(first) == expected
    assert save_pretrained(tmp_path / "imported.ckpt", tmp_path / "ours") == "WhisperForConditionalGeneration"
    again = hf.WhisperForConditionalGeneration.from_pretrained(tmp_path / "ours").eval()
    processor = hf.WhisperProcessor.from_pretrained(tmp_path / "ours")
    assert written(again, frames_of(processor)) == expected
    task: Any = load_pretrained(tmp_path / "ours").task
    assert written_by_ours(task) == expected
    assert all(torch.equal(a, b) for a, b in zip(first.network.parameters(), task.network.parameters(), strict=True))
    assert task.logits_processors == first.logits_processors
    assert task.tokenizer.special == first.tokenizer.special


def test_the_language_that_is_taken_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """None is detected here, as ``generate`` would."""
    model, processor = published(tmp_path, **PUBLISHED)
    with caplog.at_level(logging.WARNING, "triptych"):
        task = load_pretrained(tmp_path)
    assert [message for message in caplog.messages if "no language is set" in message and "<|en|>" in message]
    # there detection puts no task behind the language that it finds
    assert task.tokenizer.special.target_begin == (ID["en"], ID["notimestamps"])
    assert written(model, frames_of(processor)) is not None
    assert not [message for message in caplog.messages if "ignored settings" in message]


def test_a_processor_of_transformers_5_is_read(tmp_path: Path) -> None:
    _, processor = published(tmp_path)
    expected = read_network(tmp_path).config.audio_embedding
    (tmp_path / "preprocessor_config.json").unlink()
    with pytest.raises(ConfigError, match=r"preprocessor_config\.json not found"):
        read_network(tmp_path)
    processor.save_pretrained(tmp_path)
    assert not (tmp_path / "preprocessor_config.json").exists()
    assert read_network(tmp_path).config.audio_embedding == expected


@pytest.mark.parametrize(
    ("file", "values", "words"),
    [
        ("config", {"scale_embedding": True}, "scale_embedding=True; expected False"),
        (
            "config",
            {"architectures": ["WhisperForAudioClassification"]},
            "expected one of WhisperForConditionalGeneration",
        ),
        ("config", {"max_source_positions": 100}, "chunk_length=1; expected 2.0"),
        ("config", {"num_mel_bins": 8}, "feature_size=7; expected 8"),
        ("preprocessor_config", {"sampling_rate": 8000}, "preprocessor_config: sampling_rate=8000; expected 16000"),
        ("preprocessor_config", {"dither": 0.1}, "dither=0.1; expected 0.0"),
        ("preprocessor_config", {"padding_value": 1.0}, "padding_value=1.0; expected 0.0"),
        ("preprocessor_config", {"do_normalize": True}, "do_normalize=True; expected False"),
        ("preprocessor_config", {"hop_length": 80}, "chunk_length=1; expected 0.5"),
        ("preprocessor_config", {"hop_length": "160"}, "hop_length='160'; expected a whole number"),
        (
            "generation_config",
            {**PUBLISHED, "language": "fr"},
            "lang_to_id has no <|fr|>; expected one of <|en|>, <|de|>",
        ),
        ("generation_config", {**PUBLISHED, "task": "sing"}, "task_to_id has no sing; expected one of transcribe"),
        (
            "generation_config",
            {"forced_decoder_ids": [[2, 5]]},
            "forced_decoder_ids=[[2, 5]]; expected one for each of 1",
        ),
        ("generation_config", {"suppress_tokens": [999]}, "task.logits_processors: token 999, but the vocabulary has"),
    ],
    ids=str,
)
def test_what_is_rejected(file: str, values: dict[str, Any], words: str, tmp_path: Path) -> None:
    publish(tmp_path)
    path = tmp_path / f"{file}.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    with pytest.raises(ConfigError) as caught:
        load_pretrained(tmp_path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_longer_sounds_are_cut_in_a_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """To the positions of the encoder, of which there are fewer than the decoder's."""
    publish(tmp_path)
    task = load_pretrained(tmp_path).task
    assert task.audio is not None
    assert (task.max_length, task.audio.max_positions) == (60, 50)
    examples = [Example("audio", target="the", audio=sound) for sound in sounds(1.1, 0.5)]
    with pytest.raises(ValueError, match=r"an audio clip of 55 positions is longer than shape\.max_length=50"):
        encode_sounds(EncodingSettings(), task, examples, "train", task.audio)
    found = encode_sounds(EncodingSettings(too_long="truncate"), task, examples, "train", task.audio)
    assert [len(item.source) for item in found.items if item.source is not None] == [100, 100]
    assert "1 of 2 train sounds have more than shape.max_length=50 positions and are truncated" in caplog.text


def checkpoint_of(folder: Path, *overrides: str) -> Path:
    """A checkpoint of a network with random weights, as a training run would write it."""
    chosen = [
        "experiment=tones/transcription",
        "model=full",
        "audio_embedding.rate=16000",
        "audio_embedding.normalized=false",
    ]
    chosen += ["audio_embedding.seconds=1", "audio_embedding.num_mels=9", "logger=csv"]
    if "model=decoder_only" not in overrides:
        chosen.append("model.encoder.max_length=50")
    config = composed(*chosen, *overrides)
    tokenizer = Characters().train(["0123456789 "])
    return oracle.random_checkpoint(folder, config, tokenizer, CorpusInfo())


OURS = {
    "default": [],
    "style": ["model=whisper/style"],
    "learned": ["block/position=learned", "block.scale_embedding=false"],
    "untied": ["block.tie_word_embeddings=false", "block.attention.qkv_bias=false", "model.decoder.max_length=40"],
    "no biases": [
        "block.bias=false",
        "block.attention.k_bias=false",
        "audio_embedding.window=0.032",
        "audio_embedding.time_masks=2",
    ],
}


@pytest.mark.parametrize("name", every_third_by_day(OURS))
def test_exports_our_own_models(name: str, tmp_path: Path) -> None:
    path = checkpoint_of(tmp_path, *OURS[name])
    mine: Any = triptych.load(path)
    assert save_pretrained(path, tmp_path / "out") == "WhisperForConditionalGeneration"
    model, info = hf.AutoModelForSpeechSeq2Seq.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(info.values())
    processor = hf.AutoProcessor.from_pretrained(tmp_path / "out")
    assert isinstance(processor, hf.WhisperProcessor)
    frames = frames_of(processor)
    assert frames.shape == (len(SOUNDS), 9, 100)
    mask = torch.ones(len(SOUNDS), 100, dtype=torch.bool)
    tokens = torch.randint(5, 16, (len(SOUNDS), 7))
    heard = torch.from_numpy(np.stack([mine.task.audio.features(Example("audio", audio=sound)) for sound in SOUNDS]))
    import_folder(tmp_path / "out", tmp_path / "again.ckpt")
    again = triptych.load(tmp_path / "again.ckpt")
    with torch.no_grad():
        their = model.eval()(input_features=frames, decoder_input_ids=tokens).logits
        for task in (mine, again):
            assert (
                oracle.distance(task.network(heard, tokens, mask), their, torch.ones(tokens.shape, dtype=torch.bool))
                < 1e-5
            )
    if name == "style":
        kept = dict(again.network.named_parameters())
        assert all(torch.equal(kept[key], parameter) for key, parameter in mine.network.named_parameters())
    texts = processor.batch_decode(model.generate(frames), skip_special_tokens=True)
    assert list(mine.predict(SOUNDS)) == list(again.predict(SOUNDS)) == texts
    labels = processor(text="4 2").input_ids
    assert (labels[0], labels[-1]) == (model.config.decoder_start_token_id, model.config.eos_token_id)
    card = (tmp_path / "out" / "README.md").read_text()
    assert 'processor(..., sampling_rate=16000, return_tensors="pt")' in card


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["audio_embedding.normalized=true"], "model.source_embedding.normalized=True (expected False)"),
        (["audio_embedding.rate=8000"], "model.source_embedding.rate=8000 (expected 16000)"),
        (["audio_embedding.stem=stacked"], "model.source_embedding.stem=stacked (expected convolutional)"),
        (["audio_embedding.stride=4"], "model.source_embedding.stride=4 (expected 2)"),
        (["audio_embedding.seconds=null"], "model.source_embedding.seconds=None (expected 1.0)"),
        (["audio_embedding.seconds=2"], "model.source_embedding.seconds=2 (expected 1.0)"),
        (["model.encoder.max_length=75"], "model.encoder.max_length=75: 1.5 s of audio"),
        (["block/position=rotary"], "model.encoder.position=Rotary (expected LearnedPositions)"),
        (["block/residual=post_norm"], "model.encoder.residual=PostNorm (expected PreNorm)"),
    ],
    ids=str,
)
def test_what_is_no_whisper(overrides: list[str], words: str, tmp_path: Path) -> None:
    path = checkpoint_of(tmp_path, *overrides)
    with pytest.raises(ConfigError) as caught:
        save_pretrained(path, tmp_path / "out")
    assert str(caught.value).startswith("no published family matches this network (model=full): the nearest, whisper, ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_other_architectures_hear_otherwise(tmp_path: Path) -> None:
    path = checkpoint_of(tmp_path, "model=decoder_only")
    with pytest.raises(ConfigError, match="none has a head for task=transcription"):
        save_pretrained(path, tmp_path / "out")


def test_as_commands(tmp_path: Path) -> None:
    """A folder is imported, hears a file, and is trained further on other sounds."""
    publish(tmp_path / "theirs", **PUBLISHED, language="en")
    for name, (sound,) in (("short", sounds(0.4)), ("long", sounds(1.2))):
        soundfile.write(tmp_path / f"{name}.wav", sound.samples, 16000)
        (tmp_path / f"{name}.txt").write_text(f"{name}.wav\n")
    imported = run("import", "theirs", "--output", "whisper.ckpt", cwd=tmp_path)
    assert imported.returncode == 0, imported.stderr
    said = run("predict", "checkpoint=whisper.ckpt", "input=short.txt", cwd=tmp_path)
    assert said.stdout.splitlines() == [
        text.replace("\n", "\\n") for text in load_pretrained(tmp_path / "theirs").predict(sounds(0.4))
    ]
    refused = run("predict", "checkpoint=whisper.ckpt", "input=long.txt", cwd=tmp_path)
    assert "long.txt, line 1: 1.2 s of audio; the network supports at most 1.0 s" in refused.stderr
    rows = ["file\ttarget", *(f"short.wav\tthe {i}" for i in range(12))]
    (tmp_path / "said.tsv").write_text("\n".join(rows))
    trained = run(
        "train", "init_from=whisper.ckpt", "task=transcription", "data=audio_files", "data.dir=.",
        "data.train=said.tsv", "data.validation=0.25", "data.test=0.25", "batch.global_size=4", "trainer.max_steps=2",
        "scheduler.warmup_steps=1", "trainer.val_check_interval=2", "logger=csv", "run_dir=run", cwd=tmp_path,
    )  # fmt: skip
    assert trained.returncode == 0, trained.stderr
    frozen, tuned = (triptych.load(tmp_path / name).network for name in ("whisper.ckpt", "run"))
    assert torch.equal(frozen.encoder.position.table, tuned.encoder.position.table)
    assert not torch.equal(frozen.decoder.position.table, tuned.decoder.position.table)
    exported = run("export", "run", "--output", "tuned", cwd=tmp_path)
    assert exported.returncode == 0, exported.stderr
