"""The page to play with: a real server, asked as a browser asks, and opened in one."""

import json
import math
import os
import re
import shutil
import signal
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from html import unescape
from html.parser import HTMLParser
from http.client import HTTPConnection
from pathlib import Path
from typing import cast
from urllib.parse import urlencode

import numpy as np
import pytest

import tiny
import triptych
from browser import SCREENS, Browser, needs_browser
from cases import by_day
from clock import wait_until
from commands import Command, run
from predicting import predict
from triptych.data import Audio, DrawnDigits, Image, Message, read_image
from triptych.data.audio import audio_to_wav
from triptych.data.images import as_address, as_png
from triptych.models.generation import Sampling
from triptych.report.playground import Playground
from triptych.report.read_records import find_runs
from triptych.tasks import Chat

EXPERIMENTS = ("classification_full", "classification_encoder_only", "language_modeling_decoder_only")
CHAT = ["experiment=dates/chat", "task.max_new_tokens=9", *tiny.DATES, "data.num_validation=20", "data.num_test=20"]
TONES = [
    "experiment=tones/transcription", "model=full", "data.num_train=60", "data.num_validation=8", "data.num_test=8",
]  # fmt: skip
TALKING = {"talks": [*CHAT, "model=full"], "talks_too": [*CHAT, "model=decoder_only"]}
DRAWN = [
    *("experiment=captions/drawn", "data.num_train=200", "data.num_validation=20", "data.num_test=6"),
    *("data.languages=[en]", "data.max_digits=1", "data.noise=0.1", "image_embedding.image_size=[12,24]"),
]
SEEING = {"images": [*DRAWN, "model=full"], "images_too": [*DRAWN, "model=prefix_lm"]}
MATCHING = {"matches": [DRAWN[0].replace("captions", "matching"), *DRAWN[1:], "batch.global_size=50"]}
OTHERS = TALKING | {"audio": TONES} | SEEING | MATCHING
SEERS, TALKERS, MATCHERS, HEARERS = range(4)
"""The numbers of their groups, in the order of their tasks."""
HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(1)>'


class Page(HTMLParser):
    """The fields of the form, the links, and what each model says."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fields: dict[str, str] = {}
        self.links: list[str] = []
        self.predictions: list[str] = []
        self.tags: set[str] = set()
        self.notices: list[str] = []
        self._into: list[str] | None = None
        self._textarea = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.tags.add(tag)
        self._into = {"prediction": self.predictions, "notice": self.notices}.get(
            (attributes.get("class") or "").split(" ")[-1]
        )
        if self._into is not None:
            self._into.append("")
        if tag == "textarea":
            self._textarea = str(attributes["name"])
            self.fields[self._textarea] = ""
        elif tag == "input":
            self.fields[str(attributes.get("name"))] = str(attributes.get("value"))
        elif tag == "a":
            self.links.append(str(attributes["href"]))

    def handle_endtag(self, tag: str) -> None:
        self._into, self._textarea = None, ""

    def handle_data(self, data: str) -> None:
        if self._into is not None:
            self._into[-1] += data
        elif self._textarea:
            self.fields[self._textarea] += data


@dataclass
class Server:
    """``triptych playground`` as a process."""

    process: Command
    address: str
    runs: Path

    def get(self, path: str) -> tuple[int, str]:
        connection = HTTPConnection(self.address.removeprefix("http://"), timeout=60)
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()

    def post(self, path: str, content: bytes, **headers: str) -> tuple[int, str]:
        connection = HTTPConnection(self.address.removeprefix("http://"), timeout=60)
        connection.request("POST", path, content, headers)
        response = connection.getresponse()
        return response.status, response.read().decode()

    def ask(self, **fields: object) -> tuple[int, Page]:
        """Fills in the form, as it is on the page, and sends it."""
        _, text = self.get(f"/?group={fields.get('group', 0)}")
        form = Page(text).fields
        assert fields.keys() <= form.keys()
        status, answer = self.get(f"/?{urlencode({**form, **fields})}")
        return status, Page(answer)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for name in EXPERIMENTS:
        options = [*tiny.TINY, "logger=csv", "trainer.max_steps=6", "trainer.val_check_interval=3", f"run_dir={name}"]
        finished = run("train", *tiny.dates(name), *options, cwd=folder)
        assert finished.returncode == 0, finished.stderr
    return folder


PLAYGROUND = """
import sys
del sys.modules["scipy.signal"]  # the tests' own has no signals, which are used here
from triptych.cli import main
sys.exit(main())
"""


def start(runs: Path, *options: str) -> Command:
    """Says its address in the file ``stdout``."""
    files = (Path(os.devnull), runs / "stdout", runs / "stderr")
    for file in files[1:]:
        file.write_text("")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return Command("playground", ".", *options, cwd=runs, environment=environment, files=files, program=PLAYGROUND)


def serving(runs: Path) -> Iterator[Server]:
    process = start(runs, "--port", "0")
    wait_until(lambda: "\n" in (runs / "stdout").read_text(), 60, (runs / "stderr").read_text)
    yield Server(process, (runs / "stdout").read_text().split()[0], runs)
    process.kill()


@pytest.fixture(scope="module")
def server(runs: Path) -> Iterator[Server]:
    yield from serving(runs)


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Models that talk, one that hears, and two that see."""
    folder = tmp_path_factory.mktemp("others")
    for name, overrides in OTHERS.items():
        steps = ["scheduler.warmup_steps=5", "trainer.max_steps=30", "trainer.val_check_interval=30"]
        options = [*tiny.NETWORK, *steps, "logger=csv"]
        finished = run("train", *overrides, *options, "optimizer.lr=0.01", f"run_dir={name}", cwd=folder)
        assert finished.returncode == 0, finished.stderr
    yield from serving(folder)


