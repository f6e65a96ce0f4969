"""A machine outside: a network namespace behind a link of its own, which containers reach like the internet."""

import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PORT = 8000
_SERVE = (
    "import http.server as h, sys\n"
    "class S(h.ThreadingHTTPServer): address_family = 2\n"
    "with S((sys.argv[1], int(sys.argv[2])), lambda *a: h.SimpleHTTPRequestHandler(*a, directory=sys.argv[3])) as s:\n"
    "    print('up', flush=True)\n"
    "    s.serve_forever()\n"
)


@contextmanager
def outside(subnet: str = "198.51.100") -> Iterator[tuple[str, str]]:
    """The machine's address, and the name of its namespace; all of it is gone afterwards. Needs root."""
    mark = secrets.token_hex(3)
    name, here, there = f"out-{mark}", f"oh{mark}", f"ot{mark}"
    run("ip", "netns", "add", name)
    try:
        run("ip", "link", "add", here, "type", "veth", "peer", "name", there, "netns", name)
        run("ip", "addr", "add", f"{subnet}.1/30", "dev", here)
        run("ip", "link", "set", here, "up")
        for command in (
            f"addr add {subnet}.2/30 dev {there}",
            f"link set {there} up",
            "link set lo up",
            f"route add default via {subnet}.1",
        ):
            run("ip", "-n", name, *command.split())
        yield f"{subnet}.2", name
    finally:
        run("ip", "netns", "del", name)  # the link goes with it


@contextmanager
def web_server(folder: Path, address: str, *prefix: str, port: int = PORT) -> Iterator[str]:
    """URL of an HTTP server of the folder's files. `prefix`: a command that enters its namespace."""
    command = [*prefix, sys.executable, "-c", _SERVE, address, str(port), str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        assert server.stdout is not None and server.stdout.readline() == b"up\n"
        try:
            yield f"http://{address}:{port}"
        finally:
            server.kill()


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
