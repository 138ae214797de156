"""The server of the playground on its own, with clients that are slow, many, or meet a bug."""

import math
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any
from urllib.request import urlopen

import pytest

from triptych.report import playground_server
from triptych.report.playground import Talk
from triptych.report.playground_server import PlaygroundHandler, PlaygroundServer


def page(address: str) -> tuple[HTTPStatus, str]:
    if "bug" in address:
        raise KeyError("attention")
    return HTTPStatus.OK, "fine"


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(PlaygroundHandler, "timeout", 0.2)
    monkeypatch.setattr(playground_server, "MOST_CONNECTIONS", 3)
    stub: Any = SimpleNamespace(page=page, files={}, keep_audio=None, keep_image=None)
    with PlaygroundServer(stub, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def send(port: int, text: str) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=10)
    connection.sendall(text.encode())
    return connection


def test_a_bug_is_answered_and_its_traceback_printed(port: int, capfd: pytest.CaptureFixture[str]) -> None:
    with send(port, "GET /?bug HTTP/1.0\r\n\r\n") as connection:
        answer = connection.makefile("rb").read()
    assert b"500 Internal Server Error" in answer
    assert b"internal error: KeyError: 'attention'" in answer
    assert "Traceback" in capfd.readouterr().err


@pytest.mark.parametrize("begun", ["", "GET / HT", "POST /audio HTTP/1.0\r\nContent-Length: 9\r\n\r\nab"])
def test_a_client_that_sends_nothing_more_is_left(port: int, begun: str, capfd: pytest.CaptureFixture[str]) -> None:
    with send(port, begun) as connection:
        assert connection.recv(1) == b""  # closed, and not by us
    assert capfd.readouterr().err == ""


def test_more_connections_than_are_allowed_are_told_to_wait(port: int) -> None:
    idle = [send(port, "") for _ in range(3)]
    with send(port, "GET / HTTP/1.0\r\n\r\n") as connection:
        assert connection.recv(100).startswith(b"HTTP/1.0 503 Service Unavailable")
    for connection in idle:
        assert connection.recv(1) == b""
        connection.close()
    assert urlopen(f"http://127.0.0.1:{port}/", timeout=10).read() == b"fine"


def test_the_limits_that_users_have() -> None:
    assert (PlaygroundHandler.timeout, playground_server.MOST_CONNECTIONS) == (30, 64)


@pytest.mark.parametrize("name", ["group", "model", "seed", "temperature"])
@pytest.mark.parametrize("number", ["1e400", "-1e400", "NaN", "1" * 400, "null", "[]", '"x"', "{}", "true", "1.5"])
def test_any_number_in_a_conversation_is_read_or_rejected_in_one_line(name: str, number: str) -> None:
    sent = {
        "group": "0", "model": "0", "messages": '[{"role": "user", "content": "a"}]', "temperature": "0", "seed": "0",
    }  # fmt: skip
    text = ", ".join(f'"{key}": {value}' for key, value in {**sent, name: number}.items())
    with suppress(ValueError):
        talk = Talk.read(f"{{{text}}}".encode())
        assert math.isfinite(talk.sampling.temperature)
        assert isinstance(talk.number, int)
