"""Predictions and attention weights of a trained network on test examples, for the record of a run.

Tested by tests/report/test_attention_maps.py.
"""

import json
import math
import time
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import torch.distributed as dist

from triptych.data import Example, Image, LongText, Splits
from triptych.data.images import as_address
from triptych.nn import MultiHeadAttention
from triptych.report.attention_maps import AttentionMap, AttentionMaps, attention_maps
from triptych.storage.atomic import replacing
from triptych.tasks import ClassPrediction, Predictor, Task, TestPrediction
from triptych.training import TrainingModule

MOST_BYTES = 300_000
"""Largest size of attention.json, without the tokens."""

MOST_TOKENS = 40
"""Most tokens of a text in attention.json."""

MOST_PIXELS = 96
"""Largest side of an image in summary.json, in pixels."""

MOST_CHARACTERS = 300
"""Most characters of an input in predictions.jsonl, which is meant for viewing."""


def samples(task: Task, splits: Splits, count: int = 8) -> list[dict[str, str]]:
    """Predictions for the first test examples."""
    if isinstance(splits.test, LongText):
        text = next(iter(splits.test)).text[:200]
        return [{"input": text[:50], "output": str(Predictor(task).predict([text[:50]])[0]), "reference": text[50:]}]
    examples = list(splits.test[:count])
    answers = Predictor(task).predict([task.model_input(example) for example in examples])
    found = []
    for example, output in zip(examples, answers, strict=True):
        sample = {"input": sample_name(task, example), "output": "", "reference": task.reference(example)}
        if isinstance(output, Image):
            sample |= picture_of("output_image", output) | picture_of("reference_image", example.image)
        else:
            sample |= {"output": format_answer(output)} | picture_of("image", example.image)
        found.append(sample)
    return found


def picture_of(key: str, image: Image | None) -> dict[str, str]:
    """An image as pages show it, if it is small enough for a record."""
    return {} if image is None or max(image.shape) > MOST_PIXELS else {key: as_address(image)}


def prediction_latency(task: Task, splits: Splits, count: int = 8) -> float:
    """Median seconds per prediction over the first test examples, with batch size 1."""
    if isinstance(splits.test, LongText):
        inputs: list[Any] = [next(iter(splits.test)).text[:50]]
    else:
        inputs = [task.model_input(example) for example in splits.test[:count]]
    seconds = []
    for asked in inputs:
        started = time.perf_counter()
        Predictor(task).predict([asked])
        seconds.append(time.perf_counter() - started)
    return median(seconds)


def gather_test_predictions(module: TrainingModule) -> list[TestPrediction]:
    """The predictions of the last test from all ranks, in the order of the split. All ranks must call it."""
    parts = [module.test_predictions]
    if dist.is_initialized():
        parts *= dist.get_world_size()
        dist.all_gather_object(parts, module.test_predictions)
    return sorted(chain(*parts), key=lambda prediction: prediction.index)


def write_predictions(
    path: Path, task: Task, examples: Sequence[Example] | LongText, tested: Sequence[TestPrediction]
) -> None:
    """Writes a line of JSON per test example, or per window of a long text, as documented in docs/run_directory.md.
    Nothing is written if the task records no predictions."""
    if not tested:
        return
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        for answer in tested:
            row: dict[str, object] = {"index": answer.index}
            if not isinstance(examples, LongText) and len(tested) == len(examples):  # otherwise these are windows
                example = examples[answer.index]
                text = sample_name(task, example)
                row |= {"input": text[:MOST_CHARACTERS], "input_words": len(text.split())}
                if example.difficulty is not None:
                    row["difficulty"] = dict(example.difficulty)
                if answer.output is not None:
                    row |= {"reference": task.reference(example), "output": answer.output}
            file.write(json.dumps({**row, **answer.numbers}, ensure_ascii=False) + "\n")


def attention_record(task: Task, splits: Splits, count: int = 2) -> dict[str, Any]:
    """Attention weights, times 1000, in the first test examples that are short enough; see docs/run_directory.md."""
    longest = recordable_length(task, count)
    if isinstance(splits.test, LongText):
        examples = [Example(next(iter(splits.test)).text[:longest])]
    else:
        examples = list(splits.test[:200])
        # generated tokens count too, so that all architectures, wherever they generate, choose the same texts
        sizes = [item.size if task.generates_text else item.longest for item in task.encode(examples)]
        examples = [example for example, size in zip(examples, sizes, strict=True) if size <= longest][:count]
    found = attention_maps(Predictor(task), [task.model_input(example) for example in examples])
    return {
        "samples": [
            {"input": sample_name(task, example), "output": format_answer(maps.prediction), **list_maps(maps, longest)}
            for example, maps in zip(examples, found, strict=True)
            if is_recordable(maps, longest)
        ]
    }


def recordable_length(task: Task, count: int) -> int:
    """The most tokens per text such that ``count`` texts fit into MOST_BYTES."""
    attentions = [module for module in task.network.modules() if isinstance(module, MultiHeadAttention)]
    matrices = sum(module.q.out_features // module.head_dim for module in attentions if not module.is_recurrent)
    return min(MOST_TOKENS, math.isqrt(MOST_BYTES // (count * max(matrices, 1) * len("999,"))))


def is_recordable(maps: AttentionMaps, longest: int) -> bool:
    """Whether the input has at most ``longest`` tokens, so that all of it can be recorded."""
    found = [of_stack for of_stack in (maps.encoder, maps.decoder) if of_stack is not None]
    given = [len(of_stack.queries) - max(len(of_stack.written) - 1, 0) for of_stack in found]  # the last is not read
    return max(given, default=0) <= longest


def list_maps(maps: AttentionMaps, longest: int) -> dict[str, Any]:
    """The kinds of attention as tokens and weights times 1000. The first rows of a decoder do not depend on later
    tokens. If a text became too long during generation, these rows are kept, and the total number of tokens is recorded
    as well.

    Args:
        maps: of one text, recordable.
        longest: the most tokens.

    Returns:
        ``encoder``, ``decoder`` and ``cross``, or None; ``unmapped`` lists those that exist without a map.
    """
    kinds = {"encoder": maps.encoder, "decoder": maps.decoder, "cross": maps.cross}
    plain = {kind: None if found is None else _plain(found, longest) for kind, found in kinds.items()}
    return plain | ({"unmapped": maps.unmapped} if maps.unmapped else {})


def _plain(found: AttentionMap, longest: int) -> dict[str, Any]:
    length = len(found.queries)
    num_kept = len(found.written) - max(length - longest, 0)
    return {
        "queries": found.queries[:longest],
        "keys": found.keys[:longest],
        "written": found.written[:num_kept],
        "num_tokens": length,
        "weights_x1000": (1000 * found.weights[:, :, :longest, :longest].float()).round().int().tolist(),
    }


def sample_name(task: Task, example: Example) -> str:
    """Text that represents the input in a record."""
    asked = task.model_input(example)
    text = asked if isinstance(asked, str) else example.text
    return f"{text} | {example.text_pair}" if task.reads_pairs and example.text_pair is not None else text


def format_answer(answer: object) -> str:
    """A prediction as text: the most likely class, a number with six digits, an image encoded for a page."""
    if isinstance(answer, ClassPrediction):
        return answer.label
    if isinstance(answer, Image):
        return as_address(answer)
    return f"{answer:.6g}" if isinstance(answer, float) else str(answer)
