"""BERT's and RoBERTa's like, against ``transformers``."""

from pathlib import Path
from typing import Any

import pytest
import transformers as hf

import oracle
from cases import by_day
from oracle import Case, name_of
from triptych.config import build
from triptych.interop import read_network, write_network
from triptych.interop.families.bert import Bert
from triptych.interop.families.family import HFConfig
from triptych.interop.families.roberta import Roberta
from triptych.interop.networks import configuration

SMALL = {
    "vocab_size": 101, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 96,
    "max_position_embeddings": 40, "num_labels": 3, "layer_norm_eps": 1e-2,
}  # fmt: skip


def bert(head: type, **options: Any) -> Case:
    config = hf.BertConfig(**{**SMALL, "num_hidden_layers": 2, **options})
    left = () if head is hf.BertForSequenceClassification else ("left",)  # it reads the first position, real or not
    return Case(f"{head.__name__} {options}", lambda: head(config), ("none", "right", *left))


def roberta(head: type, **options: Any) -> Case:
    config = hf.RobertaConfig(**{**SMALL, "num_hidden_layers": 2, "pad_token_id": 1, **options})
    left = () if head is hf.RobertaForSequenceClassification else ("left",)
    return Case(f"{head.__name__} {options}", lambda: head(config), ("none", "right", *left))


def modernbert(head: type, **options: Any) -> Case:
    """Of four layers, two of which see 2 positions to each side."""
    sizes = {name: size for name, size in SMALL.items() if name != "layer_norm_eps"}
    tokens = {"pad_token_id": 1, "eos_token_id": 2, "bos_token_id": 0, "cls_token_id": 0, "sep_token_id": 2}
    config = hf.ModernBertConfig(
        **{**sizes, **tokens, "num_hidden_layers": 4, "local_attention": 4, "norm_eps": 1e-2, **options}
    )
    left = () if head is hf.ModernBertForSequenceClassification else ("left",)
    return Case(f"{head.__name__} {options}", lambda: head(config), ("none", "right", *left))


def longformer(head: type, **options: Any) -> Case:
    """Of two layers, that see 2 and 4 positions to each side; texts are no multiple of the windows."""
    config = hf.LongformerConfig(
        **{
            **SMALL, "num_hidden_layers": 2, "attention_window": [4, 8], "pad_token_id": 1, "type_vocab_size": 1,
            **options,
        }
    )  # fmt: skip
    left = () if head is hf.LongformerForSequenceClassification else ("left",)
    return Case(f"{head.__name__} {options}", lambda: head(config), ("none", "right", *left), length=18)


