"""The bar of a training, and the lines in its place."""

import io
import re
import sys
from pathlib import Path

import lightning as L
import pytest
from lightning.pytorch.callbacks.progress.rich_progress import MetricsTextColumn
from rich.console import Console
from rich.progress import Progress as RichBars

import tiny
from commands import run
from triptych.training import ProgressBar


def test_a_run_that_resumes_counts_all_its_batches() -> None:
    progress = ProgressBar()
    trainer = L.Trainer(
        max_steps=10, max_epochs=-1, accumulate_grad_batches=2, callbacks=[progress], logger=False, accelerator="cpu"
    )
    progress.setup(trainer, L.LightningModule(), "fit")
    trainer.fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step.total.completed = 4
    assert trainer.global_step == 4
    assert progress.total_train_batches == 20


def test_piped_a_training_says_how_it_goes(tmp_path: Path) -> None:
    small = [*tiny.NETWORK, "batch.global_size=20", "data.num_train=100", "data.num_validation=20", "data.num_test=20"]
    overrides = ["experiment=dates/translation", *small, "logger=csv", "trainer.max_steps=6"]
    finished = run("train", *overrides, "trainer.val_check_interval=2", "run_dir=run", cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    lines = re.findall(r"^step (\d) of 6: validation loss (\S+), exact match \S+ %(.*)$", finished.stderr, re.MULTILINE)
    assert [update for update, *_ in lines] == ["2", "4", "6"]
    series = [line.split(",") for line in (tmp_path / "run" / "metrics.csv").read_text().splitlines()]
    column = series[0].index("val/loss")
    assert [loss for _, loss, _ in lines] == [f"{float(row[column]):.3f}" for row in series[1:] if row[column]][:3]
    assert [left.partition(", about ")[0] for *_, left in lines] == ["; 4 left", "; 2 left", ""]
    assert lines[0][2] in (tmp_path / "run" / "train.log").read_text()


@pytest.mark.parametrize("loss", [0.123, 12345.678])
def test_the_bar_is_one_line_of_80_columns(loss: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """At its longest: a million steps, days to go, and metrics that are logged besides."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    progress = ProgressBar()
    trainer = L.Trainer(max_steps=1_000_000, max_epochs=-1, callbacks=[progress], logger=False, accelerator="cpu")
    metrics = {"train/loss": loss, "train/tokens_per_second": 123456.0, "val/loss": loss}
    monkeypatch.setattr(L.Trainer, "progress_bar_metrics", property(lambda _: metrics))
    shown = progress.configure_columns(trainer)
    text = MetricsTextColumn(trainer, "", " ", ".3f")
    text.update(progress.get_metrics(trainer, L.LightningModule()))
    clock = iter([0.0, *[400_000.0] * 99])
    console = Console(width=80, file=io.StringIO())
    bar = RichBars(*shown, " ".join(text._generate_metrics_texts()), console=console, get_time=lambda: next(clock))
    bar.add_task("Training  ", total=1_000_000, completed=400_000)
    assert len(console.render_lines(bar.get_renderable())) == 1
