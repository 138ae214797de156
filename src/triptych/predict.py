"""``triptych predict``: predictions for texts, images or audio files."""
# Takes a DictConfig: it is the command's own configuration, as Hydra has composed it.

import json
import logging
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from omegaconf import DictConfig

from triptych.assembly.early_checks import check_prediction
from triptych.assembly.restore import restore, set_search
from triptych.config import ConfigError, error_prefix, nearest
from triptych.data import Audio, FileChanges, Image, Message, as_image, read_audio, read_image
from triptych.data.images import as_address, as_png
from triptych.data.readers.columns import as_messages
from triptych.data.readers.files import decoded, format_of, lines_of, read_lines
from triptych.data.readers.tables import NO_TEXT
from triptych.models.generation import Sampling
from triptych.storage.progress import show_progress
from triptych.tasks import (
    Chat,
    GenerativeTask,
    ImageGeneration,
    ImageTextMatching,
    Prediction,
    Predictor,
    Task,
    TextScore,
    TextTooLongError,
)
from triptych.tasks.image_text_matching import check_classes
from triptych.training.hardware import device_for

log = logging.getLogger("triptych")

SCORED_AT_ONCE = 10_000
"""Number of texts whose surprisal is in memory at once."""


def predict(config: DictConfig) -> None:
    """Writes the prediction for each line of the input, by the task of the checkpoint.

    Args:
        config: composed by Hydra from conf/predict.yaml.
    """
    with error_prefix():
        sampling = Sampling(config.temperature or 0.0, config.top_k, config.top_p, config.seed)
    check_prediction(config)
    check_input(config.input)
    device = device_for(config.trainer.accelerator)
    _, task = restore(config.checkpoint, config.trainer.precision)
    if config.surprisal:
        task.network.to(device)
        write_surprisal(config, task)
        return
    if config.method is not None:
        raise ConfigError(f"method={config.method} computes the surprisal; expected surprisal=true, or null")
    if config.temperature is None and isinstance(task, ImageGeneration):
        sampling = replace(sampling, temperature=1.0)
    task.network.to(device)
    set_search(task, config, ("num_beams", "length_penalty", "early_stopping", "num_return_sequences"))
    if isinstance(task, GenerativeTask):
        task.sampling, task.ranks = sampling, config.num_return_sequences is not None
        if isinstance(task, ImageGeneration) and config.output != "-" and not Path(config.output).suffix:
            raise ConfigError(f"output={config.output}: expected the name of a table, such as {config.output}.tsv")
        if config.max_new_tokens is not None and isinstance(task, ImageGeneration):
            raise ConfigError(f"max_new_tokens={config.max_new_tokens}: images have one size; expected null")
        task.max_new_tokens = config.max_new_tokens or task.max_new_tokens
        if sampling.temperature and (task.search.num_beams > 1 or task.ranks):
            raise ConfigError(
                f"temperature={config.temperature} samples, and beam search does not: expected num_beams=1 "
                "and no num_return_sequences"
            )
    elif sampling.temperature:
        raise ConfigError(f"temperature={config.temperature}: {task.name} writes no text; expected 0")
    if isinstance(task, ImageTextMatching):
        task.classes = task.classes if config.classes is None else tuple(config.classes)
        with error_prefix():
            check_classes(task.labels)
    elif config.classes is not None:
        raise ConfigError(f"classes={config.classes}: {task.name} chooses from no texts; expected null")
    lines, inputs = read_inputs(task, config.input)
    shown = show_progress(stderr=False, transient=False, disable=config.output == "-")
    with output(config.output) as file, shown as progress:
        advance = partial(progress.advance, progress.add_task("predicting", total=len(lines)))
        predictions = Predictor(task).predictions(inputs, batch_size=config.batch_size, advance=advance)
        if isinstance(task, ImageGeneration) and config.output != "-":
            write_images(Path(config.output), file, zip(lines, predictions, strict=True))
            return
        for prediction in predictions:
            file.write(as_line(prediction) + "\n")


def read_inputs(task: Task, source: str) -> tuple[list[str], Sequence[Any]]:
    """Reads and checks the inputs of a task. Returns the lines of the file, and the inputs of ``Predictor``."""
    lines = read_texts(source)
    if task.audio is not None:
        heard = sounds(lines, source, have_speakers=task.corpus.has_speakers)
        check_seconds(task, heard, source)
        return lines, heard
    if task.image_shape is not None:
        return lines, images(lines, task.image_shape, source)
    if isinstance(task, Chat):
        return lines, conversations(lines, task, source)
    lines = texts_of(lines, source) if format_of(source) == ".jsonl" else lines
    inputs = pairs(lines, source) if task.reads_pairs else lines
    check_input_lengths(task, inputs, source)
    for number, given in enumerate(inputs, 1):
        with error_prefix(f"{input_name(source)}, line {number}: "):
            task.check_input(given)
    return lines, inputs


