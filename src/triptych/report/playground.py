"""``triptych playground``: a page with a text, audio or image as the input; shows each trained model's prediction and
attention."""

import base64
import hashlib
import json
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qsl, urlencode, urlsplit

import numpy as np
import torch
from plotly.offline import get_plotlyjs_version  # type: ignore[import-untyped]

from triptych.assembly.restore import load
from triptych.config import ConfigError, RunError
from triptych.data import Audio, Example, FileChanges, Image, Message, read_audio, read_image
from triptych.data.example import ANSWERING
from triptych.data.images import PNG_ADDRESS, as_address
from triptych.data.readers.columns import as_messages
from triptych.data.template_sandbox import time_limit
from triptych.models.generation import Sampling
from triptych.nn import PatchEmbedding
from triptych.predict import check_input_lengths
from triptych.report.attention_maps import attention_maps
from triptych.report.page.attention_charts import draw_attention
from triptych.report.page.audio_charts import draw_sound
from triptych.report.page.document import render_template
from triptych.report.page.image_charts import draw_image
from triptych.report.page.style import ARCHITECTURES, Switch
from triptych.report.read_records import RecordedRun
from triptych.report.samples import format_answer, is_recordable, list_maps, recordable_length
from triptych.report.statistics.factors import FOLLOWS, MODEL, choose_factor, find_roles, level_of
from triptych.tasks import Chat, ClassPrediction, GenerativeTask, ImageTextMatching, Prediction, Predictor, Task

NUM_EXAMPLES = 4
"""Number of test examples offered."""

MOST_CLASSES = 8
"""Most classes whose probabilities are shown."""

RENDER_SECONDS = 5.0
"""Time limit for a chat template to render a conversation."""

HOTTEST, LAST_SEED = 100, 2**32 - 1
"""The highest temperature and seed."""

MOST_KEPT = 100
"""Files, and conversation replies, kept in memory."""

MOST_SHOWN = 512
"""Largest side of an image on the page, in pixels; larger images are downscaled."""

Say = Callable[[str], None]
"""Is called with each new part of a reply."""

PLOTLY = f"/plotly-{get_plotlyjs_version()}.js"
"""URL of plotly.js: browsers load its megabytes once, not with each answer."""


@dataclass(frozen=True, slots=True)
class Question:
    """A request, as encoded in the page's URL.

    Attributes:
        number: of the group of models, from 0.
        text: for the models; None before the first request.
        text_pair: the second text, for models of pairs.
        sampling: for generative models.
        earlier: the user's earlier messages in a conversation.
        file: URL of uploaded audio or an uploaded image, for models that read such.
    """

    number: int = 0
    text: str | None = None
    text_pair: str = ""
    sampling: Sampling = field(default_factory=Sampling)
    earlier: tuple[str, ...] = ()
    file: str = ""

    def is_asked(self, task: Task) -> bool:
        """Whether there is an input; a language model also generates from an empty one."""
        if takes_files(task):
            return bool(self.file)
        return self.text is not None and bool(self.text.strip() or not task.needs_input)

    @classmethod
    def of(cls, address: str, groups: Sequence[str]) -> tuple[Self, list[str]]:
        """Parses a URL.

        Args:
            address: of the page, with the query.
            groups: the titles of the groups.

        Returns:
            The request, with 0 for invalid numbers, and the error messages for those.
        """
        pairs = parse_qsl(urlsplit(address).query, keep_blank_values=True)
        given = dict(pairs)
        errors: list[str] = []

        def number(name: str, most: int, expected: str, *, whole: bool) -> float:
            try:
                value = float(given.get(name) or 0)
            except ValueError:
                value = math.nan
            if 0 <= value <= most and (value.is_integer() or not whole):  # not NaN
                return value
            errors.append(f"{name}={given[name]}: expected {expected}")
            return 0.0

        titles = " or ".join(f"{i} ({title})" for i, title in enumerate(groups))
        group = int(number("group", len(groups) - 1, titles, whole=True))
        temperature = number("temperature", HOTTEST, f"a number from 0 to {HOTTEST}", whole=False)
        seed = int(number("seed", LAST_SEED, f"a whole number from 0 to {LAST_SEED}", whole=True))
        texts = [value.replace("\r\n", "\n") for name, value in pairs if name == "text"]  # as browsers submit line ends
        text, text_pair = texts[-1] if texts else None, given.get("text_pair", "").replace("\r\n", "\n")
        sampling = Sampling(temperature, seed=seed)
        question = cls(group, text, text_pair, sampling, tuple(texts[:-1]), given.get("file", ""))
        return question, errors


