"""Fault 3, and its relatives: a run that is asked to end loses nothing, wherever it is."""

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from clock import check_within

pytestmark = pytest.mark.faults

CLASSIFICATION = "experiment=dates/classification"
STATUS = {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGUSR1: 138, signal.SIGHUP: 129}


@pytest.mark.parametrize("signum", STATUS, ids=lambda s: s.name)
def test_fault_3_asked_to_stop(
    signum: signal.Signals,
    tmp_path: Path,
    job: Callable[..., Any],
    run_of: Callable[[Path], Any],
    record_property: Callable[[str, object], None],
) -> None:
    """The whole process group gets the signal, as from a terminal or a scheduler, data workers too."""
    overrides = [CLASSIFICATION, "batch.num_workers=2", "run_dir=run", "trainer.max_steps=100000"]
    started, run = job(tmp_path, *overrides), run_of(tmp_path / "run")
    assert started.until(lambda: run.newest >= 10), started.text
    started.kill(signum)
    asked = time.time()
    assert started.wait(60) == STATUS[signum], started.text
    saved = (run.directory / "checkpoints" / f"step-{run.newest:08d}.ckpt").stat().st_mtime - asked
    record_property(
        "count", f"{signum.name}: saved after {max(saved, 0):.2f} s, ended after {time.time() - asked:.1f} s"
    )
    assert f"stopped by {signum.name} at step {run.newest}. Run the same command again to resume." in started.text
    assert "Traceback" not in started.text
    assert not (run.directory / "summary.json").exists()
    assert max(int(row["step"]) for row in run.series) < run.newest
    check_within(5, saved)


@pytest.mark.fault(3)
def test_a_run_whose_directory_has_the_time_in_its_name_says_which_it_was(
    tmp_path: Path, job: Callable[..., Any], run_of: Callable[[Path], Any]
) -> None:
    started = job(tmp_path, CLASSIFICATION, "trainer.max_steps=100000")
    assert started.until(lambda: [*tmp_path.rglob("step-*.ckpt")]), started.text
    started.kill(signal.SIGTERM)
    assert started.wait(60) == 143, started.text
    (folder,) = {path.parents[1].relative_to(tmp_path) for path in tmp_path.rglob("step-*.ckpt")}
    assert f". Run the same command with run_dir={folder} to resume." in started.text


@pytest.mark.fault(3)
def test_the_end_is_the_same(
    tmp_path: Path, job: Callable[..., Any], run_of: Callable[[Path], Any], chance: random.Random
) -> None:
    """Asked to end again and again, most often during a validation, with a moving average of the weights."""
    overrides = [CLASSIFICATION, "callbacks=[default,ema]", "data.num_validation=1000", "batch.eval_batch_size=4",
                 "trainer.max_steps=14", "trainer.val_check_interval=2", "block.dropout=0.1"]  # fmt: skip
    alone = job(tmp_path, *overrides, "run_dir=alone")
    run, in_validation = run_of(tmp_path / "run"), []
    for _ in range(3):
        started, before = job(tmp_path, *overrides, "run_dir=run"), run.newest
        assert started.until(lambda started=started: "run directory" in started.text), started.text
        time.sleep(chance.uniform(1.0, 2.0))
        if started.process.poll() is None:
            started.kill(signal.SIGTERM)
        is_asked = started.wait(60) == 143
        assert is_asked or (run.directory / "summary.json").exists(), started.text
        assert run.newest >= before
        newest = run.directory / "checkpoints" / f"step-{run.newest:08d}.ckpt"
        state = torch.load(newest, weights_only=True)["callbacks"]["CheckpointSaver"]
        in_validation.append(state["pending_validation"])
    last = job(tmp_path, *overrides, "run_dir=run")
    assert last.wait() == 0, last.text
    assert alone.wait() == 0, alone.text
    undisturbed = run_of(tmp_path / "alone")
    assert run.weights == undisturbed.weights
    assert run.series == undisturbed.series
    assert any(in_validation)


