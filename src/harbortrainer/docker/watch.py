"""Watches verifications: starts watcher.py beside the daemon and reads what it saw."""

import asyncio
import contextlib
import json
import logging
import os
import socket
import sys
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests
from docker.errors import DockerException
from docker.types import LogConfig

from harbortrainer.docker.cleaning import labels, remove_container
from harbortrainer.docker.daemon import call, engine, first_process
from harbortrainer.docker.first_shell import DOCKER_FRAME, STDERR, duplex, frames
from harbortrainer.docker.inside import first_of
from harbortrainer.errors import one_line

READY_SEC, END_SEC = 20.0, 60.0
MOST_BYTES = 32 * 1024 * 1024  # of the watcher's answer
_PROGRAM = Path(__file__).with_name("watcher.py")
_CHUNK = 1 << 16
_log = logging.getLogger("harbortrainer")
_told: set[str] = set()


@dataclass(frozen=True, slots=True)
class Process:
    """A process of the policy that lived when verification began. `ran`: it used a processor since, or ended.

    `pid`: as the container numbers it; 0 = not known.
    """

    name: str
    ports: tuple[int, ...] = ()
    ran: bool = True
    writes: tuple[str, ...] = ()  # files that it has open for writing
    pid: int = 0


@dataclass(frozen=True, slots=True)
class Program:
    """A process of verification that opened a file. `words`: the first of its command line."""

    parent: int
    cwd: str
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """What happened during a verification.

    `opened`: paths in the order of their first opens by verification, with their places; None = not known. `tampered`:
    files of verification's own, and memory, that processes of the policy wrote or opened. `readers`: by path, the
    first processes that opened it, in their order; `programs`: of readers, by process, where it could be read.
    """

    opened: Mapping[str, int] | None = None
    written: frozenset[str] = frozenset()
    tampered: tuple[str, ...] = ()
    processes: tuple[Process, ...] = ()
    readers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    programs: Mapping[int, Program] = field(default_factory=dict)


@dataclass(slots=True)
class Sight:
    """`seen`: once the block of `watching` has ended."""

    seen: Seen = field(default_factory=Seen)


class _Watcher:
    """The program's streams."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, framed: bool) -> None:
        self._reader, self._writer, self._framed = reader, writer, framed
        self._raw, self._text = bytearray(), bytearray()
        self.complaint = ""

    async def ready(self) -> bool:
        while b"\n" not in self._text:
            if not await self._more():
                return False
        return self._text.startswith(b"watching\n")

    async def end(self) -> bytes:
        """What the program prints at its end."""
        if self._writer.can_write_eof():
            self._writer.write_eof()
        while await self._more():
            if len(self._text) > MOST_BYTES:
                break
        return bytes(self._text.partition(b"\n")[2])

    async def _more(self) -> bool:
        data = await self._reader.read(_CHUNK)
        if not self._framed:
            self._text += data
            return bool(data)
        self._raw += data
        for stream, payload in frames(self._raw, DOCKER_FRAME):
            if stream == STDERR:
                self.complaint += payload.decode(errors="replace")[-500:]
            else:
                self._text += payload
        return bool(data)


@contextlib.asynccontextmanager
async def watching(container: str, image: str, run_id: str, kept: Collection[int]) -> AsyncIterator[Sight]:
    """Watch the container while the block runs. `kept`: processes of the image, as the daemon's machine numbers them.

    Where that is impossible, what is seen is not known, and the log says so once.
    """
    sight = Sight()
    async with contextlib.AsyncExitStack() as undo:
        watcher = None
        try:
            async with asyncio.timeout(READY_SEC):
                found = await undo.enter_async_context(_program(container, image, run_id, kept))
                watcher = found if await found.ready() else None
                why = found.complaint
        except (OSError, DockerException, requests.RequestException, TimeoutError) as error:
            why = f"{type(error).__name__}: {error}"
        if watcher is None:
            _tell(why)
        yield sight
        if watcher is not None:
            try:
                async with asyncio.timeout(END_SEC):
                    sight.seen = await asyncio.to_thread(_parsed, await watcher.end())
            except (OSError, ValueError, TimeoutError) as error:
                _tell(f"{type(error).__name__}: {error}")


@contextlib.asynccontextmanager
async def _program(container: str, image: str, run_id: str, kept: Collection[int]) -> AsyncIterator[_Watcher]:
    """Raises OSError, docker.errors.DockerException where it cannot run."""
    first = await call(_first, container)
    words = [sys.executable, "-I", "-S", str(_PROGRAM), str(first), ",".join(map(str, sorted(kept)))]
    if os.geteuid() == 0:
        pipe = asyncio.subprocess.PIPE
        program = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, stderr=pipe)
        assert program.stdin is not None and program.stdout is not None and program.stderr is not None
        watcher = _Watcher(program.stdout, program.stdin, framed=False)
        try:
            yield watcher
        finally:
            with contextlib.suppress(ProcessLookupError):
                program.kill()
            await program.wait()
        return
    made = await call(_helper, image, words, run_id)
    try:
        raw, early = await call(_attached, made)
        reader, writer = await asyncio.open_connection(sock=raw)
        reader.feed_data(early)
        await call(engine().start, made)
        yield _Watcher(reader, writer, framed=True)
        writer.close()
    finally:
        await call(remove_container, made)


def _first(container: str) -> int:
    return first_of(container) or first_process(engine().inspect_container(container))


def _helper(image: str, words: list[str], run_id: str) -> str:
    """A container that is root on the daemon's machine, and runs a program of it. Returns its ID."""
    client = engine()
    host = client.create_host_config(
        privileged=True, pid_mode="host", network_mode="none", binds=["/:/host"], log_config=LogConfig(type="none")
    )
    entrypoint = ["chroot", "/host", *words]
    return client.create_container(
        image, [], entrypoint=entrypoint, user="0", stdin_open=True, labels=labels(run_id), host_config=host
    )["Id"]


def _attached(container: str) -> tuple[socket.socket, bytes]:
    return duplex(engine().attach_socket(container, params={"stream": 1, "stdin": 1, "stdout": 1, "stderr": 1}))


def _parsed(text: bytes) -> Seen:
    """Raises ValueError."""
    found: dict[str, Any] = json.loads(text)
    processes = tuple(
        Process(one["name"], tuple(one["ports"]), one["ran"], tuple(one["writes"]), one["pid"])
        for one in found["processes"]
    )
    opened = None if found["overflow"] else found["opened"]
    programs = {
        int(pid): Program(one["parent"], one["cwd"], tuple(one["words"])) for pid, one in found["programs"].items()
    }
    readers = {path: tuple(pids) for path, pids in found["readers"].items()}
    return Seen(opened, frozenset(found["written"]), tuple(found["tampered"]), processes, readers, programs)


def _tell(why: str) -> None:
    if "" not in _told:
        _told.add("")
        _log.warning(
            "verifications cannot be watched (%s): each rewarded trial that changed what its task does not ask for is "
            "verified a second time; run as root or with a Docker daemon of this machine",
            one_line(why) or "the watcher did not start",
        )  # fmt: skip
