"""Starts a root shell in a container by the daemon's runtime (runc, crun) itself, as containerd does for an exec.

The runtime gives it the container's own rights, variables and limits. Without the daemon and containerd it takes half
of an exec's processor time. It needs root on the daemon's machine.
"""

import asyncio
import contextlib
import functools
import io
import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, override

from harbortrainer.docker.box.first_process import noted, parent_of
from harbortrainer.docker.box.first_shell import DOCKER_FRAME, STDERR
from harbortrainer.docker.box.root_folder import Unusual, check_users

_STDOUT = 1
_MEMORY = "/dev/shm"  # the runtime writes its file in step with the disk
_STRANGE = (OSError, ValueError, KeyError, TypeError, Unusual, subprocess.SubprocessError)


class Pipes(NamedTuple):
    """A shell's streams, and a file that becomes readable when it ends."""

    stdin: io.FileIO
    stdout: io.FileIO
    stderr: io.FileIO
    process: io.FileIO


def runtime_shell(container: str, words: Sequence[str], seconds: float) -> Pipes | None:
    """Start a program as root in a container that began as root; None = the daemon has to do it. Blocking.

    That is where the runtime is not known from here, refuses, or could meet what is no list of users.
    """
    with contextlib.suppress(*_STRANGE):
        check_users(container)
        command, bundle = _runtime(container)
        process: dict[str, Any] = json.loads((bundle / "config.json").read_bytes())["process"]
        if process["user"]["uid"] == 0:
            process |= {"args": list(words), "cwd": "/", "terminal": False}
            return _started(command, bundle.name, process, seconds)
    return None


def _runtime(container: str) -> tuple[list[str], Path]:
    """The runtime's command, and the folder of what it was given for the container: where its parent works.

    Raises what _STRANGE has.
    """
    if (one := noted(container)) is None:
        raise Unusual(container)
    bundle = Path(f"/proc/{parent_of(one.pid)}/cwd").readlink()
    if int((bundle / "init.pid").read_text()) != one.pid:
        raise Unusual(container)
    options = json.loads((bundle / "options.json").read_bytes())
    if (program := shutil.which(options["binary_name"])) is None:
        raise FileNotFoundError(options["binary_name"])
    systemd = ["--systemd-cgroup"] if options.get("systemd_cgroup") else []
    return [program, "--root", f"{options['root']}/{bundle.parent.name}", *systemd], bundle


def _started(command: Sequence[str], name: str, process: dict[str, Any], seconds: float) -> Pipes:
    """Raises OSError, subprocess.SubprocessError."""
    with tempfile.TemporaryDirectory(dir=_MEMORY) as folder, contextlib.ExitStack() as undo:
        Path(folder, "process.json").write_text(json.dumps(process))
        own, given = list[io.FileIO](), list[io.FileIO]()
        for inwards in (True, False, False):
            reads, writes = map(io.FileIO, os.pipe(), ("r", "w"))
            own.append(undo.enter_context(writes if inwards else reads))
            given.append(reads if inwards else writes)
        try:
            runtime = subprocess.Popen(
                [*command, "exec", "--detach", f"--process={folder}/process.json", f"--pid-file={folder}/pid", name],
                stdin=given[0], stdout=given[1], stderr=given[2], env={"PATH": os.environ.get("PATH", os.defpath)},
            )  # fmt: skip
            _wait(runtime, seconds)
        finally:
            for one in given:
                one.close()
        ends = io.FileIO(os.pidfd_open(int(Path(folder, "pid").read_text())))
        undo.pop_all()
        return Pipes(own[0], own[1], own[2], ends)


def _wait(runtime: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait for the runtime without looks at it, which Popen.wait makes where time is limited; kill it when it is late.

    Raises subprocess.CalledProcessError.
    """
    late = threading.Timer(seconds, runtime.kill)
    late.start()
    code = runtime.wait()
    late.cancel()
    if code != 0:
        raise subprocess.CalledProcessError(code, runtime.args)


async def streams_of(pipes: Pipes, limit: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return a shell's streams as an exec's socket has them: what it prints in frames. The writer closes them."""
    loop, reader, both = asyncio.get_running_loop(), asyncio.StreamReader(limit), _Both()
    for kind, pipe in ((_STDOUT, pipes.stdout), (STDERR, pipes.stderr)):
        transport, _ = await loop.connect_read_pipe(functools.partial(_Framed, reader, both, kind), pipe)
        both.open.append(transport)
    reader.set_transport(both)
    into = asyncio.StreamReaderProtocol(asyncio.StreamReader())
    transport, _ = await loop.connect_write_pipe(lambda: into, pipes.stdin)
    return reader, _Writer(transport, into, both, loop)


class _Both(asyncio.ReadTransport):
    """Standard output and errors. `open`: the living ones."""

    def __init__(self) -> None:
        super().__init__()
        self.open = list[asyncio.ReadTransport]()

    @override
    def pause_reading(self) -> None:
        for one in self.open:
            one.pause_reading()

    @override
    def resume_reading(self) -> None:
        for one in self.open:
            one.resume_reading()

    @override
    def close(self) -> None:
        for one in self.open:
            one.close()


class _Framed(asyncio.Protocol):
    def __init__(self, reader: asyncio.StreamReader, both: _Both, kind: int) -> None:
        self._reader, self._both, self._kind = reader, both, kind
        self._transport: asyncio.BaseTransport | None = None

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    @override
    def data_received(self, data: bytes) -> None:
        self._reader.feed_data(DOCKER_FRAME.pack(self._kind, len(data)) + data)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._both.open = [one for one in self._both.open if one is not self._transport]
        if not self._both.open:
            self._reader.feed_eof()


class _Writer(asyncio.StreamWriter):
    def __init__(
        self,
        transport: asyncio.WriteTransport,
        protocol: asyncio.StreamReaderProtocol,
        both: _Both,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(transport, protocol, None, loop)
        self._both = both

    @override
    def close(self) -> None:
        super().close()
        self._both.close()