@dataclass(frozen=True, slots=True)
class Card:
    """One model with its answer.

    Attributes:
        run: of the model.
        error: why it cannot answer; otherwise empty.
        answer: None without one; for an image, its URL.
        is_image: whether the answer is an image.
        probabilities: of the most likely classes.
        num_read: tokens read, if the text was truncated; otherwise 0.
        num_drawable: the most tokens for which attention is drawn, if the text exceeds that; otherwise 0.
        attention: the attention charts.
        talk: a conversation whose last message is the answer.
    """

    run: RecordedRun
    error: str = ""
    answer: str | None = None
    is_image: bool = False
    probabilities: Mapping[str, float] = field(default_factory=dict)
    num_read: int = 0
    num_drawable: int = 0
    attention: Switch = field(default_factory=dict)
    talk: Sequence[Message] = ()


@dataclass(frozen=True, slots=True)
class Talk:
    """A conversation in which a model generates the next reply.

    Attributes:
        number: of the group of models.
        model: of the model in the group.
        messages: so far.
        sampling: of the reply.
    """

    number: int
    model: int
    messages: tuple[Message, ...]
    sampling: Sampling

    @classmethod
    def read(cls, content: bytes) -> Self:
        """Parses a request of the page.

        Raises:
            ValueError: the content is invalid.
        """
        try:
            sent = json.loads(content)
            number, model, seed = (int(sent[name]) for name in ("group", "model", "seed"))
            sampling = Sampling(float(sent["temperature"]), seed=seed)
            return cls(number, model, as_messages(sent["messages"]), sampling)
        except (KeyError, TypeError, RecursionError, OverflowError):
            raise ValueError("expected group, model, messages, temperature and seed") from None


