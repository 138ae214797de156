"""The published families: each file of conf/model composes, and has as many parameters as what was published.

The sizes stand here once more, for transformers' own models on the meta device; what they count is independent of the
configurations and of our blocks.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from omegaconf import DictConfig

from cases import by_day, every_third_by_day
from command_line import composed, with_parts
from pages import template_of
from triptych.assembly.checks import check_before_data
from triptych.assembly.compatibility import check_grid
from triptych.assembly.make_task import check_network
from triptych.config import ConfigError, TrainConfig
from triptych.config.build import check_keys
from triptych.models.flops import count_parameters
from triptych.nn import Network

CONF = Path(__file__).parents[2] / "conf" / "model"
FILES = sorted(
    file.relative_to(CONF).with_suffix("").as_posix()
    for file in CONF.rglob("*.yaml")
    if file.parent.name not in ("embedding", "parts")
)
STYLES = [name for name in FILES if name.endswith("style")]


def network_of(model: str, vocab_size: int, *overrides: str) -> tuple[DictConfig, Network]:
    """With the task that the family is pre-trained on, unless another is given."""
    family = model.partition("/")[0]
    task = dict.fromkeys(("bert", "roberta", "modernbert", "longformer"), "denoising")
    causal = ("gpt2", "gpt3", "llama", "qwen3", "olmo2", "pythia", "modernbert_decoder")
    task |= dict.fromkeys(causal, "language_modeling")
    size = [f"shape.vocab_size={vocab_size}", f"task={task.get(family, 'translation')}"]
    if family == "whisper":
        size = [f"shape.vocab_size={vocab_size}", "task=transcription", "data=tone_digits"]
    if family == "clip":
        size = [f"shape.vocab_size={vocab_size}", "task=image_text_matching", "data=drawn_digits"]
    if family == "vit":
        size = [f"model.head.num_outputs={vocab_size}", "task=classification", "data=digits"]
    config = composed(f"model={model}", *size, *overrides)
    check_keys(config, TrainConfig)
    check_grid(config)
    return config, check_network(with_parts(config))


def count(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def bert(width: int, layers: int) -> Any:
    config = hf.BertConfig(
        vocab_size=30522, hidden_size=width, num_hidden_layers=layers, num_attention_heads=width // 64,
        intermediate_size=4 * width, max_position_embeddings=512, type_vocab_size=2,
    )  # fmt: skip
    return hf.BertForMaskedLM(config)


def roberta(width: int, layers: int) -> Any:
    config = hf.RobertaConfig(
        vocab_size=50265, hidden_size=width, num_hidden_layers=layers, num_attention_heads=width // 64,
        intermediate_size=4 * width, max_position_embeddings=514, type_vocab_size=1,
    )  # fmt: skip
    return hf.RobertaForMaskedLM(config)


def gpt(width: int, layers: int, heads: int, positions: int) -> Any:
    config = hf.GPT2Config(vocab_size=50257, n_embd=width, n_layer=layers, n_head=heads, n_positions=positions)
    return hf.GPT2LMHeadModel(config)


def llama(
    width: int, layers: int, heads: int, d_ff: int, *, vocab: int = 32000, kv: int | None = None, tied: bool = False
) -> Any:
    config = hf.LlamaConfig(
        vocab_size=vocab, hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=d_ff, num_key_value_heads=kv, tie_word_embeddings=tied,
    )  # fmt: skip
    return hf.LlamaForCausalLM(config)


def qwen3(width: int, layers: int, heads: int, d_ff: int, *, tied: bool = True) -> Any:
    config = hf.Qwen3Config(
        vocab_size=151936, hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=d_ff, num_key_value_heads=8, head_dim=128, tie_word_embeddings=tied,
    )  # fmt: skip
    return hf.Qwen3ForCausalLM(config)


def olmo2(width: int, layers: int, heads: int, d_ff: int) -> Any:
    config = hf.Olmo2Config(
        vocab_size=100352, hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=d_ff,
    )  # fmt: skip
    return hf.Olmo2ForCausalLM(config)


def pythia(width: int, layers: int, heads: int, vocab: int) -> Any:
    config = hf.GPTNeoXConfig(
        vocab_size=vocab, hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=4 * width,
    )  # fmt: skip
    return hf.GPTNeoXForCausalLM(config)


def modernbert(width: int, layers: int, heads: int, d_ff: int) -> Any:
    config = hf.ModernBertConfig(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=d_ff
    )
    return hf.ModernBertForMaskedLM(config)


def modernbert_decoder(width: int, layers: int, heads: int, d_ff: int) -> Any:
    config = hf.ModernBertDecoderConfig(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=d_ff
    )
    return hf.ModernBertDecoderForCausalLM(config)


def longformer(width: int, layers: int) -> Any:
    config = hf.LongformerConfig(
        vocab_size=50265, hidden_size=width, num_hidden_layers=layers, num_attention_heads=width // 64,
        intermediate_size=4 * width, max_position_embeddings=4098, type_vocab_size=1,
    )  # fmt: skip
    return hf.LongformerForMaskedLM(config)


def t5(width: int, layers: int, heads: int, d_ff: int, d_kv: int, *, gated: bool = False) -> Any:
    config = hf.T5Config(
        vocab_size=32128, d_model=width, num_layers=layers, num_decoder_layers=layers, num_heads=heads, d_ff=d_ff,
        d_kv=d_kv, feed_forward_proj="gated-gelu" if gated else "relu", decoder_start_token_id=0,
    )  # fmt: skip
    model = hf.T5ForConditionalGeneration(config)
    if gated:  # T5 1.1 is untied
        model.lm_head.weight = torch.nn.Parameter(torch.empty(32128, width))
    return model


def t5gemma(width: int, layers: int, heads: int, d_ff: int, *, kv: int | None = None, head_dim: int = 64) -> Any:
    sizes = {
        "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads, "intermediate_size": d_ff,
        "num_key_value_heads": kv or heads, "head_dim": head_dim,
    }  # fmt: skip
    return hf.T5GemmaForConditionalGeneration(hf.T5GemmaConfig(encoder=sizes, decoder={**sizes}))


def bart(width: int, layers: int, heads: int) -> Any:
    config = hf.BartConfig(
        vocab_size=50265, d_model=width, encoder_layers=layers, decoder_layers=layers, max_position_embeddings=1024,
        encoder_attention_heads=heads, decoder_attention_heads=heads, encoder_ffn_dim=4 * width,
        decoder_ffn_dim=4 * width,
    )  # fmt: skip
    return hf.BartForConditionalGeneration(config)


def marian(width: int, heads: int, vocab: int) -> Any:
    config = hf.MarianConfig(
        vocab_size=vocab, d_model=width, encoder_layers=6, decoder_layers=6, encoder_attention_heads=heads,
        decoder_attention_heads=heads, encoder_ffn_dim=4 * width, decoder_ffn_dim=4 * width, pad_token_id=vocab - 1,
        decoder_start_token_id=vocab - 1,
    )  # fmt: skip
    return hf.MarianMTModel(config)


def vit(width: int, layers: int, heads: int, patch: int) -> Any:
    config = hf.ViTConfig(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=4 * width,
        image_size=224, patch_size=patch, num_channels=3, num_labels=1000,
    )  # fmt: skip
    return hf.ViTForImageClassification(config)


def clip(patch: int, width: int, heads: int, vision_width: int, vision_layers: int, vision_heads: int) -> Any:
    text = {
        "vocab_size": 49408, "hidden_size": width, "num_hidden_layers": 12, "num_attention_heads": heads,
        "intermediate_size": 4 * width, "max_position_embeddings": 77,
    }  # fmt: skip
    vision = {
        "hidden_size": vision_width, "num_hidden_layers": vision_layers, "num_attention_heads": vision_heads,
        "intermediate_size": 4 * vision_width, "image_size": 224, "patch_size": patch,
    }  # fmt: skip
    return hf.CLIPModel(hf.CLIPConfig(text_config=text, vision_config=vision, projection_dim=width))


def whisper(width: int, layers: int, heads: int, decoder_layers: int, mels: int, vocab: int) -> Any:
    config = hf.WhisperConfig(
        vocab_size=vocab, d_model=width, encoder_layers=layers, decoder_layers=decoder_layers, num_mel_bins=mels,
        encoder_attention_heads=heads, decoder_attention_heads=heads, encoder_ffn_dim=4 * width,
        decoder_ffn_dim=4 * width,
    )  # fmt: skip
    return hf.WhisperForConditionalGeneration(config)


PUBLISHED: dict[str, tuple[int, Any]] = {
    **{
        f"bert/{name}": (30522, (bert, width, layers))
        for name, width, layers in (
            ("tiny", 128, 2), ("mini", 256, 4), ("small", 512, 4), ("medium", 512, 8), ("base", 768, 12),
            ("large", 1024, 24),
        )
    },
    "roberta/base": (50265, (roberta, 768, 12)),
    "roberta/large": (50265, (roberta, 1024, 24)),
    "gpt2/small": (50257, (gpt, 768, 12, 12, 1024)),
    "gpt2/medium": (50257, (gpt, 1024, 24, 16, 1024)),
    "gpt2/large": (50257, (gpt, 1280, 36, 20, 1024)),
    "gpt2/xl": (50257, (gpt, 1600, 48, 25, 1024)),
    "gpt3/125m": (50257, (gpt, 768, 12, 12, 2048)),
    "gpt3/350m": (50257, (gpt, 1024, 24, 16, 2048)),
    "gpt3/760m": (50257, (gpt, 1536, 24, 16, 2048)),
    "gpt3/1.3b": (50257, (gpt, 2048, 24, 16, 2048)),
    "gpt3/2.7b": (50257, (gpt, 2560, 32, 32, 2048)),
    "gpt3/6.7b": (50257, (gpt, 4096, 32, 32, 2048)),
    "gpt3/13b": (50257, (gpt, 5120, 40, 40, 2048)),
    "gpt3/175b": (50257, (gpt, 12288, 96, 96, 2048)),
    "llama/7b": (32000, (llama, 4096, 32, 32, 11008)),
    "llama/13b": (32000, (llama, 5120, 40, 40, 13824)),
    "llama/33b": (32000, (llama, 6656, 60, 52, 17920)),
    "llama/65b": (32000, (llama, 8192, 80, 64, 22016)),
    "llama/2-70b": (32000, (llama, 8192, 80, 64, 28672, {"kv": 8})),
    "llama/3.1-8b": (128256, (llama, 4096, 32, 32, 14336, {"kv": 8, "vocab": 128256})),
    "llama/3.1-70b": (128256, (llama, 8192, 80, 64, 28672, {"kv": 8, "vocab": 128256})),
    "llama/3.2-1b": (128256, (llama, 2048, 16, 32, 8192, {"kv": 8, "vocab": 128256, "tied": True})),
    "qwen3/0.6b": (151936, (qwen3, 1024, 28, 16, 3072)),
    "qwen3/1.7b": (151936, (qwen3, 2048, 28, 16, 6144)),
    "qwen3/4b": (151936, (qwen3, 2560, 36, 32, 9728)),
    "qwen3/8b": (151936, (qwen3, 4096, 36, 32, 12288, {"tied": False})),
    "olmo2/1b": (100352, (olmo2, 2048, 16, 16, 8192)),
    "olmo2/7b": (100352, (olmo2, 4096, 32, 32, 11008)),
    "olmo2/13b": (100352, (olmo2, 5120, 40, 40, 13824)),
    **{
        f"pythia/{name}": (vocab, (pythia, *sizes, vocab))
        for name, vocab, *sizes in (
            ("70m", 50304, 512, 6, 8), ("160m", 50304, 768, 12, 12), ("410m", 50304, 1024, 24, 16),
            ("1b", 50304, 2048, 16, 8), ("1.4b", 50304, 2048, 24, 16), ("2.8b", 50304, 2560, 32, 32),
            ("6.9b", 50432, 4096, 32, 32), ("12b", 50688, 5120, 36, 40),
        )
    },
    "modernbert/base": (50368, (modernbert, 768, 22, 12, 1152)),
    "modernbert/large": (50368, (modernbert, 1024, 28, 16, 2624)),
    **{
        f"{family}/ettin-{name}": (50368, (make, *sizes))
        for family, make in (("modernbert", modernbert), ("modernbert_decoder", modernbert_decoder))
        for name, *sizes in (
            ("17m", 256, 7, 4, 384), ("32m", 384, 10, 6, 576), ("68m", 512, 19, 8, 768), ("150m", 768, 22, 12, 1152),
            ("400m", 1024, 28, 16, 2624), ("1b", 1792, 28, 28, 3840),
        )
    },
    "longformer/base": (50265, (longformer, 768, 12)),
    "longformer/large": (50265, (longformer, 1024, 24)),
    "t5/small": (32128, (t5, 512, 6, 8, 2048, 64)),
    "t5/base": (32128, (t5, 768, 12, 12, 3072, 64)),
    "t5/large": (32128, (t5, 1024, 24, 16, 4096, 64)),
    "t5/3b": (32128, (t5, 1024, 24, 32, 16384, 128)),
    "t5/11b": (32128, (t5, 1024, 24, 128, 65536, 128)),
    "t5/v1_1-small": (32128, (t5, 512, 8, 6, 1024, 64, {"gated": True})),
    "t5/v1_1-base": (32128, (t5, 768, 12, 12, 2048, 64, {"gated": True})),
    "t5/v1_1-large": (32128, (t5, 1024, 24, 16, 2816, 64, {"gated": True})),
    "t5/v1_1-xl": (32128, (t5, 2048, 24, 32, 5120, 64, {"gated": True})),
    "t5/v1_1-xxl": (32128, (t5, 4096, 24, 64, 10240, 64, {"gated": True})),
    **{
        f"t5gemma/{name}": (256000, (t5gemma, *sizes))
        for name, *sizes in (
            ("s-s", 512, 8, 8, 1024), ("b-b", 768, 12, 12, 2048), ("l-l", 1024, 24, 16, 2816),
            ("xl-xl", 2048, 24, 32, 5120), ("2b-2b", 2304, 26, 8, 9216, {"kv": 4, "head_dim": 256}),
            ("9b-9b", 3584, 42, 16, 14336, {"kv": 8, "head_dim": 256}),
        )
    },
    "bart/base": (50265, (bart, 768, 6, 12)),
    "bart/large": (50265, (bart, 1024, 12, 16)),
    "marian/opus-mt": (58101, (marian, 512, 8, 58101)),
    "transformer/base": (37000, (marian, 512, 8, 37000)),
    "transformer/big": (37000, (marian, 1024, 16, 37000)),
    "vit/ti-16": (1000, (vit, 192, 12, 3, 16)),
    "vit/s-16": (1000, (vit, 384, 12, 6, 16)),
    "vit/b-32": (1000, (vit, 768, 12, 12, 32)),
    "vit/b-16": (1000, (vit, 768, 12, 12, 16)),
    "vit/l-16": (1000, (vit, 1024, 24, 16, 16)),
    "vit/h-14": (1000, (vit, 1280, 32, 16, 14)),
    "clip/vit-b-32": (49408, (clip, 32, 512, 8, 768, 12, 12)),
    "clip/vit-b-16": (49408, (clip, 16, 512, 8, 768, 12, 12)),
    "clip/vit-l-14": (49408, (clip, 14, 768, 12, 1024, 24, 16)),
    **{
        f"whisper/{name}": (vocab, (whisper, *sizes, vocab))
        for name, vocab, *sizes in (
            ("tiny", 51865, 384, 4, 6, 4, 80), ("base", 51865, 512, 6, 8, 6, 80), ("small", 51865, 768, 12, 12, 12, 80),
            ("medium", 51865, 1024, 24, 16, 24, 80), ("large", 51865, 1280, 32, 20, 32, 80),
            ("large-v3", 51866, 1280, 32, 20, 32, 128), ("large-v3-turbo", 51866, 1280, 32, 20, 4, 128),
        )
    },
}  # fmt: skip
"""Vocabulary (of images, the classes), and how transformers builds the model."""

EXACT = {
    "transformer/base": 63_082_496,
    "marian/opus-mt": 73_886_208,
    "t5/base": 222_903_552,
    "t5/v1_1-base": 247_577_856,
    "bart/base": 139_420_416,
    "bert/base": 109_514_298,
    "roberta/base": 124_697_433,
    "gpt2/small": 124_439_808,
    "gpt3/125m": 125_226_240,
    "llama/7b": 6_738_415_616,
    "llama/3.1-8b": 8_030_261_248,
    "qwen3/0.6b": 596_049_920,
    "olmo2/1b": 1_484_916_736,
    "pythia/160m": 162_322_944,
    "vit/b-16": 86_567_656,
    "clip/vit-b-32": 151_277_313,
    "clip/vit-b-16": 149_620_737,
    "clip/vit-l-14": 427_616_513,
    "t5gemma/s-s": 312_517_632,
    "t5gemma/b-b": 591_490_560,
    "t5gemma/l-l": 1_241_761_792,
    "t5gemma/xl-xl": 3_766_980_608,
    "t5gemma/2b-2b": 5_596_853_760,
    "t5gemma/9b-9b": 20_333_401_088,
    # in the hub's numbers the encoder's 1,500 positions count too
    "whisper/tiny": 37_760_640 - 1500 * 384,
    "whisper/small": 241_734_912 - 1500 * 768,
    "whisper/large": 1_543_304_960 - 1500 * 1280,
}
"""What others have counted; of T5Gemma KerasHub's presets."""


