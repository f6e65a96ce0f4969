#!/bin/bash
set -e
cat > /app/echo.py << 'END'
import socketserver


class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        try:
            for line in self.rfile:
                if line.endswith(b"\n"):
                    self.wfile.write(line.upper())
        except OSError:
            pass


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 100


Server(("127.0.0.1", 7100), Handler).serve_forever()
END
