"""ViT's like, against ``transformers``."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

import triptych
from command_line import composed
from oracle import Case, check, random_checkpoint, randomized
from triptych.config import ConfigError, build
from triptych.data import Characters, Digits
from triptych.interop import import_folder, read_network, save_pretrained, write_network
from triptych.interop.networks import configuration

SMALL = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96,
    "layer_norm_eps": 1e-2, "num_labels": 3, "num_channels": 2, "image_size": (8, 12), "patch_size": (2, 3),
}  # fmt: skip


def vit(**options: Any) -> Case:
    config = hf.ViTConfig(**{**SMALL, **options})
    return Case(f"ViTForImageClassification {options}", lambda: hf.ViTForImageClassification(config), ("none",))


CASES = [
    vit(),
    vit(image_size=12, patch_size=4, num_channels=1, hidden_act="gelu_new"),
    vit(image_size=(6, 4), patch_size=2, num_channels=3, qkv_bias=False, num_hidden_layers=3),
    vit(image_size=6, patch_size=(3, 2), hidden_act="relu", num_attention_heads=2),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_equals_theirs(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


def test_a_bare_model_needs_a_new_head(tmp_path: Path) -> None:
    """Its pooler, which no published classifier has, is left out."""
    theirs = randomized(hf.ViTModel(hf.ViTConfig(**SMALL)))
    theirs.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"requires are missing: classifier\.weight, classifier\.bias"):
        read_network(tmp_path)
    network: Any = read_network(tmp_path, new_head=True).network
    images = torch.randn(2, 2, 8, 12)
    with torch.no_grad():
        states = network.encoder(network.embedding(images))
        torch.testing.assert_close(states, theirs(images).last_hidden_state, rtol=1e-5, atol=1e-5)


def test_a_convolution_of_other_patches_is_rejected(tmp_path: Path) -> None:
    """Columns and rows exchanged: as many numbers, another function."""
    hf.ViTForImageClassification(hf.ViTConfig(**SMALL)).save_pretrained(tmp_path)
    name = "vit.embeddings.patch_embeddings.projection.weight"
    tensors = load_file(tmp_path / "model.safetensors")
    tensors[name] = tensors[name].mT.contiguous()
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=rf"{name} has shape \(32, 2, 3, 2\); .* for embedding\.patches\.weight"):
        read_network(tmp_path)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"patch_size": [2, 3, 4]}, r"patch_size=\[2, 3, 4\]; expected a side, or \[height, width\]"),
        ({"image_size": "8"}, "image_size=8; expected a side"),
        ({"patch_size": 5}, r"patch_size=\[5, 5\] does not divide image_embedding\.image_size=\[8, 12\]"),
    ],
)
def test_sizes_that_cannot_be(values: dict[str, Any], words: str, tmp_path: Path) -> None:
    hf.ViTForImageClassification(hf.ViTConfig(**SMALL)).save_pretrained(tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(content | values))
    with pytest.raises(ConfigError, match=words):
        read_network(tmp_path)


def network_of(settings: dict[str, Any], **more: Any) -> tuple[Any, Any]:
    """Ours, with random weights, and its configuration; with more options of the patches."""
    patches = {"_target_": "triptych.nn.PatchEmbedding", "image_size": [8, 8], "patch_size": [4, 2], "num_channels": 1}
    sizes = {"shape.d_model": 16, "shape.num_layers": 2, "shape.num_heads": 2, "shape.d_ff": 24, "shape.max_length": 9}
    node = {"model.embedding": {**patches, **more, "d_model": "${shape.d_model}"}}
    config = configuration("encoder_only", "classification", {**sizes, **node, **settings}, 3)
    return randomized(build(config, "model")), config


def test_what_weights_take_up(tmp_path: Path) -> None:
    """A fixed table of positions, and biases that are not there, are those of a ViT."""
    network, config = network_of({"block/position": "sinusoidal", "block.bias": False, "heads.classes.bias": "none"})
    write_network(tmp_path, network, config, "classification", labels=("a", "b", "c"))
    theirs = hf.AutoModelForImageClassification.from_pretrained(tmp_path).eval()
    assert theirs.config.image_size == 8
    assert theirs.config.patch_size == [4, 2]
    assert theirs.config.id2label == {0: "a", 1: "b", 2: "c"}
    images = torch.randn(4, 1, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(theirs(images).logits, network(images), rtol=1e-5, atol=1e-5)


def test_patches_without_a_bias(tmp_path: Path) -> None:
    """Are those of a ViT, whose bias is 0; a mean that is subtracted from pixels is not."""
    network, config = network_of({"block/position": "learned"}, bias=False)
    write_network(tmp_path, network, config, "classification", labels=("a", "b", "c"))
    theirs, images = hf.AutoModelForImageClassification.from_pretrained(tmp_path).eval(), torch.randn(4, 1, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(theirs(images).logits, network(images), rtol=1e-5, atol=1e-5)
    network, config = network_of({"block/position": "learned"}, mean=[0.5], std=[0.5])
    with pytest.raises(ConfigError, match=r"vit, differs in model\.embedding\.mean=\[0\.5\] \(expected None\)"):
        write_network(tmp_path, network, config, "classification", labels=("a", "b", "c"))


def test_what_is_no_vit(tmp_path: Path) -> None:
    network, config = network_of({"block/residual": "post_norm"})
    with pytest.raises(ConfigError, match=r"vit, differs in model\.encoder\.residual=PostNorm \(expected PreNorm\)"):
        write_network(tmp_path, network, config, "classification")


def test_a_trained_network_as_a_folder_and_back(tmp_path: Path) -> None:
    """Without any tokenizer; the answers are the same."""
    path = checkpoint_of(tmp_path, "experiment=digits/encoder_only")
    ours = triptych.load(path)
    assert save_pretrained(path, tmp_path / "out") == "ViTForImageClassification"
    assert {file.name for file in (tmp_path / "out").iterdir()} == {"config.json", "model.safetensors", "README.md"}
    assert "token" not in (tmp_path / "out" / "config.json").read_text() + (tmp_path / "out" / "README.md").read_text()
    import_folder(tmp_path / "out", tmp_path / "again.ckpt")
    theirs, again = hf.AutoModelForImageClassification.from_pretrained(tmp_path / "out"), tmp_path / "again.ckpt"
    images = torch.rand(5, 1, 8, 8)
    with torch.no_grad():
        expected = theirs.eval()(images).logits.softmax(-1)
    for task in (ours, triptych.load(again)):
        for found, row in zip(task.predict(images.numpy()), expected.tolist(), strict=True):
            assert list(found.probabilities) == list("0123456789")
            assert list(found.probabilities.values()) == pytest.approx(row, abs=1e-5)


def test_a_decoder_over_patches_is_no_published_family(tmp_path: Path) -> None:
    path = checkpoint_of(tmp_path, "experiment=digits/decoder_only")
    with pytest.raises(ConfigError, match="none has a head for task=classification with these inputs"):
        save_pretrained(path, tmp_path / "out")


def checkpoint_of(folder: Path, *overrides: str) -> Path:
    """A checkpoint of a network with random weights, as a training run would write it."""
    config = composed("logger=csv", *overrides)
    return random_checkpoint(folder, config, Characters().train([]), Digits.info)