@pytest.mark.fault(1)
def test_killed_between_the_last_step_and_the_record(
    tmp_path: Path, job: Callable[..., Any], run_of: Callable[[Path], Any]
) -> None:
    """What is tested then must be the moving average, as it would have been."""
    overrides = [CLASSIFICATION, "callbacks=[default,ema]", "data.num_test=2000", "batch.eval_batch_size=4"]
    alone = job(tmp_path, *overrides, "run_dir=alone")
    started, run = job(tmp_path, *overrides, "run_dir=run"), run_of(tmp_path / "run")
    assert started.until(lambda: run.newest == 60), started.text
    time.sleep(0.1)
    started.kill()
    started.wait()
    assert not (run.directory / "summary.json").exists()
    again = job(tmp_path, *overrides, "run_dir=run")
    assert again.wait() == 0, again.text
    assert alone.wait() == 0, alone.text
    undisturbed = run_of(tmp_path / "alone")
    assert run.weights == undisturbed.weights
    assert run.series == undisturbed.series


@pytest.mark.fault(1)
def test_early_stopping_stays_stopped(tmp_path: Path, job: Callable[..., Any], run_of: Callable[[Path], Any]) -> None:
    overrides = [CLASSIFICATION, "callbacks=[default,early_stopping]", "callbacks.early_stopping.patience=1",
                 "+callbacks.early_stopping.min_delta=10.0", "data.num_test=2000",
                 "batch.eval_batch_size=4"]  # fmt: skip
    started, run = job(tmp_path, *overrides, "run_dir=run"), run_of(tmp_path / "run")
    assert started.until(lambda: run.newest == 14), started.text
    time.sleep(0.1)
    started.kill()
    started.wait()
    assert not (run.directory / "summary.json").exists()
    again = job(tmp_path, *overrides, "run_dir=run")
    assert again.wait() == 0, again.text
    assert run.summary["steps"] == 14
    assert [row["step"] for row in run.series if row["test/loss"]] == ["14"]


