"""The encoder-decoder families, against ``transformers``."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from torch import nn
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding
from transformers.models.pegasus.modeling_pegasus import PegasusSinusoidalPositionalEmbedding

import oracle
from cases import by_day, values_by_day
from oracle import END, PAD, Case, name_of
from triptych.config import ConfigError, build
from triptych.interop import read_network, write_network
from triptych.interop.families.family import HFConfig
from triptych.interop.families.marian import Marian
from triptych.interop.networks import configuration
from triptych.nn import sinusoids

SMALL = {
    "vocab_size": 101, "d_model": 32, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 80, "max_position_embeddings": 40,
    "num_labels": 3, "pad_token_id": PAD, "eos_token_id": END, "decoder_start_token_id": END,
}  # fmt: skip
SMALL_T5 = {
    "vocab_size": 101, "d_model": 32, "d_kv": 6, "d_ff": 80, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 4,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20, "layer_norm_epsilon": 1e-2,
    "num_labels": 3, "pad_token_id": PAD, "eos_token_id": END, "decoder_start_token_id": PAD,
}  # fmt: skip

SMALL_T5GEMMA = {
    "vocab_size": 101, "hidden_size": 32, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 12, "max_position_embeddings": 40, "rms_norm_eps": 1e-2,
    "query_pre_attn_scalar": 5, "sliding_window": 5, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0,
    "pad_token_id": PAD, "eos_token_id": END,
}  # fmt: skip


def t5(
    head: type = hf.T5ForConditionalGeneration, *, is_untied: bool = False, generates: bool = True, **options: Any
) -> Case:
    """Its sequences are longer than the largest distance that the buckets tell apart."""

    def model() -> nn.Module:
        model: nn.Module = head(hf.T5Config(**{**SMALL_T5, **options}))
        if is_untied:
            model.lm_head.weight = nn.Parameter(model.lm_head.weight.clone())
        return model

    return Case(f"{head.__name__} {options}{' untied' * is_untied}", model, length=24, generates=generates)


def bart(head: type = hf.BartForConditionalGeneration, *, generates: bool = True, **options: Any) -> Case:
    config = {**SMALL, **options}
    return Case(f"{head.__name__} {options}", lambda: head(hf.BartConfig(**config)), generates=generates)


def marian(**options: Any) -> Case:
    config = {**SMALL, "decoder_start_token_id": PAD, "scale_embedding": True, **options}
    return Case(f"MarianMTModel {options}", lambda: hf.MarianMTModel(hf.MarianConfig(**config)), generates=True)


def pegasus(**options: Any) -> Case:
    config = {**SMALL, "decoder_start_token_id": PAD, "scale_embedding": True, **options}
    head = hf.PegasusForConditionalGeneration
    return Case(f"{head.__name__} {options}", lambda: head(hf.PegasusConfig(**config)), generates=True)


def t5gemma(*, both: Any = None, encoder: Any = None, decoder: Any = None, **options: Any) -> Case:
    """Scores and logits that the bounds bend, and windows that are shorter than the texts, but no shorter than what
    fills up the sources: of a position that sees nothing else transformers makes NaN in float64, and so of all."""
    parts = {"encoder": encoder or {}, "decoder": decoder or {}}
    ids = {"pad_token_id": PAD, "eos_token_id": END, "decoder_start_token_id": END}
    head = hf.T5GemmaForConditionalGeneration

    def model() -> nn.Module:
        stacks = {stack: {**SMALL_T5GEMMA, **(both or {}), **own} for stack, own in parts.items()}
        made: nn.Module = head(hf.T5GemmaConfig(**stacks, **ids, **options))
        return made

    return Case(f"{head.__name__} {both or {}} {parts} {options}", model, generates=True)


V1_1 = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}  # of T5: the second means that it is unscaled

CASES = [
    t5(),
    t5(num_layers=2, num_decoder_layers=3, d_kv=12, generates=False),  # `generate` fails: a decoder of more layers
    t5(**V1_1, is_untied=True),
    t5(feed_forward_proj="gated-silu", tie_word_embeddings=False),
    t5(hf.T5ForSequenceClassification, generates=False),
    t5(hf.T5ForSequenceClassification, generates=False, **V1_1),
    bart(),
    bart(scale_embedding=True, activation_function="relu", encoder_layers=3, decoder_layers=1),
    bart(hf.BartForSequenceClassification, generates=False),
    marian(activation_function="swish"),
    marian(activation_function="relu", encoder_layers=1, decoder_attention_heads=8),
    pegasus(),
    pegasus(scale_embedding=False, activation_function="relu", encoder_layers=3, decoder_layers=1),
    t5gemma(),
    t5gemma(
        both={
            "hidden_activation": "silu",
            "rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0},
        },
        encoder={"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48, "sliding_window": 6},
        decoder={"attn_logit_softcapping": None, "final_logit_softcapping": None},
        tie_word_embeddings=False,
    ),
    t5gemma(
        encoder={"layer_types": ["full_attention"] * 3, "query_pre_attn_scalar": 12},
        decoder={"num_hidden_layers": 1, "num_key_value_heads": 1, "sliding_window": 3},
        tie_word_embeddings=False,
    ),
]
GENERATIVE = [case for case in CASES if case.generates]
T5_1_1 = CASES[2]


@pytest.mark.parametrize("case", by_day(CASES, oracle.one_a_class(CASES)), ids=name_of)
def test_equals_theirs(case: Case, tmp_path: Path) -> None:
    oracle.check(case, tmp_path)
    files = [load_file(folder / "model.safetensors") for folder in (tmp_path, oracle.reference(case).folder)]
    mine, their = ({name for name in file if "embed_positions" not in name} for file in files)  # Marian's file has none
    assert their <= mine <= their | {"lm_head.weight"}  # a tied output that is not scaled is written as an untied one


@pytest.mark.parametrize("case", [c for c in GENERATIVE if not c.name.startswith("T5")], ids=name_of)
def test_equals_theirs_in_float64(case: Case) -> None:
    """An eps that is fixed shows only here. (T5's norms are float32 there.)"""
    assert oracle.float64_distance(case) < 1e-12


@pytest.mark.parametrize(("case", "num_beams"), values_by_day(GENERATIVE, [5, 1]), ids=name_of)
def test_writes_what_theirs_writes(case: Case, num_beams: int) -> None:
    assert oracle.decoded_alike(case, num_beams=num_beams)


@pytest.mark.parametrize("case", by_day(GENERATIVE, oracle.one_a_class(GENERATIVE)), ids=name_of)
def test_decodes_in_chunks_as_at_once(case: Case) -> None:
    assert oracle.cached_distance(case) < 1e-10


@pytest.mark.parametrize("table", [MarianSinusoidalPositionalEmbedding, PegasusSinusoidalPositionalEmbedding])
def test_sinusoids_in_their_order_are_their_table(table: type) -> None:
    rows, width = 512, 64
    mine, config = {"encoder.positions": sinusoids(rows, width)}, HFConfig({}, "config.json")
    reordered = Marian().reordered(mine, config, to_ours=False)
    assert torch.equal(reordered["encoder.positions"], table(rows, width).create_weight())
    assert torch.equal(
        Marian().reordered(reordered, config, to_ours=True)["encoder.positions"], mine["encoder.positions"]
    )


POST_BART = {"block/residual": "post_norm", "block.embed_norm": True}
T5_LIKE = {
    "block/norm": "rms_norm",
    "block/position": "relative_bias",
    "block.bias": False,
    "block/feed_forward": "gated_mlp",
}
T5GEMMA_LIKE = {
    **{
        "block/norm": "rms_norm",
        "block/position": "rotary",
        "block/residual": "sandwich_norm",
        "block/feed_forward": "gated_mlp",
    },
    **{"block.bias": False, "block.attention.sliding_windows": [4]},
}
OURS = {
    "default": ("pegasus", {}),
    "original": ("marian", {"block/residual": "post_norm", "block.feed_forward.activation": "relu"}),
    "untied": ("pegasus", {"block.tie_word_embeddings": False}),
    "longer_decoder": ("pegasus", {"model.decoder.max_length": 50}),
    "other_scale": ("pegasus", {"block.attention.scale": 0.1, "heads.tokens.bias": "trained"}),
    "sinusoidal_bart": ("bart", POST_BART),
    "bart_without_biases": ("bart", {**POST_BART, "block/position": "learned", "block.bias": False}),
    "t5_with_scaled_embedding": ("t5", T5_LIKE),
    "t5gemma_with_one_table": ("t5gemma", T5GEMMA_LIKE),
    "t5gemma_with_two_tables": ("t5gemma", {**T5GEMMA_LIKE, "model/embedding@model.source_embedding": "tokens"}),
    "t5_untied": ("t5", {**T5_LIKE, "block.tie_word_embeddings": False, "heads.tokens.scale_states": True}),
}


@pytest.mark.parametrize("name", by_day(OURS, [*OURS][::2]))
def test_exports_our_own_models(name: str, tmp_path: Path) -> None:
    kind, settings = OURS[name]
    sizes = {
        "shape.d_model": 32, "shape.num_heads": 4, "shape.d_ff": 48, "shape.vocab_size": 101, "shape.max_length": 40,
    }  # fmt: skip
    special = {"pad_token_id": PAD, "eos_token_id": END, "decoder_start_token_id": 0}
    settings = {**sizes, "model.decoder.num_layers": 1, **settings}
    network, again, model = oracle.check_export(tmp_path, "full", "denoising", settings, kind, special=special)
    parts = [getattr(model.config, part) for part in model.config.sub_configs]
    assert {part.pad_token_id for part in [model.config, *parts]} == {PAD}
    if name in ("default", "original", "untied"):
        kept = dict(again.named_parameters())
        assert all(torch.equal(kept[key], parameter) for key, parameter in network.named_parameters())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"block/position": "rotary"}, "pegasus, differs in model.encoder.position=Rotary .expected Sinusoidal."),
        ({**T5_LIKE, "model.decoder.num_heads": 2}, "t5, differs in model.decoder.num_heads=2 .expected 4."),
        ({"block.norm.eps": 1e-6}, "pegasus, differs in model.encoder.norm.eps=1e-06 .expected 1e-05."),
        ({"block.position.first": 3}, "pegasus, differs in model.encoder.position.first=3 .expected 0."),
    ],
    ids=["rotary", "heads", "eps", "first"],
)
def test_says_what_stands_in_the_way_of_an_export(settings: dict[str, Any], said: str, tmp_path: Path) -> None:
    config = configuration("full", "translation", {"shape.vocab_size": 101, **settings}, 101)
    with pytest.raises(ConfigError, match=said):
        write_network(tmp_path, build(config, "model"), config, "translation")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("case", [CASES[0], CASES[6], CASES[9], CASES[11]], ids=name_of)
