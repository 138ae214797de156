"""Whisper (Radford et al. 2022).

Tested by tests/interop/test_whisper.py.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from triptych.config import ConfigError
from triptych.interop.families.bart import DECODER_SIZES, STACK, Bart, stack_names
from triptych.interop.families.family import Family, HFConfig, Settings, hf_activation

RATE, STRIDE = 16000, 2
"""Samples per second: the filters of ``WhisperFeatureExtractor`` end at 8000 Hz for any rate. Frames per position."""
EXTRACTOR = "preprocessor_config"
"""The file with the settings of audio features."""
PROMPTING = {"forced_decoder_ids", "is_multilingual", "no_timestamps_token_id"}
PROMPTING |= {"lang_to_id", "language", "task", "task_to_id"}
"""Keys of generation_config.json that set the tokens of the decoder prompt."""
TIMING = {"alignment_heads", "max_initial_timestamp_index", "prev_sot_token_id"}
"""Keys of generation_config.json for timestamps and audio longer than 30 s, which are not used here."""
DETECTED = "<|en|>"
"""The default language."""


class Whisper(Family):
    """Pre-norm on both sides. The encoder reads 30 s of frames, silence included, through two convolutions, and has a
    fixed position table; the decoder's is learned.

    Its keys have no bias b. A bias adds q b to all scores of a query q, which softmax cancels, so an export drops ours
    (``absorb``). The fixed table is among the weights, so any table can be exported.
    """

    model_type = "whisper"
    architecture = "full"
    prefix = "model."
    classes = {"transcription": "WhisperForConditionalGeneration"}
    files = {EXTRACTOR: ("processor_config", "feature_extractor")}  # the second since transformers 5
    names = {
        "embedding.tokens": "model.decoder.embed_tokens",
        "source_embedding.convolutions.0": "model.encoder.conv1",
        "source_embedding.convolutions.1": "model.encoder.conv2",
        **stack_names(STACK),
    }
    heads = {"transcription": {"head.output": "proj_out"}}
    tied_copies = {"proj_out.weight": "model.decoder.embed_tokens.weight"}

    sizes, numbers = Bart.sizes, {**Bart.numbers, "dropout": ("dropout", 0.0)}

    def settings(self, config: HFConfig, tensors: Mapping[str, Tensor]) -> Settings:
        config.expect("scale_embedding", False, [False])  # which transformers ignores
        extractor, positions = config.part(EXTRACTOR), config.size("max_source_positions")
        extractor.expect("feature_size", 80, [config["num_mel_bins"]])
        for key, value in (("sampling_rate", RATE), ("padding_value", 0.0), ("dither", 0.0), ("do_normalize", False)):
            extractor.expect(key, value, [value])
        hop = extractor.size("hop_length")
        seconds = positions * STRIDE * hop / RATE
        frames = {
            "rate": RATE,
            "num_mels": config.size("num_mel_bins"),
            "window": extractor.size("n_fft") / RATE,
            "hop": hop / RATE,
            "stem": "convolutional",
            "stride": STRIDE,
            "normalized": False,
            "seconds": seconds,
        }
        extractor.expect("chunk_length", 30, [seconds])
        return {
            "model/embedding@model.source_embedding": "frames",
            **{f"audio_embedding.{key}": value for key, value in frames.items()},
            **{f"model.source_embedding.{key}": value for key, value in frames.items()},
            **self.plain_settings(config),
            "shape.max_length": config.size("max_target_positions"),
            "model.encoder.max_length": positions,
            **{f"model.decoder.{ours}": config.size(theirs) for ours, theirs in DECODER_SIZES.items()},
            "block.norm.eps": 1e-5,
            "block/residual": "pre_norm",
            "block.feed_forward.activation": config.activation("activation_function", "gelu"),
            "block.attention.k_bias": False,
            "block/position": "learned",
            "block/position@model.encoder.position": "learned",
            "model.encoder.position.trained": False,
            "block.scale_embedding": False,
            "block.tie_word_embeddings": config.get("tie_word_embeddings", True),
        }

    def config(self, model: Settings) -> dict[str, Any]:
        """See ``Family``. If input embeddings are scaled, a tied output is written as a separate one. The audio length
        is the number of encoder positions.

        Raises:
            ConfigError: the positions are not a whole number of seconds, as ``WhisperFeatureExtractor`` requires.
        """
        hop, positions = round(model["source_embedding.hop"] * RATE), model["encoder.max_length"]
        seconds, rest = divmod(positions * STRIDE * hop, RATE)
        if rest:
            raise ConfigError(
                f"model.encoder.max_length={positions}: {positions * STRIDE * hop / RATE:g} s of audio; "
                "WhisperFeatureExtractor requires whole seconds, and audio_embedding.seconds must be equal to them"
            )
        return {
            **{theirs: model[f"decoder.{ours}"] for ours, theirs in DECODER_SIZES.items()},
            "num_mel_bins": model["source_embedding.num_mels"],
            "max_source_positions": positions,
            "max_target_positions": model["decoder.max_length"],
            **self.plain_config(model),
            "activation_function": hf_activation(model, "encoder"),
            "scale_embedding": False,
            "tie_word_embeddings": model["tie_word_embeddings"] and not model["embedding.scale_embedding"],
            "begin_suppress_tokens": None,  # by default some of the published vocabulary
            EXTRACTOR: {
                "feature_extractor_type": "WhisperFeatureExtractor",
                "processor_class": "WhisperProcessor",
                "feature_size": model["source_embedding.num_mels"],
                "sampling_rate": RATE,
                "hop_length": hop,
                "n_fft": round(model["source_embedding.window"] * RATE),
                "chunk_length": seconds,
                "padding_side": "right",
                "padding_value": 0.0,
                "return_attention_mask": False,
            },
        }


def read_prompt(config: HFConfig) -> tuple[tuple[int, ...], str]:
    """The decoder prompt after the start token, as built by ``generate``: language, task and <|notimestamps|>, or
    ``forced_decoder_ids``.

    Args:
        config: the content of generation_config.json.

    Returns:
        The tokens, and the default language if none is given, otherwise an empty text.
    """
    language, task = config.get("language", None), config.get("task", None)
    languages, tasks = config.get("lang_to_id", None) or {}, config.get("task_to_id", None) or {}
    forced = [] if language or task else config.get("forced_decoder_ids", None) or []
    if [place for place, _ in forced] != list(range(1, len(forced) + 1)):
        raise ConfigError(f"{config.place}: forced_decoder_ids={forced}; expected one for each of 1, 2, 3, ...")
    tokens, taken = [token for _, token in forced], ""
    if language or (languages and tokens[:1] in ([], [None])):
        name = f"<|{language.strip('<|>').lower()}|>" if language else DETECTED
        taken = "" if language else name
        tokens[:1] = [_number(config, "lang_to_id", name, languages)]
    if task or (language and tasks):
        tokens.append(_number(config, "task_to_id", task or "transcribe", tasks))
    untimed = config.get("no_timestamps_token_id", None)
    if untimed is not None and tokens[-1:] != [untimed]:
        tokens.append(untimed)
    return tuple(token for token in tokens if token is not None), taken


def _number(config: HFConfig, key: str, name: str, numbers: Mapping[str, int]) -> int:
    if name not in numbers:
        raise ConfigError(f"{config.place}: {key} has no {name}; expected one of {', '.join(numbers) or 'none'}")
    return numbers[name]
