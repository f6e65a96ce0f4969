"""Connections carried out of a container: the program that runs there, in a process of this machine."""

import asyncio
import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from harbortrainer.bundled.agents import relay, relay_program
from harbortrainer.bundled.agents.listener import NoPython, ShutOut
from harbortrainer.bundled.agents.relay import Relay
from harbortrainer.errors import EnvironmentFault
from tests.support.fake_engine import FakeEngine, use_engine

PYTHONS = (sys.executable,)
started: list[subprocess.Popen[bytes]] = []
faults: list[EnvironmentFault] = []
answering: list[asyncio.Task[None]] = []


@pytest.fixture(autouse=True)
async def all_end() -> AsyncIterator[None]:
    """Programs end by themselves, since their input has ended."""
    yield
    for process in started:
        await asyncio.to_thread(process.wait, 60)
    for task in answering:
        task.cancel()
    started.clear()
    for notes in (faults, answering, served):
        notes.clear()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def as_exec(command: list[str]) -> socket.socket:
    """The command's streams as Docker gives those of an exec: one socket, out of it frames of stdout and stderr."""
    here, there = socket.socketpair()
    mux = (
        "import os, selectors, struct, subprocess, sys\n"
        "p = subprocess.Popen(sys.argv[1:], stdin=0, stdout=subprocess.PIPE, stderr=subprocess.PIPE)\n"
        "s = selectors.DefaultSelector()\n"
        "s.register(p.stdout, 1, 1); s.register(p.stderr, 1, 2)\n"
        "while s.get_map():\n"
        "    for key, _ in s.select():\n"
        "        data = os.read(key.fd, 65536)\n"
        "        if not data: s.unregister(key.fileobj)\n"
        "        else: sys.stdout.buffer.write(struct.pack('>BxxxL', key.data, len(data)) + data); sys.stdout.flush()\n"
    )
    started.append(
        subprocess.Popen([sys.executable, "-I", "-S", "-c", mux, *command], stdin=there.fileno(), stdout=there.fileno())
    )
    there.close()
    return here


async def echo(connected: socket.socket) -> None:
    """A server that says everything twice, and hangs up when the client does."""
    reader, writer = await asyncio.open_connection(sock=connected)

    async def work() -> None:
        while data := await reader.read(1 << 16):
            writer.write(data + data)
            await writer.drain()
        writer.close()

    answering.append(asyncio.create_task(work()))


class Daemon(FakeEngine):
    """Runs an exec here, changed by `change`. `codes`: what it says of the end of an exec, the last one for ever."""

    def __init__(self) -> None:
        self.change: Callable[[list[str]], list[str]] = list
        self.codes: list[int | None] = [0]
        self._command: list[str] = []

    def exec_create(self, container: str, command: list[str], **_: Any) -> dict[str, str]:
        self._command = self.change(command)
        return {"Id": "id"}

    def exec_start(self, exec_id: str, socket: bool) -> Any:
        made = as_exec(self._command)
        buffered = SimpleNamespace(raw=SimpleNamespace(_fp=SimpleNamespace(fp=SimpleNamespace(peek=lambda: b""))))
        return SimpleNamespace(
            fileno=made.fileno, _sock=made, _response=SimpleNamespace(**vars(buffered), close=made.close)
        )

    def exec_inspect(self, exec_id: str) -> dict[str, Any]:
        code = self.codes.pop(0) if len(self.codes) > 1 else self.codes[0]
        return {"Running": code is None, "ExitCode": code}


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Daemon:
    made = Daemon()
    use_engine(monkeypatch, made)
    return made


@pytest.fixture
async def opened(daemon: Daemon, request: pytest.FixtureRequest) -> AsyncIterator[tuple[Relay, int]]:
    """With a server that says everything twice, unless the test's parameter is another."""
    port = free_port()
    one = await Relay.open("c", port, PYTHONS, getattr(request, "param", echo), faults.append)
    yield one, port
    await one.close()


async def test_connections_are_carried_whole_and_apart(opened: tuple[Relay, int]) -> None:
    _, port = opened

    async def client(data: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)
        answer = await reader.readexactly(2 * len(data))
        writer.close()
        return answer

    sent = [bytes([number]) * size for number, size in enumerate((1, 70_000, 1_000_000, 3))]
    answers = await asyncio.gather(*map(client, sent))
    assert [sorted(answer) for answer in answers] == [sorted(data + data) for data in sent]