def test_reads_bare_models_and_copies(case: Case, tmp_path: Path) -> None:
    """facebook/bart-base, for one, is a file of BartModel: no prefix, no bias of the outputs, copies of the table."""
    model = oracle.randomized(case.model())
    if not isinstance(model, hf.T5ForConditionalGeneration):
        model.final_logits_bias.zero_()
    model.save_pretrained(tmp_path / "whole")
    expected = read_network(tmp_path / "whole").network
    base = model if isinstance(model, hf.T5ForConditionalGeneration) else model.model
    kind = type(model).__name__.replace("ForConditionalGeneration", "Model").replace("MarianMTModel", "MarianModel")
    bare = getattr(hf, kind)(model.config)
    bare.load_state_dict(base.state_dict(), strict=not hasattr(base, "lm_head"))
    bare.save_pretrained(tmp_path / "bare")
    file = tmp_path / "bare" / "model.safetensors"
    tensors = load_file(file)
    assert oracle.same(read_network(tmp_path / "bare", "denoising").network, expected)
    copies = {f"{stack}.embed_tokens.weight": tensors["shared.weight"].clone() for stack in ("encoder", "decoder")}
    save_file({**tensors, **copies}, file)
    assert oracle.same(read_network(tmp_path / "bare").network, expected)
    save_file({**{name: tensor for name, tensor in tensors.items() if name != "shared.weight"}, **copies}, file)
    assert oracle.same(read_network(tmp_path / "bare").network, expected)
    copies["decoder.embed_tokens.weight"][7, 7] += 1
    save_file({**tensors, **copies}, file)
    with pytest.raises(ConfigError, match=r"decoder.embed_tokens.weight differs from .*shared.weight"):
        read_network(tmp_path / "bare")


