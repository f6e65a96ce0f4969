"""Enough of a wandb server for wandb's own program to send a run to; or one that fails in a way of one's choice."""

import gzip
import json
import os
import re
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

KEY = "a" * 40


class WandbServer(ThreadingHTTPServer):
    """`status`: of every answer. `silent`: part of the path or name of the request that is never answered."""

    daemon_threads = True

    def __init__(self, status: int = 200, silent: str | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status, self.silent = status, silent
        self.asked: list[str] = []
        self.runs: dict[str, list[dict[str, Any]]] = defaultdict(list)  # rows of history by the run's id
        self.artifacts: list[str] = []
        self.over = threading.Event()

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for rows in self.runs.values() for row in rows]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed is no news."""


@contextmanager
def wandb_server(status: int = 200, silent: str | None = None) -> Iterator[WandbServer]:
    server = WandbServer(status, silent)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        server.shutdown()
        thread.join()
        server.server_close()


def synced(run: Path) -> WandbServer:
    """A server to which `wandb sync` has sent the offline parts of a run, as a user does."""
    parts = sorted(map(str, run.glob("wandb/offline-run-*")))
    with wandb_server() as server:
        environment = {"WANDB_BASE_URL": server.url, "WANDB_API_KEY": KEY, "WANDB_ERROR_REPORTING": "false"}
        subprocess.run(
            [Path(sys.executable).with_name("wandb"), "sync", *parts],
            env=os.environ | environment | {"HOME": str(run.parent)}, check=True, capture_output=True, timeout=900,
        )  # fmt: skip
    return server


class _Handler(BaseHTTPRequestHandler):
    server: WandbServer  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        asked = json.loads(body) if body[:1] == b"{" else {}
        found = re.search(r"(?:query|mutation)\s+(\w+)", asked.get("query", ""))
        name = found[1] if found else self.path
        self.server.asked.append(name)
        if self.server.silent is not None and self.server.silent in name:
            self.server.over.wait()
        for line in asked.get("files", {}).get("wandb-history.jsonl", {}).get("content", []):
            self.server.runs[self.path.split("/")[-2]].append(json.loads(line))
        self._answer(_ANSWERS[name](self.server, asked.get("variables", {})) if name in _ANSWERS else {})

    do_GET = do_PUT = do_POST

    def _answer(self, data: dict[str, Any]) -> None:
        body = json.dumps({"data": data}).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None: ...


def _bucket(server: WandbServer, name: str | None) -> dict[str, Any]:
    rows = server.runs[name or ""]
    project = {"id": "1", "name": "p", "entity": {"id": "2", "name": "e"}}
    tail = json.dumps([json.dumps({"_step": rows[-1]["_step"]})]) if rows else "[]"
    counts = {"historyLineCount": len(rows), "eventsLineCount": 0, "logLineCount": 0}
    texts = {"summaryMetrics": "{}", "config": "{}", "historyTail": tail, "eventsTail": "[]", "wandbConfig": '{"t": 1}'}
    return {"id": "x", "name": name, "displayName": name, "sweepName": None, "project": project, **counts, **texts}


def _resume(server: WandbServer, asked: dict[str, Any]) -> dict[str, Any]:
    model = {"id": "1", "name": "p", "entity": {"id": "2", "name": "e"}}
    return {"model": model | {"bucket": _bucket(server, asked["name"]) if server.runs[asked["name"]] else None}}


def _create_files(server: WandbServer, asked: dict[str, Any]) -> dict[str, Any]:
    files = [{"name": name, "uploadUrl": f"{server.url}/upload"} for name in asked["files"]]
    return {"createRunFiles": {"runID": "x", "uploadHeaders": [], "files": files}}


def _create_artifact(server: WandbServer, asked: dict[str, Any]) -> dict[str, Any]:
    """As if it had this content already: nothing is uploaded."""
    server.artifacts.append(asked["input"]["artifactCollectionName"])
    sequence = {"id": "s", "latestArtifact": {"id": "a", "versionIndex": 0}}
    return {"createArtifact": {"artifact": {"id": "a", "state": "COMMITTED", "artifactSequence": sequence}}}


_ANSWERS = {
    "RunResumeStatus": _resume,
    "UpsertBucket": lambda server, asked: {
        "upsertBucket": {"bucket": _bucket(server, asked.get("name")), "inserted": not server.rows}
    },
    "Viewer": lambda *_: {"viewer": {"id": "u", "entity": "e", "username": "u", "flags": "{}", "teams": {"edges": []}}},
    "ArtifactType": lambda *_: {"project": {"artifact": None}},
    "CreateRunFiles": _create_files,
    "CreateArtifact": _create_artifact,
}
