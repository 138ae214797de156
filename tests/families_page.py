"""Writes docs/families.md: measurements of each published family, by the same code as the tests.

Run by `make families`.
"""

import importlib.util
import re
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import torch
from rich.progress import track

from oracle import Case, cached_distance, decoded_alike, measure

TESTS = Path(__file__).parent
FAMILIES = {
    "BERT": ("Bert", "bert/style, /tiny, /mini, /small, /medium, /base, /large"),
    "RoBERTa": ("Roberta", "roberta/style, /base, /large"),
    "ViT": ("ViT", "vit/style, /ti-16, /s-16, /b-16, /b-32, /l-16, /h-14"),
    "CLIP": ("CLIPModel", "clip/style, /vit-b-32, /vit-b-16, /vit-l-14"),
    "GPT-2": ("GPT2", "gpt2/style, /small, /medium, /large, /xl"),
    "GPT-3 (as GPT-Neo)": ("GPTNeoFor", "gpt3/style, /125m, /350m, /760m, /1.3b, /2.7b, /6.7b, /13b, /175b"),
    "LLaMA": ("Llama", "llama/style, /7b, /13b, /33b, /65b, /2-70b; llama/3.1-style, /3.1-8b, /3.1-70b, /3.2-1b"),
    "Qwen 3": ("Qwen3", "qwen3/style, /0.6b, /1.7b, /4b, /8b"),
    "OLMo 2": ("Olmo2", "olmo2/style, /1b, /7b, /13b"),
    "GPT-NeoX (Pythia)": ("GPTNeoXFor", "pythia/style, /70m, /160m, /410m, /1b, /1.4b, /2.8b, /6.9b, /12b"),
    "ModernBERT, Ettin's encoders": (
        "ModernBertFor",
        "modernbert/style, /base, /large; /ettin-17m, -32m, -68m, -150m, -400m, -1b",
    ),
    "its decoder, Ettin's decoders": (
        "ModernBertDecoder",
        "modernbert_decoder/style; /ettin-17m, -32m, -68m, -150m, -400m, -1b",
    ),
    "Longformer": ("Longformer", "longformer/style, /base, /large"),
    "T5": (
        "T5For",
        "t5/style, /small, /base, /large, /3b, /11b; t5/v1_1-style, -small, -base, -large, -xl, -xxl",
    ),
    "T5Gemma": ("T5Gemma", "t5gemma/style, /s-s, /b-b, /l-l, /xl-xl, /2b-2b, /9b-9b"),
    "BART": ("Bart", "bart/style, /base, /large"),
    "MarianMT, the original": ("Marian", "marian/style, /opus-mt; transformer/style, /base, /big"),
    "PEGASUS": ("Pegasus", "full (Triptych's own default)"),
    "Whisper": ("Whisper", "whisper/style, /tiny, /base, /small, /medium, /large, /large-v3, /large-v3-turbo"),
}
"""By family: how the classes of ``transformers`` begin, and the choices of ``model=``."""


def loaded(path: Path) -> ModuleType:
    """A module of tests."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def row(family: str, cases: list[Case]) -> str:
    """What is measured of a family, as a row of the table."""
    found, alike, cached = [], {1: list[bool](), 5: list[bool]()}, [0.0]
    for case in track(cases, family):
        with tempfile.TemporaryDirectory() as folder:
            found.append(measure(case, Path(folder)))
        if not case.generates:
            continue
        for num_beams, results in alike.items():
            results.append(decoded_alike(case, num_beams=num_beams))
        cached.append(cached_distance(case))
    writes = any(case.generates for case in cases)
    decoding = [f"{sum(results)} of {len(results)}" if writes else "" for results in alike.values()]
    cells = [
        family,
        str(len(cases)),
        f"{sum(m.has_equal_size for m in found)} of {len(found)}",
        f"{max(m.imported for m in found):.1e}",
        f"{max(m.exported for m in found):.1e}",
        f"{max(m.loss for m in found):.1e}",
        *decoding,
        f"{max(cached):.1e}" if writes else "",
        f"{sum(m.is_round_trip_equal for m in found)} of {len(found)}",
    ]
    return f"| {' | '.join(cells)} |"


def sizes() -> list[str]:
    """The published sizes with the numbers of parameters that ours and transformers' models have on the meta device."""
    published, rows = loaded(TESTS / "test_families.py"), []
    for model in track(published.PUBLISHED, "parameters"):
        header = (TESTS.parent / "conf" / "model" / f"{model}.yaml").read_text().splitlines()[1]
        source = re.search(r"\(([^()]*\d{4}[^()]*)\)", header)
        vocab_size, found, expected = published.counted(model)
        rows.append(f"| `{model}` | {source[1] if source else ''} | {vocab_size:,} | {found:,} | {expected:,} |")
    return rows


def main(output: Path) -> None:
    """Measures everything and writes the page."""
    torch.set_num_threads(1)
    modules = [loaded(path) for path in sorted((TESTS / "interop").glob("test_*.py"))]
    cases = [case for module in modules for case in getattr(module, "CASES", [])]
    rows = [row(family, [c for c in cases if c.name.startswith(start)]) for family, (start, _) in FAMILIES.items()]
    choices = [f"| {family} | {names} |" for family, (_, names) in FAMILIES.items()]
    page = TEMPLATE.format(rows="\n".join(rows), choices="\n".join(choices), sizes="\n".join(sizes()))
    output.write_text(page, encoding="utf-8")


