"""CLIP, against ``transformers``: logits, pixels, what is written, folders in and out."""

import json
import math
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from PIL import Image as Pillow
from safetensors.torch import load_file, save_file
from tokenizers import pre_tokenizers

import triptych
from cases import by_day
from command_line import composed
from commands import run
from oracle import Case, check, distance, float64_distance, folder_of_process, random_checkpoint, randomized, reference
from oracle import save as save_theirs
from predicting import predict
from triptych.config import ConfigError, build
from triptych.data import CorpusInfo, Example, Image, pad
from triptych.data.images import as_png
from triptych.interop import import_folder, load_pretrained, read_network, save_pretrained
from triptych.nn.network import weights_sha256

TEXT = {
    "vocab_size": 101, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 20, "pad_token_id": 1, "bos_token_id": 3, "eos_token_id": 4,
}  # fmt: skip
VISION = {
    "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 80, "image_size": 12,
    "patch_size": 4,
}  # fmt: skip


def clip(text: dict[str, Any] | None = None, vision: dict[str, Any] | None = None, *, space: int = 24) -> Case:
    config = hf.CLIPConfig(
        text_config={**TEXT, **(text or {})}, vision_config={**VISION, **(vision or {})}, projection_dim=space
    )
    return Case(f"CLIPModel {text} {vision} {space}", lambda: hf.CLIPModel(config))


CASES = [
    clip(),
    clip({"eos_token_id": 2}, {"hidden_size": 32, "num_attention_heads": 4}, space=32),
    clip(
        {"hidden_act": "gelu", "layer_norm_eps": 1e-3}, {"hidden_act": "gelu", "patch_size": 3, "layer_norm_eps": 1e-2}
    ),
    clip({"hidden_size": 64, "eos_token_id": 100}, {"hidden_act": "gelu", "image_size": 8}, space=80),
]
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@every_case
def test_equals_theirs(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)
    mine, their = (load_file(folder / "model.safetensors") for folder in (tmp_path, reference(case).folder))
    assert mine.keys() == their.keys()
    assert all(torch.equal(mine[name], their[name]) for name in their)


@every_case
def test_equals_theirs_in_float64(case: Case) -> None:
    """An eps that is fixed shows only here."""
    assert float64_distance(case) < 1e-12


LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
WORDS = ["a", "cat", "dog", "of", "photo"]


@cache
def tokenizer_of_words() -> Any:
    """One that has the words as tokens."""
    tokens = [*LETTERS, *(f"{letter}</w>" for letter in LETTERS)]
    merges = []
    for word in WORDS:
        parts = [*word[:-1], f"{word[-1]}</w>"]
        while len(parts) > 1:
            merges.append((parts[0], parts[1]))
            parts = ["".join(parts[:2]), *parts[2:]]
            tokens.append(parts[0])
    tokens += ["<|startoftext|>", "<|endoftext|>"]
    ids = {token: i for i, token in enumerate(dict.fromkeys(tokens))}
    return hf.CLIPTokenizer(ids, list(dict.fromkeys(merges)))


@cache
def original(eos: int | None = None) -> Path:
    """A folder with a tokenizer.

    Args:
        eos: what config.json says of it; None: the true one, which is the last token.
    """
    folder, tokenizer = folder_of_process(), tokenizer_of_words()
    ids = {"vocab_size": len(tokenizer), "bos_token_id": tokenizer.bos_token_id}
    save_theirs(randomized(clip({**ids, "eos_token_id": eos or tokenizer.eos_token_id}).model(), 3), folder)
    tokenizer.save_pretrained(folder)
    return folder


def published(folder: Path, *, eos: int | None = None, **processor: Any) -> tuple[Any, Any]:
    """Writes that folder with these options of what makes pixels; gives its model and processor."""
    shutil.copytree(original(eos), folder, dirs_exist_ok=True)
    sizes = {"size": {"shortest_edge": 12}, "crop_size": {"height": 12, "width": 12}}
    images = hf.CLIPImageProcessorPil(**{**sizes, **processor})
    images.save_pretrained(folder)
    return hf.CLIPModel.from_pretrained(folder).eval(), hf.CLIPProcessor(images, tokenizer_of_words())


def pictures(channels: int = 3, side: int = 12) -> list[Image]:
    """Coloured noise, each with a brightness of its own."""
    draws = np.random.default_rng(0)
    return [Image.of(draws.random((channels, side, side)) * (i + 1) / 5) for i in range(5)]


