"""Reads and writes generation_config.json, the decoding settings of a published model."""
# Takes a DictConfig: creates a configuration, or reads one to change it.

import logging
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from triptych.config import ConfigError
from triptych.data import SpecialTokens
from triptych.interop.families.family import HFConfig
from triptych.interop.families.whisper import PROMPTING, TIMING, read_prompt
from triptych.interop.tensors import read_json_object
from triptych.models.generation import LogitsProcessors
from triptych.tasks import GenerativeTask

log = logging.getLogger("triptych")

FILE = "generation_config.json"

SEARCH = ("max_new_tokens", "num_beams", "length_penalty", "early_stopping")
"""Settings of a task that have the same name in generation_config.json."""

LENGTHS = {"max_length": 0, "min_length": 0}
"""Lengths of prompt and new tokens together; 0: no limit."""

FREE = asdict(LogitsProcessors())

TAKEN = {*SEARCH, *LENGTHS, *FREE, "decoder_start_token_id"}

SAMPLING = {"temperature": 1.0, "top_k": 50, "top_p": 1.0, "min_p": None, "typical_p": 1.0, "top_h": None}
SAMPLING |= {"epsilon_cutoff": 0.0, "eta_cutoff": 0.0}
"""Settings that only apply if do_sample is true, with their neutral values."""

NEUTRAL: dict[str, Any] = {
    "diversity_penalty": 0.0,
    "do_sample": False,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "guidance_scale": 1.0,
    "num_beam_groups": 1,
    "num_return_sequences": 1,
    "return_timestamps": False,
    "token_healing": False,
    **dict.fromkeys(("exponential_decay_length_penalty", "force_words_ids", "forced_decoder_ids", "logits_processors")),
    **dict.fromkeys(("max_time", "penalty_alpha", "sequence_bias", "stop_strings", "watermarking_config")),
}
"""Unsupported settings, with their neutral values (null and these)."""

IDLE = {
    *("bos_token_id", "pad_token_id", "transformers_version", "use_cache", "cache_implementation", "cache_config"),
    *("max_cache_len", "output_attentions", "output_hidden_states", "output_logits", "output_scores"),
    *("return_dict_in_generate", "remove_invalid_values", "low_memory", "is_assistant"),
    *("prompt_lookup_num_tokens", "num_assistant_tokens", "num_assistant_tokens_schedule", "compile_config"),
    *("assistant_confidence_threshold", "assistant_early_exit", "assistant_lookbehind", "target_lookbehind"),
    *("disable_compile", "prefill_chunk_size", "max_matching_ngram_size"),
    *TIMING,
}
"""Settings that do not affect the text: speed, and additional outputs."""


def read_generation(
    folder: Path, task: DictConfig, special: SpecialTokens, *, room: int, is_full: bool, is_whisper: bool
) -> SpecialTokens:
    """Copies the decoding settings of a folder to a generative task: generation_config.json, or config.json in older
    folders. Unsupported settings with an effect are listed.

    Args:
        folder: with one of these files.
        task: the node to fill in.
        special: special tokens of the folder's tokenizer.
        room: the network's maximum number of positions.
        is_full: whether there is an encoder; the decoder prompt is then one token, except for Whisper.
        is_whisper: whether it is Whisper, whose prompt is in the file.

    Returns:
        The special tokens, with this prompt.

    Raises:
        ConfigError: the file contradicts the tokenizer, or has invalid settings.
    """
    path = folder / FILE if (folder / FILE).is_file() else folder / "config.json"
    content = read_json_object(path)
    values = {name: value for name, value in content.items() if value is not None and not name.startswith("_")}
    ends = values.get("eos_token_id", special.eos)
    ends = ends if isinstance(ends, list) else [ends]
    starts = [values.get("decoder_start_token_id", special.start) if is_full else special.start]
    for name, given, ours in (("eos_token_id", ends, special.eos), ("decoder_start_token_id", starts, special.start)):
        if ours not in given:
            raise ConfigError(f"{path}: {name}={values[name]}, but the tokenizer and config.json have {ours}")
    rules = {name: values[name] for name in FREE if name in values}
    rules["eos_token_id"] = ends if len(ends) > 1 else []
    idle = IDLE if values.get("do_sample") else IDLE | SAMPLING.keys()
    neutral = NEUTRAL | SAMPLING
    prompt, taken = read_prompt(HFConfig(values, str(path))) if is_whisper else ((), "")
    if taken:
        log.warning('%s: no language is set; using %s (set another with "language": "...")', path, taken)
    idle = idle | PROMPTING if is_whisper else idle
    names = {*values} - TAKEN - idle if path.name == FILE else {*values} & neutral.keys() - idle
    left_out = {name for name in names if values[name] != neutral.get(name)}
    longest, fewest = (_count(path, name, values.get(name, default)) for name, default in LENGTHS.items())
    if is_full:  # their limit includes the prompt, which is one token; Whisper's is not included
        if longest:
            values = {"max_new_tokens": longest - (0 if is_whisper else 1)} | values
        rules = {"min_new_tokens": max(fewest - 1 - len(prompt), 0)} | rules
    else:  # the prompt may have any length
        left_out |= {name for name, acts in (("max_length", 0 < longest < room), ("min_length", fewest > 0)) if acts}
    for name in SEARCH:
        if name in task:
            task[name] = values.get(name, task[name])
        elif name == "num_beams" and values.get(name, 1) != 1:
            left_out.add(name)
    if left_out:
        said = ", ".join(f"{name}={values[name]}" for name in sorted(left_out))
        log.warning("%s: ignored settings, so outputs may differ from those of transformers: %s", path, said)
    if any(value != rule for value, rule in zip(rules.values(), map(FREE.get, rules), strict=True)):
        task.logits_processors = {"_target_": "triptych.models.generation.LogitsProcessors", **rules}
    return replace(special, target_begin=prompt) if is_whisper else special


def _count(path: Path, name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ConfigError(f"{path}: {name}={value!r}; expected a whole number of at least 0")
    return value


def generation_settings(task: GenerativeTask) -> dict[str, Any]:
    """Decoding settings of the task, by their names in ``transformers``. A decoder-only model has only a
    max_length, its number of positions, because ``transformers`` does not combine it with max_new_tokens."""
    limit = {"max_new_tokens": task.max_new_tokens}
    prompt = task.tokenizer.special.target_begin if task.audio is not None else ()
    if task.network.max_positions is not None:
        most = min(task.max_new_tokens, task.network.max_positions - 1 - len(prompt))
        limit = {"max_new_tokens": most} if task.architecture == "full" else {"max_length": task.network.max_positions}
    rules = asdict(task.logits_processors or LogitsProcessors())
    if task.end != (eos := task.tokenizer.special.eos) and not rules["eos_token_id"]:
        rules["eos_token_id"] = [eos, task.end]
    return {
        **limit,
        "num_beams": task.search.num_beams,
        "length_penalty": task.search.length_penalty,
        "early_stopping": task.search.early_stopping,
        "do_sample": False,
        **({"forced_decoder_ids": list(enumerate(prompt, 1))} if prompt else {}),
        **{name: value for name, value in rules.items() if value != FREE[name]},
    }
