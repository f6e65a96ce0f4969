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
# A question of one name: header of 12 bytes, name, type, class. A for the known name, NXDOMAIN for others.
_ANSWER = (
    "import socket, sys\n"
    "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
    "s.bind((sys.argv[1], 53))\n"
    "print('up', flush=True)\n"
    "name = b''.join(bytes([len(l)]) + l for l in sys.argv[2].encode().split(b'.')) + b'\\0'\n"
    "while True:\n"
    "    q, a = s.recvfrom(512)\n"
    "    end = q.index(b'\\0', 12) + 5\n"
    "    known = q[12:end - 4].lower() == name\n"
    "    n = 1 if known and q[end - 4:end - 2] == b'\\0\\1' else 0\n"
    "    r = b'\\xc0\\x0c\\0\\1\\0\\1\\0\\0\\0\\1\\0\\4' + socket.inet_aton(sys.argv[1])\n"
    "    s.sendto(q[:2] + (b'\\x81\\x80' if known else b'\\x81\\x83') + b'\\0\\1\\0' + bytes([n])\n"
    "        + b'\\0' * 4 + q[12:end] + r * n, a)\n"
)


@contextmanager
def outside() -> Iterator[tuple[str, str, str]]:
    """Address of this machine's end, the other machine's, and the name of its namespace; gone afterwards. Needs root.

    The addresses are random: a run of the tests that was killed may have left some.
    """
    mark, first = secrets.token_hex(3), 4 * secrets.randbelow(64)
    name, here, there = f"out-{mark}", f"oh{mark}", f"ot{mark}"
    near, far = f"198.51.100.{first + 1}", f"198.51.100.{first + 2}"
    run("ip", "netns", "add", name)
    try:
        run("ip", "link", "add", here, "type", "veth", "peer", "name", there, "netns", name)
        run("ip", "addr", "add", f"{near}/30", "dev", here)
        run("ip", "link", "set", here, "up")
        for command in (
            f"addr add {far}/30 dev {there}",
            f"link set {there} up",
            "link set lo up",
            f"route add default via {near}",
        ):
            run("ip", "-n", name, *command.split())
        yield near, far, name
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


@contextmanager
def name_server(address: str, name: str, *prefix: str) -> Iterator[None]:
    """A name server that knows one name, with its own address. `prefix`: a command that enters its namespace."""
    with subprocess.Popen([*prefix, sys.executable, "-c", _ANSWER, address, name], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None and server.stdout.readline() == b"up\n"
        try:
            yield
        finally:
            server.kill()


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
