"""Uploading an exported folder, to a hub on this machine that keeps what it is sent."""

import base64
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from commands import run
from triptych.config import RunError
from triptych.interop import push_folder

TOKEN = "hf_" + "a" * 20


class Hub(BaseHTTPRequestHandler):
    """The three calls of an upload of small files, as the hub's client of Python makes them."""

    files: dict[str, bytes]
    created: list[dict[str, object]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        status, answer = 200, {}
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            status, answer = 401, {"error": "Invalid username or password."}
        elif self.path == "/api/repos/create":
            self.created.append(json.loads(body))
            answer = {"url": f"http://{self.headers['Host']}/me/mine"}
        elif self.path == "/api/models/me/mine/preupload/main":
            asked = json.loads(body)["files"]
            answer = {"files": [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in asked]}
        elif self.path == "/api/models/me/mine/commit/main":
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            answer = {"commitOid": "c" * 40, "commitUrl": f"http://{self.headers['Host']}/me/mine/commit/c"}
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    Hub.files, Hub.created = {}, []
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield Hub
        server.shutdown()


def test_each_file_arrives(hub: type[Hub], tmp_path: Path) -> None:
    written = {"README.md": b"# mine\n", "config.json": b"{}", "model.safetensors": bytes(range(256))}
    for name, content in written.items():
        (tmp_path / name).write_bytes(content)
    assert push_folder(tmp_path, "me/mine").endswith("/me/mine")
    assert hub.files == written
    assert [(made["organization"], made["name"], made["visibility"]) for made in hub.created] == [
        ("me", "mine", "private")
    ]


def test_a_refusal_loses_nothing(hub: type[Hub], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setenv("HF_TOKEN", "hf_" + "b" * 20)
    with pytest.raises(RunError, match=r"--push me/mine: .*401.*is kept; run the same command again"):
        push_folder(tmp_path, "me/mine")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(RunError, match=r"--push me/mine: .*is kept"):
        push_folder(tmp_path, "me/mine")
    assert (tmp_path / "config.json").read_text() == "{}"


def test_a_name_without_a_user(tmp_path: Path) -> None:
    (tmp_path / "some.ckpt").write_text("")
    finished = run("export", "some.ckpt", "--output", "out", "--push", "mine", cwd=tmp_path)
    assert (finished.returncode, finished.stderr) == (1, "error: --push mine: expected USER/NAME\n")
