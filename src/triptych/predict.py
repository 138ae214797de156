"""``triptych predict``: texts in, answers out."""

import dataclasses
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from omegaconf import DictConfig
from rich.progress import track

from triptych.assembly import restore
from triptych.config import ConfigError
from triptych.decoding import Sampling
from triptych.tasks import Task
from triptych.tasks.base import Prediction
from triptych.tasks.generative import GenerativeTask


def predict(config: DictConfig) -> None:
    """Translates, classifies or continues each line of the input, by what the checkpoint was trained for.

    Args:
        config: composed by Hydra from conf/predict.yaml.

    Raises:
        ConfigError: no such checkpoint or input, or settings of the sampling that cannot be.
    """
    try:
        sampling = Sampling(config.temperature, config.top_k, config.top_p, config.seed)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    for key in ("batch_size", "max_new_tokens"):
        if config[key] is not None and config[key] < 1:
            raise ConfigError(f"{key}={config[key]}: expected at least 1")
    if config.input != "-" and not Path(config.input).is_file():
        raise ConfigError(f"input={config.input}: no such file")
    _, task = restore(config.checkpoint)
    if isinstance(task, GenerativeTask):
        task.sampling = sampling
        task.max_new_tokens = config.max_new_tokens or task.max_new_tokens
    texts = read_lines(config.input)
    check_lengths(task, texts, config.input)
    with output(config.output) as file:
        predictions = task.predictions(texts, batch_size=config.batch_size)
        for prediction in track(predictions, "predicting", total=len(texts), disable=config.output == "-"):
            file.write(as_line(prediction) + "\n")


def check_lengths(task: Task, texts: list[str], source: str) -> None:
    """Refuses a line that the network has no positions for. (A language model forgets its beginning instead.)

    Raises:
        ConfigError: such a line.
    """
    if task.room is None or (task.name == "language_modeling" and task.architecture == "decoder_only"):
        return
    for number, ids in enumerate(task.tokenizer.encode(texts), 1):
        if len(ids) + 2 > task.room:
            raise ConfigError(
                f"{name_of(source)}, line {number}: {len(ids)} tokens; the network reads at most {task.room - 2} "
                "(shape.max_length of its training, less two)"
            )


def name_of(source: str) -> str:
    """The file, or standard input."""
    return "standard input" if source == "-" else source


def as_line(prediction: Prediction) -> str:
    """A prediction as one line: line breaks in a text are written as \\n."""
    if isinstance(prediction, str):
        return prediction.replace("\n", "\\n")
    return json.dumps(dataclasses.asdict(prediction), ensure_ascii=False)


def read_lines(path: str) -> list[str]:
    """The lines of a file or of standard input (-).

    Raises:
        ConfigError: a line that is not UTF-8.
    """
    content = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    lines = content.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    texts = []
    for number, line in enumerate(lines, 1):
        try:
            texts.append(line.decode("utf-8").removesuffix("\r"))
        except UnicodeDecodeError:
            raise ConfigError(f"{name_of(path)}, line {number}: not UTF-8") from None
    return texts


@contextmanager
def output(path: str) -> Iterator[TextIO]:
    """The file to write to; - is standard output."""
    if path == "-":
        yield sys.stdout
        return
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        yield file
