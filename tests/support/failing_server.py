"""A real HTTP server that is up, and fails: with 500, a web page, another status or no answer, at all or some paths."""

import contextlib
import json
import threading
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CAPABILITIES = {"supported_models": [{"model_name": "m", "max_context_length": 4096}]}
FIRST = {  # answers of another make of the API, by path
    "/api/v1/healthz": {"status": "ok"},
    "/openapi.json": {"info": {"title": "Another-RL", "version": "0.1"}},
    "/api/v1/client/config": {},
    "/api/v1/client/dynamic_config": {},
    "/api/v1/get_server_capabilities": CAPABILITIES,
    "/api/v1/create_session": {"type": "create_session", "session_id": "s1"},
    "/api/v1/session_heartbeat": {"type": "session_heartbeat"},
}


PAGE = "<html><title>Welcome to nginx!</title></html>"


@contextlib.contextmanager
def failing_server(
    answers: Mapping[str, Any], otherwise: int | str | None = 500, asked: list[float] | None = None
) -> Iterator[str]:
    """Its URL. `answers`: JSON by path. `otherwise`: all other answers' status, a page, or None: there are none.

    `asked`: gets the time of each request.
    """
    ended = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if asked is not None:
                asked.append(time.monotonic())
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path = self.path.split("?")[0]
            known = path in answers or isinstance(otherwise, str)
            if not known and otherwise is None:
                ended.wait()
                return
            is_page = isinstance(otherwise, str) and path not in answers
            text = otherwise if is_page else json.dumps(answers.get(path, {"detail": "an error"}))
            body = str(text).encode()
            self.send_response(200 if known else int(otherwise or 500))
            self.send_header("Content-Type", "text/html" if is_page else "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("x-request-id", "req-7")
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        ended.set()
        server.shutdown()
        server.server_close()
