"""GPT-2's, GPT-Neo's and LLaMA's like, against ``transformers``."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

import oracle
from cases import by_day, every_third_by_day, values_by_day
from oracle import PAD, Case, name_of
from triptych.interop import read_network

PADDING = ("none", "right", "left")


def writes(head: type) -> bool:
    return head.__name__.endswith(("LMHeadModel", "ForCausalLM"))


def gpt2(head: type, **options: Any) -> Case:
    small = {"vocab_size": 101, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 96, "n_positions": 40}
    config = hf.GPT2Config(**{**small, "layer_norm_epsilon": 1e-2, "num_labels": 3, "pad_token_id": PAD, **options})
    return Case(f"{head.__name__} {options}", lambda: head(config), PADDING, generates=writes(head))


def gpt_neo(head: type, layers: list[str], **options: Any) -> Case:
    small = {"vocab_size": 101, "hidden_size": 32, "num_heads": 4, "intermediate_size": 96, "window_size": 5}
    more = {"max_position_embeddings": 40, "layer_norm_epsilon": 1e-2, "num_labels": 3, "pad_token_id": PAD}
    types = {"num_layers": len(layers), "attention_types": [[layers, 1]]}
    config = hf.GPTNeoConfig(**{**small, **more, **types, **options})
    return Case(f"{head.__name__} {layers} {options}", lambda: head(config), PADDING, generates=writes(head))


LIKE_LLAMA_THERE = {
    "vocab_size": 101, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 6,
    "num_key_value_heads": 2, "intermediate_size": 72, "max_position_embeddings": 40, "rms_norm_eps": 1e-2,
    "num_labels": 3, "pad_token_id": PAD,
}  # fmt: skip


def llama(head: type, **options: Any) -> Case:
    config = hf.LlamaConfig(**{**LIKE_LLAMA_THERE, **options})
    return Case(f"{head.__name__} {options}", lambda: head(config), PADDING, generates=writes(head))


def qwen3(head: type, **options: Any) -> Case:
    config = hf.Qwen3Config(**{**LIKE_LLAMA_THERE, "num_hidden_layers": 3, **options})
    return Case(f"{head.__name__} {options}", lambda: head(config), PADDING, generates=writes(head))


def olmo2(head: type, **options: Any) -> Case:
    config = hf.Olmo2Config(**{**LIKE_LLAMA_THERE, **options})
    return Case(f"{head.__name__} {options}", lambda: head(config), PADDING, generates=writes(head))


def gpt_neox(head: type, **options: Any) -> Case:
    small = {"vocab_size": 101, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    more = {"intermediate_size": 72, "max_position_embeddings": 40, "layer_norm_eps": 1e-2, "eos_token_id": None}
    rotations = {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 0.5}}
    config = hf.GPTNeoXConfig(**{**small, **more, **rotations, "num_labels": 3, "pad_token_id": PAD, **options})
    return Case(f"{head.__name__} {options}", lambda: head(config), PADDING, generates=writes(head))


def modernbert_decoder(head: type, **options: Any) -> Case:
    """Of four layers, two of which see 4 positions back, the own one included."""
    small = {"vocab_size": 101, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "norm_eps": 1e-2}
    more = {"intermediate_size": 72, "max_position_embeddings": 40, "local_attention": 8, "pad_token_id": PAD}
    config = hf.ModernBertDecoderConfig(**{**small, **more, "eos_token_id": None, "num_labels": 3, **options})
    return Case(f"{head.__name__} {options}", lambda: head(config), PADDING, generates=writes(head))


LINEAR = {"rope_type": "linear", "rope_theta": 100.0, "factor": 3.0}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 50.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 3.0,
    "original_max_position_embeddings": 8,
}  # fmt: skip

LANGUAGE_MODELS = [
    gpt2(hf.GPT2LMHeadModel),
    gpt2(hf.GPT2LMHeadModel, n_layer=3, n_inner=None, n_embd=48, n_head=2, activation_function="relu"),
    gpt2(hf.GPT2LMHeadModel, tie_word_embeddings=False, activation_function="gelu"),
    gpt_neo(hf.GPTNeoForCausalLM, ["global", "local", "local"]),
    gpt_neo(hf.GPTNeoForCausalLM, ["local", "global"], window_size=1, activation_function="relu2"),
    llama(hf.LlamaForCausalLM),
    llama(hf.LlamaForCausalLM, rope_parameters=LINEAR, num_key_value_heads=1, head_dim=None),
    llama(hf.LlamaForCausalLM, rope_parameters=LLAMA3, tie_word_embeddings=True, num_hidden_layers=3),
    llama(hf.LlamaForCausalLM, attention_bias=True, mlp_bias=True, hidden_act="gelu_new", num_key_value_heads=4),
    qwen3(hf.Qwen3ForCausalLM, tie_word_embeddings=True),
    qwen3(hf.Qwen3ForCausalLM, use_sliding_window=True, sliding_window=5, max_window_layers=1, rope_parameters=LINEAR),
    olmo2(hf.Olmo2ForCausalLM, eos_token_id=None),
    gpt_neox(hf.GPTNeoXForCausalLM),
    gpt_neox(hf.GPTNeoXForCausalLM, rope_parameters=LINEAR | {"partial_rotary_factor": 0.25}, hidden_act="gelu_new"),
    gpt_neox(hf.GPTNeoXForCausalLM, use_parallel_residual=False, tie_word_embeddings=True),
    modernbert_decoder(hf.ModernBertDecoderForCausalLM),
    modernbert_decoder(hf.ModernBertDecoderForCausalLM, norm_bias=True, decoder_bias=False, tie_word_embeddings=False),
    olmo2(hf.Olmo2ForCausalLM, eos_token_id=None, num_key_value_heads=4, head_dim=8, rope_parameters=LLAMA3),
]

CASES = [
    *LANGUAGE_MODELS,
    gpt2(hf.GPT2ForSequenceClassification),
    gpt2(hf.GPT2ForTokenClassification, n_inner=40),
    gpt_neo(hf.GPTNeoForSequenceClassification, ["local", "global"]),
    gpt_neo(hf.GPTNeoForTokenClassification, ["global"]),
    llama(hf.LlamaForSequenceClassification, rope_parameters=LINEAR),
    llama(hf.LlamaForTokenClassification),
    qwen3(
        hf.Qwen3ForSequenceClassification,
        layer_types=["full_attention", "sliding_attention", "full_attention"],
        use_sliding_window=True,
        sliding_window=3,
    ),
    qwen3(hf.Qwen3ForTokenClassification),
    olmo2(hf.Olmo2ForSequenceClassification),
    gpt_neox(hf.GPTNeoXForSequenceClassification),
    gpt_neox(hf.GPTNeoXForTokenClassification),
    modernbert_decoder(hf.ModernBertDecoderForSequenceClassification),
    modernbert_decoder(hf.ModernBertDecoderForSequenceClassification, classifier_bias=True),
]


@pytest.mark.parametrize("case", by_day(CASES, oracle.one_a_class(CASES)), ids=name_of)
def test_equals_theirs(case: Case, tmp_path: Path) -> None:
    oracle.check(case, tmp_path)


@pytest.mark.parametrize(("case", "num_beams"), values_by_day(LANGUAGE_MODELS, [5, 1]), ids=name_of)
def test_writes_what_theirs_writes(case: Case, num_beams: int) -> None:
    assert oracle.decoded_alike(case, num_beams=num_beams)


@pytest.mark.parametrize("case", by_day(LANGUAGE_MODELS, oracle.one_a_class(LANGUAGE_MODELS)), ids=name_of)
def test_decodes_in_chunks_as_at_once(case: Case) -> None:
    assert oracle.cached_distance(case) < 1e-10


@pytest.mark.parametrize(
    ("case", "prefix", "buffers"),
    [
        (LANGUAGE_MODELS[0], "transformer.", ["h.0.attn.bias", "h.1.attn.masked_bias"]),
        (LANGUAGE_MODELS[3], "transformer.", ["h.0.attn.attention.bias", "h.2.attn.attention.masked_bias"]),
        (LANGUAGE_MODELS[7], "model.", ["layers.0.self_attn.rotary_emb.inv_freq"]),
    ],
    ids=["gpt2", "gpt_neo", "llama"],
)
def test_reads_files_of_bare_models_with_buffers(case: Case, prefix: str, buffers: list[str], tmp_path: Path) -> None:
    oracle.randomized(case.model()).save_pretrained(tmp_path)
    expected = read_network(tmp_path).network
    file = tmp_path / "model.safetensors"
    bare = {name.removeprefix(prefix): tensor for name, tensor in load_file(file).items()}
    save_file({**bare, **{name: torch.ones(1, 3) for name in buffers}}, file)
    assert oracle.same(read_network(tmp_path).network, expected)


def test_reads_shards_and_a_copy_of_the_tied_table(tmp_path: Path) -> None:
    case = LANGUAGE_MODELS[0]
    oracle.randomized(case.model()).save_pretrained(tmp_path)
    expected = read_network(tmp_path).network
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({**tensors, "lm_head.weight": tensors["transformer.wte.weight"].clone()}, tmp_path / "model.safetensors")
    assert oracle.same(read_network(tmp_path).network, expected)
    model = type(case.model()).from_pretrained(tmp_path)
    model.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    assert oracle.same(read_network(tmp_path / "shards").network, expected)


@pytest.mark.parametrize("scaling", [LINEAR, LLAMA3], ids=["linear", "llama3"])
@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_reads_the_rotary_settings_of_old_files(scaling: dict[str, Any], key: str, tmp_path: Path) -> None:
    llama(hf.LlamaForCausalLM, rope_parameters=scaling).model().save_pretrained(tmp_path)
    new = read_network(tmp_path).config
    old = {name: value for name, value in scaling.items() if name not in ("rope_type", "rope_theta")}
    old_scaling = {key: scaling["rope_type"], **old}
    oracle.change_config(tmp_path, rope_parameters=None, rope_theta=scaling["rope_theta"], rope_scaling=old_scaling)
    assert read_network(tmp_path).config == new
    assert new.block.position.scaling.factor == scaling["factor"]


def test_reads_the_rotary_settings_of_old_gpt_neox(tmp_path: Path) -> None:
    """Pythia's files have rotary_pct and rotary_emb_base."""
    rotations = {"rope_type": "default", "rope_theta": 77.0, "partial_rotary_factor": 0.5}
    gpt_neox(hf.GPTNeoXForCausalLM, rope_parameters=rotations).model().save_pretrained(tmp_path)
    new = read_network(tmp_path).config
    oracle.change_config(tmp_path, rope_parameters=None, rotary_pct=0.5, rotary_emb_base=77)
    assert read_network(tmp_path).config.block.position == new.block.position
    assert (new.block.position.theta, new.block.position.partial_rotary_factor) == (77.0, 0.5)


