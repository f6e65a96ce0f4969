#!/bin/bash
set -e
cat > /app/service.py << 'END'
import json
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


def answer(target):
    url = urlsplit(target)
    if url.path != "/sum":
        return 404, {"error": "path"}
    values = parse_qs(url.query).get("values", [""])[0].split(",")
    if not all(re.fullmatch("-?[0-9]+", value) for value in values):
        return 400, {"error": "values"}
    return 200, {"sum": sum(map(int, values)), "count": len(values)}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        status, body = answer(self.path)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())


ThreadingHTTPServer(("127.0.0.1", 8100), Handler).serve_forever()
END
echo 'exec python3 /app/service.py' > /app/start.sh
