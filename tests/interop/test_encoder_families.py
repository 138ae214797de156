"""BERT's and RoBERTa's like, against ``transformers``."""

from pathlib import Path
from typing import Any

import pytest
import transformers as hf

from oracle import Case, check, distance, inputs, ours, randomized, theirs
from triptych.config import build
from triptych.interop import write_network
from triptych.interop.families.bert import Bert
from triptych.interop.families.family import TheirConfig
from triptych.interop.families.roberta import Roberta
from triptych.interop.networks import configuration

SMALL = {
    "vocab_size": 101,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 40,
    "num_labels": 3,
    "layer_norm_eps": 1e-2,
}


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
        **{**SMALL, "num_hidden_layers": 2, "attention_window": [4, 8], "pad_token_id": 1, "type_vocab_size": 1, **options}
    )
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
        hf.ModernBertForMaskedLM,
        norm_bias=True,
        attention_bias=True,
        mlp_bias=True,
        classifier_bias=True,
        decoder_bias=False,
        tie_word_embeddings=False,
        rope_parameters=ROTATIONS,
        hidden_activation="gelu_new",
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
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_equals_theirs(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


@pytest.mark.parametrize("family", [Bert(), Roberta()], ids=["bert", "roberta"])
def test_exports_an_untied_output(family: Bert, tmp_path: Path) -> None:
    """Their untied output layer has a bias of its own, which a tied one shares with the head."""
    settings = family.settings(TheirConfig({**SMALL, "num_hidden_layers": 2, "pad_token_id": 1}, "config.json"), {})
    config = configuration("encoder_only", "denoising", {**settings, "block.tie_output": False}, 101)
    network = randomized(build(config, "model"))
    assert write_network(tmp_path, network, config, "denoising", special={"pad_token_id": 1}).model_type
    model, info = hf.AutoModelForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values())
    given = inputs("right", is_full=False)
    assert distance(theirs(model.eval(), given), ours(network, given), given["mask"]) < 1e-5
