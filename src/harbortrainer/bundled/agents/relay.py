"""Connections of an agent, carried out of its container over the streams of an exec.

For a daemon on another machine, and a trainer that may not open a socket in a container's network (`listener.py`). It
needs a Python in the container: that of the mounted programs, or of the image.
"""

import asyncio
import contextlib
import shlex
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import requests
from docker.errors import DockerException, NotFound

from harbortrainer.bundled.agents.listener import NoPython, ShutOut
from harbortrainer.docker.box.first_shell import DOCKER_FRAME, STDERR, duplex, frames
from harbortrainer.docker.daemon import call, engine
from harbortrainer.errors import EnvironmentFault, one_line

START_SEC = 30.0  # for an exec on a busy machine
END_SEC = 2.0  # for the program to see that its input has ended; what is left is ended with the agent's processes
CUT_SEC, PAUSE_SEC = 10.0, 0.1  # for the daemon to note that a program has ended, after its streams; between two looks
NO_PYTHON = "no python3"
NOT_RUN = 126  # the least exit status of what was not started, or was killed: as by a machine without memory
_FRAME = struct.Struct(">II")  # as relay_program.py has it
_WORDS = 500  # bytes of what the program says before it fails

Serve = Callable[[socket.socket], Awaitable[None]]
Lost = Callable[[EnvironmentFault], None]