def test_every_file_is_tested() -> None:
    architectures = {"full", "encoder_only", "decoder_only", "prefix_lm", "dual_encoder", "dual_decoder"}
    assert set(FILES) == {*PUBLISHED, *STYLES, *architectures}
    families = {name.partition("/")[0] for name in PUBLISHED}
    assert set(STYLES) == {*(f"{family}/style" for family in families), "llama/3.1-style", "t5/v1_1-style"}


def counted(model: str) -> tuple[int, int, int]:
    """The published vocabulary, and the parameters of our network and of that of transformers."""
    vocab_size, (make, *sizes) = PUBLISHED[model]
    options = sizes.pop() if isinstance(sizes[-1], dict) else {}
    with torch.device("meta"):
        expected = count(make(*sizes, **options))
    _, network = network_of(model, vocab_size)
    assert {p.device.type for p in network.parameters()} == {"meta"}
    return vocab_size, count_parameters(network)[0], expected


@pytest.mark.parametrize(
    "model", by_day(PUBLISHED, {name.partition("/")[0]: name for name in reversed(PUBLISHED)}.values())
)
def test_number_of_parameters(model: str) -> None:
    vocab_size, found, expected = counted(model)
    assert found == expected
    if model in EXACT:
        assert expected == EXACT[model]
    assert f" {expected:,} parameters" in (header := (CONF / f"{model}.yaml").read_text())
    assert f" {vocab_size:,} {'classes' if model.startswith('vit') else 'tokens'}" in header