def test_reads_t5_1_1_as_published(tmp_path: Path) -> None:
    """There tie_word_embeddings=false says that nothing is tied or scaled; transformers 5 writes it otherwise."""
    oracle.randomized(T5_1_1.model()).save_pretrained(tmp_path)
    read = read_network(tmp_path)
    assert not read.config.model.tie_word_embeddings
    assert not read.config.model.head.scale_states
    oracle.change_config(
        tmp_path, tie_word_embeddings=False, scale_decoder_outputs=None, is_gated_act=None, dense_act_fn=None
    )
    published = read_network(tmp_path)
    assert published.config == read.config
    assert oracle.same(published.network, read.network)
    file = tmp_path / "model.safetensors"
    save_file({name: tensor for name, tensor in load_file(file).items() if name != "lm_head.weight"}, file)
    with pytest.raises(ConfigError, match=r"missing: transformer.lm_head.weight"):
        read_network(tmp_path)


@pytest.mark.parametrize("case", [T5_1_1, CASES[6]], ids=["t5", "bart"])
def test_another_head(case: Case, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    oracle.randomized(case.model()).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"missing: classification_head.dense.weight"):
        read_network(tmp_path, "classification")
    with caplog.at_level(logging.WARNING):
        read = read_network(tmp_path, "classification", new_head=True)
    assert "4 tensors are new" in caplog.text
    assert "1 tensors are left out" in caplog.text
    whole = dict(read_network(tmp_path).network.named_parameters())
    body = [(name, parameter) for name, parameter in read.network.named_parameters() if not name.startswith("head.")]
    assert all(torch.equal(parameter, whole[name]) for name, parameter in body)