class Relay:
    """Open within a phase of a trial. Each connection of the container becomes a socket that `serve` answers.

    `lost` is called when it ends early because its stream does; the policy can only kill its program.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, exec_id: str, serve: Serve, lost: Lost
    ) -> None:
        self._reader, self._writer, self._serve = reader, writer, serve
        self._exec_id, self._lost = exec_id, lost
        self._closing = False
        self._pipes: dict[int, asyncio.StreamWriter] = {}
        self._ended: set[int] = set()  # connections that the server has closed; what their clients still send is lost
        self._carrying: set[asyncio.Task[None]] = set()
        self._words = b""
        self._work: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, container: str, port: int, pythons: Sequence[str], serve: Serve, lost: Lost) -> "Relay":
        """Listen at 127.0.0.1:`port` in the container. `pythons`: programs to run with, the first that is there.

        Raises NoPython, ShutOut when the program fails, RuntimeError, docker.errors.DockerException.
        """
        raw, early, exec_id = await call(_exec, container, port, pythons)
        relay = cls(*await asyncio.open_connection(sock=raw), exec_id, serve, lost)
        try:
            started = await relay._start(early)
        finally:
            if relay._work is None:
                relay._writer.close()
        if not started:
            words = (relay._words.decode(errors="replace").strip() or "no answer").splitlines()[-1]
            if words == NO_PYTHON:
                raise NoPython(f"container {container} has no python3, which carries the agent's requests")
            kind = ShutOut if await relay._failed() else RuntimeError
            raise kind(f"the agent's endpoint cannot listen at port {port} inside {container}: {words}")
        return relay

    async def _start(self, early: bytes) -> bool:
        """Whether the program listens."""
        frames = self._frames(early)
        try:
            async with asyncio.timeout(START_SEC):
                await anext(frames)
        except (StopAsyncIteration, TimeoutError):
            return False
        self._work = asyncio.create_task(self._run(frames))
        return True

    async def _failed(self) -> bool:
        """Whether the program began and then failed by itself, which nothing outside of its container causes."""
        give_up = time.monotonic() + CUT_SEC
        while (code := await call(_exit_code, self._exec_id)) is None:
            if time.monotonic() > give_up:
                return False
            await asyncio.sleep(PAUSE_SEC)
        return 0 < code < NOT_RUN

    async def close(self) -> None:
        """End the program and all connections. A second time: nothing."""
        if self._work is None:
            return
        self._closing = True
        with contextlib.suppress(OSError):
            self._writer.write_eof()
        await asyncio.wait({self._work}, timeout=END_SEC)
        for task in (self._work, *self._carrying):
            task.cancel()
        await asyncio.gather(self._work, *self._carrying, return_exceptions=True)
        self._work = None
        self._writer.close()

    async def _run(self, frames: AsyncIterator[tuple[int, bytes]]) -> None:
        """Hand out what comes from the container until it ends: also when the policy kills the program there."""
        problem = ""
        try:
            async for number, data in frames:
                with contextlib.suppress(ConnectionError):
                    await self._take(number, data)
        except OSError as error:  # no socket is left for another connection
            problem = str(error)
        for pipe in self._pipes.values():
            pipe.close()
        problem = problem or await self._cut()
        if problem and not self._closing:
            self._lost(EnvironmentFault(f"the agent's way to its endpoint was lost: {problem}"))

    async def _cut(self) -> str:
        """Why the stream ended before its program; "" = the program failed first, as when the policy kills it."""
        problem, give_up = "", time.monotonic() + CUT_SEC
        while time.monotonic() < give_up and not self._closing:
            try:
                if code := await call(_exit_code, self._exec_id):
                    return ""
                problem = "the stream of its exec was cut"
                if code == 0:  # its input had ended
                    return problem
            except NotFound:  # the container is gone: its commands tell
                return ""
            except (DockerException, requests.RequestException) as error:
                problem = one_line(error)
            await asyncio.sleep(PAUSE_SEC)
        return problem

    async def _take(self, number: int, data: bytes) -> None:
        pipe = self._pipes.get(number)
        if pipe is None:
            if not data or number in self._ended:
                return
            here, there = socket.socketpair()
            reader, pipe = await asyncio.open_connection(sock=here)
            self._pipes[number] = pipe
            await self._serve(there)
            task = asyncio.create_task(self._carry(number, reader))
            self._carrying.add(task)
            task.add_done_callback(self._carrying.discard)
        if data:
            pipe.write(data)
            await pipe.drain()
        else:
            pipe.close()

    async def _carry(self, number: int, reader: asyncio.StreamReader) -> None:
        """Send the container what the server says on one connection."""
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                await self._send(number, data)
        self._ended.add(number)
        self._pipes.pop(number).close()
        with contextlib.suppress(ConnectionError):
            await self._send(number, b"")

    async def _send(self, number: int, data: bytes) -> None:
        self._writer.write(_FRAME.pack(number, len(data)) + data)
        await self._writer.drain()

    async def _frames(self, early: bytes) -> AsyncIterator[tuple[int, bytes]]:
        """The program's frames, out of those of Docker's stream."""
        raw, said = bytearray(early), bytearray()
        while True:
            for stream, part in frames(raw, DOCKER_FRAME):
                if stream == STDERR:
                    self._words = (self._words + part)[-_WORDS:]
                else:
                    said += part
            for frame in frames(said, _FRAME):
                yield frame
            try:
                data = await self._reader.read(1 << 18)
            except ConnectionError:
                return
            if not data:
                return
            raw += data


def _exec(container: str, port: int, pythons: Sequence[str]) -> tuple[socket.socket, bytes, str]:
    """As root, whom only a policy that is root can kill. The duplex socket, its first bytes, the id. Blocking."""
    program = Path(__file__).with_name("relay_program.py").read_text()
    choose = " || ".join(f"p=$(command -v {shlex.quote(python)})" for python in pythons)
    script = f'{{ {choose}; }} || {{ echo {NO_PYTHON} >&2; exit 127; }}; exec "$p" -I -S -c "$0" {port}'
    client = engine()
    made = client.exec_create(container, ["sh", "-c", script, program], stdin=True, user="root", workdir="/")
    return *duplex(client.exec_start(made["Id"], socket=True)), made["Id"]


def _exit_code(exec_id: str) -> int | None:
    """None: the program runs. Blocking."""
    found = engine().exec_inspect(exec_id)
    return None if found["Running"] else found["ExitCode"]