def test_gpt3_rounds_to_its_names() -> None:
    """The numbers are those of the headers, which ``test_number_of_parameters`` has counted."""
    for model in (name for name in PUBLISHED if name.startswith("gpt3/")):
        said = re.search(r"([\d,]+) parameters", (CONF / f"{model}.yaml").read_text())
        assert said is not None
        size = model.removeprefix("gpt3/")
        unit, digits = {"m": 1e6, "b": 1e9}[size[-1]], len(size.partition(".")[2][:-1])
        published = {"350m": 356.0}.get(size, float(size[:-1]))  # the paper's 350 is rounded
        assert round(int(said[1].replace(",", "")) / unit, digits) == published, model


def test_bert_with_both_heads() -> None:
    """The masked-LM head and, behind the pooler, the two classes of next-sentence prediction."""
    _, masked = network_of("bert/base", 30522)
    _, classes = network_of("bert/base", 30522, "task=classification", "model.head.num_outputs=2")
    assert classes.head.pooling == "first"
    pooled = sum(p.numel() for p in classes.head.parameters())
    assert count_parameters(masked)[0] + pooled == 110_106_428
    assert count_parameters(classes)[0] - 2 * 768 - 2 == 109_482_240


def test_roberta_with_its_pooler() -> None:
    """Without the classes behind it."""
    _, classes = network_of("roberta/base", 50265, "task=classification", "model.head.num_outputs=2")
    assert count_parameters(classes)[0] - 2 * 768 - 2 == 124_645_632