@pytest.mark.parametrize(
    ("case", "values", "said"),
    [
        (
            CASES[9],
            {"share_encoder_decoder_embeddings": False},
            "share_encoder_decoder_embeddings=False; expected True",
        ),
        (CASES[9], {"decoder_vocab_size": 102}, "decoder_vocab_size=102; expected None or 101"),
        (CASES[0], {"feed_forward_proj": "gated-relu6"}, "feed_forward_proj=gated-relu6.*gated-relu"),
        (CASES[6], {"activation_function": "tanh"}, "activation_function=tanh"),
        (CASES[6], {"decoder_layers": 0}, "decoder_layers=0; expected a whole number"),
        (
            CASES[6],
            {"max_position_embeddings": 41},
            "embed_positions.weight has shape .42, 32.; .* for encoder.position.table",
        ),
        (
            CASES[11],
            {"max_position_embeddings": 41},
            "embed_positions.weight has shape .40, 32.; .* for encoder.position.table",
        ),
        (CASES[6], {"decoder_layers": 4}, "missing: model.decoder.layers.3"),
        (CASES[6], {"decoder_layers": 2}, "tensors unknown to .*: model.decoder.layers.2"),
        (CASES[13], {"encoder": {**SMALL_T5GEMMA, "hidden_size": 48}}, "encoder: hidden_size=48; expected 32"),
        (CASES[13], {"decoder": 3}, "decoder=3; expected an object"),
    ],
    ids=[
        *("two_tables", "two_sizes", "projection", "activation", "depth", "rows", "sinusoids", "deeper", "shallower"),
        *("two_widths", "number"),
    ],
)
def test_rejects_other_configurations(case: Case, values: dict[str, Any], said: str, tmp_path: Path) -> None:
    case.model().save_pretrained(tmp_path)
    oracle.change_config(tmp_path, **values)
    with pytest.raises(ConfigError, match=said):
        read_network(tmp_path)


def test_rejects_another_table_of_sinusoids(tmp_path: Path) -> None:
    CASES[11].model().save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    half = {name: tensor.bfloat16() if "embed_positions" in name else tensor for name, tensor in tensors.items()}
    save_file(half, file)
    read_network(tmp_path)
    save_file({**tensors, "model.decoder.embed_positions.weight": sinusoids(40, 32)}, file)
    with pytest.raises(ConfigError, match=r"model.decoder.embed_positions.weight differs from the sinusoidal table"):
        read_network(tmp_path)


def test_rejects_an_untied_table_that_should_be_tied(tmp_path: Path) -> None:
    CASES[6].model().save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    save_file({**load_file(file), "lm_head.weight": torch.ones(101, 32)}, file)
    with pytest.raises(ConfigError, match=r"lm_head.weight differs from model.shared.weight, though .* ties them"):
        read_network(tmp_path)


@pytest.mark.parametrize("case", [bart, marian, pegasus], ids=lambda case: case.__name__)
def test_an_untied_output_with_one_token_table_is_read_and_with_two_rejected(case: Any, tmp_path: Path) -> None:
    model: Any = oracle.randomized(case(tie_word_embeddings=False).model())
    model.save_pretrained(tmp_path)
    said = (
        r"config\.json: tie_word_embeddings=false, and model\.decoder\.embed_tokens\.weight differs from model\.encoder"
    )
    with pytest.raises(ConfigError, match=said):
        read_network(tmp_path)
    with torch.no_grad():  # shared, which transformers ignores now, stays as it is
        model.model.decoder.embed_tokens.weight.copy_(model.model.encoder.embed_tokens.weight)
    model.save_pretrained(tmp_path)
    given = oracle.inputs("right", is_full=True)
    found = oracle.ours(read_network(tmp_path).network, given)
    assert oracle.distance(found, oracle.theirs(model, given), given["mask"]) < 1e-5
