"""Real commands on a GPU: every cell of the grid, precisions, records, kills."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import tiny
from commands import Finished, run
from triptych.training.hardware import hardware

pytestmark = pytest.mark.gpu

TESTS = Path(__file__).parents[1]
PATHS = os.pathsep.join([str(TESTS), str(TESTS / "gpu"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
"""For what tests let a training import; ``make gpu`` may have put Triptych there, too."""
STEPS = 50
LENGTH = [f"trainer.max_steps={STEPS}", f"trainer.val_check_interval={STEPS}", "logger=csv"]
TINY, SMALL = [*tiny.TINY, *LENGTH], [*(size for size in tiny.TINY if size not in tiny.DATES), *LENGTH]
STILL = ["block.dropout=0", "block.bias=false", "optimizer.eps=1.0e-4", "scheduler.warmup_steps=5"]
"""Nothing is drawn, and nothing learns from rounding errors, as AdamW does where a gradient is 0."""
RECORDING = ["+callbacks.recording._target_=recording_callback.RecordingCallback", "+callbacks.recording.folder=."]
QUESTIONS = {
    "translation": ("full", "decoder_only", "prefix_lm"),
    "classification": ("full", "encoder_only", "decoder_only"),
    "pairs": ("full", "encoder_only", "decoder_only"),
    "similarity": ("full", "encoder_only", "decoder_only"),
    "tagging": ("full", "encoder_only", "decoder_only"),
    "question_answering": ("full", "encoder_only", "decoder_only"),
    "language_modeling": ("full", "decoder_only", "prefix_lm"),
    "denoising": ("full", "encoder_only", "decoder_only", "prefix_lm"),
}
CELLS = [(question, model) for question, models in QUESTIONS.items() for model in models]
PACKED = {"classification", "translation", "language_modeling"}
TEXTS = {"pairs": "5.3.1998\t1998-03-05\n", "similarity": "5.3.1998\t1998-03-05\n"}
TEXTS["question_answering"] = "year?\t5.3.1998\n"
FEW = [size for size in tiny.DATES if ".num_" in size]
DRAWN = [*FEW, "data.max_digits=1", "image_embedding.image_size=[12,24]"]
OTHERS = {
    "dates/chat": (("full", "decoder_only", "prefix_lm"), [*FEW, "data.languages=[de,en]", "data.turns=2"]),
    "dates/translation task=text_to_text": (("full",), tiny.DATES),
    "dates/language_modeling task=infilling": (("full", "decoder_only"), [*tiny.DATES, "tokenizer.num_sentinels=3"]),
    "tones/transcription": (("full", "encoder_only", "decoder_only", "prefix_lm"), FEW),
    "tones/transcription audio_embedding.stem=stacked": (("encoder_only",), FEW),
    "tones/classification": (("encoder_only",), FEW),
    "digits/encoder_only": (("vit/style",), []),
    "captions/drawn": (("full", "decoder_only", "prefix_lm"), DRAWN),
    "matching/drawn": (("dual_encoder", "dual_decoder"), DRAWN),
    "generation/drawn": (("full", "decoder_only", "prefix_lm"), FEW),
}
"""Turns, sounds and images: the models, and what makes the data small. (The encoder that draws is left out: what it
does not see is chosen on the device, which has other random numbers.)"""


def triptych(folder: Path, *arguments: str) -> Finished:
    variables = {"PYTHONPATH": PATHS, "TRIPTYCH_ALLOW": "recording_callback.,sync_watch."}
    return run(*arguments, cwd=folder, variables=variables, seconds=500)


def trained(folder: Path, *overrides: str, sizes: Sequence[str] = TINY) -> tuple[list[float], dict[str, Any]]:
    """The loss of each update, and the record."""
    folder.mkdir()
    finished = triptych(folder, "train", *sizes, *RECORDING, *overrides, "run_dir=run")
    assert finished.returncode == 0, finished.stdout + finished.stderr
    losses = torch.load(folder / "losses-0.pt", weights_only=True).tolist()
    return losses, json.loads((folder / "run" / "summary.json").read_text())


@pytest.mark.parametrize(("question", "model"), CELLS)
def test_a_cell(question: str, model: str, on_device: list[str], tmp_path: Path, device: torch.device) -> None:
    """Trained in float32 as on the CPU, evaluated, and asked."""
    chosen = [f"experiment=dates/{question}", f"model={model}", *STILL]
    chosen += ["batch.packing=true"] * (question in PACKED)
    expected, on_cpu = trained(tmp_path / "cpu", *chosen, "trainer.accelerator=cpu")
    losses, record = trained(tmp_path / "gpu", *chosen, *on_device)
    assert losses == pytest.approx(expected, rel=1e-4)
    for name, value in on_cpu["metrics"].items():
        assert record["metrics"][name] == pytest.approx(value, rel=1e-3, abs=0.05), name
    assert hardware(device).split(",")[0] in record["hardware"]  # on CPUs the number of threads follows
    assert record["peak_memory_bytes"] > 0
    evaluated = triptych(tmp_path / "gpu", "evaluate", "checkpoint=run", *on_device)
    assert evaluated.returncode == 0, evaluated.stderr
    for name in record["metrics"]:
        assert name in evaluated.stdout
    (tmp_path / "gpu" / "texts").write_text(TEXTS.get(question, "5.3.1998\n") * 3)
    asked = triptych(tmp_path / "gpu", "predict", "checkpoint=run", "input=texts", "output=answers", *on_device)
    assert asked.returncode == 0, asked.stderr
    assert len((tmp_path / "gpu" / "answers").read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("experiment", "model"), [(name, model) for name, (models, _) in OTHERS.items() for model in models]
)
def test_a_cell_of_sounds_images_or_turns(
    experiment: str, model: str, on_device: list[str], tmp_path: Path, device: torch.device
) -> None:
    """Trained in float32 as on the CPU, and evaluated."""
    chosen = [*f"experiment={experiment}".split(), f"model={model}", *STILL, "optimizer=adamw", "optimizer.lr=1e-3"]
    chosen += OTHERS[experiment][1]
    expected, on_cpu = trained(tmp_path / "cpu", *chosen, "trainer.accelerator=cpu", sizes=SMALL)
    losses, record = trained(tmp_path / "gpu", *chosen, *on_device, sizes=SMALL)
    assert losses == pytest.approx(expected, rel=1e-4)
    for name, value in on_cpu["metrics"].items():
        assert record["metrics"][name] == pytest.approx(value, rel=1e-3, abs=0.05), name


@pytest.mark.parametrize(
    ("precision", "tolerance"),
    [("32-true", 1e-4), ("bf16-mixed", 0.05), ("bf16-true", 0.1), ("16-mixed", 0.05), ("16-true", 0.1)],
)
@pytest.mark.parametrize("model", ["full", "decoder_only"])
def test_a_precision(model: str, precision: str, tolerance: float, on_device: list[str], tmp_path: Path) -> None:
    """The losses are those of float32 on the CPU, within the roundings of 50 updates; or it is refused in a line."""
    chosen = ["experiment=dates/translation", f"model={model}", *STILL]
    expected, _ = trained(tmp_path / "cpu", *chosen, "trainer.accelerator=cpu")
    chosen += [f"trainer.precision={precision}", *["optimizer.fused=false"] * precision.startswith("16")]
    losses, _ = trained(tmp_path / "gpu", *chosen, *on_device)
    assert losses == pytest.approx(expected, rel=tolerance)


@pytest.mark.parametrize(
    "chosen",
    [
        ["experiment=dates/translation", "model=full"],
        ["experiment=dates/language_modeling", "batch.packing=true", "trainer.precision=bf16-mixed"],
        ["experiment=dates/classification", "model=encoder_only", "trainer.accumulate_grad_batches=2"],
    ],
    ids=["full", "packed", "accumulated"],
)
def test_no_step_waits_for_the_gpu(chosen: list[str], on_device: list[str], tmp_path: Path) -> None:
    """With all that a training has around it."""
    watch = [] if "cpu" in on_device[0] else ["+callbacks.watch._target_=sync_watch.SyncWatch"]
    trained(tmp_path / "run", *chosen, *watch, "trainer.log_every_n_steps=25", *on_device)


@pytest.mark.parametrize("model", ["full", "decoder_only"])
def test_it_resumes_bitwise_where_kernels_are_deterministic(model: str, on_device: list[str], tmp_path: Path) -> None:
    """Ended after 20 updates, and begun again."""
    chosen = ["experiment=dates/translation", f"model={model}", "trainer.deterministic=true", *on_device]
    trained(tmp_path / "whole", *chosen)
    folder = tmp_path / "parts"
    folder.mkdir()
    every = ["callbacks.checkpoints.every_n_steps=20", "callbacks.checkpoints.keep_latest=9"]
    first = triptych(folder, "train", *TINY, *chosen, *every, "run_dir=first")
    assert first.returncode == 0, first.stderr
    (middle,) = (folder / "first" / "checkpoints").glob("*00000020.ckpt")
    for file in (folder / "first").glob("*"):
        if file.name != "checkpoints" and file.is_file():
            file.unlink()
    second = triptych(folder, "train", *TINY, *chosen, "run_dir=second", f"resume={middle}")
    assert second.returncode == 0, second.stderr
    whole, parts = (load_file(run / "weights.safetensors") for run in (tmp_path / "whole/run", folder / "second"))
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_out_of_memory_is_answered_in_a_line(device: torch.device, on_device: list[str], tmp_path: Path) -> None:
    if device.type == "cpu":
        pytest.skip("there the system would end the process, and others with it")
    large = [
        "shape.d_model=1024", "shape.num_heads=16", "shape.num_layers=6", "shape.d_ff=4096",
        "batch.global_size=16384",
    ]  # fmt: skip
    finished = triptych(
        tmp_path, "train", "experiment=dates/translation", "data.num_train=16384", *large, *on_device, "run_dir=run",
        "logger=csv",
    )  # fmt: skip
    assert finished.returncode == 1
    assert "out of memory after 0 steps: " in finished.stderr
    assert "Traceback" not in finished.stderr
