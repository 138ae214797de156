"""Faults 1 and 2: killed anywhere, a run ends with the weights of the run that was left alone."""

import os
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import tiny
from cases import by_day

pytestmark = pytest.mark.faults

EMA, BF16 = "callbacks=[default,ema]", "trainer.precision=bf16-mixed"
WORKERS, DROPOUT = "batch.num_workers=2", "block.dropout=0.1"
PACKED = "batch.packing=true"
BY_TOKENS = ["batch.global_size=null", "batch.max_tokens=300"]
HALVES = ["trainer.accumulate_grad_batches=2", "trainer.val_check_interval=14"]
CASES = {
    "translation_full": [*HALVES, DROPOUT, PACKED, "optimizer=muon"],
    "classification_encoder_only": [WORKERS, BF16, "optimizer=schedule_free_adamw"],
    "language_modeling_decoder_only": [EMA, DROPOUT, *BY_TOKENS],
    "transcription_prefix_lm": [DROPOUT, "audio_embedding.time_masks=2", "audio_embedding.mel_masks=1"],
}
OTHERS = {
    "translation_decoder_only": [WORKERS, *HALVES],
    "classification_full": [EMA, BF16, DROPOUT],
    "classification_decoder_only": [EMA, WORKERS, DROPOUT, *HALVES],
    "tagging_full": [DROPOUT, "optimizer=adafactor"],
    "tagging_encoder_only": [EMA, *HALVES],
    "tagging_decoder_only": [BF16, DROPOUT],
    "language_modeling_full": [WORKERS, EMA, BF16, DROPOUT],
    "denoising_full": [DROPOUT, *HALVES, "optimizer=sgd"],
    "denoising_encoder_only": [EMA, DROPOUT],
    "denoising_decoder_only": [WORKERS, BF16],
    "transcription_encoder_only": [WORKERS, EMA, "audio_embedding.stem=stacked"],
    "chat_decoder_only": [DROPOUT, PACKED],
    "captioning_full": [WORKERS, DROPOUT, *HALVES],
    "captioning_prefix_lm": [EMA, BF16, DROPOUT],
    "image_text_matching_encoder_only": [WORKERS, DROPOUT],
    "image_text_matching_decoder_only": [EMA, BF16, DROPOUT],
    "image_generation_encoder_only": [DROPOUT, *HALVES],
    "image_generation_decoder_only": [WORKERS, EMA, BF16, DROPOUT],
}
FULL = os.environ.get("TRIPTYCH_FAULTS") == "full"


@pytest.mark.parametrize("case", by_day({**CASES, **OTHERS} if FULL else CASES, [*CASES][1:3]))
def test_fault_1_killed_at_random_steps(
    case: str,
    tmp_path: Path,
    job: Callable[..., Any],
    run_of: Callable[[Path], Any],
    chance: random.Random,
    record_property: Callable[[str, object], None],
) -> None:
    overrides = [*tiny.dates(case), *{**CASES, **OTHERS}[case]]
    job = partial(job, without="data.languages" if case.startswith(("transcription", "captioning", "image")) else "-")
    undisturbed = job(tmp_path, *overrides, "run_dir=alone")
    assert undisturbed.wait() == 0, undisturbed.text
    alone, killed = run_of(tmp_path / "alone"), run_of(tmp_path / "killed")

    targets = sorted(chance.sample(range(1, 58), (12 if case in CASES else 3) if FULL else 2))
    for target in targets:
        started = job(tmp_path, *overrides, "run_dir=killed")
        assert started.until(lambda target=target: killed.newest >= target), started.text
        time.sleep(chance.uniform(0, 0.05))
        started.kill()
        started.wait()
    last = job(tmp_path, *overrides, "run_dir=killed")
    assert last.wait() == 0, last.text

    record_property("count", f"{case}: {len(targets)} kills")
    assert killed.summary["steps"] == 60
    assert killed.weights == alone.weights
    assert killed.series == alone.series
    assert killed.summary["metrics"] == alone.summary["metrics"]
    for count in ("train_tokens", "train_flops", "tokens_per_step"):
        assert killed.summary[count] == alone.summary[count]
    assert not list(killed.directory.rglob("*.tmp"))


def test_fault_2_resume_of_a_resume_across_epochs(
    tmp_path: Path, job: Callable[..., Any], run_of: Callable[[Path], Any]
) -> None:
    """20 updates are an epoch here."""
    overrides = ["experiment=dates/classification", "model=full", DROPOUT]
    alone = job(tmp_path, *overrides, "run_dir=alone")
    run = run_of(tmp_path / "run")
    for target in (20, 40):
        started = job(tmp_path, *overrides, "run_dir=run")
        assert started.until(lambda target=target: run.newest >= target), started.text
        started.kill()
        started.wait()
    last = job(tmp_path, *overrides, "run_dir=run")
    assert last.wait() == 0, last.text
    assert alone.wait() == 0, alone.text
    assert run.summary["steps"] == 60
    assert run.summary["train_tokens"] == run_of(tmp_path / "alone").summary["train_tokens"]
    assert run.weights == run_of(tmp_path / "alone").weights
    assert run.series == run_of(tmp_path / "alone").series
