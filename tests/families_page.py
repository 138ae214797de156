"""Writes docs/families.md: what each published family has been measured to be, by the same code as the tests.

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

Written by `make families`, which measures all of this anew.

| family | `model=` |
|---|---|
{choices}

A `style` is the family at any size (`model=bert/style shape=tiny`); the others are the published sizes.

## Against `transformers`

Small models of random weights and odd sizes, made by `transformers`, imported, exported and imported again. Differences
are the largest of any logit at a real position (of CLIP, of any text and image) over max(1, the largest logit), in
float32, over inputs without padding and padded on the right (and on the left, where that means something); of the loss
they are relative. Greedy and beam search (5 beams) must find the very tokens of `generate`, in float64. Cached:
decoding in uneven chunks against one pass, in float64, ours against ours. Round trip: export, then import, bitwise.

| family | models | same size | logits, import | logits, export | loss | greedy | beams | cached | round trip |
|---|---|---|---|---|---|---|---|---|---|
{rows}

## What is refused, or left out

- BERT's next-sentence prediction: the layer of `BertForPreTraining` is left out, and named. No task here asks it, and
  RoBERTa (Liu et al. 2019, section 4.2) found that it does not help.
- Heads for what is no task here (multiple choice, regression), and those for question answering of all but BERT,
  RoBERTa and ModernBERT: refused. `--task TASK --new-head` reads the body.
- LLaMA whose attention has biases and whose feed-forward layers have none, or the other way round (`attention_bias`,
  `mlp_bias`): refused. `block.bias` is both, and Meta's have neither.
- LLaMA with rotary positions scaled as dynamic, yarn or longrope: refused. There the frequencies depend on the length
  of the text, or the scale of the attention changes; linear and llama3 are read.
- Qwen 3, OLMo 2 and GPT-NeoX with `attention_bias` other than in the published models (false, false, true): refused,
  since it is of attention alone; ModernBERT as LLaMA.
- ModernBERT whose layers with a window have scaled rotations, and Qwen 3's mixtures of experts (`qwen3_moe`): refused.
- Longformer has the first token global in every task, as `block/attention=longformer` has it; in `transformers` that is
  so by itself in classification alone, and `global_attention_mask` says it elsewhere. For question answering, where all
  of the question is global, however long, it is not read. `transformers` runs only windows that divide the largest.
- T5Gemma whose encoder is wider than its decoder (9B-2B) or differs in more than depth, heads, feed-forward width and
  attention: refused. Its norms multiply by 1 + w, ours by w: an import adds the 1, an export takes it off. What was
  imported comes back to the same function, bit for bit; of a weight that was trained here to less than 0.5 the last bit
  may be rounded. In `transformers` 5 the windows of its encoder reach one position further, to both sides, than
  `sliding_window` says of the decoder: a folder is read like that, and `model=t5gemma/style` has the same window on
  both sides. Its classifier, which reads another position of a padded text than of one without padding, is refused.
- MarianMT with two vocabularies (`share_encoder_decoder_embeddings=false`): refused. There is one table of tokens
  here.
- ViT by the names that it has in the memory of `transformers` 5 (`vit.layers.N.attention.q_proj`): refused. Published
  files have others (`vit.encoder.layer.N.attention.attention.query`), as have those that `save_pretrained` writes.
- CLIP whose processor would change an image of just the size that the network reads (`size`, `crop_size`), or does not
  divide bytes by 255: refused. Images of another size are stretched to it (`data.size`), where `CLIPImageProcessor`
  crops the middle. Refused are scales above 100, beyond which no training here goes, an `eos_token_id` that no text
  ends with, `vocab.json` and `merges.txt` without `tokenizer.json`, and CLIP's other classes. `CLIPModel` takes an
  `eos_token_id` of 2 for the mistake of its first files, and looks for the largest token: of a network whose texts end
  with token 2, as those of Triptych's own tokenizers do, an export gives that token another number.
- Whisper hears 30 s at once: `triptych predict` refuses a longer sound, and a training refuses, cuts or drops it. No
  language is detected: where `generation_config.json` names none, `<|en|>` is taken, which a warning says
  (`"language": "de"` in that file is another). `return_timestamps` is left out, and named. Another rate than 16,000 Hz
  is refused, for `WhisperFeatureExtractor` has the filters of that rate at any other; so are its classifier of sounds,
  and an export whose sounds are no whole seconds. Its keys have no bias, which softmax would not see: an export leaves
  ours out. Frames are computed in float32 there: of tones in noise they were up to 2.4e-5 apart.
- Pickles (`*.bin`), which can run code, and quantised weights: refused. Code of a folder (`auto_map`) is never run.
- A tokenizer that fills up or ends texts with another token than `config.json` says: refused. Whatever looks for that
  token, a classifier for instance, would find the end of a text elsewhere.

Of `generation_config.json` (in old folders of `config.json`) these are obeyed, token for token as by `generate`, and
exported again: `max_new_tokens`, `no_repeat_ngram_size`, `repetition_penalty`, `bad_words_ids`, `min_new_tokens`,
`renormalize_logits`, `forced_bos_token_id`, `forced_eos_token_id`, `suppress_tokens`, `begin_suppress_tokens`, several
`eos_token_id`; of full models `max_length` and `min_length`; of translation and transcription `num_beams`,
`length_penalty` and `early_stopping`; of Whisper `language`, `task` and `forced_decoder_ids`, which an export writes in
place of the others. Others that act are named when the folder is read. `do_sample` is one of them, and so is
`num_beams` of language models: `triptych predict` samples and searches when it is asked to (`temperature=0.7`,
`num_beams=5`).

## Parameters

Trainable ones, with the published vocabulary, counted on the meta device; beside them those of the models of
`transformers` of the same published sizes.

| `model=` | source | vocabulary | ours | `transformers` |
|---|---|---|---|---|
{sizes}
"""

if __name__ == "__main__":
    main(Path(sys.argv[1]))
