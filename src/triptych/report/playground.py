"""``triptych playground``: a page to type a text into; what each trained model makes of it, and where it looks."""

import errno
import gzip
import math
import socket
import sys
import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qsl, urlencode, urlsplit

from plotly.offline import get_plotlyjs, get_plotlyjs_version  # type: ignore[import-untyped]

from triptych.assembly.restore import load
from triptych.attention import attention_maps
from triptych.config import ConfigError, RunError
from triptych.models.generation import Sampling
from triptych.predict import check_lengths, images
from triptych.report.page.attention import draw_attention
from triptych.report.page.charts import Switch
from triptych.report.page.document import render_template
from triptych.report.read_records import ARCHITECTURES, Run, find_runs
from triptych.report.samples import format_answer, is_recordable, list_maps, recordable_length
from triptych.tasks import ClassPrediction, GenerativeTask, Prediction, Task

NUM_EXAMPLES = 4
"""Of the test set, to begin with."""

MOST_CLASSES = 8
"""Whose probabilities are shown."""

HOTTEST, LAST_SEED = 100, 2**32 - 1
"""The largest temperature and seed."""

PLOTLY = f"/plotly-{get_plotlyjs_version()}.js"
"""Where the charts' library is served: megabytes that a browser asks for once, not with each answer."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked, as the address of the page says it.

    Attributes:
        number: of the group of models, from 0.
        text: for the models; None: nothing is asked yet.
        pair: the second text, for models of pairs.
        sampling: for models that write.
    """

    number: int = 0
    text: str | None = None
    pair: str = ""
    sampling: Sampling = field(default_factory=Sampling)

    def is_asked(self, task: Task) -> bool:
        """Whether there is something to answer; a language model begins from nothing, too."""
        return self.text is not None and bool(self.text.strip() or not task.needs_input)

    @classmethod
    def of(cls, address: str, groups: Sequence[str]) -> tuple[Self, list[str]]:
        """Reads an address.

        Args:
            address: of the page, with the query.
            groups: the titles of the groups.

        Returns:
            The question, with 0 in place of numbers that cannot be, and what is wrong with these.
        """
        given = dict(parse_qsl(urlsplit(address).query, keep_blank_values=True))
        mistakes: list[str] = []

        def number(name: str, most: int, expected: str, *, whole: bool) -> float:
            try:
                value = float(given.get(name) or 0)
            except ValueError:
                value = math.nan
            if 0 <= value <= most and (value.is_integer() or not whole):  # not nan
                return value
            mistakes.append(f"{name}={given[name]}: expected {expected}")
            return 0.0

        titles = " or ".join(f"{i} ({title})" for i, title in enumerate(groups))
        group = int(number("group", len(groups) - 1, titles, whole=True))
        temperature = number("temperature", HOTTEST, f"a number from 0 to {HOTTEST}", whole=False)
        seed = int(number("seed", LAST_SEED, f"a whole number from 0 to {LAST_SEED}", whole=True))
        text = given.get("text")
        question = cls(
            group,
            None if text is None else text.replace("\r\n", "\n"),  # as forms write the end of a line
            given.get("pair", "").replace("\r\n", "\n"),
            Sampling(temperature, seed=seed),
        )
        return question, mistakes


@dataclass(frozen=True, slots=True)
class Card:
    """One model, with what it answers.

    Attributes:
        run: of the model.
        error: why it cannot answer; empty: it can, or nothing is asked.
        answer: None: there is none.
        probabilities: of the likeliest classes.
        num_read: tokens of a text that is longer; 0: all of it was read.
        num_drawable: the most tokens for which attention is drawn, where it is not; 0: it is.
        attention: figures of where the model list_maps.
    """

    run: Run
    error: str = ""
    answer: str | None = None
    probabilities: Mapping[str, float] = field(default_factory=dict)
    num_read: int = 0
    num_drawable: int = 0
    attention: Switch = field(default_factory=dict)