def test_vit_without_its_classes() -> None:
    _, network = network_of("vit/b-16", 1000)
    assert count_parameters(network)[0] - sum(p.numel() for p in network.head.parameters()) == 85_798_656


@pytest.mark.parametrize("model", every_third_by_day(STYLES))
def test_a_family_takes_any_shape(model: str) -> None:
    heads = [] if model.startswith("longformer") else ["block.attention.num_kv_heads=2"]
    config, network = network_of(model, 50, "shape=tiny", *heads)
    assert (config.shape.d_model, config.shape.num_layers) == (64, 2)
    assert all(len(stack.layers) == 2 for stack in network.stacks)


def test_the_command_line_wins() -> None:
    config, network = network_of(
        "t5/small", 50, "shape.d_model=128", "block.dropout=0.3", "model.decoder.num_layers=2", "block/norm=layer_norm"
    )
    assert (config.shape.d_model, config.shape.d_ff, config.block.dropout) == (128, 2048, 0.3)
    assert [len(stack.layers) for stack in network.stacks] == [6, 2]
    assert network.stacks[0].layers[0].self_attention.q.weight.shape == (8 * 64, 128)
    assert isinstance(network.stacks[0].final_norm, torch.nn.LayerNorm)
    config, _ = network_of("bert/base", 50, "shape=tiny")
    assert (config.shape.d_model, config.shape.num_layers, config.block.norm.eps) == (64, 2, 1e-12)