def test_the_models_of_a_task_answer_side_by_side(server: Server) -> None:
    text = "5. März 1998"
    status, page = server.ask(text=text)
    assert status == 200
    predicted = [triptych.load(server.runs / name).predict([text])[0] for name in EXPERIMENTS[:2]]
    assert page.predictions == [prediction.label for prediction in predicted]
    _, source = server.get(f"/?{urlencode({'group': 0, 'text': text})}")
    assert page.fields["text"] == Page(source).fields["text"] == text
    shares = re.findall(r"(\d+\.\d) %", source.split("<main>")[1])
    assert shares == [f"{100 * p:.1f}" for x in predicted for p in sorted(x.probabilities.values(), reverse=True)]


def test_nothing_is_said_before_something_is_asked(server: Server) -> None:
    status, text = server.get("/")
    assert status == 200
    assert Page(text).predictions == []
    assert [text.count(f">{name}, seed") for name in EXPERIMENTS] == [1, 1, 0]


def test_each_task_has_a_link_and_examples_of_its_test_set(server: Server) -> None:
    _, text = server.get("/?group=1")
    page = Page(text)
    assert page.links[:2] == ["?group=0", "?group=1"]
    assert len(page.links) == 2 + 4
    status, answer = server.get("/" + page.links[-1])
    assert status == 200
    assert Page(answer).predictions


def test_a_language_model_continues_as_it_is_told(server: Server) -> None:
    predictor = triptych.load(server.runs / EXPERIMENTS[2])
    greedy = predictor.predict(["lundi "])
    predictor.task.sampling = Sampling(1.0, seed=3)
    sampled = predictor.predict(["lundi "])
    assert greedy != sampled
    asked = {"group": 1, "text": "lundi "}
    assert server.ask(**asked)[1].predictions == greedy
    assert server.ask(**asked, temperature=1, seed=3)[1].predictions == sampled
    assert server.ask(**asked)[1].predictions == greedy  # and the setting is not the next one's


