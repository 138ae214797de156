"""Overrides that make a run as small as it can be: seconds, nearly all of them imports."""

import re

NETWORK = ["shape.d_model=16", "shape.num_heads=2", "shape.num_layers=1", "shape.d_ff=32"]
DATES = ["data.num_train=400", "data.num_validation=60", "data.num_test=60", "data.languages=[de,en,ja]"]
TINY = [*NETWORK, *DATES, "batch.global_size=20", "batch.eval_batch_size=32", "callbacks.progress.refresh_rate=0"]


def dates(name: str) -> list[str]:
    """A run of dates, of tones or of drawn digits, by the name of its record: translation_full."""
    question, architecture = re.findall("(.+)_(full|encoder_only|decoder_only|prefix_lm)", name)[0]
    others = {
        "transcription": "tones/transcription",
        "captioning": "captions/drawn",
        "image_text_matching": "matching/drawn",
        "image_generation": "generation/drawn",
    }
    towers = {"encoder_only": "dual_encoder", "decoder_only": "dual_decoder"}
    model = towers[architecture] if question == "image_text_matching" else architecture
    return [f"experiment={others.get(question, f'dates/{question}')}", f"model={model}"]