TEXTS = ["a photo of a cat", "dog", "A  Cat, of a dog!"]


def their_logits(model: Any, processor: Any, seen: list[Image]) -> torch.Tensor:
    """Of texts and images by their own means."""
    files = [Pillow.fromarray(np.rint(np.asarray(image) * 255).astype(np.uint8).transpose(1, 2, 0)) for image in seen]
    given = processor(text=TEXTS, images=files, padding=True, return_tensors="pt")
    with torch.no_grad():
        return torch.as_tensor(model(**given).logits_per_image)


@torch.no_grad()
def our_logits(task: Any, seen: list[Image]) -> torch.Tensor:
    """Of the same, as the task reads them."""
    examples = [Example("", target=TEXTS[i % len(TEXTS)], image=image) for i, image in enumerate(seen)]
    items = task.encode(examples)
    tokens, mask = pad([item.inputs for item in items[: len(TEXTS)]])
    images = torch.from_numpy(np.stack([item.source for item in items]))
    network = task.network
    return torch.as_tensor(network.read_source(images) @ network.read_text(tokens, mask).T)


def far(mine: torch.Tensor, their: torch.Tensor) -> float:
    return distance(mine, their, None)


STATISTICS: list[dict[str, Any]] = [
    {},
    {"image_mean": [0.1, 0.2, 0.7], "image_std": [0.9, 0.5, 0.1]},
    {"do_normalize": False},
    {
        "do_resize": False,
        "do_center_crop": False,
        "size": {"shortest_edge": 30},
        "crop_size": {"height": 9, "width": 9},
    },
    {"size": {"height": 12, "width": 12}, "do_center_crop": False},
]


@pytest.mark.parametrize("statistics", STATISTICS, ids=str)
def test_logits_of_the_same_images_and_texts(statistics: dict[str, Any], tmp_path: Path) -> None:
    """From the published folder, and from what is written of it."""
    expected = their_logits(*published(tmp_path / "theirs", **statistics), pictures())
    first: Any = import_folder(tmp_path / "theirs", tmp_path / "imported.ckpt").task
    assert far(our_logits(first, pictures()), expected) < 1e-5
    assert save_pretrained(tmp_path / "imported.ckpt", tmp_path / "ours") == "CLIPModel"
    model, info = hf.AutoModel.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert isinstance(model, hf.CLIPModel)
    assert not any(info.values())
    processor = hf.AutoProcessor.from_pretrained(tmp_path / "ours")
    assert isinstance(processor, hf.CLIPProcessor)
    assert far(their_logits(model.eval(), processor, pictures()), expected) < 1e-5
    again: Any = load_pretrained(tmp_path / "ours").task
    assert far(our_logits(again, pictures()), expected) < 1e-5
    assert again.tokenizer.special == first.tokenizer.special
    assert all(torch.equal(a, b) for a, b in zip(first.network.parameters(), again.network.parameters(), strict=True))


def test_chooses_among_classes_in_words(tmp_path: Path) -> None:
    expected = their_logits(*published(tmp_path), pictures()).softmax(-1)
    task: Any = load_pretrained(tmp_path).task
    with pytest.raises(ValueError, match="expected at least two texts to choose from"):
        predict(task, pictures())
    task.classes = tuple(TEXTS)
    answers = predict(task, pictures())
    assert [list(answer.probabilities) for answer in answers] == [TEXTS] * 5
    found = torch.tensor([list(answer.probabilities.values()) for answer in answers])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert len({answer.label for answer in answers}) > 1


def test_the_mistake_of_old_files_is_read(tmp_path: Path) -> None:
    """There the end of a text is its largest token, and eos_token_id says 2."""
    model, processor = published(tmp_path / "theirs", eos=2)
    assert model.config.text_config.eos_token_id == 2
    expected = their_logits(model, processor, pictures())
    task = import_folder(tmp_path / "theirs", tmp_path / "imported.ckpt").task
    assert far(our_logits(task, pictures()), expected) < 1e-5
    save_pretrained(tmp_path / "imported.ckpt", tmp_path / "ours")
    written = hf.CLIPModel.from_pretrained(tmp_path / "ours").eval()
    assert written.config.text_config.eos_token_id == processor.tokenizer.eos_token_id
    assert far(their_logits(written, processor, pictures()), expected) < 1e-5


