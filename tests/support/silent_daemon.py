"""A Docker daemon that takes requests and leaves chosen ones without an answer."""

import contextlib
import re
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer

import pytest

from harbortrainer.docker.daemon import engine

VERSION = b'{"ApiVersion": "1.41", "MinAPIVersion": "1.12"}'


class SilentDaemon(ThreadingMixIn, UnixStreamServer):
    """Answers each request but those whose "METHOD PATH" matches `silent`; 409 to those in `busy`."""

    daemon_threads = True
    silent = busy = "nothing"

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), _Handler)
        self.ended = threading.Event()
        self.asked: list[str] = []


class _Handler(BaseHTTPRequestHandler):
    """One connection to the daemon."""

    server: SilentDaemon  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        asked = f"{self.command} {self.path}"
        self.server.asked.append(asked)
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if re.search(self.server.silent, asked):
            self.server.ended.wait()
        if "/attach" in asked:  # a stream, on which nothing comes
            self.wfile.write(b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n")
            self.server.ended.wait()
            return
        busy = re.search(self.server.busy, asked)
        self.send_response(409 if busy else 200)
        body = b'{"message": "busy"}' if busy else VERSION if "/version" in self.path else b"{}"
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(OSError):  # the client has given up
            self.wfile.write(body)

    do_GET = do_POST = do_DELETE = _answer

    def address_string(self) -> str:
        return "unix"

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the test asks `asked`."""


@contextlib.contextmanager
def silent_daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[SilentDaemon]:
    """Have DOCKER_HOST name a daemon of this kind; each request to it waits for 0.2 seconds."""
    with tempfile.TemporaryDirectory(prefix="ht-silent-") as folder, SilentDaemon(Path(folder) / "s") as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{folder}/s")
        for name in ("REQUEST_TIMEOUT_SEC", "PING_SEC"):
            monkeypatch.setattr(f"harbortrainer.docker.daemon.{name}", 0.2)
        monkeypatch.setattr(engine, "__defaults__", (0.2,))
        yield server
        server.ended.set()
        server.shutdown()
