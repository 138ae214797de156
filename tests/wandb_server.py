"""A stand-in for W&B's server, which cannot be had here."""

import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

API_KEY = "0123456789abcdef" * 2 + "01234567"


class Handler(BaseHTTPRequestHandler):
    """The few questions of W&B's client that a run depends on."""

    protocol_version = "HTTP/1.1"
    server: "Server"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.server.lost.is_set():
            if self.server.hangs:
                self.server.closed.wait()
            self.close_connection = True
        elif self.path == "/graphql":
            self._answer({"data": self._data(body["query"], body.get("variables") or {})})
        else:
            self._answer({"exitcode": None, "limits": {}})
            content = body.get("files", {}).get("wandb-history.jsonl", {}).get("content", [])
            self.server.runs[self.path.split("/")[-2]] += map(json.loads, content)

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer({})

    def _data(self, query: str, variables: dict) -> dict:
        entity = {"id": "e", "name": "me"}
        project = {"id": "p", "name": "triptych", "entity": entity}
        name = variables.get("name", variables.get("run"))
        if "RunResumeStatus" in query:
            known = self.server.runs.get(name)
            bucket = None
            if known is not None:
                tail = json.dumps([json.dumps(row) for row in known[-1:]])
                bucket = {
                    "id": "b", "name": name, "displayName": name, "summaryMetrics": "{}", "config": "{}", "tags": [],
                    "historyLineCount": len(known), "eventsLineCount": 0, "logLineCount": 0, "historyTail": tail,
                    "eventsTail": "[]", "wandbConfig": '{"t": 1}',
                }  # fmt: skip
            return {"model": {**project, "bucket": bucket}}
        if "UpsertBucket" in query:
            inserted = name not in self.server.runs
            self.server.runs.setdefault(name, [])
            bucket = {"id": "b", "name": name, "displayName": name, "config": "{}", "project": project}
            return {"upsertBucket": {"bucket": {**bucket, "historyLineCount": 0}, "inserted": inserted}}
        if "CreateRunFiles" in query:
            files = [{"name": file, "uploadUrl": f"{self.server.url}/upload"} for file in variables["files"]]
            return {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": files}}
        if "ArtifactType" in query:
            return {"project": None}
        if "CreateArtifact" in query:  # it has the content already
            artifact = {"id": "a", "state": "COMMITTED", "artifactSequence": {"id": "s", "latestArtifact": None}}
            return {"createArtifact": {"artifact": artifact}}
        return {"viewer": {"id": "u", "entity": "me", "username": "me", "flags": "{}", "teams": {"edges": []}}}

    def _answer(self, data: dict) -> None:
        content = json.dumps(data).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    """Keeps the rows of each run.

    Args:
        hangs: whether it takes requests without ever answering once it is ``lost``; otherwise it cuts the connections.
    """

    daemon_threads = True

    def __init__(self, *, hangs: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.runs: dict[str, list[dict]] = {}
        self.hangs = hangs
        self.lost, self.closed = threading.Event(), threading.Event()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.closed.set()
        self.shutdown()
        self.server_close()

    def handle_error(self, request: object, client_address: object) -> None:
        pass


def online(url: str) -> dict[str, str]:
    """The environment of a command that logs to it."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("WANDB_") and k != "HYDRA_FULL_ERROR"}
    return {**kept, "WANDB_BASE_URL": url, "WANDB_API_KEY": API_KEY, "OMP_NUM_THREADS": "1"}