def test_what_transformers_5_writes_is_read(tmp_path: Path) -> None:
    """One file of both processors; and position_ids, which old files have among the weights."""
    _, processor = published(tmp_path, image_mean=[0.1, 0.2, 0.7])
    expected = read_network(tmp_path).config.image_embedding
    assert list(expected.mean) == [0.1, 0.2, 0.7]
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["text_model.embeddings.position_ids"] = torch.arange(20)[None]
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "preprocessor_config.json").unlink()
    with pytest.raises(ConfigError, match=r"preprocessor_config\.json not found"):
        read_network(tmp_path)
    processor.save_pretrained(tmp_path)
    assert not (tmp_path / "preprocessor_config.json").exists()
    assert read_network(tmp_path).config.image_embedding == expected


@pytest.mark.parametrize(
    ("file", "values", "words"),
    [
        ("config", {"architectures": ["CLIPForImageClassification"]}, "expected one of CLIPModel"),
        ("config", {"text_config_dict": {"hidden_size": 16}}, "text_config: hidden_size=32; expected 16"),
        ("config", {"projection_dim": 23}, "text_projection.weight has shape (24, 32); "),
        ("config.text_config", {"eos_token_id": 7}, "text_config: eos_token_id=7: expected token 7 after each text"),
        ("config.text_config", {"hidden_act": "mish"}, "text_config: hidden_act=mish"),
        ("config.vision_config", {"image_size": [12, 8]}, "image_size=[12, 8]; expected a whole number"),
        (
            "config.vision_config",
            {"patch_size": 5},
            "image_embedding.patch_size=[5, 5] does not divide image_embedding.image_size",
        ),
        ("preprocessor_config", {"image_processor_type": "ViTImageProcessor"}, "image_processor_type=ViTImageProc"),
        ("preprocessor_config", {"do_rescale": False}, "preprocessor_config: do_rescale=False; expected True"),
        ("preprocessor_config", {"rescale_factor": 0.5}, "rescale_factor=0.5; expected 0.0039"),
        ("preprocessor_config", {"size": {"shortest_edge": 16}}, "size={'shortest_edge': 16}; expected 12 or"),
        ("preprocessor_config", {"crop_size": 8}, "crop_size=8; expected 12 or"),
        ("preprocessor_config", {"image_mean": 0.5}, "image_mean=0.5; expected a number for each channel"),
        (
            "preprocessor_config",
            {"image_mean": [0.5]},
            "image_embedding.mean=[0.5]: expected a number for each of 3 channels",
        ),
    ],
    ids=str,
)
def test_what_is_rejected(file: str, values: dict[str, Any], words: str, tmp_path: Path) -> None:
    published(tmp_path)
    name, _, part = file.partition(".")
    path = tmp_path / f"{name}.json"
    content = json.loads(path.read_text())
    (content[part] if part else content).update(values)
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigError) as caught:
        load_pretrained(tmp_path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_vocabulary_and_merges_alone_are_rejected(tmp_path: Path) -> None:
    """They would be cut as GPT-2's are."""
    published(tmp_path)
    state = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.json").write_text(json.dumps(state["model"]["vocab"]))
    (tmp_path / "merges.txt").write_text("\n".join(map(" ".join, state["model"]["merges"])))
    with pytest.raises(ConfigError, match=r"expected tokenizer\.json, since this family does not split like GPT-2"):
        load_pretrained(tmp_path)


@pytest.mark.parametrize(("excess", "dtype"), [(0.0, "float32"), (0.0, "float16"), (1e-4, "float32")])
def test_a_scale_of_more_than_100(excess: float, dtype: str, tmp_path: Path) -> None:
    """What is 100 but for rounding is read."""
    published(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["logit_scale"] = torch.tensor(math.log(100) + excess, dtype=getattr(torch, dtype))
    save_file(tensors, tmp_path / "model.safetensors")
    if excess:
        with pytest.raises(ConfigError, match=r"logit_scale=4\.60527; expected at most 4\.60517"):
            read_network(tmp_path)
    else:
        assert read_network(tmp_path).network.scale.item() == pytest.approx(100, rel=1e-6)


def checkpoint_of(folder: Path, *overrides: str, log_scale: float | None = None) -> Path:
    """A checkpoint of a network with random weights, as a training run would write it."""
    chosen = ["model=clip/style", "shape=tiny", "shape.max_length=24", "task=image_text_matching", "data=drawn_digits"]
    chosen += [
        "image_embedding.image_size=[12,12]",
        "image_embedding.patch_size=[4,4]",
        "image_embedding.num_channels=3",
    ]
    config = composed(*chosen, "logger=csv", *overrides)
    tokenizer = build(config, "tokenizer").train([*TEXTS, "a cat of a photo"] * 9)
    return random_checkpoint(folder, config, tokenizer, CorpusInfo(), log_scale=log_scale)


OURS = {
    "style": [],
    "other widths": ["model.source_decoder.d_model=32", "model.head.num_outputs=20", "model.decoder.num_layers=3"],
    "absorbed": ["block.bias=false", "block.scale_embedding=true", "block.attention.num_kv_heads=2"],
    "fixed positions": ["block/position=sinusoidal"],
    "statistics": ["image_embedding.mean=[0.5,0.4,0.3]", "image_embedding.std=[0.1,0.2,0.3]", "block/feed_forward=mlp"],
    "scaled states": ["model.head.num_outputs=20", "heads.classes.scale_states=true", "block.norm.eps=1e-3"],
    "classes": ["task.classes=[cat,dog]", "model.source_decoder.num_heads=2"],
    "from dual_decoder": [
        *("model=dual_decoder", "model.source_decoder.causal=false", "model.source_decoder.embed_norm=true"),
        *(
            "model.head.pooling=last",
            "model.source_head.pooling=first",
            "image_embedding.normalized=false",
            "image_embedding.bias=false",
        ),
    ],
    **{kind: [f"tokenizer={kind}"] for kind in ("words", "bytes", "wordpiece")},
    "bpe": ["tokenizer=bpe", "tokenizer.vocab_size=290"],
    "unigram": ["tokenizer=unigram", "tokenizer.vocab_size=280"],
}


@pytest.mark.parametrize("name", by_day(OURS, [*OURS][::3]))
def test_exports_our_own_models(name: str, tmp_path: Path) -> None:
    """Whose texts end with token 2, which ``CLIPModel`` takes for a mistake: it becomes the last."""
    path = checkpoint_of(tmp_path, *OURS[name])
    mine: Any = triptych.load(path).task
    assert mine.tokenizer.special.eos == 2
    record = {"weights_sha256": weights_sha256(mine.network), "metrics": {"test/loss": 0.5}}
    (tmp_path / "run" / "summary.json").write_text(json.dumps(record))
    assert save_pretrained(path, tmp_path / "out") == "CLIPModel"
    model, info = hf.AutoModel.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(info.values())
    assert model.config.text_config.eos_token_id == mine.tokenizer.vocab_size - 1
    processor = hf.AutoProcessor.from_pretrained(tmp_path / "out")
    expected = their_logits(model.eval(), processor, pictures())
    import_folder(tmp_path / "out", tmp_path / "again.ckpt")
    again: Any = triptych.load(tmp_path / "again.ckpt").task
    for task in (mine, again):
        assert far(our_logits(task, pictures()), expected) < 1e-5
    if name == "style":
        kept = dict(again.network.named_parameters())
        table = "embedding.tokens.weight"
        own = dict(mine.network.named_parameters())
        assert all(torch.equal(kept[key], own[key]) for key in own if key != table)
        last = len(own[table]) - 1
        order = [last if i == 2 else 2 if i == last else i for i in range(last + 1)]
        assert torch.equal(kept[table], own[table][order])
    card = (tmp_path / "out" / "README.md").read_text()
    assert 'processor(text=["...", "..."], images=..., padding=True, return_tensors="pt")' in card
    assert "from transformers import AutoModel, AutoProcessor" in card
    assert "logits_per_image" in card
    assert "| test/loss | 0.5000 |" in card


def test_a_scale_that_was_trained_to_more_is_written_as_100(tmp_path: Path) -> None:
    path = checkpoint_of(tmp_path, log_scale=5.0)
    save_pretrained(path, tmp_path / "out")
    model = hf.CLIPModel.from_pretrained(tmp_path / "out").eval()
    assert model.logit_scale.exp().item() == pytest.approx(100, rel=1e-6)
    processor = hf.AutoProcessor.from_pretrained(tmp_path / "out")
    assert far(our_logits(triptych.load(path).task, pictures()), their_logits(model, processor, pictures())) < 1e-5


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["image_embedding.normalized=true"], "model.source_embedding.normalized=True (expected False)"),
        (["image_embedding.bias=true"], "model.source_embedding.bias=True (expected False)"),
        (["image_embedding.image_size=[12,8]"], "image_embedding.image_size=[12, 8]; expected a square"),
        (["image_embedding.patch_size=[4,2]"], "image_embedding.patch_size=[4, 2]; expected a square"),
        (["model.source_decoder.causal=true"], "model.source_decoder.causal=True (expected False)"),
        (["model.source_decoder.embed_norm=false"], "model.source_decoder.embed_norm=False (expected True)"),
        (["model.source_head.pooling=mean"], "model.source_head.pooling=mean (expected first)"),
        (["model.head.pooling=mean"], "model.head.pooling=mean (expected last)"),
        (["heads.classes.bias=trained"], "model.head.bias=trained (expected none)"),
        (["block/position=rotary"], "model.source_decoder.position=Rotary (expected LearnedPositions)"),
        (["block/residual=post_norm"], "model.decoder.residual=PostNorm (expected PreNorm)"),
    ],
    ids=str,
)
def test_what_is_no_clip(overrides: list[str], words: str, tmp_path: Path) -> None:
    path = checkpoint_of(tmp_path, *overrides)
    with pytest.raises(ConfigError) as caught:
        save_pretrained(path, tmp_path / "out")
    assert "the nearest, clip, " in str(caught.value)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_two_encoders_are_no_published_family(tmp_path: Path) -> None:
    path = checkpoint_of(tmp_path, "model=dual_encoder")
    with pytest.raises(ConfigError, match="none has a head for task=image_text_matching"):
        save_pretrained(path, tmp_path / "out")