def write_surprisal(config: DictConfig, task: Task) -> None:
    """Writes a table with a row per word: the number of its line and in its line, the word, whether whitespace precedes
    it, and -ln p in nats."""
    for key in ("num_beams", "temperature", "max_new_tokens", "num_return_sequences", "classes"):
        if config[key] is not None:
            raise ConfigError(f"{key}={config[key]}: surprisal=true generates no text; expected null")
    lines = read_texts(config.input)
    texts = texts_of(lines, config.input) if format_of(config.input) == ".jsonl" else lines
    shown = show_progress(stderr=False, transient=False, disable=config.output == "-")
    with shown as progress, ExitStack() as files:
        advance = partial(progress.advance, progress.add_task("scoring", total=len(texts)))
        for start in range(0, max(len(texts), 1), SCORED_AT_ONCE):
            some = texts[start : start + SCORED_AT_ONCE]
            with error_prefix():
                try:
                    scores = Predictor(task).score(some, method=config.method, advance=advance)
                except TextTooLongError as error:
                    where = f"{input_name(config.input)}, line {start + error.index + 1}"
                    raise ConfigError(f"{where}: {error.message}") from None
            if not start:  # an error leaves no empty file
                file = files.enter_context(output(config.output))
                file.write("line\tposition\tword\tafter_space\tnats\n")
            for line, (text, score) in enumerate(zip(some, scores, strict=True), start + 1):
                file.writelines(f"{line}\t{row}\n" for row in word_rows(text, score))


def word_rows(text: str, score: TextScore) -> Iterator[str]:
    """Yields the position, the word, 1 if whitespace or the start of the text precedes it, and its nats."""
    end = 0
    for position, (word, nats) in enumerate(zip(score.words, score.word_nats, strict=True), 1):
        start = text.find(word, end)  # of a lower-cased word: -1
        follows = start <= 0 or text[start - 1].isspace()
        end = max(end, start + len(word))
        yield f"{position}\t{' '.join(word.split())}\t{int(follows)}\t{nats:.6f}"


def write_images(path: Path, file: TextIO, drawn: Iterable[tuple[str, Prediction]]) -> None:
    """Writes a table of generated images for ``data=image_files``, and the images into a folder of the same name.

    Args:
        path: path of the table.
        file: the open file of the table.
        drawn: each text with its image.
    """
    folder = path.with_suffix("")
    folder.mkdir(exist_ok=True)
    file.write("file\ttarget\n")
    for number, (text, image) in enumerate(drawn, 1):
        assert isinstance(image, Image)
        (folder / f"{number}.png").write_bytes(as_png(image))
        file.write(f"{folder.name}/{number}.png\t{text}\n")


def texts_of(lines: list[str], source: str) -> list[str]:
    """Returns the text of each line, a JSON string, in which line breaks are escaped."""
    found = list[str]()
    for number, line in enumerate(lines, 1):
        with error_prefix(f"{input_name(source)}, line {number}: "):
            text = parse_json_line(line)
            if not isinstance(text, str):
                raise ValueError(f"{line[:60]}; expected a JSON text")
            found.append(text)
    return found


def pairs(lines: list[str], source: str) -> list[tuple[str, str]]:
    """Returns the two texts of each line, separated by the first tab (for question answering: question, tab, text)."""
    found = []
    for number, line in enumerate(lines, 1):
        first, tab, second = line.partition("\t")
        if not tab:
            raise ConfigError(
                f"{input_name(source)}, line {number}: no tab; expected a pair of texts, FIRST <tab> SECOND (for "
                "question answering, QUESTION <tab> TEXT)"
            )
        found.append((first, second))
    return found


def check_input_lengths(task: Task, texts: Sequence[str | tuple[str, str]], source: str) -> int:
    """Checks that lines fit into the network, and logs a warning if they are truncated.

    (A language model drops their beginning instead.)

    Returns:
        The number of truncated lines.
    """
    if task.truncates_left:
        return 0
    special, sides = task.tokenizer.special, [[text] if isinstance(text, str) else text for text in texts]
    around = len(special.separator) + 2 if task.reads_pairs else 2
    lengths = [around + sum(map(len, task.tokenizer.encode(parts))) for parts in sides]
    too_long = [number for number, length in enumerate(lengths, 1) if length > task.max_length]
    if too_long and not (task.truncates and task.truncates_input):
        raise ConfigError(
            f"{input_name(source)}, line {too_long[0]}: {lengths[too_long[0] - 1] - around} tokens; the network reads "
            f"at most {task.max_length - around} (shape.max_length of its training, less {around})"
        )
    if too_long:
        log.warning("%s of %s lines are truncated, the first is line %s", len(too_long), len(texts), too_long[0])
    return len(too_long)