TEMPLATE = """\
# The published families

Written by `make families`, which measures every number on this page.

| family | `model=` |
|---|---|
{choices}

A `style` is the family at any size (`model=bert/style shape=tiny`); the others are the published sizes.

## Against `transformers`

The table compares small models with random weights and odd sizes. `transformers` creates each model; Triptych imports
it, exports it and imports it again.

- logits: the largest difference at any non-padding position (for CLIP, of any text and image), divided by max(1, the
  largest logit), in float32. Inputs have no padding or right padding, and left padding if the model supports it.
- loss: the relative difference.
- greedy, beams: models whose greedy and beam search (5 beams) generate exactly the tokens of `generate`, in float64.
- cached: Triptych's decoding in uneven chunks compared with one forward pass, in float64.
- round trip: models that are bitwise equal after export and import.

| family | models | same size | logits, import | logits, export | loss | greedy | beams | cached | round trip |
|---|---|---|---|---|---|---|---|---|---|
{rows}

## Not supported, or left out

- BERT's next-sentence prediction: an import leaves out this layer of `BertForPreTraining`, and reports it. No task uses
  it, and RoBERTa (Liu et al. 2019, section 4.2) found that it does not help.
- Heads for other tasks (multiple choice, regression), and question-answering heads except those of BERT, RoBERTa and
  ModernBERT, are not supported. `--task TASK --new-head` imports the model without its head.
- LLaMA with biases in only one of attention and feed-forward layers (`attention_bias`, `mlp_bias`) is not supported:
  `block.bias` sets both. Meta's models have neither.
- LLaMA with dynamic, yarn or longrope scaling of rotary positions is not supported: there, the frequencies depend on
  the text length, or the attention scale changes. Linear and llama3 scaling are supported.
- Qwen 3, OLMo 2 and GPT-NeoX with another `attention_bias` than the published models (false, false, true) are not
  supported, since it sets biases in attention only. For ModernBERT, see LLaMA.
- ModernBERT with scaled rotary positions in its sliding-window layers, and Qwen 3's mixtures of experts (`qwen3_moe`),
  are not supported.
- Longformer's first token is global in every task (`block/attention=longformer`). In `transformers` this is the default
  for classification only; set `global_attention_mask` elsewhere. Longformer for question answering is not supported,
  because all tokens of the question are global there. `transformers` supports only windows that divide the largest one.
- T5Gemma is supported only if encoder and decoder have equal widths (not 9B-2B) and differ only in depth, heads,
  feed-forward width and attention. Its norms multiply by 1 + w, Triptych's by w: an import adds the 1, an export
  subtracts it. Import and export preserve the function bitwise. If a weight was trained in Triptych to less than 0.5,
  an export may round its last bit. In `transformers` 5, the encoder's windows extend one position further on both sides
  than the decoder's `sliding_window`. Imports do the same; `model=t5gemma/style` has equal windows on both sides. The
  classifier is not supported: it uses another position in padded texts than in unpadded ones.
- MarianMT with two vocabularies (`share_encoder_decoder_embeddings=false`) is not supported, since Triptych has one
  embedding table.
- ViT with the parameter names that `transformers` 5 uses in memory (`vit.layers.N.attention.q_proj`) is not supported.
  Published files and `save_pretrained` use others (`vit.encoder.layer.N.attention.attention.query`).
- CLIP is not supported if its processor changes images that already have the network's size (`size`, `crop_size`), or
  does not divide bytes by 255. Triptych stretches other images to that size (`data.size`), where `CLIPImageProcessor`
  crops the middle. Also not supported: scales above 100 (the limit in training), an `eos_token_id` that ends no text,
  `vocab.json` and `merges.txt` without `tokenizer.json`, and CLIP's other classes. `CLIPModel` treats an `eos_token_id`
  of 2 as an error of the first published files, and uses the token with the highest id instead. If token 2 ends texts,
  as with Triptych's own tokenizers, an export therefore gives it another id.
- Whisper's input is limited to 30 s: `triptych predict` reports longer audio as an error, and training truncates it,
  drops it or stops. The language is not detected: if `generation_config.json` sets none, it is `<|en|>`, with a warning
  (`"language": "de"` in that file selects German). An import leaves out `return_timestamps`, and reports it. Only
  16,000 Hz is supported, since `WhisperFeatureExtractor` uses the filters of that rate at any rate. Whisper's audio
  classifier, and exports with input lengths that are not whole seconds, are not supported. Its keys have no bias; a
  bias of keys does not change the softmax, so an export leaves out Triptych's. `transformers` computes features in
  float32: for tones in noise they differed by up to 2.4e-5.
- Pickles (`*.bin`), which can run code, and quantized weights are not supported. Code in a folder (`auto_map`) is never
  run.
- A tokenizer whose padding or end token differs from `config.json` is an error: a classifier, for example, would look
  for the end of a text at another token.

These settings of `generation_config.json` (in old folders, of `config.json`) have the same effect, token for token, as
in `generate`, and are exported again:

- `max_new_tokens`, `no_repeat_ngram_size`, `repetition_penalty`, `bad_words_ids`, `min_new_tokens`,
  `renormalize_logits`, `forced_bos_token_id`, `forced_eos_token_id`, `suppress_tokens`, `begin_suppress_tokens`,
  several `eos_token_id`
- full models: `max_length`, `min_length`
- translation and transcription: `num_beams`, `length_penalty`, `early_stopping`
- Whisper: `language`, `task` and `forced_decoder_ids`; an export writes the latter instead of the others

An import lists all other settings that have an effect. Examples are `do_sample`, and `num_beams` of language models:
`triptych predict` has its own options for sampling and beam search (`temperature=0.7`, `num_beams=5`).

## Parameters

Trainable parameters with the published vocabulary, counted on the meta device, and those of the `transformers` model of
the same published size.

| `model=` | source | vocabulary | Triptych | `transformers` |
|---|---|---|---|---|
{sizes}
"""

if __name__ == "__main__":
    main(Path(sys.argv[1]))
