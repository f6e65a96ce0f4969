#!/bin/bash
set -e
cat > /app/service.py << 'END'
import os
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

DATA = "/app/data"


class Handler(BaseHTTPRequestHandler):
    def answer(self, status, body=b""):
        self.send_response(status)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def note(self):
        """The file of the note, or None after an answer."""
        if not self.path.startswith("/notes/"):
            return self.answer(404)
        name = self.path.removeprefix("/notes/")
        if not re.fullmatch("[a-z0-9]{1,20}", name):
            return self.answer(400)
        return os.path.join(DATA, name)

    def do_GET(self):
        if self.path == "/notes":
            names = sorted(name for name in os.listdir(DATA) if not name.startswith("."))
            return self.answer(200, "".join(f"{name}\n" for name in names).encode())
        if file := self.note():
            if not os.path.exists(file):
                return self.answer(404)
            with open(file, "rb") as opened:
                self.answer(200, opened.read())

    def do_PUT(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if file := self.note():
            if len(body) > 1000:
                return self.answer(413)
            status = 200 if os.path.exists(file) else 201
            with open(f"{DATA}/.new", "wb") as opened:
                opened.write(body)
            os.replace(f"{DATA}/.new", file)
            self.answer(status)

    def do_DELETE(self):
        if file := self.note():
            if not os.path.exists(file):
                return self.answer(404)
            os.remove(file)
            self.answer(204)


class Server(ThreadingHTTPServer):
    allow_reuse_address = True


Server(("127.0.0.1", 8200), Handler).serve_forever()
END
echo 'exec python3 /app/service.py' > /app/start.sh
