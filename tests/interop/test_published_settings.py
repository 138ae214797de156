"""The files of conf/model choose the options that transformers' own configurations of the published models mean."""

import json
from typing import Any

import pytest
import transformers as hf
from omegaconf import OmegaConf

from cases import by_day
from command_line import composed
from triptych.assembly.choose_parts import choose_parts
from triptych.config import flat
from triptych.interop.families.equivalences import canonical, setting_differences
from triptych.interop.families.family import HFConfig
from triptych.interop.networks import FAMILIES, configuration

ROBERTA = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
T5_BASE = {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12, "decoder_start_token_id": 0}
T5_1_1 = T5_BASE | {"d_ff": 2048, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
MARIAN = {
    "vocab_size": 58101, "d_model": 512, "encoder_layers": 6, "decoder_layers": 6, "encoder_attention_heads": 8,
    "decoder_attention_heads": 8, "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048, "max_position_embeddings": 512,
    "activation_function": "swish", "scale_embedding": True, "pad_token_id": 58100, "decoder_start_token_id": 58100,
}  # fmt: skip
LLAMA_3_1 = {
    "vocab_size": 128256, "intermediate_size": 14336, "num_key_value_heads": 8, "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}  # fmt: skip
BART_BASE = {
    "d_model": 768, "encoder_layers": 6, "decoder_layers": 6, "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072,
    "encoder_attention_heads": 12, "decoder_attention_heads": 12,
}  # fmt: skip

QWEN3_8B = {
    "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_key_value_heads": 8,
    "max_position_embeddings": 40960, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}  # fmt: skip
OLMO2_7B = {
    "vocab_size": 100352, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
}  # fmt: skip
PYTHIA_160M = {
    "vocab_size": 50304, "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
    "num_attention_heads": 12,
}  # fmt: skip
CLIP_L_14 = {
    "projection_dim": 768,
    "text_config": {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072},
    "vision_config": {
        "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096,
        "patch_size": 14,
    },
}  # fmt: skip
LONGFORMER = ROBERTA | {"max_position_embeddings": 4098, "attention_window": 512}

PUBLISHED = [
    ("bert/base", "denoising", hf.BertConfig()),
    ("bert/base", "classification", hf.BertConfig()),
    ("bert/base", "tagging", hf.BertConfig()),
    ("roberta/base", "denoising", hf.RobertaConfig(**ROBERTA)),
    ("roberta/base", "classification", hf.RobertaConfig(**ROBERTA)),
    ("gpt2/small", "language_modeling", hf.GPT2Config()),
    ("gpt2/small", "classification", hf.GPT2Config()),
    ("llama/7b", "language_modeling", hf.LlamaConfig()),
    ("llama/3.1-8b", "language_modeling", hf.LlamaConfig(**LLAMA_3_1)),
    ("qwen3/8b", "language_modeling", hf.Qwen3Config(**QWEN3_8B)),
    ("olmo2/7b", "language_modeling", hf.Olmo2Config(**OLMO2_7B)),
    ("pythia/160m", "tagging", hf.GPTNeoXConfig(**PYTHIA_160M)),
    ("modernbert/base", "denoising", hf.ModernBertConfig()),
    ("modernbert/base", "classification", hf.ModernBertConfig()),
    ("modernbert/base", "tagging", hf.ModernBertConfig()),
    ("modernbert_decoder/ettin-150m", "language_modeling", hf.ModernBertDecoderConfig(max_position_embeddings=7999)),
    ("modernbert_decoder/ettin-150m", "classification", hf.ModernBertDecoderConfig(max_position_embeddings=7999)),
    ("longformer/base", "denoising", hf.LongformerConfig(**LONGFORMER)),
    ("longformer/base", "classification", hf.LongformerConfig(**LONGFORMER)),
    ("t5/base", "denoising", hf.T5Config(**T5_BASE)),
    ("t5/base", "classification", hf.T5Config(**T5_BASE)),
    ("t5/v1_1-base", "translation", hf.T5Config(**T5_1_1)),
    ("t5gemma/2b-2b", "translation", hf.T5GemmaConfig()),
    ("bart/large", "denoising", hf.BartConfig()),
    ("bart/base", "classification", hf.BartConfig(**BART_BASE)),
    ("marian/opus-mt", "translation", hf.MarianConfig(**MARIAN)),
    ("transformer/base", "translation", hf.MarianConfig(**MARIAN)),
    ("vit/b-16", "classification", hf.ViTConfig()),
    ("clip/vit-b-32", "image_text_matching", hf.CLIPConfig()),
    ("clip/vit-b-16", "image_text_matching", hf.CLIPConfig(vision_config={"patch_size": 16})),
    ("clip/vit-l-14", "image_text_matching", hf.CLIPConfig(**CLIP_L_14)),
]


def resolved(config: Any) -> dict[str, Any]:
    return canonical(flat(OmegaConf.to_container(config.model, resolve=True)))


@pytest.mark.parametrize(
    ("model", "task", "their"),
    by_day(PUBLISHED, PUBLISHED[::3]),
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_options_are_those_of_transformers(model: str, task: str, their: Any) -> None:
    values = their.to_dict()
    if model == "t5/v1_1-base":  # to_dict of transformers 5 says true
        values["tie_word_embeddings"] = False
    if model.startswith("clip/"):
        values["preprocessor_config"] = json.loads(hf.CLIPImageProcessorPil().to_json_string())
    family = next(family for family in FAMILIES if family.model_type == values["model_type"])
    settings = family.settings(HFConfig(values, "config.json"), {})
    theirs = configuration(family.model, task, settings, 3)
    data = ["data=drawn_digits"] * model.startswith(("vit/", "clip/"))  # images say how many positions there are
    ours = composed(f"model={model}", f"task={task}", *data, "logger=csv")
    ours.shape.vocab_size = values.get("text_config", values).get("vocab_size")
    ours.model.head.num_outputs = 3
    choose_parts(ours)
    stacks = ("encoder", "decoder") if model == "transformer/base" else ()
    expected = {f"{stack}.feed_forward.activation" for stack in stacks}
    if model == "transformer/base":  # relu, and no bias of the logits
        expected |= {"head.bias"}
    if model == "t5gemma/2b-2b":  # there the windows of the encoder reach one position further, to both sides
        expected |= {"encoder.attention.sliding_windows"}
    assert set(setting_differences(resolved(ours), resolved(theirs))) == expected
    if model.startswith("clip/"):
        assert ours.image_embedding == theirs.image_embedding