def test_what_is_typed_is_text(server: Server) -> None:
    before = Page(server.get("/?group=1")[1])
    status, page = server.ask(group=1, text=HOSTILE)
    assert status == 200
    assert page.fields["text"] == HOSTILE
    assert "img" not in page.tags | before.tags
    assert page.predictions


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"text": "5" * 5000}, "tokens; the network reads at most"),
        ({"group": "7"}, "group=7: expected 0 (Classification · dates) or 1 (Language modeling · dates)"),
        ({"group": "x"}, "group=x: expected 0 (Classification · dates) or 1 (Language modeling · dates)"),
        ({"text": " "}, "the text is empty; enter a text"),
        ({"group": "1", "text": "a", "temperature": "-1"}, "temperature=-1: expected a number from 0 to 100"),
        ({"group": "1", "text": "a", "temperature": "nan"}, "temperature=nan: expected a number"),
        ({"group": "1", "text": "a", "seed": "1e300"}, "seed=1e300: expected a whole number from 0 to"),
        ({"group": "1", "text": "a", "seed": "1.5"}, "seed=1.5: expected a whole number"),
    ],
)
def test_what_cannot_be_answered_is_said(server: Server, fields: dict[str, str], said: str) -> None:
    status, text = server.get(f"/?{urlencode(fields)}")
    assert status == 400
    page = Page(text)
    assert any(said in notice for notice in page.notices)
    assert page.fields["text"] == fields.get("text", "")  # is not lost


def test_a_model_that_cannot_be_read_takes_no_other_along(runs: Path, tmp_path: Path) -> None:
    for name in EXPERIMENTS[:2]:
        shutil.copytree(runs / name, tmp_path / name)
    shutil.rmtree(tmp_path / EXPERIMENTS[0] / "checkpoints")
    status, text = Playground(find_runs([tmp_path], Path()).runs, Path()).page("/?text=lundi")
    page = Page(text)
    assert status == 200
    assert len(page.predictions) == 1
    assert sum(f"{EXPERIMENTS[0]}/checkpoints" in notice for notice in page.notices) == 1


def test_models_are_named_by_what_differs(write_run, tmp_path: Path) -> None:
    for architecture, layers in (("full", 2), ("full", 4), ("encoder_only", 2)):
        changes = {"command": f"triptych train model={architecture} shape.num_layers={layers}"}
        settings = {"shape": {"num_layers": layers}}
        metrics = {"test/accuracy": 0.5}
        write_run(architecture, "classification", metrics, settings=settings, changes=changes, name=str(layers))
    names = Playground(find_runs([tmp_path], tmp_path).runs, tmp_path).names
    assert sorted(names.values()) == ["encoder-only, num_layers=2", "full, num_layers=2", "full, num_layers=4"]


def test_there_is_one_page(server: Server) -> None:
    assert server.get("/etc/passwd")[0] == 404


@pytest.mark.daily
@needs_browser
def test_a_browser_draws_the_attention_without_a_complaint(server: Server, browser: Browser) -> None:
    browser.open(f"{server.address}/?{urlencode({'text': '5. März 1998'})}")
    assert browser.complaints == []
    dom = browser.dom
    assert dom.count('class="chart js-plotly-plot"') == 2
    drawn = unescape(dom)
    assert "full: attention rollout through the encoder" in drawn
    assert re.findall(r'aria-pressed="(?:true|false)">([^<]*)<', drawn) == [
        "encoder rollout", "encoder heads", "decoder rollout", "decoder heads", "alignment", "cross heads",
        "encoder rollout", "encoder heads",
    ]  # fmt: skip


@needs_browser
@pytest.mark.parametrize("width", [390, 1280])
def test_what_is_typed_is_answered_and_goes_along_to_another_task(server: Server, browser: Browser, width: int) -> None:
    """As a user does it, with keys and mouse; on a phone, too."""
    browser.open(server.address, width=width)
    browser.click("textarea[name=text]")
    browser.type("lundi ")
    browser.press("Enter", with_shift=True)
    browser.type("14 juillet")
    assert browser.ask("document.querySelectorAll('.prediction').length") == 0
    browser.press("Enter")
    browser.wait_until_loaded()
    text = "lundi \n14 juillet"
    assert browser.ask("document.querySelector('textarea').value") == text
    predicted = [triptych.load(server.runs / name).predict([text])[0].label for name in EXPERIMENTS[:2]]
    said = "[...document.querySelectorAll('.prediction')].map(box => box.textContent)"
    assert browser.ask(said) == predicted

    browser.type("!")  # is not sent yet; the cursor is at the beginning of the text
    browser.click("nav.switch a:nth-child(2)")
    browser.wait_until_loaded()
    assert browser.ask("document.querySelector('[aria-current=page]').textContent") == "Language modeling · dates"
    assert sorted(browser.ask("document.querySelector('textarea').value")) == sorted(text + "!")
    assert len(browser.ask(said)) == 1
    browser.click("nav.switch a:nth-child(1)")
    browser.wait_until_loaded()
    assert sorted(browser.ask("document.querySelector('textarea').value")) == sorted(text + "!")
    assert browser.complaints == []


