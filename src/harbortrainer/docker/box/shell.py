"""Runs commands in a container through shells that stay open, each over one exec socket, one command after the other.

command.py has what a shell is given to run one.
"""

import asyncio
import contextlib
import io
import secrets
import socket
from collections import defaultdict
from dataclasses import dataclass, replace

import requests
from docker.errors import DockerException

from harbortrainer.docker.box.archive import GO_LINK, stat_of
from harbortrainer.docker.box.command import BLOCKS, BOOT, PREAMBLE, READY, SAY_READY, ShellCommand, script
from harbortrainer.docker.box.first_shell import DOCKER_FRAME, STDERR, duplex, first_shell, frames
from harbortrainer.docker.box.root_folder import MOST_USERS, USERS
from harbortrainer.docker.box.runtime_shell import runtime_shell, streams_of
from harbortrainer.docker.daemon import call, engine, ping_docker
from harbortrainer.docker.keeping.cleaning import in_background

MAX_OUTPUT_BYTES = 2 * 1024 * 1024  # of each stream of a command
BOOT_BYTES, BOOT_SEC = 16 * 1024, 15  # until a shell says that it is ready
_NOT_STARTED = f"what was started as a shell did not answer within {BOOT_SEC} s"
KILL_WAIT_SEC = 5.0
IN_FLIGHT_SEC = 0.2  # until the output of a process that has ended is here
_STDOUT, _PAUSE_SEC = 1, 0.005
_WORDS, _BUFFER = ["sh", "-c", BOOT], 1024 * 1024
_GO_NO_FILE = 0x8F280000  # bits of Go's file modes: a folder, link, pipe, socket, device, ...


class ShellGone(Exception):
    """The shell ended before it took the command; the command did not run."""


@dataclass(frozen=True, slots=True)
class Output:
    stdout: bytes
    stderr: bytes
    return_code: int
    truncated: bool = False  # the middle of a stream was dropped
    shell_died: bool = False  # with the command: it was killed, or its container stopped


def _after(data: bytes | bytearray, key: bytes) -> bytes | None:
    """The digits between `key` and the end of its line. No regular expression: each command would compile its own."""
    at = data.find(key)
    end = data.find(b"\n", at)
    digits = bytes(data[at + len(key) : end])
    return digits if at >= 0 and end >= 0 and digits.isdigit() else None


class _Stream:
    """Bytes of one stream: beyond `limit`, its first and last half, and the number of bytes dropped between them."""

    def __init__(self, limit: int) -> None:
        self.data = bytearray()
        self.half = limit // 2
        self.dropped = 0

    def add(self, chunk: bytes) -> None:
        self.data += chunk
        excess = len(self.data) - 2 * self.half
        if excess > self.half // 4:  # seldom, because it moves half of the data
            del self.data[self.half : self.half + excess]
            self.dropped += excess

    def ends_recently(self, mark: bytes, recent: int) -> bool:
        """Return whether the end mark's line completed within the last `recent` bytes."""
        at = self.data.find(mark + b":e", max(0, len(self.data) - recent - len(mark) - 8))
        return at >= 0 and self.data.find(b"\n", at) >= 0

    def content(self, mark: bytes) -> bytes:
        """Return the bytes between the begin and end marks."""
        begin, end = self.data.find(mark + b":b\n"), self.data.find(mark + b":e")
        data = bytes(self.data[begin + len(mark) + 3 if begin >= 0 else 0 : end if end >= 0 else None])
        if not self.dropped:
            return data
        cut = max(0, self.half - (begin + len(mark) + 3))
        return data[:cut] + b"\n[... %d bytes dropped ...]\n" % self.dropped + data[cut:]


