"""ViT's like, against ``transformers``."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

from oracle import Case, measure, randomized
from triptych.config import ConfigError
from triptych.interop import read_network

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "layer_norm_eps": 1e-2,
    "num_labels": 3,
    "num_channels": 2,
    "image_size": (8, 12),
    "patch_size": (2, 3),
}


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
    measured = measure(case, tmp_path)
    assert measured.imported < 1e-5
    assert measured.exported < 1e-5
    assert measured.loss < 1e-5
    assert measured.is_round_trip_equal
    assert measured.has_equal_size


def test_a_bare_model_needs_a_new_head(tmp_path: Path) -> None:
    """Its pooler, which no published classifier has, is left out."""
    theirs = randomized(hf.ViTModel(hf.ViTConfig(**SMALL)))
    theirs.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"tensors that are missing: classifier\.weight, classifier\.bias"):
        read_network(tmp_path)
    network: Any = read_network(tmp_path, new_head=True).network
    images = torch.randn(2, 2, 8, 12)
    with torch.no_grad():
        states = network.encoder(network.embedding(images))
        torch.testing.assert_close(states, theirs(images).last_hidden_state, rtol=1e-5, atol=1e-5)


def test_a_convolution_of_other_patches_is_refused(tmp_path: Path) -> None:
    """Columns and rows exchanged: as many numbers, another function."""
    hf.ViTForImageClassification(hf.ViTConfig(**SMALL)).save_pretrained(tmp_path)
    name = "vit.embeddings.patch_embeddings.projection.weight"
    tensors = load_file(tmp_path / "model.safetensors")
    tensors[name] = tensors[name].mT.contiguous()
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=rf"{name} of \(32, 2, 3, 2\) does not fit embedding\.patches\.weight"):
        read_network(tmp_path)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"patch_size": [2, 3, 4]}, r"patch_size=\[2, 3, 4\]; expected a side, or \[height, width\]"),
        ({"image_size": "8"}, "image_size=8; expected a side"),
        ({"patch_size": 5}, r"patch_size=\[5, 5\] does not divide model\.embedding\.image_size=\[8, 12\]"),
    ],
)
def test_sizes_that_cannot_be(values: dict[str, Any], words: str, tmp_path: Path) -> None:
    hf.ViTForImageClassification(hf.ViTConfig(**SMALL)).save_pretrained(tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(content | values))
    with pytest.raises(ConfigError, match=words):
        read_network(tmp_path)