served: list[socket.socket] = []


async def refuse(connected: socket.socket) -> None:
    served.append(connected)
    connected.close()


@pytest.mark.parametrize("opened", [refuse], indirect=True)
async def test_what_a_client_still_sends_after_its_server_has_closed_opens_no_connection(
    opened: tuple[Relay, int],
) -> None:
    """A body that is refused by its length: its rest would be read as requests."""
    one, _ = opened
    for _ in range(2):
        with contextlib.suppress(ConnectionError):
            await one._take(7, b"GET / HTTP/1.1")
        await asyncio.gather(*one._carrying)
    assert len(served) == 1


async def test_a_connection_that_says_nothing_disturbs_no_other(opened: tuple[Relay, int]) -> None:
    _, port = opened
    for _ in range(70):  # more than it keeps at once
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        await writer.wait_closed()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"x")
    assert await reader.readexactly(2) == b"xx"
    writer.close()


async def test_after_the_end_nothing_listens_and_connections_are_closed(opened: tuple[Relay, int]) -> None:
    one, port = opened
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"x")
    assert await reader.readexactly(2) == b"xx"
    await one.close()
    assert await reader.read() == b""
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
    await one.close()
    writer.close()


async def test_a_killed_program_is_no_fault_and_a_lost_stream_is(
    opened: tuple[Relay, int], daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon may say that a program runs for some time after its streams have ended."""
    one, _ = opened
    daemon.codes = [None, None, 137, None]
    one._reader.feed_eof()
    assert one._work is not None
    await one._work
    assert faults == []
    monkeypatch.setattr(relay, "CUT_SEC", 0.05)
    for code in (None, 0):  # it runs, or has seen the end of its input
        daemon.codes = [code]
        await one._run(one._frames(b""))
    assert [str(fault) for fault in faults] == [
        "the agent's way to its endpoint was lost: the stream of its exec was cut"
    ] * 2


async def none_left(_: socket.socket) -> None:
    raise OSError(24, "Too many open files")


@pytest.mark.parametrize("opened", [none_left], indirect=True)
async def test_a_run_without_a_socket_for_a_connection_is_a_fault(opened: tuple[Relay, int]) -> None:
    one, port = opened
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"x")
    assert one._work is not None
    await asyncio.wait_for(one._work, 600)
    assert len(faults) == 1 and "Too many open files" in str(faults[0])
    writer.close()


async def test_a_phase_that_is_cancelled_at_its_start_leaves_no_stream(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.change = lambda _: ["sh", "-c", "cat > /dev/null"]
    begun, start = asyncio.Event(), Relay._start

    async def noted(one: Relay, early: bytes) -> bool:
        begun.set()
        return await start(one, early)

    monkeypatch.setattr(Relay, "_start", noted)
    opening = asyncio.create_task(Relay.open("c", 1, PYTHONS, echo, faults.append))
    await begun.wait()
    opening.cancel()
    await asyncio.wait({opening})
    assert opening.cancelled()  # and `all_end` waits for the program, whose input has to end


@pytest.fixture
def taken() -> Iterator[socket.socket]:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        yield one


@pytest.mark.parametrize(("status", "whose"), [(1, ShutOut), (137, RuntimeError)])
async def test_a_taken_port_is_named(
    status: int, whose: type[RuntimeError], taken: socket.socket, daemon: Daemon
) -> None:
    """With the status of a killed program nobody knows why it ended. The daemon notes it a little later."""
    port = taken.getsockname()[1]
    daemon.codes = [None, None, status]
    daemon.change = lambda command: [word.replace("FREE_SEC = 10", "FREE_SEC = 0") for word in command]
    with pytest.raises(
        RuntimeError, match=rf"cannot listen at port {port} inside c: .*Address already in use"
    ) as error:
        await Relay.open("c", port, PYTHONS, echo, faults.append)
    assert error.type is whose


def test_the_port_of_an_earlier_program_is_waited_for(taken: socket.socket) -> None:
    """It was stopped with the agent's processes before it saw that its phase is over."""
    threading.Timer(0.05, taken.close).start()
    relay_program.listening(taken.getsockname()[1]).close()


async def test_a_container_without_python_is_named(daemon: Daemon) -> None:
    with pytest.raises(NoPython, match=r"container c has no python3"):
        await Relay.open("c", 1, ["no-such-python"], echo, faults.append)
