"""A service with three settings: port (a number), greeting (a text file), paths (URL path -> "health" or "greeting")."""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

with open(sys.argv[1]) as file:
    settings = json.load(file)
with open(settings["greeting"]) as file:
    greeting = file.read()
answers = {"health": "ok\n", "greeting": greeting}
paths = {path: answers[name] for path, name in settings["paths"].items()}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        known = self.path in paths
        self.send_response(200 if known else 404)
        self.end_headers()
        self.wfile.write(paths.get(self.path, "unknown\n").encode())


ThreadingHTTPServer(("127.0.0.1", settings["port"]), Handler).serve_forever()