def test_as_commands(tmp_path: Path) -> None:
    """A folder is imported, and trained further on other images."""
    published(tmp_path / "theirs", image_mean=[0.1, 0.2, 0.7])
    rows = ["file\ttarget"]
    for i, image in enumerate(pictures() * 4):
        (tmp_path / f"{i}.png").write_bytes(as_png(image))
        rows.append(f"{i}.png\t{TEXTS[i % 3]}")
    (tmp_path / "captions.tsv").write_text("\n".join(rows))
    imported = run("import", "theirs", "--output", "clip.ckpt", cwd=tmp_path)
    assert imported.returncode == 0, imported.stderr
    assert "next: triptych predict checkpoint=clip.ckpt input=FILE" in imported.stdout
    (tmp_path / "paths.txt").write_text("0.png\n3.png\n")
    said = run("predict", "checkpoint=clip.ckpt", "input=paths.txt", "classes=[a cat,dog]", cwd=tmp_path)
    task: Any = load_pretrained(tmp_path / "theirs").task
    task.classes = ("a cat", "dog")
    expected = [answer.probabilities for answer in predict(task, [pictures()[0], pictures()[3]])]
    answers = [json.loads(line)["probabilities"] for line in said.stdout.splitlines()]
    assert answers == [pytest.approx(answer, abs=1e-5) for answer in expected], said.stderr
    trained = run(
        "train", "init_from=clip.ckpt", "task=image_text_matching", "data=image_files", "data.dir=.",
        "data.train=captions.tsv", "data.validation=0.25", "data.test=0.25", "batch.global_size=4",
        "trainer.max_steps=2",
        "scheduler.warmup_steps=1", "trainer.val_check_interval=2", "logger=csv", "run_dir=run", cwd=tmp_path,
    )  # fmt: skip
    assert trained.returncode == 0, trained.stderr
    frozen, tuned = (triptych.load(tmp_path / name).network for name in ("clip.ckpt", "run"))
    assert tuned.source_embedding.statistics == frozen.source_embedding.statistics
    before = frozen.state_dict()
    moved = {name: (weight - before[name]).abs().max().item() for name, weight in tuned.state_dict().items()}
    assert moved.keys() == before.keys()
    assert 0 < min(moved.values()) < max(moved.values()) < 0.01
    refused = run("train", "experiment=dates/classification", "init_from=clip.ckpt", "model=encoder_only", cwd=tmp_path)
    assert "init_from=clip.ckpt is dual_decoder: its weights cannot initialize model=encoder_only" in refused.stderr
    exported = run("export", "run", "--output", "tuned", cwd=tmp_path)
    assert exported.returncode == 0, exported.stderr
    assert json.loads((tmp_path / "tuned" / "preprocessor_config.json").read_text())["image_mean"] == [0.1, 0.2, 0.7]
