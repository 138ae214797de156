"""ViT (Dosovitskiy et al. 2021).

Tested by tests/interop/test_vit.py.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from triptych.config import ConfigError
from triptych.interop.families.family import Family, HFConfig, Settings, attention_names, hf_activation

LAYER = "vit.encoder.layer.{}."
PROJECTIONS = ("attention.query", "attention.key", "attention.value", "output.dense")
PATCHES = "vit.embeddings.patch_embeddings.projection"


class Vit(Family):
    """Pre-norm over patches of an image, learned positions; one layer predicts the classes from [cls].

    The convolution of patches, with a stride equal to its width, is our linear layer with its columns in three axes.
    """

    model_type = "vit"
    architecture = "encoder_only"
    embedding = "triptych.nn.PatchEmbedding"
    prefix = "vit."
    classes = {"classification": "ViTForImageClassification"}
    names = {
        "embedding.cls": "vit.embeddings.cls_token",
        "embedding.patches": PATCHES,
        "encoder.position.table": "vit.embeddings.position_embeddings",
        **attention_names("encoder.layers.{}.self_attention", LAYER + "attention.", PROJECTIONS),
        "encoder.layers.{}.self_residual.norm": LAYER + "layernorm_before",
        "encoder.layers.{}.feed_forward.up": LAYER + "intermediate.dense",
        "encoder.layers.{}.feed_forward.down": LAYER + "output.dense",
        "encoder.layers.{}.feed_forward_residual.norm": LAYER + "layernorm_after",
        "encoder.final_norm": "vit.layernorm",
    }
    heads = {"classification": {"head.output": "classifier"}}
    sizes = {name: Family.sizes[name] for name in ("d_model", "num_layers", "num_heads", "d_ff")}
    numbers = {
        "norm.eps": ("layer_norm_eps", 1e-12),
        "dropout": ("hidden_dropout_prob", 0.0),
        "attention.dropout": ("attention_probs_dropout_prob", 0.0),
    }
    other_heads = (r"vit\.pooler\..*", r"vit\.embeddings\.mask_token", r"decoder\..*", r"classifier\..*")

    def settings(self, config: HFConfig, tensors: Mapping[str, Tensor]) -> Settings:
        image_size, patch_size = sides(config, "image_size", 224), sides(config, "patch_size", 16)
        rows, columns = (image // patch for image, patch in zip(image_size, patch_size, strict=True))
        patches = {
            "image_size": image_size,
            "patch_size": patch_size,
            "num_channels": config.get("num_channels", 3),
            "normalized": False,
            "bias": True,
            "mean": None,
            "std": None,
        }
        return {
            **self.plain_settings(config),
            "shape.max_length": 1 + rows * columns,
            "model.embedding": {"_target_": self.embedding, **patches, "d_model": "${shape.d_model}"},
            **{f"image_embedding.{key}": value for key, value in patches.items()},
            "block/residual": "pre_norm",
            "block.feed_forward.activation": config.activation("hidden_act", "gelu"),
            "block.attention.qkv_bias": config.get("qkv_bias", True),
            "block/position": "learned",
            "block.tie_word_embeddings": False,
            "heads.classes.bias": "trained",
        }

    def config(self, model: Settings) -> dict[str, Any]:
        qkv_bias = model.get("encoder.attention.qkv_bias")
        return {
            **self.plain_config(model),
            "image_size": side_or_sides(model["embedding.image_size"]),
            "patch_size": side_or_sides(model["embedding.patch_size"]),
            "num_channels": model["embedding.num_channels"],
            "hidden_act": hf_activation(model, "encoder"),
            "qkv_bias": model["encoder.bias"] if qkv_bias is None else qkv_bias,
        }

    def shapes(self, config: HFConfig) -> Mapping[str, tuple[int, ...]]:
        return {
            "vit.embeddings.cls_token": (1, 1, -1),
            "vit.embeddings.position_embeddings": (1, -1, config.size("hidden_size")),
            f"{PATCHES}.weight": (-1, config.get("num_channels", 3), *sides(config, "patch_size", 16)),
        }


def sides(config: HFConfig, key: str, default: int) -> list[int]:
    """Height and width; one number if they are equal."""
    value = config.get(key, default)
    found = list(value) if isinstance(value, list | tuple) else [value, value]
    if len(found) != 2 or any(not isinstance(side, int) or isinstance(side, bool) or side < 1 for side in found):
        raise ConfigError(f"{config.place}: {key}={value}; expected a side, or [height, width]")
    return found


def side_or_sides(size: list[int]) -> int | list[int]:
    """One number if height and width are equal, as in the published files."""
    return size[0] if size[0] == size[1] else size
