"""Faults 1 and 2: killed anywhere, a run ends with the weights of the run that was left alone."""

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.faults

CASES = {
    "full": [
        "experiment=dates/translation_full",
        "trainer.accumulate_grad_batches=2",
        "trainer.val_check_interval=14",
        "block.dropout=0.1",
    ],
    "encoder_only": [
        "experiment=dates/classification_encoder_only",
        "batch.num_workers=2",
        "trainer.precision=bf16-mixed",
    ],
    "decoder_only": ["experiment=dates/language_modeling_decoder_only", "callbacks=[default,ema]", "block.dropout=0.1"],
}


@pytest.mark.parametrize("case", CASES)
def test_fault_1_killed_at_random_steps(
    case: str,
    tmp_path: Path,
    job: Callable[..., Any],
    run_of: Callable[[Path], Any],
    full: bool,
    chance: random.Random,
    record_property: Callable[[str, object], None],
) -> None:
    undisturbed = job(tmp_path, *CASES[case], "run_dir=alone")
    assert undisturbed.wait() == 0, undisturbed.text
    alone, killed = run_of(tmp_path / "alone"), run_of(tmp_path / "killed")

    targets = sorted(chance.sample(range(1, 58), 12 if full else 2))
    for target in targets:
        started = job(tmp_path, *CASES[case], "run_dir=killed")
        assert started.until(lambda target=target: killed.newest >= target), started.text
        time.sleep(chance.uniform(0, 0.05))
        started.kill()
        started.wait()
    last = job(tmp_path, *CASES[case], "run_dir=killed")
    assert last.wait() == 0, last.text

    record_property("count", f"{len(targets)} kills")
    assert killed.summary["updates"] == 60
    assert killed.weights == alone.weights
    assert killed.series == alone.series
    assert killed.summary["metrics"] == alone.summary["metrics"]
    for count in ("train_tokens", "train_flops", "tokens_per_update"):
        assert killed.summary[count] == alone.summary[count]
    assert not list(killed.directory.rglob("*.tmp"))
