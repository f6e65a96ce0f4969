"""Private parts of other packages that the code uses: each test fails when an upgrade changes the part."""

import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from harbortrainer.docker.box import shell
from tests.support.fake_engine import use_engine

CREATED = b'HTTP/1.1 201 Created\r\nConnection: close\r\nContent-Length: 10\r\n\r\n{"Id":"x"}'
NOTHING = b"HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\n"
UPGRADED = b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Path]:
    """A socket that answers as Docker does to an exec: the head of its stream comes together with the first output."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path := tmp_path / "docker.sock"))
    server.listen()

    def serve() -> None:
        for answer in (NOTHING, NOTHING, CREATED, UPGRADED + b"early"):
            client, _ = server.accept()
            with client, client.makefile("rb") as requests:
                head = b"".join(iter(requests.readline, b"\r\n"))
                requests.read(sum(map(int, re.findall(rb"(?i)content-length: (\d+)", head))))
                client.sendall(answer)
                if answer not in (NOTHING, CREATED):
                    assert requests.readline() == b"input\n"
                    client.sendall(b"late")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield path
    thread.join(10)
    server.close()


def test_docker_py_gives_what_came_with_the_head_of_a_stream(daemon: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`stream._response.raw._fp.fp.peek()` in src/harbortrainer/docker/box/shell.py."""
    client = docker.APIClient(f"unix://{daemon}", version="1.44", timeout=600)
    use_engine(monkeypatch, client)
    stream, early = shell._exec_socket("container", "user")
    with stream:
        assert early == b"early"
        stream.setblocking(True)
        stream.sendall(b"input\n")
        assert stream.recv(100) == b"late"
