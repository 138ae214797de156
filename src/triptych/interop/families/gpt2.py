"""GPT-2 (Radford et al. 2019), and with more positions GPT-3's sizes (Brown et al. 2020).

Tested by tests/interop/test_decoder_families.py.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from triptych.interop.families.family import DECODER_CLASSES, Family, HFConfig, Settings, hf_activation, output_names

LAYER = "transformer.h.{}."


class Gpt2(Family):
    """Pre-norm, learned positions; queries, keys and values in one matrix; all matrices of blocks are [in, out]."""

    model_type = "gpt2"
    architecture = "decoder_only"
    prefix = "transformer."
    classes = {task: f"GPT2{ending.replace('ForCausalLM', 'LMHeadModel')}" for task, ending in DECODER_CLASSES.items()}
    names = {
        "embedding.tokens": "transformer.wte",
        "decoder.position.table": "transformer.wpe.weight",
        **{f"decoder.layers.{{}}.self_attention.{x}": f"{LAYER}attn.c_attn[{i}]" for i, x in enumerate("qkv")},
        "decoder.layers.{}.self_attention.o": LAYER + "attn.c_proj",
        "decoder.layers.{}.self_residual.norm": LAYER + "ln_1",
        "decoder.layers.{}.feed_forward.up": LAYER + "mlp.c_fc",
        "decoder.layers.{}.feed_forward.down": LAYER + "mlp.c_proj",
        "decoder.layers.{}.feed_forward_residual.norm": LAYER + "ln_2",
        "decoder.final_norm": "transformer.ln_f",
    }
    heads = output_names("lm_head", "score", "classifier")
    transposed: ClassVar[tuple[str, ...]] = ("c_attn", "c_proj", "c_fc")
    tied_copies = {"lm_head.weight": "transformer.wte.weight"}
    buffers = (r"transformer\.h\.\d+\.attn\.(bias|masked_bias)",)
    other_heads = (r"lm_head\..*", r"score\..*", r"classifier\..*", r"qa_outputs\..*", r"multiple_choice_head\..*")
    sizes = {"d_model": "n_embd", "num_layers": "n_layer", "num_heads": "n_head", "max_length": "n_positions"}
    numbers = {"dropout": ("resid_pdrop", 0.1), "attention.dropout": ("attn_pdrop", 0.1)}

    def settings(self, config: HFConfig, tensors: Mapping[str, Tensor]) -> Settings:
        config.expect("scale_attn_weights", True, [True])
        config.expect("scale_attn_by_inverse_layer_idx", False, [False])
        config.expect("add_cross_attention", False, [False])
        return {
            **self.plain_settings(config),
            "shape.d_ff": config.get("n_inner", None) or 4 * config.size("n_embd"),
        }

    def config(self, model: Settings) -> dict[str, Any]:
        return {
            **self.plain_config(model),
            "n_inner": model["decoder.d_ff"],
            "embd_pdrop": model["decoder.dropout"],
        }

    def plain_settings(self, config: HFConfig) -> Settings:
        """See ``Family``; and what GPT-2 and GPT-Neo share by name."""
        return super().plain_settings(config) | {
            "shape.vocab_size": config.size("vocab_size"),
            "block.norm.eps": config.get("layer_norm_epsilon", 1e-5),
            "block.feed_forward.activation": config.activation("activation_function", "gelu_new"),
            "block/position": "learned",
            "block.scale_embedding": False,
            "block.tie_word_embeddings": config.get("tie_word_embeddings", True),
            "heads.tags.bias": "trained",
        }

    def plain_config(self, model: Settings) -> dict[str, Any]:
        """See ``Family``; and what GPT-2 and GPT-Neo share by name."""
        return super().plain_config(model) | {
            "vocab_size": model["embedding.vocab_size"],
            "layer_norm_epsilon": model.get("decoder.norm.eps", 1e-5),
            "activation_function": hf_activation(model, "decoder"),
            # a table that is only scaled as the input becomes two tables
            "tie_word_embeddings": model["tie_word_embeddings"] and not model["embedding.scale_embedding"],
        }
