"""The HTTP server of the playground."""

import errno
import gzip
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

from triptych.config import ConfigError, RunError
from triptych.data.audio import Audio, audio_to_wav
from triptych.report.playground import PLOTLY, Playground, Talk
from triptych.report.read_records import find_runs

LARGEST = 30_000_000
"""Largest upload in bytes: a few minutes of audio, a large image."""
READ_SECONDS = 30
"""Seconds without a byte from a client until its connection is closed."""
MOST_CONNECTIONS = 64
"""Most simultaneous connections; a browser opens a few."""
KEPT = {"Cache-Control": "max-age=31536000, immutable"}
"""Lets browsers cache a response: its URL identifies the content."""


def names_this_machine(host: str, names: Collection[str]) -> bool:
    """Whether a Host header is valid. In DNS rebinding, another site's name resolves to this machine, so that its pages
    could read ours; but the browser sends that name. IP addresses cannot be rebound.

    Args:
        host: the header, with or without a port.
        names: of this machine, in lower case.
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


class PlaygroundServer(ThreadingHTTPServer):
    """One thread per connection, since browsers open some without using them. Port 0 means any free one."""

    def __init__(self, playground: Playground, host: str, port: int) -> None:
        try:
            super().__init__((host, port), PlaygroundHandler)
        except (OSError, OverflowError) as error:
            if isinstance(error, OverflowError):
                reason = "expected a port from 0 to 65535; 0 selects a free one"
            elif error.errno == errno.EADDRINUSE:
                reason = f"{error.strerror}; --port 0 selects a free one"
            else:
                reason = f"{error.strerror}; expected an IPv4 address or a host name of this computer, or 0.0.0.0"
            raise ConfigError(f"--host {host} --port {port}: {reason}") from None
        self.playground = playground
        self._free = threading.Semaphore(MOST_CONNECTIONS)
        self.names = {"localhost", host.lower(), socket.gethostname().lower()}

    def process_request(self, request: Any, client_address: Any) -> None:
        """Starts the thread of a connection. If too many are open, replies with an error and closes it."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
            return
        with suppress(OSError):
            request.sendall(b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 5\r\nContent-Length: 0\r\n\r\n")
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()


class PlaygroundHandler(BaseHTTPRequestHandler):
    """One connection."""

    server: PlaygroundServer
    timeout = READ_SECONDS

    def _answer(self, handle: Callable[[], None]) -> None:
        """Handles a request that may be answered. Closes the connection of a client that is too slow or gone. A bug is
        reported to the client; its traceback is printed."""
        try:
            if self._is_asked_here():
                handle()
        except (TimeoutError, ConnectionError):
            self.close_connection = True
        except Exception as error:
            traceback.print_exc()
            with suppress(OSError):
                self._tell(HTTPStatus.INTERNAL_SERVER_ERROR, f"internal error: {type(error).__name__}: {error}")

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def _get(self) -> None:
        path, playground = urlsplit(self.path).path, self.server.playground
        if self.path == PLOTLY:
            self._send(HTTPStatus.OK, "text/javascript", _packed_plotly(), is_kept=True)
        elif path == "/":
            status, text = playground.page(self.path)
            self._send(status, "text/html; charset=utf-8", gzip.compress(text.encode(errors="replace")))
        elif isinstance(audio := playground.files.get(path.removeprefix("/audio/")), Audio):
            self._send(HTTPStatus.OK, "audio/wav", gzip.compress(audio_to_wav(audio)), is_kept=True)
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def do_HEAD(self) -> None:
        self.do_GET()

    def _post(self) -> None:
        """Handles an upload, whose URL is the response, or a conversation, whose response is the next message."""
        size = self.headers.get("Content-Length", "")
        keep = {"/audio": self.server.playground.keep_audio, "/image": self.server.playground.keep_image}
        if self.path not in (*keep, "/reply"):
            self.send_error(HTTPStatus.NOT_FOUND)
        elif not size.isdecimal() or int(size) > LARGEST:
            self.send_error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        else:
            content = self.rfile.read(int(size))
            try:
                if self.path in keep:
                    self._tell(HTTPStatus.OK, keep[self.path](content))
                else:
                    self._reply(Talk.read(content))
            except (ConfigError, RunError, ValueError, OSError) as error:
                self._tell(HTTPStatus.BAD_REQUEST, str(error))

    def _reply(self, talk: Talk) -> None:
        """Streams the reply; closing the connection ends it."""
        has_begun = False

        def say(part: str) -> None:
            nonlocal has_begun
            if not has_begun:
                self.send_response(HTTPStatus.OK)
                self.send_header("Content-Type", "text/plain; charset=utf-8")
                self.end_headers()
            has_begun = True
            self.wfile.write(part.encode(errors="replace"))
            self.wfile.flush()

        with suppress(ConnectionError):
            self.server.playground.reply(talk, say)
            say("")

    def _tell(self, status: HTTPStatus, text: str) -> None:
        self._send(status, "text/plain; charset=utf-8", gzip.compress(text.encode(errors="replace")))

    def _is_asked_here(self) -> bool:
        """Whether the request names this machine as its host and comes from one of our pages."""
        asked, origin, names = self.headers.get("Host"), self.headers.get("Origin"), self.server.names
        if asked is not None and not names_this_machine(asked, names):  # browsers always send it
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST, explain=f"Expected one of {', '.join(sorted(names))}")
            return False
        if origin is not None and urlsplit(origin).netloc != asked:  # a page of another site sent it
            self.send_error(HTTPStatus.FORBIDDEN)
            return False
        return True

    def _send(self, status: HTTPStatus, kind: str, packed: bytes, *, is_kept: bool = False) -> None:
        headers = {"Content-Type": kind} | (KEPT if is_kept else {})
        is_read_packed = "gzip" in self.headers.get("Accept-Encoding", "")
        content = packed if is_read_packed else gzip.decompress(packed)
        encoding = {"Content-Encoding": "gzip"} if is_read_packed else {}
        with suppress(ConnectionError):  # the client has left
            self.send_response(status)
            for name, value in {**headers, **encoding, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        """Logs nothing: inputs stay private."""


def serve(directories: Sequence[Path], host: str, port: int) -> None:
    """Serves the page of the runs at or below some directories until Ctrl-C. Port 0 means any free one."""
    folder = Path()
    found = find_runs(directories, folder)
    for damage in found.damaged:
        print(f"left out because it is damaged: {damage}", file=sys.stderr)
    playground = Playground((*found.runs, *found.untested), folder)
    with PlaygroundServer(playground, host, port) as server:
        try:
            print(f"http://{host}:{server.server_port} (Ctrl-C stops it)", flush=True)
            server.serve_forever()
        except KeyboardInterrupt:
            print()