class TestResume:
    def test_auto_on_a_finished_run_does_nothing(
        self, tmp_path: Path, job: Callable[..., Any], run_of: Callable[[Path], Any]
    ) -> None:
        first = job(tmp_path, CLASSIFICATION, "run_dir=run", "trainer.max_steps=6")
        assert first.wait() == 0, first.text
        before = {f: f.stat().st_mtime_ns for f in (tmp_path / "run").rglob("*") if f.is_file()}
        again = job(tmp_path, CLASSIFICATION, "run_dir=run", "trainer.max_steps=6")
        assert again.wait() == 0, again.text
        assert "holds this run, finished: nothing to do" in again.text
        assert {f: f.stat().st_mtime_ns for f in (tmp_path / "run").rglob("*") if f.is_file()} == before
        never = job(tmp_path, CLASSIFICATION, "run_dir=run", "trainer.max_steps=6", "resume=never")
        assert never.wait() == 1
        assert "run_dir=run holds a finished run; choose another run_dir" in never.text

        other = job(tmp_path, CLASSIFICATION, "run_dir=run", "trainer.max_steps=6", "seed=2")
        assert other.wait() == 1
        assert "run_dir=run holds a finished run with seed=1; choose another run_dir" in other.text

        longer = job(tmp_path, CLASSIFICATION, "run_dir=longer", "trainer.max_steps=9", "resume=run")
        assert longer.wait() == 0, longer.text
        assert "had trainer.max_steps=6" in longer.text
        assert run_of(tmp_path / "longer").summary["steps"] == 9

    def test_another_configuration_is_rejected_and_never_starts_over(
        self, tmp_path: Path, job: Callable[..., Any], run_of: Callable[[Path], Any]
    ) -> None:
        run = run_of(tmp_path / "run")
        first = job(tmp_path, CLASSIFICATION, "run_dir=run", "trainer.max_steps=100000")
        assert first.until(lambda: run.newest >= 5), first.text
        first.kill()
        first.wait()
        checkpoints = run.checkpoints
        other = job(tmp_path, CLASSIFICATION, "run_dir=run", "trainer.max_steps=100000", "optimizer.lr=0.1")
        assert other.wait() == 1
        assert "run_dir=run contains an unfinished run with optimizer.lr=" in other.text
        assert run.checkpoints == checkpoints
        never = job(tmp_path, CLASSIFICATION, "run_dir=run", "trainer.max_steps=6", "resume=never")
        assert never.wait() == 0, never.text
        assert "it starts over" in never.text
        assert run.summary["steps"] == 6
        typo = job(tmp_path, CLASSIFICATION, "run_dir=new", "resume=nevr")
        assert typo.wait() == 1
        assert "expected auto, never, a run directory or a checkpoint; did you mean never?" in typo.text

    def test_a_path_with_other_settings(
        self, tmp_path: Path, job: Callable[..., Any], run_of: Callable[[Path], Any]
    ) -> None:
        run = run_of(tmp_path / "run")
        ema = "callbacks=[default,ema]"
        first = job(tmp_path, CLASSIFICATION, ema, "run_dir=run", "optimizer.lr=0.01")
        assert first.until(lambda: run.newest >= 20), first.text
        first.kill()
        first.wait()
        step = run.newest
        content = torch.load(run.directory / "checkpoints" / f"step-{step:08d}.ckpt", weights_only=True)

        slower = job(tmp_path, CLASSIFICATION, ema, "run_dir=slower", "resume=run", "optimizer.lr=0.001")
        assert slower.wait() == 0, slower.text
        assert "the run of resume=run had optimizer.lr=0.01" in slower.text
        rates = [float(row["lr"]) for row in run_of(tmp_path / "slower").series if row["lr"]]
        assert 0.0001 < rates[0] < 0.001

        # without the moving average: the weights that training goes on with, not the average
        plain = job(tmp_path, CLASSIFICATION, "run_dir=plain", "resume=run", f"trainer.max_steps={step}",
                    "optimizer.lr=0.01")  # fmt: skip
        assert plain.wait() == 0, plain.text
        for name, tensor in load_file(tmp_path / "plain" / "weights.safetensors").items():
            assert torch.equal(tensor, content["current_model_state"][f"network.{name}"])
        assert not all(torch.equal(content["state_dict"][k], v) for k, v in content["current_model_state"].items())

        for override, answer in {
            "tokenizer=bytes": "was trained with tokenizer",
            "optimizer=sgd": "its optimizer state is for optimizer=adamw. Use the same optimizer",
            "shape.num_layers=2": "its network has model.encoder.num_layers=1. Use the same settings",
            "trainer.max_steps=3": f"has already completed {step} steps",
            "callbacks.checkpoints.monitor=val/accuracies": "did you mean val/accuracy?",
        }.items():
            refused = job(tmp_path, CLASSIFICATION, ema, "run_dir=new", "resume=run", "optimizer.lr=0.01", override)
            assert refused.wait() == 1, override
            assert answer in refused.text
            assert "Traceback" not in refused.text

        # nothing but last.ckpt is left (the kill may have come before it was the newest); and metrics.csv is damaged
        step = torch.load(run.directory / "checkpoints" / "last.ckpt", weights_only=True)["global_step"]
        for file in (run.directory / "checkpoints").glob("step-*.ckpt"):
            file.unlink()
        (run.directory / "metrics.csv").write_bytes(b"\x00\xff\xfe")
        again = job(tmp_path, CLASSIFICATION, ema, "run_dir=run", "optimizer.lr=0.01")
        assert again.wait() == 0, again.text
        assert f"resuming from run/checkpoints/last.ckpt, after {step} steps" in again.text
        assert f"the series starts after step {step}" in again.text

    def test_the_same_command_resumes_with_what_it_began(
        self, tmp_path: Path, job: Callable[..., Any], run_of: Callable[[Path], Any]
    ) -> None:
        run = run_of(tmp_path / "run")
        first = job(tmp_path, CLASSIFICATION, "run_dir=first", "trainer.max_steps=6")
        assert first.wait() == 0, first.text
        command = [CLASSIFICATION, "run_dir=run", "resume=first", "trainer.max_steps=60"]
        started = job(tmp_path, *command)
        assert started.until(lambda: run.newest >= 20), started.text
        started.kill()
        started.wait()
        again = job(tmp_path, *command)
        assert again.wait() == 0, again.text
        assert "resuming from run/checkpoints/step-" in again.text
        third = job(tmp_path, *command)
        assert third.wait() == 0, third.text
        assert "nothing to do" in third.text
