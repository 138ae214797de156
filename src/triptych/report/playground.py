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
from html import escape
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
from triptych.report.page.assets import LOGO, glyph
from triptych.report.page.attention import attention_figures
from triptych.report.page.render import render_document, render_switch
from triptych.report.records import ARCHITECTURES, Run, find_runs
from triptych.report.samples import is_recordable, looked, recordable_length
from triptych.report.wording import amount
from triptych.tasks import Task
from triptych.tasks.base import ClassPrediction, Prediction
from triptych.tasks.generative import GenerativeTask

NUM_EXAMPLES = 4
"""Of the test set, to begin with."""

MOST_CLASSES = 8
"""Whose probabilities are shown."""

HOTTEST, LAST_SEED = 100, 2**32 - 1
"""The largest temperature and seed."""

PLOTLY = f"/plotly-{get_plotlyjs_version()}.js"
"""Where the charts' library is served: megabytes that a browser asks for once, not with each answer."""

FORM_SCRIPT = """
const form = document.querySelector("form.ask");
form?.querySelectorAll("textarea").forEach(box => box.addEventListener("keydown", event => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  form.requestSubmit();
}));
// Another task is asked what is in the form, sent or not.
document.querySelectorAll("nav.switch a").forEach(link => link.addEventListener("click", event => {
  if (!form?.elements.text.value.trim()) return;
  event.preventDefault();
  form.elements.group.value = link.dataset.group;
  form.requestSubmit();
}));
"""


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
            cards, task, num_answers = "", None, 0
            for run in runs:
                try:
                    task = self.model(run.directory)
                    is_asked = not mistakes and question.is_asked(task)
                    cards += _answer(run, task, question) if is_asked else _card(run, "")
                    num_answers += is_asked
                except (ConfigError, RunError, ValueError, OSError) as error:  # others may answer
                    cards += _card(run, _notice(str(error)))
            if not mistakes and question.text is not None and task is not None and not question.is_asked(task):
                mistakes.append("the text is empty: expected something to answer")
            body = f"""<header>
<div class="brand">{LOGO}<span>Triptych</span></div>
<h1>What does each model make of it?</h1>
<p class="soft">{escape(self.titles[question.number])}: each model answers what you type, side by side.
Below an answer you see where the model looked: a row is a token that it writes (or, where it writes nothing, reads),
a column what it looks at; the stronger the colour, the more.</p>
</header>
<main>
{self._groups(question)}
{"" if task is None else _form(question, runs, task)}
{"".join(map(_notice, mistakes))}
<section class="charts">{cards}</section>
</main>
<script>{FORM_SCRIPT}</script>"""
            is_refused = mistakes or (question.text is not None and not num_answers)
            status = HTTPStatus.BAD_REQUEST if is_refused else HTTPStatus.OK
            return status, render_document("Triptych: playground", body, form_action="'self'", plotly=PLOTLY)

    def _groups(self, question: Question) -> str:
        """Links to the groups."""
        if len(self.groups) == 1:
            return ""
        asked = {} if question.text is None else {"text": question.text}
        links = "".join(
            f'<a href="?{escape(urlencode({"group": i, **asked}))}" data-group="{i}"'
            f"{' aria-current=page' if i == question.number else ''}>{escape(title)}</a>"
            for i, title in enumerate(self.titles)
        )
        return f'<nav class="switch">{links}</nav>'


def _form(question: Question, runs: Sequence[Run], task: Task) -> str:
    """What is asked, and some examples."""
    writes = isinstance(task, GenerativeTask)
    sampling = question.sampling
    pair = f'<label>Second text<textarea name="pair" rows="3">{escape(question.pair)}</textarea></label>'
    number = 'type="number" min="0"'
    choices = f"""<label>Temperature <span class="soft">(0: the likeliest)</span>
<input name="temperature" {number} max="{HOTTEST}" step="any" value="{sampling.temperature:g}"></label>
<label>Seed<input name="seed" {number} max="{LAST_SEED}" step="1" value="{sampling.seed}"></label>"""
    first = task.input_title
    examples = ""
    if task.image_shape is None and not task.reads_pairs:
        texts = dict.fromkeys(sample["input"] for run in runs for sample in run.samples)
        kept = {"temperature": f"{sampling.temperature:g}", "seed": sampling.seed} if writes else {}
        examples = "".join(
            f'<a href="?{escape(urlencode({"group": question.number, **kept, "text": text}))}" dir="auto">'
            f"{escape(text if len(text) <= 60 else text[:59] + '…')}</a>"
            for text in [*texts][:NUM_EXAMPLES]
        )
    if task.image_shape is not None:
        first = f"Image, as JSON: {' by '.join(map(str, task.image_shape))}"
    return f"""<form class="panel ask" method="get">
<input type="hidden" name="group" value="{question.number}">
<label>{first}<textarea name="text" rows="3" dir="auto" autofocus>{escape(question.text or "")}</textarea></label>
{pair if task.reads_pairs else ""}
<div class="row">{choices if writes else ""}<button>Answer</button>
<span class="soft">Enter answers; Shift and Enter begin a new line.</span></div>
{f'<div class="switch"><span class="soft">Of the test set:</span>{examples}</div>' if examples else ""}
</form>"""


