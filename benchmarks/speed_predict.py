"""Rows of speed.py: predictions for many texts, tokenizer included, compared with `transformers` on the export of the
same run."""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from speed_rows import MEDIAN, SIGMA, Asked, Row, timed
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

import triptych

BATCH = 64
SIZES = ["shape.d_model=256", "shape.num_layers=4", "shape.num_heads=4", "shape.d_ff=1024"]
COPY = ["experiment=synthetic/copy", "model=bart/style", "shape.d_model=128", "shape.num_layers=2", "shape.d_ff=512",
        "data.max_length=32", "data.test_max_length=32", "trainer.max_steps=800",
        "trainer.val_check_interval=800"]  # fmt: skip
"""A network that has learned to copy texts ends its answers where the texts end, at different times."""


def trained(folder: Path, *overrides: str) -> tuple[Any, Path]:
    """A run, and the folder that is exported of it.

    Args:
        folder: for both.
    """
    command = [sys.executable, "-m", "triptych"]
    options = ["logger=csv", "trainer.accelerator=cpu", "shape.max_length=256", f"run_dir={folder}/run"]
    subprocess.run([*command, "train", *options, *overrides], cwd=folder, check=True, capture_output=True)
    exported = [*command, "export", f"{folder}/run", "--output", f"{folder}/exported"]
    subprocess.run(exported, check=True, capture_output=True)
    return triptych.load(folder / "run"), folder / "exported"


def random_texts(count: int, *, words: int, longest: int, seed: int = 1) -> list[str]:
    """Texts of log-normal lengths, of words as often as in Zipf's law."""
    generator = np.random.default_rng(seed)
    lengths = np.exp(generator.normal(np.log(MEDIAN), SIGMA, count)).astype(int).clip(4, longest)
    ranks = (generator.zipf(1.3, lengths.sum()) - 1) % words
    names = iter(ranks.tolist())
    return [" ".join(f"w{next(names)}" for _ in range(length)) for length in lengths]


def predict_classes(count: int) -> Row:
    """``predict`` of texts with classes, by BERT's network.

    Args:
        count: texts of a round.
    """
    folder = tempfile.TemporaryDirectory()
    texts = random_texts(count, words=2000, longest=250)
    for name, some in (("A", texts[:200]), ("B", texts[200:400])):
        Path(folder.name, f"{name}.txt").write_text("\n".join(some) + "\n")
    task, exported = trained(
        Path(folder.name),
        "task=classification",
        "data=labelled_text",
        "model=bert/style",
        *SIZES,
        "tokenizer=words",
        f"data.dir={folder.name}",
        "data.train={A: A.txt, B: B.txt}",
        "data.validation=0.1",
        "data.test=0.1",
        "trainer.max_steps=5",
        "trainer.val_check_interval=5",
    )
    theirs = pipeline("text-classification", model=str(exported), device="cpu")
    ours = [answer.label for answer in task.predict(texts[:100])]
    same = sum(a == b["label"] for a, b in zip(ours, theirs(texts[:100]), strict=True))
    return Row(
        title=f"Classifying {count:,} texts, lengths 4 to 250, tokenizer included",
        unit="texts/s",
        rounds={
            "Triptych, predict": timed(lambda: task.predict(texts, batch_size=BATCH), count),
            "transformers, pipeline": timed(lambda: theirs(texts, batch_size=BATCH), count),
            "transformers, pipeline, sorted by length": timed(
                lambda: theirs(sorted(texts, key=len), batch_size=BATCH), count
            ),
        },
        asked=[
            Asked("Triptych, predict", "transformers, pipeline", 2.5),
            Asked("Triptych, predict", "transformers, pipeline, sorted by length", 1),
        ],
        facts=[
            f"Each batch has {BATCH} texts. With the same weights, both libraries give identical labels for {same} "
            "of 100 texts."
        ],
    )


def predict_copies(count: int) -> Row:
    """``predict`` of a full model that writes texts of unequal lengths, by greedy search.

    Args:
        count: texts of a round.
    """
    folder = tempfile.TemporaryDirectory()
    task, exported = trained(Path(folder.name), *COPY)
    generator = np.random.default_rng(1)
    lengths = generator.integers(3, 33, count)
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(exported), AutoTokenizer.from_pretrained(exported)
    vocabulary = sorted(word for word in tokenizer.get_vocab() if word.isdecimal())
    texts = [" ".join(generator.choice(vocabulary, length)) for length in lengths]

    def theirs(texts: Sequence[str]) -> list[str]:
        answers: list[str] = []
        for start in range(0, len(texts), BATCH):
            given = tokenizer(texts[start : start + BATCH], padding=True, return_tensors="pt")
            with torch.inference_mode():
                found = model.generate(**given, max_new_tokens=40, num_beams=1, do_sample=False)
            answers += tokenizer.batch_decode(found, skip_special_tokens=True)
        return answers

    ours, their = task.predict(texts[:BATCH]), theirs(texts[:BATCH])
    same = sum(a == b for a, b in zip(ours, their, strict=True))
    right = sum(a == b for a, b in zip(ours, texts, strict=False))
    return Row(
        title=f"Copying {count:,} texts with a full model, 3 to 32 words, greedy, tokenizer included",
        unit="texts/s",
        rounds={
            "Triptych, predict": timed(lambda: task.predict(texts, batch_size=BATCH), count),
            "transformers, generate": timed(lambda: theirs(texts), count),
            "transformers, generate, sorted by length": timed(lambda: theirs(sorted(texts, key=len)), count),
        },
        asked=[
            Asked("Triptych, predict", "transformers, generate", 2.5),
            Asked("Triptych, predict", "transformers, generate, sorted by length", 1),
        ],
        facts=[
            f"Each batch has {BATCH} texts. With the same weights, both libraries give identical outputs for {same} "
            f"of {BATCH} texts; {right} of the outputs are correct."
        ],
    )
