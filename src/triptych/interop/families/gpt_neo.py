"""GPT-Neo (Black et al. 2021): GPT-3's alternation of dense and banded attention (Brown et al. 2020), published.

Tested by tests/interop/test_decoder_families.py.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from triptych.config import ConfigError
from triptych.interop.families.family import DECODER_CLASSES, HFConfig, Settings
from triptych.interop.families.gpt2 import LAYER, Gpt2


class GptNeo(Gpt2):
    """GPT-2 with windows, unscaled scores, and no bias of queries, keys and values."""

    model_type = "gpt_neo"
    classes = {task: f"GPTNeo{ending}" for task, ending in DECODER_CLASSES.items()}
    names = {
        **Gpt2.names,
        **{f"decoder.layers.{{}}.self_attention.{x}": f"{LAYER}attn.attention.{x}_proj" for x in "qkv"},
        "decoder.layers.{}.self_attention.o": LAYER + "attn.attention.out_proj",
    }
    transposed = ()
    buffers = (r"transformer\.h\.\d+\.attn\.attention\.(bias|masked_bias)",)
    sizes = {
        "d_model": "hidden_size",
        "num_layers": "num_layers",
        "num_heads": "num_heads",
        "max_length": "max_position_embeddings",
    }
    numbers = {"dropout": ("resid_dropout", 0.0), "attention.dropout": ("attention_dropout", 0.0)}

    def settings(self, config: HFConfig, tensors: Mapping[str, Tensor]) -> Settings:
        types = config.get("attention_types", None) or [[["global", "local"], 12]]
        kinds = [kind for pattern, times in types for _ in range(times) for kind in pattern]
        if len(kinds) != config.size("num_layers") or not {"global", "local"}.issuperset(kinds):
            raise ConfigError(
                f"{config.place}: attention_types={types}; expected global or local for each of "
                f"num_layers={config['num_layers']}"
            )
        widths = {"global": None, "local": config.get("window_size", 256)}
        return {
            **self.plain_settings(config),
            "shape.d_ff": config.get("intermediate_size", None) or 4 * config.size("hidden_size"),
            "block.attention.scale": 1.0,
            "block.attention.qkv_bias": False,
            "block.attention.sliding_windows": [widths[kind] for kind in kinds] if "local" in kinds else None,
        }

    def config(self, model: Settings) -> dict[str, Any]:
        """See ``Family``; of several window widths, the first."""
        num_layers, windows = model["decoder.num_layers"], model.get("decoder.attention.sliding_windows") or [None]
        kinds = ["global" if windows[i % len(windows)] is None else "local" for i in range(num_layers)]
        return {
            **self.plain_config(model),
            "intermediate_size": model["decoder.d_ff"],
            "attention_types": [[kinds, 1]],
            "window_size": next((window for window in windows if window is not None), 256),
            "embed_dropout": model["decoder.dropout"],
        }
