"""The shell that starts with a container, reached by attaching to the container: an exec session costs much more.

The stream of an attached container does not end with the shell. Its process is watched instead, so this needs the
daemon's processes on this machine. All functions block.
"""

import contextlib
import io
import os
import socket
import struct
import time
from pathlib import Path
from typing import Any

from harbortrainer.docker.box.first_process import note, overlay_of
from harbortrainer.docker.box.terminals import limit_terminals
from harbortrainer.docker.daemon import engine, first_process

DOCKER_FRAME = struct.Struct(">BxxxL")  # stream, length
STDERR = 2  # such a stream
_PROC = Path("/proc")
_STARTED_SEC, _NAP_SEC = 2.0, 0.001  # until PID 1 has become `sleep`
_STREAMS = {"stream": 1, "stdin": 1, "stdout": 1, "stderr": 1}


def first_shell(container: str) -> tuple[socket.socket, bytes, io.FileIO] | None:
    """Return its duplex socket, the first bytes that came, and a file that becomes readable when it ends; close both.

    None = the image has no bash, or the process cannot be seen from here; the caller starts a shell of its own. Raises
    docker.errors.DockerException.
    """
    found = engine().inspect_container(container)
    try:
        first = first_process(found)
        watched = _watched(first)
    except OSError:  # its processes are not of this machine, or it has ended
        return None
    if watched is None:
        return None
    shell, ends = watched
    note(container, first, shell, overlay_of(found))
    limit_terminals(first)
    with contextlib.ExitStack() as undo:
        undo.callback(ends.close)
        raw, early = duplex(engine().attach_socket(container, params=dict(_STREAMS)))
        undo.pop_all()
    return raw, early, ends


def _watched(first: int) -> tuple[int, io.FileIO] | None:
    """The only child of PID 1, once that waits, and its pidfd. `first`: PID 1, as numbered here. Raises OSError."""
    began = time.monotonic()
    while (_PROC / str(first) / "comm").read_text() != "sleep\n":
        if (waited := time.monotonic() - began) > _STARTED_SEC:
            return None
        time.sleep(max(_NAP_SEC, waited / 4))  # on a busy machine it takes long, for many at once
    children = (_PROC / str(first) / "task" / str(first) / "children").read_text().split()
    if len(children) != 1:
        return None
    shell = int(children[0])
    return shell, io.FileIO(os.pidfd_open(shell))


def duplex(stream: Any) -> tuple[socket.socket, bytes]:
    """Return the socket of an answer of the daemon, and the bytes that came with the answer's head."""
    stream._sock.settimeout(None)  # the request's limit, for which `peek` would wait
    duplicate = socket.socket(fileno=os.dup(stream.fileno()))
    duplicate.setblocking(False)  # of both descriptors: `peek` takes what is buffered and does not wait
    early = stream._response.raw._fp.fp.peek()
    stream._response.close()
    return duplicate, early


def frames(buffer: bytearray, head: struct.Struct) -> list[tuple[int, bytes]]:
    """Take complete frames from the front of the buffer: a number and a length, then the data."""
    found, at = [], 0
    while len(buffer) - at >= head.size:
        number, length = head.unpack_from(buffer, at)
        if len(buffer) - at - head.size < length:
            break
        at += head.size
        found.append((number, bytes(buffer[at : at + length])))
        at += length
    del buffer[:at]
    return found