class Playground:
    """The models side by side; those of one task on the same data answer the same text.

    Args:
        runs: finished runs, sorted by task and data.
        folder: that their directories are relative to.
    """

    def __init__(self, runs: Sequence[Run], folder: Path) -> None:
        self.groups: dict[tuple[str, str], list[Run]] = {}
        for run in runs:
            self.groups.setdefault((run.task, run.data), []).append(run)
        self.titles = [f"{found[0].task_facts.title} · {data}" for (_, data), found in self.groups.items()]
        self.model = cache(lambda directory: load(folder / directory).eval())  # read when it is first asked
        self._one_at_a_time = threading.Lock()

    def page(self, address: str) -> tuple[HTTPStatus, str]:
        """The page at an address, and whether the question could be answered.

        Args:
            address: with the question as its query.
        """
        with self._one_at_a_time:
            question, mistakes = Question.of(address, self.titles)
            runs = list(self.groups.values())[question.number]
            cards, task, num_answers = list[Card](), None, 0
            for run in runs:
                try:
                    task = self.model(run.directory)
                    is_asked = not mistakes and question.is_asked(task)
                    cards.append(_answer(run, task, question) if is_asked else Card(run))
                    num_answers += is_asked
                except (ConfigError, RunError, ValueError, OSError) as error:  # others may answer
                    cards.append(Card(run, error=str(error)))
            if not mistakes and question.text is not None and task is not None and not question.is_asked(task):
                mistakes.append("the text is empty: expected something to answer")
            context = {
                "titles": self.titles,
                "links": self._link_groups(question),
                "question": question,
                "temperature": f"{question.sampling.temperature:g}",
                "hottest": HOTTEST,
                "last_seed": LAST_SEED,
                "form": None if task is None else _describe_form(question, runs, task),
                "mistakes": mistakes,
                "architectures": ARCHITECTURES,
                "cards": cards,
                "has_charts": any(card.attention for card in cards),
                "plotly": PLOTLY,
            }
            is_refused = mistakes or (question.text is not None and not num_answers)
            status = HTTPStatus.BAD_REQUEST if is_refused else HTTPStatus.OK
            return status, render_template("playground.html", context)

    def _link_groups(self, question: Question) -> list[str]:
        """The addresses of the groups, where there are several; they take the text along."""
        asked = {} if question.text is None else {"text": question.text}
        several = range(len(self.groups)) if len(self.groups) > 1 else ()
        return [f"?{urlencode({'group': number, **asked})}" for number in several]


def _describe_form(question: Question, runs: Sequence[Run], task: Task) -> dict[str, object]:
    """What the models can be asked, and some examples, by the addresses that ask them."""
    writes = isinstance(task, GenerativeTask)
    label = task.input_title
    examples: dict[str, str] = {}
    if task.image_shape is not None:
        label = f"Image, as JSON: {' by '.join(map(str, task.image_shape))}"
    elif not task.reads_pairs:
        texts = dict.fromkeys(sample["input"] for run in runs for sample in run.samples)
        sampling = {"temperature": f"{question.sampling.temperature:g}", "seed": question.sampling.seed}
        asked = {"group": question.number, **(sampling if writes else {})}
        examples = {f"?{urlencode({**asked, 'text': text})}": text for text in [*texts][:NUM_EXAMPLES]}
    return {"label": label, "reads_pairs": task.reads_pairs, "writes": writes, "examples": examples}


def _answer(run: Run, task: Task, question: Question) -> Card:
    """What one model says, and where it list_maps.

    Raises:
        ConfigError: a text that the model cannot read.
    """
    if task.frames is not None:
        raise ConfigError("this model hears sounds, which cannot be typed; use triptych predict")
    asked: Any = question.text or ""
    num_read = 0
    if task.image_shape is not None:
        (asked,) = images([asked], task.image_shape, "the image")
    else:
        asked = (asked, question.pair) if task.reads_pairs else asked
        num_read = task.max_length if check_lengths(task, [asked], "the text") else 0
    if isinstance(task, GenerativeTask):
        task.sampling = question.sampling
    (maps,) = attention_maps(task, [asked])
    longest = recordable_length(task, 1)
    is_drawn = is_recordable(maps, longest)
    return Card(
        run,
        answer=format_answer(maps.prediction),
        probabilities=_likeliest(maps.prediction),
        num_read=num_read,
        num_drawable=0 if is_drawn else longest,
        attention=draw_attention(list_maps(maps, longest), run.architecture, ARCHITECTURES[run.architecture])
        if is_drawn
        else {},
    )


