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
OF_OLDER_SDKS = FIRST | {  # as Open-RL: adapters are made; what this SDK sends as protobuf ends with 500
    "/api/v1/create_model": {"request_id": "r1"},
    "/api/v1/retrieve_future": {"type": "create_model", "model_id": "m1", "is_lora": True, "lora_rank": 4},
    "/api/v1/get_info": {"type": "get_info", "model_id": "m1", "model_data": {"model_name": "m", "tokenizer_id": "m"}},
    "/api/v1/unload_model": 404,
    "/api/v1/sessions/s1/finish": 404,
}


PAGE = "<html><title>Welcome to nginx!</title></html>"


@contextlib.contextmanager
def failing_server(
    answers: Mapping[str, Any], otherwise: int | str | None = 500, asked: list[float] | None = None
) -> Iterator[str]:
    """Its URL. `answers`: by path JSON, a status, or None: the connection is closed. `otherwise`: all others' status,
    a page, or None: there is no answer.

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
            answer = answers.get(path, {"detail": "an error"})
            if answer is None:
                self.close_connection = True
                return
            status = answer if isinstance(answer, int) else 200 if known else int(otherwise or 500)
            text = otherwise if is_page else json.dumps(answer)
            body = str(text).encode()
            self.send_response(status)
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
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()  # its end is noticed soon
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        ended.set()
        server.shutdown()
        server.server_close()