ROTATIONS = {
    "full_attention": {"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
}

CASES = [
    longformer(hf.LongformerForMaskedLM),
    longformer(hf.LongformerForMaskedLM, attention_window=6, hidden_act="gelu_new", type_vocab_size=2),
    longformer(hf.LongformerForSequenceClassification),
    longformer(hf.LongformerForTokenClassification, num_attention_heads=2),
    modernbert(hf.ModernBertForMaskedLM),
    modernbert(
        hf.ModernBertForMaskedLM, norm_bias=True, attention_bias=True, mlp_bias=True, classifier_bias=True,
        decoder_bias=False, tie_word_embeddings=False, rope_parameters=ROTATIONS, hidden_activation="gelu_new",
    ),
    modernbert(hf.ModernBertForSequenceClassification, classifier_pooling="mean"),
    modernbert(hf.ModernBertForSequenceClassification, classifier_activation="silu", classifier_bias=True),
    modernbert(hf.ModernBertForTokenClassification, layer_types=["full_attention"] * 4),
    modernbert(hf.ModernBertForQuestionAnswering, num_labels=2),
    roberta(hf.RobertaForMaskedLM, type_vocab_size=1),
    roberta(hf.RobertaForSequenceClassification, max_position_embeddings=21),
    roberta(hf.RobertaForTokenClassification, num_attention_heads=2),
    roberta(hf.RobertaForQuestionAnswering, num_labels=2),
    bert(hf.BertForMaskedLM),
    bert(hf.BertForMaskedLM, hidden_act="gelu_new", num_hidden_layers=3, type_vocab_size=1),
    bert(hf.BertForSequenceClassification),
    bert(hf.BertForTokenClassification, hidden_act="relu"),
    bert(hf.BertForQuestionAnswering, num_labels=2),
]  # fmt: skip


MODERN = {
    "block/norm": "modernbert", "block/attention": "modernbert", "block/position": "modernbert",
    "block/feed_forward": "gated_mlp", "block.bias": False, "block.embed_norm": True, "block.first_norm": False,
    "block.scale_embedding": False, "head@heads.tokens": "modernbert", "head@heads.classes": "modernbert",
    "head@heads.tags": "modernbert",
}  # fmt: skip
LONG = {
    "block/residual": "post_norm", "block/attention": "longformer", "block.attention.sliding_windows": [3],
    "block.embed_norm": True, "block.scale_embedding": False, "head@heads.tokens": "bert",
    "head@heads.classes": "pooler",
    "heads.tags.bias": "trained",
}  # fmt: skip


@pytest.mark.parametrize("case", by_day(CASES, oracle.one_a_class(CASES)), ids=name_of)
def test_equals_theirs(case: Case, tmp_path: Path) -> None:
    oracle.check(case, tmp_path)


@pytest.mark.parametrize(
    ("task", "settings", "family"),
    [
        ("denoising", MODERN, "modernbert"),
        (
            "classification",
            MODERN | {"block.position.local_theta": None, "block.attention.sliding_windows": [4]},
            "modernbert",
        ),
        (
            "tagging",
            MODERN | {"block.norm.bias": True, "block.bias": True, "block.scale_embedding": True},
            "modernbert",
        ),
        ("denoising", LONG, "longformer"),
        (
            "tagging",
            LONG | {"block.attention.sliding_windows": [5, 3], "block.attention.qkv_bias": False},
            "longformer",
        ),
    ],
    ids=str,
)
def test_exports_networks_of_ours(task: str, settings: dict[str, Any], family: str, tmp_path: Path) -> None:
    sizes = {"d_model": 32, "num_layers": 3, "num_heads": 4, "d_ff": 72, "vocab_size": 101, "max_length": 24}
    shape = {f"shape.{key}": value for key, value in sizes.items()}
    oracle.check_export(tmp_path, "encoder_only", task, shape | settings, family)


def test_reads_the_settings_of_old_modernberts(tmp_path: Path) -> None:
    rotations = {
        "full_attention": {"rope_type": "default", "rope_theta": 500.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
    }
    types = ["full_attention", "sliding_attention"] * 2
    modernbert(hf.ModernBertForMaskedLM, rope_parameters=rotations, layer_types=types).model().save_pretrained(tmp_path)
    new = read_network(tmp_path).config
    old = {"global_rope_theta": 500.0, "local_rope_theta": 20.0, "global_attn_every_n_layers": 2}
    oracle.change_config(tmp_path, rope_parameters=None, layer_types=None, **old)
    assert read_network(tmp_path).config == new
    assert new.block.attention.sliding_windows == [None, 3, None, 3]


@pytest.mark.parametrize(
    ("case", "changes", "words"),
    [
        (modernbert(hf.ModernBertForMaskedLM), {"mlp_bias": True}, "mlp_bias=True; expected False"),
        (
            modernbert(hf.ModernBertForMaskedLM),
            {"classifier_pooling": "max"},
            "classifier_pooling=max; expected cls or",
        ),
        (
            modernbert(hf.ModernBertForMaskedLM),
            {"rope_parameters": {"sliding_attention": ROTATIONS["full_attention"]}},
            "rope_parameters of sliding_attention are scaled",
        ),
        (modernbert(hf.ModernBertForMaskedLM), {"rope_scaling": {"factor": 2.0}}, "rope_scaling"),
        (longformer(hf.LongformerForMaskedLM), {"attention_window": [4]}, "for each of num_hidden_layers=2"),
        (longformer(hf.LongformerForMaskedLM), {"attention_window": 5}, "attention_window=[5, 5]; expected an even"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_rejects_what_would_change_the_function(
    case: Case, changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    oracle.check_refusal(case, changes, words, tmp_path)


@pytest.mark.parametrize("family", [Bert(), Roberta()], ids=["bert", "roberta"])
def test_exports_an_untied_output(family: Bert, tmp_path: Path) -> None:
    """Their untied output layer has a bias of its own, which a tied one shares with the head."""
    settings = family.settings(HFConfig({**SMALL, "num_hidden_layers": 2, "pad_token_id": 1}, "config.json"), {})
    config = configuration("encoder_only", "denoising", {**settings, "block.tie_word_embeddings": False}, 101)
    network = oracle.randomized(build(config, "model"))
    assert write_network(tmp_path, network, config, "denoising", special={"pad_token_id": 1}).model_type
    model, info = hf.AutoModelForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values())
    given = oracle.inputs("right", is_full=False)
    assert oracle.distance(oracle.theirs(model.eval(), given), oracle.ours(network, given), given["mask"]) < 1e-5


@pytest.mark.parametrize("case", [bert, roberta, longformer], ids=lambda case: case.__name__)
def test_reads_an_untied_output_with_a_bias_of_its_own(case: Any, tmp_path: Path) -> None:
    """transformers then ignores the bias of the head, which differs."""
    heads = {bert: hf.BertForMaskedLM, roberta: hf.RobertaForMaskedLM, longformer: hf.LongformerForMaskedLM}
    model = oracle.randomized(case(heads[case], tie_word_embeddings=False).model())
    model.save_pretrained(tmp_path)
    given = oracle.inputs("right", is_full=False)
    found = oracle.ours(read_network(tmp_path).network, given)
    assert oracle.distance(found, oracle.theirs(model, given), given["mask"]) < 1e-5