@needs_browser
@pytest.mark.parametrize(("width", "scheme"), SCREENS)
@pytest.mark.parametrize("asked", [{"text": "5. März 1998"}, {"group": 1}], ids=["answered", "not_asked"])
def test_nothing_keeps_anybody_from_using_it(
    server: Server, browser: Browser, asked: dict[str, object], width: int, scheme: str
) -> None:
    browser.open(f"{server.address}/?{urlencode(asked)}", width=width, scheme=scheme)
    assert browser.barriers() == []
    assert browser.tab_through() == []


@needs_browser
def test_keys_choose_what_is_drawn_and_another_task(server: Server, browser: Browser) -> None:
    browser.open(f"{server.address}/?{urlencode({'text': '5. März 1998'})}")
    browser.focus(".answer .switch button:last-child")
    browser.press(" ")
    assert browser.ask("document.querySelector('.answer [aria-pressed=true]').textContent") == "cross heads"
    browser.focus("nav.switch a:last-child")
    browser.press("Enter")
    browser.wait_until_loaded()
    assert browser.ask("document.querySelector('[aria-current=page]').textContent") == "Language modeling · dates"


@needs_browser
def test_an_empty_form_changes_its_task_without_a_complaint(server: Server, browser: Browser) -> None:
    browser.open(server.address)
    browser.click("nav.switch a:nth-child(2)")
    browser.wait_until_loaded()
    assert browser.ask("document.querySelectorAll('.notice:not(noscript *)').length") == 0


@needs_browser
def test_an_answer_is_small(server: Server, browser: Browser) -> None:
    """What draws the charts comes once; each answer has been 4.9 MB."""
    addresses = [f"{server.address}/?{urlencode({'text': text})}" for text in ("5. März 1998", "6 mars 1999")]
    browser.call("Network.clearBrowserCache")
    browser.open(addresses[0])
    first = browser.received
    assert len(first) == 2
    assert 5e5 < max(first.values()) < 2e6  # plotly, packed
    browser.open(addresses[1])
    assert browser.received.keys() - {addresses[1]} <= first.keys()
    assert sum(browser.received.values()) < 60_000
    assert browser.dom.count('class="chart js-plotly-plot"') == 2


@needs_browser
def test_the_page_fits_on_a_phone(server: Server, browser: Browser) -> None:
    browser.open(f"{server.address}/?{urlencode({'text': '5. März 1998'})}", width=390, height=844)
    assert browser.ask("document.documentElement.scrollWidth") == 390
    assert browser.cut_texts() == []


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:{port}", 200),
        ("127.0.0.1:{port}", 200),
        ("LOCALHOST", 200),
        ("localhost:8888", 200),  # through a tunnel
        ("[::1]:{port}", 200),
        ("192.168.0.7:{port}", 200),
        ("evil.example:{port}", 421),
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost.evil.example", 421),
        ("evil.example@localhost.evil.example", 421),
        ("[::1", 421),
        ("", 421),
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_name_that_is_none_of_this_machine_is_rejected(server: Server, host: str, status: int, method: str) -> None:
    """A page of a stranger, whose own name points to this machine, must not read what is served here."""
    address = server.address.removeprefix("http://")
    connection = HTTPConnection(address, timeout=60)
    connection.putrequest(method, "/", skip_host=True)
    connection.putheader("Host", host.format(port=address.partition(":")[2]))
    connection.endheaders()
    response = connection.getresponse()
    content = response.read()
    assert response.status == status
    assert bool(content) == (method == "GET")
    assert (b"Triptych" in content) == (status == 200 and method == "GET")


def test_a_head_is_that_of_the_page(server: Server) -> None:
    heads = []
    for method in ("GET", "HEAD"):
        connection = HTTPConnection(server.address.removeprefix("http://"), timeout=60)
        connection.request(method, "/?group=0")
        response = connection.getresponse()
        heads.append({name: value for name, value in response.getheaders() if name != "Date"})
        content = response.read()
        assert len(content) == (int(heads[0]["Content-Length"]) if method == "GET" else 0)
    assert heads[0] == heads[1]