class Playground:
    """The models side by side; models of one task on the same data get the same input.

    Args:
        runs: finished runs, sorted by task and data.
        folder: that their directories are relative to.

    Attributes:
        files: the most recent uploads, by URL.
        names: what distinguishes each model from the others of its task and data, by directory.
    """

    def __init__(self, runs: Sequence[RecordedRun], folder: Path) -> None:
        self.groups: dict[tuple[str, str], list[RecordedRun]] = {}
        for run in runs:
            self.groups.setdefault((run.task, run.data), []).append(run)
        self.names = {run.directory: name for found in self.groups.values() for run, name in _name_runs(found)}
        self.titles = [f"{found[0].task_info.title} · {data}" for (_, data), found in self.groups.items()]
        self.model = cache(lambda directory: load(folder / directory).task)  # loaded at its first request
        self.files: dict[str, Audio | bytes] = {}
        self._replies: dict[tuple[str, tuple[Message, ...], Sampling], str] = {}
        self._one_at_a_time = threading.Lock()

    def keep_audio(self, content: bytes) -> str:
        """Stores an uploaded audio file and returns its URL."""
        changes = FileChanges("audio clips")
        sound, done = read_audio(Path("the audio"), content)
        changes.add(done)
        changes.report("the playground")
        return self._keep_file(content, sound)

    def keep_image(self, content: bytes) -> str:
        """Stores an uploaded image file and returns its URL; each model resizes it."""
        read_image(Path("the image"), content, channels=3)
        return self._keep_file(content, content)

    def _keep_file(self, content: bytes, read: Audio | bytes) -> str:
        address = hashlib.sha256(content).hexdigest()[:32]
        _keep(self.files, address, read)
        return address

    def reply(self, talk: Talk, say: Say) -> str:
        """The next reply in a conversation, stored for the page that requests it again.

        Args:
            talk: the conversation.
            say: is called with each new part.

        Raises:
            ConfigError: unknown model, or one that cannot reply.
            ValueError: an invalid conversation.
        """
        runs = list(self.groups.values())
        if not (0 <= talk.number < len(runs) and 0 <= talk.model < len(runs[talk.number])):
            raise ConfigError(f"group={talk.number}, model={talk.model}: no such model")
        with self._one_at_a_time:
            run = runs[talk.number][talk.model]
            task = self.model(run.directory)
            if not isinstance(task, Chat):
                raise ConfigError(f"{run.directory}: trained for task={task.name}; expected task=chat")
            return self._reply(run.directory, task, talk.messages, talk.sampling, say)

    def _reply(
        self, directory: str, task: Chat, messages: tuple[Message, ...], sampling: Sampling, say: Say = lambda _: None
    ) -> str:
        key = (directory, messages, sampling)
        if key in self._replies:
            say(self._replies[key])
        else:
            task.sampling = sampling
            with time_limit(RENDER_SECONDS):
                task.check_input(messages)
                _keep(self._replies, key, task.reply(messages, say))
        return self._replies[key]

    def page(self, address: str) -> tuple[HTTPStatus, str]:
        """The HTTP status and the page at a URL, whose query is the request."""
        with self._one_at_a_time:
            question, errors = Question.of(address, self.titles)
            runs = list(self.groups.values())[question.number]
            cards, task, num_answers = list[Card](), None, 0
            for run in runs:
                try:
                    task = self.model(run.directory)
                    is_asked = not errors and question.is_asked(task)
                    cards.append(self._answer(run, task, question) if is_asked else Card(run))
                    num_answers += is_asked
                except (ConfigError, RunError, ValueError, OSError) as error:  # others may answer
                    cards.append(Card(run, error=str(error)))
            is_sent = question.text is not None or bool(question.file)
            if not errors and is_sent and task is not None and not question.is_asked(task):
                errors.append("the text is empty; enter a text")
            context = {
                "titles": self.titles,
                "links": self._link_groups(question),
                "question": question,
                "said": [*question.earlier, *([question.text] if num_answers else [])],
                "is_answered": num_answers > 0,
                "temperature": f"{question.sampling.temperature:g}",
                "hottest": HOTTEST,
                "last_seed": LAST_SEED,
                "form": None if task is None else self._describe_form(question, runs, task),
                "picture": self._show_picture(question),
                "errors": errors,
                "cards": cards,
                "names": self.names,
                "has_charts": any(card.attention for card in cards),
                "plotly": PLOTLY,
            }
            is_refused = errors or (is_sent and not num_answers)
            status = HTTPStatus.BAD_REQUEST if is_refused else HTTPStatus.OK
            return status, render_template("playground.html", context)

    def _answer(self, run: RecordedRun, task: Task, question: Question) -> Card:
        """The prediction of one model, and its attention.

        Raises:
            ConfigError: the model cannot read the text.
        """
        asked: Any = question.text or ""
        num_read, talk = 0, list[Message]()
        if takes_files(task):
            file = self.files.get(question.file)
            if file is None or isinstance(file, Audio) != (task.audio is not None):
                raise ConfigError("the file has expired; upload it again")
            if isinstance(file, Audio):
                return _predict_audio(run, task, file)
            return _predict_image(run, task, file, question)
        if isinstance(task, Chat):
            for text in (*question.earlier, asked):
                talk.append(Message("user", text))
                talk.append(Message(ANSWERING, self._reply(run.directory, task, tuple(talk), question.sampling)))
            asked = talk[:-1]
        else:
            asked = (asked, question.text_pair) if task.reads_pairs else asked
            num_read = task.max_length if check_input_lengths(task, [asked], "the text") else 0
        if isinstance(task, GenerativeTask):
            task.sampling = question.sampling
        with time_limit(RENDER_SECONDS):
            (maps,) = attention_maps(Predictor(task), [asked])
        longest = recordable_length(task, 1)
        is_drawn = is_recordable(maps, longest)
        return Card(
            run,
            answer=format_answer(maps.prediction),
            is_image=isinstance(maps.prediction, Image),
            probabilities=_most_likely(maps.prediction),
            num_read=num_read,
            num_drawable=0 if is_drawn else longest,
            attention=draw_attention(list_maps(maps, longest), run.architecture, ARCHITECTURES[run.architecture].word)
            if is_drawn
            else {},
            talk=talk,
        )

    def _show_picture(self, question: Question) -> str:
        """URL of the uploaded image for the page; empty without one."""
        file = self.files.get(question.file)
        if not isinstance(file, bytes):
            return ""
        image, _ = read_image(Path("the image"), file, channels=3)
        step = -(-max(image.shape) // MOST_SHOWN)
        return as_address(Image.of(np.asarray(image)[:, ::step, ::step]))

    def _describe_form(self, question: Question, runs: Sequence[RecordedRun], task: Task) -> dict[str, object]:
        """The inputs of the form, and links to some examples."""
        generates = isinstance(task, GenerativeTask) and task.architecture != "encoder_only"
        sampling = {"temperature": f"{question.sampling.temperature:g}", "seed": question.sampling.seed}
        asked = {"group": question.number, **(sampling if generates else {})}
        texts, pictures = dict[str, str](), dict[str, str]()
        choices = _choices(runs[0], task) if isinstance(task, ImageTextMatching) else []
        if choices and question.text:
            asked["text"] = question.text
        samples = [sample for run in runs for sample in run.samples]
        if task.image_shape is not None:
            for picture in [*dict.fromkeys(sample["image"] for sample in samples if "image" in sample)][:NUM_EXAMPLES]:
                content = base64.b64decode(picture.removeprefix(PNG_ADDRESS))
                pictures[f"?{urlencode({**asked, 'file': self._keep_file(content, content)})}"] = picture
        elif task.audio is None and not task.reads_pairs:
            inputs = [*dict.fromkeys(sample["input"] for sample in samples)][:NUM_EXAMPLES]
            texts = {f"?{urlencode({**asked, 'text': text})}": text for text in inputs}
        return {
            "label": task.input_title,
            "reads_pairs": task.reads_pairs,
            "takes_audio": task.audio is not None,
            "takes_images": task.image_shape is not None,
            "is_chat": isinstance(task, Chat),
            "choices": "\n".join(choices),
            "generates_text": generates,
            "examples": texts,
            "pictures": pictures,
        }

    def _link_groups(self, question: Question) -> list[str]:
        """URLs of the groups, with the current text, if there are several."""
        is_single = question.text is not None and not question.earlier
        asked = {"text": question.text} if is_single else {}
        several = range(len(self.groups)) if len(self.groups) > 1 else ()
        return [f"?{urlencode({'group': number, **asked})}" for number in several]


def _name_runs(runs: Sequence[RecordedRun]) -> list[tuple[RecordedRun, str]]:
    """Each run with what distinguishes it from the others of its task and data, apart from the seed: its architecture,
    or the settings that differ."""
    keys = [factor.key for factor in find_roles(runs, [choose_factor(runs)]) if factor.role != FOLLOWS]
    words = [[ARCHITECTURES[x.architecture].word if key == MODEL else level_of(x, [key]) for key in keys] for x in runs]
    return [(run, ", ".join(found)) for run, found in zip(runs, words, strict=True)]


def takes_files(task: Task) -> bool:
    """Whether its input is audio or an image instead of text."""
    return task.audio is not None or task.image_shape is not None


def _predict_audio(run: RecordedRun, task: Task, sound: Audio) -> Card:
    """The card of one model for an audio clip."""
    assert task.audio is not None
    embedding, longest = task.audio.embedding, task.audio.max_positions
    frames = torch.from_numpy(task.audio.features(Example("the audio", audio=sound)))
    length = embedding.count(len(frames))
    if length > longest and not task.truncates:
        raise ConfigError(f"audio of {length} positions; the network supports at most {longest}")
    (maps,) = attention_maps(Predictor(task), [sound])
    name = ARCHITECTURES[run.architecture].word
    return Card(
        run,
        answer=format_answer(maps.prediction),
        probabilities=_most_likely(maps.prediction),
        num_read=longest if length > longest else 0,
        attention=draw_sound(frames[: longest * embedding.stride], embedding, maps, run.architecture, name),
    )


def _choices(run: RecordedRun, task: ImageTextMatching) -> list[str]:
    """The candidate texts of a model, if the user gives none."""
    return [*task.labels] or [*dict.fromkeys(sample["reference"] for sample in run.samples)]


def _predict_image(run: RecordedRun, task: Task, content: bytes, question: Question) -> Card:
    """The card of one model for an image, from the content of its file."""
    assert task.image_shape is not None
    channels, height, width = task.image_shape
    image, _ = read_image(Path("the image"), content, channels=channels, size=(height, width))
    if isinstance(task, GenerativeTask):
        task.sampling = question.sampling
    if isinstance(task, ImageTextMatching):
        lines = [line.strip() for line in (question.text or "").splitlines() if line.strip()]
        with task.choosing_from(lines or _choices(run, task)):
            (maps,) = attention_maps(Predictor(task), [image])
    else:
        (maps,) = attention_maps(Predictor(task), [image])
    (embedding,) = (part for part in task.network.embeddings if isinstance(part, PatchEmbedding))
    name = ARCHITECTURES[run.architecture].word
    return Card(
        run,
        answer=format_answer(maps.prediction),
        probabilities=_most_likely(maps.prediction),
        attention=draw_image(image, embedding, maps, task.network.heads[-1].pooling, name),
    )


def _keep(kept: dict[Any, Any], key: Any, value: Any) -> None:
    """Adds a value; removes the oldest one if there are too many."""
    kept[key] = value
    if len(kept) > MOST_KEPT:
        del kept[next(iter(kept))]


def _most_likely(prediction: Prediction) -> dict[str, float]:
    """The probabilities of the most likely classes; empty without classes."""
    probabilities = prediction.probabilities if isinstance(prediction, ClassPrediction) else {}
    return dict(sorted(probabilities.items(), key=lambda item: -item[1])[:MOST_CLASSES])
