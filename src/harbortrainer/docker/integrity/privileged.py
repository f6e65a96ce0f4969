"""Runs a program of this package as root on the daemon's machine: beside this process, or in a helper container.

The program has the standard library alone, and ends with its standard input: it ends with this process, however that
ends. All functions block.
"""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from docker.errors import ImageNotFound
from docker.types import LogConfig

from harbortrainer.docker.box.first_shell import DOCKER_FRAME, duplex, frames
from harbortrainer.docker.daemon import engine, remove_container
from harbortrainer.docker.keeping.ownership import image_labels, labels

EMPTY = "harbortrainer/empty:1"  # an image without a file: no image's author gets the rights of the helper
END_SEC = 5.0
_SOURCE = Path(__file__).resolve().parents[3]  # the folder that has this package
_CAPABILITIES = ("DAC_OVERRIDE", "DAC_READ_SEARCH", "KILL", "SYS_ADMIN", "SYS_NICE", "SYS_PTRACE")
_LIBRARIES = ("lib", "lib64", "usr")
_CHUNK = 1 << 16


type RootProgram = _Beside | _InContainer


def start(module: str, run_id: str) -> RootProgram:
    """Start `main` of a module. Raises OSError, docker.errors.DockerException where that is impossible."""
    words = words_of(module)
    return _Beside(words) if os.geteuid() == 0 else _InContainer(words, run_id)


def words_of(module: str) -> list[str]:
    """Return the command line that runs `main` of a module."""
    code = f"import sys; sys.path.insert(0, {str(_SOURCE)!r}); from {module} import main; main()"
    return [os.path.realpath(sys.executable), "-I", "-S", "-c", code]


class _Beside:
    """A process of this machine. Its errors are output, too."""

    def __init__(self, words: list[str]) -> None:
        pipe = subprocess.PIPE
        # A session of its own: Ctrl-C is for the trainer, which ends its verifications first.
        self._process = subprocess.Popen(
            words, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, start_new_session=True
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout

    def send(self, line: bytes) -> None:
        """Raises OSError when it has ended."""
        self._stdin.write(line)
        self._stdin.flush()

    def chunks(self) -> Iterator[bytes]:
        """Yield its output, until it ends."""
        while data := os.read(self._stdout.fileno(), _CHUNK):
            yield data

    def close(self) -> None:
        """End its standard input."""
        with contextlib.suppress(OSError):
            self._stdin.close()
        try:
            self._process.wait(END_SEC)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class _InContainer:
    """A container that is root on the daemon's machine. It has this machine's Python, and nothing of an image."""

    def __init__(self, words: list[str], run_id: str) -> None:
        client = engine()
        made = _create(words, run_id)
        self._socket, self._early = duplex(
            client.attach_socket(made, params={"stream": 1, "stdin": 1, "stdout": 1, "stderr": 1})
        )
        self._socket.setblocking(True)
        with contextlib.ExitStack() as undo:
            undo.callback(self._socket.close)
            undo.callback(remove_container, made)
            client.start(made)
            undo.pop_all()

    def send(self, line: bytes) -> None:
        self._socket.sendall(line)

    def chunks(self) -> Iterator[bytes]:
        raw, data = bytearray(self._early), b"-"
        while data:
            for _, payload in frames(raw, DOCKER_FRAME):
                yield payload
            try:
                data = self._socket.recv(_CHUNK)
            except OSError:
                return
            raw += data

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _create(words: list[str], run_id: str) -> str:
    """The ID of the container, which the daemon removes when it has ended."""
    client = engine()
    library = os.path.realpath(os.__file__)
    tops = {Path(path).parts[1] for path in (words[0], library, str(_SOURCE))}
    shared = {"LD_LIBRARY_PATH": str(Path(library).parents[1])}  # libpython, where the machine's ld.so.cache finds it
    tops |= {name for name in _LIBRARIES if Path("/", name).exists()}
    host = client.create_host_config(
        cap_drop=["ALL"],
        cap_add=list(_CAPABILITIES),
        security_opt=["seccomp=unconfined", "apparmor=unconfined", "label=disable"],
        pid_mode="host",
        cgroupns="host",  # /proc/PID/cgroup tells whole paths
        network_mode="none",
        auto_remove=True,
        binds=[f"/{top}:/{top}:ro" for top in (*sorted(tops), "sys/fs/cgroup")],
        log_config=LogConfig(type="none"),
    )

    def create() -> str:
        return client.create_container(
            EMPTY, [], entrypoint=words, user="0", stdin_open=True, environment=shared, labels=labels(run_id),
            host_config=host,
        )["Id"]  # fmt: skip

    try:
        return create()
    except ImageNotFound:
        marks = [f"LABEL {name}={value}" for name, value in image_labels("", run_id).items()]
        repository, _, tag = EMPTY.partition(":")
        client.import_image_from_data(b"\0" * 10240, repository=repository, tag=tag, changes=marks)
        return create()