def _answer(run: Run, task: Task, question: Question) -> str:
    """What one model says, and where it looked.

    Raises:
        ConfigError: a text that the model cannot read.
    """
    asked: Any = question.text or ""
    part = ""
    if task.image_shape is not None:
        (asked,) = images([asked], task.image_shape, "the image")
    else:
        asked = (asked, question.pair) if task.reads_pairs else asked
        if check_lengths(task, [asked], "the text"):
            part = f'<p class="notice">Only the beginning was read: {task.max_length} tokens.</p>'
    if isinstance(task, GenerativeTask):
        task.sampling = question.sampling
    (maps,) = attention_maps(task, [asked])
    longest, figures = recordable_length(task, 1), {}
    if is_recordable(maps, longest):
        figures = attention_figures(looked(maps, longest), run.architecture, ARCHITECTURES[run.architecture])
    else:
        part += f'<p class="soft">Where it looked is drawn of texts of at most {longest} tokens.</p>'
    return _card(run, f"{_prediction(maps.prediction)}{part}", render_switch(figures) if figures else "")


def _card(run: Run, answer: str, attention: str = "") -> str:
    """A model, with what it says."""
    return (
        f'<article class="answer"><div class="run {run.architecture}"><header>{ARCHITECTURES[run.architecture]}'
        f'{glyph(run.architecture)}</header>{answer}<div class="soft">{escape(run.directory)}, seed {run.seed}, '
        f"{amount(run.params)} parameters</div></div>{attention}</article>"
    )


def _notice(text: str) -> str:
    return f'<p class="notice" role="alert">{escape(text)}</p>'


def _prediction(prediction: Prediction) -> str:
    """An answer; of classes the probabilities too."""
    if isinstance(prediction, ClassPrediction):
        return f'<div class="said" dir="auto">{escape(prediction.label)}</div>{_bars(prediction.probabilities)}'
    text = f"{prediction:.6g}" if isinstance(prediction, float) else str(prediction)
    return f'<div class="said" dir="auto">{escape(text) or "<i>(nothing)</i>"}</div>'


def _bars(probabilities: Mapping[str, float]) -> str:
    """The likeliest classes."""
    likeliest = sorted(probabilities.items(), key=lambda item: -item[1])[:MOST_CLASSES]
    rows = "".join(
        f'<tr><th scope="row">{escape(label)}</th><td><meter min="0" max="1" value="{p:.4f}"></meter></td>'
        f'<td class="number">{100 * p:.1f} %</td></tr>'
        for label, p in likeliest
    )
    return f'<table class="bars">{rows}</table>'


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


def playground(directories: Sequence[Path], host: str, port: int) -> None:
    """Serves the page until Ctrl-C.

    Args:
        directories: run directories, or parents of them.
        host: the address to listen at.
        port: of it; 0: any that is free.

    Raises:
        ValueError: no run was found that can be read.
        ConfigError: an address or a port that cannot be listened at.
    """
    folder = Path()
    found = find_runs(directories, folder)
    for damage in found.damaged:
        print(f"left out, as damaged: {damage}", file=sys.stderr)
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

    try:
        server = ThreadingHTTPServer((host, port), Handler)  # browsers open connections that they may not use
    except (OSError, OverflowError) as error:
        if isinstance(error, OverflowError):
            reason = "expected a port from 0 to 65535; 0 takes a free one"
        elif error.errno == errno.EADDRINUSE:
            reason = f"{error.strerror}; --port 0 takes a free one"
        else:
            reason = f"{error.strerror}; expected an IPv4 address or a name of this machine, as 127.0.0.1 or 0.0.0.0"
        raise ConfigError(f"--host {host} --port {port}: {reason}") from None
    with server:
        try:
            print(f"http://{host}:{server.server_port} (Ctrl-C ends it)", flush=True)
            server.serve_forever()
        except KeyboardInterrupt:
            print()
