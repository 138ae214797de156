"""A folder or a network that is not what it should be is answered by the name of what is wrong."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from torch import Tensor

import oracle  # noqa: F401 - no progress bars
from triptych.config import ConfigError, build
from triptych.interop import read_network, write_network
from triptych.interop.networks import configuration

SMALL = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 9, "vocab_size": 11}
FILE = "model.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A GPT-2."""
    hf.GPT2LMHeadModel(hf.GPT2Config(**SMALL, bos_token_id=1, eos_token_id=1)).save_pretrained(tmp_path)
    return tmp_path


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    """A BERT."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    hf.BertForMaskedLM(hf.BertConfig(**sizes, vocab_size=11, max_position_embeddings=9)).save_pretrained(tmp_path)
    return tmp_path


def set_values(folder: Path, **values: Any) -> None:
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(content | values))


def set_tensors(folder: Path, **tensors: Tensor | None) -> None:
    """Changes tensors; None takes one out."""
    content = {name.replace(".", "__"): tensor for name, tensor in load_file(folder / FILE).items()} | tensors
    kept = {name.replace("__", "."): tensor for name, tensor in content.items() if tensor is not None}
    save_file(kept, folder / FILE)


def answer(folder: Path, task: str | None = None) -> str:
    """The refusal, in one line."""
    with pytest.raises(ConfigError) as caught:
        read_network(folder, task)
    text = str(caught.value)
    assert str(folder) in text
    assert "\n" not in text
    return text


def test_no_configuration(folder: Path) -> None:
    (folder / "config.json").unlink()
    assert "config.json not found" in answer(folder)


def test_no_folder(tmp_path: Path) -> None:
    assert "config.json not found" in answer(tmp_path / "nowhere")


@pytest.mark.parametrize(("text", "words"), [("{", "not JSON"), ("[1]", "expected a JSON object")])
def test_a_configuration_of_another_kind(text: str, words: str, folder: Path) -> None:
    (folder / "config.json").write_text(text)
    assert words in answer(folder)


@pytest.mark.parametrize(
    ("kind", "words"),
    [("gpt_2", "; did you mean gpt2?"), ("wav2vec2", "; expected one of bart, "), (["gpt2"], "model_type=['gpt2']")],
    ids=["typo", "other", "list"],
)
def test_an_unknown_model_type(kind: Any, words: str, folder: Path) -> None:
    set_values(folder, model_type=kind)
    assert words in answer(folder)


@pytest.mark.parametrize("value", ["abc", 2.5, 0, -1, None, True])
def test_a_size_that_is_none(value: Any, folder: Path) -> None:
    set_values(folder, n_layer=value)
    assert f"n_layer={value!r}; expected a whole number of at least 1" in answer(folder)


def test_a_value_of_another_type(folder: Path) -> None:
    set_values(folder, layer_norm_epsilon="small")
    text = answer(folder)
    assert "block.norm.eps='small': expected a number, not a text" in text


def test_a_missing_value(folder: Path) -> None:
    content = json.loads((folder / "config.json").read_text())
    del content["n_head"]
    (folder / "config.json").write_text(json.dumps(content))
    assert "config.json: n_head is missing" in answer(folder)


def test_heads_that_do_not_divide_the_width(folder: Path) -> None:
    set_values(folder, n_head=3)
    assert "shape.num_heads=3 does not divide shape.d_model=16" in answer(folder)


def test_a_task_that_the_family_has_no_head_for(bert: Path) -> None:
    assert "task=translation" in answer(bert, "translation")


def test_no_weights(folder: Path) -> None:
    (folder / FILE).unlink()
    assert f"{FILE} not found" in answer(folder)


def test_a_pickle_is_named_and_never_read(folder: Path) -> None:
    (folder / FILE).unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04cposix\nsystem\n")
    assert "pytorch_model.bin is a pickle, which Triptych never reads" in answer(folder)


def test_a_damaged_file(folder: Path) -> None:
    (folder / FILE).write_bytes((folder / FILE).read_bytes()[:-5])
    text = answer(folder)
    assert f"{FILE}: not a safetensors file" in text


def sharded(folder: Path) -> Path:
    """The index of the same model in several files."""
    model = hf.GPT2LMHeadModel.from_pretrained(folder)
    (folder / FILE).unlink()
    model.save_pretrained(folder, max_shard_size="4KB")
    return folder / f"{FILE}.index.json"


def test_a_missing_shard(folder: Path) -> None:
    index = sharded(folder)
    shards = sorted(folder.glob("model-*"))
    assert len(shards) > 1
    shards[-1].unlink()
    assert shards[-1].name in answer(folder)
    assert index.is_file()


@pytest.mark.parametrize("weight_map", [{"a": "../a.safetensors"}, {}, [], "x", None], ids=str)
def test_an_index_of_other_files(weight_map: Any, folder: Path) -> None:
    index = sharded(folder)
    index.write_text(json.dumps({"weight_map": weight_map}))
    assert index.name in answer(folder)


@pytest.mark.parametrize(
    "name", ["transformer.h.0.ln_1.bias", "transformer.wte.weight", "transformer.h.0.attn.c_attn.weight"]
)
def test_a_missing_tensor(name: str, folder: Path) -> None:
    set_tensors(folder, **{name.replace(".", "__"): None})
    text = answer(folder)
    assert "missing" in text
    assert name in text


def test_many_missing_tensors_are_counted(folder: Path) -> None:
    set_values(folder, n_layer=3)
    text = answer(folder)
    assert "transformer.h.1." in text
    assert "more" in text


def test_unexpected_tensors(folder: Path) -> None:
    set_tensors(folder, transformer__h__1__ln_1__bias=torch.zeros(16))
    assert ": transformer.h.1.ln_1.bias" in answer(folder)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("transformer.wpe.weight", (8, 16)),
        ("transformer.h.0.ln_1.weight", (1, 16)),
        ("transformer.h.0.mlp.c_fc.weight", (64, 16)),  # not transposed
        ("transformer.h.0.attn.c_attn.weight", (16, 49)),
        ("transformer.h.0.attn.c_attn.weight", (16, 2)),
        ("transformer.h.0.attn.c_attn.bias", (47,)),
        ("transformer.h.0.attn.c_attn.bias", ()),
    ],
    ids=str,
)
def test_a_shape_that_does_not_fit(name: str, shape: tuple[int, ...], folder: Path) -> None:
    set_tensors(folder, **{name.replace(".", "__"): torch.zeros(shape)})
    assert f"{name} has shape {shape}; " in answer(folder)


def test_a_copy_that_contradicts_the_table(folder: Path) -> None:
    table = load_file(folder / FILE)["transformer.wte.weight"]
    set_tensors(folder, lm_head__weight=table + 1)
    text = answer(folder)
    assert "lm_head.weight differs from transformer.wte.weight" in text
    assert "config.json" in text
    set_values(folder, tie_word_embeddings=False)  # then they are two
    assert not torch.equal(*(p for n, p in read_network(folder).network.named_parameters() if p.shape == (11, 16)))


def test_an_output_layer_of_its_own_must_be_there(folder: Path) -> None:
    set_values(folder, tie_word_embeddings=False)
    assert "missing: lm_head.weight" in answer(folder)


def test_an_output_layer_of_its_own_does_not_stand_for_the_table(folder: Path) -> None:
    set_values(folder, tie_word_embeddings=False)
    set_tensors(folder, lm_head__weight=torch.zeros(11, 16), transformer__wte__weight=None)
    assert "missing: transformer.wte.weight" in answer(folder)


def test_another_head_is_left_out_and_a_new_one_made(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    set_values(folder, tie_word_embeddings=False, id2label={"0": "no", "1": "yes", "2": "perhaps"})
    set_tensors(folder, lm_head__weight=torch.zeros(11, 16))
    assert "missing: score.weight" in answer(folder, "classification")
    with caplog.at_level(logging.WARNING, "triptych"):
        read = read_network(folder, "classification", new_head=True)
    assert read.labels == ("no", "yes", "perhaps")
    assert read.network.head.output.weight.shape == (3, 16)
    assert "1 tensors are new: score.weight" in caplog.text
    assert "1 tensors are left out, since they belong to another head: lm_head.weight" in caplog.text


def own(settings: dict[str, Any], architecture: str = "decoder_only", task: str = "language_modeling") -> Any:
    """A network of ours with its configuration."""
    sizes = {"d_model": 16, "num_layers": 1, "num_heads": 2, "d_ff": 24, "vocab_size": 11, "max_length": 9}
    shape = {f"shape.{key}": value for key, value in sizes.items()}
    config = configuration(architecture, task, shape | settings, 11)
    return build(config, "model"), config


@pytest.mark.parametrize(
    ("settings", "nearest", "obstacles"),
    [
        ({"block/norm": "rms_norm"}, "gpt2", ["model.decoder.norm=RMSNorm (expected LayerNorm)"]),
        (
            {"block/norm": "rms_norm", "block/position": "learned"},
            "gpt2",
            ["model.decoder.norm=RMSNorm (expected LayerNorm)"],
        ),
        (
            {"block/position": "rotary", "block/feed_forward": "gated_mlp", "block.attention.num_kv_heads": 1},
            "gpt_neox",
            ["model.decoder.feed_forward=GatedFeedForward (expected FeedForward)"],
        ),
        (
            {"block/norm": "rms_norm", "block/position": "relative_bias"},
            "gpt2",
            [
                "model.decoder.position=RelativeBias (expected LearnedPositions)",
                "model.decoder.norm=RMSNorm (expected LayerNorm)",
            ],
        ),
        (
            {"block.attention.sliding_windows": [2, 3], "block.attention.qkv_bias": False, "shape.num_layers": 2},
            "gpt2",
            ["model.decoder.attention.sliding_windows=[2, 3] (expected [None, None])"],
        ),
        (
            {"shape.num_heads": 3, "shape.head_dim": 4, "block/norm": "rms_norm", "block/position": "rotary"}
            | {"block/feed_forward": "gated_mlp"},
            "llama",
            ["model.decoder.head_dim=4 (expected 5)"],
        ),
        ({"block/residual": "post_norm"}, "gpt2", ["model.decoder.residual=PostNorm (expected PreNorm)"]),
        ({"heads.tokens.bias": "trained"}, "gpt2", ["model.head.bias=trained (expected none)"]),
    ],
    ids=str,
)
def test_a_network_that_no_family_is(
    settings: dict[str, Any], nearest: str, obstacles: list[str], tmp_path: Path
) -> None:
    network, config = own(settings)
    with pytest.raises(ConfigError) as caught:
        write_network(tmp_path, network, config, "language_modeling")
    start = "no published family matches this network (model=decoder_only): the nearest, "
    assert str(caught.value) == f"{start}{nearest}, differs in {'; '.join(obstacles)}"
    assert not list(tmp_path.iterdir())


def test_a_task_that_no_family_has_a_head_for(tmp_path: Path) -> None:
    network, config = own({"block/residual": "post_norm", "block.embed_norm": True}, "encoder_only", "denoising")
    with pytest.raises(ConfigError, match="none has a head for task=translation"):
        write_network(tmp_path, network, config, "translation")
