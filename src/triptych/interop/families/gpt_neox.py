"""GPT-NeoX (Black et al. 2022), and Pythia (Biderman et al. 2023).

Tested by tests/interop/test_decoder_families.py.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from triptych.interop.families.family import DECODER_CLASSES, Family, HFConfig, Settings, hf_activation, output_names
from triptych.interop.families.llama import hf_rope, rope

LAYER = "gpt_neox.layers.{}."
QKV = LAYER + "attention.query_key_value"


class GptNeoX(Family):
    """Attention and feed-forward in parallel, each after a separate norm; partial rotary positions.

    Queries, keys and values are one matrix, head by head.
    """

    model_type = "gpt_neox"
    architecture = "decoder_only"
    prefix = "gpt_neox."
    classes = {task: f"GPTNeoX{ending}" for task, ending in DECODER_CLASSES.items()}
    names = {
        "embedding.tokens": "gpt_neox.embed_in",
        **{f"decoder.layers.{{}}.self_attention.{x}": f"{QKV}[{i}]" for i, x in enumerate("qkv")},
        "decoder.layers.{}.self_attention.o": LAYER + "attention.dense",
        "decoder.layers.{}.self_residual.norm": LAYER + "input_layernorm",
        "decoder.layers.{}.feed_forward.up": LAYER + "mlp.dense_h_to_4h",
        "decoder.layers.{}.feed_forward.down": LAYER + "mlp.dense_4h_to_h",
        "decoder.layers.{}.feed_forward_residual.norm": LAYER + "post_attention_layernorm",
        "decoder.final_norm": "gpt_neox.final_layer_norm",
    }
    heads = output_names("embed_out", "score", "classifier")
    tied_copies = {"embed_out.weight": "gpt_neox.embed_in.weight"}
    buffers = (
        r"gpt_neox\.layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)",
        r"gpt_neox\.rotary_emb\.inv_freq",
    )
    other_heads = (r"embed_out\..*", r"score\..*", r"classifier\..*", r"qa_outputs\..*")
    numbers = {
        "norm.eps": ("layer_norm_eps", 1e-5),
        "dropout": ("hidden_dropout", 0.0),
        "attention.dropout": ("attention_dropout", 0.0),
    }

    def settings(self, config: HFConfig, tensors: Mapping[str, Tensor]) -> Settings:
        config.expect("attention_bias", True, [True])  # with the output only: ours has all or none
        theta, scaling = rope(config, theta_key="rotary_emb_base", reads_share=True)
        share = (config.get("rope_parameters", None) or {}).get("partial_rotary_factor", config.get("rotary_pct", 0.25))
        return {
            **self.plain_settings(config),
            "block/residual": "parallel_norms" if config.get("use_parallel_residual", True) else "pre_norm",
            "block.feed_forward.activation": config.activation("hidden_act", "gelu"),
            "block/position": "rotary",
            "block.position.theta": theta,
            "block.position.partial_rotary_factor": share,
            "block.position.scaling": scaling,
            "block.scale_embedding": False,
            "block.tie_word_embeddings": config.get("tie_word_embeddings", False),
            "heads.tags.bias": "trained",
        }

    def config(self, model: Settings) -> dict[str, Any]:
        return {
            **self.plain_config(model),
            "use_parallel_residual": str(model["decoder.residual._target_"]).endswith(".ParallelNorms"),
            "hidden_act": hf_activation(model, "decoder"),
            "rope_parameters": {
                **hf_rope(model),
                "partial_rotary_factor": model.get("decoder.position.partial_rotary_factor", 1.0),
            },
            # a table that is only scaled as the input becomes two tables
            "tie_word_embeddings": model["tie_word_embeddings"] and not model["embedding.scale_embedding"],
        }

    def reordered(self, state: Mapping[str, Tensor], config: HFConfig, *, to_ours: bool) -> Mapping[str, Tensor]:
        """See ``Family``: for each head, their rows are its queries, keys and values, in this order."""
        num_heads = config.size("num_attention_heads")
        first, second = (num_heads, 3) if to_ours else (3, num_heads)
        moved = dict(state)
        for q in [name for name in state if ".self_attention.q." in name]:
            names = [q.replace(".q.", f".{kind}.") for kind in "qkv"]
            rows = torch.cat([state[name] for name in names])
            rows = rows.view(first, second, -1, *rows.shape[1:]).transpose(0, 1).reshape(rows.shape)
            moved |= dict(zip(names, rows.chunk(3), strict=True))
        return moved