class Shell:
    """One open shell, for one command at a time. Close it after `settle` returned False, or a command saw it die."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, process: io.FileIO | None = None
    ) -> None:
        """`process`: pidfd of the shell's process, where the end of the stream does not show that it has ended."""
        self._reader = reader
        self._writer = writer
        self._process = process
        self._in_flight_sec = IN_FLIGHT_SEC
        self._takes_blocks = False
        if process is not None:
            asyncio.get_running_loop().add_reader(process, self._process_ended)
        self._unparsed = bytearray()
        self._mark = b"\0"  # of no command yet
        self._streams: dict[int, _Stream] = {}
        self._ended: set[int] = set()

    @classmethod
    async def open(cls, container: str, user: str) -> "Shell":
        """Start a shell as `user` ("" = the image's).

        Raises docker.errors.APIError when the container is not up, ShellGone when no shell starts in it, RuntimeError
        when something else does.
        """
        if user == "root" and (pipes := await call(runtime_shell, container, _WORDS, BOOT_SEC)):
            return await cls._ready(*await streams_of(pipes, _BUFFER), process=pipes.process)
        raw, early = await call(_exec_socket, container, user)
        return await cls._ready(*await asyncio.open_connection(sock=raw, limit=_BUFFER), early)

    @classmethod
    async def first(cls, container: str) -> "Shell | None":
        """Get the root shell that started with the container; None = it has none, or it cannot be reached from here."""
        with contextlib.suppress(ShellGone):
            if found := await call(first_shell, container):
                raw, early, process = found
                return await cls._ready(*await asyncio.open_connection(sock=raw, limit=_BUFFER), early, process)
        return None

    @classmethod
    async def _ready(
        cls,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        early: bytes = b"",
        process: io.FileIO | None = None,
    ) -> "Shell":
        shell = cls(reader, writer, process)
        shell._unparsed += early
        shell._writer.write(SAY_READY)
        try:
            async with asyncio.timeout(BOOT_SEC):
                await shell._boot()
        except TimeoutError:
            shell.close()
            raise RuntimeError(_NOT_STARTED) from None
        except (ShellGone, RuntimeError):
            shell.close()
            raise
        shell._writer.write(PREAMBLE)
        return shell

    async def _boot(self) -> None:
        output = _Stream(2 * BOOT_BYTES)
        self._streams = {_STDOUT: output, STDERR: output}
        self._take_in()
        while READY not in output.data:
            if len(output.data) + output.dropped > BOOT_BYTES:
                raise RuntimeError("what was started as a shell prints other things")
            if not await self._pump():
                raise ShellGone(output.data.decode(errors="replace").strip() or "no shell started")
        self._takes_blocks = BLOCKS in output.data

    @property
    def alive(self) -> bool:
        return not (self._reader.at_eof() or self._writer.is_closing())

    async def run(self, command: ShellCommand, limit: int = MAX_OUTPUT_BYTES) -> Output:
        """Run `command` to its end. Cancelling this does not end the command.

        Raises ShellGone when the shell died before it started; a shell that dies with its command gives exit code 137.
        """
        mark = secrets.token_hex(16)
        text = script(mark, command, block=self._takes_blocks)
        self._mark = mark.encode()
        self._streams = {_STDOUT: _Stream(limit), STDERR: _Stream(limit)}
        self._ended = set()
        try:
            self._writer.write(text)
            await self._writer.drain()
        except ConnectionError as error:
            raise ShellGone(str(error)) from None
        return await self._finish()

    async def _finish(self) -> Output:
        while len(self._ended) < 2:
            if not await self._pump():
                return self._died()
        code = _after(self._streams[_STDOUT].data, self._mark + b":e")
        return self._output(137 if code is None else int(code))

    async def _pump(self) -> bool:
        """Wait for bytes and take them in; loses none when cancelled. Returns False at the end of the stream."""
        if any(stream.dropped for stream in self._streams.values()):
            await asyncio.sleep(_PAUSE_SEC)  # what prints without an end would take the event loop for itself
        try:
            data = await self._reader.read(256 * 1024)
        except ConnectionError:
            data = b""
        self._unparsed += data
        self._take_in()
        return bool(data)

    def _take_in(self) -> None:
        for kind, payload in frames(self._unparsed, DOCKER_FRAME):
            number = STDERR if kind == STDERR else _STDOUT
            stream = self._streams[number]
            stream.add(payload)
            if stream.ends_recently(self._mark, len(payload)):
                self._ended.add(number)

    def _died(self) -> Output:
        self.close()
        if self._mark + b":b\n" not in self._streams[_STDOUT].data:
            raise ShellGone("the shell ended")
        return replace(self._output(137), shell_died=True)

    def _output(self, code: int) -> Output:
        out, err = self._streams[_STDOUT], self._streams[STDERR]
        key, stderr = self._mark + b":p", err.content(self._mark)
        if process := _after(stderr, key):
            stderr = stderr.replace(key + process + b"\n", b"", 1)
        return Output(out.content(self._mark), stderr, code, bool(out.dropped or err.dropped))

    async def process(self, seconds: float) -> int | None:
        """Wait for the process (and group) ID of the running command, in the container; None when it has ended."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while len(self._ended) < 2:
                    if found := _after(self._streams[STDERR].data, self._mark + b":p"):
                        return int(found)
                    if not await self._pump():
                        break
        return None

    async def settle(self, seconds: float) -> bool:
        """Wait for the end of a command that was killed. False: it did not end, close the shell."""
        try:
            async with asyncio.timeout(seconds):
                await self._finish()
        except (TimeoutError, ShellGone):
            return False
        return self.alive

    async def last_words(self, script: str) -> None:
        """Run `script` in the shell itself, without a process if made of builtins, and end the shell."""
        self._in_flight_sec = 0.0  # no output counts
        self._writer.write(f"{script}\nexit 0\n".encode())
        while await self._pump():
            pass

    def _process_ended(self) -> None:
        self._unwatch()
        asyncio.get_running_loop().call_later(self._in_flight_sec, self._writer.close)

    def _unwatch(self) -> None:
        if self._process is not None:
            asyncio.get_running_loop().remove_reader(self._process)
            self._process.close()
            self._process = None

    def close(self) -> None:
        self._unwatch()
        self._writer.close()


def _exec_socket(container: str, user: str) -> tuple[socket.socket, bytes]:
    """The exec's duplex socket, which the caller closes, and the bytes that came with the response's head. Blocking.

    Raises docker.errors.APIError, ShellGone; RuntimeError when a program that is no shell was started.
    """
    client = engine()
    for file in USERS:
        found = stat_of(container, file)
        if found and found["mode"] & GO_LINK:
            found = stat_of(container, found["linkTarget"])
        if found and (found["mode"] & _GO_NO_FILE or found["size"] > MOST_USERS):
            raise ShellGone(f"{file} is no list of users")
    exec_id = client.exec_create(container, _WORDS, stdin=True, user=user, workdir="/")["Id"]
    try:
        return duplex(engine(BOOT_SEC).exec_start(exec_id, socket=True))
    except (requests.ReadTimeout, TimeoutError):
        if ping_docker() is not None:
            raise
        raise RuntimeError(_NOT_STARTED) from None


class Shells:
    """The shells of one container, opened when needed and kept for later commands."""

    def __init__(self, container: str) -> None:
        self._container = container
        self._idle: defaultdict[str, list[Shell]] = defaultdict(list)
        self._opened: set[Shell] = set()  # since the last `drop`
        self._closed = False

    async def run(
        self,
        command: str | ShellCommand,
        *,
        user: str = "",
        seconds: float | None = None,
        limit: int = MAX_OUTPUT_BYTES,
    ) -> Output:
        """Run a command as `user` ("" = the image's) and return its output, at most `limit` bytes a stream.

        Raises TimeoutError after `seconds`; then, and when cancelled, the command's process group is killed
        and the shell is kept. Raises RuntimeError when no shell starts.
        """
        command = command if isinstance(command, ShellCommand) else ShellCommand(command)
        with contextlib.suppress(ShellGone):  # it died while it was idle; the command has not begun
            return await self._run_once(command, user, seconds, limit)
        try:
            return await self._run_once(command, user, seconds, limit)
        except ShellGone as error:
            raise RuntimeError(f"no shell in container {self._container}: {error}") from None

    async def _run_once(self, command: ShellCommand, user: str, seconds: float | None, limit: int) -> Output:
        shell = await self._take(user)
        try:
            async with asyncio.timeout(seconds):
                output = await shell.run(command, limit)
        except TimeoutError:
            await self._interrupt(shell, user)
            raise
        except asyncio.CancelledError:
            in_background(self._interrupt(shell, user))
            raise
        except (ShellGone, ValueError):
            shell.close()
            raise
        self._give(shell, user)
        return output

    async def last_words(self, script: str, seconds: float) -> None:
        """`Shell.last_words` of a root shell; closes all idle shells.

        Raises TimeoutError, ShellGone, docker.errors.DockerException.
        """
        async with asyncio.timeout(seconds):
            shell = await self._take("root")
            self.drop()
            try:
                await shell.last_words(script)
            finally:
                shell.close()

    async def take_first(self) -> None:
        """Run the first commands of root in the shell that started with the container, if it can be reached."""
        if (shell := await Shell.first(self._container)) is not None:
            self._opened.add(shell)
            self._give(shell, "root")

    @property
    def users(self) -> list[str]:
        """Those who ran commands since the last `drop`."""
        return list(self._idle)

    def close(self) -> None:
        self._closed = True
        self.drop()

    def drop(self) -> None:
        """Close the idle shells, and those that run a command when it has ended; the next one opens a new shell."""
        self._opened.clear()
        for shells in self._idle.values():
            for shell in shells:
                shell.close()
        self._idle.clear()

    async def _take(self, user: str) -> Shell:
        while self._idle[user]:
            if (shell := self._idle[user].pop()).alive:
                return shell
            shell.close()
        self._opened.add(shell := await Shell.open(self._container, user))
        return shell

    def _give(self, shell: Shell, user: str) -> None:
        if self._closed or not shell.alive or shell not in self._opened:
            shell.close()
        else:
            self._idle[user].append(shell)

    async def _interrupt(self, shell: Shell, user: str) -> None:
        """Kill the process group that `shell` runs; keep the shell if it then becomes free."""
        pid = None if self._closed else await shell.process(KILL_WAIT_SEC)
        if pid is not None:
            await self._kill(pid)
        if not await shell.settle(KILL_WAIT_SEC):
            shell.close()
        self._give(shell, user)

    async def _kill(self, pid: int) -> None:
        helper = None
        try:
            async with asyncio.timeout(KILL_WAIT_SEC):
                helper = await self._take("root")
                await helper.run(ShellCommand(f"kill -s KILL -- -{pid} 2>/dev/null || kill -s KILL {pid}"))
        except (TimeoutError, ShellGone, DockerException):
            if helper:
                helper.close()
        else:
            self._give(helper, "root")