def test_a_long_text_is_answered_without_a_drawing(server: Server) -> None:
    status, text = server.get(f"/?{urlencode({'text': 'lundi ' * 9})}")
    assert status == 200
    assert len(Page(text).predictions) == 2
    assert text.count("shown only for texts of up to 40 tokens") == 2


def test_an_answer_whose_client_has_left(server: Server) -> None:
    host, port = server.address.removeprefix("http://").split(":")
    for _ in range(3):
        with socket.create_connection((host, int(port))) as asked:
            asked.sendall(b"GET / HTTP/1.0\r\n\r\n")
            asked.recv(100)
            asked.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # leaves at once
    assert server.get("/")[0] == 200


@pytest.mark.nightly
def test_control_c_ends_it(server: Server) -> None:
    """Without a complaint about any of the tests before."""
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(30) == 0
    assert (server.runs / "stderr").read_text() == ""


def test_a_port_that_is_taken(runs: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        finished = run("playground", ".", "--port", str(port), cwd=runs)
    assert finished.returncode == 1
    assert finished.stderr == (
        f"error: --host 127.0.0.1 --port {port}: Address already in use; --port 0 selects a free one\n"
    )


def talk_of(model: Chat, *texts: str) -> list[Message]:
    said = list[Message]()
    for text in texts:
        said.append(Message("user", text))
        said.append(Message("assistant", str(predict(model, [said])[0])))
    return said


def digits() -> tuple[Audio, bytes]:
    """A sound as none of the training, and its file."""
    time = np.arange(6000) / 8000
    sound = Audio.of(0.3 * np.sin(2 * np.pi * (400 + 300 * (time > 0.3)) * time), 8000)
    return sound, audio_to_wav(sound)


class TestConversations:
    def test_each_model_has_its_own(self, others: Server) -> None:
        texts = ["sort: 1999-03-03", HOSTILE, "say it in German"]
        status, source = others.get(f"/?group={TALKERS}&" + urlencode([("text", text) for text in texts]))
        assert status == 200
        models = [triptych.load(others.runs / name).task for name in TALKING]
        talks = [talk_of(cast(Chat, model), *texts) for model in models]
        expected = [message.content for talk in talks for message in talk if message.role == "assistant"]
        assert Page(source).predictions == [content or "(nothing)" for content in expected]
        assert "<img" not in source
        hidden = re.findall('type="hidden" name="text" value="([^"]*)"', source)
        assert [unescape(text) for text in hidden] == texts

    def test_an_answer_is_sent_as_it_is_written(self, others: Server) -> None:
        model = cast(Chat, triptych.load(others.runs / "talks").task)
        model.sampling = Sampling(2.0, seed=5)
        said = talk_of(model, "sort: 1999-03-03", "and?")
        asked = {"group": TALKERS, "model": 0, "temperature": 2, "seed": 5}
        messages = [{"role": message.role, "content": message.content} for message in said[:-1]]
        for _ in range(2):  # the second time, it is kept
            status, answer = others.post("/reply", json.dumps(asked | {"messages": messages}).encode())
            assert (status, answer) == (200, said[-1].content)

    @pytest.mark.parametrize(
        ("sent", "said"),
        [
            ({"messages": []}, "an empty conversation"),
            ({"messages": [{"role": "user", "content": "<eos>"}]}, "message 1 has '<eos>' in it"),
            ({"messages": [{"role": "god", "content": "a"}]}, "role 'god'; expected system, user, assistant"),
            ({"messages": 3}, "expected a list of objects with role and content"),
            ({"messages": [{"role": "user", "content": "a"}], "model": 2}, "group=1, model=2: no such model"),
            (
                {"messages": [{"role": "user", "content": "a"}], "group": HEARERS},
                "audio: trained for task=transcription",
            ),
            ({"messages": [{"role": "user", "content": "a"}], "temperature": -1}, "temperature=-1.0: expected a"),
            ({"group": math.inf}, "expected group, model, messages, temperature and seed"),
            ({"messages": [{"role": "user", "content": "a"}], "temperature": math.nan}, "temperature=nan: expected a"),
            ({"messages": [{"role": "user", "content": "a"}], "seed": 2**64}, "seed=18446744073709551616: expected"),
            ({}, "expected group, model, messages, temperature and seed"),
        ],
    )
    def test_what_cannot_be_answered(self, others: Server, sent: dict[str, object], said: str) -> None:
        whole = {"group": TALKERS, "model": 0, "temperature": 0, "seed": 0, **sent}
        status, answer = others.post("/reply", json.dumps(whole).encode())
        assert status == 400
        assert said in answer
        assert others.post("/reply", b"no JSON")[0] == 400

    @needs_browser
    def test_one_talks_by_keys(self, others: Server, browser: Browser) -> None:
        browser.open(f"{others.address}/?group={TALKERS}")
        for text in ("sort: 1999-03-03", "say it in German"):
            browser.click("textarea[name=text]")
            browser.type(text)
            browser.press("Enter")
            browser.wait_until_loaded()
        shown = browser.ask(
            "[...document.querySelectorAll('.talk')].map(talk => [...talk.children].map(x => x.innerText))"
        )
        models = [cast(Chat, triptych.load(others.runs / name).task) for name in TALKING]
        talks = [talk_of(model, "sort: 1999-03-03", "say it in German") for model in models]
        assert shown == [[message.content or "(nothing)" for message in talk] for talk in talks]
        assert browser.complaints == []
        assert browser.barriers() == []
        assert browser.tab_through() == []
        browser.click("form a[href^='?group']")
        browser.wait_until_loaded()
        assert browser.ask("document.querySelectorAll('.talk > *').length") == 0


class TestSounds:
    def test_a_sound_is_heard_and_can_be_listened_to(self, others: Server) -> None:
        sound, content = digits()
        status, address = others.post("/audio", content)
        assert status == 200
        status, source = others.get(f"/?group={HEARERS}&file={address}")
        assert (status, Page(source).predictions) == (200, triptych.load(others.runs / "audio").predict([sound]))
        assert f'src="/audio/{address}"' in source
        connection = HTTPConnection(others.address.removeprefix("http://"), timeout=60)
        connection.request("GET", f"/audio/{address}")
        response = connection.getresponse()
        assert (response.getheader("Content-Type"), response.read()) == ("audio/wav", content)

    def test_what_is_no_sound(self, others: Server) -> None:
        assert others.post("/audio", b"no sound") == (
            400,
            "the audio: not a readable audio file (Format not recognised.)",
        )
        silent = audio_to_wav(Audio.of(np.zeros(4000), 8000))
        status, source = others.get(f"/?group={HEARERS}&file={others.post('/audio', silent)[1]}")
        assert (status, Page(source).notices[0]) == (400, "'the audio': the audio is silent")
        status, source = others.get(f"/?group={HEARERS}&file={'0' * 32}")
        assert (status, Page(source).notices[0]) == (400, "the file has expired; upload it again")
        long = audio_to_wav(Audio.of(np.sin(np.arange(80_000)), 8000))
        status, source = others.get(f"/?group={HEARERS}&file={others.post('/audio', long)[1]}")
        assert (status, Page(source).notices[0]) == (400, "audio of 500 positions; the network supports at most 128")

    def test_a_page_of_a_stranger_sends_nothing(self, others: Server) -> None:
        assert others.post("/audio", digits()[1], Origin="http://evil.example")[0] == 403
        assert others.post("/audio", digits()[1], Host="evil.example")[0] == 421
        assert others.post("/elsewhere", b"")[0] == 404
        assert others.post("/audio", b"", **{"Content-Length": "99999999999"})[0] == 413
        assert others.post("/audio", digits()[1], Origin=others.address)[0] == 200

    @needs_browser
    @pytest.mark.parametrize("width", [390, 1280])
    def test_one_records_and_sees_what_is_heard(self, others: Server, browser: Browser, width: int) -> None:
        browser.open(f"{others.address}/?group={HEARERS}", width=width)
        assert browser.barriers() == []
        assert browser.tab_through() == []
        browser.click("button.record")
        browser.ask(  # a second and a half of it, from when it has begun
            "new Promise(done => { const look = () => document.querySelector('[role=status]').textContent"
            " ? setTimeout(done, 1500) : setTimeout(look, 50); look(); })"
        )
        assert browser.ask("document.querySelector('[role=status]').textContent") == "Recording"
        browser.click("button.record")
        browser.wait_until_loaded()
        assert browser.ask("[...document.querySelectorAll('main .notice')].map(box => box.textContent)") == []
        assert browser.ask("document.querySelectorAll('.prediction').length") == 1
        assert 0.3 < browser.ask("document.querySelector('audio').duration") < 30
        assert browser.dom.count('class="chart js-plotly-plot"') == 1
        assert browser.complaints == []
        assert browser.barriers() == []
        assert browser.ask("document.documentElement.scrollWidth") == width
        assert browser.cut_texts() == []


class TestImages:
    def test_an_image_of_the_test_set_is_shown_and_read(self, others: Server) -> None:
        _, source = others.get(f"/?group={SEERS}")
        addresses = [unescape(text) for text in re.findall(r'href="(\?[^"]*file=[^"]*)"', source)]
        assert len(addresses) == 4
        models = [triptych.load(others.runs / name) for name in SEEING]
        first = self.first_image()
        status, answered = others.get(f"/{addresses[0]}")
        assert status == 200
        assert Page(answered).predictions == [model.predict([first])[0] for model in models]
        assert f'<img class="given" src="{as_address(first)}"' in answered
        assert answered.count('class="chart"') == len(models)

    def test_an_image_that_is_sent_is_made_to_fit(self, others: Server) -> None:
        grey = Image.of(np.linspace(0, 1, 20 * 30).reshape(1, 20, 30))
        status, address = others.post("/image", as_png(grey))
        assert status == 200
        status, source = others.get(f"/?group={SEERS}&file={address}")
        fitting, _ = read_image(Path("a"), as_png(grey), channels=3, size=(12, 24))
        answers = [triptych.load(others.runs / name).predict([fitting])[0] for name in SEEING]
        assert (status, Page(source).predictions) == (200, answers)

    def test_what_is_no_image(self, others: Server) -> None:
        assert others.post("/image", b"no image") == (400, "the image: not a readable image (UnidentifiedImageError)")
        sound = others.post("/audio", digits()[1])[1]
        status, source = others.get(f"/?group={SEERS}&file={sound}")
        assert (status, Page(source).notices[0]) == (400, "the file has expired; upload it again")

    def test_texts_to_choose_from(self, others: Server) -> None:
        _, source = others.get(f"/?group={MATCHERS}")
        form = Page(source).fields
        offered = form["text"].strip().splitlines()
        assert len(offered) == len({*offered}) > 1
        address = unescape(re.findall(r'href="(\?[^"]*file=[^"]*)"', source)[0])
        model, image = triptych.load(others.runs / "matches"), self.first_image()
        for texts in (offered, ["four", "seven", "nine"], offered):
            asked = f"/{address}" if texts is offered else f"/{address}&{urlencode({'text': chr(10).join(texts)})}"
            status, answered = others.get(asked)
            with model.task.choosing_from(texts):
                (expected,) = model.predict([image])
            assert (status, Page(answered).predictions) == (200, [expected.label])
            assert f"{100 * expected.probabilities[expected.label]:.1f} %" in answered
            assert answered.count('class="chart"') == 1
        status, answered = others.get(f"/{address}&text=four")
        assert status == 400
        assert "classes=['four']: expected at least two texts to choose from" in Page(answered).notices[0]

    @staticmethod
    def first_image() -> Image:
        first = DrawnDigits(
            languages=["en"], min_digits=1, max_digits=1, noise=0.1, levels=256,
            num_train=1, num_validation=1, num_test=1, seed=1,
        ).splits().test[0].image  # fmt: skip
        assert first is not None
        return first

    @needs_browser
    @pytest.mark.parametrize("width", by_day([390, 1280], [390]))
    def test_one_sees_where_a_model_looks(self, others: Server, browser: Browser, width: int) -> None:
        browser.open(f"{others.address}/?group={SEERS}", width=width)
        browser.click(".switch a img")
        browser.wait_until_loaded()
        assert browser.complaints == []
        assert browser.barriers() == []
        assert browser.tab_through() == []
        assert browser.cut_texts() == []
        assert browser.ask("document.querySelectorAll('.main-svg image').length") > 0
