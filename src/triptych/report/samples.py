"""What a trained network makes of the test examples, and where it looks meanwhile: of the record of a run."""

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
"""Of attention.json, but for the tokens."""

MOST_TOKENS = 40
"""Of a text in attention.json."""

MOST_PIXELS = 96
"""Of a side of an image in summary.json."""

MOST_CHARACTERS = 300
"""Of an input in answers.jsonl; the file is for looking at, and the data are elsewhere."""


def samples(task: Task, splits: Splits, count: int = 8) -> list[dict[str, str]]:
    """What the network makes of the first test examples."""
    if isinstance(splits.test, LongText):
        text = next(iter(splits.test)).text[:200]
        return [{"input": text[:50], "output": str(Predictor(task).predict([text[:50]])[0]), "reference": text[50:]}]
    examples = list(splits.test[:count])
    answers = Predictor(task).predict([task.asked(example) for example in examples])
    found = []
    for example, output in zip(examples, answers, strict=True):
        sample = {"input": name_of(task, example), "output": "", "reference": task.reference(example)}
        if isinstance(output, Image):
            sample |= picture_of("output_image", output) | picture_of("reference_image", example.image)
        else:
            sample |= {"output": format_answer(output)} | picture_of("image", example.image)
        found.append(sample)
    return found


def picture_of(key: str, image: Image | None) -> dict[str, str]:
    """An image as a page shows it, if it is small enough for a record."""
    return {} if image is None or max(image.shape) > MOST_PIXELS else {key: as_address(image)}


def answer_time(task: Task, splits: Splits, count: int = 8) -> float:
    """Seconds that one answer takes, asked for by itself: the median over the first test examples."""
    if isinstance(splits.test, LongText):
        inputs: list[Any] = [next(iter(splits.test)).text[:50]]
    else:
        inputs = [task.asked(example) for example in splits.test[:count]]
    seconds = []
    for asked in inputs:
        started = time.perf_counter()
        Predictor(task).predict([asked])
        seconds.append(time.perf_counter() - started)
    return median(seconds)


def gather_test_predictions(module: TrainingModule) -> list[TestPrediction]:
    """What was answered in the last test, by all processes, each of which has to call it; in the order of the split.

    Args:
        module: after the test.
    """
    parts = [module.test_predictions]
    if dist.is_initialized():
        parts *= dist.get_world_size()
        dist.all_gather_object(parts, module.test_predictions)
    return sorted(chain(*parts), key=lambda prediction: prediction.index)


def write_answers(
    path: Path, task: Task, examples: Sequence[Example] | LongText, tested: Sequence[TestPrediction]
) -> None:
    """Writes a line of JSON for each test example, or for each window of a long text; docs/run_directory.md explains
    it. Nothing is written where the task keeps no answers.

    Args:
        examples: the test split.
    """
    if not tested:
        return
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        for answer in tested:
            row: dict[str, object] = {"index": answer.index}
            if not isinstance(examples, LongText) and len(tested) == len(examples):  # else these are windows
                example = examples[answer.index]
                text = name_of(task, example)
                row |= {"input": text[:MOST_CHARACTERS], "input_words": len(text.split())}
                if example.difficulty is not None:
                    row["difficulty"] = dict(example.difficulty)
                if answer.output is not None:
                    row |= {"reference": task.reference(example), "output": answer.output}
            file.write(json.dumps({**row, **answer.numbers}, ensure_ascii=False) + "\n")


def attention(task: Task, splits: Splits, count: int = 2) -> dict[str, Any]:
    """Where the network looks in the first test examples that are short enough, in thousandths; see
    docs/run_directory.md."""
    longest = recordable_length(task, count)
    if isinstance(splits.test, LongText):
        examples = [Example(next(iter(splits.test)).text[:longest])]
    else:
        examples = list(splits.test[:200])
        # what is written counts too: so architectures that write after the text, or beside it, choose the same texts
        sizes = [item.size if task.writes_text else item.longest for item in task.encode(examples)]
        examples = [example for example, size in zip(examples, sizes, strict=True) if size <= longest][:count]
    found = attention_maps(Predictor(task), [task.asked(example) for example in examples])
    return {
        "samples": [
            {
                "input": name_of(task, example),
                "output": format_answer(maps.prediction),
                **list_maps(maps, longest),
            }
            for example, maps in zip(examples, found, strict=True)
            if is_recordable(maps, longest)
        ]
    }


def recordable_length(task: Task, count: int) -> int:
    """The most tokens of a text of which ``count`` fit into MOST_BYTES."""
    attentions = [module for module in task.network.modules() if isinstance(module, MultiHeadAttention)]
    matrices = sum(module.q.out_features // module.head_dim for module in attentions)
    return min(MOST_TOKENS, math.isqrt(MOST_BYTES // (count * matrices * len("999,"))))


def is_recordable(maps: AttentionMaps, longest: int) -> bool:
    """Whether what was read is short enough for all of it to be recorded.

    Args:
        longest: the most tokens.
    """
    found = [of_stack for of_stack in (maps.encoder, maps.decoder) if of_stack is not None]
    given = [len(of_stack.queries) - max(len(of_stack.written) - 1, 0) for of_stack in found]  # the last is not read
    return max(given, default=0) <= longest


def list_maps(maps: AttentionMaps, longest: int) -> dict[str, Any]:
    """The kinds of attention as tokens and thousandths. A decoder's first rows are what they are whatever follows: of a
    text that became too long while it was written these are kept, and their number is beside that of all.

    Args:
        maps: of one text, recordable.
        longest: the most tokens.

    Returns:
        ``encoder``, ``decoder`` and ``cross``; None: there is none. ``unmapped`` lists those that exist without a map.
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
        "thousandths": (1000 * found.weights[:, :, :longest, :longest].float()).round().int().tolist(),
    }


def name_of(task: Task, example: Example) -> str:
    """What stands for the input in a record."""
    asked = task.asked(example)
    text = asked if isinstance(asked, str) else example.text
    return f"{text} | {example.pair}" if task.reads_pairs and example.pair is not None else text


def format_answer(answer: object) -> str:
    """An answer as text; of classes the likeliest, a number with six digits, an image as what a page shows."""
    if isinstance(answer, ClassPrediction):
        return answer.label
    if isinstance(answer, Image):
        return as_address(answer)
    return f"{answer:.6g}" if isinstance(answer, float) else str(answer)
