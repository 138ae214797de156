"""CLIP (Radford et al. 2021).

Tested by tests/interop/test_clip.py.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from triptych.config import ConfigError
from triptych.interop.families.bart import PROJECTIONS
from triptych.interop.families.family import Family, HFConfig, Settings, attention_names, hf_activation
from triptych.models.dual_encoder import LARGEST_SCALE

PATCHES = "triptych.nn.PatchEmbedding"
PROCESSOR = "preprocessor_config"
"""The file with the settings of image preprocessing."""
PROCESSORS = ("CLIPImageProcessor", "CLIPImageProcessorFast", "CLIPImageProcessorPil")
MEAN, STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
"""Default mean and standard deviation of red, green and blue (github.com/openai/CLIP, ``clip.py``)."""
BRIGHTEST = 255
"""Divisor of pixels in these files; pixels in Triptych are 0 to 1."""
SIZES = ("d_model", "num_layers", "num_heads", "d_ff")
"""Sizes of each tower."""
TOWERS = {"decoder": "text", "source_decoder": "vision"}
OUTSIDE = {
    "embedding.tokens": "text_model.embeddings.token_embedding",
    "decoder.position.table": "text_model.embeddings.position_embedding.weight",
    "decoder.final_norm": "text_model.final_layer_norm",
    "source_embedding.cls": "vision_model.embeddings.class_embedding",
    "source_embedding.patches": "vision_model.embeddings.patch_embedding",
    "source_decoder.position.table": "vision_model.embeddings.position_embedding.weight",
    "source_decoder.embed_norm": "vision_model.pre_layrnorm",  # sic
    "source_decoder.final_norm": "vision_model.post_layernorm",
    "log_scale": "logit_scale",
}
LAYER = {
    **attention_names("self_attention", "self_attn.", PROJECTIONS),
    "self_residual.norm": "layer_norm1",
    "feed_forward.up": "mlp.fc1",
    "feed_forward.down": "mlp.fc2",
    "feed_forward_residual.norm": "layer_norm2",
}


class Clip(Family):
    """Two pre-norm towers with learned positions. The text tower is causal and pooled at the last token. The image
    tower reads patches without a bias, has a norm before its first block, and is pooled at [cls].

    CLIP multiplies cosines by any scale, Triptych by at most 100. Importing a larger scale is an error; an export
    limits the scale to 100.
    """

    model_type = "clip"
    architecture = "decoder_only"
    model = "dual_decoder"
    prefix = ""
    classes = {"image_text_matching": "CLIPModel"}
    parts = ("text_config",)
    files = {PROCESSOR: ("processor_config", "image_processor")}  # the second since transformers 5
    buffers = (r"(text|vision)_model\.embeddings\.position_ids",)
    names = {
        **OUTSIDE,
        **{
            f"{ours}.layers.{{}}.{part}": f"{theirs}_model.encoder.layers.{{}}.{their_part}"
            for ours, theirs in TOWERS.items()
            for part, their_part in LAYER.items()
        },
    }
    heads = {"image_text_matching": {"head.output": "text_projection", "source_head.output": "visual_projection"}}

    def settings(self, config: HFConfig, tensors: Mapping[str, Tensor]) -> Settings:
        text, vision = tower_config(config, "text"), tower_config(config, "vision")
        scale = tensors.get("logit_scale")
        if scale is not None and scale > torch.tensor(LARGEST_SCALE).log().to(scale.dtype):
            raise ConfigError(
                f"{config.place}: logit_scale={float(scale):g}; expected at most {math.log(LARGEST_SCALE):g}, "
                f"since the scale of cosines is limited to {LARGEST_SCALE:g}"
            )
        side, patch = vision.size("image_size"), vision.size("patch_size")
        patches = {
            "image_size": [side, side],
            "patch_size": [patch, patch],
            "num_channels": vision.get("num_channels", 3),
            "normalized": False,
            "bias": False,
            **statistics(config.part(PROCESSOR), side),
            "d_model": vision.size("hidden_size"),
        }
        return {
            "model.source_embedding": {"_target_": PATCHES, **patches},
            **{f"image_embedding.{key}": value for key, value in patches.items()},
            **self.plain_settings(text),
            **{f"model.source_decoder.{name}": vision.size(self.sizes[name]) for name in SIZES},
            "model.source_decoder.max_length": 1 + (side // patch) ** 2,
            "model.source_decoder.causal": False,
            "model.source_decoder.embed_norm": True,
            "model.head": {"d_model": text.size("hidden_size"), "num_outputs": None, "pooling": "last"},
            "model.head.num_outputs": config.size("projection_dim"),
            "model.source_head": {
                "d_model": vision.size("hidden_size"),
                "num_outputs": "${model.head.num_outputs}",
                "pooling": "first",
            },
            "block/residual": "pre_norm",
            "block/position": "learned",
            "block.scale_embedding": False,
            "block.tie_word_embeddings": False,
            "block.dropout": 0.0,
            "block/norm@model.source_decoder.norm": "layer_norm",
            "block/attention@model.source_decoder.attention": "multi_head",
            "block/feed_forward@model.source_decoder.feed_forward": "mlp",
            **{
                f"{node}.{key}": value
                for node, tower in (("block", text), ("model.source_decoder", vision))
                for key, value in {
                    "norm.eps": tower.get("layer_norm_eps", 1e-5),
                    "feed_forward.activation": tower.activation("hidden_act", "quick_gelu"),
                    "attention.dropout": tower.get("attention_dropout", 0.0),
                }.items()
            },
        }

    def config(self, model: Settings) -> dict[str, Any]:
        """See ``Family``.

        Raises:
            ConfigError: images or patches that are not square, or no patches.
        """
        if model.get("source_embedding._target_") != PATCHES:
            raise ConfigError("model.source_embedding: expected patches of images")
        side, patch = square(model, "image_size"), square(model, "patch_size")
        mean = model.get("source_embedding.mean")
        return {
            "projection_dim": model["head.num_outputs"],
            "text_config": {
                "model_type": "clip_text_model",
                "vocab_size": model["embedding.vocab_size"],
                "max_position_embeddings": model["decoder.max_length"],
                **tower(model, "decoder"),
            },
            "vision_config": {
                "model_type": "clip_vision_model",
                "image_size": side,
                "patch_size": patch,
                "num_channels": model["source_embedding.num_channels"],
                **tower(model, "source_decoder"),
            },
            PROCESSOR: {
                "image_processor_type": PROCESSORS[0],
                "processor_class": "CLIPProcessor",
                "do_convert_rgb": model["source_embedding.num_channels"] == len(MEAN),
                "do_resize": True,
                "size": {"shortest_edge": side},
                "resample": 3,  # bicubic
                "do_center_crop": True,
                "crop_size": {"height": side, "width": side},
                "do_rescale": True,
                "rescale_factor": 1 / BRIGHTEST,
                "do_normalize": mean is not None,
                "image_mean": mean,
                "image_std": model.get("source_embedding.std"),
            },
        }

    def shapes(self, config: HFConfig) -> Mapping[str, tuple[int, ...]]:
        vision = config.part("vision_config")
        patch = vision.size("patch_size")
        return {
            "logit_scale": (),
            "vision_model.embeddings.patch_embedding.weight": (-1, vision.get("num_channels", 3), patch, patch),
        }

    def reordered(self, state: Mapping[str, Tensor], config: HFConfig, *, to_ours: bool) -> Mapping[str, Tensor]:
        if to_ours:
            return state
        return {**state, "log_scale": state["log_scale"].clamp(max=math.log(LARGEST_SCALE))}


def statistics(processor: HFConfig, side: int) -> Settings:
    """Mean and standard deviation for pixels of 0 to 1.

    Args:
        processor: settings of image preprocessing.
        side: of the input images.
    """
    processor.expect("image_processor_type", PROCESSORS[0], PROCESSORS)
    processor.expect("do_rescale", True, [True])
    processor.expect("rescale_factor", 1 / BRIGHTEST, [1 / BRIGHTEST])
    sides = {"height": side, "width": side}
    if processor.get("do_resize", True):
        processor.expect("size", {"shortest_edge": 224}, [side, {"shortest_edge": side}, sides])
    if processor.get("do_center_crop", True):
        processor.expect("crop_size", {"height": 224, "width": 224}, [side, sides])
    if not processor.get("do_normalize", True):
        return {"mean": None, "std": None}
    found = {"mean": processor.get("image_mean", MEAN), "std": processor.get("image_std", STD)}
    for key, numbers in found.items():
        if not isinstance(numbers, list) or not all(isinstance(number, float | int) for number in numbers):
            raise ConfigError(f"{processor.place}: image_{key}={numbers}; expected a number for each channel")
    return found


def tower_config(config: HFConfig, name: str) -> HFConfig:
    """The configuration of one CLIP tower; old files contain parts of it twice."""
    tower, again = config.part(f"{name}_config"), config.get(f"{name}_config_dict", None) or {}
    for key, value in again.items():
        tower.expect(key, value, [value])
    return tower


def square(model: Settings, key: str) -> int:
    """The side of our square images or patches."""
    height, width = model[f"source_embedding.{key}"]
    if height != width:
        raise ConfigError(f"image_embedding.{key}=[{height}, {width}]; expected a square")
    return int(height)


def tower(model: Settings, stack: str) -> dict[str, Any]:
    """The CLIP configuration of one of our stacks."""
    return {
        **{Family.sizes[name]: model[f"{stack}.{name}"] for name in SIZES},
        "projection_dim": model["head.num_outputs"],
        "layer_norm_eps": model.get(f"{stack}.norm.eps", 1e-5),
        "hidden_act": hf_activation(model, stack),
        "attention_dropout": model.get(f"{stack}.attention.dropout", 0.0),
    }
