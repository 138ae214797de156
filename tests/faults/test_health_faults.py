"""Faults 13 and 15, spikes and memory: what goes wrong inside a run."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from clock import check_within

pytestmark = pytest.mark.faults

CLASSIFICATION = "experiment=dates/classification"
EXPLODES = ["optimizer.lr=1e30", "trainer.gradient_clip_val=null", "scheduler.warmup_steps=0"]


def all_finite(checkpoint: Path) -> bool:
    content = torch.load(checkpoint, weights_only=True)
    return all(tensor.isfinite().all() for tensor in content["state_dict"].values() if tensor.is_floating_point())


def test_fault_13_a_loss_that_is_not_finite(
    tmp_path: Path, job: Callable[..., Any], run_of: Callable[[Path], Any]
) -> None:
    overrides = [CLASSIFICATION, "trainer.val_check_interval=1", "callbacks.checkpoints.every_n_steps=1"]
    started, run = job(tmp_path, *overrides, *EXPLODES, "run_dir=run"), run_of(tmp_path / "run")
    assert started.wait() == 1, started.text
    assert f"step {run.newest + 1}: the loss is" in started.text  # within the step in which it came
    assert "Examples: '" in started.text
    assert "resume in another run_dir with resume=run and optimizer.lr below 1e+30" in started.text
    assert "Traceback" not in started.text
    saved = list((run.directory / "checkpoints").glob("*.ckpt"))
    assert {"last.ckpt"} <= {file.name for file in saved}
    assert all(map(all_finite, saved))


def test_fault_13_or_the_step_is_skipped_and_counted(
    tmp_path: Path, job: Callable[..., Any], run_of: Callable[[Path], Any]
) -> None:
    started = job(tmp_path, CLASSIFICATION, *EXPLODES, "on_nonfinite=skip", "trainer.max_steps=9", "run_dir=run")
    assert started.wait() == 0, started.text
    run = run_of(tmp_path / "run")
    assert run.summary["steps"] == 9
    assert run.summary["skipped_steps"] > 0
    assert all_finite(run.directory / "checkpoints" / "last.ckpt")


def test_fault_15_two_jobs_in_one_run_directory(
    tmp_path: Path,
    job: Callable[..., Any],
    run_of: Callable[[Path], Any],
    record_property: Callable[[str, object], None],
) -> None:
    overrides = [CLASSIFICATION, "run_dir=run", "trainer.max_steps=100000"]
    first, run = job(tmp_path, *overrides), run_of(tmp_path / "run")
    assert first.until(lambda: run.newest >= 5), first.text
    began = time.monotonic()
    second = job(tmp_path, *overrides)
    assert second.wait() == 1, second.text
    seconds = time.monotonic() - began
    record_property("count", f"{seconds:.1f} s")
    assert "run_dir=run: another job" in second.text
    assert "Traceback" not in second.text
    before = run.newest
    assert first.until(lambda: run.newest > before)
    first.kill()
    first.wait()
    third = job(tmp_path, *overrides)  # the lock died with its holder
    assert third.until(lambda: "resuming from" in third.text), third.text
    check_within(5, seconds)


def test_a_spike_names_its_examples(tmp_path: Path, job: Callable[..., Any]) -> None:
    """One of 400 texts has the wrong label, which shows once all others are learned."""
    lines = [{"text": "aaaa" if n % 2 else "bbbb", "label": "odd" if n % 2 else "even"} for n in range(400)]
    lines[136]["label"] = "odd"
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    own = [f"data.dir={tmp_path}", "data.train=data.jsonl", "data.validation=data.jsonl", "data.test=data.jsonl"]
    started = job(
        tmp_path, "task=classification", "model=encoder_only", "data=labelled_text", *own, "batch.global_size=2",
        "trainer.max_steps=400", "optimizer.lr=0.01", "trainer.val_check_interval=400", "run_dir=run",
        without="data.",
    )  # fmt: skip
    assert started.wait() == 0, started.text
    spikes = [line for line in started.text.splitlines() if "the loss rose to" in line]
    assert spikes, started.text
    assert all("data.jsonl, line 137" in line for line in spikes), started.text


@pytest.mark.parametrize(
    ("sizes", "advice"),
    [
        (["batch.global_size=400"], "raise trainer.accumulate_grad_batches=1 "),
        (
            ["trainer.val_check_interval=1", "batch.global_size=1", "data.num_validation=400"],
            "lower batch.eval_batch_size=400",
        ),
    ],
    ids=["training", "validation"],
)
def test_out_of_memory_says_which_setting_to_lower(
    sizes: list[str], advice: str, tmp_path: Path, job: Callable[..., Any]
) -> None:
    wide = ["shape.d_ff=500000", "batch.eval_batch_size=400", "run_dir=run"]
    started = job(tmp_path, CLASSIFICATION, *wide, *sizes, memory=12 * 2**30)
    assert started.wait() == 1, started.text
    assert "error: out of memory after" in started.text
    assert advice in started.text
    assert "Traceback" not in started.text
