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
from pages import rows, write_page

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
    "T5": ("T5For", "t5/style, /small, /base, /large, /3b, /11b; t5/v1_1-style, -small, -base, -large, -xl, -xxl"),
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


def row(family: str, cases: list[Case]) -> list[str]:
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
    return [
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


def sizes() -> list[list[str]]:
    """The published sizes with the numbers of parameters that ours and transformers' models have on the meta device."""
    published, found = loaded(TESTS / "config" / "test_families.py"), []
    for model in track(published.PUBLISHED, "parameters"):
        header = (TESTS.parent / "conf" / "model" / f"{model}.yaml").read_text().splitlines()[1]
        source = re.search(r"\(([^()]*\d{4}[^()]*)\)", header)
        counts = published.counted(model)
        found.append([f"`{model}`", source[1] if source else "", *(f"{count:,}" for count in counts)])
    return found


def main(output: Path) -> None:
    """Measures everything and writes the page."""
    torch.set_num_threads(1)
    modules = [loaded(path) for path in sorted((TESTS / "interop").glob("test_*.py"))]
    cases = [case for module in modules for case in getattr(module, "CASES", [])]
    measured = [row(family, [c for c in cases if c.name.startswith(start)]) for family, (start, _) in FAMILIES.items()]
    choices = [(family, names) for family, (_, names) in FAMILIES.items()]
    write_page(output, "families_page", rows=rows(measured), choices=rows(choices), sizes=rows(sizes()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