def sounds(lines: list[str], source: str, *, have_speakers: bool) -> list[Audio]:
    """Returns the audio clip of each line, which contains its path.

    Args:
        have_speakers: whether a tab and the name of the speaker may follow the path.
    """
    found, changes = [], FileChanges("audio clips")
    for number, line in enumerate(lines, 1):
        path, tab, speaker = line.partition("\t") if have_speakers else (line, "", "")
        with error_prefix(f"{input_name(source)}, line {number}: "):
            if not path.strip():
                raise ValueError("an empty line; expected the path of a sound")
            if not Path(path).is_file():
                knows = "" if tab or "\t" not in path else " (this model was trained without data.speaker)"
                raise ValueError(f"{path}: no such file{knows}")
            sound, done = read_audio(Path(path))
            changes.add(done)
            if sound.is_silent:
                raise ValueError(f"{path}: the audio is silent")
            found.append(replace(sound, speaker=speaker))
    changes.report(input_name(source))
    if have_speakers and (unnamed := sum(not sound.speaker for sound in found)):
        lack = "name no speaker (PATH, tab, SPEAKER): each of these is heard without its own mean alone"
        log.warning("%s of %s lines %s", unnamed, len(found), lack)
    return found


def check_seconds(task: Task, heard: Sequence[Audio], source: str) -> None:
    """Checks that no clip is too long for the network, or shorter than half a window."""
    assert task.audio is not None
    frames = task.audio.embedding
    for number, sound in enumerate(heard, 1):
        if sound.seconds <= frames.window / 2:
            raise ConfigError(
                f"{input_name(source)}, line {number}: {sound.seconds:.4f} s of audio; expected more than half a "
                f"window (audio_embedding.window={frames.window})"
            )
    longest = task.audio.max_positions * frames.stride * frames.hop
    too_long = [number for number, sound in enumerate(heard, 1) if sound.seconds >= longest + frames.hop]
    if too_long:
        raise ConfigError(
            f"{input_name(source)}, line {too_long[0]}: {heard[too_long[0] - 1].seconds:.1f} s of audio; the network "
            f"supports at most {longest:.1f} s"
        )


def images(lines: list[str], shape: tuple[int, int, int], source: str) -> list[np.ndarray]:
    """Returns the image of each line: the path of a file, or a JSON array of rows of pixels or of channels.

    Images from files are converted to the input shape.

    Args:
        shape: channels, height, width.
    """
    found, changed = [], Counter[str]()
    for number, line in enumerate(lines, 1):
        with error_prefix(f"{input_name(source)}, line {number}: "):
            if line.lstrip().startswith("[") or not line.strip():
                found.append(as_image(parse_json_line(line), shape))
                continue
            if not Path(line).is_file():
                raise ValueError(f"{line}: no such file")
            image, done = read_image(Path(line), channels=shape[0], size=shape[1:])
            changed.update(done)
            found.append(np.asarray(image))
    for what, count in changed.items():
        log.warning("%s of %s images were %s", f"{count:,}", f"{len(lines):,}", what)
    return found


def conversations(lines: list[str], task: Chat, source: str) -> list[Sequence[Message]]:
    """Returns the conversation of each line: one user message, or in a .jsonl file all messages so far.

    In JSON, it is an array of messages with role and content, or an object with such an array as ``messages``."""
    found = list[Sequence[Message]]()
    for number, line in enumerate(lines, 1):
        with error_prefix(f"{input_name(source)}, line {number}: "):
            if format_of(source) == ".jsonl":
                content = parse_json_line(line)
                if isinstance(content, dict) and "messages" not in content:
                    raise ValueError(f"no messages; there are {', '.join(content)}{nearest('messages', list(content))}")
                messages = as_messages(content["messages"] if isinstance(content, dict) else content)
            else:
                messages = (Message("user", line),)
            task.check_input(messages)
            found.append(messages)
    if forgetful := sum(map(task.is_forgetful, found)):
        log.warning("%s of %s conversations are too long: their beginnings are forgotten", forgetful, len(found))
    return found


def parse_json_line(line: str) -> Any:
    """Parses a line of JSON.

    Raises:
        ValueError: if the line is not JSON.
    """
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({error})") from None


def input_name(source: str) -> str:
    """Returns the name of the input file, or "standard input"."""
    return "standard input" if source == "-" else source


def as_line(prediction: Prediction) -> str:
    """Formats a prediction as one line; line breaks in a text become \\n."""
    if isinstance(prediction, str):
        return prediction.replace("\n", "\\n")
    if isinstance(prediction, float):
        return f"{prediction:.6g}"
    if isinstance(prediction, Image):
        return as_address(prediction)
    plain = [asdict(p) for p in prediction] if isinstance(prediction, list) else asdict(prediction)
    return json.dumps(plain, ensure_ascii=False)


def check_input(path: str) -> None:
    """Raises an error if the input is a table, whose lines are not texts."""
    if format_of(path) in {*NO_TEXT} - {".tsv", ".jsonl"}:  # a pair is two texts with a tab between
        raise ConfigError(
            f"input={path}: a table; expected a file with one text per line, or .jsonl with one JSON value per line"
        )


def read_texts(path: str) -> list[str]:
    """Reads the lines of a file or of standard input (-)."""
    with error_prefix():
        return lines_of(decoded(sys.stdin.buffer.read(), "standard input")) if path == "-" else read_lines(Path(path))


def output(path: str) -> AbstractContextManager[TextIO]:
    """Opens the output file; - is standard output."""
    if path == "-":
        return nullcontext(sys.stdout)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    return open(path, "w", encoding="utf-8", newline="\n")