@pytest.mark.parametrize(
    ("case", "changes", "words"),
    [
        (gpt2(hf.GPT2LMHeadModel), {"scale_attn_weights": False}, "scale_attn_weights=False; expected True"),
        (gpt2(hf.GPT2LMHeadModel), {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True"),
        (gpt2(hf.GPT2LMHeadModel), {"add_cross_attention": True}, "add_cross_attention=True; expected False"),
        (gpt2(hf.GPT2LMHeadModel), {"activation_function": "mish"}, "activation_function=mish; did you mean swish"),
        (gpt_neo(hf.GPTNeoForCausalLM, ["local"]), {"attention_types": [[["sparse"], 1]]}, "expected global or local"),
        (gpt_neo(hf.GPTNeoForCausalLM, ["local"]), {"num_layers": 2}, "for each of num_layers=2"),
        (llama(hf.LlamaForCausalLM), {"attention_bias": True}, "mlp_bias=False; expected True"),
        (llama(hf.LlamaForCausalLM), {"mlp_bias": True}, "mlp_bias=True; expected False"),
        (llama(hf.LlamaForCausalLM), {"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
        (
            llama(hf.LlamaForCausalLM),
            {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}},
            "rope_parameters: rope_type=yarn; expected default or linear or llama3",
        ),
        (
            llama(hf.LlamaForCausalLM),
            {"rope_parameters": None, "rope_scaling": {"type": "dynamic", "factor": 2.0}},
            "rope_scaling: type=dynamic",
        ),
        (qwen3(hf.Qwen3ForCausalLM), {"attention_bias": True}, "attention_bias=True; expected False"),
        (qwen3(hf.Qwen3ForCausalLM), {"layer_types": ["sparse"] * 3}, "expected full_attention or sliding_attention"),
        (qwen3(hf.Qwen3ForCausalLM), {"layer_types": ["full_attention"]}, "for each of num_hidden_layers=3"),
        (qwen3(hf.Qwen3ForCausalLM), {"layer_types": ["sliding_attention"] * 3}, "sliding_window=None"),
        (gpt_neox(hf.GPTNeoXForCausalLM), {"attention_bias": False}, "attention_bias=False; expected True"),
        (gpt_neox(hf.GPTNeoXForCausalLM), {"hidden_act": "mish"}, "hidden_act=mish"),
        (olmo2(hf.Olmo2ForCausalLM), {"attention_bias": True}, "attention_bias=True; expected False"),
        (
            llama(hf.LlamaForCausalLM),
            {"rope_parameters": {"rope_type": "linear"}},
            "rope_parameters: factor is missing",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_rejects_what_would_change_the_function(
    case: Case, changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    oracle.check_refusal(case, changes, words, tmp_path)


def test_settings_without_an_effect_are_ignored(tmp_path: Path) -> None:
    gpt2(hf.GPT2LMHeadModel).model().save_pretrained(tmp_path / "gpt2")
    oracle.change_config(tmp_path / "gpt2", reorder_and_upcast_attn=True)
    llama(hf.LlamaForCausalLM).model().save_pretrained(tmp_path / "llama")
    oracle.change_config(tmp_path / "llama", pretraining_tp=2)
    assert read_network(tmp_path / "gpt2").task == read_network(tmp_path / "llama").task == "language_modeling"


SMALL = {
    "shape.d_model": 32, "shape.num_layers": 2, "shape.num_heads": 4, "shape.d_ff": 72, "shape.vocab_size": 101,
    "shape.max_length": 24,
}  # fmt: skip
OF_ATTENTION = {"block.attention.num_kv_heads": 2, "block.attention.qkv_bias": False}
LIKE_LLAMA = {"block/norm": "rms_norm", "block/position": "rotary", "block/feed_forward": "gated_mlp"}
MODERN = {
    "block/norm": "modernbert", "block/attention": "modernbert-decoder", "block/position": "modernbert",
    "block/feed_forward": "gated_mlp", "block.bias": False, "block.embed_norm": True, "block.first_norm": False,
    "head@heads.tokens": "modernbert", "head@heads.classes": "modernbert", "heads.classes.bias": "none",
}  # fmt: skip
NO_BIAS = LIKE_LLAMA | {"block.bias": False}


@pytest.mark.parametrize(
    ("task", "settings", "family"),
    every_third_by_day(
        [
            ("language_modeling", {}, "gpt2"),
            ("translation", {}, "gpt2"),
            ("denoising", {"block.tie_word_embeddings": False}, "gpt2"),
            ("classification", {}, "gpt2"),
            ("tagging", {}, "gpt2"),
            ("language_modeling", {**OF_ATTENTION, "block.attention.sliding_windows": [9]}, "gpt_neo"),
            ("language_modeling", {"block.attention.num_kv_heads": 1, "block.attention.scale": 0.3}, "gpt2"),
            ("language_modeling", {"block/position": "learned", "block.position.first": 3}, "gpt2"),
            (
                "language_modeling",
                {"block.attention.sliding_windows": [None, 4], "block.attention.qkv_bias": False},
                "gpt_neo",
            ),
            ("language_modeling", LIKE_LLAMA, "llama"),
            ("translation", {**NO_BIAS, "block.attention.num_kv_heads": 2, "shape.head_dim": 10}, "llama"),
            ("classification", {**NO_BIAS, "block.attention.qkv_bias": True, "block.attention.scale": 1.0}, "llama"),
            (
                "language_modeling",
                {**NO_BIAS, "block/attention": "qk_norm", "block.attention.sliding_windows": [None, 4]},
                "qwen3",
            ),
            (
                "tagging",
                {**NO_BIAS, "block/attention": "qk_norm", "shape.head_dim": 6, "block.tie_word_embeddings": True},
                "qwen3",
            ),
            (
                "language_modeling",
                {
                    **NO_BIAS,
                    "block/attention": "qk_norm",
                    "block.attention.qk_norm_over": "all",
                    "block/residual": "res_post_norm",
                },
                "olmo2",
            ),
            ("language_modeling", {"block/residual": "parallel_norms", "block/position": "rotary"}, "gpt_neox"),
            (
                "tagging",
                {
                    "block/position": "rotary",
                    "block.position.partial_rotary_factor": 0.5,
                    "block.attention.num_kv_heads": 2,
                },
                "gpt_neox",
            ),
            ("language_modeling", MODERN, "modernbert-decoder"),
            ("classification", MODERN | {"block.attention.sliding_windows": None}, "modernbert-decoder"),
            ("tagging", {**LIKE_LLAMA, "block.scale_embedding": False, "block.position.theta": 100.0}, "llama"),
        ]
    ),
    ids=str,
)
def test_exports_networks_of_ours(task: str, settings: dict[str, Any], family: str, tmp_path: Path) -> None:
    oracle.check_export(tmp_path, "decoder_only", task, SMALL | settings, family, paddings=PADDING)