def test_the_frames_of_whisper() -> None:
    frames = composed("model=whisper/large-v3", "task=transcription", "data=tone_digits").audio_embedding
    assert (frames.num_mels, frames.seconds, frames.normalized) == (128, 30, False)
    assert composed("model=whisper/tiny", "experiment=tones/transcription").audio_embedding.num_mels == 32


def test_the_options_of_the_rotations() -> None:
    for model, factor in (("llama/3.1-8b", 8), ("llama/3.2-1b", 32)):
        scaling = composed(f"model={model}").block.position.scaling
        assert dict(scaling) == {
            "_target_": "triptych.nn.RopeScaling", "factor": factor, "low_rotations": 1, "high_rotations": 4,
            "original_length": 8192,
        }  # fmt: skip


def test_an_experiments_shape_is_not_taken_in_silence(chosen: Callable[..., DictConfig]) -> None:
    """Whether it stands in a file of its own or not."""
    with pytest.raises(ConfigError) as error:
        check_before_data(with_parts(chosen("experiment=dates/classification", "model=bert/base", "shape.d_ff=99")))
    assert str(error.value) == (
        "experiment=dates/classification and model=bert/base have different shapes. Set shape.d_model=768 "
        "shape.num_layers=12 shape.num_heads=12 shape.max_length=512 for the model's shape, or shape=tiny for the "
        "experiment's"
    )
    with pytest.raises(ConfigError, match=r"Set shape\.d_model=768 shape\.num_layers=6 ") as error:
        check_before_data(with_parts(chosen("experiment=imdb/full", "model=bart/base")))
    assert str(error.value).endswith(
        "or shape.d_model=64 shape.num_layers=2 shape.num_heads=4 shape.d_ff=256 shape.max_length=256 for the "
        "experiment's"
    )


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        (["model=bert/style", "block.tie_word_embeddings=true"], ["block.dropout=0.0 (model=bert/style: 0.1)"]),
        (
            ["model=bert/base", "shape=tiny"],
            ["block.tie_word_embeddings=False (model=bert/base: True), block.dropout=0.0 (model=bert/base: 0.1)"],
        ),
        (["model=encoder_only"], []),
        ([], []),
    ],
)
def test_an_experiments_options_are_named(
    choice: list[str], said: list[str], chosen: Callable[..., DictConfig], caplog: pytest.LogCaptureFixture
) -> None:
    experiment = "experiment=dates/denoising"
    config = chosen(experiment, *choice)
    check_before_data(with_parts(config))
    assert caplog.messages == [f"{experiment} has {what}" for what in said]
    assert config.shape.d_model == 64


def test_the_page_is_what_its_source_says() -> None:
    """But for what is measured."""
    page = (Path(__file__).parents[2] / "docs" / "families.md").read_text(encoding="utf-8")
    for part in re.split(r"\{\w+\}", template_of("families_page")):
        assert part in page