def _likeliest(prediction: Prediction) -> dict[str, float]:
    """The probabilities of the likeliest classes, where there are classes."""
    probabilities = prediction.probabilities if isinstance(prediction, ClassPrediction) else {}
    return dict(sorted(probabilities.items(), key=lambda item: -item[1])[:MOST_CLASSES])


def names_this_machine(host: str, names: Collection[str]) -> bool:
    """Whether a Host header is right. A page of a stranger may have its own name point to this machine (DNS rebinding),
    and read what is served here; but then the browser sends that name. An address in numbers cannot be redirected.

    Args:
        host: the header, with or without a port.
        names: of this machine, in small letters.
    """
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    try:
        ip_address(name)
    except ValueError:
        return name in names
    return True


@cache
def _packed_plotly() -> bytes:
    return gzip.compress(get_plotlyjs().encode())


def listen(host: str, port: int, handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    """A server, with a thread for each connection, since browsers open some that they may not use.

    Raises:
        ConfigError: no such host or port, or the port is taken.
    """
    try:
        return ThreadingHTTPServer((host, port), handler)
    except (OSError, OverflowError) as error:
        if isinstance(error, OverflowError):
            reason = "expected a port from 0 to 65535; 0 takes a free one"
        elif error.errno == errno.EADDRINUSE:
            reason = f"{error.strerror}; --port 0 takes a free one"
        else:
            reason = f"{error.strerror}; expected an IPv4 address or a name of this machine, as 127.0.0.1 or 0.0.0.0"
        raise ConfigError(f"--host {host} --port {port}: {reason}") from None


def playground(directories: Sequence[Path], host: str, port: int) -> None:
    """Serves the page until Ctrl-C.

    Args:
        directories: run directories, or parents of them.
        port: of it; 0: any that is free.

    Raises:
        ValueError: no run was found that can be read.
        ConfigError: an address or a port that cannot be listened at.
    """
    folder = Path()
    found = find_runs(directories, folder)
    for damage in found.damaged:
        print(f"left out because it is damaged: {damage}", file=sys.stderr)
    page = Playground((*found.runs, *found.untested), folder).page
    names = {"localhost", host.lower(), socket.gethostname().lower()}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers.get("Host")
            if asked is not None and not names_this_machine(asked, names):  # a browser always says it
                self.send_error(HTTPStatus.MISDIRECTED_REQUEST, explain=f"Expected one of {', '.join(sorted(names))}")
            elif self.path == PLOTLY:
                kind = {"Content-Type": "text/javascript", "Cache-Control": "max-age=31536000, immutable"}
                self._send(HTTPStatus.OK, kind, _packed_plotly())
            elif urlsplit(self.path).path == "/":
                status, text = page(self.path)
                kind = {"Content-Type": "text/html; charset=utf-8"}
                self._send(status, kind, gzip.compress(text.encode(errors="replace")))
            else:
                self.send_error(HTTPStatus.NOT_FOUND)

        def do_HEAD(self) -> None:
            self.do_GET()

        def _send(self, status: HTTPStatus, headers: Mapping[str, str], packed: bytes) -> None:
            is_read_packed = "gzip" in self.headers.get("Accept-Encoding", "")
            content = packed if is_read_packed else gzip.decompress(packed)
            encoding = {"Content-Encoding": "gzip"} if is_read_packed else {}
            with suppress(ConnectionError):  # whoever asked has left
                self.send_response(status)
                for name, value in {**headers, **encoding, "Content-Length": str(len(content))}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

        def log_message(self, format: str, *arguments: object) -> None:
            """What is typed stays in the browser."""

    with listen(host, port, Handler) as server:
        try:
            print(f"http://{host}:{server.server_port} (Ctrl-C ends it)", flush=True)
            server.serve_forever()
        except KeyboardInterrupt:
            print()
